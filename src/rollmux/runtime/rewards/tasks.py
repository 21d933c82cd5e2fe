"""What can be scored: mathematical answers, programs by tests, anything by a function of the caller's or a judge."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from string import Formatter
from typing import Any

from rollmux.errors import InvalidSpec, Problem
from rollmux.runtime.rewards.reward import MOST
from rollmux.runtime.sandbox import Program


class Kind(Enum):
    """Kinds of tasks, by what scoring them needs; each kind has a budget of its own."""

    MATHS = "maths"
    CODE = "code"
    FUNCTION = "function"
    ASYNC = "async"
    JUDGE = "judge"


@dataclass(frozen=True, slots=True)
class MathsTask:
    """Is the answer in `response` the same as `gold`? Both may be LaTeX or plain text."""

    response: str
    gold: str


@dataclass(frozen=True, slots=True)
class Case:
    """One test: with this input the program prints this. Lines are compared without the blanks at their ends."""

    stdin: str
    expected: str


@dataclass(frozen=True, slots=True)
class CodeTask:
    """A program and its tests: either cases, or `asserts`, Python source that calls what the program defines.

    Tests of one `problem` learn their time limits together; `group` names problems that are alike.
    """

    problem: str
    program: Program
    cases: tuple[Case, ...] = ()
    asserts: str = ""
    group: str | None = None

    def __post_init__(self) -> None:
        if bool(self.cases) == bool(self.asserts):
            remedy = "give cases or asserts, and not both"
            raise InvalidSpec("code_task", (Problem("code_task.cases", self.cases, "one of two", remedy),))
        if self.asserts and not self.program.source:
            problem = Problem("code_task.program", self.program.command, "Python source", "asserts call its functions")
            raise InvalidSpec("code_task", (problem,))


@dataclass(frozen=True, slots=True)
class FunctionTask:
    """`module:name`, called in a process of its own with these arguments (plain JSON); it returns the score."""

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        module, _, name = self.function.partition(":")
        if not module or not name.isidentifier():
            problem = Problem("function_task.function", self.function, "module:name", "name what can be imported")
            raise InvalidSpec("function_task", (problem,))


@dataclass(frozen=True, slots=True)
class AsyncTask:
    """`call` is awaited in the pool's own process, so it must not compute: it is for a request to a judge elsewhere."""

    call: Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class JudgeTask:
    """What a judge model expects: the worth of each answer, weighted by how likely the model gives it.

    `template` names `fields` in braces, without formats; only its own text can name special tokens. `answers` are the
    texts that may follow it.
    """

    template: str
    fields: Mapping[str, str]
    answers: Mapping[str, float] = field(default_factory=lambda: {" yes": 1.0, " no": 0.0})

    def __post_init__(self) -> None:
        problems = []
        try:
            parts = list(Formatter().parse(self.template))
        except ValueError as error:
            parts = []
            problems.append(
                Problem("judge_task.template", str(error), "a format string", "double braces that are text")
            )
        if formatted := sorted({name for _, name, form, conversion in parts if name and (form or conversion)}):
            remedy = "leave out what stands behind them; double braces are text"
            problems.append(Problem("judge_task.template", formatted, "names alone in braces", remedy))
        if missing := sorted({name for _, name, _, _ in parts if name is not None} - set(self.fields)):
            problems.append(Problem("judge_task.fields", missing, "all that the template names", "give their texts"))
        if (
            len(self.answers) < 2
            or not all(-MOST <= each <= MOST for each in self.answers.values())
            or "" in self.answers
        ):
            limit, remedy = f"texts and numbers up to {MOST:g}", "give two answers or more, each with what it is worth"
            problems.append(Problem("judge_task.answers", dict(self.answers), limit, remedy))
        if problems:
            raise InvalidSpec("judge_task", tuple(problems))


Task = MathsTask | CodeTask | FunctionTask | AsyncTask | JudgeTask
KINDS: Mapping[type, Kind] = {
    MathsTask: Kind.MATHS,
    CodeTask: Kind.CODE,
    FunctionTask: Kind.FUNCTION,
    AsyncTask: Kind.ASYNC,
    JudgeTask: Kind.JUDGE,
}

"""The user's own questions, from a file: each line is JSON, with a prompt and with the way to score its responses.

`docs/questions.md` says what a line may hold. Invariant: a response never decides how it is scored, and no response,
whatever it says, ends a run.
"""

import ast
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import sha256
from importlib.machinery import PathFinder
from pathlib import Path
from string import Formatter
from textwrap import dedent, indent
from typing import Any, Literal
from warnings import catch_warnings

import msgspec

from rollmux.errors import InvalidSpec, Problem
from rollmux.protocol.plain_json import read_object
from rollmux.runtime.rewards import KINDS, Case, CodeTask, FunctionTask, JudgeTask, MathsTask, Message, Told
from rollmux.runtime.rewards import Task as Asked
from rollmux.runtime.rewards.asserts.reading import compiled
from rollmux.runtime.sandbox import Program
from rollmux.trainer.errors import NotTaught
from rollmux.trainer.tasks.pretrained import Pretrained, without_end
from rollmux.trainer.tasks.task import Needs

MOST_PROBLEMS = 10  # of a file: more are no help before the first are mended
YES_OR_NO: Mapping[str, float] = {"yes": 1.0, "no": 0.0}
SCORED_BY = ("answer", "cases", "asserts", "function", "judge")
BESIDE: Mapping[str, Sequence[str]] = {
    "arguments": ("function", "reply"),
    **dict.fromkeys(("fields", "answers"), ("judge",)),
    **dict.fromkeys(("group", "prelude"), ("cases", "asserts")),
}

# A fence may be indented, as in a list, and longer than three marks; a response that was cut off has not closed it.
_FENCED = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^[ \t]*\1|\Z)", re.MULTILINE | re.DOTALL)
_FUTURE = re.compile(r"^from __future__ import .*", re.MULTILINE)
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_INDENT = " " * 4
_BOM = b"\xef\xbb\xbf"
# The first bytes of files that have another form.
_NO_LINES = {b"PAR1": "a Parquet file", b"[": "one list", b"\x1f\x8b": "a packed file"}
_CONVERT = "docs/questions.md makes lines of other data sets' rows"


class _Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class _Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stdin: str
    expected: str


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line of the file, as it is written there."""

    prompt: str | list[_Turn]
    answer: str | int | float | None = None
    cases: list[_Case] | None = None
    asserts: str | None = None
    group: str | None = None
    prelude: str | None = None
    function: str | None = None
    arguments: dict[str, Any] | None = None
    reply: str | None = None
    judge: str | None = None
    fields: dict[str, str] | None = None
    answers: dict[str, float] | None = None


Messages = list[Message]  # the turns of a whole conversation


@dataclass(frozen=True, slots=True)
class Question:
    """One question, with the functions that make a pool's task of a conversation: to score it, or to reply to it.

    The last turn is scored. A judge may see the whole conversation, and a function gets it if the line has a `reply`.
    """

    line: str  # its name in messages
    said: tuple[tuple[str, str], ...]  # the prompt: roles and what they say
    scored: Callable[[str, Messages], Asked]
    replied: Callable[[Messages], FunctionTask] | None

    def asked(self, *said: Told) -> Asked:
        return self.scored(str(said[-1]), self._messages(said))

    def reply_asked(self, *said: Told) -> FunctionTask | None:
        return None if self.replied is None else self.replied(self._messages(said))

    def _messages(self, said: Sequence[Told]) -> Messages:
        messages = [{"role": role, "content": content} for role, content in self.said]
        for place, each in enumerate(said):
            role = "user" if place % 2 else "assistant"
            messages += [{"role": role, "content": each}] if isinstance(each, str) else each
        return messages


class Questions:
    """The task of a file's questions, which are put to a pretrained model."""

    def __init__(self, path: Path, system: str, tokenizer: Pretrained) -> None:
        content, folder = _content(path), str(path.parent.absolute())
        self.tokenizer = tokenizer
        before = (("system", system),) if system else ()
        self._questions = [
            each if each.said[0][0] == "system" else replace(each, said=(*before, *each.said))
            for each in read_questions(content, str(path), folder)
        ]
        replies = [told for each in self._questions if (told := each.reply_asked("")) is not None]
        if replies:
            self._require_replies_told()
        samples = [*(each.asked("") for each in self._questions), *replies]
        modules = sorted({_module(each) for each in samples if isinstance(each, FunctionTask)})
        self.needs = Needs({KINDS[type(each)] for each in samples}, modules, (folder,), talks=bool(replies))
        self.digest = sha256(b"".join([content, *_beside(modules, path.parent)])).hexdigest()

    def _require_replies_told(self) -> None:
        """Refuses replies at the start if the model's template can't write them."""
        try:
            self.tokenizer.told("Go on.", self.tokenizer.end_tokens[0])
        except NotTaught as error:
            raise NotTaught(f"no `reply` of the questions can be told: {error}") from error

    def __len__(self) -> int:
        return len(self._questions)

    def prompt(self, number: int) -> str:
        try:
            return self.tokenizer.talk(self._questions[number].said)
        except NotTaught as error:
            raise NotTaught(f"{self.named(number)}: {error}") from error

    def named(self, number: int) -> str:
        return f"{self._questions[number].line} of the questions"

    def asked(self, number: int, *said: Told) -> Asked:
        return self._questions[number].asked(*self._without_ends(said))

    def reply_asked(self, number: int, *said: Told) -> FunctionTask | None:
        return self._questions[number].reply_asked(*self._without_ends(said))

    def _without_ends(self, said: Sequence[Told]) -> list[Told]:
        """The conversation without the end tokens of the model's turns; replies stay as they are."""
        ends = self.tokenizer.ends
        return [each if place % 2 else without_end(str(each), ends) for place, each in enumerate(said)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes().removeprefix(_BOM)
    except OSError as error:
        problem = Problem("job.task.path", str(path), "a file with questions", f"it can't be read: {error.strerror}")
        raise InvalidSpec("job", (problem,)) from error


def _module(task: FunctionTask) -> str:
    return task.function.partition(":")[0]


def _beside(modules: Sequence[str], folder: Path) -> list[bytes]:
    """The source of modules beside the file, and of their packages: if they change, rewards may change."""
    files = dict.fromkeys(file for module in modules for file in _files(folder, module.split(".")))
    return [file.read_bytes() for file in files if file.is_file()]


def _files(folder: Path, parts: Sequence[str]) -> list[Path]:
    packages = [folder.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)]
    return [*packages, folder.joinpath(*parts).with_suffix(".py")]


def read_questions(content: bytes, subject: str, folder: str = "") -> list[Question]:
    """The questions of all lines that are not empty; or InvalidSpec with the problems of the first wrong lines.

    Functions may be in modules in `folder`.
    """
    problems = [
        Problem("lines", form, "JSON objects, one a line", _CONVERT)
        for begin, form in _NO_LINES.items()
        if content.lstrip().startswith(begin)
    ]
    found: list[Question] = []
    for number, line in enumerate([] if problems else content.splitlines(), 1):
        if line.strip() and len(problems) < MOST_PROBLEMS:
            try:
                found.append(_question(line, f"line {number}", folder))
            except InvalidSpec as error:
                problems += [Problem(f"line {number}: {p.path}", p.value, p.limit, p.remedy) for p in error.problems]
    if not found and not problems:
        problems.append(Problem("lines", 0, "at least one", "write a JSON object with a prompt and an answer"))
    if problems:
        raise InvalidSpec(f"questions of {subject!r}", tuple(problems))
    return found


def _question(content: bytes, problem_name: str, folder: str) -> Question:
    try:
        line = msgspec.convert(read_object(content), _Line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        limit = f"an object with a prompt and one of {', '.join(SCORED_BY)}"
        remedy = f"{error}; {_CONVERT}" if isinstance(error, msgspec.ValidationError) else str(error)
        raise _wrong("question", content[:60].decode(errors="replace"), limit, remedy) from None
    _require_one_way(line)
    for path, function in (("function", line.function), ("reply", line.reply)):
        if function is not None:
            _require_called(path, function)
    said = (("user", line.prompt),) if isinstance(line.prompt, str) else tuple((t.role, t.content) for t in line.prompt)
    if not said or said[-1][0] != "user" or not said[-1][1]:
        raise _wrong("prompt", line.prompt, "a text, or turns of which the last is the user's", "ask something")
    question = Question(problem_name, said, _scored(line, said[-1][1], problem_name), _replied(line))
    _require_askable(question.asked(""), folder, "function")
    if (told := question.reply_asked("")) is not None:
        _require_askable(told, folder, "reply")
    return question


def _require_called(path: str, function: str) -> None:
    module, _, name = function.partition(":")
    if not _MODULE.fullmatch(module) or not name.isidentifier():
        raise _wrong(
            path, function, "module:name", "name a function of a module beside the file, or of an installed one"
        )


def _require_askable(task: Asked, folder: str, path: str) -> None:
    """Refuses a task that can't be scored, as far as this shows without running it. Its own checks have passed."""
    match task:
        case CodeTask(asserts=asserts) if asserts:
            if not _statements("asserts", asserts, compiled):
                raise _wrong("asserts", asserts, "at least one assert", "say what must hold")
        case FunctionTask(function=function):
            module = _module(task)
            if not _is_there(module, folder):
                remedy = f"put {module.replace('.', '/')}.py beside the file"
                raise _wrong(path, function, "a module that can be found", remedy)
        case JudgeTask(template=template):
            if not {"response", "conversation"} & {name for _, name, _, _ in Formatter().parse(template)}:
                limit = "a text with {response} or {conversation}"
                raise _wrong("judge", template, limit, "show the judge what it judges")


def _statements(path: str, source: str, compiled: Callable[[str], object]) -> Sequence[ast.stmt]:
    """The Python statements of the source, which must compile."""
    try:
        with catch_warnings(action="ignore"):  # code with warnings can be run
            compiled(source)
            return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _wrong(path, source, "lines of Python", str(error)) from None


def _is_there(module: str, folder: str) -> bool:
    """Whether the module can be found. Looks without an import, even of the packages that it is in."""
    places: Sequence[str] | None = [*sys.path, folder]
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        try:
            found = None if places is None else PathFinder.find_spec(".".join(parts[:depth]), places)
        except KeyError:  # a nested package without __init__.py: only an import could tell
            return True
        if found is None:
            return module in sys.modules  # such as os.path: os is no package
        places = found.submodule_search_locations
    return True


def _require_one_way(line: _Line) -> None:
    ways = [name for name in SCORED_BY if getattr(line, name) is not None]
    if len(ways) != 1:
        raise _wrong("question", ways or None, f"one of {', '.join(SCORED_BY)}", "say how a response is scored")
    for name, owners in BESIDE.items():
        is_beside = ways[0] in owners or ("reply" in owners and line.reply is not None)
        if getattr(line, name) is not None and not is_beside:
            raise _wrong(name, getattr(line, name), f"beside {' or '.join(owners)}", "leave it out")


def _replied(line: _Line) -> Callable[[Messages], FunctionTask] | None:
    if line.reply is None:
        return None
    function, arguments = line.reply, line.arguments or {}
    if "messages" in arguments:
        raise _wrong("arguments", sorted(arguments), "without 'messages'", "those are the conversation's: rename yours")
    return lambda messages: FunctionTask(function, {**arguments, "messages": messages})


def _scored(line: _Line, prompt: str, name: str) -> Callable[[str, Messages], Asked]:
    if line.answer is not None:
        # In digits, as people write it: the comparison would read 1e-05 as something else.
        gold = format(Decimal(repr(line.answer)), "f") if isinstance(line.answer, float) else str(line.answer)
        if not gold.strip():
            raise _wrong("answer", gold, "the answer", "write what is right")
        return lambda response, messages: MathsTask(response, gold)
    if line.function is not None:
        function, arguments = line.function, line.arguments or {}
        if "response" in arguments:
            raise _wrong("arguments", sorted(arguments), "without 'response'", "that one is the model's: rename yours")
        if line.reply is None:
            return lambda response, messages: FunctionTask(function, {**arguments, "response": response})
        return lambda response, messages: FunctionTask(
            function, {**arguments, "response": response, "messages": messages}
        )
    if line.judge is not None:
        template, answers = line.judge, YES_OR_NO if line.answers is None else line.answers
        if taken := sorted({"prompt", "response", "conversation"} & set(line.fields or ())):
            raise _wrong("fields", taken, "other names", "these are the question's: rename yours")
        fields = {"prompt": prompt, **(line.fields or {})}
        return lambda response, messages: JudgeTask(
            template, {**fields, "response": response, "conversation": in_words(messages)}, answers
        )
    cases = tuple(Case(each.stdin, each.expected) for each in line.cases or ())
    asserts, group, prelude = line.asserts or "", line.group, line.prelude or ""
    _statements("prelude", prelude, lambda source: compile(source, "prelude", "exec"))
    return lambda response, messages: CodeTask(
        name, Program(preceded(program_in(response), prelude)), cases, asserts, group
    )


def in_words(messages: Messages) -> str:
    """The text of a conversation for a judge: each turn has its role, and below it, indented, its words.

    So no words of a turn look like another turn.
    """
    turns = (f"{each['role']}:\n{indent(each['content'], _INDENT, lambda line: True)}" for each in messages)
    return "\n".join(turns)


def program_in(response: str) -> str:
    """The last fenced block, whole or cut off; without one the whole response. Never empty: a program must not be."""
    blocks = [block for _, block in _FENCED.findall(response)]
    source = dedent(blocks[-1]) if blocks else response
    return source if source.strip() else "pass"


def preceded(program: str, prelude: str) -> str:
    """The program behind its question's prelude; imports from `__future__` come before both."""
    if not prelude:
        return program
    return "\n".join([*_FUTURE.findall(program), prelude, _FUTURE.sub("", program)])


def _wrong(path: str, value: object, limit: str, remedy: str) -> InvalidSpec:
    return InvalidSpec("question", (Problem(path, value, limit, remedy),))

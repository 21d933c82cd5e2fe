"""Scores a program by its tests, each run in the sandbox with the time limits that were learnt for its case.

Invariant: expected answers never enter the program's process, and what it says about itself decides nothing.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from rollmux.packer.timeouts import End, Judgement, Limits, Run, TimeoutPolicy, Verdict
from rollmux.runtime.rewards.asserts.asking import BROKEN_TESTS, PASSED, UNASKABLE
from rollmux.runtime.rewards.reward import Reward, Status
from rollmux.runtime.rewards.tasks import Case, CodeTask
from rollmux.runtime.sandbox import Cause, Ended, Program, RunLimits, Sandbox
from rollmux.runtime.sandbox.limits import BOM

_LAST_WORDS_S = 1.0  # how long a program may take to end when its tests are done
_STATUSES = {Verdict.TIMEOUT: Status.TIMEOUT, Verdict.ERROR: Status.ERROR}
_UNTOLD = {BROKEN_TESTS: "the tests can't be read or run", UNASKABLE: "the tests ask what can't be answered honestly"}
_SERVE = "from rollmux.runtime.rewards.asserts.calls import serve\nserve({source!r})"
_CHECK = "from rollmux.runtime.rewards.asserts.calls import check\ncheck({tests!r})"


@dataclass(frozen=True, slots=True)
class Trial:
    """How one test went."""

    end: End
    cpu_s: float
    wall_s: float
    detail: str


@dataclass(frozen=True, slots=True)
class Audit:
    """A test that is to be run again with the widest limits, when no code waits for its score."""

    task: CodeTask
    number: int
    limits: Limits


class CodeScorer:
    """Runs tests one after the other, and stops at the first that does not pass: a program is right or it is not."""

    def __init__(
        self, sandbox: Sandbox, timeouts: TimeoutPolicy, limits: RunLimits, later: Callable[[Audit], None]
    ) -> None:
        self._sandbox, self._timeouts, self._limits, self._later = sandbox, timeouts, limits, later

    async def score(self, task: CodeTask) -> Reward:
        cpu_s = wall_s = 0.0
        count = len(task.cases) or 1
        for number in range(count):
            limits = self._timeouts.limits(_case(task, number), task.group)
            trial = await self._try(task, number, limits)
            judged = self._judge(task, number, trial, limits)
            cpu_s, wall_s = cpu_s + trial.cpu_s, wall_s + trial.wall_s
            if judged.verdict is not Verdict.PASSED:
                detail = f"test {number + 1} of {count}: {trial.detail}"
                status = _STATUSES.get(judged.verdict, Status.SCORE)
                return Reward(status, 0.0 if status is Status.SCORE else None, detail, cpu_s, wall_s)
        return Reward(Status.SCORE, 1.0, f"{count} of {count} tests passed", cpu_s, wall_s)

    async def audit(self, audit: Audit) -> None:
        trial = await self._try(audit.task, audit.number, audit.limits)
        self._timeouts.audited(_run(audit.task, audit.number, trial, audit.limits))

    def _judge(self, task: CodeTask, number: int, trial: Trial, limits: Limits) -> Judgement:
        judged = self._timeouts.judge(_run(task, number, trial, limits))
        if judged.audit is not None:
            self._later(Audit(task, number, judged.audit))
        return judged

    async def _try(self, task: CodeTask, number: int, limits: Limits) -> Trial:
        held = replace(self._limits, cpu_s=limits.cpu_s, wall_s=limits.wall_s)
        if task.asserts:
            return await self._try_asserts(task, held)
        case = task.cases[number]
        program = replace(task.program, stdin=case.stdin.encode())
        # A right output may be twice as long as the expected one, if its lines end with blanks.
        room = max(held.output_bytes, 2 * len(case.expected.encode()))
        ended = await self._sandbox.run(program, replace(held, output_bytes=room))
        ended.require_whole()
        return _of_case(ended, case)

    async def _try_asserts(self, task: CodeTask, limits: RunLimits) -> Trial:
        """The program and its judge, each in a sandbox of its own."""
        asked, asking = socket.socketpair()
        tests = Program(_CHECK.format(tests=task.asserts.removeprefix(BOM)))
        program = replace(task.program, source=_SERVE.format(source=task.program.source.removeprefix(BOM)))
        with asked, asking:
            serving = asyncio.create_task(self._sandbox.run(program, limits, asked))
            try:
                checking = await self._sandbox.run(tests, limits, asking)
                served = (await asyncio.wait([serving], timeout=_LAST_WORDS_S))[0]
            finally:
                serving.cancel()
        serving_ended = served.pop().result() if served else None
        checking.require_not_killed()  # nothing of the program's runs there, so it can't have killed itself
        if serving_ended is not None:
            serving_ended.require_whole()
        return _of_asserts(checking, serving_ended)


def _of_case(ended: Ended, case: Case) -> Trial:
    end, detail = _end(ended, 0), _told(ended)
    if end is End.CORRECT and not same_output(ended.stdout.decode(errors="replace"), case.expected):
        end, detail = End.INCORRECT, "another output than expected"
    return Trial(end, ended.cpu_s, ended.wall_s, detail)


def _of_asserts(checking: Ended, serving: Ended | None) -> Trial:
    """The judge's exit decides. If the program has met a limit, that is why the judge got no answer.

    Judge and program each have the whole limit, so the timeouts learn from the one that took more. The CPU time of a
    program that has not ended is not known: one thread can't have taken more than the time that passed.
    """
    cpu_s = max(checking.cpu_s, checking.wall_s if serving is None else serving.cpu_s)
    end, detail = _end(checking, PASSED), _told(checking)
    if checking.cause is Cause.EXITED and checking.status in _UNTOLD:
        end, detail = End.BROKEN, f"{_UNTOLD[checking.status]}: {detail}"
    elif end is not End.CORRECT and serving is not None and serving.cause is not Cause.EXITED:
        end, detail = _end(serving, 0), _told(serving)
    elif end is End.INCORRECT and serving is not None and serving.status:
        detail = _told(serving)
    return Trial(end, cpu_s, checking.wall_s, detail)


def _end(ended: Ended, well: int) -> End:
    """`well` is the exit status that means success."""
    if ended.ran_out_of_time:
        return End.KILLED
    return End.CORRECT if ended.cause is Cause.EXITED and ended.status == well else End.INCORRECT


def _told(ended: Ended) -> str:
    if ended.cause is not Cause.EXITED:
        return f"{ended.cause.value} {ended.detail}".strip()
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    return f"exit status {ended.status}" + (f", {lines[-1][:200]}" if lines else "")


def same_output(got: str, expected: str) -> bool:
    """Compares line by line. Blanks at the end of a line, and empty lines at the end of the text, don't count."""
    return _lines(got) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _case(task: CodeTask, number: int) -> str:
    return f"{task.problem}/{number}"


def _run(task: CodeTask, number: int, trial: Trial, limits: Limits) -> Run:
    return Run(_case(task, number), trial.end, trial.cpu_s, trial.wall_s, limits, task.group)

"""Compares mathematical answers with math-verify, each in a process that can be killed.

Invariant: a comparison that takes too long is a timeout. math-verify's own time limits, which make of it a wrong
answer, are off.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from rollmux.runtime.rewards.reward import Reward, Status
from rollmux.runtime.rewards.tasks import MathsTask
from rollmux.runtime.sandbox import Cause, Program, RunLimits, Sandbox

_COMPARE = "from rollmux.runtime.rewards.maths import compare\ncompare()"
_TIME = (Cause.CPU_LIMIT, Cause.WALL_LIMIT)


class MathsScorer:
    """Each comparison runs in a fork of a process in which math-verify is loaded."""

    def __init__(self, sandbox: Sandbox, limits: RunLimits) -> None:
        self._sandbox, self._limits = sandbox, limits

    async def score(self, task: MathsTask) -> Reward:
        asked = json.dumps({"response": task.response, "gold": task.gold}).encode()
        ended = await self._sandbox.run(Program(_COMPARE, stdin=asked), self._limits)
        if ended.succeeded:
            told = json.loads(ended.stdout)
            detail, cpu_s, wall_s = str(told["detail"]), ended.cpu_s, ended.wall_s
            if told["same"] is None:
                return Reward(Status.ERROR, None, detail, cpu_s, wall_s)
            return Reward(Status.SCORE, float(bool(told["same"])), detail, cpu_s, wall_s)
        if ended.cause in _TIME:
            return Reward(Status.TIMEOUT, None, ended.cause.value, ended.cpu_s, ended.wall_s)
        if ended.cause is Cause.MEMORY_LIMIT:  # the answer's own doing: 9**9**9 and the like
            return Reward(Status.SCORE, 0.0, ended.cause.value, ended.cpu_s, ended.wall_s)
        detail = f"{ended.cause.value} {ended.detail} {ended.stderr.decode(errors='replace')[-200:]}"
        return Reward(Status.ERROR, None, detail.strip(), ended.cpu_s, ended.wall_s)


def compare() -> None:
    """In the process that can be killed: from standard input to standard output."""
    asked = json.loads(sys.stdin.read())
    same, detail = same_answer(asked["response"], asked["gold"])
    print(json.dumps({"same": same, "detail": detail}))


def _parsed(parse: Callable[..., list[Any]], text: str) -> list[Any]:
    try:
        return parse(text, parsing_timeout=None)
    except Exception:  # noqa: BLE001 - the parser meets any text at all; what it can't read is no answer
        return []


def warm() -> None:
    """What the first comparison builds, it builds here for all."""
    same_answer("\\boxed{\\frac{1}{2}}", "0.5")


def same_answer(response: str, gold: str) -> tuple[bool | None, str]:
    """None: the gold answer itself can't be read, which is no fault of the response's."""
    from math_verify import parse, verify  # noqa: PLC0415 - half a second, wanted only where answers are compared

    known = _parsed(parse, f"\\boxed{{{gold}}}") or _parsed(parse, gold)
    if not known:
        return None, f"the gold answer {gold!r} can't be read"
    given = _parsed(parse, response)
    if not given:
        return False, "no answer found in the response"
    try:
        same = verify(known, given, timeout_seconds=None, raise_on_error=True)
    except Exception as error:  # noqa: BLE001 - what can't be compared with the gold answer is not the same
        return False, f"the answer can't be compared: {type(error).__name__}"
    return same, "the same" if same else "another answer"

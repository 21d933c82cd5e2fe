"""Compares mathematical answers with math-verify, each in a process that can be killed.

Invariant: the verdict "another answer" was worked out to its end. A comparison that takes too long is a timeout, and
one that met a failure of the machine is an error: math-verify and sympy, which turn both into wrong answers, are
watched.
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from rollmux.runtime.rewards import answers, spelling
from rollmux.runtime.rewards.reward import Reward, Status
from rollmux.runtime.rewards.swallowed import Swallowed
from rollmux.runtime.rewards.tasks import MathsTask
from rollmux.runtime.sandbox import Program, RunLimits, Sandbox

_COMPARE = "from rollmux.runtime.rewards.maths import compare\ncompare()"


class MathsScorer:
    """Each comparison runs in a fork of a process in which math-verify is loaded."""

    def __init__(self, sandbox: Sandbox, limits: RunLimits) -> None:
        self._sandbox, self._limits = sandbox, limits

    async def score(self, task: MathsTask) -> Reward:
        asked = json.dumps({"response": task.response, "gold": task.gold}).encode()
        ended = await self._sandbox.run(Program(_COMPARE, stdin=asked), self._limits)
        ended.require_not_killed()
        if ended.succeeded:
            told = json.loads(ended.stdout)
            detail, cpu_s, wall_s = str(told["detail"]), ended.cpu_s, ended.wall_s
            if told["same"] is None:
                return Reward(Status.ERROR, None, detail, cpu_s, wall_s)
            return Reward(Status.SCORE, float(bool(told["same"])), detail, cpu_s, wall_s)
        if ended.ran_out_of_time:
            return Reward(Status.TIMEOUT, None, ended.cause.value, ended.cpu_s, ended.wall_s)
        detail = f"{ended.cause.value} {ended.detail} {ended.stderr.decode(errors='replace')[-200:]}"
        return Reward(Status.ERROR, None, detail.strip(), ended.cpu_s, ended.wall_s)


def compare() -> None:
    """Called in the process that can be killed: reads the two answers from standard input, prints the verdict."""
    asked = json.loads(sys.stdin.read())
    same, detail = compared(asked["response"], asked["gold"])
    print(json.dumps({"same": same, "detail": detail}))


def compared(response: str, gold: str) -> tuple[bool | None, str]:
    """Like `same_answer`, but None too if a failure was swallowed on the way to "another answer"."""
    return (True, "the same") if _same_at_once(response, gold) else _same_if_watched(response, gold)


def _same_at_once(response: str, gold: str) -> bool:
    """Compares unwatched, in a fork, so that no cache keeps half a result. A failure counts as not the same."""
    try:
        pid = os.fork()
    except OSError:
        return False
    if pid == 0:
        status = 1
        try:
            status = 0 if same_answer(response, gold)[0] else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def _same_if_watched(response: str, gold: str) -> tuple[bool | None, str]:
    with Swallowed() as seen:
        same, detail = same_answer(response, gold)
    if not same and seen.failure is not None:
        return None, f"the comparison failed within: {seen.failure}"
    return same, detail


def _parsed(parse: Callable[..., list[Any]], text: str) -> list[Any]:
    try:
        return parse(text, parsing_timeout=None)
    except Exception:  # noqa: BLE001 - the parser meets any text at all; what it can't read is no answer
        return []


# One comparison of each sort: what the first of a sort imports and builds is then there for all.
_SORTS = (
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("$x^2 + 2x + 1$", "(x+1)^2"),
    ("\\boxed{\\sin(2y)}", "2\\sin y\\cos y"),
    ("\\boxed{\\{1, 2\\}}", "\\{2, 1\\}"),
    ("\\boxed{(-\\infty, 1] \\cup [2, 3)}", "x \\le 1"),
    ("\\boxed{x > 2}", "(2, \\infty)"),
    ("\\boxed{x = \\sqrt{8}}", "2\\sqrt2"),
    ("\\boxed{\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}}", "\\begin{pmatrix} 1 \\\\ 3 \\end{pmatrix}"),
    ("\\boxed{50\\%}", "0.4"),
    ("\\boxed{2i}", "(1 + i)^2"),
    ("\\boxed{\\int_0^1 x dx}", "\\log_2 8"),
)


def warm() -> None:
    """Called once, in the process from which comparisons are forked."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its limits of time are off
    for response, gold in _SORTS:
        same_answer(response, gold)


def same_answer(response: str, gold: str) -> tuple[bool | None, str]:
    """Whether the response gives the gold answer. None: the gold answer can't be read, not the response's fault."""
    from math_verify import parse, verify  # noqa: PLC0415 - half a second, wanted only where answers are compared

    response = spelling.untagged(spelling.without_thoughts(response))
    gold_text = spelling.spelled(f"\\boxed{{{spelling.with_answer_boxed(gold)}}}")
    text = spelling.spelled(spelling.with_answer_boxed(response, gold))
    gold_words, words = spelling.words(gold_text), spelling.words(text)
    if gold_words and words:
        return _told(gold_words == words)
    if spelling.of_other_halves(text, gold_text):
        return _told(False)
    known = _parsed(parse, gold_text)
    given = _parsed(parse, spelling.without_unit(text) if answers.has_number(known) else text)
    if answers.has_base(known) and answers.has_base(given):
        known, given = (_parsed(parse, spelling.with_bases_told(each)) for each in (gold_text, text))
    if gold_words and (letters := answers.letters(given)) and letters != gold_words.replace(" ", ""):
        return _told(False)
    try:
        known = answers.with_union(answers.with_imaginary(known), gold_text)
        given = answers.with_union(answers.with_imaginary(given), text)
        if spelling.has_sine_of_degrees(gold, response) and answers.are_far_apart(known, given):
            return _told(False)
        alike, closely = answers.with_percent_alike(known, given), answers.precision(known)
        same = verify(*alike, **closely, allow_set_relation_comp=True, timeout_seconds=None)
    except Exception as error:  # noqa: BLE001 - what can't be compared with the gold answer is not the same
        return False, f"the answer can't be compared: {type(error).__name__}"
    if not same and not gold_words and all(isinstance(each, str) for each in known):
        return None, f"the gold answer {gold!r} can't be read"
    return _told(same) if given else (False, "no answer found in the response")


def _told(same: bool) -> tuple[bool, str]:
    return same, "the same" if same else "another answer"

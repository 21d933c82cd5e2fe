"""Scores and replies by the caller's own functions, in forked processes that are trusted but can be killed with all
that they started.

Invariant: a function that hangs costs its cap and nothing else; only a finite number is a score, and only a text
or messages of others than the model are a reply.
"""

import asyncio
import inspect
import json
import re
import socket
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from importlib import import_module
from math import inf, isnan, nan
from numbers import Real
from typing import Any

from rollmux.runtime.rewards.reward import MOST, Reply, Reward, Status
from rollmux.runtime.rewards.tasks import AsyncTask, FunctionTask
from rollmux.runtime.sandbox import Cause, Ended, Program, RunLimits, Sandbox, frames

_CHANNEL = 3
_CALL = "from rollmux.runtime.rewards.functions import call\ncall({function!r}, {arguments!r}, {wants!r})"
_FRAME = re.compile(r'^ +File "(.+)", line (\d+)', re.MULTILINE)
_SCORE, _REPLY = "score", "reply"
_ROLES, _HAS, _MAY_HAVE = ("user", "tool"), {"role", "content"}, {"name", "tool_call_id"}  # of a message in a reply
MOST_REPLY = 2**14  # characters: as JSON they fit into a socket, which is read only when the process has ended
_LEFT = set["asyncio.Future[object]"]()  # calls under way, and calls that went on after they were cancelled


class Functions:
    """Makes each call in a fork of a process in which the functions' modules are loaded."""

    def __init__(self, sandbox: Sandbox, limits: RunLimits) -> None:
        self._sandbox, self._limits = sandbox, limits

    async def score(self, task: FunctionTask) -> Reward:
        ended, told = await self._called(task, _SCORE)
        if told is None:
            return self._unscored(task, ended)
        reward = scored(told[_SCORE], ended.cpu_s, ended.wall_s)
        return replace(reward, detail=f"{task.function}: {reward.detail}") if reward.detail else reward

    async def reply(self, task: FunctionTask) -> Reply:
        ended, told = await self._called(task, _REPLY)
        if told is None:
            return Reply(None, self._unscored(task, ended).detail)
        reply = replied(told[_REPLY], told["trouble"])
        return replace(reply, trouble=f"{task.function}: {reply.trouble}") if reply.trouble else reply

    async def _called(self, task: FunctionTask, wants: str) -> tuple[Ended, dict[str, Any] | None]:
        """Calls a function in a fork: how the run ended, and what the function returned, if anything came."""
        source = _CALL.format(function=task.function, arguments=json.dumps(dict(task.arguments)), wants=wants)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            ended = await self._sandbox.run(Program(source), self._limits, theirs)
            ended.require_not_killed()
            if not ended.succeeded:
                return ended, None
            try:
                return ended, (await frames.receive_soon(ours, 0))[0]
            except frames.BrokenFrame:
                return ended, None

    def _unscored(self, task: FunctionTask, ended: Ended) -> Reward:
        """An outcome without a score. It names the function and the line, for a run may call many functions."""
        match ended.cause:
            case Cause.EXITED:
                raised = _raised(task, ended.stderr) if ended.status else ""
                why = raised or f"ended its process with status {ended.status}, and returned nothing"
            case Cause.CPU_LIMIT:
                why = f"no end within {self._limits.cpu_s:g} s of a processor"
            case Cause.WALL_LIMIT:
                why = f"no end within {self._limits.wall_s:g} s"
            case _:
                why = f"{ended.cause.value} {ended.detail}".rstrip()
        status = Status.TIMEOUT if ended.ran_out_of_time else Status.ERROR
        return Reward(status, None, f"{task.function}: {why}", ended.cpu_s, ended.wall_s)


async def score_here(task: AsyncTask, cap_s: float) -> Reward:
    """Awaits the caller's own coroutine. An exception is an error; past its cap it is a timeout, even if it goes on."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    work = asyncio.ensure_future(_value(task))
    _LEFT.add(work)
    work.add_done_callback(_LEFT.discard)
    try:
        await asyncio.wait([work], timeout=cap_s)
    finally:
        work.cancel()
    wall_s = loop.time() - start_s
    if not work.done():
        return Reward(Status.TIMEOUT, None, f"no score within {cap_s:g} s", 0.0, wall_s)
    value = work.result()
    if isinstance(value, BaseException):
        return Reward(Status.ERROR, None, f"{type(value).__name__}: {value}", 0.0, wall_s)
    return scored(value, 0.0, wall_s)


async def _value(task: AsyncTask) -> object:
    """What the coroutine returns or raises: the caller's code may raise anything, and the pool goes on."""
    try:
        return await task.call()
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - nobody waits for one that is called off
        return error


def scored(value: object, cpu_s: float, wall_s: float) -> Reward:
    number = _number(value)
    if -MOST <= number <= MOST:
        return Reward(Status.SCORE, number, "", cpu_s, wall_s)
    told = f"{value!r} is no score: return a number from {-MOST:g} to {MOST:g}"
    return Reward(Status.ERROR, None, told, cpu_s, wall_s)


def _number(value: Any) -> float:
    """A value as a float; NaN if it is no number. Other libraries' numbers count, and their arrays of one number."""
    with suppress(AttributeError, TypeError, ValueError, RuntimeError):  # arrays of many, and values that are no array
        value = value.item()
    try:
        return float(value) if isinstance(value, Real | Decimal) else nan
    except OverflowError:
        return inf
    except ValueError:  # a signalling NaN of decimal's
        return nan


def call(function: str, arguments: str, wants: str) -> None:
    """Called in the process that can be killed: sends the result over a socket of its own, whatever is printed."""
    module, _, name = function.partition(":")
    value: Any = getattr(import_module(module), name)(**json.loads(arguments))
    if inspect.iscoroutine(value):
        value = asyncio.run(value)
    with socket.socket(fileno=_CHANNEL) as connection:
        connection.sendall(frames.packed(_TOLD[wants](value)))


def _told_score(value: Any) -> dict[str, Any]:
    number = _number(value)
    return {_SCORE: repr(value)[:200] if isnan(number) else number}


def _told_reply(value: Any) -> dict[str, Any]:
    reply = replied(value)
    return {_REPLY: reply.told, "trouble": reply.trouble}


def replied(value: Any, trouble: str = "") -> Reply:
    """Checks a reply. Done on both sides: code that runs there may write to the socket itself."""
    told = [value] if isinstance(value, dict) else [*value] if isinstance(value, tuple) else value
    trouble = (_wrong_reply(told) if told is not None else "") or trouble
    return Reply(None if trouble else told, str(trouble))


def _wrong_reply(told: Any) -> str:
    """What is wrong with a reply, if anything is."""
    if not isinstance(told, str | list) or told == []:
        return f"{told!r:.200} is no reply: return a text, a message, a list of these, or None where all is said"
    if isinstance(told, list) and (wrong := next(filter(None, map(_wrong_message, told)), "")):
        return wrong
    texts = [told] if isinstance(told, str) else [text for message in told for text in message.values()]
    if (characters := sum(map(len, texts))) > MOST_REPLY:
        return f"a reply of {characters} characters: return at most {MOST_REPLY}"
    if any(0xD800 <= ord(each) < 0xE000 for text in texts for each in text):
        return "a reply with half a character: decode what it is made of with errors='replace'"
    return ""


def _wrong_message(value: Any) -> str:
    told = f"{value!r:.200} is no message of a reply"
    if not isinstance(value, dict) or not _HAS <= value.keys() <= _HAS | _MAY_HAVE:
        return f"{told}: give it a role and a content, and beside these a name or a tool_call_id alone"
    if not all(isinstance(each, str) for each in value.values()):
        return f"{told}: give it texts, such as json.dumps makes of what is none"
    return "" if value["role"] in _ROLES else f"{told}: its role must be one of {', '.join(_ROLES)}"


_TOLD = {_SCORE: _told_score, _REPLY: _told_reply}


def _raised(task: FunctionTask, stderr: bytes) -> str:
    """The error that ended a function, and the last line of its own file that led there, if there is one."""
    text = stderr.decode(errors="replace").strip()
    if not text:
        return ""
    file = f"{task.function.partition(':')[0].rpartition('.')[2]}.py"
    lines = [line for path, line in _FRAME.findall(text) if path.endswith(f"/{file}") and path != __file__]
    place = f" ({file}, line {lines[-1]})" if lines else ""
    return text.splitlines()[-1][:200] + place

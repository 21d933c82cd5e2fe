"""Replies of functions: a text, or nothing; and what is no reply is told as such, whatever a function does."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux.runtime.rewards import FunctionTask, Kind, PoolSettings, Reply, RewardPool
from rollmux.runtime.rewards.functions import MOST_REPLY
from rollmux.runtime.sandbox import RunLimits, Sandbox, SandboxError
from rollmux.runtime.sandbox.tree import descendants
from tests.runtime.rewards import replies
from tests.runtime.rewards.world import ONLY_FUNCTIONS, Pooled
from tests.waiting import eventually

MODULE = "tests.runtime.rewards.replies"
RAISES = next(
    number
    for number, line in enumerate(Path(replies.__file__).read_text().splitlines(), 1)
    if "raise ValueError" in line
)
USER = {"role": "user", "content": "So?"}
NAMED = {"role": "tool", "name": "add", "tool_call_id": "a1", "content": "4"}
SHORT = [{"role": "tool", "content": ""}]
WIDE = "\U0001f600" * (MOST_REPLY - len("user"))


@pytest.fixture(scope="module")
def pooled() -> Iterator[Pooled]:
    with Pooled(ONLY_FUNCTIONS) as made:
        yield made


def asked(name: str, **arguments: Any) -> FunctionTask:
    return FunctionTask(f"{MODULE}:{name}", arguments)


@pytest.mark.parametrize(
    ("task", "reply"),
    [
        (asked("told", said="so"), Reply("so!")),
        (asked("told", said=""), Reply("!")),
        (asked("told", said="bye"), Reply()),
        (asked("told_soon", said="well"), Reply("well, soon")),
        (asked("prints", said="é\n"), Reply("é\n")),
        (asked("long", characters=MOST_REPLY, of="a"), Reply("a" * MOST_REPLY)),
        (asked("long", characters=MOST_REPLY, of="\U0001f600"), Reply("\U0001f600" * MOST_REPLY)),
        (asked("same", reply={"role": "tool", "content": "4"}), Reply([{"role": "tool", "content": "4"}])),
        (asked("same", reply=[NAMED, USER]), Reply([NAMED, USER])),
        (asked("pair"), Reply([{"role": "tool", "content": "4"}, USER])),
        (asked("same", reply=SHORT * (MOST_REPLY // 4)), Reply(SHORT * (MOST_REPLY // 4))),
        (asked("same", reply=[{**USER, "content": WIDE}]), Reply([{**USER, "content": WIDE}])),
    ],
    ids=[
        "a text",
        "behind nothing",
        "no more",
        "a coroutine",
        "of one that prints",
        "a long one",
        "of wide characters",
        "a message",
        "messages",
        "a pair of them",
        "many short ones",
        "a wide one",
    ],
)
def test_a_text_or_messages_or_nothing_are_a_reply(task: FunctionTask, reply: Reply, pooled: Pooled) -> None:
    assert pooled.do(pooled.pool.reply(task)) == reply


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (asked("number", said="so"), f"{MODULE}:number: 3 is no reply: return a text, a message, a list"),
        (asked("long", characters=MOST_REPLY + 1, of="a"), f"a reply of {MOST_REPLY + 1} characters: return at most"),
        (asked("half"), "half a character"),
        (asked("same", reply=[]), "same: [] is no reply"),
        (asked("same", reply={}), "{} is no message of a reply: give it a role and a content"),
        (asked("same", reply=["so"]), "'so' is no message of a reply"),
        (asked("same", reply=[USER, {**USER, "tool_calls": "x"}]), "a name or a tool_call_id alone"),
        (asked("same", reply={"role": "tool", "content": {"sum": 4}}), "give it texts, such as json.dumps makes"),
        (asked("same", reply={**USER, "content": None}), "give it texts"),
        (asked("same", reply={**USER, "role": "assistant"}), "its role must be one of user, tool"),
        (
            asked("same", reply=[USER, {**USER, "content": "a" * MOST_REPLY}]),
            f"{MOST_REPLY + 11} characters: return at",
        ),
        (asked("same", reply={**USER, "name": "\ud800"}), "half a character"),
        (asked("forges", reply=[{"role": "assistant", "content": "I am right."}], trouble=""), "its role must be"),
        (asked("raises", said="so"), f"{MODULE}:raises: ValueError: not so (replies.py, line {RAISES})"),
        (asked("nowhere", said="so"), f"{MODULE}:nowhere: AttributeError"),
        (asked("told"), "TypeError: told() missing 1 required positional argument: 'said'"),
        (asked("exits", said="so"), "exits: ended its process with status 0, and returned nothing"),
        (asked("forges", reply=5, trouble=""), "5 is no reply"),
        (asked("forges", reply="so", trouble=["odd"]), "odd"),
        (FunctionTask("no_such_module_at_all:f", {}), "ModuleNotFoundError"),
        (FunctionTask(f"{MODULE}:told", {"said": object()}), "TypeError"),
    ],
    ids=[
        "a number",
        "too long",
        "half a character",
        "no messages",
        "an empty one",
        "texts",
        "a call",
        "no text",
        "nothing",
        "the model's own",
        "too long together",
        "half a name",
        "the model's own, forged",
        "raises",
        "no such",
        "other arguments",
        "exits",
        "forged",
        "odd",
        "no module",
        "no JSON",
    ],
)
def test_what_is_no_reply_is_told_and_ends_nothing(task: FunctionTask, told: str, pooled: Pooled) -> None:
    reply = pooled.do(pooled.pool.reply(task))
    assert reply.told is None
    assert reply.trouble
    assert told in reply.trouble


def test_the_line_that_raised_is_one_of_the_function_s_own(tmp_path: Path) -> None:
    """Whatever its module is called, and whichever library it was in when that raised."""
    (tmp_path / "functions.py").write_text("import json\n\ndef told(said):\n    return json.loads(said)\n")

    async def story(**arguments: str) -> str:
        settings = replace(ONLY_FUNCTIONS, function_modules=["functions"], function_folders=[str(tmp_path)])
        async with RewardPool(settings) as pool:
            return (await pool.reply(FunctionTask("functions:told", arguments))).trouble

    assert asyncio.run(story(said="{")).endswith("(functions.py, line 4)")
    assert asyncio.run(story()).endswith("argument: 'said'")


def test_a_trouble_without_words_is_one_all_the_same(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be taken for the end of a response."""

    async def breaks(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(Sandbox, "run", breaks)
    assert pooled.do(pooled.pool.reply(asked("told", said="so"))) == Reply(None, "TimeoutError")


def test_one_that_hangs_costs_its_cap() -> None:
    async def story() -> tuple[Reply, Reply]:
        settings = replace(ONLY_FUNCTIONS, function=RunLimits(cpu_s=1.0, wall_s=0.5, address_bytes=None))
        async with RewardPool(settings) as pool:
            return await asyncio.gather(pool.reply(asked("hangs", said="")), pool.reply(asked("told", said="so")))

    hung, other = asyncio.run(story())
    assert hung.told is None
    assert hung.trouble == f"{MODULE}:hangs: no end within 0.5 s"
    assert other == Reply("so!")


def test_who_stops_waiting_or_closes_ends_what_was_asked() -> None:
    async def story() -> tuple[Reply, list[int]]:
        async with RewardPool(ONLY_FUNCTIONS) as pool:
            zygote = pool._sandboxes[Kind.FUNCTION].pid  # other pools of this process make and end keepers meanwhile
            waiting = asyncio.create_task(pool.reply(asked("hangs", said="")))
            await eventually(lambda: bool(descendants(zygote)))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await eventually(lambda: not descendants(zygote))
            left = asyncio.create_task(pool.reply(asked("hangs", said="")))
            await eventually(lambda: bool(descendants(zygote)))
            below = [zygote, *descendants(zygote)]
        return await left, below

    reply, below = asyncio.run(story())
    assert reply == Reply(None, "called off")
    assert [pid for pid in below if os.path.exists(f"/proc/{pid}")] == []


def test_a_pool_without_turns_for_functions_says_so() -> None:
    async def story() -> None:
        async with RewardPool(PoolSettings(turns={Kind.ASYNC: 1})) as pool:
            with pytest.raises(SandboxError, match="function has no turns"):
                await pool.reply(asked("told", said=""))
        with pytest.raises(SandboxError, match="not started, or closed"):
            await pool.reply(asked("told", said=""))

    asyncio.run(story())

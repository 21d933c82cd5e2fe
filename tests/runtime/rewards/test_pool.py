"""The pool: each task ends once, in one of four ways, and none holds up the others longer than its cap."""

import asyncio
import os
import sys
from contextlib import suppress
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from time import monotonic

import pytest

from rollmux.errors import InvalidSpec
from rollmux.runtime.rewards import (
    AsyncTask,
    Case,
    CodeTask,
    FunctionTask,
    Kind,
    MathsTask,
    NotScored,
    PoolSettings,
    Reward,
    RewardPool,
    Status,
)
from rollmux.runtime.rewards.budget import Budget
from rollmux.runtime.rewards.functions import scored
from rollmux.runtime.sandbox import Concern, Mechanism, Program, SandboxError
from rollmux.runtime.sandbox.tree import descendants
from tests.runtime.rewards.world import Pooled
from tests.runtime.sandbox.world import busy
from tests.waiting import eventually, until

SCORES = "tests.runtime.rewards.scores"
SLEEPER = CodeTask("sleeper", Program("import time; time.sleep(1000)"), (Case("", ""),))


def function(called: str, **arguments: object) -> FunctionTask:
    return FunctionTask(f"{SCORES}:{called}", arguments)


def test_functions_score_in_a_process_of_their_own(pooled: Pooled) -> None:
    assert pooled.score(function("length", text="hello")).value == 0.5
    assert pooled.score(function("soon", text="hello")).value == 0.25
    assert pooled.score(function("beside", text="hello")).value == 0.5
    assert pooled.score(function("environment", name="ROLLMUX_TEST_SCORE")).value == 0.5


@pytest.mark.parametrize("name", ["raises", "nothing", "not_a_number", "too_much", "dies", "no_such_function"])
def test_a_function_without_a_score_is_an_error(pooled: Pooled, name: str) -> None:
    reward = pooled.score(function(name))
    assert (reward.status, reward.score) == (Status.ERROR, None)
    assert reward.detail.startswith(f"{SCORES}:{name}: ")


@pytest.mark.parametrize("kind", ["numpy.int64", "numpy.float32", "numpy.array", "torch.tensor", "decimal.Decimal"])
def test_a_number_of_another_library_s_is_a_number(kind: str) -> None:
    module, _, name = kind.partition(".")
    made = getattr(import_module(module), name)
    assert scored(made(2), 0.0, 0.0).value == 2.0


@pytest.mark.parametrize("text", ["NaN", "sNaN", "Infinity", "1e400"])
def test_a_decimal_that_is_no_number_or_too_large_is_an_error(text: str) -> None:
    assert scored(Decimal(text), 0.0, 0.0).status is Status.ERROR


@pytest.mark.parametrize("kind", ["bool_", "float64", "array"])
def test_and_so_it_is_in_a_process_of_its_own(pooled: Pooled, kind: str) -> None:
    assert pooled.score(function("of_numpy", kind=kind, value=True)).value == 1.0
    assert pooled.score(function("of_numpy", kind="array", value=[1, 2])).status is Status.ERROR


def test_a_function_that_runs_what_a_response_says_does_no_harm_where_it_is_confined(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("5")
    planted = tmp_path / "planted"
    texts = ["6 * 7", f"open({str(tmp_path / 'secret')!r}).read()", f"open({str(planted)!r}, 'w').write('x')"]

    async def came_to(confined: bool) -> list[float | None]:
        turns = {Kind.FUNCTION: 1, Kind.CODE: 1}
        settings = PoolSettings(turns, function_modules=[SCORES], confine_functions=confined, allow=list(Concern))
        async with RewardPool(settings) as pool:
            if Concern.FILES in pool.protections.uncovered:
                pytest.skip("nothing protects files here")
            return [(await pool.score(function("runs", text=each))).score for each in texts]

    assert asyncio.run(came_to(confined=True)) == [42, None, None]
    assert not planted.exists()
    assert asyncio.run(came_to(confined=False)) == [42, 5, 1]
    assert planted.exists()


def test_what_a_module_removes_at_its_end_is_there_for_all_calls_and_what_a_call_does_is_removed_at_its_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "removing.py").write_text(f"""
import atexit, glob, shutil, tempfile
tempfile.tempdir = {str(tmp_path)!r}
FOLDER = tempfile.TemporaryDirectory()
atexit.register(shutil.rmtree, tempfile.mkdtemp())
def folders():
    global made
    made = tempfile.TemporaryDirectory()
    return len(glob.glob({str(tmp_path / "tmp*")!r}))
""")

    async def counted() -> list[float]:
        settings = PoolSettings({Kind.FUNCTION: 1}, function_modules=["removing"], function_folders=[str(tmp_path)])
        async with RewardPool(settings) as pool:
            return [(await pool.score(FunctionTask("removing:folders"))).value for _ in range(3)]

    assert asyncio.run(counted()) == [3, 3, 3]
    assert not list(tmp_path.glob("tmp*"))


def test_a_function_is_found_where_its_caller_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder in which it stands, as in a notebook, too, and in one that it names from there."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "here.py").write_text("def score(): return 1")
    (tmp_path / "lib" / "there.py").write_text("def score(): return 2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", "lib", *sys.path])

    async def scored() -> list[float]:
        async with RewardPool(PoolSettings({Kind.FUNCTION: 1}, function_modules=["here", "there"])) as pool:
            return [(await pool.score(FunctionTask(f"{each}:score"))).value for each in ("here", "there")]

    assert asyncio.run(scored()) == [1, 2]


def test_a_call_waits_for_its_processes_though_its_module_brought_multiprocessing_along(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text("""
import multiprocessing.util, os, time
def later(path):
    time.sleep(0.3)
    open(path, "w").close()
def begun(path):
    multiprocessing.get_context("fork").Process(target=later, args=(path,)).start()
    return 1.0
""")

    async def scored() -> float:
        settings = PoolSettings({Kind.FUNCTION: 1}, function_modules=["waiting"], function_folders=[str(tmp_path)])
        async with RewardPool(settings) as pool:
            return (await pool.score(FunctionTask("waiting:begun", {"path": str(tmp_path / "done")}))).value

    assert asyncio.run(scored()) == 1.0
    assert (tmp_path / "done").exists()


def test_a_task_that_can_not_be_asked_is_an_error_of_its_own(pooled: Pooled) -> None:
    reward = pooled.score(FunctionTask("tests.runtime.rewards.scores:soon", {"text": {1, 2}}))
    assert reward.status is Status.ERROR
    assert reward.detail.startswith("TypeError: ")


def test_a_function_that_hangs_costs_its_cap_and_leaves_nothing_behind(pooled: Pooled) -> None:
    reward = pooled.score(function("hangs_with_children"))
    assert (reward.status, reward.score) == (Status.TIMEOUT, None)
    until(lambda: not _commands("sleep", os.getpid()))


def test_coroutines_are_awaited_within_their_cap(pooled: Pooled) -> None:
    async def good() -> float:
        await asyncio.sleep(0)
        return 0.75

    async def bad() -> float:
        raise KeyError("no")

    async def huge() -> float:
        return 10**400

    async def endless() -> float:
        await asyncio.sleep(1000)
        return 1.0

    async def stubborn() -> float:
        for _ in range(40):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        return 1.0

    async def calls_itself_off() -> float:
        raise asyncio.CancelledError

    began = monotonic()
    assert pooled.score(AsyncTask(stubborn)).status is Status.TIMEOUT
    assert monotonic() - began < 1.5, "it goes on for 2 s"
    assert pooled.score(AsyncTask(calls_itself_off)).status is Status.ERROR
    assert pooled.score(AsyncTask(good)).value == 0.75
    assert pooled.score(AsyncTask(bad)).status is Status.ERROR
    assert "no score" in pooled.score(AsyncTask(huge)).detail
    assert pooled.score(AsyncTask(endless)).status is Status.TIMEOUT


def test_a_cancelled_task_is_never_a_zero(pooled: Pooled) -> None:
    async def cancelled() -> Reward:
        scoring = pooled.pool.submit(SLEEPER)
        await asyncio.sleep(0.1)
        scoring.cancel()
        return await scoring.reward()

    reward = pooled.do(cancelled())
    assert (reward.status, reward.score) == (Status.CANCELLED, None)
    with pytest.raises(NotScored, match="don't train on a zero"):
        _ = reward.value


def test_a_task_that_is_cancelled_before_it_begins_has_its_outcome_too(pooled: Pooled) -> None:
    async def cancelled() -> Reward:
        scoring = pooled.pool.submit(SLEEPER)
        scoring.cancel()
        return await scoring.reward()

    assert pooled.do(cancelled()).status is Status.CANCELLED


def test_whoever_stops_waiting_cancels_the_work(pooled: Pooled) -> None:
    async def waited() -> None:
        before = pooled.pool.outcomes[Kind.CODE, Status.CANCELLED]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await pooled.pool.score(SLEEPER)
        await eventually(lambda: pooled.pool.outcomes[Kind.CODE, Status.CANCELLED] == before + 1)

    pooled.do(waited())


def test_hung_rewards_stall_no_other_kind_and_their_own_no_longer_than_their_cap(pooled: Pooled) -> None:
    async def crowded() -> tuple[Reward, Reward, list[Reward]]:
        hung = [pooled.pool.submit(SLEEPER) for _ in range(4)]
        maths = await pooled.pool.score(MathsTask("\\boxed{4}", "4"))
        code = pooled.pool.submit(CodeTask("sum", Program("print(3)"), (Case("", "3"),)))
        return maths, await code.reward(), [await each.reward() for each in hung]

    pooled.pool.timeouts.learn("sleeper/0", 0.01, 0.01)
    maths, code, hung = pooled.do(crowded())
    assert (maths.value, code.value) == (1.0, 1.0)
    assert [reward.status for reward in hung] == [Status.TIMEOUT] * 4


def test_a_score_without_its_status_and_a_status_without_its_score_are_refused() -> None:
    with pytest.raises(NotScored):
        Reward(Status.TIMEOUT, 0.0)
    with pytest.raises(NotScored):
        Reward(Status.SCORE)


def test_closing_cancels_what_runs_and_leaves_no_process() -> None:
    others = set(_children())

    async def closed() -> tuple[Reward, list[int]]:
        async with RewardPool(PoolSettings(turns={Kind.CODE: 1}, allow=list(Concern))) as pool:
            (zygote,) = set(_children()) - others
            scoring = pool.submit(SLEEPER)
            await eventually(lambda: len(busy(zygote)) >= 3)
            below = [zygote, *descendants(zygote)]
        return await scoring.reward(), [pid for pid in below if os.path.exists(f"/proc/{pid}")]

    reward, left = asyncio.run(closed())
    assert reward.status is Status.CANCELLED
    assert left == []


def test_a_kind_without_turns_is_refused_by_name(pooled: Pooled) -> None:
    async def none() -> None:
        async with RewardPool(PoolSettings(turns={Kind.ASYNC: 1})) as pool:
            pool.submit(MathsTask("4", "4"))

    with pytest.raises(SandboxError, match="maths has no turns"):
        asyncio.run(none())


@pytest.mark.usefixtures("elsewhere")
def test_without_linux_what_needs_the_sandbox_is_refused_by_name_and_the_rest_is_scored() -> None:
    async def scored(turns: dict[Kind, int]) -> Reward:
        async with RewardPool(PoolSettings(turns=turns)) as pool:
            return await pool.score(AsyncTask(half))

    async def half() -> float:
        return 0.5

    assert asyncio.run(scored({Kind.ASYNC: 1})).value == 0.5
    for kind in (Kind.CODE, Kind.MATHS, Kind.FUNCTION):
        with pytest.raises(SandboxError, match="only Linux has: score maths, code and functions there"):
            asyncio.run(scored({Kind.ASYNC: 1, kind: 1}))


def test_a_pool_shows_what_protects_its_machine(pooled: Pooled) -> None:
    assert pooled.pool.protections.active | set(pooled.pool.protections.missing) == set(Mechanism)


def test_a_function_must_be_named_so_that_it_can_be_imported() -> None:
    for name in ("length", ":length", "module:", "module:a.b"):
        with pytest.raises(InvalidSpec):
            FunctionTask(name)


def test_a_budget_is_kept_in_the_order_of_coming() -> None:
    async def played() -> tuple[list[int], int]:
        budget, order, most, inside = Budget(2), list[int](), 0, 0

        async def work(number: int) -> None:
            nonlocal most, inside
            async with budget:
                inside += 1
                most = max(most, inside)
                order.append(number)
                await asyncio.sleep(0)
                inside -= 1

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(number)) for number in range(10)]
            await asyncio.sleep(0)
            tasks[5].cancel()
        await budget.idle()
        assert budget.wanting == 0
        return order, most

    assert asyncio.run(played()) == ([0, 1, 2, 3, 4, 6, 7, 8, 9], 2)


def _children() -> list[int]:
    found = []
    for pid in descendants(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat", "rb") as file:
            found += [pid] if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid() else []
    return found


def _commands(name: str, root: int) -> list[int]:
    found = []
    for pid in descendants(root):
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                found += [pid] if file.read().strip() == name else []
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_a_pool_that_is_not_open_says_so() -> None:
    async def story() -> None:
        pool = RewardPool(PoolSettings(turns={Kind.ASYNC: 1}))
        for _ in range(2):
            with pytest.raises(SandboxError, match="not started, or closed"):
                await pool.score(AsyncTask(one))
            async with pool:
                assert (await pool.score(AsyncTask(one))).score == 1.0
                with pytest.raises(SandboxError, match="no code is scored"):
                    _ = pool.protections

    asyncio.run(story())


async def one() -> float:
    return 1.0


def test_a_coroutine_that_would_end_the_program_ends_its_task_alone() -> None:
    async def leaves() -> float:
        raise SystemExit(3)

    async def story() -> list[Status]:
        async with RewardPool(PoolSettings(turns={Kind.ASYNC: 2})) as pool:
            return [each.status for each in await asyncio.gather(*map(pool.score, map(AsyncTask, (leaves, one))))]

    assert asyncio.run(story()) == [Status.ERROR, Status.SCORE]


def test_a_pool_is_started_again_in_another_loop_and_once_at_a_time() -> None:
    async def soon() -> float:
        await asyncio.sleep(0)
        return 1.0

    async def step() -> list[Status]:
        async with pool:
            with pytest.raises(SandboxError, match="started already"):
                await pool.start()
            return [each.status for each in await asyncio.gather(*(pool.score(AsyncTask(soon)) for _ in range(3)))]

    pool = RewardPool(PoolSettings(turns={Kind.ASYNC: 1}))
    for _ in range(2):
        assert asyncio.run(step()) == [Status.SCORE] * 3


def test_of_two_who_start_a_pool_at_once_one_is_refused_and_closing_leaves_no_process() -> None:
    async def story() -> tuple[RewardPool | BaseException, RewardPool | BaseException]:
        started = await asyncio.gather(pool.start(), pool.start(), return_exceptions=True)
        await pool.close()
        return started

    before = set(_children())
    pool = RewardPool(PoolSettings(turns={Kind.FUNCTION: 1}))
    for _ in range(2):
        first, second = asyncio.run(story())
        assert first is pool
        assert isinstance(second, SandboxError)
    assert set(_children()) <= before


def test_a_pool_whose_start_has_failed_may_be_started() -> None:
    async def story() -> None:
        with pytest.raises(SandboxError, match="instead of starting"):
            await pool.start()
        modules.clear()
        async with pool:
            assert (await pool.score(AsyncTask(one))).score == 1.0

    modules = ["no_such_module_at_all"]
    pool = RewardPool(PoolSettings(turns={Kind.FUNCTION: 1, Kind.ASYNC: 1}, function_modules=modules))
    asyncio.run(story())


def test_whoever_is_cancelled_while_a_pool_closes_is_cancelled() -> None:
    async def lingers() -> float:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)
        return 1.0

    async def owner() -> None:
        async with RewardPool(PoolSettings(turns={Kind.ASYNC: 1})) as pool:
            scoring = pool.submit(AsyncTask(lingers))
            await asyncio.sleep(0.01)
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
        assert scoring is None, "it went on behind the pool"

    async def story() -> None:
        task = asyncio.create_task(owner())
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(story())

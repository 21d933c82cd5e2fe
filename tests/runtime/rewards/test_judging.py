"""Tasks of judges: one outcome each, and none of them is a low score that nobody gave."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from math import exp, log
from time import monotonic, sleep

import pytest

from rollmux.errors import InvalidSpec
from rollmux.runtime.judge.judge import TextJudge
from rollmux.runtime.judge.model import ModelJudge, Question
from rollmux.runtime.rewards import JudgeSettings, JudgeTask, Kind, PoolSettings, Reward, RewardPool, Status
from tests.runtime.engine.models import VOCABULARY, tiny
from tests.runtime.judge.test_model import told

ANSWERS = {"y": 1.0, "n": 0.0, "m": 0.5}


ODD: dict[str, list[float]] = {
    "odd count": [-1.0],
    "odd size": [800.0, 1.0, 1.0],
    "odd kind": [None, 1.0, 1.0],  # type: ignore[list-item]
}


class Scripted:
    """Says what each task's text names; `hold` keeps it from answering until the test lets it."""

    def __init__(self) -> None:
        self.passes: list[int] = []
        self.hold, self.closed = threading.Event(), False
        self.hold.set()

    def said(self, tasks: Sequence[JudgeTask]) -> Sequence[list[float] | str]:
        self.hold.wait(30)
        self.passes.append(len(tasks))
        return [self._said(task.fields["said"]) for task in tasks]

    def _said(self, text: str) -> list[float] | str:
        if text == "raise":
            raise RuntimeError("out of memory")
        if text.startswith("odd"):
            return ODD[text]
        return [log(0.3), log(0.1), log(0.1)] if text == "mostly y" else [float("nan")] * 3 if text == "nan" else text

    def close(self) -> None:
        self.closed = True


def task(said: str) -> JudgeTask:
    return JudgeTask("Is it right? {said}", {"said": said}, ANSWERS)


def judged(work: Callable[[RewardPool], object], judge: Scripted, **changed: object) -> None:
    """Does something with a pool that has this judge alone."""

    async def done() -> None:
        settings = JudgeSettings(lambda: judge, **changed)  # type: ignore[arg-type]
        async with RewardPool(PoolSettings(turns={Kind.JUDGE: 8}, judge=settings)) as pool:
            await work(pool)  # type: ignore[misc]

    asyncio.run(done())
    assert judge.closed


def test_each_task_of_a_pass_has_its_own_outcome() -> None:
    async def all_of_them(pool: RewardPool) -> None:
        said = ("mostly y", "too long for this judge", "nan")
        good, long, damaged = await asyncio.gather(*(pool.score(task(each)) for each in said))
        assert good.status is Status.SCORE
        assert good.value == pytest.approx((0.3 + 0.5 * 0.1) / 0.5)
        assert good.detail == "y 0.6, n 0.2, m 0.2; together 0.5"
        assert (long.status, long.detail) == (Status.ERROR, "too long for this judge")
        assert damaged.status is Status.ERROR
        assert pool.outcomes[Kind.JUDGE, Status.ERROR] == 2

    judged(all_of_them, Scripted())


@pytest.mark.parametrize("odd", ODD)
def test_what_is_odd_about_one_task_of_a_pass_is_its_error_alone(odd: str) -> None:
    judge = Scripted()

    async def crowd(pool: RewardPool) -> None:
        judge.hold.clear()
        tasks = [pool.submit(task(said)) for said in ("mostly y", "mostly y", odd, "mostly y")]
        await asyncio.sleep(0.05)
        judge.hold.set()
        outcomes = [(await each.reward()).status for each in tasks]
        assert outcomes == [Status.SCORE, Status.SCORE, Status.ERROR, Status.SCORE]

    judged(crowd, judge)


def test_a_judge_that_raises_fails_its_pass_and_goes_on() -> None:
    async def both(pool: RewardPool) -> None:
        failed = await pool.score(task("raise"))
        assert (failed.status, failed.detail) == (Status.ERROR, "RuntimeError: out of memory")
        assert (await pool.score(task("mostly y"))).status is Status.SCORE

    judged(both, Scripted())


def test_a_judge_that_says_nonsense_fails_its_pass_and_goes_on() -> None:
    class Odd(Scripted):
        def said(self, tasks: Sequence[JudgeTask]) -> Sequence[list[float] | str]:
            found = super().said(tasks)
            return [*found, found[0]] if "one too many" in tasks[0].fields["said"] else found

    async def both(pool: RewardPool) -> None:
        failed = await pool.score(task("mostly y, one too many"))
        assert failed.status is Status.ERROR
        assert failed.detail.startswith("ValueError: ")
        assert (await pool.score(task("mostly y"))).status is Status.SCORE

    judged(both, Odd())


def test_a_judge_that_hangs_for_ever_holds_up_no_pool_that_closes() -> None:
    judge = Scripted()

    async def hung() -> None:
        settings = JudgeSettings(lambda: judge, cap_s=0.3)
        async with RewardPool(PoolSettings(turns={Kind.JUDGE: 8}, judge=settings)) as pool:
            judge.hold.clear()
            assert (await pool.score(task("mostly y"))).status is Status.TIMEOUT

    asyncio.run(asyncio.wait_for(hung(), 20))
    assert not judge.closed
    judge.hold.set()
    end = monotonic() + 20
    while not judge.closed:
        assert monotonic() < end, "it is closed once it comes back"
        sleep(0.01)


def test_a_judge_whose_pool_was_given_up_while_it_opened_is_closed() -> None:
    judge, asked, let = Scripted(), threading.Event(), threading.Event()

    def opened() -> Scripted:
        asked.set()
        let.wait(20)
        return judge

    async def given_up() -> None:
        starting = asyncio.create_task(
            RewardPool(PoolSettings(turns={Kind.JUDGE: 1}, judge=JudgeSettings(opened))).start()
        )
        await asyncio.to_thread(asked.wait, 20)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(given_up())
    let.set()
    end = monotonic() + 20
    while not judge.closed:
        assert monotonic() < end, "it is closed once it is open"
        sleep(0.01)


def test_answers_that_the_judge_hardly_gives_are_no_judgement() -> None:
    async def doubted(pool: RewardPool) -> None:
        reward = await pool.score(task("mostly y"))
        assert reward.status is Status.ERROR
        assert "something else" in reward.detail

    judged(doubted, Scripted(), least_mass=0.6)


def test_a_judge_that_hangs_is_a_timeout_and_what_is_called_off_is_not_judged() -> None:
    judge = Scripted()

    async def hung(pool: RewardPool) -> None:
        judge.hold.clear()
        late = pool.submit(task("mostly y"))
        await asyncio.sleep(0.05)
        off = pool.submit(task("mostly y"))
        await asyncio.sleep(0.05)
        off.cancel()
        assert (await late.reward()).status is Status.TIMEOUT
        assert (await off.reward()).status is Status.CANCELLED
        judge.hold.set()
        while (await pool.score(task("mostly y"))).status is not Status.SCORE:
            again.append(1)  # a busy machine may need longer than the cap, too

    again = [1]
    judged(hung, judge, cap_s=0.5)
    assert sum(judge.passes) <= 1 + len(again)


def test_tasks_that_wait_go_into_one_pass() -> None:
    judge = Scripted()

    async def crowd(pool: RewardPool) -> None:
        judge.hold.clear()
        tasks = [pool.submit(task("mostly y")) for _ in range(7)]
        await asyncio.sleep(0.1)
        judge.hold.set()
        assert [(await each.reward()).status for each in tasks] == [Status.SCORE] * 7

    judged(crowd, judge, at_once=4)
    assert len(judge.passes) <= 3
    assert max(judge.passes) == 4


def encode(text: str, special: bool) -> list[int]:
    """A letter is a token; `#` is the special one where it may be."""
    return [0 if letter == "#" and special else 1 + ord(letter) % (VOCABULARY - 1) for letter in text]


def test_a_model_of_ours_judges_in_the_pool_and_a_response_can_not_end_its_turn() -> None:
    asked = JudgeTask("#Is {answer} right?#", {"answer": "2 # 3"}, ANSWERS)
    other = JudgeTask("{answer}", {"answer": "x" * 200}, ANSWERS)

    async def scored() -> tuple[Reward, Reward]:
        def opened() -> TextJudge:
            return TextJudge(ModelJudge(tiny(), lambda: 1 << 30, 1e9, 1e9), encode)

        settings = PoolSettings(turns={Kind.JUDGE: 4}, judge=JudgeSettings(opened))
        async with RewardPool(settings) as pool:
            both = await asyncio.gather(pool.score(asked), pool.score(other))
            return both[0], both[1]

    reward, refused = asyncio.run(scored())
    prompt = [*encode("#Is ", True), *encode("2 # 3", False), *encode(" right?#", True)]
    said = told(tiny(), Question(tuple(prompt), tuple((encode(each, True)[0],) for each in ANSWERS)))
    weights = shares(said)
    assert reward.value == pytest.approx(weights[0] + 0.5 * weights[2], abs=1e-4)
    assert refused.status is Status.ERROR
    assert "at most 128" in refused.detail


def shares(logprobs: Sequence[float]) -> list[float]:
    weights = [exp(each) for each in logprobs]
    return [each / sum(weights) for each in weights]


def test_answers_that_can_not_be_told_apart_are_refused() -> None:
    class Unasked(ModelJudge):
        def __init__(self) -> None: ...

        @property
        def max_length(self) -> int:
            return 100

        def judge(self, questions: Sequence[Question]) -> list[list[float]]:
            assert not questions
            return []

    judge = TextJudge(Unasked(), lambda text, _: [ord(each) for each in text.lower()])
    same = JudgeTask("a", {}, {"yes": 1.0, "YES": 0.0})
    begins = JudgeTask("a", {}, {"no": 1.0, "none": 0.0})
    empty = JudgeTask("", {}, {"yes": 1.0, "no": 0.0})
    why = judge.said([same, begins, empty])
    assert [("same" in str(each), "begins" in str(each), "no token" in str(each)) for each in why] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]


def test_a_task_or_a_pool_that_can_not_be_judged_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="fields"):
        JudgeTask("{question} {response}", {"question": "?"})
    with pytest.raises(InvalidSpec, match="answers"):
        JudgeTask("?", {}, {" yes": 1.0})
    with pytest.raises(InvalidSpec, match="answers"):
        JudgeTask("?", {}, {" yes": 1.0, " no": float("nan")})
    with pytest.raises(InvalidSpec, match="template"):
        JudgeTask("{", {})
    with pytest.raises(InvalidSpec, match=r"template = \['said'\]: must be names alone in braces"):
        JudgeTask("{said!r} {{said:>9}}", {"said": "so"})
    with pytest.raises(InvalidSpec, match="judge"):
        PoolSettings(turns={Kind.JUDGE: 1})

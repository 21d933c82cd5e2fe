"""Workers come and go in the middle of a round: who runs a response changes nothing of it, nor of what follows."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.errors import InvariantViolated
from rollmux.packer import Prompt, Request
from rollmux.runtime.engine import Ended, FinishReason, Generated, GenerationRequest, Unfinished
from rollmux.trainer.parts import Parts
from rollmux.trainer.rollout import Rolled
from rollmux.trainer.safe_points import SafePoints
from rollmux.trainer.seats import Seats
from rollmux.trainer.token_clock import TokenClock
from rollmux.trainer.turns import Drawn, Over, Response
from rollmux.trainer.workers import Workers
from tests.thorough import examples, some
from tests.trainer.jobs import tiny
from tests.trainer.test_rollout import parts

ROUNDS = 2
SHORT = {"max_tokens": 16}
# Races of prompts and of responses, and one in which those who move wait for room.
RACES: Mapping[str, Mapping[str, Any]] = {
    "prompts race": {"batching": {"race": "none"}},
    "responses race": {"batching": {"eta_responses": 1.5}},
    "all are awaited": {"batching": {"mode": "sync"}},
    "little room": {"batching": {"eta_responses": 1.5}, "rollout": {"running": 4, "room_tokens": 128}},
}


@dataclass(frozen=True, slots=True)
class Left:
    """All that a few rounds come to, and the books after them."""

    rolled: tuple[Rolled, ...]
    batcher: dict[str, Any]
    sweeps: tuple[int, ...]

    @property
    def told(self) -> object:
        """Without the sweeps, of which a rollout on fewer engines may need more."""
        return self.rolled, self.batcher


def run(
    plan: Mapping[int, Collection[int]], workers: int = 3, begin: Collection[int] | None = None, **job: Any
) -> Left:
    """Rounds in which, after so many sweeps, these workers go on. At the beginning of each, `begin` are there."""
    changed = {**job, "sampling": SHORT, "rollout": {"workers": workers, **job.get("rollout", {})}}
    made = parts(tiny(**changed))
    rounds, sweeps = [], []
    for version in range(1, ROUNDS + 1):
        made.rollout.share(range(workers) if begin is None else begin)
        left = _Sweeps(made, plan)
        rounds.append(made.rollout.round(left.passed))
        sweeps.append(left.count)
        assert all(set(each.versions) == {version - 1} for each in rounds[-1].samples)
        made.rollout.update(version)
    return Left(tuple(rounds), made.rollout.batcher.state(), tuple(sweeps))


class _Sweeps:
    """Has another thread ask for what is planned, and waits until the order is there."""

    def __init__(self, made: Parts, plan: Mapping[int, Collection[int]]) -> None:
        self.made, self.plan, self.count = made, plan, 0

    def passed(self, done: int, total: int) -> None:
        self.count += 1
        there = self.plan.get(self.count)
        if there is not None:
            points = self.made.rollout._points
            Thread(target=self.made.rollout.share, args=(there,), daemon=True).start()
            while not points._wanted:
                sleep(0.0001)


@pytest.fixture(scope="module", params=RACES)
def job(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(RACES[request.param])


@pytest.fixture(scope="module")
def still(job: dict[str, Any]) -> Left:
    return run({}, **job)


def test_a_shrink_after_any_sweep_changes_no_sample_and_no_account(job: dict[str, Any], still: Left) -> None:
    for sweep in some(range(1, max(still.sweeps) + 1), every=4):
        assert run({sweep: (sweep % 3,)}, **job).told == still.told


@settings(max_examples=examples(40), deadline=None)
@given(
    plan=st.dictionaries(st.integers(1, 20), st.sets(st.integers(0, 2), min_size=1), max_size=6),
    begin=st.sets(st.integers(0, 2), min_size=1),
    name=st.sampled_from(sorted(RACES)),
)
def test_workers_may_come_and_go_as_they_like(plan: dict[int, set[int]], begin: set[int], name: str) -> None:
    assert run(plan, begin=begin, **RACES[name]).told == _still(name).told


_known: dict[str, Left] = {}


def _still(name: str) -> Left:
    if name not in _known:
        _known[name] = run({}, **RACES[name])
    return _known[name]


def test_the_number_of_workers_and_their_room_change_nothing_of_a_race() -> None:
    told = _still("responses race").told
    for workers, rollout in ((1, {}), (2, {"running": 2}), (1, {"room_tokens": 64}), (5, {"running": 1})):
        assert run({}, workers, batching={"eta_responses": 1.5}, rollout=rollout).told == told


def test_who_goes_gives_its_memory_back_and_has_it_again_in_the_next_round() -> None:
    made = parts(tiny(rollout={"workers": 2}))
    first, second = made.rollout.engines
    held: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        if len(held) == 3:
            made.rollout._workers.share((1,))
        held.append((first.gauges().nbytes, second.gauges().nbytes))

    made.rollout.round(progress)
    assert all(held[0])
    assert held[3][0] == held[-1][0] == 0
    assert held[-1][1] == held[0][1]
    assert first.is_suspended
    assert second.gauges().recomputed_tokens > 0
    made.offload()
    assert first.gauges().nbytes == second.gauges().nbytes == 0
    made.load()
    made.rollout.update(1)
    held.clear()
    made.rollout.round(lambda done, total: held.append((first.unfinished, second.unfinished)))
    assert all(held[0])


def test_a_rollout_that_has_some_of_its_nodes_begins_there_and_grows_onto_the_others() -> None:
    made, seats = Parts(tiny(rollout={"workers": 2}), lambda: (1,)), Seats(2, ("a", "b"))
    made.load()
    first, second = made.rollout.engines
    assert first.is_suspended
    assert first.gauges().nbytes == 0
    busy: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        busy.append((first.unfinished, second.unfinished))
        if len(busy) == 2:
            made.rollout._workers.share(seats.on(("a", "b")))
            busy.append((first.unfinished, second.unfinished))

    made.rollout.round(progress)
    assert {there for there, _ in busy[:2]} == {0}
    assert abs(busy[2][0] - busy[2][1]) <= 1
    assert sum(busy[2]) == sum(busy[1])


# -- each by itself ----------------------------------------------------------------------------------------------------


def ask(name: str) -> GenerationRequest:
    return GenerationRequest(name, (1, 2), 20, seed=7)


def workers(count: int) -> Workers:
    made = parts(tiny(rollout={"workers": count}))
    return Workers(made.rollout.engines)


def test_a_request_that_was_cancelled_is_told_once_though_its_engine_has_gone() -> None:
    there = workers(2)
    for name in "abcd":
        there.launch(ask(name))
    there.step()
    there.cancel(["a"])
    assert there.untold == 4
    there.share((1,))
    told = [event for _ in range(25) for event in there.step()]
    ended = {event.id: event.reason for event in told if isinstance(event, Ended)}
    assert ended == {**dict.fromkeys("bcd", FinishReason.LENGTH), "a": FinishReason.CANCELLED}
    assert there.is_idle
    assert not there.untold


def test_not_all_workers_can_go_and_nothing_has_changed_then() -> None:
    there = workers(2)
    there.launch(ask("a"))
    with pytest.raises(InvariantViolated, match="keep one"):
        there.share(())
    assert not any(engine.is_suspended for engine in there.engines)
    assert there.untold == 1


def test_who_comes_takes_what_came_last() -> None:
    there = workers(2)
    there.share((0,))
    for name in "abcde":
        there.launch(ask(name))
    there.share((0, 1))
    first, second = there.engines
    assert [each.request.id for each in first.export()] == list("abc")
    assert [each.request.id for each in second.export()] == list("ed")


@pytest.mark.parametrize(
    ("workers", "nodes", "held", "there"),
    [
        (2, ("a", "b"), ("b",), (1,)),
        (4, ("a", "b"), ("a",), (0, 1)),
        (3, ("a", "b"), ("b",), (2,)),
        (2, ("a", "b"), ("a", "b"), (0, 1)),
        (2, (), (), (0, 1)),
        (1, ("a", "b"), ("b",), (0,)),
        (2, ("a",), ("a",), (0, 1)),
    ],
)
def test_workers_sit_on_the_nodes_in_their_order(
    workers: int, nodes: tuple[str, ...], held: tuple[str, ...], there: tuple[int, ...]
) -> None:
    seats = Seats(workers, nodes)
    assert seats.on(held) == there
    assert seats.can_move is (len(nodes) == 2 and workers > 1)


def request(sample: int) -> Request:
    return Request(1, Prompt(0, "p"), sample)


def ended(name: str, tokens: int) -> Over:
    return Over(name, Response(mask=(True,) * tokens))


def samples(told: list[tuple[Request, Over]] | None) -> list[int]:
    assert told is not None
    return [request.sample for request, _ in told]


def test_who_is_ahead_waits_for_who_could_end_before_it() -> None:
    clock = TokenClock()
    for sample, name in enumerate("abc"):
        clock.begin(name, request(sample))
    assert clock.hear(ended("a", 3))
    assert not clock.hear(Drawn("b", 1))
    assert clock.tick() is None
    clock.hear(ended("c", 2))
    assert samples(clock.tick()) == []
    assert clock.tick() is None  # b could end with its second token as well
    clock.hear(Drawn("b", 2))
    assert samples(clock.tick()) == [2]
    assert clock.tick() is None
    clock.begin("d", request(3))  # at the second tick
    clock.hear(ended("b", 3))
    assert clock.tick() is None
    clock.hear(Drawn("d", 1))
    assert samples(clock.tick()) == [0, 1]
    assert clock.running == 1
    clock.hear(ended("d", 1))
    assert samples(clock.tick()) == [3]
    assert clock.is_empty
    assert clock.tick() is None


def test_who_fails_without_a_token_is_told_at_the_next_tick() -> None:
    clock = TokenClock()
    clock.begin("a", request(0))
    clock.begin("b", request(1))
    clock.hear(Over("b", Response(), "engine", "not a number"))
    clock.hear(ended("a", 2))
    assert [samples(clock.tick()) for _ in range(2)] == [[1], [0]]


def test_what_was_drawn_ahead_of_the_clock_does_not_count_for_the_aborted() -> None:
    clock = TokenClock()
    for sample, name in enumerate("abc"):
        clock.begin(name, request(sample))
    for place in range(4):
        clock.hear(Drawn("b", place + 1))
    clock.hear(ended("c", 9))
    clock.hear(ended("a", 2))
    assert [samples(clock.tick()) for _ in range(2)] == [[], [0]]
    assert [clock.abort(name) for name in "abc"] == [None, 2, 2]
    assert not clock.hear(ended("b", 4))
    assert clock.tick() is None


def waited(points: SafePoints, work: Callable[[], None]) -> list[BaseException | None]:
    """Asks for the work in another thread; what has come of it is there once that has ended."""
    found: list[BaseException | None] = []

    def asks() -> None:
        try:
            points.do(work)
        except (ValueError, CancelledError) as error:
            found.append(error)
        else:
            found.append(None)

    before = len(points._wanted)
    thread = Thread(target=asks, daemon=True)
    thread.start()
    while points._under_way and len(points._wanted) == before:
        sleep(0.0001)
    if not points._under_way:
        thread.join(5.0)
    return found


def test_what_is_wanted_in_a_round_is_done_between_two_sweeps_and_at_its_end_at_the_latest() -> None:
    points, done = SafePoints(), list[str]()
    with points.round():
        first = waited(points, lambda: done.append("first"))
        assert not done
        points.pass_by()
        assert done == ["first"]
        second = waited(points, lambda: done.append("second"))
    assert done == ["first", "second"]
    third = waited(points, lambda: done.append("third"))
    assert done[-1] == "third"
    while len(first) + len(second) < 2:
        sleep(0.001)
    assert first + second + third == [None] * 3


def test_what_fails_is_heard_by_who_wanted_it_and_the_round_goes_on() -> None:
    points, over = SafePoints(), Event()

    def fails() -> None:
        raise ValueError("no room")

    with points.round():
        found = waited(points, fails)
        points.pass_by()
        over.set()
    while not found:
        sleep(0.001)
    assert over.is_set()
    assert isinstance(found[0], ValueError)


def test_whoever_asked_goes_on_where_the_round_is_interrupted_as_it_does_what_another_wants() -> None:
    points, done = SafePoints(), list[str]()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with points.round():
        first = waited(points, interrupted)
        second = waited(points, lambda: done.append("second"))
        with pytest.raises(KeyboardInterrupt):
            points.pass_by()
    until = monotonic() + 30.0
    while len(first) + len(second) < 2 and monotonic() < until:
        sleep(0.001)
    assert [type(each) for each in first + second] == [CancelledError] * 2
    assert not done


def test_a_round_that_breaks_off_leaves_nobody_waiting() -> None:
    points, done = SafePoints(), list[str]()

    def broken() -> list[BaseException | None]:
        with points.round():
            found.append(waited(points, lambda: done.append("done")))
            raise KeyError("the round broke")

    found: list[list[BaseException | None]] = []
    with pytest.raises(KeyError):
        broken()
    while not found[0]:
        sleep(0.001)
    assert done == ["done"]


class Busy:
    """An engine that is asked, and does nothing."""

    def __init__(self) -> None:
        self.has: dict[str, Unfinished] = {}
        self.cancelled: list[list[str]] = []

    @property
    def unfinished(self) -> int:
        return len(self.has)

    def submit(self, request: GenerationRequest) -> None:
        self.has[request.id] = Unfinished(request, Generated())

    def export(self, names: Collection[str] | None = None) -> list[Unfinished]:
        return [self.has.pop(name) for name in (list(self.has) if names is None else names)]

    def adopt(self, moved: Sequence[Unfinished]) -> None:
        self.has.update((each.request.id, each) for each in moved)

    def cancel(self, names: Collection[str]) -> None:
        self.cancelled.append(list(names))

    def resume(self) -> None:
        """It has no memory to ask for."""

    def suspend(self) -> None:
        """Nor to give back."""


def test_each_engine_is_told_at_once_of_all_that_nobody_goes_on_from() -> None:
    one, other = Busy(), Busy()
    workers = Workers([one, other])  # type: ignore[list-item]
    for number in range(5):
        workers.launch(GenerationRequest(str(number), (7,), 20, rests=number < 4))
    workers.forget(["0", "1", "2", "4", "nobody"])
    assert (one.cancelled, other.cancelled) == ([["0", "2"]], [["1"]])
    workers.forget(["0", "4"])
    assert (one.cancelled, other.cancelled) == ([["0", "2"]], [["1"]])


def test_who_has_moved_goes_on_where_it_is_now_and_rests_there() -> None:
    one, other = Busy(), Busy()
    workers = Workers([one, other])  # type: ignore[list-item]
    workers.share((0,))
    for name in "abcd":
        workers.launch(GenerationRequest(name, (7,), 20, rests=True))
    workers.share((0, 1))
    assert list(other.has) == ["d", "c"]
    other.has.clear()  # their turns are over
    workers.launch(GenerationRequest("c", (7,), 20))
    assert list(other.has) == ["c"]
    workers.forget(["a", "c", "d"])
    assert (one.cancelled, other.cancelled) == ([["a"]], [["d"]])

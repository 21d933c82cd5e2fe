"""The queue of a finite cluster: whose turn it is, who may go ahead of the first in line, and what the others hear."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.hardware import GB, Cluster, NodeType, Pool, finite
from rollmux.mux.image import image
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.sim.cast import Cast

CHEAP = NodeType("cheap", 8, 1.0 / 8, 96 * GB, 1000 * GB)
DEAR = NodeType("dear", 8, 3.0 / 8, 80 * GB, 1000 * GB)
TWO_POOLS = finite(CHEAP, DEAR)
ONE_POOL = Cluster(Pool("all", DEAR, on_demand=False), Pool("all", DEAR, on_demand=False))


Arrivals = list[tuple[float, JobSpec]]


def job(name: str, nodes: int = 1, iterations: int | None = 1, **more: Any) -> JobSpec:
    """Alone, it takes 100 s an iteration."""
    given: dict[str, Any] = {"rollout": PhaseSpec(60.0, nodes), "train": PhaseSpec(40.0, nodes), "slo": 1.0, **more}
    return JobSpec(id=name, iterations=iterations, **given)


def cast_on(rollout: int, train: int, rules: Rules | None = None) -> Cast:
    """A cluster of so many nodes that runs one job on each: without company, forecasts are exact."""
    cast = Cast(ClusterMachine(TWO_POOLS, RollmuxPolicy(max_group=1), rules))
    cast.keep_history = True
    for i in range(rollout):
        cast.tell(ev.NodeJoined(f"r{i}", "rollout"))
    for i in range(train):
        cast.tell(ev.NodeJoined(f"t{i}", "train"))
    return cast


def played(cast: Cast, *arrivals: tuple[float, JobSpec], until: float | None = None) -> Cast:
    for at, spec in arrivals:
        cast.submit(at, spec)
    if until is None:
        cast.run()
    else:
        cast.run(until)
    assert not cast.machine.state.alarms
    return cast


def admitted(cast: Cast) -> dict[str, float]:
    """When each job was first given a place."""
    found: dict[str, float] = {}
    for at, _, commands in cast.history:
        for command in commands:
            if isinstance(command, cmd.Admit):
                found.setdefault(command.job_id, at)
    return found


def told(cast: Cast, job_id: str) -> list[tuple[float, int, float | None]]:
    """What the job's owner heard of its waiting: when, the position, and the expected wait."""
    return [
        (at, command.position, command.expected_wait_s)
        for at, _, commands in cast.history
        for command in commands
        if isinstance(command, cmd.Queue) and command.job_id == job_id
    ]


SHORT, LONG = st.sampled_from([5.0, 20.0, 40.0]), st.sampled_from([40.0, 60.0, 150.0])


@st.composite
def specs(
    draw: st.DrawFn, name: str, phase_s: st.SearchStrategy[float], nodes: tuple[int, int], staleness: tuple[int, ...]
) -> JobSpec:
    return JobSpec(
        name,
        PhaseSpec(draw(phase_s), draw(st.integers(*nodes))),
        PhaseSpec(draw(phase_s), draw(st.integers(*nodes))),
        slo=1.0,
        iterations=draw(st.integers(1, 4)),
        sync_s=draw(st.sampled_from([0.0, 5.0])),
        staleness=draw(st.sampled_from(staleness)),
    )


@st.composite
def crowds(draw: st.DrawFn, staleness: tuple[int, ...] = (0,), late: tuple[float, ...] = (0.0,)) -> Arrivals:
    """On 3 + 3 nodes: one or two jobs run, then comes one that wants more than is left, and smaller ones behind it."""
    running = draw(st.integers(1, 2))
    found = [(0.0, draw(specs(f"ahead{i}", LONG, (1, 1), staleness))) for i in range(running)]
    at = draw(st.sampled_from(late))
    found.append((at, draw(specs("head", LONG, (4 - running, 3), (0,)))))
    for i in range(draw(st.integers(1, 4))):
        at += draw(st.sampled_from(late))
        found.append((at, draw(specs(f"behind{i}", SHORT, (1, 2), staleness))))
    return found


# -- the first in line -----------------------------------------------------------------------------------------------


def assert_head_unharmed(arrivals: Arrivals) -> None:
    crowd = played(cast_on(3, 3), *arrivals)
    spared = played(cast_on(3, 3), *(arrival for arrival in arrivals if "behind" not in arrival[1].id))
    assert admitted(crowd)["head"] <= admitted(spared)["head"]


@given(arrivals=crowds())
def test_the_first_in_line_starts_no_later_for_those_behind_it(arrivals: Arrivals) -> None:
    assert_head_unharmed(arrivals)


@given(arrivals=crowds(late=(0.0, 5.5, 30.0, 95.0)))
def test_the_first_in_line_starts_no_later_whenever_those_behind_it_come(arrivals: Arrivals) -> None:
    assert_head_unharmed(arrivals)


@given(arrivals=crowds(staleness=(1, 2)))
def test_the_first_in_line_starts_no_later_for_jobs_whose_rollouts_run_ahead(arrivals: Arrivals) -> None:
    assert_head_unharmed(arrivals)


def test_an_iteration_under_way_is_not_counted_in_full() -> None:
    """A ends at 100, so B, which comes at 90 and would hold its nodes until 190, is not let past H."""
    arrivals = (0.0, job("A")), (90.0, job("H", nodes=2)), (90.0, job("B"))
    assert admitted(played(cast_on(2, 2), *arrivals)) == {"A": 0.0, "H": 100.0, "B": 200.0}


@pytest.mark.parametrize(
    ("behind", "at"),
    [
        (job("B", iterations=2), 0.0),
        (job("B", iterations=3), 400.0),
        (job("B", iterations=None), None),
        (job("B", rollout=PhaseSpec(10.0, 1), train=PhaseSpec(10.0, 1), iterations=10), 0.0),
        (job("B", rollout=PhaseSpec(10.5, 1), train=PhaseSpec(10.0, 1), iterations=10), 400.0),
    ],
    ids=["as long", "longer", "nobody knows how long", "short iterations, as long", "short iterations, longer"],
)
def test_a_job_goes_ahead_only_if_it_is_gone_in_time(behind: JobSpec, at: float | None) -> None:
    """A holds one of two slots until 200; H wants both, for 200 s."""
    arrivals = (0.0, job("A", iterations=2)), (0.0, job("H", nodes=2, iterations=2)), (0.0, behind)
    cast = played(cast_on(2, 2), *arrivals, until=399.0 if at is None else 2000.0)
    assert admitted(cast)["H"] == 200.0
    assert admitted(cast).get("B") == at


def test_a_job_may_stay_for_ever_on_nodes_that_the_first_in_line_does_not_need() -> None:
    arrivals = (0.0, job("A", nodes=2, iterations=2)), (0.0, job("H", nodes=2)), (0.0, job("B", iterations=None))
    cast = played(cast_on(3, 3), *arrivals, until=1000.0)
    assert admitted(cast) == {"A": 0.0, "H": 200.0, "B": 0.0}


def test_several_go_ahead_at_once_if_each_is_gone_in_time() -> None:
    """From 100 on two slots are free, and H has to wait until 400."""
    ahead = (0.0, job("A", nodes=2)), (0.0, job("X", iterations=4)), (0.0, job("H", nodes=3))
    behind = (0.0, job("B1", iterations=3)), (0.0, job("B2", iterations=2)), (0.0, job("B3"))
    cast = played(cast_on(3, 3), *ahead, *behind)
    assert admitted(cast) == {"A": 0.0, "X": 0.0, "B1": 100.0, "B2": 100.0, "B3": 300.0, "H": 400.0}


def test_nobody_is_let_past_a_job_whose_start_cannot_be_told() -> None:
    cast = cast_on(2, 2)
    played(cast, (0.0, job("A", iterations=None)), (0.0, job("H", nodes=2)), (0.0, job("B")), until=350.0)
    assert admitted(cast) == {"A": 0.0}
    assert told(cast, "H") == [(0.0, 1, None)]
    cast.tell(ev.JobCancelled("A"))
    cast.run()
    assert admitted(cast) == {"A": 0.0, "H": 350.0, "B": 450.0}


def test_who_could_not_run_on_what_is_left_of_the_cluster_holds_nobody_up_from_then_on() -> None:
    cast = cast_on(3, 3)
    played(cast, (0.0, job("A", iterations=None)), (0.0, job("H", nodes=3)), (0.0, job("B")), until=50.0)
    assert admitted(cast) == {"A": 0.0}
    cast.tell(ev.NodeCordoned("r2"))
    assert admitted(cast) == {"A": 0.0, "B": 50.0}


def test_who_waits_is_let_in_where_a_job_turns_out_to_take_less_than_it_said() -> None:
    cast = Cast(ClusterMachine(TWO_POOLS, RollmuxPolicy()))
    cast.keep_history = True
    for node, pool in (("r0", "rollout"), ("t0", "train")):
        cast.tell(ev.NodeJoined(node, pool))
    short = job("B", rollout=PhaseSpec(20.0, 1), train=PhaseSpec(20.0, 1), slo=1.5, iterations=50)
    played(cast, (0.0, job("A", slo=1.5, iterations=50)), (0.0, short), until=250.0)
    assert admitted(cast) == {"A": 0.0}
    cast.tell(ev.JobProfiled("A", 1, 20.0, 20.0, 0.0))
    assert admitted(cast) == {"A": 0.0, "B": 250.0}


# -- the order -------------------------------------------------------------------------------------------------------


@given(
    crowd=st.lists(st.tuples(st.sampled_from([0.0, 40.0, 120.0]), st.integers(-1, 1), st.integers(1, 2)), max_size=9),
    slots=st.integers(1, 2),
)
def test_alike_jobs_start_by_priority_and_then_by_arrival(crowd: list[tuple[float, int, int]], slots: int) -> None:
    cast, at = cast_on(slots, slots), 0.0
    for i, (gap, priority, iterations) in enumerate(crowd):
        at += gap
        cast.submit(at, job(f"job{i}", iterations=iterations, priority=priority))
    cast.run()
    waiting: dict[str, tuple[int, int]] = {}
    arrived = 0
    for _, event, commands in cast.history:
        if isinstance(event, ev.JobSubmitted):
            arrived += 1
            waiting[event.job.id] = (-event.job.priority, arrived)
        for command in commands:
            if isinstance(command, cmd.Admit):
                assert waiting.pop(command.job_id) <= min(waiting.values(), default=(9, 0))
    assert not waiting
    assert len(admitted(cast)) == len(crowd)


@pytest.mark.no_cover
@given(arrivals=crowds(late=(0.0, 50.0)), place=st.integers(0, 7), priority=st.integers(-1, 1))
def test_a_job_that_could_not_run_on_the_empty_cluster_holds_nobody_up(
    arrivals: Arrivals, place: int, priority: int
) -> None:
    place = min(place, len(arrivals))
    at = arrivals[min(place, len(arrivals) - 1)][0]
    impossible = job("impossible", nodes=4, priority=priority)
    with_it = played(cast_on(3, 3), *arrivals[:place], (at, impossible), *arrivals[place:])
    assert admitted(with_it) == admitted(played(cast_on(3, 3), *arrivals))


def test_a_job_too_large_for_the_cluster_starts_once_nodes_have_joined() -> None:
    cast = played(cast_on(1, 1), (0.0, job("large", nodes=2)), (0.0, job("small")), until=10.0)
    assert admitted(cast) == {"small": 0.0}
    assert told(cast, "large") == [(0.0, 1, None)]
    cast.tell(ev.NodeJoined("r1", "rollout"))
    cast.tell(ev.NodeJoined("t1", "train"))
    cast.run()
    assert admitted(cast) == {"small": 0.0, "large": 100.0}


def test_a_job_that_needs_a_cordoned_node_holds_nobody_up() -> None:
    cast = cast_on(2, 2)
    cast.tell(ev.NodeCordoned("r1"))
    played(cast, (0.0, job("wide", nodes=2)), (0.0, job("B")))
    assert admitted(cast) == {"B": 0.0}
    cast.tell(ev.NodeUncordoned("r1"))
    assert admitted(cast) == {"B": 0.0, "wide": 100.0}


@pytest.mark.parametrize(
    "impossible",
    [
        job(
            "impossible",
            rollout=PhaseSpec(60.0, 1, resident_bytes=600 * GB),
            train=PhaseSpec(40.0, 1, resident_bytes=600 * GB),
        ),
        job("impossible", staleness=1),
        job("impossible", rollout=PhaseSpec(60.0, 2), train=PhaseSpec(40.0, 1)),
    ],
    ids=["both phases' state does not fit one node", "its phases overlap, on one node they can't", "too many nodes"],
)
def test_on_one_pool_a_job_that_one_node_cannot_serve_holds_nobody_up(impossible: JobSpec) -> None:
    cast = Cast(ClusterMachine(ONE_POOL, RollmuxPolicy(max_group=1)))
    cast.keep_history = True
    cast.tell(ev.NodeJoined("n0", "all"))
    played(cast, (0.0, impossible), (0.0, job("possible")))
    assert admitted(cast) == {"possible": 0.0}


# -- what those who wait hear ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead", "waiting", "at", "wait_s"),
    [
        ([job("A")], job("H"), 0.0, 100.0),
        ([job("A", iterations=7)], job("H"), 0.0, 700.0),
        ([job("A", iterations=7)], job("H"), 300.0, 400.0),
        ([job("A", sync_s=5.0)], job("H"), 0.0, 105.0),
        ([job("A", iterations=3), job("B", iterations=2)], job("H"), 0.0, 200.0),
        ([job("A", iterations=3), job("B", iterations=2)], job("H", nodes=2), 0.0, 300.0),
        ([job("A", iterations=3), job("B", iterations=None)], job("H"), 0.0, 300.0),
        ([job("A", iterations=3), job("B", iterations=None)], job("H", nodes=2), 0.0, None),
        ([job("A", iterations=4)], job("H"), 130.0, 270.0),
        ([job("A", iterations=3, staleness=1)], job("H"), 0.0, 60.0 * 3 + 40.0),
    ],
    ids=[
        "one iteration",
        "seven",
        "four of seven left",
        "with a sync",
        "the first of two to end",
        "the last of two to end",
        "one of them unknown, not needed",
        "one of them unknown, needed",
        "in the middle of an iteration",
        "rollouts run ahead, the first iteration takes longest",
    ],
)
def test_the_expected_wait_is_what_comes_true(
    ahead: list[JobSpec], waiting: JobSpec, at: float, wait_s: float | None
) -> None:
    cast = cast_on(len(ahead), len(ahead))
    played(cast, *((0.0, spec) for spec in ahead), (at, waiting), until=at)
    assert told(cast, "H") == [(at, 1, wait_s)]
    if wait_s is not None:
        cast.run(at + wait_s)
        assert admitted(cast)["H"] == at + wait_s


def test_the_reason_names_the_pool_and_what_is_missing() -> None:
    wanted = job("H", rollout=PhaseSpec(60.0, 2), train=PhaseSpec(40.0, 1))
    cast = played(cast_on(2, 3), (0.0, job("A")), (0.0, wanted), until=0.0)
    (queue,) = [c for _, _, commands in cast.history for c in commands if isinstance(c, cmd.Queue)]
    assert "1 of the 2 nodes it needs in pool rollout" in queue.reason
    assert "pool train" not in queue.reason


def test_each_who_has_to_wait_hears_so_at_once_and_again_when_first_in_line() -> None:
    cast = played(cast_on(1, 1), *((0.0, job(name)) for name in "ABCD"))
    assert [told(cast, name)[0][:2] for name in "BCD"] == [(0.0, 1), (0.0, 2), (0.0, 3)]
    assert (0.0, 1, 100.0) in told(cast, "B")
    assert (100.0, 1, 100.0) in told(cast, "C")
    assert (200.0, 1, 100.0) in told(cast, "D")


def test_who_is_overtaken_by_a_higher_priority_hears_of_it() -> None:
    arrivals = (0.0, job("A", iterations=2)), (0.0, job("B")), (100.0, job("urgent", priority=5))
    cast = played(cast_on(1, 1), *arrivals, until=100.0)
    assert told(cast, "urgent") == [(100.0, 1, 100.0)]
    assert [(at, position) for at, position, _ in told(cast, "B")] == [(0.0, 1), (100.0, 2)]


def test_nobody_is_looked_for_in_a_long_line_to_hear_of_an_overtaking() -> None:
    """To find each of 10,000 in line took two thirds of a second, whenever a job of a higher priority came."""

    class Line(list[str]):
        def index(self, *_: object) -> int:
            raise AssertionError("looked for")

    cast = played(cast_on(1, 1), *((0.0, job(name)) for name in "ABCD"), until=0.0)
    state = cast.machine.state
    state.backlog = Line(state.backlog)
    played(cast, (0.0, job("urgent", priority=5)), until=0.0)
    assert [told(cast, name)[-1][1] for name in ("urgent", "B", "C", "D")] == [1, 2, 3, 4]


def test_nobody_hears_the_same_twice() -> None:
    cast = played(cast_on(1, 1), (0.0, job("A", iterations=None)), (0.0, job("H")), until=50.0)
    before = told(cast, "H")
    cast.tell(ev.NodeJoined("r1", "rollout"))
    assert len(told(cast, "H")) == len(before) + 1  # one pool has room now, the reason is another
    cast.tell(ev.NodeJoined("r2", "rollout"))
    assert len(told(cast, "H")) == len(before) + 1


def test_nobody_is_told_to_wait_for_a_node_that_takes_no_more_jobs() -> None:
    cast = played(cast_on(1, 1), (0.0, job("A")), until=0.0)
    cast.tell(ev.NodeCordoned("r0"))
    played(cast, (0.0, job("H")), until=0.0)
    assert [wait_s for _, _, wait_s in told(cast, "H")] == [None]


def test_a_full_queue_refuses_and_has_room_again_later() -> None:
    cast = played(cast_on(1, 1, Rules(max_queued=2)), *((0.0, job(name)) for name in "ABC"), until=10.0)
    machine = cast.machine
    before = image(machine)
    (refused,) = machine.handle(10.0, ev.JobSubmitted(job("D")))
    assert isinstance(refused, cmd.Refuse)
    assert refused.job_id == "D"
    assert "limit" in refused.reasons[0]
    after = image(machine)
    assert replace(after, seq=before.seq, now=before.now) == before
    assert machine.handle(10.0, ev.JobSubmitted(job("B"))) == ()  # it waits already
    cast.run(100.0)
    played(cast, (100.0, job("D")))
    assert admitted(cast) == {"A": 0.0, "B": 100.0, "C": 200.0, "D": 300.0}

"""Driven in virtual time, the machine comes round at the very pace that the play predicts, to the millisecond.

Each example is a group of jobs pinned to nodes. A policy pins each job exactly there, the cast drives the machine, and
the times at which iterations were complete are held against `play` of the same group from the same start. Durations are
whole seconds, so that neither side rounds; the few examples where an elastic start splits a millisecond are left out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import gcd, inf, lcm

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import PAPER_TRAIN, Cluster, Pool
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec, Tail
from rollmux.mux.order import Order
from rollmux.mux.placed import Member, Placement
from rollmux.mux.plan import Decision, Plan, Strategy, Trail
from rollmux.mux.play import MAX_TURNS, JobPlay, Played, _Play, _VariedPlay, cautious_mean, play
from rollmux.mux.snapshot import Snapshot
from rollmux.sim.cast import Cast, Takes, as_planned
from tests.thorough import examples

pytestmark = pytest.mark.no_cover  # to be traced takes longer than to play

# One pool for both kinds of phase, so that a job may also train where it rolls out.
POOL = Pool("node", PAPER_TRAIN)
CLUSTER = Cluster(POOL, POOL)
ANY_SLO = 1000.0

# Iterations of the slowest job that are run: the play looks for a cycle within 32, and two of them are to be seen.
TURNS = 80


class Pinning:
    """Places each job exactly where the example says."""

    name = "pinning"

    def __init__(self, wanted: Group) -> None:
        self.wanted = wanted
        self.forecaster = Forecaster()
        self.names: dict[str, str] = {}  # the cluster's name of each node of the example

    def place(self, job: JobSpec, snapshot: Snapshot, below_usd: float = inf) -> Decision:
        wanted = self.wanted.member(job.id).placement
        fresh = [node for node in wanted.all_nodes if node not in self.names]
        offered = snapshot.offer(POOL, len(fresh))
        assert offered is not None
        self.names.update(zip(fresh, offered, strict=True))
        there = Placement(*(tuple(self.names[node] for node in part) for part in (wanted.rollout, wanted.train)))
        before = snapshot.groups.get(self.wanted.id, Group(self.wanted.id, (), self.wanted.order))
        new = tuple((POOL.name, node) for node in offered)
        after = before.joined_by(Member.of(job, there))
        usd = after.usd_per_hour(CLUSTER) - before.usd_per_hour(CLUSTER)
        plan = Plan(job.id, Strategy.MIXED_SCALING, after, new, usd)
        return Decision.of(job, self.name, plan, Trail())


class Meeting(Cast):
    """A cast whose jobs ask for nothing until all of them are there."""

    def __init__(self, machine: ClusterMachine, expected: int, takes: Takes = as_planned) -> None:
        super().__init__(machine, takes=takes)
        self.expected = expected
        self.early: list[ev.Event] = []

    def tell(self, event: ev.Event) -> None:
        if len(self.early) == self.expected or not isinstance(event, ev.PhaseRequested):
            super().tell(event)
            return
        self.early.append(event)
        if len(self.early) == self.expected:
            for each in self.early:
                super().tell(each)


def machine_for(group: Group) -> ClusterMachine:
    return ClusterMachine(CLUSTER, Pinning(group), Rules(compaction=False))


def run(cast: Cast, group: Group, until: float, arrivals: Sequence[int] = ()) -> list[list[float]]:
    """When each member completed its iterations."""
    for i, member in enumerate(group.members):
        cast.submit(float(arrivals[i]) if arrivals else 0.0, member.job)
    cast.run(until=until)
    if group.order is Order.URGENCY:
        assume(not cast.machine.state.alarms)  # some are too much in a hurry
    assert not cast.machine.state.alarms
    return [cast.completed[member.job.id] for member in group.members]


def comes_round(done: Sequence[Sequence[float]], iteration_s: Sequence[float], until: float) -> bool:
    """Whether, at last, all these jobs repeat the same cycle, each at its pace."""
    pace_ms = [Fraction(seconds * 1000).limit_denominator(10_000) for seconds in iteration_s]
    shortest_ms = Fraction(lcm(*(pace.numerator for pace in pace_ms)), gcd(*(pace.denominator for pace in pace_ms)))
    done_ms = [[round(at * 1000) for at in times] for times in done]
    end_ms = round(until * 1000)
    cycle_ms = shortest_ms
    while 2 * cycle_ms < end_ms:
        if all(_repeats(times, cycle_ms, pace, end_ms) for times, pace in zip(done_ms, pace_ms, strict=True)):
            return True
        cycle_ms += shortest_ms
    return False


def _repeats(times_ms: Sequence[int], cycle_ms: Fraction, pace_ms: Fraction, end_ms: int) -> bool:
    last = [at - cycle_ms for at in times_ms if at > end_ms - cycle_ms]
    before = [at for at in times_ms if end_ms - 2 * cycle_ms < at <= end_ms - cycle_ms]
    return last == before and len(last) == cycle_ms / pace_ms


def assert_pace(done: Sequence[Sequence[float]], played: Played, until: float) -> None:
    measured_s = cautious_mean([[round(at * 1000) for at in times] for times in done]).iteration_s
    if played.exact:
        assert comes_round(done, played.iteration_s, until), f"{played.iteration_s} played, {measured_s} measured"
    else:
        assert measured_s == pytest.approx(played.iteration_s, rel=0.05)


def assert_same_times(done: Sequence[Sequence[float]], jobs: tuple[JobPlay, ...]) -> None:
    """From the first iteration on, each is complete just when the play says."""
    played = _Play(jobs, Order.URGENCY)
    played.run(MAX_TURNS)
    for times, expected_ms in zip(done, played.done, strict=True):
        both = min(len(times), len(expected_ms))
        assert [round(at * 1000) for at in times[:both]] == expected_ms[:both]


def assert_live_equals_play(group: Group) -> None:
    """Each set of linked jobs, all meeting at the start, is held against its play."""
    plays = [(part.indexes, play(part.jobs, group.order)) for part in group.parts]
    until = TURNS * max(max(played.iteration_s) for _, played in plays)
    cast = Meeting(machine_for(group), len(group.members))
    cast.keep_history = True
    done = run(cast, group, until)
    if group.order is Order.URGENCY:
        for part in group.parts:
            assert_same_times([done[i] for i in part.indexes], part.jobs)
        return
    assume(all(abs(at * 1000 - round(at * 1000)) < 1e-6 for at, _, _ in cast.history))
    for indexes, played in plays:
        assert_pace([done[i] for i in indexes], played, until)


# -- groups ---------------------------------------------------------------------------------------------------

ORDERS = st.sampled_from(Order)
SWITCH_S = st.integers(0, 3).map(float)
SYNC_S = st.integers(1, 12).map(float)


@st.composite
def groups(
    draw: st.DrawFn, *traits: str, gangs: tuple[int, ...] = (1, 2, 3), train_on: Sequence[str] = ("t0", "t1")
) -> Group:
    """One to four jobs pinned to rollout and training nodes, with these traits here and there."""
    some_s = st.integers(1, draw(st.sampled_from((6, 12, 100)))).map(float)
    rollout_on = ["r0", "r1", "r2", "r3"][: draw(st.integers(max(1, min(gangs)), 4))]
    placements = draw(st.lists(_placements(rollout_on, gangs, train_on), min_size=1, max_size=4))
    crowd = Counter(node for placement in placements for node in (*placement.rollout, *placement.train))
    members = []
    for i, placement in enumerate(placements):
        has = {trait for trait in traits if draw(st.booleans())}
        rollout, train = (PhaseSpec(draw(some_s), nodes=len(nodes)) for nodes in (placement.rollout, placement.train))
        if "switch" in has and any(crowd[node] > 1 for node in placement.rollout):
            rollout = replace(rollout, load_s=draw(SWITCH_S), offload_s=draw(SWITCH_S))
        if "switch" in has and any(crowd[node] > 1 for node in placement.train):
            train = replace(train, load_s=draw(SWITCH_S), offload_s=draw(SWITCH_S))
        job = JobSpec(f"j{i}", rollout, train, ANY_SLO, elastic_rollout="elastic" in has)
        if "pause" in has:
            job = replace(job, rollout=replace(rollout, pause_s=draw(SWITCH_S)), train=replace(train, pause_s=1.0))
            job = replace(job, slo=draw(st.sampled_from((1.5, 2.5, 4.0))))
        if "sync" in has:
            job = replace(job, sync_s=draw(SYNC_S))
        if "roam" in has and len(placement.rollout) > 1:
            wants = draw(st.integers(1, len(placement.rollout) - 1))
            spares = len(placement.rollout) - wants
            job = replace(job, rollout=replace(job.rollout, nodes=wants), rollout_spares=spares)
        if "stale" in has:
            job = replace(job, staleness=draw(st.integers(1, 2)))
        if "tail" in has:
            job = replace(job, tail=draw(_tails(job.rollout.duration_s)))
        members.append(Member.of(job, placement))
    return Group("g", tuple(members), draw(ORDERS))


def _placements(rollout: Sequence[str], gangs: tuple[int, ...], train: Sequence[str]) -> st.SearchStrategy[Placement]:
    sizes = st.sampled_from([size for size in gangs if size <= len(rollout)])
    some_rollout = st.tuples(st.permutations(rollout), sizes).map(lambda drawn: tuple(drawn[0][: drawn[1]]))
    some_train = st.lists(st.sampled_from(train), min_size=1, max_size=2, unique=True).map(tuple)
    return st.builds(Placement, some_rollout, some_train)


def _tails(rollout_s: float) -> st.SearchStrategy[Tail]:
    """The last 10, 20 or 50 of 100 responses move onto as few nodes as hold them."""
    return st.builds(
        Tail,
        st.just(100),
        st.sampled_from((10, 20, 50)),
        st.integers(0, int(rollout_s)).map(float),
        st.sampled_from((0.5, 0.8, 0.9)),
        st.integers(0, 2).map(float),
    )


# -- the same start -------------------------------------------------------------------------------------------


@settings(max_examples=examples(80))
@given(group=groups("sync"))
def test_gangs_on_any_nodes_come_round_as_played(group: Group) -> None:
    assert_live_equals_play(group)


@settings(max_examples=examples(80))
@given(group=groups("sync", "switch"))
def test_jobs_that_switch_on_shared_nodes_come_round_as_played(group: Group) -> None:
    assert_live_equals_play(group)


@settings(max_examples=examples(80))
@given(group=groups("sync", "stale"))
def test_jobs_that_roll_out_ahead_come_round_as_played(group: Group) -> None:
    assert_live_equals_play(group)


@settings(max_examples=examples(80))
@given(group=groups("sync", "stale", "switch", train_on=("r0", "t0", "r1")))
def test_jobs_that_train_where_others_or_they_themselves_roll_out_come_round_as_played(group: Group) -> None:
    assert_live_equals_play(group)


@settings(max_examples=examples(80))
@given(group=groups("tail", "sync", "switch", gangs=(1, 2, 3, 4)))
def test_jobs_whose_tails_move_come_round_as_played(group: Group) -> None:
    assert_live_equals_play(group)


@settings(max_examples=examples(100))
@given(group=groups("pause", "sync", "switch", "stale", train_on=("r0", "t0")))
def test_jobs_that_pause_come_round_as_played(group: Group) -> None:
    assert_live_equals_play(Group(group.id, group.members, Order.URGENCY))


@settings(max_examples=examples(80))
@given(group=groups("roam", "sync", "switch", "stale", train_on=("r0", "t0")))
def test_rollouts_that_roam_come_round_as_played(group: Group) -> None:
    assert_live_equals_play(group)


@settings(max_examples=examples(150))
@given(group=groups("roam", "pause", "sync", "switch", "stale", gangs=(1, 2, 3, 4)))
def test_rollouts_that_pause_on_one_node_and_go_on_on_another_come_round_as_played(group: Group) -> None:
    assert_live_equals_play(Group(group.id, group.members, Order.URGENCY))


@settings(max_examples=examples(100))
@given(group=groups("pause", "tail", "sync", "switch", gangs=(1, 2, 4)))
def test_jobs_that_pause_beside_tails_come_round_as_played(group: Group) -> None:
    assert_live_equals_play(Group(group.id, group.members, Order.URGENCY))


def gang(name: str, rollout_s: float, train_s: float, train_on: str, nodes: str = "r0 r1", **traits: object) -> Member:
    placement = Placement(tuple(nodes.split()), (train_on,))
    rollout = PhaseSpec(rollout_s, nodes=len(placement.rollout))
    job = JobSpec(name, rollout, PhaseSpec(train_s, nodes=1), ANY_SLO)
    return Member.of(replace(job, **traits), placement)  # type: ignore[arg-type]


def to_one_node(bulk_s: float, move_s: float = 0.0) -> Tail:
    return Tail(100, 50, bulk_s, 0.5, move_s)


# A rollout that grows in the instant in which it ends, because another gives back its nodes just then.
ENDS_AS_IT_GROWS = Group(
    "g",
    (
        gang("a", 3.0, 4.0, "t0", tail=to_one_node(1.0)),
        gang("b", 1.0, 1.0, "t0", elastic_rollout=True),
    ),
)
# A tail that begins just when it would have begun an iteration before, had that rollout not grown.
BEGINS_TWICE = Group(
    "g",
    (
        gang("a", 1.0, 8.0, "t0", elastic_rollout=True, tail=to_one_node(1.0)),
        gang("b", 4.0, 6.0, "t0", elastic_rollout=True, tail=to_one_node(0.0), staleness=1),
        gang("c", 3.0, 6.0, "t1", elastic_rollout=True, tail=to_one_node(2.0, 1.0)),
        gang("d", 2.0, 8.0, "t0", elastic_rollout=True, tail=to_one_node(1.0), staleness=1),
    ),
)


@settings(max_examples=examples(80))
@example(group=ENDS_AS_IT_GROWS)
@example(group=BEGINS_TWICE)
@given(group=groups("tail", "elastic", "stale", "sync", gangs=(1, 2, 2, 4)))
def test_rollouts_that_begin_beside_a_tail_and_grow_come_round_as_played(group: Group) -> None:
    assert_live_equals_play(group)


@settings(max_examples=examples(80))
@given(group=groups("tail", "elastic", "stale", "sync", "switch", gangs=(2, 4), train_on=("r0", "t0")))
def test_jobs_of_every_kind_together_come_round_as_played(group: Group) -> None:
    assert_live_equals_play(group)


# -- phases that vary -----------------------------------------------------------------------------------------


def by_urgency(group: Group) -> Group:
    return Group(group.id, group.members, Order.URGENCY)


# The long rollout pauses for the other, for it is planned to last; in truth it would be over before that must begin.
PAUSES_IN_VAIN = Group(
    "g",
    (
        Member.of(JobSpec("a", PhaseSpec(10.0, nodes=1), PhaseSpec(10.0, nodes=1), 2.0), Placement(("r0",), ("t0",))),
        Member.of(
            JobSpec(
                "b", PhaseSpec(100.0, nodes=1, load_s=1.0, offload_s=1.0, pause_s=3.0), PhaseSpec(10.0, nodes=1), 4.0
            ),
            Placement(("r0",), ("t1",)),
        ),
    ),
    Order.URGENCY,
)
SOME_S = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=5)


@settings(max_examples=examples(80))
@example(group=PAUSES_IN_VAIN, taken_s=[[(10, 10)], [(18, 10), (30, 10)]])
@given(
    group=st.one_of(
        groups("sync", "switch", "stale", train_on=("r0", "t0")),
        groups("pause", "sync", "switch", "stale", train_on=("r0", "t0")).map(by_urgency),
    ),
    taken_s=st.lists(SOME_S, min_size=4, max_size=4),
)
def test_jobs_whose_phases_vary_are_done_just_when_the_varied_play_says(
    group: Group, taken_s: list[list[tuple[int, int]]]
) -> None:
    by_name = dict(zip((member.job.id for member in group.members), taken_s, strict=False))

    def takes(job: JobSpec, kind: PhaseKind, iteration: int) -> float:
        if kind is PhaseKind.SYNC:
            return job.sync_s
        rollout_s, train_s = by_name[job.id][iteration % len(by_name[job.id])]
        return float(rollout_s if kind is PhaseKind.ROLLOUT else train_s)

    done = run(Meeting(machine_for(group), len(group.members), takes), group, 600.0)
    for part in group.parts:
        played = _VariedPlay(part.jobs, group.order, [_held_ms(group, i, taken_s[i]) for i in part.indexes])
        played.means()
        for i, expected_ms in zip(part.indexes, played.done, strict=True):
            both = min(len(done[i]), len(expected_ms))
            assert [round(at * 1000) for at in done[i][:both]] == expected_ms[:both]


def _held_ms(group: Group, index: int, taken_s: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """How long nodes are held: state is moved where the play says so."""
    (play_of,) = (job for part in group.parts for i, job in zip(part.indexes, part.jobs, strict=True) if i == index)
    job = group.members[index].job
    rollout_ms, train_ms = (round(phase.duration_s * 1000) for phase in (job.rollout, job.train))
    switch_ms = play_of.rollout_ms - rollout_ms, play_of.train_ms - train_ms
    return [(rollout_s * 1000 + switch_ms[0], train_s * 1000 + switch_ms[1]) for rollout_s, train_s in taken_s]


# -- any start, where the pace does not depend on it ----------------------------------------------------------


def assert_pace_from_any_start(group: Group, arrivals: Sequence[int]) -> None:
    (part,) = group.parts
    played = play(part.jobs, group.order)
    assume(played.exact)
    until = max(arrivals) + TURNS * max(played.iteration_s)
    assert_pace(run(Cast(machine_for(group)), group, until, arrivals), played, until)


def share_all_nodes(group: Group) -> Group:
    """The group with everybody on the nodes of the first."""
    first = group.members[0].placement
    members = []
    for member in group.members:
        rollout = replace(member.job.rollout, nodes=len(first.rollout))
        train = replace(member.job.train, nodes=len(first.train))
        members.append(Member.of(replace(member.job, rollout=rollout, train=train), first))
    return Group(group.id, tuple(members), group.order)


# Strict rounds go in the order of joining, so the jobs come in the order of the group.
ARRIVALS = st.lists(st.integers(0, 60), min_size=4, max_size=4).map(sorted)


@settings(max_examples=examples(60))
@given(group=groups("switch").map(share_all_nodes), arrivals=ARRIVALS)
def test_jobs_on_the_same_nodes_reach_their_pace_whenever_each_arrives(group: Group, arrivals: list[int]) -> None:
    assert_pace_from_any_start(group, arrivals)


@settings(max_examples=examples(60))
@given(group=groups("sync", "stale", "switch", train_on=("t0",)), arrivals=ARRIVALS)
def test_jobs_in_strict_rounds_reach_their_pace_whenever_each_arrives(group: Group, arrivals: list[int]) -> None:
    assert_pace_from_any_start(Group(group.id, group.members, Order.ROUND_ROBIN), arrivals)


@settings(max_examples=examples(60))
@given(group=groups("switch").map(share_all_nodes), iterations=st.integers(1, 30))
def test_when_a_job_has_ended_the_others_reach_the_pace_of_those_who_are_left(group: Group, iterations: int) -> None:
    assume(len(group.members) > 1)
    ending = group.members[0]
    rest = group.left_by(ending.job.id)
    group = group.with_job(replace(ending.job, iterations=iterations))
    played = play(rest.parts[0].jobs, group.order)
    until = iterations * max(Forecaster().forecast(group).iteration_s) + TURNS * max(played.iteration_s)
    done = run(Cast(machine_for(group)), group, until)
    assert len(done[0]) == iterations
    assert_pace(done[1:], played, until)


@given(load_s=SWITCH_S, offload_s=SWITCH_S, train_on=st.sampled_from(("r0", "t0")))
def test_a_job_alone_switches_only_beside_itself(load_s: float, offload_s: float, train_on: str) -> None:
    phase = PhaseSpec(5.0, nodes=1, load_s=load_s, offload_s=offload_s)
    alone = Group("g", (Member.of(JobSpec("a", phase, phase, ANY_SLO), Placement(("r0",), (train_on,))),))
    expected_s = 10 + (2 * (load_s + offload_s) if train_on == "r0" else 0)
    assert Forecaster().forecast(alone).iteration_s == (expected_s,)
    (done,) = run(Cast(machine_for(alone)), alone, 200.0)
    assert {after - before for before, after in pairwise(done)} == {expected_s}


def test_two_short_jobs_go_round_twice_while_a_long_one_goes_round_once() -> None:
    jobs = (("d1", 316.0, 120.0), ("d2", 316.0, 120.0), ("e", 756.0, 125.0))
    group = Group("g", tuple(gang(name, rollout_s, train_s, "t0", name) for name, rollout_s, train_s in jobs))
    until = 30 * 881.0
    done = run(Cast(machine_for(group)), group, until)
    assert comes_round(done, (440.5, 440.5, 881.0), until)
    assert comes_round(done, Forecaster().forecast(group).iteration_s, until)

"""Changing places: nodes are given back at once, moves are made when they pay or an SLO needs them; no work is lost."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux import mover
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.group import Group
from rollmux.mux.hardware import GB, Cluster, NodeType, Pool, elastic, finite
from rollmux.mux.invariants import check_all
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec
from rollmux.mux.job_record import JobRecord
from rollmux.mux.mover import Mover
from rollmux.mux.moves import Movable, Moves, compaction, escape, place_mover, relief
from rollmux.mux.order import Order
from rollmux.mux.placed import Member, Placement
from rollmux.mux.plan import Decision, Strategy
from rollmux.mux.policies.paper import PaperPolicy
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.transitions import Job
from rollmux.sim.cast import Cast, Delays, Takes, as_planned
from tests.thorough import examples

# A rollout node costs $1 an hour, a training node $3.
CHEAP = NodeType("cheap", 8, 1.0 / 8, 96 * GB, 1000 * GB)
DEAR = NodeType("dear", 8, 3.0 / 8, 80 * GB, 1000 * GB)
CLUSTER = elastic(CHEAP, DEAR)
PHASES = (PhaseKind.ROLLOUT, PhaseKind.TRAIN, PhaseKind.SYNC)


def job(name: str, **more: Any) -> JobSpec:
    """Two of these fill a group's time: alone one takes 100 s an iteration, its SLO allows 120, three take 150."""
    given: dict[str, Any] = {"rollout": PhaseSpec(50.0, 1), "train": PhaseSpec(50.0, 1), "slo": 1.2, **more}
    return JobSpec(id=name, **given)


class Checked(Cast):
    """Checks every invariant after each event, and that rented nodes are those that somebody is pinned to."""

    def __init__(
        self,
        rules: Rules | None = None,
        cluster: Cluster = CLUSTER,
        max_group: int = 5,
        takes: Takes = as_planned,
    ) -> None:
        super().__init__(ClusterMachine(cluster, RollmuxPolicy(max_group=max_group), rules), takes=takes)
        self.keep_history = True
        self.rented: set[str] = set()
        self.counted = 0

    @property
    def jobs(self) -> dict[str, JobRecord]:
        return self.machine.state.jobs

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        news, self.counted = self.history[self.counted :], len(self.history)
        for command in (c for _, _, commands in news for c in commands):
            if isinstance(command, cmd.Provision):
                self.rented.add(command.node)
            elif isinstance(command, cmd.ReleaseNode):
                self.rented.discard(command.node)  # one that comes too late is given back once more
        assert self.rented == {node for group in self.machine.state.groups.values() for node in group.nodes}
        assert not self.machine.state.alarms
        check_all(self.machine.state)

    def cancel(self, *names: str) -> None:
        for name in names:
            self.tell(ev.JobCancelled(name))
            self.run(self.now)

    def said(self, kind: type, job_id: str) -> list[tuple[float, Any]]:
        """The commands of this kind about this job, with their times."""
        return [
            (at, command)
            for at, _, commands in self.history
            for command in commands
            if isinstance(command, kind) and getattr(command, "job_id", "") == job_id
        ]

    def synced(self, job_id: str) -> list[int]:
        """The iterations whose sync was finished under a lease that counted."""
        leases = {
            c.lease.epoch: c.lease for _, _, commands in self.history for c in commands if isinstance(c, cmd.Grant)
        }
        return [
            leases[event.epoch].iteration
            for _, event, _ in self.history
            if isinstance(event, ev.PhaseFinished)
            and event.job_id == job_id
            and leases[event.epoch].kind is PhaseKind.SYNC
        ]


def pairs(cast: Checked, *crew: JobSpec) -> Checked:
    """Submits jobs, two of which fill a group, and lets them begin."""
    for spec in crew:
        cast.submit(cast.now, spec)
    cast.run(cast.now)
    return cast


def two_left_alone(left: JobSpec, at: float = 10.0, rules: Rules | None = None, **more: Any) -> Checked:
    """B is alone in group-0; `left` is alone in group-1 since just now, and could join B."""
    cast = pairs(Checked(rules), job("A", **more), job("B", **more), left, job("D", **more))
    cast.run(at)
    cast.cancel("A", "D")
    return cast


def started(*crew: JobSpec, rules: Rules | None = None, max_group: int = 5) -> ClusterMachine:
    """All have started, and none has begun its first iteration: whoever is to move goes at once."""
    machine = ClusterMachine(CLUSTER, RollmuxPolicy(max_group=max_group), rules)
    for spec in crew:
        machine.handle(0.0, ev.JobSubmitted(spec))
        for node, known in list(machine.state.book.nodes.items()):
            machine.handle(0.0, ev.NodeJoined(node, known.pool))
        machine.handle(0.0, ev.JobStarted(spec.id, 1))
    return machine


def gone(machine: ClusterMachine, *names: str) -> tuple[cmd.Command, ...]:
    """Cancels these jobs, and sees them end."""
    commands: tuple[cmd.Command, ...] = ()
    for name in names:
        machine.handle(0.0, ev.JobCancelled(name))
        commands += machine.handle(0.0, ev.JobStopped(name, 1))
    return commands


# -- departures ------------------------------------------------------------------------------------------------------


@st.composite
def crews(draw: st.DrawFn) -> list[tuple[float, JobSpec]]:
    at, found = 0.0, []
    for i in range(draw(st.integers(2, 7))):
        at += draw(st.sampled_from([0.0, 20.0, 130.0]))
        spec = JobSpec(
            f"job{i}",
            PhaseSpec(draw(st.sampled_from([30.0, 50.0, 120.0])), draw(st.sampled_from([1, 1, 2]))),
            PhaseSpec(draw(st.sampled_from([30.0, 50.0])), draw(st.sampled_from([1, 1, 2]))),
            slo=draw(st.sampled_from([1.0, 1.2, 1.7, 2.5])),
            iterations=draw(st.integers(1, 8)),
            sync_s=draw(st.sampled_from([0.0, 4.0])),
            staleness=draw(st.sampled_from([0, 0, 1])),
            cold_start_s=draw(st.sampled_from([1.0, 40.0])),
        )
        found.append((at, spec))
    return found


@pytest.mark.no_cover
@given(crew=crews(), provision_s=st.sampled_from([0.0, 60.0]), launch_s=st.sampled_from([0.0, 25.0]))
@settings(max_examples=examples(80))
def test_whoever_moves_when_each_iteration_is_done_once_and_no_node_is_kept_in_vain(
    crew: list[tuple[float, JobSpec]], provision_s: float, launch_s: float
) -> None:
    cast = Checked()
    cast.delays = Delays(provision_s, launch_s)
    for at, spec in crew:
        cast.submit(at, spec)
    cast.run()
    for _, spec in crew:
        assert cast.synced(spec.id) == list(range(spec.iterations or 0))
    assert not cast.rented
    assert not cast.machine.state.jobs


def test_nodes_are_given_back_with_the_event_that_frees_them() -> None:
    cast = pairs(
        Checked(), job("wide", slo=3.0, rollout=PhaseSpec(50.0, 2), iterations=1), job("slim", slo=3.0, iterations=3)
    )
    cast.run()
    finished = next(x for x in cast.history if x[1] == ev.JobFinished("wide", 1))
    (released,) = [c for c in finished[2] if isinstance(c, cmd.ReleaseNode)]
    assert released.pool == "rollout"
    last = next(x for x in cast.history if x[1] == ev.JobFinished("slim", 1))
    assert sorted(c.pool for c in last[2] if isinstance(c, cmd.ReleaseNode)) == ["rollout", "train"]


# -- what is refused without a play ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked(RollmuxPolicy):
    """Remembers whom it was to place."""

    jobs: list[str] = field(default_factory=list)

    def place(self, job: JobSpec, snapshot: Snapshot, below_usd: float = inf) -> Decision:
        self.jobs.append(job.id)
        return super().place(job, snapshot, below_usd)


def asked_for(home: str, others: str) -> tuple[Asked, Moves | None]:
    """A policy that has been asked for moves out of one group of such jobs on one node a phase into another."""

    def crowd(name: str, jobs: str) -> Group:
        placement = Placement((f"r-{name}",), (f"t-{name}",))
        return Group(name, tuple(Member.of(job(each), placement) for each in jobs), Order.URGENCY)

    policy, leaving, staying = Asked(), crowd("home", home), crowd("other", others)
    able = {each: Movable(job(each), 1e6, 60.0, limit_s=120.0) for each in home}
    nodes = {"rollout": 2, "train": 2}
    snapshot = Snapshot(CLUSTER, {"home": leaving, "other": staying}, rented=nodes, next_node=4, next_group=2)
    return policy, compaction(leaving, snapshot, able, policy, 3600.0)


def test_jobs_that_could_gain_too_little_anywhere_are_refused_without_asking() -> None:
    full, none = asked_for("AB", "CD")
    assert (full.jobs, none) == ([], None)


def test_jobs_that_could_gain_enough_are_tried_and_moved_if_they_do() -> None:
    tried, none = asked_for("AB", "C")
    assert tried.jobs == ["A", "B"]
    assert none is None
    _, moves = asked_for("A", "C")
    assert moves is not None
    assert [(plan.job_id, plan.group.id) for plan in moves.plans] == [("A", "other")]


# -- when a move pays: it costs half an iteration, 50 s of 100, more than the cold start -------------------------------


@pytest.mark.parametrize(
    ("left", "rules", "moves"),
    [
        (job("C", slo=10.0, iterations=3, cold_start_s=249.0), Rules(), True),
        (job("C", slo=10.0, iterations=3, cold_start_s=250.0), Rules(), False),
        (job("C", slo=10.0, iterations=3, cold_start_s=251.0), Rules(), False),
        (job("C", slo=10.0, iterations=4, cold_start_s=251.0), Rules(), True),
        (job("C", slo=10.0, iterations=3), Rules(move_s=249.0), True),
        (job("C", slo=10.0, iterations=3), Rules(move_s=250.0), False),
        (job("C", slo=10.0, iterations=4), Rules(), True),
        (job("C", slo=10.0, iterations=3), Rules(), False),
        (job("C", slo=10.0, iterations=5, cold_start_s=349.0, rollout=PhaseSpec(50.0, 2)), Rules(), True),
        (job("C", slo=10.0, iterations=5, cold_start_s=350.0, rollout=PhaseSpec(50.0, 2)), Rules(), False),
        (job("C", slo=10.0, iterations=1000, cold_start_s=1.0), Rules(compaction=False), False),
    ],
    ids=[
        "saves a little more than it costs",
        "saves what it costs",
        "saves a little less",
        "one more iteration to do",
        "the operator says what a move costs, a little less",
        "the operator says what a move costs, as much",
        "300 s by default, 400 left",
        "300 s by default, 300 left",
        "a node must be added: saves $4 of the $5 that its nodes cost, a little more than it costs",
        "a node must be added: saves $4 of the $5 that its nodes cost, what it costs",
        "compaction is off",
    ],
)
def test_a_job_moves_if_that_saves_more_than_it_costs(left: JobSpec, rules: Rules, moves: bool) -> None:
    machine = started(job("A"), job("B"), left, job("D"), rules=rules)
    commands = gone(machine, "A", "D")
    record = machine.state.jobs["C"]
    assert (record.state is Job.STOPPING) == moves
    assert [c.job_id for c in commands if isinstance(c, cmd.Stop)] == (["C"] if moves else [])
    assert (record.target is not None and record.target[0] == "group-0") == moves


def test_what_an_iteration_under_way_still_takes_in_the_old_place_saves_nothing() -> None:
    """C would move in 90 s, and save two of its three iterations: 200 s of its nodes for 250 s lost."""
    assert two_left_alone(job("C", slo=10.0, iterations=3, cold_start_s=200.0)).jobs["C"].target is None


def test_a_job_in_its_last_iteration_finishes_it_and_is_not_moved() -> None:
    cast = two_left_alone(job("C", slo=10.0, iterations=1, cold_start_s=1.0), iterations=20)
    cast.run(5000.0)
    assert not cast.said(cmd.Stop, "C")
    assert cast.synced("C") == [0]


@pytest.mark.parametrize(("ran_s", "moves"), [(99.0, False), (100.0, False), (101.0, True)])
def test_a_job_of_unknown_length_is_thought_to_run_as_long_again_as_it_has(ran_s: float, moves: bool) -> None:
    cast = two_left_alone(job("C", cold_start_s=50.0), at=ran_s)
    assert (cast.jobs["C"].target is not None) == moves


@pytest.mark.parametrize(("cold_start_s", "moves"), [(149.0, True), (150.0, False)])
def test_a_whole_group_moves_if_that_pays_for_all_of_it(cold_start_s: float, moves: bool) -> None:
    """Three are a full group here. Two left of one have 400 s to go, and each loses the start and half an iteration."""
    short = PhaseSpec(10.0, 1)  # three don't slow each other
    more: dict[str, Any] = {"slo": 3.0, "cold_start_s": cold_start_s, "iterations": 4}
    more.update(rollout=short, train=short, sync_s=80.0)
    stays = {**more, "cold_start_s": 1e6}
    crew = [job(name, **(stays if name == "A1" else more)) for name in ("A1", "A2", "A3", "C1", "C2", "C3")]
    machine = started(*crew, max_group=3)
    commands = gone(machine, "A2", "A3", "C3")
    assert [c.job_id for c in commands if isinstance(c, cmd.Stop)] == (["C1", "C2"] if moves else [])
    targets = [record.target[0] if record.target else None for record in machine.state.jobs.values()]
    assert targets == ([None, "group-0", "group-0"] if moves else [None, None, None])


def test_room_goes_first_to_those_who_wait() -> None:
    capped = Cluster(Pool("rollout", CHEAP, max_nodes=2), Pool("train", DEAR, max_nodes=2))
    cast = pairs(Checked(cluster=capped), *(job(name, cold_start_s=1.0, iterations=50) for name in "ABCDE"))
    cast.run(10.0)
    assert cast.jobs["E"].state is Job.QUEUED
    cast.cancel("A", "D")
    assert cast.jobs["E"].group_id == "group-0"
    assert cast.jobs["C"].target is None


def test_nobody_is_moved_while_somebody_waits() -> None:
    """The one who waits wants both of both pools' nodes."""
    capped = Cluster(Pool("rollout", CHEAP, max_nodes=2), Pool("train", DEAR, max_nodes=2))
    wide = job("wide", slo=1.0, rollout=PhaseSpec(50.0, 2), train=PhaseSpec(50.0, 2))
    crew = [job(name, cold_start_s=1.0, iterations=50) for name in "ABCD"]
    cast = pairs(Checked(cluster=capped), *crew, wide)
    cast.run(10.0)
    cast.cancel("A", "D")
    assert cast.jobs["wide"].state is Job.QUEUED
    assert cast.jobs["C"].target is None


def test_while_a_job_is_being_stopped_for_its_move_no_other_move_is_decided() -> None:
    machine = started(*(job(name, cold_start_s=1.0, iterations=50) for name in "ABCDEFGH"), max_group=2)

    def moving() -> list[str]:
        return [name for name, record in machine.state.jobs.items() if record.target or record.attempt == 2]

    gone(machine, "A", "D")
    (first,) = moving()
    gone(machine, "F", "H")
    assert moving() == [first]
    machine.handle(0.0, ev.JobStopped(first, 1))
    assert len(moving()) == 2


@pytest.mark.parametrize(("at", "moves"), [(250.0, False), (299.5, False), (300.0, True), (350.0, True)])
def test_a_moved_job_stays_until_its_move_has_paid_for_itself(at: float, moves: bool) -> None:
    """C is to move in beside B at 10, goes at 100 and is there at 300. Once B has left, it could move on to E."""
    crew = [job(name, cold_start_s=1e6 if name == "E" else 200.0, iterations=50) for name in "ABCDEF"]
    cast = pairs(Checked(), *crew)
    cast.run(10.0)
    cast.cancel("A", "D")
    assert cast.jobs["C"].target is not None
    assert cast.jobs["C"].settled_until > cast.now
    cast.run(150.0)
    assert cast.jobs["C"].group_id == "group-0"
    cast.cancel("F")
    assert cast.jobs["E"].target is None  # there is no room beside B and C
    cast.run(at)
    cast.cancel("B")
    assert (cast.jobs["C"].target is not None) == moves
    cast.run(1000.0)
    assert cast.jobs["C"].group_id == ("group-2" if moves else "group-0")
    assert len(cast.said(cmd.Launch, "C")) == (3 if moves else 2)


# -- how a move is made ----------------------------------------------------------------------------------------------


def test_a_move_waits_for_the_end_of_the_iteration_and_its_place_is_kept() -> None:
    cast = two_left_alone(job("C", slo=10.0, iterations=5, cold_start_s=1.0), iterations=20, cold_start_s=1e6)
    target = cast.jobs["C"].target
    assert target is not None
    assert {m.job.id for m in cast.machine.state.groups["group-0"].members} == {"B", "C"}
    pairs(cast, job("late"))
    assert cast.jobs["late"].group_id != "group-0"
    cast.run(99.0)
    assert not cast.said(cmd.Stop, "C")
    assert cast.jobs["C"].state is Job.RUNNING
    cast.run(150.0)
    ((at, stop),) = cast.said(cmd.Stop, "C")
    assert (at, stop.attempt) == (100.0, 1)
    assert "no longer pay" in stop.reason
    assert not cast.said(cmd.Revoke, "C")
    assert cast.said(cmd.Launch, "C")[1:] == [(100.0, cmd.Launch("C", 2, target[1]))]
    cast.run(2000.0)
    assert cast.synced("C") == [0, 1, 2, 3, 4]


def test_a_job_whose_rollouts_run_ahead_moves_after_a_sync_and_does_no_iteration_twice() -> None:
    short = PhaseSpec(20.0, 1)
    ahead: dict[str, Any] = {"rollout": short, "train": short, "sync_s": 60.0, "staleness": 1}
    cast = pairs(Checked(max_group=2), *(job(n, iterations=9, cold_start_s=1.0, slo=3.0, **ahead) for n in "ABCD"))
    cast.run(10.0)
    cast.cancel("A", "D")
    assert cast.jobs["C"].target is not None
    cast.run(3000.0)
    ((at, _),) = cast.said(cmd.Stop, "C")
    (sync,) = [e for _, e, c in cast.history if any(isinstance(x, cmd.Stop) and x.job_id == "C" for x in c)]
    assert isinstance(sync, ev.PhaseFinished)
    assert at == 100.0  # its first sync
    assert cast.synced("C") == list(range(9))
    assert "C" not in cast.jobs


class Hand:
    """A machine driven event by event. A and B share group-0; B is to move to two new nodes, which are still coming."""

    def __init__(self, busy: bool = True, cluster: Cluster = CLUSTER, **more: Any) -> None:
        self.machine = ClusterMachine(cluster, RollmuxPolicy(), Rules(compaction=False))
        self.now = 0.0
        for spec in (job("A", iterations=90), job("B", iterations=90, **more)):
            self.tell(ev.JobSubmitted(spec))
            for node, record in list(self.machine.state.book.nodes.items()):
                self.tell(ev.NodeJoined(node, record.pool))
            self.tell(ev.JobStarted(spec.id, 1))
        if busy:
            self.tell(ev.PhaseRequested("B", 1, PhaseKind.ROLLOUT, 0))
        self.old_nodes = set(self.machine.state.book.nodes)
        self.relief = self.tell(ev.JobProfiled("A", 1, 80.0, 20.0, 0.0))
        self.new_nodes = set(self.machine.state.book.nodes) - self.old_nodes

    @property
    def b(self) -> JobRecord:
        return self.machine.state.jobs["B"]

    def tell(self, event: ev.Event) -> tuple[cmd.Command, ...]:
        self.now += 1.0
        commands = self.machine.handle(self.now, event)
        check_all(self.machine.state)
        return commands

    def reach_the_safe_point(self) -> tuple[cmd.Command, ...]:
        commands: tuple[cmd.Command, ...] = ()
        for kind in PHASES:
            if kind is not PhaseKind.ROLLOUT:
                self.tell(ev.PhaseRequested("B", 1, kind, 0))
            commands = self.tell(ev.PhaseFinished("B", self.machine.state.seat(self.b).lanes[kind].epoch))
        return commands

    def homes(self, job_id: str) -> list[str]:
        """The groups that a job is a member of, once for each time."""
        return [g.id for g in self.machine.state.groups.values() for m in g.members if m.job.id == job_id]


def waits_for_the_safe_point(hand: Hand) -> None:
    assert hand.b.state is Job.RUNNING


def is_being_stopped(hand: Hand) -> None:
    hand.reach_the_safe_point()
    assert hand.b.state is Job.STOPPING


def waits_for_its_new_nodes(hand: Hand) -> None:
    is_being_stopped(hand)
    hand.tell(ev.JobStopped("B", 1))
    assert hand.b.state is Job.PROVISIONING


def test_a_measurement_that_endangers_an_slo_moves_one_job_to_nodes_of_its_own() -> None:
    hand = Hand()
    assert sorted(c.pool for c in hand.relief if isinstance(c, cmd.Provision)) == ["rollout", "train"]
    assert not any(isinstance(c, cmd.Stop) for c in hand.relief)
    assert hand.homes("B") == ["group-0", "group-1"]
    *_, stop = hand.reach_the_safe_point()
    assert isinstance(stop, cmd.Stop)
    assert "SLO" in stop.reason
    assert hand.tell(ev.JobStopped("B", 1)) == ()
    assert hand.homes("B") == ["group-1"]
    assert hand.b.target is None
    launches = [hand.tell(ev.NodeJoined(node, node.split("-")[0])) for node in sorted(hand.new_nodes)]
    assert launches[0] == ()
    (launch,) = launches[1]
    assert isinstance(launch, cmd.Launch)
    assert launch.attempt == 2
    assert set(launch.placement.all_nodes) == hand.new_nodes
    assert "group-0" not in hand.machine.state.strained


def test_a_job_that_holds_nothing_moves_at_once() -> None:
    hand = Hand(busy=False)
    assert isinstance(hand.relief[-1], cmd.Stop)
    assert hand.b.state is Job.STOPPING


@pytest.mark.parametrize(("rollout_s", "train_s"), [(50.0, 50.0), (60.0, 50.0), (45.0, 45.0)])
def test_a_measurement_within_every_slo_moves_nobody(rollout_s: float, train_s: float) -> None:
    cast = pairs(Checked(), job("A", iterations=9), job("B", iterations=9))
    before = cast.rented.copy()
    cast.tell(ev.JobProfiled("A", 1, rollout_s, train_s, 0.0))
    assert [record.target for record in cast.jobs.values()] == [None, None]
    assert cast.rented == before


def test_where_there_is_no_better_place_the_job_stays_until_there_is_one() -> None:
    capped = Cluster(Pool("rollout", CHEAP, max_nodes=2), Pool("train", DEAR, max_nodes=2))
    cast = pairs(Checked(cluster=capped), *(job(name, iterations=9) for name in "ABCD"))
    cast.tell(ev.JobProfiled("A", 1, 80.0, 20.0, 0.0))
    assert list(cast.machine.state.strained) == ["group-0"]
    assert [record.target for record in cast.jobs.values()] == [None] * 4
    cast.tell(ev.JobProfiled("A", 1, 50.0, 50.0, 0.0))
    assert not cast.machine.state.strained


def test_where_every_job_is_late_one_of_them_gets_a_place_of_its_own() -> None:
    """Four take 200 s where 120 are allowed; without any one of them they still take 150."""
    members = [Member.of(job(name), Placement(("r",), ("t",))) for name in "ABCD"]
    crowd = Group("g", tuple(members))
    policy, snapshot = RollmuxPolicy(), Snapshot(CLUSTER, {"g": crowd}, next_group=1)
    movable = {m.job.id: Movable(m.job, 1000.0, 1.0) for m in members}
    moves = relief(crowd, snapshot, movable, policy)
    assert moves is not None
    (plan,) = moves.plans
    assert plan.strategy is Strategy.ISOLATED
    late = policy.forecaster.late(crowd)
    assert late is not None
    assert plan.job_id == late[0].job.id
    assert relief(crowd, snapshot, {}, policy) is None


# -- slower than forecast --------------------------------------------------------------------------------------------

SLOW: dict[str, Any] = {"slo": 9.0, "iterations": 400, "cold_start_s": 100.0}
LONG = {**SLOW, "slo": 2.2, "iterations": 40}


def slower(actor: JobSpec, kind: PhaseKind, _: int) -> float:
    """B takes three times as long as it says."""
    return 50.0 * (3 if actor.id == "B" else 1) if kind is not PhaseKind.SYNC else 0.0


def slowdown(cast: Cast, spec: JobSpec) -> float:
    return cast.iteration_s(spec.id) / spec.solo_s


def test_a_job_that_is_slower_than_forecast_leaves_while_it_can_still_keep_its_slo() -> None:
    """Together they would take 100 s an iteration; in truth A waits for B, and takes 300."""
    a, b = job("A", **LONG), job("B", **SLOW)
    cast = pairs(Checked(rules=Rules(compaction=False), takes=slower), a, b)
    assert cast.jobs["A"].group_id == cast.jobs["B"].group_id
    cast.run()
    assert not cast.said(cmd.Stop, "B")
    ((at, stop),) = cast.said(cmd.Stop, "A")
    assert "slower than was forecast" in stop.reason
    assert at > 10 * a.solo_s  # not before it had to
    assert 2.0 < slowdown(cast, a) <= a.slo


def test_whose_rollouts_run_ahead_leaves_after_the_sync_that_decides_it_not_after_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided, make_moves = list[float](), Mover.make_moves

    def noted(self: Mover, now: float, *given: Any) -> None:
        decided.append(now)
        make_moves(self, now, *given)

    monkeypatch.setattr(Mover, "make_moves", noted)
    cast = pairs(Checked(rules=Rules(compaction=False), takes=slower), job("A", **LONG, staleness=1), job("B", **SLOW))
    cast.run()
    ((at, _),) = cast.said(cmd.Stop, "A")
    assert decided == [at]


def test_what_a_move_costs_is_as_the_rules_say_where_its_job_does_not() -> None:
    left_at = []
    for told_s, rules in ((900.0, Rules(compaction=False)), (0.0, Rules(compaction=False, move_s=900.0))):
        a, b = job("A", **{**LONG, "cold_start_s": told_s}), job("B", **SLOW)
        cast = pairs(Checked(rules=rules, takes=slower), a, b)
        cast.run()
        ((at, _),) = cast.said(cmd.Stop, "A")
        left_at.append(at)
    assert left_at[0] == left_at[1]


def test_without_nodes_for_it_a_slow_job_stays() -> None:
    capped = Cluster(Pool("rollout", CHEAP, max_nodes=1), Pool("train", DEAR, max_nodes=1))
    cast = pairs(Checked(cluster=capped, takes=slower), job("A", **LONG), job("B", **SLOW))
    cast.run()
    assert not cast.said(cmd.Stop, "A")
    assert cast.synced("A") == list(range(40))


def test_a_job_that_has_fled_is_joined_by_nobody() -> None:
    """Neither by those who come nor, though that would save its nodes, by the one that it fled from."""
    a = job("A", **LONG)
    cast = pairs(Checked(takes=slower), a, job("B", **SLOW))
    while not cast.said(cmd.Stop, "A"):
        cast.run(cast.now + 100.0)
    cast.run(cast.now + 400.0)
    pairs(cast, job("C", slo=9.0, iterations=100))
    home = cast.jobs["A"].group_id
    while "A" in cast.jobs:
        assert [m.job.id for m in cast.machine.state.groups[home].members] == ["A"]
        cast.run(cast.now + 50.0)
    assert slowdown(cast, a) <= a.slo


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_job_that_loses_much_with_every_iteration_leaves_before_the_last_chance_is_over(staleness: int) -> None:
    """Each iteration with B costs A four of its own."""
    a = job("A", **{**LONG, "slo": 3.3, "iterations": 20, "staleness": staleness})
    b = job("B", rollout=PhaseSpec(50.0, 1), **{**SLOW, "slo": 20.0})

    def much_slower(actor: JobSpec, kind: PhaseKind, _: int) -> float:
        return 50.0 * (8 if actor.id == "B" else 1) if kind is not PhaseKind.SYNC else 0.0

    cast = pairs(Checked(rules=Rules(compaction=False), takes=much_slower), a, b)
    assert cast.jobs["A"].group_id == cast.jobs["B"].group_id
    cast.run()
    assert [stop.job_id for _, stop in cast.said(cmd.Stop, "A")] == ["A"]
    assert slowdown(cast, a) <= a.slo


@pytest.mark.parametrize("moving", [False, True])
def test_while_a_job_is_moving_its_limit_does_not_rise(moving: bool) -> None:
    """After 20 of 60 iterations alone it may take 130 s for each other one; but what a move takes is not spent yet."""
    machine = started(job("A", iterations=60))
    state, record = machine.state, machine.state.jobs["A"]
    record.progress.rolled = record.progress.trained = record.progress.synced = 20
    record.progress.since = 2000.0
    if moving:
        leaver = machine.mover.movable(2000.0, state.groups["group-0"])["A"]
        move = escape(state.groups["group-0"], state.snapshot(), leaver, state.policy)
        assert move is not None
        machine.mover.make_moves(2000.0, move, "for a test", [])
        assert record.state is Job.STOPPING
    before = state.groups["group-0"].member("A").limit_s
    machine.mover.follow_budgets(2000.0, [])
    assert (state.groups["group-0"].member("A").limit_s > before) is not moving


@pytest.mark.parametrize("narrower", [False, True])
@pytest.mark.parametrize("longer", [1.0, 1.02])
def test_a_measurement_gives_back_nothing_of_what_a_move_is_to_cost(longer: float, narrower: bool) -> None:
    """Its new place was chosen with that; who takes longer by itself may take so much longer there.

    A place with fewer training nodes than it wants was chosen too: a training that takes longer for that is no news.
    """
    a = job("A", iterations=60, cold_start_s=600.0, slo=3.0, train=PhaseSpec(50.0, 2 if narrower else 1))
    machine = started(a, job("B", slo=9.0), max_group=1)
    state, record = machine.state, machine.state.jobs["A"]
    record.progress.rolled = record.progress.trained = record.progress.synced = 20
    record.progress.since = 6600.0
    leaver = machine.mover.movable(6600.0, state.groups["group-0"])["A"]
    away = replace(state.snapshot(), frozen=frozenset({"group-0"}))
    plan = place_mover(leaver, away, PaperPolicy(), inf).plan
    assert plan is not None
    machine.mover.make_moves(6600.0, Moves((plan,), 0.0, 0.0), "for a test", [])
    assert record.target is not None
    there = state.groups[record.target[0]].member("A")
    assert len(there.placement.train) == 1
    machine.handle(6600.0, ev.JobProfiled("A", 1, 50.0 * longer, 50.0 * longer, 0.0))
    assert state.groups[record.target[0]].member("A").limit_s == pytest.approx(there.limit_s * longer)


@pytest.mark.parametrize(("synced_at", "limit_s"), [(2000.0, 120.0), (2800.0, 110.0), (3900.0, 100.0)])
def test_a_measurement_gives_back_nothing_of_an_slo_that_has_been_used_up(synced_at: float, limit_s: float) -> None:
    """Of 60 iterations, in 7,200 s, 20 are done. Who is in time may take as long as before; who is late may not."""
    machine = started(job("A", iterations=60))
    state, progress = machine.state, machine.state.jobs["A"].progress
    progress.rolled = progress.trained = progress.synced = 20
    progress.since = synced_at
    machine.handle(synced_at, ev.JobProfiled("A", 1, 50.0, 50.0, 0.0))
    assert state.groups["group-0"].member("A").limit_s == pytest.approx(limit_s)


@pytest.mark.parametrize(("declared_s", "now"), [(30.0, 1000.0), (80.0, 3000.0)])
def test_what_is_left_of_an_slo_is_told_by_what_was_measured(declared_s: float, now: float) -> None:
    """It takes 50 s a phase. Who takes longer than it said has lost nothing yet; who said too much may be late."""
    machine = started(job("A", rollout=PhaseSpec(declared_s, 1), train=PhaseSpec(declared_s, 1), iterations=60))
    record = machine.state.jobs["A"]
    record.progress.rolled = record.progress.trained = record.progress.synced = 20
    record.progress.since = now
    machine.handle(now, ev.JobProfiled("A", 1, 50.0, 50.0, 0.0))
    allowed = record.limit_s(now)
    assert allowed is not None
    limit_s = machine.state.groups["group-0"].member("A").limit_s
    assert limit_s == pytest.approx(max(100.0, min(allowed, record.job.limit_s)))


def test_a_measurement_takes_nothing_that_a_job_has_gained_and_its_neighbours_count_on() -> None:
    """A was alone for 50 of 100 iterations, so it may take 138 s for each other one; with B it takes 130."""
    cast = pairs(Checked(), job("A", iterations=100))
    cast.run(5000.0)
    pairs(cast, job("elsewhere", slo=1.0, iterations=100))  # as it starts, limits follow what was gained
    long = PhaseSpec(65.0, 1)
    pairs(cast, job("B", iterations=100, slo=1.5, rollout=long, train=long))
    state = cast.machine.state
    assert cast.jobs["A"].group_id == cast.jobs["B"].group_id
    cast.run(5600.0)
    before_s = state.groups[cast.jobs["A"].group_id].member("A").limit_s
    cast.tell(ev.JobProfiled("A", 1, 50.0, 50.0, 0.0, (0.0, 0.0)))
    cast.tell(ev.JobProfiled("A", 1, 50.0, 50.1, 0.0, (0.0, 0.0)))
    assert state.groups[cast.jobs["A"].group_id].member("A").limit_s == pytest.approx(before_s * 1.001)
    assert not state.strained
    assert not [name for name, record in cast.jobs.items() if record.target is not None]


@pytest.mark.parametrize(("synced_at", "joins"), [(2000.0, True), (3200.0, False)])
def test_a_newcomer_joins_by_what_the_others_can_still_lose(synced_at: float, joins: bool) -> None:
    """A may take 130 s for each of its 40 iterations to come, or since the last look has become so late that it may
    take 100; beside the newcomer it takes 110."""
    machine = started(job("A", iterations=60))
    progress = machine.state.jobs["A"].progress
    progress.rolled = progress.trained = progress.synced = 20
    progress.since = synced_at
    long = PhaseSpec(55.0, 1)
    machine.handle(synced_at, ev.JobSubmitted(job("B", rollout=long, train=long, iterations=60)))
    assert (machine.state.jobs["B"].group_id == "group-0") is joins


def test_one_move_that_will_relieve_a_group_is_waited_for() -> None:
    """A new measurement makes one too many of three; what comes meanwhile sends nobody else away."""
    cast = pairs(Checked(), *(job(name, slo=1.6, iterations=90) for name in "ABC"))
    cast.run(20.0)
    cast.tell(ev.JobProfiled("A", 1, 70.0, 50.0, 0.0))
    (leaver,) = [name for name, record in cast.jobs.items() if record.target is not None]
    pairs(cast, job("D", slo=1.0, iterations=90))
    pairs(cast, job("E", slo=1.0, iterations=90))
    assert [name for name, record in cast.jobs.items() if record.target is not None] == [leaver]


# -- a large cluster -------------------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three groups are many here."""
    monkeypatch.setattr(mover, "SMALL", 2)
    monkeypatch.setattr(mover, "ROOMIEST", 2)
    monkeypatch.setattr(mover, "FOLLOWED", 1)


@pytest.mark.usefixtures("large")
def test_in_a_large_cluster_the_groups_that_have_changed_take_turns() -> None:
    """Full groups of two. Who is left of the first has nowhere to go; who is left of the second goes there."""
    more: dict[str, Any] = {"slo": 3.0, "cold_start_s": 1.0, "iterations": 40}
    machine = started(*(job(name, **more) for name in ("A1", "A2", "B1", "B2", "C1", "C2")), max_group=2)
    assert len(machine.state.groups) == 3
    machine.state.changed.clear()
    gone(machine, "A2")
    assert not machine.state.changed  # its one place to go to would have been a full group
    stops = gone(machine, "B2")
    assert [c.job_id for c in stops if isinstance(c, cmd.Stop)] == ["B1"]


@pytest.mark.usefixtures("large")
def test_in_a_large_cluster_limits_are_followed_group_by_group() -> None:
    cast = pairs(Checked(max_group=1), *(job(name, slo=3.0, iterations=100) for name in "ABC"))
    cast.run(1000.0)
    limits = {group_id: group.members[0].limit_s for group_id, group in cast.machine.state.groups.items()}
    looked: list[set[str]] = []
    for _ in range(3):
        cast.machine.mover.follow_budgets(cast.now, [])
        groups = cast.machine.state.groups
        looked.append({group_id for group_id in groups if groups[group_id].members[0].limit_s != limits[group_id]})
    assert [len(names) for names in looked] == [1, 2, 3]


# -- what may come between -------------------------------------------------------------------------------------------

Stage = Callable[[Hand], None]
STAGES: list[Stage] = [waits_for_the_safe_point, is_being_stopped, waits_for_its_new_nodes]


@pytest.mark.parametrize("stage", STAGES)
def test_a_job_cancelled_in_the_middle_of_its_move_leaves_both_places(stage: Stage) -> None:
    hand = Hand()
    stage(hand)
    commands = hand.tell(ev.JobCancelled("B"))
    if hand.machine.state.jobs.get("B") is not None:
        commands += hand.tell(ev.JobStopped("B", 1))
    assert {c.node for c in commands if isinstance(c, cmd.ReleaseNode)} == hand.new_nodes
    assert hand.homes("B") == []
    assert hand.machine.state.ended["B"] == "cancelled"
    assert set(hand.machine.state.book.nodes) == hand.old_nodes


@pytest.mark.parametrize("stage", STAGES[:2])
def test_a_job_that_finishes_in_the_middle_of_its_move_leaves_both_places(stage: Stage) -> None:
    hand = Hand()
    stage(hand)
    commands = hand.tell(ev.JobFinished("B", 1))
    assert {c.node for c in commands if isinstance(c, cmd.ReleaseNode)} == hand.new_nodes
    assert hand.homes("B") == []
    assert hand.machine.state.ended["B"] == "finished"


def test_a_job_that_fails_for_good_before_its_move_leaves_both_places() -> None:
    hand = Hand(max_attempts=1)
    commands = hand.tell(ev.JobFailed("B", 1, "out of memory"))
    assert {c.node for c in commands if isinstance(c, cmd.ReleaseNode)} == hand.new_nodes
    assert hand.homes("B") == []
    assert "out of memory" in hand.machine.state.ended["B"]


def test_a_job_that_fails_before_its_move_begins_anew_in_its_new_place() -> None:
    hand = Hand()
    for node in hand.new_nodes:
        hand.tell(ev.NodeJoined(node, node.split("-")[0]))
    (launch,) = hand.tell(ev.JobFailed("B", 1, "killed by signal 9"))
    assert isinstance(launch, cmd.Launch)
    assert set(launch.placement.all_nodes) == hand.new_nodes
    assert hand.tell(ev.JobStarted("B", 2)) == ()
    assert hand.homes("B") == ["group-1"]
    assert (hand.b.state, hand.b.target, hand.b.failures) == (Job.RUNNING, None, 1)


def test_a_job_that_fails_before_the_nodes_for_its_move_are_there_waits_for_them() -> None:
    """It was started where it was, and stopped as soon as it was up."""
    hand = Hand()
    assert not any(isinstance(each, cmd.Launch) for each in hand.tell(ev.JobFailed("B", 1, "killed by signal 9")))
    launches = [c for n in sorted(hand.new_nodes) for c in hand.tell(ev.NodeJoined(n, n.split("-")[0]))]
    assert launches == [cmd.Launch("B", 2, Placement(("rollout-2",), ("train-2",)))]
    assert hand.homes("B") == ["group-1"]
    assert hand.b.failures == 1


def test_a_failure_while_it_is_stopped_counts_as_its_end_and_not_against_it() -> None:
    hand = Hand(max_attempts=1)
    is_being_stopped(hand)
    hand.tell(ev.JobFailed("B", 1, "killed by signal 15"))
    assert hand.b.state is Job.PROVISIONING
    assert (hand.b.attempt, hand.b.failures) == (2, 0)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("pool", ["rollout", "train"])
def test_a_lost_node_in_the_new_place_cancels_the_move(stage: Stage, pool: str) -> None:
    hand = Hand()
    stage(hand)
    lost = next(node for node in hand.new_nodes if node.startswith(pool))
    commands = hand.tell(ev.NodeLost(lost))
    assert {c.node for c in commands if isinstance(c, cmd.ReleaseNode)} >= hand.new_nodes
    assert "group-1" not in hand.machine.state.groups
    if stage is is_being_stopped:
        hand.tell(ev.JobStopped("B", 1))
    assert len(hand.homes("B")) == (2 if hand.b.target else 1)
    for node, record in list(hand.machine.state.book.nodes.items()):
        hand.tell(ev.NodeJoined(node, record.pool))
    if stage is waits_for_the_safe_point:
        assert hand.b.attempt == 1
        assert hand.b.state is Job.RUNNING
    else:
        assert hand.b.attempt == 2
        assert hand.b.state is Job.STARTING
        assert lost not in hand.machine.state.book.nodes


@pytest.mark.parametrize("event", [ev.NodeLost, ev.NodeCordoned])
def test_a_relief_whose_new_place_is_lost_or_drained_is_tried_again(event: Callable[[str], ev.Event]) -> None:
    hand = Hand()
    hand.tell(event(min(hand.new_nodes)))
    assert hand.b.target is not None
    assert not set(hand.b.target[1].all_nodes) & hand.new_nodes


@pytest.mark.parametrize("stage", STAGES)
def test_a_job_does_not_move_to_a_node_that_is_drained_before_it_is_there(stage: Stage) -> None:
    hand = Hand()
    stage(hand)
    is_there = hand.b.state is Job.PROVISIONING
    drained = min(hand.new_nodes)
    hand.tell(ev.NodeCordoned(drained))
    for _ in range(3):
        for node, record in list(hand.machine.state.book.nodes.items()):
            hand.tell(ev.NodeJoined(node, record.pool))
        if hand.b.state is Job.STARTING:
            hand.tell(ev.JobStarted("B", hand.b.attempt))
        if hand.b.state is Job.RUNNING and hand.b.target is not None:
            hand.reach_the_safe_point()
        if hand.b.state is Job.STOPPING:
            hand.tell(ev.JobStopped("B", hand.b.attempt))
    assert hand.b.placement is not None
    assert (drained in hand.b.placement.all_nodes) == is_there
    assert hand.homes("B") == [hand.b.group_id]


@pytest.mark.parametrize(
    ("goes", "comes"),
    [
        (ev.NodeCordoned("rollout-1"), ev.NodeUncordoned("rollout-1")),
        (ev.NodeLost("rollout-1"), ev.NodeJoined("rollout-1", "rollout")),
    ],
)
def test_a_relief_for_which_there_is_no_node_is_tried_again_once_there_is_one(goes: ev.Event, comes: ev.Event) -> None:
    machine, now = ClusterMachine(finite(CHEAP, DEAR), RollmuxPolicy(), Rules(compaction=False)), iter(range(1, 99))

    def tell(event: ev.Event) -> None:
        machine.handle(float(next(now)), event)
        check_all(machine.state)

    for number in range(2):
        tell(ev.NodeJoined(f"rollout-{number}", "rollout"))
        tell(ev.NodeJoined(f"train-{number}", "train"))
    for name in "AB":
        tell(ev.JobSubmitted(job(name, iterations=90)))
        tell(ev.JobStarted(name, 1))
        tell(ev.PhaseRequested(name, 1, PhaseKind.ROLLOUT, 0))
    tell(ev.JobProfiled("A", 1, 80.0, 20.0, 0.0))
    tell(goes)
    assert [record.target for record in machine.state.jobs.values()] == [None, None]
    tell(comes)
    (target,) = [record.target for record in machine.state.jobs.values() if record.target is not None]
    assert "rollout-1" in target[1].rollout


@pytest.mark.parametrize("event", [ev.NodeLost, ev.NodeCordoned])
@pytest.mark.parametrize("rooms", [2, 3])
def test_a_job_that_stops_for_a_move_to_which_nothing_comes_is_behind_nobody_in_line(
    rooms: int, event: Callable[[str], ev.Event]
) -> None:
    """Its own place is kept for it until it has another one, whoever waits for one."""
    machine, now = ClusterMachine(finite(CHEAP, DEAR), RollmuxPolicy(), Rules(compaction=False)), iter(range(1, 99))

    def tell(event: ev.Event) -> tuple[cmd.Command, ...]:
        commands = machine.handle(float(next(now)), event)
        check_all(machine.state)
        return commands

    for number in range(rooms):
        tell(ev.NodeJoined(f"rollout-{number}", "rollout"))
        tell(ev.NodeJoined(f"train-{number}", "train"))
    for name in "AB":
        tell(ev.JobSubmitted(job(name, iterations=90)))
        tell(ev.JobStarted(name, 1))
    tell(ev.JobSubmitted(job("first", priority=1, rollout=PhaseSpec(50.0, rooms), slo=1.0, iterations=90)))
    tell(ev.JobProfiled("A", 1, 80.0, 20.0, 0.0))
    (record,) = machine.state.stopping()
    old = record.placement
    assert record.target is not None
    tell(event(record.target[1].rollout[0]))
    (launch, *_) = tell(ev.JobStopped(record.job.id, 1))
    assert isinstance(launch, cmd.Launch)
    assert (launch.placement == old) == (rooms == 2)


def test_a_job_whose_places_both_come_to_nothing_finds_another() -> None:
    hand = Hand()
    lost = min(hand.old_nodes)
    hand.tell(ev.NodeLost(lost))
    hand.tell(ev.NodeJoined(lost, lost.split("-")[0]))
    hand.tell(ev.NodeCordoned(min(hand.new_nodes)))
    hand.tell(ev.JobStopped("B", 1))
    assert hand.b.state in (Job.PROVISIONING, Job.STARTING)
    assert hand.homes("B") == [hand.b.group_id]


@pytest.mark.parametrize("max_group", [2, 3], ids=["no room beside its new place", "room beside its new place"])
def test_a_job_whose_own_node_is_lost_before_its_move_has_one_place_in_the_end(max_group: int) -> None:
    crew = [job(f"job{i}", slo=4.0, iterations=9, cold_start_s=1.0 if i else 1e6) for i in range(2 * max_group)]
    cast = pairs(Checked(max_group=max_group), *crew)
    cast.run(10.0)
    cast.cancel(*(f"job{i}" for i in range(2 * max_group) if i not in (0, max_group)))
    name = f"job{max_group}"
    mover = cast.jobs[name]
    assert mover.placement is not None
    assert [record.target is not None for record in cast.jobs.values()] == [False, True]
    cast.tell(ev.NodeLost(mover.placement.rollout[0]))
    cast.run(60.0)
    assert [record.target for record in cast.jobs.values()] == [None, None]
    assert len(cast.said(cmd.Launch, name)) == mover.attempt == 2
    members = [m.job.id for g in cast.machine.state.groups.values() for m in g.members]
    assert sorted(members) == ["job0", name]
    cast.run(5000.0)
    assert cast.synced(name) == list(range(9))

"""Jobs that change places with each other: when that pays, and what may happen until the last of them has stopped."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux import exchanges, mover
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.exchanges import Candidate, exchange, lifted, patience_s
from rollmux.mux.explain import explain
from rollmux.mux.group import Group
from rollmux.mux.hardware import GB, Cluster, NodeType, Pool, elastic, finite
from rollmux.mux.image import from_json, image, restore, to_json
from rollmux.mux.invariants import check_all
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec
from rollmux.mux.job_record import JobRecord
from rollmux.mux.moves import Movable, Moves
from rollmux.mux.node_book import NodeState
from rollmux.mux.order import Order
from rollmux.mux.placed import Member, Placement
from rollmux.mux.plan import Plan, Strategy
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.transitions import Job
from rollmux.mux.weave import Timing
from rollmux.sim.cast import Cast, Delays
from tests.thorough import examples

# A rollout node costs $1 an hour, a training node $3.
CHEAP = NodeType("cheap", 8, 1.0 / 8, 96 * GB, 1000 * GB)
DEAR = NodeType("dear", 8, 3.0 / 8, 80 * GB, 1000 * GB)
CLUSTER, FINITE = elastic(CHEAP, DEAR), finite(CHEAP, DEAR)
ROLLOUT, TRAIN, SYNC = PhaseKind.ROLLOUT, PhaseKind.TRAIN, PhaseKind.SYNC
PAIRS = RollmuxPolicy(max_group=2)


def rolls(name: str, **more: Any) -> JobSpec:
    """Rolls out for 90 s and trains for 10."""
    given: dict[str, Any] = {"rollout": PhaseSpec(90.0, 1), "train": PhaseSpec(10.0, 1), "slo": 2.0, **more}
    return JobSpec(id=name, **{"iterations": 900, **given})


def trains(name: str, **more: Any) -> JobSpec:
    """Rolls out for 10 s and trains for 90: beside `rolls` nobody waits, beside its like an iteration takes 180 s."""
    return rolls(name, **{"rollout": PhaseSpec(10.0, 1), "train": PhaseSpec(90.0, 1), **more})


# -- which exchange --------------------------------------------------------------------------------------------------


def at_home(group: int, spec: JobSpec) -> Member:
    return Member.of(spec, Placement((f"r{group}",), (f"t{group}",)))


def ill_matched(*specs: JobSpec) -> Snapshot:
    """Two groups of two jobs that wait for each other; nobody else fits in."""
    crew = specs or (rolls("A"), rolls("B"), trains("C"), trains("D"))
    groups = [
        Group(f"g{i}", tuple(at_home(i, spec) for spec in crew[2 * i : 2 * i + 2]), Order.URGENCY) for i in range(2)
    ]
    return Snapshot(CLUSTER, {group.id: group for group in groups}, rented={"rollout": 2, "train": 2}, next_node=9)


def able(snapshot: Snapshot, **more: Any) -> dict[str, Candidate]:
    """Everyone may take part."""
    known: dict[str, Any] = {
        "remaining_s": 1e6,
        "lost_s": 350.0,
        "limit_s": 190.0,
        "left": 800,
        "pace_s": 180.0,
        **more,
    }
    return {
        member.job.id: Candidate(group.id, Movable(member.job, **known))
        for group in snapshot.groups.values()
        for member in group.members
    }


def found(snapshot: Snapshot, policy: RollmuxPolicy = PAIRS, horizon_s: float = 7200.0, **more: Any) -> Moves | None:
    return exchange(snapshot.groups, snapshot, able(snapshot, **more), policy, horizon_s)


def test_two_jobs_change_places_where_neither_could_move_by_itself() -> None:
    moves = found(ill_matched())
    assert moves is not None
    homes = {plan.job_id: plan.group.id for plan in moves.plans}
    assert sorted(homes) in (["A", "C"], ["A", "D"], ["B", "C"], ["B", "D"])
    assert {homes[name] for name in homes if name in "AB"} == {"g1"}
    assert {homes[name] for name in homes if name in "CD"} == {"g0"}
    # Each job goes at its own speed instead of five ninths of it. Their work is worth 1.2 × (0.9 × $1 + 0.1 × $3) and
    # 1.2 × (0.1 × $1 + 0.9 × $3) an hour.
    assert moves.saved_usd_per_hour == pytest.approx(2 * (1.44 + 3.36) * 4 / 9)
    # Two of them lose 350 s, and half the 180 s that they may have to wait for each other.
    assert moves.cost_usd == pytest.approx((1.44 + 3.36) * 440 / 3600)
    assert moves.gain_usd == pytest.approx(2 * moves.saved_usd_per_hour - moves.cost_usd)


@pytest.mark.parametrize(
    "more",
    [
        {"horizon_s": 400.0},
        {"remaining_s": 400.0},
        {"lost_s": 40_000.0},
        {"limit_s": 101.0, "left": 100},
    ],
    ids=["trusted for too short", "nearly done", "too dear", "no time to wait"],
)
def test_nobody_changes_places_where_that_does_not_pay_or_an_slo_forbids_it(more: dict[str, Any]) -> None:
    assert found(ill_matched(), **more) is None


def test_who_is_well_matched_stays() -> None:
    assert found(ill_matched(rolls("A"), trains("B"), rolls("C"), trains("D"))) is None


def test_those_of_a_crew_who_are_at_their_ends_are_not_moved_without_the_others() -> None:
    """On a trace of jobs that end by the clock the others of a crew may as well have stayed."""
    snapshot = ill_matched()
    assert exchanges._tried(("A", "C"), snapshot, able(snapshot, remaining_s=0.0), PAIRS, 7200.0, 0.0) is None


def test_only_exchanges_near_what_has_changed_are_looked_for() -> None:
    snapshot = ill_matched()
    assert exchange([], snapshot, able(snapshot), PAIRS, 7200.0) is None
    assert exchange(["g1"], snapshot, able(snapshot), PAIRS, 7200.0) is not None


def test_a_job_of_unknown_length_may_change_places_too() -> None:
    crew = [rolls("A"), rolls("B"), trains("C"), trains("D")]
    snapshot = ill_matched(*(replace(spec, iterations=None) for spec in crew))
    assert found(snapshot, limit_s=None, left=None) is not None


def test_tenants_of_a_node_are_placed_anew_together_inside_their_group() -> None:
    """Three training nodes, three jobs on one of them: what no two of them could better, all three can."""
    spread = [trains(name) for name in "XYZ"]
    crowd = [
        Member.of(spec, Placement(("r0",), ("t0",))) for spec in (rolls("A", slo=4.0), rolls("B", slo=4.0), *spread[:1])
    ]
    rest = [Member.of(spec, Placement((f"r{i}",), (f"t{i}",))) for i, spec in enumerate(spread[1:], 1)]
    group = Group("g0", (*crowd, *rest), Order.URGENCY)
    snapshot = Snapshot(CLUSTER, {"g0": group}, rented={"rollout": 3, "train": 3}, next_node=9)
    moves = found(snapshot, RollmuxPolicy(max_group=8), limit_s=380.0)
    assert moves is not None
    assert {plan.group.id for plan in moves.plans} == {"g0"}
    assert moves.saved_usd_per_hour > 0


def test_an_exchange_takes_no_nodes_but_those_that_it_frees() -> None:
    snapshot = ill_matched()
    moves = found(snapshot, RollmuxPolicy(max_group=8))
    assert moves is not None
    used = {node for plan in moves.plans for node in plan.placement.all_nodes}
    assert used <= {"r0", "t0", "r1", "t1"}


def test_nodes_that_are_left_may_be_used_by_whoever_is_placed_anew_but_for_those_out_of_service() -> None:
    snapshot = replace(ill_matched(), shunned=frozenset({"t1"}))
    after = lifted(snapshot, [("g0", "A"), ("g1", "C"), ("g1", "D")])
    assert list(after.groups) == ["g0"]
    assert [member.job.id for member in after.groups["g0"].members] == ["B"]
    assert after.idle == {"rollout": ("r1",), "train": ()}


def test_the_slowest_of_a_crew_says_how_long_the_others_wait_for_it() -> None:
    crew = [candidate.movable for candidate in able(ill_matched()).values()]
    assert patience_s([*crew, crew[0]._replace(pace_s=200.0)]) == 300.0


# -- how it comes about ----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few jobs are enough."""
    monkeypatch.setattr(mover, "MANY", 4)


class Hand:
    """A machine driven event by event, every invariant checked after each.

    A and B share group-0, each with a rollout node of its own; C and D share the nodes of group-1. C and D are busy
    when A starts: A is to go to C's place and C to B's, so that a node is free. Nothing else moves.
    """

    def __init__(
        self, cluster: Cluster = CLUSTER, rules: Rules | None = None, starts_after_s: float = 1.0, **more: Any
    ) -> None:
        self.cluster, self.rules = cluster, rules or Rules()
        self.machine = ClusterMachine(cluster, PAIRS, self.rules)
        self.now = 0.0
        self.sent: list[tuple[float, ev.Event, tuple[cmd.Command, ...]]] = []
        if not cluster.rollout.on_demand:
            for i in range(3):
                self.tell(ev.NodeJoined(f"r{i}", "rollout"))
                self.tell(ev.NodeJoined(f"t{i}", "train"))
        for spec in (rolls("A", **more), rolls("B", **more), trains("C", **more), trains("D", **more)):
            self.tell(ev.JobSubmitted(spec))
            self.nodes_come()
        for name in "CD":
            self.tell(ev.JobStarted(name, 1), starts_after_s)
        for name in "CD":
            self.begin(name)
        self.agreed = self.tell(ev.JobStarted("A", 1))
        self.calm_after = len(self.sent)
        self.machine.state.rules = replace(self.rules, compaction=False)
        self.tell(ev.JobStarted("B", 1))

    @property
    def crew(self) -> list[str]:
        return list(self.machine.state.swaps)

    def record(self, job_id: str) -> JobRecord:
        return self.machine.state.jobs[job_id]

    def tell(self, event: ev.Event, after_s: float = 1.0) -> tuple[cmd.Command, ...]:
        self.now += after_s
        commands = self.machine.handle(self.now, event)
        self.sent.append((self.now, event, commands))
        check_all(self.machine.state)
        assert not self.machine.state.alarms
        return commands

    def nodes_come(self) -> None:
        for node, known in list(self.machine.state.book.nodes.items()):
            if known.state is NodeState.COMING:
                self.tell(ev.NodeJoined(node, known.pool))

    def begin(self, job_id: str) -> None:
        record = self.record(job_id)
        self.tell(ev.PhaseRequested(job_id, record.attempt, ROLLOUT, record.progress.rolled))

    def reach_the_safe_point(self, job_id: str) -> tuple[cmd.Command, ...]:
        """Whatever the job is doing, it ends its iteration; others make way for it."""
        commands: tuple[cmd.Command, ...] = ()
        record = self.record(job_id)
        iteration = record.progress.synced
        for kind in (ROLLOUT, TRAIN, SYNC):
            if record.state is not Job.RUNNING:
                break
            lane = self.machine.state.seat(record).lanes[kind]
            if lane.iteration != iteration:
                self.tell(ev.PhaseRequested(job_id, record.attempt, kind, iteration))
            for other in list(self.machine.state.weaves[record.group_id].leases.values()):
                if not lane.holding and set(other.held) & set(lane.nodes):
                    self.tell(ev.PhaseFailed(other.seat.job.id, other.epoch, "makes way"))
            commands = self.tell(ev.PhaseFinished(job_id, lane.epoch))
        return commands

    def stop(self, job_id: str) -> tuple[cmd.Command, ...]:
        """The job reaches its safe point, and is gone."""
        if self.record(job_id).state is Job.RUNNING:
            self.reach_the_safe_point(job_id)
        assert self.record(job_id).state is Job.STOPPING
        return self.tell(ev.JobStopped(job_id, self.record(job_id).attempt))

    def homes(self) -> dict[str, list[str]]:
        groups = self.machine.state.groups.values()
        return {group.id: sorted(member.job.id for member in group.members) for group in groups}

    def restarted(self) -> None:
        """The controller goes on from its image."""
        saved = image(self.machine)
        again = from_json(json.loads(json.dumps(to_json(saved), allow_nan=False)))
        assert again == saved
        self.machine = restore(again, self.cluster, PAIRS, self.machine.state.rules)
        assert image(self.machine) == saved

    def replayed(self) -> None:
        """I10, I11: the same events give the same commands and the same state."""
        again = ClusterMachine(self.cluster, PAIRS, self.rules)
        for number, (now, event, commands) in enumerate(self.sent):
            if number == self.calm_after:
                again.state.rules = self.machine.state.rules
            assert again.handle(now, event) == commands
        assert image(again) == image(self.machine)


def launched(commands: tuple[cmd.Command, ...]) -> dict[str, Placement]:
    return {command.job_id: command.placement for command in commands if isinstance(command, cmd.Launch)}


def stopped(commands: tuple[cmd.Command, ...]) -> list[str]:
    return [command.job_id for command in commands if isinstance(command, cmd.Stop)]


APART = {"group-0": ["A", "B"], "group-1": ["C", "D"]}


def test_each_stops_at_its_safe_point_and_waits_for_the_other_and_both_begin_anew_at_once() -> None:
    hand = Hand()
    homes = {name: hand.record(name).placement for name in "ABCD"}
    assert hand.crew == ["A", "C"]
    assert stopped(hand.agreed) == ["A"]
    assert stopped(hand.reach_the_safe_point("C")) == ["C"]
    hand.tell(ev.JobStopped("A", 1))
    assert hand.record("A").state is Job.PROVISIONING
    assert hand.homes() == APART
    began = hand.tell(ev.JobStopped("C", 1))
    assert launched(began) == {"A": homes["C"], "C": homes["B"]}
    assert [command.node for command in began if isinstance(command, cmd.ReleaseNode)] == ["rollout-0"]
    assert not any(isinstance(command, cmd.Provision) for command in began)
    assert hand.homes() == {"group-0": ["B", "C"], "group-1": ["A", "D"]}
    assert not hand.crew
    for name in "AC":
        assert hand.record(name).attempt == 2
        hand.tell(ev.JobStarted(name, 2))
        assert hand.machine.state.seat(hand.record(name)).placement == hand.record(name).placement
    hand.replayed()


def test_the_owner_hears_why_its_job_is_stopped() -> None:
    (stop,) = [command for command in Hand().agreed if isinstance(command, cmd.Stop)]
    assert stop.reason == "moves to group-1: an exchange of places saves more than it costs"


def test_meanwhile_nobody_joins_the_groups_and_nobody_else_moves() -> None:
    hand = Hand()
    hand.machine.state.rules = hand.rules
    agreed = dict(hand.machine.state.swaps)
    hand.tell(ev.JobSubmitted(rolls("E")))
    hand.nodes_come()
    hand.tell(ev.JobStarted("E", 1))
    assert hand.homes() == {**APART, "group-2": ["E"]}
    assert hand.machine.state.swaps == agreed


def test_the_name_of_a_group_that_an_exchange_will_open_is_given_to_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def into_a_new_group(
        near: object, snapshot: Snapshot, able: Mapping[str, Candidate], policy: RollmuxPolicy, horizon_s: float
    ) -> Moves | None:
        """C and D leave, begin anew beside each other, and nothing but the name is other than before."""
        if "A" not in able:
            return None
        old = snapshot.groups["group-1"]
        group, new = Group(f"group-{snapshot.next_group}", (), old.order), dict.fromkeys(old.nodes)
        plans = []
        for name in "CD":
            group = group.joined_by(old.member(name))
            nodes = tuple((pool.name, node) for pool, nodes in snapshot.by_pool(old) for node in nodes if node in new)
            plans.append(Plan(name, Strategy.ISOLATED, group, nodes, 0.0))
            new = {}
        return Moves(tuple(plans), 1.0, 0.0, 1.0)

    monkeypatch.setattr(mover, "exchange", into_a_new_group)
    hand = Hand()
    assert hand.crew == ["C", "D"]
    hand.tell(ev.JobSubmitted(rolls("E")))
    for name in "CD":
        hand.stop(name)
    assert hand.homes() == {"group-0": ["A", "B"], "group-2": ["C", "D"], "group-3": ["E"]}


def test_a_job_that_has_changed_places_stays_until_that_has_paid_for_itself() -> None:
    hand = Hand()
    crew = hand.crew
    for name in crew:
        hand.stop(name)
    for name in crew:
        hand.tell(ev.JobStarted(name, 2))
    assert all(hand.record(name).settled_until > hand.now for name in crew)
    assert not hand.crew


def test_a_cluster_of_few_jobs_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "MANY", 5)
    assert not Hand().crew


def ends_in_a_failure(hand: Hand) -> None:
    one, other = hand.crew
    hand.stop(one)
    hand.tell(ev.JobFailed(other, 1, "killed by signal 9"))


def takes_too_long(hand: Hand) -> None:
    hand.tell(ev.Tick(), hand.machine.state.swaps_until - hand.now)


@pytest.mark.parametrize("what", [ends_in_a_failure, takes_too_long])
def test_who_waits_for_the_end_of_an_exchange_is_let_in_once_it_is_called_off(what: Callable[[Hand], None]) -> None:
    hand = Hand(FINITE)
    hand.machine.state.policy = RollmuxPolicy(max_group=3)
    hand.tell(ev.JobSubmitted(rolls("E", rollout=PhaseSpec(1.0, 1), train=PhaseSpec(1.0, 1), slo=900.0)))
    assert hand.record("E").state is Job.QUEUED
    assert "jobs are to change places" in explain(hand.machine.state.decisions["E"])
    what(hand)
    assert not hand.crew
    assert hand.record("E").state is Job.STARTING


@pytest.mark.parametrize("rules", [Rules(compaction=False), Rules(exchange_horizon_s=400.0)], ids=["off", "short"])
def test_an_operator_may_do_without(rules: Rules) -> None:
    assert not Hand(rules=rules).crew


# -- what may come between -------------------------------------------------------------------------------------------

Stage = Callable[[Hand], None]


def nobody_has_stopped(hand: Hand) -> None:
    assert all(hand.record(name).state is not Job.PROVISIONING for name in hand.crew)


def one_is_being_stopped(hand: Hand) -> None:
    name = hand.crew[0]
    if hand.record(name).state is Job.RUNNING:
        hand.reach_the_safe_point(name)


def one_waits_for_the_other(hand: Hand) -> None:
    hand.stop(hand.crew[0])


STAGES: list[Stage] = [nobody_has_stopped, one_is_being_stopped, one_waits_for_the_other]


def everyone_comes_back(hand: Hand, *but: str) -> None:
    """The exchange is called off, and everyone else runs where it was."""
    assert not hand.crew
    for name in sorted({"A", "B", "C", "D"} - set(but)):
        record = hand.record(name)
        if record.state is Job.STOPPING:
            hand.tell(ev.JobStopped(name, record.attempt))
        if record.state is Job.STARTING:
            hand.tell(ev.JobStarted(name, record.attempt))
        assert record.state is Job.RUNNING
        assert name in APART[record.group_id]
        assert not record.moving_because
    hand.replayed()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("stage", STAGES)
def test_a_cancelled_job_changes_places_with_nobody(stage: Stage, which: int) -> None:
    hand = Hand()
    stage(hand)
    name = hand.crew[which]
    hand.tell(ev.JobCancelled(name))
    if name in hand.machine.state.jobs:
        hand.tell(ev.JobStopped(name, hand.record(name).attempt))
    assert name not in hand.machine.state.jobs
    everyone_comes_back(hand, name)


def test_nobody_is_stopped_to_change_places_with_a_job_that_is_cancelled() -> None:
    hand = Hand()
    one, other = hand.crew
    hand.tell(ev.JobCancelled(one))
    assert not stopped(hand.reach_the_safe_point(other))
    hand.tell(ev.JobStopped(one, 1))
    everyone_comes_back(hand, one)


def test_nobody_waits_to_change_places_with_a_job_that_is_cancelled() -> None:
    hand = Hand()
    one, other = hand.crew
    hand.stop(one)
    assert one in launched(hand.tell(ev.JobCancelled(other)))


def test_nobody_waits_to_change_places_with_a_job_that_is_to_be_restarted() -> None:
    """Nothing is heard of its training; its next rollout is alive, and is stopped before its nodes go to others."""
    hand = Hand(rules=Rules(timing=Timing(lease_s=40.0, drain_s=10.0)), staleness=1)
    one, other = hand.crew
    rollout, training = (hand.machine.state.seat(hand.record(other)).lanes[kind] for kind in (ROLLOUT, TRAIN))
    hand.tell(ev.PhaseFinished(other, rollout.epoch))
    hand.tell(ev.PhaseRequested(other, 1, TRAIN, 0))
    hand.begin(other)
    hand.stop(one)
    hand.tell(ev.Heartbeat(other, rollout.epoch))
    hand.tell(ev.Tick(), training.deadline - hand.now)
    assert hand.crew
    began = hand.tell(ev.Tick(), training.deadline - hand.now)
    assert other in stopped(began)
    assert one in launched(began)
    everyone_comes_back(hand)


@pytest.mark.parametrize("stage", STAGES[:2])
def test_a_job_that_finishes_changes_places_with_nobody(stage: Stage) -> None:
    hand = Hand()
    stage(hand)
    name = hand.crew[0]
    hand.tell(ev.JobFinished(name, 1))
    everyone_comes_back(hand, name)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_job_that_fails_before_it_has_stopped_calls_the_exchange_off(which: int, attempts: int) -> None:
    hand = Hand(max_attempts=attempts)
    name = hand.crew[which]
    if hand.record(name).state is Job.STOPPING:
        name = hand.crew[1 - which]
    hand.stop(next(other for other in hand.crew if other != name))
    hand.tell(ev.JobFailed(name, 1, "killed by signal 9"))
    everyone_comes_back(hand, *([name] if attempts == 1 else []))


def test_a_failure_while_it_is_stopped_is_as_good_as_having_stopped() -> None:
    hand = Hand()
    one, other = hand.crew
    hand.stop(one)
    if hand.record(other).state is Job.RUNNING:
        hand.reach_the_safe_point(other)
    began = hand.tell(ev.JobFailed(other, 1, "killed by signal 9"))
    assert set(launched(began)) == {one, other}
    assert hand.record(other).failures == 0


@pytest.mark.parametrize("node", ["rollout-0", "train-0", "rollout-1", "train-1"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_lost_node_calls_the_exchange_off_and_everyone_there_goes_elsewhere(stage: Stage, node: str) -> None:
    hand = Hand()
    (node,) = [name for name in hand.machine.state.book.nodes if _place_in_order(hand, name) == node]
    stage(hand)
    hand.tell(ev.NodeLost(node))
    assert not hand.crew
    for _ in range(3):
        for record in list(hand.machine.state.jobs.values()):
            if record.state is Job.STOPPING:
                hand.tell(ev.JobStopped(record.job.id, record.attempt))
        hand.nodes_come()
        for record in list(hand.machine.state.jobs.values()):
            if record.state is Job.STARTING:
                hand.tell(ev.JobStarted(record.job.id, record.attempt))
    assert all(node not in group.nodes for group in hand.machine.state.groups.values())
    hand.replayed()


def goals(hand: Hand) -> set[str]:
    """The nodes to which somebody is to go."""
    return {node for swap in hand.machine.state.swaps.values() for node in swap.member.placement.all_nodes}


@pytest.mark.parametrize("which", [0, 1, 2, 3])
@pytest.mark.parametrize("stage", STAGES)
def test_nobody_goes_to_a_node_that_is_drained_meanwhile(stage: Stage, which: int) -> None:
    hand = Hand()
    stage(hand)
    hand.tell(ev.NodeCordoned(sorted(goals(hand))[which]))
    everyone_comes_back(hand)


def test_a_drained_node_to_which_nobody_goes_calls_nothing_off() -> None:
    hand = Hand()
    (node,) = hand.machine.state.book.nodes.keys() - goals(hand)
    hand.tell(ev.NodeCordoned(node))
    assert hand.crew
    for name in hand.crew:
        hand.stop(name)
    assert hand.homes() == {"group-0": ["B", "C"], "group-1": ["A", "D"]}
    hand.replayed()


def _place_in_order(hand: Hand, node: str) -> str:
    """The node's pool, and its number there."""
    pool = hand.machine.state.book.nodes[node].pool
    same = [name for name, known in hand.machine.state.book.nodes.items() if known.pool == pool]
    return f"{pool}-{same.index(node)}"


@pytest.mark.parametrize("stage", STAGES)
def test_whoever_keeps_the_others_waiting_for_longer_than_was_reckoned_goes_alone(stage: Stage) -> None:
    hand = Hand()
    stage(hand)
    until = hand.machine.state.swaps_until
    assert hand.machine.next_wake() <= until  # type: ignore[operator]
    hand.tell(ev.Tick(), until - hand.now)
    everyone_comes_back(hand)


def test_a_stopped_job_that_says_nothing_is_taken_for_gone() -> None:
    hand = Hand()
    for name in hand.crew:
        if hand.record(name).state is Job.RUNNING:
            hand.reach_the_safe_point(name)
    crew = hand.crew
    began = hand.tell(ev.Tick(), 10.0)
    assert set(launched(began)) == set(crew)
    assert not hand.crew


@pytest.mark.parametrize("stage", STAGES)
def test_the_controller_may_restart_at_any_stage(stage: Stage) -> None:
    hand = Hand()
    stage(hand)
    hand.restarted()
    crew = hand.crew
    for name in crew:
        if hand.record(name).state is not Job.PROVISIONING:
            hand.stop(name)
    assert not hand.crew
    assert all(hand.record(name).state is Job.STARTING for name in crew)
    hand.replayed()


def test_what_was_learned_of_a_job_meanwhile_is_kept_where_it_goes() -> None:
    hand = Hand()
    one, other = hand.crew
    hand.stop(one)
    spec = hand.record(other).job
    hand.tell(ev.JobProfiled(other, 1, spec.rollout.duration_s * 0.9, spec.train.duration_s * 0.9, 0.0))
    hand.stop(other)
    assert not hand.crew
    member = hand.machine.state.groups[hand.record(other).group_id].member(other)
    assert member.job.solo_s == pytest.approx(90.0)


@pytest.mark.parametrize("speed", [0.5, 0.9, 1.02])
def test_a_job_of_unknown_length_goes_by_the_slo_of_what_it_was_measured_to_take_meanwhile(speed: float) -> None:
    hand = Hand(starts_after_s=10_000.0, iterations=None)
    one, other = hand.crew
    hand.stop(one)
    spec = hand.record(other).job
    hand.tell(ev.JobProfiled(other, 1, spec.rollout.duration_s * speed, spec.train.duration_s * speed, 0.0))
    began = hand.stop(other)
    assert set(launched(began)) == {one, other}
    assert hand.record(other).group_id != next(home for home, names in APART.items() if other in names)
    member = hand.machine.state.groups[hand.record(other).group_id].member(other)
    assert member.limit_s == pytest.approx(spec.slo * 100.0 * speed)


def test_an_exchange_that_would_break_a_promise_when_all_have_stopped_is_not_made() -> None:
    """A third job turns out to need all of the time of a node."""
    hand = Hand()
    one, other = hand.crew
    hand.stop(one)
    stays = next(name for name in "ABCD" if name not in (one, other) and name not in APART[hand.record(one).group_id])
    hand.tell(ev.JobProfiled(stays, 1, 100.0, 100.0, 0.0))
    if other in hand.crew:
        hand.stop(other)
    assert not hand.crew
    assert all(hand.record(name).state is not Job.PROVISIONING for name in (one, other))


def test_machines_that_stay_are_exchanged_as_well() -> None:
    hand = Hand(FINITE)
    crew = hand.crew
    assert hand.machine.state.book.idle == {"rollout": (), "train": ("t2",)}
    for name in crew:
        hand.stop(name)
    assert hand.machine.state.book.idle == {"rollout": ("r0",), "train": ("t2",)}
    assert all(hand.record(name).state is Job.STARTING for name in crew)


# -- whatever happens ------------------------------------------------------------------------------------------------


@st.composite
def crews(draw: st.DrawFn) -> list[tuple[float, JobSpec]]:
    """Four who are ill matched at first, and others who come later."""
    makes = [rolls, rolls, trains, trains, *draw(st.lists(st.sampled_from([rolls, trains]), max_size=2))]
    return [
        (
            0.0 if i < 4 else draw(st.sampled_from([20.0, 130.0])),
            make(f"job{i}", iterations=draw(st.integers(12, 20)), cold_start_s=1.0, max_attempts=1000),
        )
        for i, make in enumerate(makes)
    ]


class Shaken(Cast):
    """Every invariant holds after each event, whatever breaks."""

    exchanges = 0

    def tell(self, event: ev.Event) -> None:
        before = set(self.machine.state.swaps)
        super().tell(event)
        check_all(self.machine.state)
        assert not self.machine.state.alarms
        Shaken.exchanges += bool(set(self.machine.state.swaps) - before)

    def shake(self, what: str, pick: int) -> None:
        state = self.machine.state
        if what == "lose" and state.book.nodes:
            self.lose(sorted(state.book.nodes)[pick % len(state.book.nodes)])
        running = sorted(name for name, record in state.jobs.items() if record.state is Job.RUNNING)
        crew = [name for name in state.swaps if name in running] or running
        if what == "fail" and crew:
            self.fail(crew[pick % len(crew)], "killed by signal 9")
        if what == "cancel" and state.jobs:
            names = [*state.swaps] or sorted(state.jobs)
            self.dismiss(self.now, names[pick % len(names)])
        if what == "tick":
            self.tell(ev.Tick())


FAULTS = st.tuples(st.floats(20, 300), st.sampled_from(["lose", "fail", "cancel", "tick"]), st.integers(0, 99))


@pytest.mark.no_cover
@given(crew=crews(), faults=st.lists(FAULTS, max_size=4))
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck), deadline=None)
def test_whatever_happens_all_work_is_done_once(
    crew: list[tuple[float, JobSpec]], faults: list[tuple[float, str, int]]
) -> None:
    cast = Shaken(ClusterMachine(CLUSTER, PAIRS, Rules(move_s=1.0)), Delays(launch_s=25.0))
    for at, spec in crew:
        cast.submit(at, spec)
    for at, what, pick in faults:
        cast.at(at, lambda what=what, pick=pick: cast.shake(what, pick))  # type: ignore[misc]
    cast.run()
    assert not cast.machine.state.jobs
    assert not cast.machine.state.swaps
    assert not cast.machine.state.book.nodes
    dismissed = {spec.id for _, spec in crew if len(cast.completed[spec.id]) < (spec.iterations or 0)}
    assert len(dismissed) <= sum(what == "cancel" for _, what, _ in faults)


def test_such_histories_have_exchanges() -> None:
    Shaken.exchanges = 0
    cast = Shaken(ClusterMachine(CLUSTER, PAIRS, Rules(move_s=1.0)), Delays(launch_s=25.0))
    for i, make in enumerate([rolls, rolls, trains, trains]):
        cast.submit(0.0, make(f"job{i}", iterations=20, cold_start_s=1.0))
    cast.run()
    assert Shaken.exchanges == 1
    assert all(len(done) == 20 for done in cast.completed.values())


def test_a_shared_pool_may_be_exchanged_in_too() -> None:
    pool = Pool("all", DEAR)
    snapshot = replace(ill_matched(), cluster=Cluster(pool, pool), rented={"all": 4})
    after = lifted(snapshot, [("g0", "A"), ("g0", "B")])
    assert after.idle == {"all": ("r0", "t0")}

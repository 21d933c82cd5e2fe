"""Each numbered check sees the breach that it is there for: a sound machine is broken by hand, in one place."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from rollmux.errors import InvariantViolated
from rollmux.mux import ClusterMachine, Group, JobSpec, Order, PhaseSpec, RollmuxPolicy
from rollmux.mux import events as ev
from rollmux.mux.cluster_state import Checks, ClusterState, Rules
from rollmux.mux.exchanges import Swap
from rollmux.mux.hardware import PAPER_CLUSTER, PAPER_ROLLOUT, PAPER_TRAIN, finite
from rollmux.mux.invariants import check_all
from rollmux.mux.job import PhaseKind
from rollmux.mux.node_book import NodeRecord, NodeState
from rollmux.mux.seat import Lane
from rollmux.mux.transitions import Job, Phase
from rollmux.sim.cast import Cast

ROLLOUT, TRAIN = PhaseKind.ROLLOUT, PhaseKind.TRAIN


def busy(order: Order = Order.FIFO, checks: Checks = Checks.ALL) -> ClusterMachine:
    """Two jobs share a pair of nodes: a rolls out, b waits for the same node."""
    machine = ClusterMachine(PAPER_CLUSTER, RollmuxPolicy(order=order), Rules(checks=checks))
    cast = Cast(machine)
    for name in "ab":
        cast.submit(0.0, JobSpec(name, PhaseSpec(100.0, 1), PhaseSpec(90.0, 1), slo=2.0))
    cast.run(until=1.0)
    check_all(machine.state)
    return machine


def lane(state: ClusterState, job_id: str, kind: PhaseKind = ROLLOUT) -> Lane:
    return state.weaves["group-0"].seats[job_id].lanes[kind]


def hold_twice(state: ClusterState) -> None:
    train = lane(state, "b", TRAIN)
    train.state, train.held, train.epoch = Phase.RUNNING, lane(state, "a").held, 77


def forget_holding(state: ClusterState) -> None:
    lane(state, "a").held = ()


def idle_but_holding(state: ClusterState) -> None:
    lane(state, "b", TRAIN).held = ("train-0",)


def share_a_node(state: ClusterState) -> None:
    state.groups["group-9"] = replace(state.groups["group-0"], id="group-9")
    state.weaves["group-9"] = type(state.weaves["group-0"])(Order.FIFO, state.ledger, state.rules.timing)


def lose_count(state: ClusterState) -> None:
    state.book.rented["rollout"] += 1


def keep_an_idle_node(state: ClusterState) -> None:
    state.book.nodes["rollout-99"] = NodeRecord("rollout", NodeState.READY)
    state.book.rented["rollout"] += 1


def register_another_owner(state: ClusterState) -> None:
    state.book.nodes["rollout-0"].group_id = "group-9"


def overfill(state: ClusterState) -> None:
    group = state.groups["group-0"]
    job = replace(group.members[0].job, rollout=replace(group.members[0].job.rollout, resident_bytes=10**13))
    state.groups["group-0"] = Group(group.id, (replace(group.members[0], job=job), *group.members[1:]), group.order)


def overtake(state: ClusterState) -> None:
    lane(state, "a").asked = lane(state, "b").asked + 1


def leave_the_line(state: ClusterState) -> None:
    state.weaves["group-0"].turns.queues["rollout-0"].clear()


def train_before_rolling(state: ClusterState) -> None:
    state.jobs["a"].progress.trained = 1


def roll_the_wrong_iteration(state: ClusterState) -> None:
    lane(state, "a").iteration = 5


def wait_for_the_wrong_iteration(state: ClusterState) -> None:
    lane(state, "b").iteration = 5


def two_leases(state: ClusterState) -> None:
    state.weaves["group-0"].leases[99] = lane(state, "a")


def never_issued(state: ClusterState) -> None:
    state.ledger.epoch = 0


def miss_an_slo(state: ClusterState) -> None:
    group = state.groups["group-0"]
    state.groups["group-0"] = Group(group.id, tuple(replace(m, limit_s=191.0) for m in group.members), group.order)


def strand(state: ClusterState) -> None:
    holder = lane(state, "a")
    state.weaves["group-0"].leases.pop(holder.epoch)
    state.weaves["group-0"].turns.holders["rollout-0"] = None
    holder.state, holder.held = Phase.IDLE, ()


def swap_with_nobody(state: ClusterState) -> None:
    group = state.groups["group-0"]
    state.swaps["c"] = Swap(group.id, group.members[0], group.order, 0.0)
    state.swaps_until = 9.0


def swap_for_ever(state: ClusterState) -> None:
    group = state.groups["group-0"]
    state.swaps["a"] = Swap(group.id, group.members[0], group.order, 0.0)


def queue_twice(state: ClusterState) -> None:
    state.backlog += ["a", "a"]


def drain_for_ever(state: ClusterState) -> None:
    lane(state, "a").state, lane(state, "a").deadline = Phase.FENCED, inf


def stop_unseen(state: ClusterState) -> None:
    state.jobs["a"].state = Job.STOPPING


def remember_too_much(state: ClusterState) -> None:
    state.ended = {str(i): "finished" for i in range(state.rules.ended_limit + 1)}


def run_without_a_seat(state: ClusterState) -> None:
    state.jobs["a"].attempt = 2


BREACHES: list[tuple[str, Callable[[ClusterState], None]]] = [
    ("I1", hold_twice),
    ("I1", forget_holding),
    ("I1", idle_but_holding),
    ("I1", share_a_node),
    ("I2", lose_count),
    ("I2", keep_an_idle_node),
    ("I2", register_another_owner),
    ("I3", overfill),
    ("I4", overtake),
    ("I4", leave_the_line),
    ("I5", train_before_rolling),
    ("I5", roll_the_wrong_iteration),
    ("I5", wait_for_the_wrong_iteration),
    ("I7", two_leases),
    ("I7", never_issued),
    ("I7", run_without_a_seat),
    ("I9", miss_an_slo),
    ("L1", strand),
    ("L1", swap_with_nobody),
    ("L1", queue_twice),
    ("L2", swap_for_ever),
    ("L2", drain_for_ever),
    ("L2", stop_unseen),
    ("L3", remember_too_much),
]


@pytest.mark.parametrize(("number", "breach"), BREACHES, ids=[breach.__name__ for _, breach in BREACHES])
def test_a_breach_is_seen_under_its_number(number: str, breach: Callable[[ClusterState], None]) -> None:
    machine = busy()
    breach(machine.state)
    with pytest.raises(InvariantViolated) as broken:
        check_all(machine.state)
    assert broken.value.number == number


def test_under_strict_round_robin_a_turn_taken_too_early_is_seen() -> None:
    machine = busy(Order.ROUND_ROBIN)
    lane(machine.state, "a").rounds = 7
    with pytest.raises(InvariantViolated, match="I4"):
        check_all(machine.state)


def test_idle_nodes_of_a_fixed_pool_are_counted() -> None:
    machine = ClusterMachine(finite(PAPER_ROLLOUT, PAPER_TRAIN), RollmuxPolicy())
    machine.handle(0.0, ev.NodeJoined("r0", "rollout"))
    machine.handle(0.0, ev.NodeJoined("r1", "rollout"))
    machine.handle(0.0, ev.NodeLost("r1"))
    check_all(machine.state)
    machine.state.book.idle["rollout"] = ()
    with pytest.raises(InvariantViolated, match="I2"):
        check_all(machine.state)


@pytest.mark.parametrize(("checks", "seen"), [(Checks.NONE, False), (Checks.JOB, True), (Checks.ALL, True)])
def test_a_machine_checks_after_each_event_what_its_rules_say(checks: Checks, seen: bool) -> None:
    machine = busy(checks=checks)
    overtake(machine.state)
    beat = ev.PhaseProgressed("a", lane(machine.state, "a").epoch, 1, 10)
    if seen:
        with pytest.raises(InvariantViolated, match="I4"):
            machine.handle(2.0, beat)
    else:
        assert machine.handle(2.0, beat) == ()

"""Whoever must begin the soonest goes first, and may make a less urgent phase pause, which loses nothing by it."""

from dataclasses import replace

import pytest

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.image import image, restore
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.mux.order import AIM, DEBT, PATIENCE, Claim, Order, Pause, Turns, aim_ms, next_due, turns_for
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.transitions import Phase
from rollmux.sim.cast import Cast
from tests.mux.world import LEASES, ROLLOUT, World, kinds


def long_job(pause_s: float = 5.0) -> JobSpec:
    phase = PhaseSpec(500.0, 1, pause_s=pause_s)
    return JobSpec("long", phase, replace(phase, duration_s=100.0), slo=4.0)


def short_job(pause_s: float = 5.0) -> JobSpec:
    phase = PhaseSpec(40.0, 1, pause_s=pause_s)
    return JobSpec("short", phase, phase, slo=2.5)


def both_run(rules: Rules | None = None) -> World:
    """The two share a rollout node and a training node; the long one rolls out since now."""
    world = World(rules=rules)
    world.run(long_job(), short_job())
    assert len(world.machine.state.groups) == 1
    assert {node for job_id in ("long", "short") for node in world.record(job_id).placement.rollout} == {"rollout-0"}  # type: ignore[union-attr]
    world.begin("long", ROLLOUT)
    return world


def is_pausing(rules: Rules | None = None) -> tuple[World, cmd.Pause]:
    """After ten seconds the short one asks: it can't wait for 490 more."""
    world = both_run(rules)
    world.now += 10.0
    (pause,) = world.ask("short", ROLLOUT)
    assert isinstance(pause, cmd.Pause)
    return world, pause


def test_who_would_begin_too_late_makes_a_less_urgent_phase_pause_and_that_goes_on_later() -> None:
    world, pause = is_pausing()
    assert (pause.job_id, pause.nodes) == ("long", ("rollout-0",))
    (grant,) = world.tell(ev.PhasePaused("long", pause.epoch), 2.0)
    assert isinstance(grant, cmd.Grant)
    assert (grant.lease.job_id, grant.lease.resumed, grant.lease.load) == ("short", False, True)
    world.tell(ev.PhaseStarted("short", grant.lease.epoch))
    (back,) = world.tell(ev.PhaseFinished("short", grant.lease.epoch), 40.0)
    assert isinstance(back, cmd.Grant)
    assert (back.lease.job_id, back.lease.iteration, back.lease.resumed) == ("long", 0, True)
    assert back.lease.epoch > grant.lease.epoch > pause.epoch
    world.tell(ev.PhaseStarted("long", back.lease.epoch))
    world.tell(ev.PhaseFinished("long", back.lease.epoch), 500.0)
    assert world.record("long").progress.rolled == 1
    assert world.record("long").progress.ahead_s == pytest.approx([10.0 + 2.0 + 500.0])


def test_a_holder_may_finish_instead_of_pausing() -> None:
    world, pause = is_pausing()
    (grant,) = world.tell(ev.PhaseFinished("long", pause.epoch), 1.0)
    assert isinstance(grant, cmd.Grant)
    assert grant.lease.job_id == "short"
    assert world.record("long").progress.rolled == 1
    world.ignores(ev.PhasePaused("long", pause.epoch))


@pytest.mark.parametrize("finishes", [True, False])
def test_what_is_told_to_pause_while_it_still_loads_has_its_work_counted_from_its_start_on(finishes: bool) -> None:
    world = World()
    world.run(long_job(), short_job())
    world.ask("long", ROLLOUT)
    (pause,) = world.tell(ev.PhaseRequested("short", 1, ROLLOUT, 0), 4.0)
    assert isinstance(pause, cmd.Pause)
    world.tell(ev.PhaseStarted("long", pause.epoch), 1.0)
    world.now += 3.0
    world.ignores(ev.PhaseStarted("long", pause.epoch))
    if finishes:
        world.tell(ev.PhaseFinished("long", pause.epoch))
        assert world.record("long").progress.ahead_s == pytest.approx([3.0])
    else:
        world.tell(ev.PhasePaused("long", pause.epoch))
        assert world.machine.state.seat(world.record("long")).lanes[ROLLOUT].worked_s == pytest.approx(3.0)


def is_pausing_what_began_alone() -> tuple[World, cmd.Pause]:
    """The short job comes when the long one has rolled out for ten seconds, with nobody beside it."""
    world = World()
    world.run(long_job())
    assert world.begin("long", ROLLOUT).keep
    world.now += 10.0
    world.run(short_job())
    assert len(world.machine.state.groups) == 1
    (pause,) = world.ask("short", ROLLOUT)
    assert isinstance(pause, cmd.Pause)
    return world, pause


def test_a_phase_that_began_alone_pauses_for_a_neighbour_that_came_since() -> None:
    world, pause = is_pausing_what_began_alone()
    (grant,) = world.tell(ev.PhasePaused("long", pause.epoch), 2.0)
    assert isinstance(grant, cmd.Grant)
    assert grant.lease.job_id == "short"


def test_one_that_began_alone_and_finishes_instead_moves_its_state_off_before_anybody_gets_its_nodes() -> None:
    world, pause = is_pausing_what_began_alone()
    (offload,) = world.tell(ev.PhaseFinished("long", pause.epoch), 1.0)
    assert offload == cmd.Offload("long", pause.epoch, ("rollout-0",))
    assert world.record("long").progress.rolled == 1
    (grant,) = world.tell(ev.PhaseOffloaded("long", pause.epoch), 1.0)
    assert isinstance(grant, cmd.Grant)
    assert grant.lease.job_id == "short"


def test_what_a_pause_would_take_is_what_was_measured_last_and_a_restored_machine_knows_it() -> None:
    world = both_run()
    world.tell(ev.JobProfiled("long", 1, 500.0, 100.0, 0.0, (8.0, 4.0), (0.0, 0.0)), 490.0)
    state = world.machine.state
    again = restore(image(world.machine), state.cluster, state.policy, state.rules)
    asked = ev.PhaseRequested("short", 1, ROLLOUT, 0)
    assert again.handle(world.now, asked) == world.tell(asked) == ()  # for ten seconds nobody pauses for 17


def test_only_who_was_asked_may_pause() -> None:
    world = both_run()
    epoch = world.machine.state.ledger.epoch
    world.refuses(ev.PhasePaused("long", epoch))
    world.refuses(ev.PhasePaused("long", epoch + 1))


def test_a_holder_that_is_silent_while_pausing_is_fenced_like_any_other_and_not_before() -> None:
    world, pause = is_pausing(Rules(timing=LEASES))
    assert world.tell(ev.Heartbeat("long", pause.epoch), 9.0) == ()
    world.tell(ev.Tick(), 9.0)
    assert world.machine.state.seat(world.record("long")).lanes[ROLLOUT].state is Phase.PAUSING
    assert kinds(world.tell(ev.Tick(), 10.0)) == [cmd.Revoke]
    world.ignores(ev.PhasePaused("long", pause.epoch))


def test_a_lease_whose_answer_was_lost_is_no_resumed_one_though_its_holder_is_to_pause() -> None:
    world, pause = is_pausing()
    (again,) = world.ask("long", ROLLOUT)
    assert isinstance(again, cmd.Grant)
    assert (again.lease.epoch, again.lease.resumed) == (pause.epoch, False)


@pytest.mark.parametrize("load_s", [0.0, 4.0])
def test_by_urgency_both_keep_their_slos_where_taking_turns_would_not(load_s: float) -> None:
    crew = [
        replace(job, rollout=replace(job.rollout, load_s=load_s), iterations=iterations)
        for job, iterations in ((long_job(), 20), (short_job(), 200))
    ]
    pauses, nodes = {}, {}
    for order in (Order.URGENCY, Order.FIFO):
        cast = Cast(ClusterMachine(World().machine.state.cluster, RollmuxPolicy(order=order), Rules(compaction=False)))
        cast.keep_history = True
        for job in crew:
            cast.submit(0.0, job)
        cast.run()
        said = [type(command) for _, _, commands in cast.history for command in commands]
        pauses[order], nodes[order] = said.count(cmd.Pause), said.count(cmd.Provision)
        assert all(cast.done(job.id) == job.iterations for job in crew)
        assert all(cast.iteration_s(job.id) <= job.limit_s for job in crew)
    assert pauses[Order.URGENCY] > 0 == pauses[Order.FIFO]
    assert nodes[Order.URGENCY] < nodes[Order.FIFO]


# -- the order alone ---------------------------------------------------------------------------------------------------


def claim(number: int, nodes: str, latest: int, ends_at: int = 1000, pause: Pause | None = None) -> Claim:
    made = Claim(tuple(nodes.split()), (number, 0))
    made.latest, made.ends_at, made.pause = latest, ends_at, pause
    return made


def test_waiting_claims_are_served_by_urgency_and_equals_in_the_order_of_joining() -> None:
    turns: Turns[Claim] = turns_for(Order.URGENCY)
    holder, *waiting = [claim(0, "n", 0), claim(1, "n", 50), claim(2, "n", 10), claim(3, "n", 10)]
    for each in (holder, *waiting):
        turns.enter(each)
    assert turns.request(holder) == ("n",)
    for each in waiting:
        assert turns.request(each) == ()
    served = []
    while (granted := turns.release(holder)) != []:
        holder = granted[0][0]
        served.append(holder.place[0])
    assert served == [2, 3, 1]


def test_nobody_pauses_for_who_can_wait_or_is_less_urgent() -> None:
    turns: Turns[Claim] = turns_for(Order.URGENCY)
    holder, other = claim(0, "n", 2000, ends_at=1000, pause=Pause(0, 10)), claim(1, "n", 999)
    for each in (holder, other):
        turns.enter(each)
        turns.request(each)
    assert turns.to_pause(other, 0) == (holder,)
    assert turns.to_pause(other, 989) == (holder,)
    assert turns.to_pause(other, 990) == ()  # the pause would take as long as the wait
    other.latest = 1000
    assert turns.to_pause(other, 0) == ()
    other.latest, holder.latest = 500, 400
    assert turns.to_pause(other, 0) == ()


def test_a_gang_makes_all_its_holders_pause_or_none() -> None:
    pause = Pause(0, 10)
    turns: Turns[Claim] = turns_for(Order.URGENCY)
    able, unable, gang = claim(0, "a", 900, pause=pause), claim(1, "b", 900), claim(2, "a b", 100)
    for each in (able, unable, gang):
        turns.enter(each)
        turns.request(each)
    assert turns.to_pause(gang, 0) == ()
    unable.pause = pause
    assert turns.to_pause(gang, 0) == (able, unable)
    able.pausing = True
    assert turns.to_pause(gang, 0) == (unable,)


def test_iterations_are_due_a_little_before_the_limit_and_debts_are_bounded() -> None:
    assert aim_ms(200.0, 100.0, None) == int(200_000 * AIM)
    assert aim_ms(100.0, 100.0, None) == 100_000  # no faster than alone
    assert aim_ms(1e6, 100.0, None) == int(PATIENCE * 100_000 * AIM)
    assert aim_ms(200.0, 100.0, 5) < aim_ms(200.0, 100.0, 500) < aim_ms(200.0, 100.0, None)
    assert next_due(500, 300, 100) == 400  # early: counted from when it was done
    assert next_due(250, 300, 100) == 350  # late: it is to make up for that
    assert next_due(0, 1000, 100) == 1000 - DEBT * 100 + 100


@pytest.mark.parametrize(("slo", "fits"), [(4.0, False), (5.0, True), (10.0, True), (1000.0, True)])
def test_a_patient_job_fits_beside_phases_that_are_longer_than_all_it_does_alone(slo: float, fits: bool) -> None:
    """A turn of the long one is five of its own iterations: it is late by its limit, and not by when they are due."""
    long, short = PhaseSpec(1.0, 1), PhaseSpec(0.2, 1)
    world = World()
    world.run(JobSpec("long", long, long, slo=1.4))
    world.tell(ev.JobSubmitted(JobSpec("patient", short, short, slo=slo)))
    placements = [world.record(job_id).placement for job_id in ("long", "patient")]
    assert (placements[0] == placements[1]) is fits


# -- rollouts that roam ------------------------------------------------------------------------------------------


def roaming(*holders: tuple[str, int]) -> tuple[Turns[Claim], dict[str, Claim]]:
    """Nodes a and b, each held by a claim that can pause and is pinned to it, and "new", which may have either."""
    turns: Turns[Claim] = turns_for(Order.URGENCY)
    claims = {}
    for number, (node, latest) in enumerate(holders):
        claims[node] = claim = Claim((node,), (number, 0))
        claim.latest, claim.ends_at, claim.pause = latest, 1000, Pause(0, 10)
        turns.enter(claim)
        assert turns.request(claim) == (node,)
    claims["new"] = Claim(("a", "b"), (len(holders), 0), wants=1)
    turns.enter(claims["new"])
    return turns, claims


@pytest.mark.parametrize(("a", "b", "pauses"), [(700, 900, "b"), (900, 700, "a"), (50, 900, "b"), (50, 60, "")])
def test_of_the_holders_of_its_nodes_the_least_urgent_makes_way_for_who_roams(a: int, b: int, pauses: str) -> None:
    turns, claims = roaming(("a", a), ("b", b))
    claims["new"].latest = 100
    assert turns.request(claims["new"]) == ()
    assert turns.to_pause(claims["new"], 0) == ((claims[pauses],) if pauses else ())


def test_nobody_pauses_for_who_roams_while_another_of_its_nodes_is_being_cleared() -> None:
    turns, claims = roaming(("a", 700), ("b", 900))
    claims["a"].pausing, claims["a"].pause = True, None
    claims["new"].latest = 100
    turns.request(claims["new"])
    assert turns.to_pause(claims["new"], 0) == ()


def test_who_has_paused_keeps_its_node_where_the_other_has_found_one() -> None:
    turns, claims = roaming(("a", 700), ("b", 900))
    new, late = claims["new"], Claim(("a",), (9, 0))
    turns.enter(late)
    new.latest, late.latest = 100, 5000
    turns.request(new)
    turns.request(late)
    assert turns.release(claims["b"]) == [(new, ("b",))]
    assert turns.give_way(claims["a"]) == [(claims["a"], ("a",))]  # it goes on, before who is less urgent
    assert turns.queues == {"a": [late], "b": []}


def test_a_rollout_that_made_way_goes_on_where_the_next_node_is_free() -> None:
    turns, claims = roaming(("a", 700))
    new, pinned = claims["new"], Claim(("b",), (8, 0))
    turns.enter(pinned)
    new.latest = 900
    assert turns.request(new) == ("b",)
    pinned.latest = 10
    turns.request(pinned)
    assert turns.give_way(new) == [(pinned, ("b",))]
    assert turns.release(claims["a"]) == [(new, ("a",))]


@pytest.mark.parametrize("order", [Order.FIFO, Order.URGENCY])
def test_of_two_nodes_that_come_free_at_once_who_roams_leaves_the_other_to_the_next(order: Order) -> None:
    turns: Turns[Claim] = turns_for(order)
    gang, new, pinned = Claim(("a", "b"), (0, 0)), Claim(("b", "a"), (1, 0), wants=1), Claim(("a",), (2, 0))
    for claim in (gang, new, pinned):
        turns.enter(claim)
        turns.request(claim)
    assert turns.release(gang) == [(new, ("b",)), (pinned, ("a",))]


def test_a_tail_moves_together_for_who_roams_onto_what_that_frees() -> None:
    turns: Turns[Claim] = turns_for(Order.FIFO)
    gang, new = Claim(("a", "b"), (0, 0)), Claim(("b", "c"), (1, 0), wants=1)
    other = Claim(("c",), (2, 0))
    for claim in (gang, new, other):
        turns.enter(claim)
    for claim in (gang, other, new):
        turns.request(claim)
    assert turns.freed_by_tail(gang, 1) == ("b",)
    assert turns.release(gang, ("b",)) == [(new, ("b",))]


def test_a_gang_that_roams_asks_no_more_holders_to_make_way_than_it_needs() -> None:
    turns: Turns[Claim] = turns_for(Order.URGENCY)
    pair, other, still = Claim(("a", "b"), (0, 0)), Claim(("c",), (1, 0)), Claim(("d",), (2, 0))
    new = Claim(("a", "b", "c", "d"), (3, 0), wants=2)
    for claim, latest in ((pair, 900), (other, 800), (still, 950)):
        claim.latest, claim.ends_at = latest, 1000
        turns.enter(claim)
        turns.request(claim)
    turns.enter(new)
    turns.request(new)
    assert turns.to_pause(new, 0) == ()
    pair.pause = Pause(0, 10)
    assert turns.to_pause(new, 0) == (pair,)  # it frees both of the two
    other.pause, pair.latest = Pause(0, 10), 700
    assert turns.to_pause(new, 0) == (other, pair)
    pair.pause = None
    assert turns.to_pause(new, 0) == ()  # one node would be of no use

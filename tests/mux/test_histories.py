"""Random histories of a whole cluster: arrivals, departures, failures, lost nodes, late and repeated messages.

Every invariant is checked after every event. At the end faults stop: every job must finish, and the recorded history
must give the same commands and the same state on a fresh machine.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rollmux.errors import IllegalEvent
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux import mover
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.hardware import GB, Cluster, NodeType, Pool
from rollmux.mux.image import from_json, image, restore, to_json
from rollmux.mux.invariants import check_all
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec, Switch, Tail
from rollmux.mux.node_book import NodeState
from rollmux.mux.order import Order
from rollmux.mux.policies import Policy
from rollmux.mux.policies.paper import PaperPolicy
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.transitions import Job, Phase
from rollmux.mux.weave import Timing
from tests.thorough import examples

pytestmark = pytest.mark.no_cover  # to be traced takes longer than to play

CHEAP = NodeType("cheap", 8, 1.85, 96 * GB, 1000 * GB)
DEAR = NodeType("dear", 8, 5.28, 80 * GB, 1000 * GB)
CLUSTERS = {
    "elastic": Cluster(Pool("rollout", CHEAP), Pool("train", DEAR)),
    "capped": Cluster(Pool("rollout", CHEAP, max_nodes=4), Pool("train", DEAR, max_nodes=3)),
    "finite": Cluster(Pool("rollout", CHEAP, on_demand=False), Pool("train", DEAR, on_demand=False)),
    "one pool": Cluster(Pool("all", DEAR), Pool("all", DEAR)),
}
RULES = Rules(timing=Timing(lease_s=15.0, drain_s=10.0), log_limit=50, decisions_limit=5, ended_limit=200, move_s=30.0)


@st.composite
def phases(draw: st.DrawFn) -> PhaseSpec:
    load_s = draw(st.sampled_from([0.0, 0.0, 2.0]))
    return PhaseSpec(
        duration_s=draw(st.sampled_from([20.0, 50.0, 75.0, 120.0, 300.0])),
        nodes=draw(st.sampled_from([1, 1, 2, 3])),
        resident_bytes=draw(st.sampled_from([0, 200 * GB, 450 * GB])),
        transient_bytes=draw(st.sampled_from([0, 100 * GB])),
        load_s=load_s,
        offload_s=load_s / 2,
        pause_s=draw(st.sampled_from([None, 0.0, 5.0])),
    )


@st.composite
def jobs(draw: st.DrawFn, name: str) -> JobSpec:
    rollout = draw(phases())
    tail = Tail(10, draw(st.sampled_from([1, 2, 5])), rollout.duration_s / 2)
    return JobSpec(
        id=name,
        rollout=rollout,
        train=draw(phases()),
        slo=draw(st.sampled_from([1.0, 1.1, 1.5, 2.0, 3.0])),
        sync_s=draw(st.sampled_from([0.0, 3.0])),
        priority=draw(st.sampled_from([0, 0, 1])),
        staleness=draw(st.sampled_from([0, 0, 0, 1, 2])),
        iterations=draw(st.integers(1, 4)),
        tail=draw(st.sampled_from([None, tail, tail])),
        elastic_rollout=draw(st.booleans()),
        rollout_spares=draw(st.sampled_from([0, 0, 1, 2, 4])),
        cold_start_s=draw(st.sampled_from([0.0, 20.0])),
        max_attempts=draw(st.integers(1, 3)),
    )


class Histories(RuleBasedStateMachine):
    """The world outside the controller: it knows what it was told by commands, and sometimes tells lies."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.sent: list[tuple[float, ev.Event, tuple[cmd.Command, ...]]] = []
        self.coming: dict[str, str] = {}
        self.launched: dict[str, int] = {}
        self.stopping: dict[str, int] = {}
        self.submitted = 0

    @initialize(
        cluster=st.sampled_from(sorted(CLUSTERS)),
        order=st.sampled_from(list(Order)),
        make=st.sampled_from([PaperPolicy, RollmuxPolicy]),
    )
    def begin(self, cluster: str, order: Order, make: Callable[..., Policy]) -> None:
        self.cluster = CLUSTERS[cluster]
        self.make_policy: Callable[[], Policy] = lambda: make(order=order)
        self.machine = ClusterMachine(self.cluster, self.make_policy(), RULES)
        if not self.cluster.rollout.on_demand:
            for i in range(4):
                self.tell(ev.NodeJoined(f"r{i}", "rollout"))
            for i in range(3):
                self.tell(ev.NodeJoined(f"t{i}", "train"))

    # -- the world ---------------------------------------------------------------------------------------------

    def tell(self, event: ev.Event) -> tuple[cmd.Command, ...]:
        commands = self.machine.handle(self.now, event)
        self.sent.append((self.now, event, commands))
        for command in commands:
            match command:
                case cmd.Provision(node, pool):
                    self.coming[node] = pool
                case cmd.ReleaseNode(node):
                    self.coming.pop(node, None)
                case cmd.Launch(job_id, attempt):
                    self.launched[job_id] = attempt
                    self.stopping.pop(job_id, None)
                case cmd.Stop(job_id, attempt):
                    self.launched.pop(job_id, None)
                    self.stopping[job_id] = attempt
        return commands

    def tell_in_vain(self, event: ev.Event) -> None:
        """Something that can't be: it raises, and nothing changes."""
        before = image(self.machine)
        with pytest.raises(IllegalEvent):
            self.machine.handle(self.now, event)
        assert image(self.machine) == before

    @property
    def lanes(self) -> list[Any]:
        return [lane for weave in self.machine.state.weaves.values() for lane in weave.leases.values()]

    def running(self) -> list[Any]:
        return [record for record in self.machine.state.jobs.values() if record.state is Job.RUNNING]

    # -- ordinary life -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.submitted < 7)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        self.submitted += 1
        self.tell(ev.JobSubmitted(data.draw(jobs(name=f"job{self.submitted}"))))

    @precondition(lambda self: self.coming)
    @rule(pick=st.integers(0, 99))
    def node_comes(self, pick: int) -> None:
        node = sorted(self.coming)[pick % len(self.coming)]
        self.tell(ev.NodeJoined(node, self.coming.pop(node)))

    @precondition(lambda self: self.launched)
    @rule(pick=st.integers(0, 99))
    def job_starts(self, pick: int) -> None:
        job_id = sorted(self.launched)[pick % len(self.launched)]
        self.tell(ev.JobStarted(job_id, self.launched.pop(job_id)))

    @precondition(lambda self: self.running())
    @rule(pick=st.integers(0, 99), kind=st.sampled_from([*PhaseKind, PhaseKind.ROLLOUT]))
    def job_asks(self, pick: int, kind: PhaseKind) -> None:
        running = self.running()
        record = running[pick % len(running)]
        self.ask(record, kind)

    def ask(self, record: Any, kind: PhaseKind) -> None:
        progress = record.progress
        if kind is PhaseKind.ROLLOUT:
            wanted = progress.rolled
            able = wanted <= progress.synced + record.job.staleness and wanted < record.job.iterations
        elif kind is PhaseKind.TRAIN:
            wanted = progress.trained
            able = wanted == progress.synced and wanted < progress.rolled
        else:
            wanted = progress.synced
            able = wanted < progress.trained
        lane = self.machine.state.seat(record).lanes[kind]
        if (
            able
            and lane.state is not Phase.FENCED
            and not (lane.state is Phase.OFFLOADING and lane.iteration == wanted)
        ):
            self.tell(ev.PhaseRequested(record.job.id, record.attempt, kind, wanted))

    @precondition(lambda self: self.lanes)
    @rule(pick=st.integers(0, 99), passes=st.sampled_from([0.0, 1.0, 5.0]))
    def phase_goes_on(self, pick: int, passes: float) -> None:
        lanes = self.lanes
        self.now += passes
        self.advance(lanes[pick % len(lanes)])

    def advance(self, lane: Any) -> None:
        job_id, epoch = lane.seat.job.id, lane.epoch
        match lane.state:
            case Phase.GRANTED:
                self.tell(ev.PhaseStarted(job_id, epoch))
            case Phase.PAUSING if lane.started_at is None:  # it was told so while it still loaded
                self.tell(ev.PhaseStarted(job_id, epoch))
                assert lane.started_at == self.now
            case Phase.RUNNING if lane.kind is PhaseKind.ROLLOUT and lane.done == 0:
                self.tell(ev.PhaseProgressed(job_id, epoch, 8, 10))
            case Phase.PAUSING:
                self.tell(ev.PhasePaused(job_id, epoch))
            case Phase.SHRINKING:
                self.tell(ev.PhaseShrunk(job_id, epoch))
            case Phase.OFFLOADING:
                self.tell(ev.PhaseOffloaded(job_id, epoch))
            case Phase.RUNNING | Phase.TAIL | Phase.FENCED:
                self.tell(ev.PhaseFinished(job_id, epoch))

    @precondition(lambda self: self.running())
    @rule(pick=st.integers(0, 99), steps=st.integers(1, 12))
    def job_lives(self, pick: int, steps: int) -> None:
        """A run of ordinary steps of one job, so that histories reach far into iterations."""
        job_id = self.running()[pick % len(self.running())].job.id
        for _ in range(steps):
            record = self.machine.state.jobs.get(job_id)
            if record is None or record.state is not Job.RUNNING:
                return
            self.now += 0.5
            for kind in (PhaseKind.TRAIN, PhaseKind.SYNC, PhaseKind.ROLLOUT):
                self.ask(record, kind)
            mine = [lane for lane in self.lanes if lane.seat.job.id == job_id]
            if mine:
                self.advance(mine[0])
                check_all(self.machine.state)

    @precondition(lambda self: self.running())
    @rule(pick=st.integers(0, 99))
    def job_ends(self, pick: int) -> None:
        running = self.running()
        record = running[pick % len(running)]
        if record.progress.synced >= record.job.iterations:
            self.tell(ev.JobFinished(record.job.id, record.attempt))

    @precondition(lambda self: self.stopping)
    @rule(pick=st.integers(0, 99))
    def job_is_gone(self, pick: int) -> None:
        job_id = sorted(self.stopping)[pick % len(self.stopping)]
        attempt = self.stopping.pop(job_id)
        record = self.machine.state.jobs.get(job_id)
        if record is not None and record.state is Job.STOPPING and record.attempt == attempt:
            self.tell(ev.JobStopped(job_id, attempt))

    @precondition(lambda self: self.running())
    @rule(
        pick=st.integers(0, 99),
        speed=st.sampled_from([0.5, 0.9, 1.0, 1.4]),
        switch_s=st.sampled_from([None, (0.0, 0.0), (30.0, 20.0)]),
    )
    def job_is_measured(self, pick: int, speed: float, switch_s: Switch | None) -> None:
        record = self.running()[pick % len(self.running())]
        job = record.submitted
        measured = (job.rollout.duration_s * speed, job.train.duration_s * speed, job.sync_s)
        known = record.job
        self.tell(ev.JobProfiled(job.id, record.attempt, *measured, switch_s, switch_s))
        if record.job is known:
            return
        member, at_most_s = self.machine.state.groups[record.group_id].member(job.id), record.limit_s(self.now)
        assert member.job == record.job.at_width(len(member.placement.train))
        assert member.job.train.planned_s == pytest.approx(measured[1])
        assert at_most_s is None or member.limit_s <= max(at_most_s, record.job.solo_s)

    # -- trouble -----------------------------------------------------------------------------------------------

    @rule(passes=st.sampled_from([0.0, 4.0, 11.0, 16.0]), alive=st.booleans(), together=st.booleans())
    def time_passes(self, passes: float, alive: bool, together: bool) -> None:
        self.now += passes
        if alive:
            if together:
                self.tell(ev.Heartbeats(tuple(ev.Heartbeat(lane.seat.job.id, lane.epoch) for lane in self.lanes)))
            for lane in [] if together else self.lanes:
                self.tell(ev.Heartbeat(lane.seat.job.id, lane.epoch))
        self.tell(ev.Tick())

    @precondition(lambda self: self.lanes)
    @rule(pick=st.integers(0, 99))
    def phase_fails(self, pick: int) -> None:
        lane = self.lanes[pick % len(self.lanes)]
        if lane.state not in (Phase.PARKED, Phase.OFFLOADING):
            self.tell(ev.PhaseFailed(lane.seat.job.id, lane.epoch, "raised ValueError"))

    @precondition(lambda self: self.running())
    @rule(pick=st.integers(0, 99))
    def job_dies(self, pick: int) -> None:
        record = self.running()[pick % len(self.running())]
        self.tell(ev.JobFailed(record.job.id, record.attempt, "killed by signal 9"))

    @precondition(lambda self: self.machine.state.jobs)
    @rule(pick=st.integers(0, 99))
    def script_never_comes_back(self, pick: int) -> None:
        """Of a job that nothing was done of yet: in line, at its start, or before its first lease."""
        jobs = self.machine.state.jobs
        record = jobs[sorted(jobs)[pick % len(jobs)]]
        if record.state is not Job.STOPPING and not any(lane.holding for lane in self.machine.state.lanes(record)):
            self.tell(ev.JobAbandoned(record.job.id, record.attempt, "its script was killed"))
            assert self.machine.state.ended[record.job.id] == "its script was killed"
            assert record.job.id not in self.machine.state.backlog

    @precondition(lambda self: self.machine.state.jobs)
    @rule(pick=st.integers(0, 99))
    def owner_cancels(self, pick: int) -> None:
        job_id = sorted(self.machine.state.jobs)[pick % len(self.machine.state.jobs)]
        self.tell(ev.JobCancelled(job_id))

    @precondition(lambda self: self.machine.state.book.nodes)
    @rule(pick=st.integers(0, 99), what=st.sampled_from(["lost", "cordoned", "uncordoned", "back"]))
    def node_troubles(self, pick: int, what: str) -> None:
        nodes = self.machine.state.book.nodes
        node = sorted(nodes)[pick % len(nodes)]
        if what == "lost":
            self.tell(ev.NodeLost(node))
        elif what == "cordoned":
            self.tell(ev.NodeCordoned(node))
            state = self.machine.state
            assert node not in nodes or nodes[node].cordoned  # one that was kept for a move alone is given back
            assert not [r for r in state.jobs.values() if r.target is not None and node in r.target[1].all_nodes]
            assert not [name for name, s in state.swaps.items() if node in s.member.placement.all_nodes]
        elif what == "uncordoned":
            self.tell(ev.NodeUncordoned(node))
        else:
            self.coming.pop(node, None)
            self.tell(ev.NodeJoined(node, nodes[node].pool))

    @rule(
        role=st.sampled_from(["rollout", "train"]),
        usd=st.sampled_from([0.0, 1.85, 9.0]),
        memory_gb=st.sampled_from([500, 1000, 1000]),
        most=st.sampled_from([6, 8, None]),
        pick=st.integers(0, 9),
    )
    def the_cluster_changes(self, role: str, usd: float, memory_gb: int, most: int | None, pick: int) -> None:
        state = self.machine.state
        pool: Pool = getattr(state.cluster, role)
        node = replace(pool.node_type, usd_per_gpu_hour=usd, host_memory_bytes=memory_gb * GB)
        pool = replace(pool, node_type=node, max_nodes=most if pool.on_demand else None)
        cluster = Cluster(pool, pool) if state.cluster.shared else replace(state.cluster, **{role: pool})
        gone = tuple(sorted(state.book.nodes))[pick : pick + 1] if not pool.on_demand else ()
        before = image(self.machine)
        try:
            self.tell(ev.ClusterChanged(cluster, gone))
        except IllegalEvent:
            assert image(self.machine) == before
        else:
            assert (state.cluster, state.book.pools[pool.name]) == (cluster, pool)
            assert not state.book.nodes.keys() & set(gone)

    @precondition(lambda self: self.sent)
    @rule(pick=st.integers(0, 10_000))
    def a_message_comes_again(self, pick: int) -> None:
        event = self.sent[pick % len(self.sent)][1]
        before = image(self.machine)
        over = isinstance(getattr(event, "epoch", None), int) and all(lane.epoch != event.epoch for lane in self.lanes)  # type: ignore[union-attr]
        try:
            commands = self.tell(event)
        except IllegalEvent:
            assert image(self.machine) == before
            return
        if over:
            assert commands == ()
            assert image(self.machine) == before

    @precondition(lambda self: self.machine.state.jobs)
    @rule(pick=st.integers(0, 99), what=st.integers(0, 6))
    def nonsense_is_refused(self, pick: int, what: int) -> None:
        record = list(self.machine.state.jobs.values())[pick % len(self.machine.state.jobs)]
        job_id = record.job.id
        if what == 4 and record.state is not Job.RUNNING:
            return  # without a seat, all that it says of leases comes too late
        nonsense: list[ev.Event] = [
            ev.PhaseFinished(job_id, self.machine.state.ledger.epoch + 1),
            ev.PhaseStarted("nobody", 1),
            ev.PhaseRequested(job_id, record.attempt + 1, PhaseKind.ROLLOUT, 0),
            ev.PhaseRequested(job_id, record.attempt, PhaseKind.SYNC, 99),
            ev.PhaseProgressed(job_id, max(1, self.machine.state.ledger.epoch), 5, 4),
            ev.NodeJoined("stranger", "no such pool"),
            ev.JobSubmitted(JobSpec(job_id, PhaseSpec(1.0, 1), PhaseSpec(1.0, 1), 5.0)),
        ]
        self.tell_in_vain(nonsense[what])

    @rule()
    def the_controller_restarts(self) -> None:
        saved = image(self.machine)
        again = from_json(json.loads(json.dumps(to_json(saved), allow_nan=False)))
        assert again == saved
        self.machine = restore(again, self.cluster, self.make_policy(), RULES)
        assert image(self.machine) == saved

    # -- what must hold ----------------------------------------------------------------------------------------

    @invariant()
    def every_promise_holds(self) -> None:
        if hasattr(self, "machine"):
            check_all(self.machine.state)
            assert not self.machine.state.alarms, list(self.machine.state.alarms)
            waiting = [
                lane for weave in self.machine.state.weaves.values() for q in weave.turns.queues.values() for lane in q
            ]
            assert not [lane for lane in waiting if lane.state is Phase.FENCED]

    def teardown(self) -> None:
        if hasattr(self, "machine"):
            self.heal()
            self.replay()

    def heal(self) -> None:
        """Faults stop. Every job must come to its end, within a number of steps that can be told beforehand."""
        for node, record in list(self.machine.state.book.nodes.items()):
            if not self.cluster.rollout.on_demand:
                self.tell(ev.NodeJoined(node, record.pool))
            self.tell(ev.NodeUncordoned(node))
        if not self.cluster.rollout.on_demand:
            for i in range(6):
                self.tell(ev.NodeJoined(f"healed{i}", "rollout" if i < 3 else "train"))
        most = 60 + sum(12 * (record.job.iterations or 0) + 40 for record in self.machine.state.jobs.values())
        for _ in range(most):
            if not self.machine.state.jobs:
                break
            self.one_round()
            check_all(self.machine.state)
        left = [(job_id, record.state, record.told) for job_id, record in self.machine.state.jobs.items()]
        assert not left, f"after {most} rounds: {left}, {self.machine.state.book.nodes}"
        assert not self.machine.state.backlog
        if self.cluster.rollout.on_demand:
            assert not self.machine.state.book.nodes

    def one_round(self) -> None:
        self.now += 1.0
        for node, pool in list(self.coming.items()):
            del self.coming[node]
            self.tell(ev.NodeJoined(node, pool))
        for node, known in list(self.machine.state.book.nodes.items()):
            if known.state is NodeState.COMING:
                self.tell(ev.NodeJoined(node, known.pool))
        for record in list(self.machine.state.jobs.values()):
            if record.state is Job.STOPPING:
                self.tell(ev.JobStopped(record.job.id, record.attempt))
            elif record.state is Job.STARTING:
                self.tell(ev.JobStarted(record.job.id, record.attempt))
        self.every_job_goes_on()

    def every_job_goes_on(self) -> None:
        for record in self.running():
            if record.progress.synced >= record.job.iterations:
                self.tell(ev.JobFinished(record.job.id, record.attempt))
                continue
            for kind in (PhaseKind.TRAIN, PhaseKind.SYNC, PhaseKind.ROLLOUT):
                if record.state is Job.RUNNING:
                    self.ask(record, kind)
        for lane in self.lanes:
            if self.machine.state.jobs.get(lane.seat.job.id) and lane in self.lanes:
                self.advance(lane)

    def replay(self) -> None:
        """I10 and I11: the recorded events give the same commands and the same state once more."""
        again = ClusterMachine(self.cluster, self.make_policy(), RULES)
        for now, event, commands in self.sent:
            assert again.handle(now, event) == commands
        assert image(again) == image(self.machine)


@pytest.mark.parametrize(
    "histories", [pytest.param(100, id="100"), pytest.param(10_000, id="10000", marks=pytest.mark.slow)]
)
def test_no_history_breaks_a_promise(histories: int) -> None:
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=histories,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_history_in_which_few_jobs_change_places_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "MANY", 2)
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=examples(300), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )

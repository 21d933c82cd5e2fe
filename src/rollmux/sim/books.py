"""The books of a simulated run: which nodes were paid for when, what they did, and what was decided."""

from collections import Counter
from dataclasses import dataclass, field
from typing import get_args

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.explain import explain
from rollmux.mux.job import PhaseKind
from rollmux.mux.plan import Strategy
from rollmux.mux.transitions import JobOn
from rollmux.sim.outcome import Admission, Level, Span
from rollmux.sim.workload import HOUR_S

NAMES = {
    Strategy.DIRECT: "direct",
    Strategy.ROLLOUT_SCALING: "rollout_scaling",
    Strategy.TRAIN_SCALING: "train_scaling",
    Strategy.MIXED_SCALING: "mixed_scaling",
    Strategy.ISOLATED: "isolated",
}


_PHASES = set(get_args(ev.PhaseEvent))

# Commands that change which nodes there are, or which jobs run or wait.
_CHANGING = (cmd.Provision, cmd.ReleaseNode, cmd.Admit, cmd.Queue)


@dataclass(slots=True)
class PoolBook:
    """One pool's bill. A node costs from the moment it is asked for until it is given back or lost."""

    usd_per_hour: float
    since: dict[str, float] = field(default_factory=dict)
    paid_s: float = 0.0
    busy_s: float = 0.0
    switch_s: float = 0.0
    peak: int = 0

    def up(self, node: str, now: float) -> None:
        self.since.setdefault(node, now)
        self.peak = max(self.peak, len(self.since))

    def down(self, node: str, now: float) -> None:
        if node in self.since:
            self.paid_s += now - self.since.pop(node)

    def close(self, now: float) -> None:
        self.paid_s += sum(max(0.0, now - since) for since in self.since.values())  # some may have come after `now`
        self.since.clear()


class Books:
    """Keeps the books: hears every event with its commands, and every use of nodes."""

    def __init__(self, machine: ClusterMachine, history: bool) -> None:
        cluster = machine.state.cluster
        self.machine, self.history = machine, history
        self.pools = {pool.name: PoolBook(pool.node_type.usd_per_hour) for pool in cluster.pools}
        self.kinds = {PhaseKind.ROLLOUT: cluster.rollout.name, PhaseKind.TRAIN: cluster.train.name}
        self.first: dict[str, Admission] = {}
        self.refused: dict[str, tuple[str, ...]] = {}
        self.moves: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()
        self.moving: set[str] = set()  # jobs that are stopped for a move
        self.wanted: dict[PhaseKind, dict[str, int]] = {kind: {} for kind in self.kinds}  # nodes, by job
        self.levels: list[Level] = []
        self.spans: list[Span] = []
        self.decision_ms: list[float] = []

    def heard(self, now: float, event: ev.Event, commands: tuple[cmd.Command, ...], took_s: float) -> None:
        """Records what changes the cost, moves a job or places one."""
        if isinstance(event, ev.JobSubmitted):
            self.decision_ms.append(took_s * 1000)
        elif not commands and type(event) in _PHASES:
            return
        changed = False
        if isinstance(event, ev.NodeJoined):
            self.pools[event.pool].up(event.node, now)  # also a node that was not asked for
            changed = True
        elif isinstance(event, ev.NodeLost):
            for book in self.pools.values():
                book.down(event.node, now)
            changed = True
        for command in commands:
            self._answered(now, command)
            changed = changed or isinstance(command, _CHANGING)
        if self.history and (changed or isinstance(event, ev.JobSubmitted | ev.JobFinished | ev.JobCancelled)):
            self._level(now)

    def _answered(self, now: float, command: cmd.Command) -> None:
        if isinstance(command, cmd.Provision):
            self.pools[command.pool].up(command.node, now)
        elif isinstance(command, cmd.ReleaseNode):
            self.pools[command.pool].down(command.node, now)
        elif isinstance(command, cmd.Admit):
            self._admitted(now, command)
        elif isinstance(command, cmd.Refuse):
            self.refused[command.job_id] = command.reasons
        elif isinstance(command, cmd.Stop):
            record = self.machine.state.jobs.get(command.job_id)
            if record is not None and record.then is JobOn.GONE_MOVE:
                self.moving.add(command.job_id)
        elif isinstance(command, cmd.Launch) and command.attempt > 1:
            why = self.moves if command.job_id in self.moving else self.restarts
            why[command.job_id] += 1
            self.moving.discard(command.job_id)

    def used(
        self, lease: cmd.Lease, nodes: tuple[str, ...], start_s: float, end_s: float, *, first: bool, last: bool
    ) -> None:
        """Nodes were at work for a lease: loading first, if the lease had to, then in its phase, then offloading."""
        phase = self.machine.state.jobs[lease.job_id].submitted.phase(lease.kind)
        span_s = end_s - start_s
        again_s = phase.pause_s or 0.0 if lease.resumed else 0.0
        load_s = min(span_s, phase.load_s + again_s if first and lease.load else 0.0)
        offload_s = min(span_s - load_s, phase.offload_s if last and not lease.keep else 0.0)
        book = self.pools[self.kinds[lease.kind]]
        book.switch_s += (load_s + offload_s) * len(nodes)
        # More nodes than a phase wants make it no faster: the others are idle.
        book.busy_s += (span_s - load_s - offload_s) * min(len(nodes), self._wanted(lease))
        if self.history:
            self._draw(lease, nodes, (start_s, start_s + load_s, end_s - offload_s, end_s))

    def _wanted(self, lease: cmd.Lease) -> int:
        wanted = self.wanted[lease.kind].get(lease.job_id)
        if wanted is None:
            job = self.machine.state.jobs[lease.job_id].submitted.resolve(self.machine.state.cluster)
            wanted = self.wanted[lease.kind][lease.job_id] = job.phase(lease.kind).nodes
        return wanted

    def _draw(self, lease: cmd.Lease, nodes: tuple[str, ...], times: tuple[float, float, float, float]) -> None:
        group = self.machine.state.jobs[lease.job_id].group_id
        for kind, start_s, end_s in zip(("switch", lease.kind.value, "switch"), times, times[1:], strict=False):
            if end_s > start_s:
                for node in nodes:
                    self.spans.append(Span(node, group, lease.job_id, kind, start_s, end_s, lease.iteration))

    def _admitted(self, now: float, command: cmd.Admit) -> None:
        decision = self.machine.state.decisions.get(command.job_id)
        if command.job_id in self.first or decision is None or decision.plan is None:
            return
        why = tuple(explain(decision).splitlines()) if self.history else ()
        plan = decision.plan
        self.first[command.job_id] = Admission(
            now, command.job_id, command.group_id, NAMES[plan.strategy], plan.added_usd_per_hour, why
        )

    def _level(self, now: float) -> None:
        state = self.machine.state
        rollout, train = (self.pools[pool] for pool in self.kinds.values())
        usd = sum(len(book.since) * book.usd_per_hour for book in self.pools.values())
        waiting = len(state.backlog)
        rollout_nodes = 0 if state.cluster.shared else len(rollout.since)  # a shared pool's are training nodes
        level = Level(now, rollout_nodes, len(train.since), usd, len(state.jobs) - waiting, waiting)
        if self.levels and self.levels[-1].at_s == now:
            self.levels.pop()
        self.levels.append(level)

    def usd(self) -> float:
        return sum(book.paid_s / HOUR_S * book.usd_per_hour for book in self.pools.values())

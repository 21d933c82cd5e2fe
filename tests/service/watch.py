"""What must hold in the simulated world: what the controller believes, and what really happens on the nodes.

A breach raises at once, so that the step that led to it is the last one of the run.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import Entry
from rollmux.mux.invariants import check_all
from rollmux.mux.job import PhaseKind
from rollmux.mux.weave import Timing
from rollmux.protocol.messages import Held, Orders, Turn
from rollmux.service.controller import Controller
from rollmux.service.journal import Batch
from rollmux.service.live import SILENT_S

RENEWING = (ev.PhaseStarted, ev.PhaseProgressed, ev.PhaseShrunk)
KINDS = (PhaseKind.ROLLOUT, PhaseKind.TRAIN, PhaseKind.SYNC)


@dataclass(slots=True, eq=False)
class Work:
    """A process that believes to hold nodes. All ranks of one life of a job share `owner`."""

    owner: tuple[str, str]
    epoch: int
    launched: bool
    nodes: set[str] = field(default_factory=set)
    reached_at: float = 0.0  # when it asked for the latest orders that it has had
    attempt: int = 0
    rests: bool = False  # its work is done, and its state has stayed on the nodes


class Watch:
    """Looks at everything, and raises AssertionError or InvariantViolated on the first breach."""

    def __init__(self, timing: Timing, processes: dict[str, int]) -> None:
        self.timing, self.processes = timing, processes
        self.now = 0.0
        self.works: dict[str, list[Work]] = defaultdict(list)  # by node
        self.owners: dict[int, tuple[str, str, int]] = {}  # what each epoch that anybody was told of was granted for
        self.renewed: dict[int, float] = {}
        self.fenced: dict[int, float] = {}
        self.stopped: dict[tuple[str, int], float] = {}  # attempts that were told to end
        self.did: dict[int, set[int]] = defaultdict(set)  # ranks that really finished the work of a lease
        self.commits: Counter[tuple[str, PhaseKind, int, int]] = Counter()
        self.coming: list[tuple[int, tuple[str, PhaseKind, int, int]]] = []  # commits that are not durable yet
        self.progress: dict[str, tuple[int, int, int]] = {}
        self.synced: Counter[str] = Counter()
        self.seen = 0

    # -- what the controller believes --------------------------------------------------------------------------------

    def began(self, controller: Controller) -> None:
        """A new life of the controller: it knows of every lease that anybody was told of (F2)."""
        state = controller.machine.state
        assert state.ledger.epoch >= max(self.owners, default=0), "an epoch that was told will be granted again"
        self.seen, self.coming = state.ledger.seq, []
        self.progress = {job_id: _done(controller, job_id) for job_id in state.jobs}

    def step(self, controller: Controller) -> None:
        """After every event: all invariants, nodes held once (I1), and commits that were earned (I7)."""
        machine = controller.machine
        if machine.state.ledger.seq == self.seen:
            return
        check_all(machine.state)
        assert not machine.state.alarms, list(machine.state.alarms)
        holders: dict[str, str] = {}
        for job_id in machine.state.jobs:
            for node in {node for held in controller.processes.orders(job_id).held for node in held.nodes}:
                assert node not in holders, f"I1: {job_id} and {holders[node]} are both told that they hold {node}"
                holders[node] = job_id
        new = []
        for entry in reversed(machine.log):
            if entry.seq <= self.seen:
                break
            new.append(entry)
        self.seen = machine.state.ledger.seq
        self._commits(controller, new)

    def _commits(self, controller: Controller, new: list[Entry]) -> None:
        for job_id, record in controller.machine.state.jobs.items():
            before, after = self.progress.get(job_id, (0, 0, 0)), _done(controller, job_id)
            self.progress[job_id] = after
            for kind, was, now in zip(KINDS, before, after, strict=True):
                if now <= was:
                    continue
                finished = [e for e in new if isinstance(e.event, ev.PhaseFinished) and e.event.job_id == job_id]
                assert (now - was, len(finished)) == (1, 1), f"I7: {job_id} went from {before} to {after} at once"
                event = finished[0].event
                assert isinstance(event, ev.PhaseFinished)
                missing = set(range(self.processes[job_id])) - self.did[event.epoch]
                assert not missing, f"I7: {kind.value}({was}) of {job_id} counts, but ranks {missing} have not done it"
                attempt = 0 if kind is PhaseKind.SYNC else record.attempt
                self.coming.append((finished[0].seq, (job_id, kind, was, attempt)))

    # -- what became durable, and what anybody is told ---------------------------------------------------------------

    def durable(self, batch: Batch, log: deque[Entry], origin: float) -> None:
        if not batch.records:
            return
        first, last = batch.records[0].seq, batch.records[-1].seq
        for entry in reversed(log):
            if entry.seq < first:
                break
            if entry.seq <= last:
                self._commands(entry, origin)
        for record in batch.records:
            if isinstance(record.event, RENEWING):
                self.renewed[record.event.epoch] = record.at - origin
            elif isinstance(record.event, ev.Heartbeats):
                self._beats(record.event, record.at - origin)
        for seq, key in [each for each in self.coming if each[0] <= last]:
            self.coming.remove((seq, key))
            self.commits[key] += 1
            assert self.commits[key] == 1, f"I7: {key} was committed twice"
            if key[1] is PhaseKind.SYNC:
                assert key[2] == self.synced[key[0]], f"I7: {key} was committed after {self.synced[key[0]]} syncs"
                self.synced[key[0]] += 1

    def _beats(self, event: ev.Heartbeats, at: float) -> None:
        """A fenced lease may be named beside others; that renews nothing."""
        self.renewed |= {beat.epoch: at for beat in event.of if at <= self.fenced.get(beat.epoch, inf)}

    def _commands(self, entry: Entry, origin: float) -> None:
        for command in entry.commands:
            if isinstance(command, cmd.Grant):
                self.renewed.setdefault(command.lease.epoch, entry.at - origin)
            elif isinstance(command, cmd.Revoke):
                self.fenced.setdefault(command.epoch, entry.at - origin)
                for epoch in self._gone_on_with(command.epoch):
                    self.fenced.setdefault(epoch, entry.at - origin)
            elif isinstance(command, cmd.Stop):
                self.stopped.setdefault((command.job_id, command.attempt), entry.at - origin)

    def _gone_on_with(self, epoch: int) -> list[int]:
        """Leases before this one whose state may rest for it, where not all of its job have begun under it."""
        of = self.owners.get(epoch, ("", "", 0))[:2]
        return [older for older, meant in self.owners.items() if older < epoch and meant[:2] == of]

    def told(self, job_id: str, answer: object) -> None:
        """A reply leaves: an epoch is of one phase for ever (F2), and its grant is durable (I11)."""
        held: tuple[Held, ...] = ()
        if isinstance(answer, Orders):
            held = answer.held
        elif isinstance(answer, Turn) and answer.lease is not None:
            held = (answer.lease,)
        for lease in held:
            assert lease.epoch in self.renewed, f"I11: {job_id} hears of lease {lease.epoch} before it is durable"
            meant = (job_id, lease.kind.value, lease.iteration)
            known = self.owners.setdefault(lease.epoch, meant)
            assert known == meant, f"F2: epoch {lease.epoch} was granted for {known} and for {meant}"

    # -- what really happens -----------------------------------------------------------------------------------------

    def works_on(self, work: Work, nodes: Iterable[str]) -> None:
        """The real I1: nobody works there but those who have long been given up for lost."""
        for node in sorted(set(nodes) - work.nodes):
            for other in self.works[node]:
                if other.owner != work.owner:
                    older = min(work, other, key=lambda each: each.epoch)
                    assert self._given_up(older), (
                        f"I1: {work} begins on {node} while {other} works there; now {self.now}, "
                        f"older renewed {self.renewed.get(older.epoch)}, fenced {self.fenced.get(older.epoch)}"
                    )
            self.works[node].append(work)
            work.nodes.add(node)

    def leaves(self, work: Work, nodes: Iterable[str] | None = None) -> None:
        for node in list(work.nodes if nodes is None else nodes):
            if work in self.works[node]:
                self.works[node].remove(work)
            work.nodes.discard(node)

    def rests(self, work: Work) -> Work:
        """Its work is done, and its state stays: nobody may begin there before that has left."""
        work.rests = True
        return work

    def _given_up(self, work: Work) -> bool:
        """Silent for the lease and the drain; or, where nobody else can end it, not reached since it was to vanish.

        State that rests needs no signs of life for its lease: it was told to vanish, or nobody heard of its job.
        """
        now, drain_s = self.now + 1e-6, self.timing.drain_s
        if not work.rests and now - self.renewed.get(work.epoch, 0.0) >= self.timing.lease_s + drain_s:
            return True
        told = [self.fenced.get(work.epoch, inf), self.stopped.get((work.owner[0], work.attempt), inf)]
        long_ago = [at for at in told if at <= now - drain_s]
        if work.launched:
            return work.rests and bool(long_ago)
        return any(work.reached_at <= at for at in long_ago) or (work.rests and work.reached_at <= now - SILENT_S)


def _done(controller: Controller, job_id: str) -> tuple[int, int, int]:
    progress = controller.machine.state.jobs[job_id].progress
    return progress.rolled, progress.trained, progress.synced

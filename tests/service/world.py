"""A whole world around the real controller, drawn from one seed: processes, launcher, nodes, network, disk, and faults.

Nothing here reads a clock or another source of chance, so that a seed is a run. First everything may fail; after `heal`
nothing does any more, and every job must end within `bound_s`.
"""

import heapq
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from math import inf
from random import Random

from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.hardware import GB, Cluster, NodeType, Pool
from rollmux.mux.image import image
from rollmux.mux.job import JobSpec, PhaseSpec, Tail
from rollmux.mux.order import Order
from rollmux.mux.policies import Policy
from rollmux.mux.policies.paper import PaperPolicy
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.weave import Timing
from rollmux.protocol.job_file import Submission
from rollmux.service.controller import Controller
from rollmux.service.history import History
from rollmux.service.journal import Record, checksum
from rollmux.service.live import SILENT_S
from tests.service.host_model import HostModel
from tests.service.job_model import Process
from tests.service.memory_journal import MemoryJournal
from tests.service.outside import Launcher, Owner, Provider
from tests.service.watch import Watch

TIMING = Timing(lease_s=15.0, drain_s=10.0)
RULES = Rules(timing=TIMING, move_s=30.0, log_limit=5_000)
CHEAP = NodeType("cheap", 8, 1.85, 96 * GB, 1000 * GB)
DEAR = NodeType("dear", 8, 5.28, 80 * GB, 1000 * GB)
CLUSTERS = (
    Cluster(Pool("rollout", CHEAP), Pool("train", DEAR)),
    Cluster(Pool("rollout", CHEAP, max_nodes=3), Pool("train", DEAR, max_nodes=2)),
    Cluster(Pool("rollout", CHEAP, False, 3), Pool("train", DEAR, False, 2)),
    Cluster(Pool("all", DEAR, max_nodes=4), Pool("all", DEAR, max_nodes=4)),
)
SAFETY_S = 200.0
FOR_EVER_S = 1e6
KEEPS = (0, 200, 10**6)  # records that a journal keeps


class World:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.now = 0.0
        self.faults = True
        self.loss, self.repeat, self.late = rng.uniform(0.0, 0.3), rng.uniform(0.0, 0.5), rng.uniform(0.0, 0.3)
        self.deaths = rng.choice([0.0, 0.002, 0.01])  # of the controller, at each write
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._names = count(), count()
        self.rules, self.begun_in = RULES, rng.choice(CLUSTERS)
        self.cluster = self.begun_in
        make: Callable[..., Policy] = rng.choice((PaperPolicy, RollmuxPolicy, RollmuxPolicy))
        self.order = order = rng.choice([*Order, Order.URGENCY])
        self.policy: Callable[[], Policy] = lambda: make(order=order)
        self.submissions = {f"job{i}": _submission(rng, f"job{i}") for i in range(rng.randint(2, 5))}
        self.watch = Watch(TIMING, {name: each.processes for name, each in self.submissions.items()})
        self.journal = MemoryJournal(KEEPS[seed % len(KEEPS)])
        self.played: list[Record] = []  # all that became durable
        self.follower = ClusterMachine(self.begun_in, self.policy(), self.rules)  # plays all records, never an image
        self.history = History(self.follower.state)
        self.launcher, self.provider = Launcher(self), Provider(self)
        self.host = HostModel(self)
        self.owners = [Owner(self, name) for name in self.submissions]
        self._begin()

    def _begin(self) -> None:
        for node, pool in self.cluster.fixed_nodes.items():
            self.provider.get(node, pool)
        for owner in self.owners:
            self.after(self.rng.uniform(0.0, 60.0), owner.submit)
        self._something_fails()

    # -- time and messages -------------------------------------------------------------------------------------------

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        self.at(self.now + delay_s, act)

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), act))

    def run(self, until: float, over: Callable[[], bool] = lambda: False) -> None:
        while self._heap and self._heap[0][0] <= until and not over():
            self.now, _, act = heapq.heappop(self._heap)
            self.watch.now = self.now
            act()
        self.now = self.now if over() else until

    def network(self, deliver: Callable[[], None]) -> None:
        """One message: lost, repeated, late, and so out of order."""
        rng = self.rng
        if self.faults and rng.random() < self.loss:
            return
        for _ in range(1 + (self.faults and rng.random() < self.repeat)):
            late = self.faults and rng.random() < self.late
            self.after(rng.uniform(0.05, 5.0) if late else rng.uniform(0.001, 0.05), deliver)

    def report(self, say: Callable[[Callable[[], None]], None], times: int = 0) -> None:
        """Says something until it has been heard; sometimes once more, long after."""
        done: list[bool] = []

        def again() -> None:
            if not done:
                say(lambda: done.append(True))
                self.after(2.0, again)

        self.after(self.rng.uniform(0.0, 3.0) if self.faults else 0.0, again)
        if self.faults and self.rng.random() < 0.3:
            self.after(self.rng.uniform(5.0, 40.0), lambda: say(lambda: None))

    def name_instance(self, job_id: str) -> str:
        return f"{job_id}-{next(self._names)}"

    # -- faults ------------------------------------------------------------------------------------------------------

    def dies_here(self) -> str:
        """Whether the controller dies at this write, and at which point of it."""
        fatal = self.faults and self.rng.random() < self.deaths
        return self.rng.choice(["before", "after", "amid"]) if fatal else ""

    def _something_fails(self) -> None:
        if self.faults:
            self.after(self.rng.uniform(5.0, 40.0), self._something_fails)
            faults = [self.host.crash, self._disk_fills, self._kill, self._hang, self._hang, self._cut, self._cut]
            self.rng.choice([*faults, self._lose_node, self._cancel, self._kill_early])()

    def _processes(self) -> list[Process]:
        known = [process for ranks in self.launcher.runs.values() for process in ranks]
        started = [process for owner in self.owners for process in owner.ranks]
        return [process for process in [*known, *started] if process.alive]

    def _anyone(self) -> Process | None:
        alive = self._processes()
        return self.rng.choice(alive) if alive else None

    def _kill(self) -> None:
        if (process := self._anyone()) is not None:
            process.end("killed by signal 9")

    def _kill_early(self) -> None:
        for owner in self.owners:
            owner.kill_early()

    def _hang(self) -> None:
        """All ranks of a job stop, as those do that wait for one another."""
        if (process := self._anyone()) is not None:
            until = self.now + self.rng.choice([8.0, 30.0, 70.0, FOR_EVER_S])
            for rank in self._ranks(process):
                rank.hang(until)

    def _cut(self) -> None:
        if (process := self._anyone()) is not None:
            until = self.now + self.rng.choice([5.0, 30.0, 70.0])
            for rank in self._ranks(process) if self.rng.random() < 0.7 else [process]:
                rank.cut_until = until

    def _ranks(self, process: Process) -> list[Process]:
        if process.launched_as is None:
            return next(owner.ranks for owner in self.owners if process in owner.ranks)
        return self.launcher.runs.get((process.job_id, process.launched_as), [process])

    def _disk_fills(self) -> None:
        self.journal.full = True
        self.after(self.rng.uniform(1.0, 5.0), self._disk_is_free)

    def _disk_is_free(self) -> None:
        self.journal.full = False

    def _lose_node(self) -> None:
        if self.provider.nodes:
            self.provider.lose(self.rng.choice(sorted(self.provider.nodes)))

    def _cancel(self) -> None:
        if self.rng.random() < 0.5:
            self.rng.choice(self.owners).cancel()

    # -- what operators do -------------------------------------------------------------------------------------------

    def edited_cluster(self) -> Cluster:
        """What the cluster's file says when a controller is next started: nodes for all jobs, whatever they cost."""
        rng = self.rng
        if not self.faults or rng.random() < 0.5:
            return self.cluster
        role = rng.choice(["rollout", "train"])
        pool: Pool = getattr(self.cluster, role)
        node = replace(pool.node_type, usd_per_gpu_hour=rng.choice([1.85, 5.28, 20.0]))
        most = rng.choice([2, 3] if not pool.on_demand else [4, 5] if self.cluster.shared else [2, 3, 4, None])
        pool = replace(pool, node_type=node, max_nodes=most)
        return Cluster(pool, pool) if self.cluster.shared else replace(self.cluster, **{role: pool})

    def become(self, cluster: Cluster) -> None:
        """Machines come and go with what the file says."""
        standing = cluster.fixed_nodes
        if cluster != self.cluster and standing:
            for node in sorted(self.provider.wanted - standing.keys()):
                self.provider.give_back(node)
            for node, pool in standing.items():
                self.provider.get(node, pool)
        self.cluster = cluster

    # -- what must come of it ----------------------------------------------------------------------------------------

    def replays_to(self, controller: Controller) -> None:
        """I11: the journal leads to the state that was, with images or without them."""
        machine = controller.machine
        self.follow()
        if machine.state.ledger.seq == self.follower.state.ledger.seq:
            assert image(machine) == image(self.follower), "I11: the journal leads elsewhere than what happened"
            assert controller.history.saved() == self.history.saved(), "the history depends on how it was heard"

    def follow(self) -> None:
        """Plays what is durable, before the journal may let go of it."""
        for record in self.journal.records(self.follower.state.ledger.seq):
            self.played.append(record)
            commands = self.follower.handle(record.at, record.event)
            self.history.heard(record.at, record.event, commands)
            told = checksum(commands)
            assert (self.follower.state.ledger.seq, told) == (record.seq, record.told), f"I11: {record} leads elsewhere"

    def heal(self) -> None:
        """From here on nothing fails. What is dead stays so, and who hangs and holds a lease hangs for ever."""
        self.faults = self.journal.full = False
        for process in self._processes():
            process.cut_until = 0.0
        self.after(30.0, self._wake)

    def _wake(self) -> None:
        """A job that hangs and holds no lease that could run out is in nobody's way: its owner must look after it. The
        controller looks after one that it has no launcher for.
        """
        weaves = self.host.controller.machine.state.weaves.values()
        leases = [lane for weave in weaves for lane in weave.leases.values()]
        found = {lane.seat.job.id for lane in leases if lane.deadline < inf}
        for process in self._processes():
            if process.launched_as is not None and process.job_id not in found:
                process.wake()
        self.after(30.0, self._wake)

    @property
    def bound_s(self) -> float:
        """All jobs one after the other, each at its slowest, after each hung holder was given up and all nodes came."""
        give_up_s = TIMING.lease_s + TIMING.drain_s + 30.0
        each = [
            (job.iterations or 0) * (3 * (job.rollout.duration_s + job.train.duration_s + job.sync_s) + 60.0)
            + 2 * give_up_s
            for job in (submission.job for submission in self.submissions.values())
        ]
        alone = [submission.job for submission in self.submissions.values() if not submission.command]
        return 120.0 + 2 * sum(each) + sum(job.max_attempts * (SILENT_S + 10.0) for job in alone)

    def over(self) -> bool:
        """Every job was taken and has ended, and what was rented is given back."""
        ended = self.host.controller.machine.state.ended
        return all(owner.job_id in ended for owner in self.owners) and not self.left()

    def left(self) -> list[str]:
        """What is still to come to its end."""
        state = self.host.controller.machine.state
        left = [owner.job_id for owner in self.owners if not owner.accepted or owner.job_id not in state.ended]
        left += [f"attempt {attempt} of {job_id}" for job_id, attempt in self.launcher.runs]
        return left + (sorted({*state.book.nodes, *self.provider.nodes}) if self.cluster.rollout.on_demand else [])


def _submission(rng: Random, name: str) -> Submission:
    launched = rng.random() < 0.75
    rollout, train = _phase(rng), _phase(rng)
    tail = Tail(10, rng.choice([1, 2, 5]), rollout.duration_s / 2) if rng.random() < 0.5 else None
    spares = rng.choice([0, 0, 1, 3]) if rollout.nodes == 1 else 0
    job = JobSpec(
        id=name,
        rollout=rollout,
        train=train,
        slo=rng.choice([1.2, 2.0, 4.0, 8.0]),
        sync_s=rng.choice([0.0, 2.0]),
        iterations=rng.randint(1, 3),
        tail=tail,
        elastic_rollout=rng.random() < 0.5,
        rollout_spares=spares,
        priority=rng.choice([0, 0, 1]),
        max_attempts=8,
    )
    return Submission(job, ("python", "job.py") if launched else (), processes=1 if spares else rng.randint(1, 3))


def _phase(rng: Random) -> PhaseSpec:
    load_s = rng.choice([0.0, 0.0, 2.0])
    return PhaseSpec(
        duration_s=rng.choice([5.0, 10.0, 20.0, 60.0]),
        nodes=rng.choice([1, 1, 2]),
        resident_bytes=rng.choice([0, 200 * GB, 450 * GB]),
        load_s=load_s,
        offload_s=load_s / 2,
        pause_s=rng.choice([None, 0.0, 0.0, 3.0]),
    )

"""The moment between a grant that is written and one that is sent, over and over (F2): two jobs that share two nodes,
and a controller that dies before a write, after it, or only loses its answer.

`python -m tests.service.grants 100000` plays so many seeds on all cores. Nothing else goes wrong here, so that a seed
takes milliseconds: `seeds.py` plays everything at once.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import TypeVar

from rollmux.mux import events as ev
from rollmux.mux.cluster_state import Checks, Rules
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.weave import Timing
from rollmux.protocol.job_file import Submission
from rollmux.protocol.messages import Ask, Attach, Heard, Held, Listen, Report, Said
from rollmux.service.journal import Image
from rollmux.service.recovery import recover
from tests.service.memory_journal import MemoryJournal
from tests.service.serving import PAIR

T = TypeVar("T")

RULES = Rules(timing=Timing(1000.0, 10.0), checks=Checks.ALL)
STEPS, BLOCK = 24, 500
KINDS = (PhaseKind.ROLLOUT, PhaseKind.TRAIN, PhaseKind.SYNC)
# Where a phase of a job stands: which job, which kind, which iteration.
Key = tuple[str, PhaseKind, int]


class Lost(Exception):
    """The caller has heard no answer: it will call again."""


class Worker:
    """A job as its SDK sees it: nothing is known but what has been answered."""

    def __init__(self, name: str) -> None:
        self.name, self.done = name, 0
        self.lease: Held | None = None
        self.started = False

    @property
    def key(self) -> Key:
        return self.name, KINDS[self.done % 3], self.done // 3


class Grants:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now = Random(seed), 0.0
        self.journal = MemoryJournal()
        self.lives = self.crashes_with_a_grant = 0
        self.epoch_of: dict[Key, int] = {}  # of grants that are durable, sent or not
        self._recover()
        self.workers = [Worker("a"), Worker("b")]
        for pool in ("rollout", "train"):
            self.controller.tell(0.0, ev.NodeJoined(f"{pool}-0", pool))
        for worker in self.workers:
            spec = JobSpec(worker.name, PhaseSpec(2.0, 1, resident_bytes=1), PhaseSpec(2.0, 1), 4.0)
            self.controller.submit(0.0, "team", Submission(spec))
            self.controller.processes.attach(0.0, worker.name, Attach("one"))
        self._write()

    def run(self) -> None:
        for _ in range(STEPS):
            self.now += 0.01
            worker = self.rng.choice(self.workers)
            try:
                self._step(worker)
            except Lost:
                continue

    def _step(self, worker: Worker) -> None:
        name, kind, iteration = worker.key
        calls = self.controller.processes
        orders = self._call(worker, lambda: calls.listen(self.now, name, Listen(1)))
        for held in orders.held:
            if held.state == "offloading":
                self._say(worker, Said.OFFLOADED, held.epoch)
        if worker.lease is None:
            turn = self._call(worker, lambda: calls.ask(self.now, name, Ask(1, kind, iteration)))
            if turn.done:  # its end was durable, and the answer was lost
                worker.done += 1
            worker.lease, worker.started = turn.lease, False
        elif not worker.started:
            assert self._say(worker, Said.STARTED, worker.lease.epoch).holds
            worker.started = True
        else:
            heard = self._say(worker, Said.FINISHED, worker.lease.epoch)
            worker.done += heard.committed
            worker.lease = None

    def _say(self, worker: Worker, said: Said, epoch: int) -> Heard:
        calls = self.controller.processes
        return self._call(worker, lambda: calls.report(self.now, worker.name, Report(said, epoch)))

    def _call(self, worker: Worker, rule: Callable[[], T]) -> T:
        """The answer, unless the controller dies before it is written or sent, or it is lost on its way."""
        fate = self.rng.random()
        answer = rule()
        if fate < 0.1:
            self._recover()
            raise Lost
        granted = self._write()
        if fate < 0.3:
            self.crashes_with_a_grant += granted
            self._recover()
            raise Lost
        if fate < 0.4:
            raise Lost
        return answer

    def _write(self) -> bool:
        """What is now durable; whether there is a grant among it."""
        batch = self.controller.take()[0]
        self.journal.append(batch)
        state = self.controller.machine.state
        if self.rng.random() < 0.1:
            self.journal.keep(Image(state.ledger.seq, state.now, self.controller.image()))
        return self._look()

    def _look(self) -> bool:
        """The leases of durable state: each phase has had one epoch ever, each node one holder."""
        fresh = False
        held: dict[str, Key] = {}
        for weave in self.controller.machine.state.weaves.values():
            for epoch, lane in weave.leases.items():
                key = (lane.seat.job.id, lane.kind, lane.iteration - lane.wanted)
                fresh |= key not in self.epoch_of
                assert self.epoch_of.setdefault(key, epoch) == epoch, f"{key} was granted twice"
                for node in lane.held:
                    assert held.setdefault(node, key) == key, f"{node} is held by {held[node]} and {key}"
        assert len(set(self.epoch_of.values())) == len(self.epoch_of), "two phases with one epoch"
        return fresh

    def _recover(self) -> None:
        self.controller, now = recover(self.journal, PAIR, RollmuxPolicy(), RULES)
        self.now = max(self.now, now)
        self.lives += 1
        self._look()


def breaches(seeds: range) -> tuple[list[str], int]:
    """What goes wrong in any of these; and in how many the controller died with a grant that was not sent."""
    found, reached = [], 0
    for seed in seeds:
        try:
            played = Grants(seed)
            played.run()
            reached += played.crashes_with_a_grant > 0
        except Exception as error:  # noqa: BLE001  whatever it is, it is of this seed
            found.append(f"seed {seed}: {type(error).__name__}: {error}")
    return found, reached


def all_of(count: int) -> tuple[list[str], int]:
    blocks = [range(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK)]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        results = list(pool.map(breaches, blocks))
    return [each for found, _ in results for each in found], sum(reached for _, reached in results)


if __name__ == "__main__":
    violations, died = all_of(int(sys.argv[1]))
    print(*violations[:20], f"{sys.argv[1]} seeds, {died} with a grant unsent; violations: {len(violations)}", sep="\n")
    sys.exit(bool(violations))

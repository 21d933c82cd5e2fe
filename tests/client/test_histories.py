"""Histories by lot: a script that gives up its phases as they begin, work and end, and asks again, beside a neighbour;
and scripts of one or two processes that the network cuts off for longer than a lease, now and then.

Which history a seed makes depends on the threads, too. What is checked holds in all of them.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic, sleep

import pytest

from rollmux.client import AlreadyCommitted, LeaseLost, Mux, Phase
from rollmux.mux.job import PhaseKind
from tests.client.world import Crowd, World, job_data, soon

STEPS = 4


class Broken(Exception):
    """What a body or a state raises now and then."""


@dataclass
class Nodes:
    """Whose state is on the nodes of a kind, by job and rank, and what was seen that must not be."""

    here: set[tuple[str, str, int]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def comes(self, kind: str, job: str, rank: int) -> None:
        with self.lock:
            mine = (kind, job, rank)
            met = [each for each in self.here if each[0] == kind and each[1] != job] + [mine] * (mine in self.here)
            if met:
                self.faults.append(f"the state of {mine} comes where that of {met} is")
            self.here.add(mine)

    def leaves(self, kind: str, job: str, rank: int) -> None:
        with self.lock:
            if (kind, job, rank) not in self.here:
                self.faults.append(f"the state of {(kind, job, rank)} leaves where it is not")
            self.here.discard((kind, job, rank))

    def check(self, kind: str, job: str, rank: int) -> None:
        if (kind, job, rank) not in self.here:
            self.faults.append(f"{(kind, job, rank)} is at work without its state")


@dataclass
class State:
    """It moves slowly, and sometimes not at all."""

    nodes: Nodes
    kind: str
    job: str
    rank: int
    lots: random.Random

    def load(self) -> None:
        self.nodes.comes(self.kind, self.job, self.rank)
        sleep(self.lots.random() * 0.03)
        if self.lots.random() < 0.05:
            raise Broken

    def offload(self) -> None:
        sleep(self.lots.random() * 0.03)
        self.nodes.leaves(self.kind, self.job, self.rank)


@dataclass
class Script:
    """Each step is a rollout, a training and a sync, each tried until it counts."""

    mux: Mux
    nodes: Nodes
    job: str
    rank: int
    lots: random.Random
    steps: int = STEPS
    gives_up: float = 0.6
    between: Callable[[], object] = lambda: None
    stage: str = ""
    counted: list[tuple[str, int]] = field(default_factory=list)

    async def run(self) -> None:
        states = {kind: State(self.nodes, kind, self.job, self.rank, self.lots) for kind in ("rollout", "train")}
        for step in range(self.steps):
            for kind in PhaseKind:
                phase = self.mux.phase(kind.value, state=states.get(kind.value), iteration=step)
                while not await self.counts(phase, kind.value):
                    self.between()
                self.between()
                self.counted.append((kind.value, step))

    async def counts(self, phase: Phase, kind: str) -> bool:
        stages = ["enters", "works", "ends"]
        self.stage, at = "enters", self.lots.choice(stages) if self.lots.random() < self.gives_up else "never"
        trying = asyncio.create_task(self.work(phase, kind))
        while not trying.done() and at != "never":
            if self.stage == at:
                await asyncio.wait({trying}, timeout=self.lots.random() * 0.03)
                trying.cancel()
                break
            await asyncio.sleep(0.001)
        try:
            await trying
        except AlreadyCommitted:
            return True
        except (asyncio.CancelledError, LeaseLost, Broken):
            return False
        return True

    async def work(self, phase: Phase, kind: str) -> None:
        async with phase:
            self.stage = "works"
            for _ in range(self.lots.randrange(12)):
                if kind != "sync" and phase.epoch and not phase.lost:
                    self.nodes.check(kind, self.job, self.rank)
                await asyncio.sleep(0.003)
            self.stage = "ends"
            if self.lots.random() < self.gives_up / 6:
                raise Broken


@pytest.mark.parametrize("seed", range(4))
def test_who_gives_up_and_asks_again_never_meets_a_neighbour_and_does_each_step_once(seed: int) -> None:
    world, nodes, crowd, lots = World(lease_s=5.0), Nodes(), Crowd(), random.Random(seed)

    def fate(verb: str, message: object) -> str:
        return lots.choice(["lost", "unheard", "twice", "late"]) if lots.random() < 0.1 else ""

    def work(name: str) -> None:
        mine = random.Random(f"{name} {seed}")
        with world.connect(job_data(name), wait_s=mine.choice([0.05, 0.5])) as mux:
            script = Script(mux, nodes, name, 0, mine)
            asyncio.run(script.run())
            assert script.counted == [(kind.value, step) for step in range(STEPS) for kind in PhaseKind]
            assert mux._link is not None
            link = mux._link
            soon(lambda: not link.stints)
            assert world.record(name).progress.synced == STEPS
            assert world.record(name).attempt == 1

    world.fate = fate
    for name in "ab":
        crowd.start(lambda name=name: work(name))  # type: ignore[misc]
    crowd.join()
    assert nodes.faults == []
    assert {world.ended(name) for name in "ab"} == {"finished"}
    assert nodes.here == set()


LEASE_S = 0.2


@pytest.mark.parametrize("seed", range(2))
def test_who_is_cut_off_for_longer_than_a_lease_meets_nobody_and_is_not_ended(seed: int) -> None:
    """Whoever is between two phases stays so until no lease of its job is left that was lost, by whomever."""
    world, nodes, crowd, lots = World(lease_s=LEASE_S, drain_s=6.0), Nodes(), Crowd(), random.Random(seed)
    cut_until: dict[str, float] = {}
    processes = {"a": lots.choice([1, 2]), "b": lots.choice([0, 1, 2])}

    def fate(verb: str, message: object) -> str:
        life, now = getattr(message, "instance", ""), monotonic()
        if now < cut_until.get(life, 0.0):
            return "lost"
        if verb in ("ask", "report", "listen") and lots.random() < (0.12 if verb == "ask" else 0.004):
            cut_until[life] = now + 2 * LEASE_S
            return "unheard"
        return ""

    def work(name: str, rank: int) -> None:
        mine = random.Random(f"{name} {rank} {seed}")

        def between() -> None:
            sleep(mine.choice([0.0, 0.0, 0.0, 0.0, 2 * LEASE_S]))
            soon(lambda: not any(held.state == "fenced" for held in world.controller.processes.orders(name).held), 9.0)

        sleep(mine.random() * LEASE_S)
        with world.connect(job_data(name, staleness=1), rank=rank, processes=processes[name], wait_s=0.5) as mux:
            script = Script(mux, nodes, name, rank, mine, 2, 0.1, between)
            asyncio.run(script.run())
            assert script.counted == [(kind.value, step) for step in range(2) for kind in PhaseKind]
            assert world.record(name).attempt == 1

    world.fate = fate
    for name, count in processes.items():
        for rank in range(count):
            crowd.start(lambda name=name, rank=rank: work(name, rank))  # type: ignore[misc]
    crowd.join(60.0)
    assert nodes.faults == []
    assert {world.ended(name) for name, count in processes.items() if count} == {"finished"}
    assert nodes.here == set()

"""Histories by lot: a script that gives up its phases as they begin, work and end, and asks again, beside a neighbour.

Which history a seed makes depends on the threads, too. What is checked holds in all of them.
"""

import asyncio
import random
from dataclasses import dataclass, field
from threading import Lock
from time import sleep

import pytest

from rollmux.client import AlreadyCommitted, LeaseLost, Mux, Phase
from rollmux.mux.job import PhaseKind
from tests.client.world import Crowd, World, job_data, soon

STEPS = 4


class Broken(Exception):
    """What a body or a state raises now and then."""


@dataclass
class Nodes:
    """Whose state is on the nodes of a kind, and what was seen that must not be."""

    here: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def comes(self, kind: str, job: str) -> None:
        with self.lock:
            if kind in self.here:
                self.faults.append(f"the state of {job} comes to the {kind} nodes, where that of {self.here[kind]} is")
            self.here[kind] = job

    def leaves(self, kind: str, job: str) -> None:
        with self.lock:
            if self.here.pop(kind, "") != job:
                self.faults.append(f"the state of {job} leaves the {kind} nodes, where it is not")

    def check(self, kind: str, job: str) -> None:
        if self.here.get(kind) != job:
            self.faults.append(f"{job} is at work on the {kind} nodes without its state")


@dataclass
class State:
    """It moves slowly, and sometimes not at all."""

    nodes: Nodes
    kind: str
    job: str
    lots: random.Random

    def load(self) -> None:
        self.nodes.comes(self.kind, self.job)
        sleep(self.lots.random() * 0.03)
        if self.lots.random() < 0.05:
            raise Broken

    def offload(self) -> None:
        sleep(self.lots.random() * 0.03)
        self.nodes.leaves(self.kind, self.job)


@dataclass
class Script:
    """Each step is a rollout, a training and a sync, each tried until it counts."""

    mux: Mux
    nodes: Nodes
    job: str
    lots: random.Random
    stage: str = ""
    counted: list[tuple[str, int]] = field(default_factory=list)

    async def run(self) -> None:
        states = {kind: State(self.nodes, kind, self.job, self.lots) for kind in ("rollout", "train")}
        for step in range(STEPS):
            for kind in PhaseKind:
                phase = self.mux.phase(kind.value, state=states.get(kind.value), iteration=step)
                while not await self.counts(phase, kind.value):
                    pass
                self.counted.append((kind.value, step))

    async def counts(self, phase: Phase, kind: str) -> bool:
        self.stage, at = "enters", self.lots.choice(["enters", "works", "ends", "never", "never"])
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
                    self.nodes.check(kind, self.job)
                await asyncio.sleep(0.003)
            self.stage = "ends"
            if self.lots.random() < 0.1:
                raise Broken


@pytest.mark.parametrize("seed", range(4))
def test_who_gives_up_and_asks_again_never_meets_a_neighbour_and_does_each_step_once(seed: int) -> None:
    world, nodes, crowd, lots = World(lease_s=5.0), Nodes(), Crowd(), random.Random(seed)

    def fate(verb: str, message: object) -> str:
        return lots.choice(["lost", "unheard", "twice", "late"]) if lots.random() < 0.1 else ""

    def work(name: str) -> None:
        mine = random.Random(f"{name} {seed}")
        with world.connect(job_data(name), wait_s=mine.choice([0.05, 0.5])) as mux:
            script = Script(mux, nodes, name, mine)
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
    assert nodes.here == {}

"""The GPUs of a node that jobs share, for frameworks that are played: who is on them, and by which lease."""

from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from rollmux.protocol.messages import Report, Said
from tests.client.world import World


@dataclass
class Gpus:
    """Who is on them, and what was done there. Nobody comes who holds no lease of this world."""

    world: World | None = None
    on: dict[str, set[str]] = field(default_factory=dict)
    done: list[tuple[str, str]] = field(default_factory=list)
    moves: int = 0  # parts that came
    lock: Lock = field(default_factory=Lock)

    def come(self, job: str, what: str) -> None:
        if self.world is not None:
            assert held_by(self.world, job), f"{what} of {job} without a lease"
        with self.lock:
            on = self.on.setdefault(job, set())
            self.moves += what not in on
            on.add(what)
            assert list(self.on) == [job], f"{job} meets others: {self.on}"

    def leave(self, job: str, what: str) -> None:
        with self.lock:
            on = self.on.get(job, set())
            on.discard(what)
            if not on:
                self.on.pop(job, None)

    def work(self, job: str, what: str, *here: str) -> None:
        with self.lock:
            assert self.on[job] >= set(here), f"{what} of {job} without {here}"
            self.done.append((job, what))


class Emptied(World):
    """One node for both phases. A job that says that its lease is over must have left the GPUs."""

    def __init__(self, **more: Any) -> None:
        super().__init__(shared=1, **more)
        self.gpus, self.left_behind = Gpus(self), list[str]()

    def _answer(self, job_id: str, verb: str, message: Any) -> Any:
        if isinstance(message, Report) and message.said in {Said.FINISHED, Said.FAILED} and job_id in self.gpus.on:
            self.left_behind.append(f"{self.gpus.on[job_id]} of {job_id}, which said {message.said.value}")
        return super()._answer(job_id, verb, message)


def held_by(world: World, job: str) -> tuple[str, ...]:
    """The kinds of lease that it has."""
    (weave,) = world.machine.state.weaves.values()
    return tuple(kind.value for kind, lane in weave.seats[job].lanes.items() if lane.held)

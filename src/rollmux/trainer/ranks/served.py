"""The work that a follower does for the leader: in a thread of its own, over one line to the leader after the other.

Invariant: the thread works on its node only while this process has the lease of its phase.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from threading import Event as Flag
from time import monotonic, sleep
from typing import Any, ClassVar

import msgspec

from rollmux.client.kin import Kin
from rollmux.runtime.engine import Begun, Engine, Event
from rollmux.runtime.engine.afar import serve
from rollmux.runtime.sync import Mark, Receiver, Weights
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken, SyncFailed
from rollmux.runtime.sync.tensors import as_torch
from rollmux.trainer.device import Berth
from rollmux.trainer.ranks.landing import landed, put
from rollmux.trainer.ranks.lead import JOIN_S
from rollmux.trainer.ranks.meeting import reach
from rollmux.trainer.ranks.orders import WORK, Begin, hear
from rollmux.trainer.ranks.share import heard, take_part
from rollmux.trainer.update import Objective

log = logging.getLogger("rollmux")

Make = Callable[[Any, int], Engine]

_POLL_S, _JOIN_S = 0.005, 0.1
# The longest time from the end of a phase's work until the client takes the phase for ended, on a busy machine.
_ENDING_S = 0.2
# How long the leader may take to end the work: it loses the lease when this process does, but may be amid a step.
REST_S = 5.0


@dataclass(frozen=True, slots=True)
class Post:
    """What a follower works with: its line to the leader, the weights landed on its node, and a model in its berth."""

    folder: Path
    kin: Kin
    leader: Channel
    receiver: Receiver
    model: Any
    berth: Berth


class Served(ABC):
    """A follower's engine or replica: the state of the phases of its `kind`, with `load` and `offload`."""

    kind: ClassVar[str]

    def __init__(self, post: Post) -> None:
        self._post = post
        self._line: Channel | None = None
        self._changed = Condition()
        self._here = self._busy = False  # the nodes are this job's; work is under way on this node
        self._closed = Flag()
        self.works = Flag()  # a phase is under way
        self.failed: Exception | None = None
        self._has: Mark | None = None  # which weights are in the model
        self._thread = Thread(target=self._run, name="rollmux-served", daemon=True)

    @abstractmethod
    def _work(self, line: Channel) -> None:
        """Does what the leader says on this line, until the leader hangs up; no work before `_enter` returns."""

    def _rests(self) -> bool:
        """Whether the work under way rests, so that it is not on the nodes."""
        return False

    # -- the state of the phase --------------------------------------------------------------------------------------

    def load(self) -> None:
        with self._changed:
            self._here = True
            self._changed.notify_all()

    def offload(self) -> None:
        """Gives the leader time to end the work under way; after that the work ends with the line."""
        with self._changed:
            self._here = False
        end = monotonic() + REST_S
        while self._holds and monotonic() < end:
            sleep(_POLL_S)
        while self._holds:
            self._hang_up()
            sleep(_POLL_S)
        self._post.berth.offload()  # usually it has moved already

    def leaves(self, leaves: bool) -> None:
        """The tail moves together. If it is to leave this node, returns once the leader has moved it off; or once the
        phase has surely ended, for then nobody says that the node is free before it is.
        """
        end = monotonic() + _ENDING_S
        while leaves and self._holds and monotonic() < end:
            if self.works.is_set():
                end = monotonic() + _ENDING_S
            sleep(_POLL_S)

    @property
    def _holds(self) -> bool:
        return self._busy and not self._rests()

    def _enter(self, line: Channel) -> None:
        """Waits for the nodes, and marks that work is under way."""
        with self._on_nodes(line):
            self._busy = True

    @contextmanager
    def _on_nodes(self, line: Channel) -> Iterator[None]:
        """Waits for the nodes. They can't be left while the context is open: keep it short."""
        with self._changed:
            self._changed.wait_for(lambda: self._here or self._closed.is_set())
            self._require_wanted(line)
            yield

    def _bring(self, weights: Weights) -> None:
        """Writes these weights into the model, wherever it is, unless it has them."""
        if weights.mark != self._has:
            with self._written(weights):
                put(weights, self._post.model)

    @contextmanager
    def _written(self, weights: Weights) -> Iterator[None]:
        """A context in which the model is written with these weights."""
        self._has = None
        with self._post.berth.writing():
            yield
        self._has = weights.mark

    def _require_wanted(self, line: Channel) -> None:
        """Raises if the nodes are no longer this job's, or the leader has given up what it asked for."""
        if not self._here or line.is_over:
            raise Broken("nobody waits for this any more")

    def _hang_up(self) -> None:
        line = self._line
        if line is not None:
            line.hang_up()

    # ------------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
        self._post.leader.hang_up()
        while self._thread.is_alive():
            self._hang_up()
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._live()
        except Exception as error:
            if not self._closed.is_set():
                log.exception("what process %d does for the job has failed", self._post.kin.rank)
                self.failed = error
        finally:
            self._post.leader.hang_up()

    def _live(self) -> None:
        line = self._line = reach(self._post.folder, self._post.kin, WORK, JOIN_S, self._closed)
        try:
            with suppress(Broken, msgspec.DecodeError):  # the leader has hung up, or is gone
                self._work(line)
        finally:
            line.close()
            self._busy = False


class EngineHere(Served):
    """The engine of a rollout node: each line to the leader has a new engine."""

    kind = "rollout"

    def __init__(self, post: Post, make: Make) -> None:
        super().__init__(post)
        self._make = make
        self._engine: Engine | None = None

    def _work(self, line: Channel) -> None:
        begin, berth = hear(line, Begin), self._post.berth
        self._enter(line)
        with landed(self._post.receiver, begin.version) as weights:
            self._bring(weights)
        berth.load()
        try:
            with closing(self._make(self._post.model, begin.version)) as engine:
                self._engine = engine
                serve(_Driven(engine, berth, partial(self._on_nodes, line), self._update), line)
        finally:
            self._engine = None
            berth.offload()

    def _update(self, version: int, weights: None, begun: Begun) -> None:
        """Updates the engine with the weights that have landed here."""
        assert self._engine is not None
        with landed(self._post.receiver, version) as here, self._written(here):
            self._engine.update(version, as_torch(here), begun)

    def _rests(self) -> bool:
        """True also for an engine that is told to go on, before its first step: that step waits for the nodes."""
        engine = self._engine
        return engine is not None and engine.is_suspended and not self._post.berth.is_here


class ReplicaHere(Served):
    """The learner's replica on a training node that does not lead."""

    kind = "train"

    def __init__(self, post: Post, objective: Objective) -> None:
        super().__init__(post)
        self._objective = objective

    def load(self) -> None:
        """Landed weights are written before the model moves to the device, so they cross with it."""
        with suppress(SyncFailed), self._post.receiver.read() as weights:  # at first nothing has
            self._bring(weights)
        self._post.berth.load()
        super().load()

    def _work(self, line: Channel) -> None:
        while True:
            part = heard(line)
            self._enter(line)
            with landed(self._post.receiver, part.version) as weights:
                self._bring(weights)
            take_part(self._post.model, self._objective, part, line, partial(self._require_wanted, line))
            self._busy = False


class _Driven:
    """An engine whose weights are on the device while it works, and leave before it counts as resting.

    The leader may have the lease before this process does. `resume` does not wait for it, as the leader could not hear
    meanwhile that its lease is lost: the engine goes on with its first step, which waits for the nodes.
    """

    def __init__(
        self,
        engine: Engine,
        berth: Berth,
        on_nodes: Callable[[], AbstractContextManager[None]],
        update: Callable[[int, None, Begun], None],
    ) -> None:
        self._engine, self._berth, self._on_nodes, self.update = engine, berth, on_nodes, update
        self._is_to_go_on = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def is_suspended(self) -> bool:
        return self._engine.is_suspended and not self._is_to_go_on

    def suspend(self, keep: bool) -> None:
        self._is_to_go_on = False
        self._engine.suspend(keep)
        self._berth.offload()

    def resume(self) -> None:
        self._is_to_go_on = self._engine.is_suspended

    def step(self) -> list[Event]:
        self._go_on()
        return self._engine.step()

    def probe(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        self._go_on()
        return self._engine.probe(prompt, count)

    def _go_on(self) -> None:
        if self._is_to_go_on:
            with self._on_nodes():
                self._berth.load()
                self._engine.resume()
            self._is_to_go_on = False

"""What a follower does at the leader's word: in a thread of its own, by one line to the leader after the other.

Invariant: it is at work on its node only while this process has the lease of its phase.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition, Event, Thread
from time import monotonic, sleep
from typing import Any, ClassVar

import msgspec

from rollmux.client.kin import Kin
from rollmux.runtime.engine import Begun, Engine
from rollmux.runtime.engine.afar import serve
from rollmux.runtime.sync import Receiver, Weights
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken
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
# The leader loses the lease when this process does, and may have to end a step first.
REST_S = 5.0


@dataclass(frozen=True, slots=True)
class Post:
    """What a follower works with: its line to the leader, what has landed on its node, and a model in its berth."""

    folder: Path
    kin: Kin
    leader: Channel
    receiver: Receiver
    model: Any
    berth: Berth


class Served(ABC):
    """The state of a phase of this kind, for which `load` and `offload` are called."""

    kind: ClassVar[str]

    def __init__(self, post: Post) -> None:
        self._post = post
        self._line: Channel | None = None
        self._changed = Condition()
        self._here = self._busy = False  # the nodes are this job's; something is under way on this one
        self._closed = Event()
        self.works = Event()  # a phase is under way
        self.failed: Exception | None = None
        self._thread = Thread(target=self._run, name="rollmux-served", daemon=True)

    @abstractmethod
    def _work(self, line: Channel) -> None:
        """Does what the leader says on this line, until it hangs up; nothing before `_enter` returns."""

    def _rests(self) -> bool:
        """Whether what is under way is not on the nodes."""
        return False

    # -- the state of the phase --------------------------------------------------------------------------------------

    def load(self) -> None:
        self._post.berth.load()
        with self._changed:
            self._here = True
            self._changed.notify_all()

    def offload(self) -> None:
        """The leader ends what is under way first, if it can; else it ends with the line."""
        with self._changed:
            self._here = False
        end = monotonic() + REST_S
        while self._holds and monotonic() < end:
            sleep(_POLL_S)
        while self._holds:
            self._hang_up()
            sleep(_POLL_S)
        self._post.berth.offload()

    def leaves(self, leaves: bool) -> None:
        """The tail moves together: returns once the leader has moved it off this node, if it is to, or is done."""
        while leaves and self.works.is_set() and self._holds:
            sleep(_POLL_S)

    @property
    def _holds(self) -> bool:
        return self._busy and not self._rests()

    def _enter(self, line: Channel) -> None:
        """Waits for the nodes: from now on something is under way."""
        with self._on_nodes(line):
            self._busy = True

    @contextmanager
    def _on_nodes(self, line: Channel) -> Iterator[None]:
        """Waits for the nodes, which stay this job's meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._here or self._closed.is_set())
            self._require_wanted(line)
            yield

    @contextmanager
    def _landed(self, version: int) -> Iterator[Weights]:
        """The weights of this version, which are written to the model meanwhile."""
        with landed(self._post.receiver, version) as weights, self._post.berth.writing():
            yield weights

    def _require_wanted(self, line: Channel) -> None:
        """Raises where the nodes are somebody else's by now, or the leader has given up what it asked for."""
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
    """The engine of a rollout node: one life for each line."""

    kind = "rollout"

    def __init__(self, post: Post, make: Make) -> None:
        super().__init__(post)
        self._make = make
        self._engine: Engine | None = None

    def _work(self, line: Channel) -> None:
        begin = hear(line, Begin)
        self._enter(line)
        with self._landed(begin.version) as weights:
            put(weights, self._post.model)
        with closing(self._make(self._post.model, begin.version)) as engine:
            self._engine = engine
            try:
                serve(_Driven(engine, partial(self._on_nodes, line), self._landed), line)
            finally:
                self._engine = None

    def _rests(self) -> bool:
        engine = self._engine
        return engine is not None and engine.is_suspended


class ReplicaHere(Served):
    """The learner's replica on a training node that does not lead."""

    kind = "train"

    def __init__(self, post: Post, objective: Objective) -> None:
        super().__init__(post)
        self._objective = objective

    def _work(self, line: Channel) -> None:
        while True:
            part = heard(line)
            self._enter(line)
            with self._landed(part.version) as weights:
                put(weights, self._post.model)
            take_part(self._post.model, self._objective, part, line, partial(self._require_wanted, line))
            self._busy = False


class _Driven:
    """An engine that goes on once its nodes are this job's, and whose new weights are those that have landed there."""

    def __init__(
        self,
        engine: Engine,
        on_nodes: Callable[[], AbstractContextManager[None]],
        landed: Callable[[int], AbstractContextManager[Weights]],
    ) -> None:
        self._engine, self._on_nodes, self._landed = engine, on_nodes, landed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def update(self, version: int, weights: None, begun: Begun) -> None:
        with self._landed(version) as weights_here:
            self._engine.update(version, as_torch(weights_here), begun)

    def resume(self) -> None:
        """The leader may have the lease already: it waits for this process to have it, too."""
        with self._on_nodes():
            self._engine.resume()

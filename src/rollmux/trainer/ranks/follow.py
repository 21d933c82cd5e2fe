"""A follower's side: an engine on a rollout node, which the leader drives, and a part in every phase of the job.

Invariant: there is an engine with memory only while this process has the lease of a rollout, and the leader, who drives
it, can't say that the nodes are free while this process does not.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import msgspec

from rollmux.client import AlreadyCommitted, LeaseLost, Mux
from rollmux.client.kin import Kin
from rollmux.runtime.engine import Begun, Engine
from rollmux.runtime.engine.afar import serve
from rollmux.runtime.sync import Receiver, SyncFailed, Weights
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken
from rollmux.runtime.sync.tensors import as_torch
from rollmux.trainer.errors import RanksApart
from rollmux.trainer.ranks.landing import plan_for, put
from rollmux.trainer.ranks.lead import JOIN_S
from rollmux.trainer.ranks.meeting import host_memory, reach, token
from rollmux.trainer.ranks.orders import ENGINE, FOLLOW, Begin, Bye, Enter, Joined, Order, Over, hear, say

log = logging.getLogger("rollmux")

Make = Callable[[Any, int], Engine]
_POLL_S, _JOIN_S = 0.005, 0.1
# The leader loses the lease when this process does, and may have to end a step first.
_REST_S = 5.0


def follow(mux: Mux, folder: Path, followers: int, model: Any, make: Make) -> None:
    """Until the job is done. `make` makes an engine over the model, whose weights are of this version then."""
    kin = mux.kin
    with ExitStack() as resources:
        landing = resources.enter_context(host_memory())
        plan = plan_for(model, followers)
        receiver = Receiver(plan, kin.rank, landing, token(kin), [f"tcp://{kin.host}:0"])
        resources.callback(receiver.close, keep=False)
        leader = reach(folder, kin, FOLLOW, JOIN_S, Event())
        resources.callback(leader.close)
        say(leader, Joined(receiver.addresses))
        served = _Served(folder, kin, receiver, model, make, leader)
        resources.callback(served.close)
        mux.runtime_hook("shrink")(lambda keep, free: served.leaves(mux.rollout_nodes[kin.rank] in free))
        told = _Told(leader)
        mux.runtime_hook("lost")(told.lose)
        try:
            _obey(mux, told, served)
        except SyncFailed as trouble:
            raise served.failed or RanksApart(f"the process that leads the job is gone: {trouble}") from trouble


def _obey(mux: Mux, told: "_Told", served: "_Served") -> None:
    while not isinstance(order := told.order(), Bye):
        if isinstance(order, Enter):
            _take_part(mux, order, told, served)


def _take_part(mux: Mux, enter: Enter, told: "_Told", served: "_Served") -> None:
    """Who has lost the lease gives it back at once, while the leader still works or asks for another, and takes part
    in that: nothing counts before the leader says so too.
    """
    state, is_over = served if enter.kind == "rollout" else None, False
    while not is_over:
        try:
            with mux.phase(enter.kind, state=state, iteration=enter.step) as phase:
                served.works.set()
                try:
                    is_over = told.over(phase.epoch)
                finally:
                    served.works.clear()
        except AlreadyCommitted:  # by its last lease: the leader's word of that is on its way
            while not is_over:
                is_over = told.over(0)
        except LeaseLost:
            told.check()
            log.info("%s(%d) is done again", enter.kind, enter.step)


class _Told:
    """What the leader says, in its order, and between it that a lease was lost: `None`."""

    def __init__(self, leader: Channel) -> None:
        self._leader = leader
        self._said = SimpleQueue[Order | None]()
        self._gone: SyncFailed | None = None
        Thread(target=self._listen, name="rollmux-orders", daemon=True).start()

    def lose(self, reason: str) -> None:
        self._said.put(None)

    def next(self) -> Order | None:
        said = self._said.get()
        if said is None:
            self.check()
        return said

    def check(self) -> None:
        """Raises what has become of the leader, if it is gone."""
        if self._gone is not None:
            raise self._gone

    def over(self, epoch: int) -> bool:
        """Waits for the end of the leader's work under this lease or a later one; False where the lease is lost before.

        What ended under an earlier one is asked for again, and that is the phase in which this process is already.
        """
        while (said := self.next()) is not None:
            if isinstance(said, Over) and said.epoch >= epoch:
                return True
        return False

    def order(self) -> Order:
        while (said := self.next()) is None:
            pass
        return said

    def _listen(self) -> None:
        try:
            while True:
                self._said.put(hear(self._leader, Enter, Over, Bye))
        except SyncFailed as trouble:
            self._gone = trouble
            self._said.put(None)


class _Served:
    """The engine of this node: one life after the other, in a thread of its own."""

    def __init__(self, folder: Path, kin: Kin, receiver: Receiver, model: Any, make: Make, leader: Channel) -> None:
        self._folder, self._kin, self._receiver = folder, kin, receiver
        self._model, self._make, self._leader = model, make, leader
        self._engine: Engine | None = None
        self._line: Channel | None = None
        self._closed = Event()
        self._here = Event()  # the nodes are this job's
        self.works = Event()  # a phase is under way
        self.failed: Exception | None = None
        self._thread = Thread(target=self._run, name="rollmux-engine", daemon=True)
        self._thread.start()

    # -- the state of the rollout phase --------------------------------------------------------------------------------

    def load(self) -> None:
        self._here.set()

    def offload(self) -> None:
        """The leader suspends it first, if it can; else it ends."""
        self._here.clear()
        end = monotonic() + _REST_S
        while self._holds and monotonic() < end:
            sleep(_POLL_S)
        while self._holds:
            self._hang_up()
            sleep(_POLL_S)

    def leaves(self, leaves: bool) -> None:
        """The tail moves together: returns once the leader has moved it off this node, if it is to, or is done."""
        while leaves and self.works.is_set() and self._holds:
            sleep(_POLL_S)

    @property
    def _holds(self) -> bool:
        engine = self._engine
        return engine is not None and not engine.is_suspended

    def _hang_up(self) -> None:
        line = self._line
        if line is not None:
            line.hang_up()

    # ------------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._closed.set()
        self._here.set()
        self._leader.hang_up()
        while self._thread.is_alive():
            self._hang_up()
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._live()
        except Exception as error:
            if not self._closed.is_set():
                log.exception("the engine of process %d has failed", self._kin.rank)
                self.failed = error
        finally:
            self._leader.hang_up()

    def _live(self) -> None:
        """One engine, from the leader's word to the end of its line."""
        line = self._line = reach(self._folder, self._kin, ENGINE, JOIN_S, self._closed)
        try:
            with suppress(Broken, msgspec.DecodeError):  # the leader has hung up, or is gone
                begin = hear(line, Begin)
                self._here.wait()
                with _landed(self._receiver, begin.version) as weights:
                    put(weights, self._model)
                self._engine = self._make(self._model, begin.version)
                serve(_Updated(self._engine, self._receiver), line)
        finally:
            line.close()
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.close()


@contextmanager
def _landed(receiver: Receiver, version: int) -> Iterator[Weights]:
    """The weights of this version, for as long as they are looked at."""
    with receiver.read() as weights:
        if weights.version != version:
            raise RanksApart(f"version {weights.version} has landed here where version {version} was due")
        yield weights


class _Updated:
    """An engine whose new weights are those that have landed on its node."""

    def __init__(self, engine: Engine, receiver: Receiver) -> None:
        self._engine, self._receiver = engine, receiver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def update(self, version: int, weights: None, begun: Begun) -> None:
        with _landed(self._receiver, version) as landed:
            self._engine.update(version, as_torch(landed), begun)

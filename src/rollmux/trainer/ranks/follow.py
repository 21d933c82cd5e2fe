"""A follower's side: an engine on a rollout node, which the leader drives, and a part in every phase of the job.

Invariant: a phase is over here only once the leader says so, so its nodes stay this job's while it works on them.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from time import sleep
from typing import Any

import msgspec

from rollmux.client import AlreadyCommitted, LeaseLost, Mux
from rollmux.client.kin import Kin
from rollmux.runtime.engine import Begun, Engine
from rollmux.runtime.engine.afar import serve
from rollmux.runtime.sync import Receiver, SyncFailed
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.tensors import as_torch
from rollmux.trainer.errors import RanksApart
from rollmux.trainer.ranks.landing import plan_for, put
from rollmux.trainer.ranks.lead import JOIN_S
from rollmux.trainer.ranks.meeting import host_memory, reach, token
from rollmux.trainer.ranks.orders import ENGINE, FOLLOW, Begin, Bye, Enter, Joined, Order, Over, hear, say

log = logging.getLogger("rollmux")

Make = Callable[[Any, int], Engine]
_POLL_S = 0.005


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
            _obey(mux, told, served.works)
        except SyncFailed as trouble:
            raise served.failed or RanksApart(f"the process that leads the job is gone: {trouble}") from trouble


def _obey(mux: Mux, told: "_Told", works: Event) -> None:
    """The engine is the leader's: it moves it off before it says that it is done. So who has lost the lease here may
    say so at once, while the leader still works or asks for another.
    """
    while isinstance(order := told.order(), Enter):
        is_over = False
        while not is_over:
            try:
                with mux.phase(order.kind, iteration=order.step):
                    works.set()
                    is_over = told.next() is not None
            except AlreadyCommitted:  # by its last lease: the leader is yet to hear so
                is_over = told.order() is not None
            except LeaseLost:
                log.info("%s(%d) of job %s is done again", order.kind, order.step, mux.kin.job)
            finally:
                works.clear()


class _Told:
    """What the leader says, in its order, and between it that a lease was lost: `None`."""

    def __init__(self, leader: Channel) -> None:
        self._leader = leader
        self._said = SimpleQueue[Order | SyncFailed | None]()
        Thread(target=self._listen, name="rollmux-orders", daemon=True).start()

    def lose(self, reason: str) -> None:
        self._said.put(None)

    def next(self) -> Order | None:
        said = self._said.get()
        if isinstance(said, SyncFailed):
            self._said.put(said)
            raise said
        return said

    def order(self) -> Order:
        while (said := self.next()) is None:
            pass
        return said

    def _listen(self) -> None:
        try:
            while True:
                self._said.put(hear(self._leader, Enter, Over, Bye))
        except SyncFailed as trouble:
            self._said.put(trouble)


class _Served:
    """The engine of this node: one life after the other, in a thread of its own."""

    def __init__(self, folder: Path, kin: Kin, receiver: Receiver, model: Any, make: Make, leader: Channel) -> None:
        self._folder, self._kin, self._receiver = folder, kin, receiver
        self._model, self._make, self._leader = model, make, leader
        self._engine: Engine | None = None
        self._line: Channel | None = None
        self._closed = Event()
        self.works = Event()  # a phase is under way
        self.failed: Exception | None = None
        self._thread = Thread(target=self._run, name="rollmux-engine", daemon=True)
        self._thread.start()

    def leaves(self, leaves: bool) -> None:
        """The tail moves together: returns once the leader has moved it off this node, if it is to, or is done."""
        while leaves and self.works.is_set() and self._engine is not None and not self._engine.is_suspended:
            sleep(_POLL_S)

    def close(self) -> None:
        self._closed.set()
        if self._line is not None:
            self._line.hang_up()
        self._thread.join()

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
            with suppress(SyncFailed, msgspec.DecodeError):
                begin = hear(line, Begin)
                self._take(begin.version)
                self._engine = self._make(self._model, begin.version)
                serve(_Landed(self._engine, self._receiver), line)
        finally:
            line.close()
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.close()

    def _take(self, version: int) -> None:
        with self._receiver.read() as weights:
            if weights.version != version:
                raise RanksApart(f"version {weights.version} has landed here where version {version} was due")
            put(weights, self._model)


class _Landed:
    """An engine whose new weights are those that have landed on its node."""

    def __init__(self, engine: Engine, receiver: Receiver) -> None:
        self._engine, self._receiver = engine, receiver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def update(self, version: int, weights: None, begun: Begun) -> None:
        with self._receiver.read() as landed:
            self._engine.update(version, as_torch(landed), begun)

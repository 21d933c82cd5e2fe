"""The leader's side: the processes that follow, the lines to their engines, and the weights that land with them.

Invariant: an engine begins, and is told of a version, only once the weights of that version have landed everywhere.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from rollmux.client.kin import Kin
from rollmux.runtime.engine.afar import Spoken
from rollmux.runtime.engine.elsewhere import EngineElsewhere
from rollmux.runtime.engine.errors import EngineLost
from rollmux.runtime.sync import Sender, SyncFailed, door
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Refused
from rollmux.runtime.sync.tensors import from_torch
from rollmux.runtime.sync.transports.sockets import Listener
from rollmux.trainer.errors import RanksApart
from rollmux.trainer.ranks.landing import plan_for, weights_of
from rollmux.trainer.ranks.meeting import GREETING_S, announce, host_memory, token
from rollmux.trainer.ranks.orders import ENGINE, FOLLOW, Begin, Bye, Enter, Joined, Order, Over, hear, say

log = logging.getLogger("rollmux")

# Importing torch and a model's weights takes a while, and not the same on all nodes.
JOIN_S = 600.0
# Who has closed one engine offers the next at once.
LINE_S = 60.0
# Syncs of one attempt, so that those of the next come after all of them.
_SYNCS = 2**32


class Ranks:
    """Made once all others have joined. `model` has the weights that land."""

    def __init__(self, kin: Kin, folder: Path, followers: int, model: Any, join_s: float = JOIN_S) -> None:
        self._model, self._followers = model, followers
        self._token = token(kin).encode()
        self._epoch = kin.attempt * _SYNCS
        self._landed: int | None = None
        self._changed = Condition()
        self._joined: dict[int, tuple[Channel, tuple[str, ...]]] = {}
        self._offered: list[list[Channel]] = [[] for _ in range(followers)]  # lines to engines that are yet to begin
        self._closed = False
        self._resources = ExitStack()
        with ExitStack() as undone:
            undone.callback(self.close)
            self._plan = plan_for(model, followers)
            self._sender = Sender(self._plan, 0, self._resources.enter_context(host_memory()), token(kin))
            self._resources.callback(self._sender.close, keep=False)
            self._listener = Listener(f"tcp://{kin.host}:0")
            self._resources.callback(self._listener.close)
            Thread(target=self._accept, name="rollmux-ranks", daemon=True).start()
            announce(folder, kin, self._listener.address)
            self._await_all(join_s)
            undone.pop_all()

    # -- phases and weights ------------------------------------------------------------------------------------------

    @contextmanager
    def following(self, kind: str, step: int) -> Iterator[Callable[[], None]]:
        """All processes ask for this phase, and are in it until its work is over: what this gives is to be called then.

        They ask together, so that whoever has its lease while it runs out gives it back.
        """
        is_over = False

        def over() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._tell(Over())

        self._tell(Enter(kind, step))
        try:
            yield over
        finally:
            over()

    def land(self, version: int) -> None:
        """The model's weights are those of this version: when this returns they are on all rollout nodes."""
        self._landed = None
        self._epoch += 1
        self._sender.publish(version, from_torch(self._plan, weights_of(self._model)))
        self._sender.sync(self._epoch, [self._joined[rank][1] for rank in range(self._followers)])
        self._landed = version

    def forget(self) -> None:
        """The weights were written anew, and their version may be one that has landed otherwise."""
        self._landed = None

    def engine(self, number: int, version: int) -> EngineElsewhere:
        """The one on this rollout node, once it is needed."""
        return EngineElsewhere(_Node(self, number), version)

    def line(self, number: int, version: int) -> Spoken:
        """To a new engine there."""
        if self._landed != version:
            self.land(version)
        offered = self._offered[number]
        with self._changed:
            if not self._changed.wait_for(lambda: offered, LINE_S):
                raise EngineLost(f"process {number} of the job offers no engine: its log may say why")
            channel = offered.pop(0)
        try:
            say(channel, Begin(version))
        except SyncFailed as trouble:
            raise ConnectionError(str(trouble)) from trouble
        return Spoken(channel)

    def say_bye(self) -> None:
        """The job is done."""
        self._tell(Bye())

    def close(self) -> None:
        """Who has not heard that the job is done hears that this process is gone."""
        self._resources.close()
        with self._changed:
            self._closed = True
            for channel in [*(channel for channel, _ in self._joined.values()), *chain(*self._offered)]:
                channel.close()

    def _tell(self, order: Order) -> None:
        for rank, (channel, _) in sorted(self._joined.items()):
            try:
                say(channel, order)
            except SyncFailed as trouble:
                raise RanksApart(f"process {rank} of the job is gone: {trouble}") from trouble

    # -- who joins ---------------------------------------------------------------------------------------------------

    def _await_all(self, join_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._joined) == self._followers, join_s):
                missing = sorted(set(range(self._followers)) - self._joined.keys())
                who = ", ".join(map(str, missing))
                raise RanksApart(f"process {who} of the job has not joined within {join_s:g} s: its log may say why")

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                channel = self._listener.accept(GREETING_S)
                Thread(target=self._greet, args=(channel,), name="rollmux-rank", daemon=True).start()

    def _greet(self, channel: Channel) -> None:
        try:
            hello = door.admit(channel, self._token)
            if hello.purpose not in (FOLLOW, ENGINE) or not 0 <= hello.rank < self._followers:
                raise Refused(f"process {hello.rank} for {hello.purpose[:80]!r}: there is nothing for it here")
            door.welcome(channel, self._token, hello)
            joined = hear(channel, Joined) if hello.purpose == FOLLOW else None
            channel.patience(None)
            with self._changed:
                if self._closed:
                    channel.close()
                elif joined is None:
                    self._offered[hello.rank].append(channel)
                else:
                    self._joined[hello.rank] = channel, joined.addresses
                self._changed.notify_all()
        except SyncFailed as trouble:
            log.warning("somebody who called the job's leader was turned away: %s", trouble)
            with suppress(SyncFailed):
                door.turn_away(channel, str(trouble))
            channel.close()


class _Node:
    """See `rollmux.runtime.engine.elsewhere.Home`. An engine there ends with its line."""

    def __init__(self, ranks: Ranks, number: int) -> None:
        self._ranks, self._number = ranks, number

    def begin(self, version: int) -> Spoken:
        return self._ranks.line(self._number, version)

    def end(self, patience_s: float) -> None: ...

"""The leader's side: the followers, the lines to their engines and replicas, and the weights that land with them.

Invariant: an engine begins, and is told of a version, only once the weights of that version have landed everywhere.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import BoundedSemaphore, Condition, Lock, Thread, Timer
from time import sleep
from typing import Any

from rollmux.client.kin import Kin
from rollmux.errors import InvariantViolated
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
from rollmux.trainer.ranks.orders import FOLLOW, WORK, Begin, Bye, Enter, Joined, Order, Over, hear, say
from rollmux.trainer.ranks.share import Shared
from rollmux.trainer.update import Objective

log = logging.getLogger("rollmux")

# How long to wait for all followers: importing torch and a model takes a while, and not the same on all nodes.
JOIN_S = 600.0
# How long to wait for the line of an engine: a follower that has closed one engine offers the next at once.
LINE_S = 60.0
# How long to wait for the line of a replica: one that hung up amid a gradient first ends the group under way.
SHARE_S = 600.0
# The most callers at once that have not yet shown that they know the token.
MOST_STRANGERS = 64
# The pause before the next try if the system has no room for a call.
_REST_S = 0.1
_TRIES = 3
# Room for the sync numbers of one attempt: those of the next attempt come after all of them.
_SYNCS = 2**32


class Ranks:
    """The leader's view of its followers; making it waits until all have joined. `model` has the weights that land. The
    last `replicas` of the followers are replicas of the learner, the others engines.

    `lost` tells whether the phase under way has lost its lease: then followers end their engines, and begin none. The
    weights are read while they are `still`.
    """

    def __init__(
        self,
        kin: Kin,
        folder: Path,
        followers: int,
        model: Any,
        replicas: int = 0,
        join_s: float = JOIN_S,
        lost: Callable[[], object] = lambda: False,
        still: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._model, self._followers, self._lost, self._still = model, followers, lost, still
        self._replicas = range(followers - replicas, followers)
        self._token = token(kin).encode()
        self._epoch = kin.attempt * _SYNCS
        self._landing = Lock()
        self._landed: int | None = None
        self._changed = Condition()
        self._joined: dict[int, tuple[Channel, tuple[str, ...]]] = {}
        self._offered: dict[int, Channel] = {}  # lines to followers that have yet to begin
        self._spoken: dict[int, Channel] = {}  # lines to followers that have begun
        self._greeting = BoundedSemaphore(MOST_STRANGERS)
        self._closed = False
        self._resources = ExitStack()
        with ExitStack() as undone:
            undone.callback(self.close)
            self._plan = plan_for(model, followers - replicas, replicas)
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
    def following(self, kind: str, step: int) -> Iterator[Callable[[int], None]]:
        """All processes ask for this phase, and are in it until its work is over: then call the function that this
        gives with the number of the lease.

        They ask together, so that each process that has a lease which runs out gives it back.
        """
        is_over = False

        def over(epoch: int) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._tell(Over(epoch))

        self._tell(Enter(kind, step))
        try:
            yield over
        finally:
            over(0)

    def land(self, version: int) -> None:
        """Sends the model's weights, which are of this version: when this returns they are on all other nodes."""
        with self._landing:
            self._land(version)

    def _land(self, version: int) -> None:
        """Sends the weights. After a broken connection it goes on: what has landed is not sent again."""
        self._landed = None
        with self._still():
            self._sender.publish(version, from_torch(self._plan, weights_of(self._model)))
        addresses = [self._joined[rank][1] for rank in range(self._followers)]
        for left in reversed(range(_TRIES)):
            self._epoch += 1
            try:
                self._sender.sync(self._epoch, addresses)
                break
            except SyncFailed as trouble:
                if not left:
                    raise RanksApart(f"version {version} of the weights did not come across: {trouble}") from trouble
                log.warning("version %d of the weights is sent again: %s", version, trouble)
        self._landed = version

    def forget(self) -> None:
        """The weights were written anew: other weights of the same version number may have landed before."""
        self._landed = None

    def engine(self, number: int, version: int) -> EngineElsewhere:
        """The engine on this rollout node, which begins once it is needed."""
        return EngineElsewhere(_Node(self, number), version)

    def line(self, number: int, version: int) -> Spoken:
        """A line to a new engine on this rollout node."""
        self._require_landed(version)
        channel = self._begun(number)
        try:
            say(channel, Begin(version))
        except SyncFailed as trouble:
            channel.close()
            raise ConnectionError(str(trouble)) from trouble
        return Spoken(channel)

    def replicas(self, version: int) -> list[Channel]:
        """See `rollmux.trainer.ranks.share.Lines`."""
        self._require_landed(version)
        return [self._spoken.get(number) or self._begun(number, SHARE_S) for number in self._replicas]

    def part(self) -> None:
        with self._changed:
            for number in self._replicas:
                channel = self._spoken.pop(number, None)
                if channel is not None:
                    channel.close()

    def shared(self, objective: Objective) -> Shared | None:
        """What computes gradients with the followers, if some of them are replicas of the learner."""
        return Shared(self._model, objective, self) if self._replicas else None

    def _require_landed(self, version: int) -> None:
        with self._landing:
            if self._landed is None:
                self._land(version)
            if self._landed != version:
                raise InvariantViolated("weights elsewhere", f"{self._landed} has landed, {version} is asked for")

    def _begun(self, number: int, patience_s: float | None = None) -> Channel:
        """The line that follower `number` offers, which begins to work now; waits for it."""
        patience_s = LINE_S if patience_s is None else patience_s
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._offered or self._lost(), patience_s) or self._lost():
                why = "the lease is lost" if self._lost() else "its log may say why"
                raise EngineLost(f"process {number} of the job does not offer its work: {why}")
            channel = self._spoken[number] = self._offered.pop(number)
        return channel

    def break_off(self, reason: str = "") -> None:
        """Ends all waits for an engine or a replica, or for one to begin. Unless the lease is lost, it begins anew."""
        with self._changed:
            for channel in self._spoken.values():
                channel.hang_up()
            self._changed.notify_all()

    def say_bye(self) -> None:
        """Tells all followers that the job is done."""
        self._tell(Bye())

    def close(self) -> None:
        """Ends all lines. A follower that has not heard that the job is done takes this process for gone."""
        self._closed = True
        self.part()
        self._resources.close()
        with self._changed:
            for channel in (*(channel for channel, _ in self._joined.values()), *self._offered.values()):
                channel.close()

    def _tell(self, order: Order) -> None:
        for rank, (channel, _) in sorted(self._joined.items()):
            try:
                say(channel, order)
            except SyncFailed as trouble:
                raise RanksApart(f"process {rank} of the job is gone: {trouble}") from trouble

    # -- how followers join ------------------------------------------------------------------------------------------

    def _await_all(self, join_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._joined) == self._followers, join_s):
                missing = sorted(set(range(self._followers)) - self._joined.keys())
                who = ", ".join(map(str, missing))
                raise RanksApart(f"process {who} of the job has not joined within {join_s:g} s: its log may say why")

    def _accept(self) -> None:
        while not self._closed:
            try:
                channel = self._listener.accept(GREETING_S)
            except OSError as trouble:
                if not self._closed:
                    log.warning("the job's leader can't take a call: %s", trouble)
                    sleep(_REST_S)
                continue
            self._greeting.acquire()
            Thread(target=self._greet, args=(channel,), name="rollmux-rank", daemon=True).start()

    def _greet(self, channel: Channel) -> None:
        end = Timer(GREETING_S, channel.hang_up)  # else a caller could send byte by byte, each in time, for ever
        end.start()
        try:
            hello = door.admit(channel, self._token)
            if hello.purpose not in (FOLLOW, WORK) or not 0 <= hello.rank < self._followers:
                raise Refused(f"process {hello.rank} for {hello.purpose[:80]!r}: there is nothing for it here")
            door.welcome(channel, self._token, hello)
            joined = hear(channel, Joined) if hello.purpose == FOLLOW else None
            end.cancel()
            channel.patience(None)
            with self._changed:
                if self._closed:
                    channel.close()
                elif joined is None:
                    before, self._offered[hello.rank] = self._offered.get(hello.rank), channel
                    if before is not None:  # a follower offers one line at a time
                        before.close()
                else:
                    self._joined[hello.rank] = channel, joined.addresses
                self._changed.notify_all()
        except SyncFailed as trouble:
            log.warning("somebody who called the job's leader was turned away: %s", trouble)
            with suppress(SyncFailed):
                door.turn_away(channel, str(trouble))
            channel.close()
        except BaseException:
            channel.close()
            raise
        finally:
            end.cancel()
            self._greeting.release()


class _Node:
    """See `rollmux.runtime.engine.elsewhere.Home`. An engine there ends with its line."""

    def __init__(self, ranks: Ranks, number: int) -> None:
        self._ranks, self._number = ranks, number

    def begin(self, version: int) -> Spoken:
        return self._ranks.line(self._number, version)

    def end(self, patience_s: float) -> None: ...

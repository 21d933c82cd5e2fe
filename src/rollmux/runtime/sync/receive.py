"""A receiver: it lands versions in its folder, passes pieces on to others of its cluster, and flips when it is told.

Invariant: it listens to the newest epoch alone, and a version is served only after every receiver had all of it.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Condition, Lock, Thread, Timer

from rollmux.runtime.host import Budget
from rollmux.runtime.sync import door
from rollmux.runtime.sync.channel import Carry, Channel
from rollmux.runtime.sync.errors import Refused, SyncFailed
from rollmux.runtime.sync.give import give
from rollmux.runtime.sync.plan import Plan
from rollmux.runtime.sync.reader import Weights
from rollmux.runtime.sync.round import Round
from rollmux.runtime.sync.shelf import Mark, Shelf
from rollmux.runtime.sync.take import take
from rollmux.runtime.sync.transports.sockets import Listener, call
from rollmux.runtime.sync.wire import Begin, Begun, Flip, Flipped, Hello, Landing, Status, Whole

log = logging.getLogger("rollmux")

PATIENCE_S = 30.0
# For a caller to show that it knows the token.
GREETING_S = 10.0
# Connections at once: enough for all senders and receivers of a large exchange, and a limit for strangers.
MAX_CALLERS = 1024
# Wait before the next try when the system has no room for a call.
_REST_S = 0.1


class Receiver:
    """One rank of the receiving side. Its threads serve until `close`; what it holds outlives it.

    `budget` is the node's host memory: the room of two versions is claimed from it.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        folder: Path,
        token: str,
        listen: Sequence[str],
        *,
        budget: Budget | None = None,
        carry: Carry | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.plan, self.rank, self.folder = plan, rank, folder
        self._token, self._patience_s = door.checked_token(token), patience_s
        self._shelf = Shelf(folder, plan, plan.exchange.receivers, rank, budget=budget)
        self._listeners: list[Listener] = []
        try:
            self._listeners += map(Listener, listen)
        except BaseException:  # such as an address that is taken: leave the folder free for another try
            for listener in self._listeners:
                listener.close()
            self._shelf.close()
            raise
        self.addresses = tuple(listener.address for listener in self._listeners)
        self._carry = carry
        self._leading = Lock()  # attempts begin one after the other, and each ends the one before
        self._changed = Condition()
        self._round: Round | None = None
        self._callers: set[Channel] = set()
        self._closed = False
        for listener in self._listeners:
            Thread(target=self._accept, args=(listener,), name=f"sync {listener.address}", daemon=True).start()

    @property
    def held(self) -> Mark | None:
        """The version that is served."""
        return self._shelf.held

    def read(self) -> Weights:
        return Weights(self.folder, self.plan, self.plan.exchange.receivers, self.rank)

    def wait_for(self, version: int, timeout_s: float) -> bool:
        """Waits until this version is served; False if it is not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.held is not None and self.held.version == version, timeout_s)

    def close(self, keep: bool = True) -> None:
        """Ends the receiver. With `keep` its versions stay for the next receiver of this folder, else they go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for listener in self._listeners:
            listener.close()
        self._fail("the receiver is closed")
        with self._changed:
            for channel in self._callers:
                channel.hang_up()
            self._changed.wait_for(lambda: not self._callers, self._patience_s)
        if self._round is not None:
            self._round.wait_idle(self._patience_s)
            self._round = None  # it holds the memory that pieces landed in
        self._shelf.close(keep)

    # -- callers -----------------------------------------------------------------------------------------------------

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                channel = listener.accept(GREETING_S)
            except OSError as trouble:
                if self._closed:
                    return
                log.warning("receiver %d can't take a call: %s", self.rank, trouble)
                time.sleep(_REST_S)
                continue
            with self._changed:
                full = self._closed or len(self._callers) >= MAX_CALLERS
                self._callers.add(channel)
            if full:
                self._gone(channel)
                continue
            hurry = Timer(GREETING_S, channel.hang_up)  # limits the whole greeting, whose bytes may each be in time
            hurry.daemon = True
            try:
                hurry.start()
                Thread(target=self._serve, args=(channel, hurry), name="sync caller", daemon=True).start()
            except RuntimeError as trouble:  # no room for another thread
                log.warning("receiver %d can't serve a call: %s", self.rank, trouble)
                hurry.cancel()
                self._gone(channel)
                time.sleep(_REST_S)

    def _gone(self, channel: Channel) -> None:
        channel.close()
        with self._changed:
            self._callers.discard(channel)
            self._changed.notify_all()

    def _serve(self, channel: Channel, hurry: Timer) -> None:
        try:
            hello = door.admit(channel, self._token)
            hurry.cancel()
            channel.patience(self._patience_s)
            self._check(hello)
            (self._led if hello.purpose == "lead" else self._given)(channel, hello)
        except SyncFailed as trouble:
            log.warning("receiver %d: %s", self.rank, trouble)
            _tell(channel, trouble)
        except Exception as trouble:
            # The leader waits for an answer, and a thread that dies gives none.
            log.exception("receiver %d failed", self.rank)
            _tell(channel, trouble)
            self._fail(f"receiver {self.rank} failed: {trouble!r}")
        finally:
            hurry.cancel()
            self._gone(channel)

    def _check(self, hello: Hello) -> None:
        if hello.plan != self.plan.fingerprint:
            raise Refused(
                f"the plan is {hello.plan[:12]} there and {self.plan.fingerprint[:12]} here: give all the same"
            )
        if hello.epoch < self._shelf.epoch:
            raise Refused(f"epoch {hello.epoch} is over: there has been epoch {self._shelf.epoch}")
        held = self.held
        told = (hello.version, hello.plan)
        if held is not None and held.epoch == hello.epoch and (held.version, held.plan) != told:
            brought = f"version {held.version}{'' if held.plan == hello.plan else ' of another plan'}"
            raise Refused(f"epoch {hello.epoch} has brought {brought}: take a new one for {hello.version}")

    def _fail(self, reason: str) -> None:
        failing = self._round
        if failing is not None:
            failing.end(reason)

    # -- the leader --------------------------------------------------------------------------------------------------

    def _led(self, channel: Channel, hello: Hello) -> None:
        current = self._begun(hello)
        door.welcome(channel, self._token, hello)
        channel.say(Status(self._shelf.held, self._shelf.ready))
        channel.patience(None)
        while True:
            order = channel.hear(Begin, Flip)
            if isinstance(order, Begin):
                self._land(channel, current, order)
            elif isinstance(order, Flip):
                self._flip(current, order)
                channel.say(Flipped())
                if order.epoch == current.epoch:
                    return

    def _begun(self, hello: Hello) -> Round:
        """Ends the round before, if there is one, and begins a new one."""
        with self._leading:
            self._check(hello)
            before = self._round
            if before is not None:
                before.end(f"epoch {hello.epoch} has begun")
                before.wait_idle(self._patience_s)
            self._shelf.saw(hello.epoch)
            with self._changed:
                self._round = current = Round(self.plan, self.rank, hello.epoch, hello.version)
                self._changed.notify_all()
            return current

    def _land(self, channel: Channel, current: Round, order: Begin) -> None:
        try:
            with self._leading:
                self._only(current)
                current.open(self._shelf.begin(self._patience_s), self._shelf.base())
            self._share(current, order)
            channel.say(Begun())
            for _ in current.until_whole(self._patience_s):
                channel.say(Landing())
            with self._leading:
                self._only(current)
                self._shelf.prepare(current.stock.new, current.version, current.epoch)
        except SyncFailed as trouble:
            current.end(str(trouble))
            raise
        channel.say(Whole())

    def _flip(self, current: Round, order: Flip) -> None:
        with self._leading:
            self._only(current)
            ready = self._shelf.ready
            if ready is None or (ready.version, ready.epoch) != (order.version, order.epoch):
                raise Refused(f"version {order.version} of epoch {order.epoch} has not landed here: send it first")
            self._shelf.flip()
        with self._changed:
            self._changed.notify_all()

    def _only(self, current: Round) -> None:
        if self._round is not current:
            raise Refused(f"epoch {current.epoch} is over: a newer attempt has begun")

    # -- pieces ------------------------------------------------------------------------------------------------------

    def _given(self, channel: Channel, hello: Hello) -> None:
        source: Callable[[int], dict[int, list[int]]] = self.plan.given if hello.role == "sender" else self.plan.shared
        indices = source(hello.rank).get(self.rank)
        if not indices:
            raise Refused(f"{hello.role} {hello.rank} has nothing to give to receiver {self.rank}")
        current = self._round_of(hello)
        if current is None:
            door.welcome(channel, self._token, hello, done=True)
            return
        with current.working(channel, hello.role, hello.rank):
            door.welcome(channel, self._token, hello)
            if hello.role == "receiver":
                # A receiver passes nothing on while nothing comes to it. The round watches whether pieces land at all.
                channel.patience(None)
            if self._carry is not None:
                channel.carrier = self._carry((hello.role, hello.rank), ("receiver", self.rank))
            try:
                take(channel, [self.plan.pieces[index] for index in indices], current.landing)
            except SyncFailed as trouble:
                current.end(f"{hello.role} {hello.rank}: {trouble}")
                raise

    def _round_of(self, hello: Hello) -> Round | None:
        """Waits for the round that the caller's pieces are for. None: its attempt was committed already."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._round is not None and self._round.epoch >= hello.epoch), self._patience_s
            )
            current = self._round
        held = self.held
        if held is not None and (held.version, held.epoch) == (hello.version, hello.epoch):
            return None
        if current is None or (current.epoch, current.version) != (hello.epoch, hello.version):
            raise Refused(f"version {hello.version} of epoch {hello.epoch} is not what is landing here")
        current.wait_open(self._patience_s)
        return current

    def _share(self, current: Round, order: Begin) -> None:
        for peer in self.plan.shared(self.rank):
            if peer >= len(order.addresses):
                raise Refused(f"{len(order.addresses)} addresses for more than {peer} receivers: name one for each")
            args = (current, peer, order.addresses[peer])
            Thread(target=self._pass_on, args=args, name=f"sync to receiver {peer}", daemon=True).start()

    def _pass_on(self, current: Round, peer: int, addresses: Sequence[str]) -> None:
        """Shares pieces with a peer as they land."""
        places = self.plan.exchange.receivers.places
        hello = Hello(
            "give", "receiver", self.rank, current.epoch, current.version, self.plan.fingerprint, door.nonce()
        )
        try:
            channel = call(addresses, places[peer].node == places[self.rank].node, self._patience_s)
            try:
                with current.working(channel, "to", peer):
                    if door.knock(channel, self._token, hello):
                        if self._carry is not None:
                            channel.carrier = self._carry(("receiver", self.rank), ("receiver", peer))
                        pieces = [self.plan.pieces[index] for index in self.plan.shared(self.rank)[peer]]
                        give(channel, pieces, current.ready_for(peer), current.stock)
            finally:
                channel.close()
        except SyncFailed as trouble:
            current.end(f"receiver {self.rank} to receiver {peer}: {trouble}")
        except Exception as trouble:
            # As above: a thread that dies gives no answer.
            log.exception("receiver %d failed", self.rank)
            current.end(f"receiver {self.rank} to receiver {peer}: {trouble!r}")


def _tell(channel: Channel, trouble: Exception) -> None:
    """Tells the other side what went wrong, if it is still there."""
    try:
        door.turn_away(channel, str(trouble))
    except SyncFailed:
        log.debug("nobody is left to be told: %s", trouble)

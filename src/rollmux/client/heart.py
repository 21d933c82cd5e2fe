"""The listening thread: it gives signs of life for the leases of this process, and hears the controller's orders.

It gives a sign of life only for leases that this process still works under. When it has finished a lease and other
processes of the job have not, they keep the lease alive.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from threading import Thread
from time import monotonic

from rollmux.client.errors import CallRefused, Unreachable
from rollmux.client.link import Link
from rollmux.client.orders import heed, lose
from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import SIGNS, Held, Listen, Orders

log = logging.getLogger("rollmux")

LONGEST_WAIT_S = 30.0
# The pause after a sign of life that nobody has heard.
PAUSE_S = 0.1
# States of a lease in which an unwanted lease is not declined: it is over, or its state rests or is moved off already.
_NOT_ITS_TURN = ("fenced", "parked", "offloading")


class _Outdated(Exception):
    """This process holds other leases by now than its call says."""


class Heart(Thread):
    """Listens until the job is told to end, or the link is closed."""

    def __init__(self, link: Link) -> None:
        super().__init__(name="rollmux-heart", daemon=True)
        self.link = link
        self._held: tuple[Held, ...] = ()

    def run(self) -> None:
        self._listen()
        if self.link.lingers:
            self.link.wire.close()

    def _listen(self) -> None:
        link, seen = self.link, 0
        while not link.wire.closing.is_set() and not link.stop:
            epochs, parked = self._alive(), self._parked()
            asked_at, wait_s = monotonic(), min(link.lease_s / SIGNS, LONGEST_WAIT_S)
            listen = Listen(link.attempt, epochs, link.rank, link.done_with(), seen, wait_s, link.instance)
            try:
                orders = link.send("listen", listen, Orders, wait_s=wait_s, unless=partial(self._require, epochs))
            except _Outdated:
                continue
            except CallRefused as refused:  # this process is no longer known: what it does counts no more
                link.stop = str(refused)
                self._follow(Orders(seen, link.attempt, stop=link.stop), epochs, parked)
                return
            except Unreachable:  # for long, or as the wire closes: the job's calls say so
                link.wire.closing.wait(PAUSE_S)
                continue
            link.alive_at = asked_at
            if orders.lease_s:
                link.leases_last(orders.lease_s)
            seen, self._held = orders.version, orders.held
            link.stop = orders.stop
            try:
                self._follow(orders, epochs, parked)
            except Exception:  # no thread can be started just now, say: the next answer tells the same again
                log.exception("job %s could not follow its orders", link.job)

    def _alive(self) -> tuple[int, ...]:
        """Leases that this process works under, and leases granted to it that it has not taken up yet: the answer that
        told of them was lost, or the script has yet to ask again."""
        link, now = self.link, monotonic()
        with link.lock:
            mine = {(stint.kind, stint.lease.epoch) for stint in link.stints.values() if stint.lease is not None}
            awaited = {(stint.kind, stint.iteration) for stint in link.stints.values() if stint.in_line}
            awaited |= {key for key, until in link.unwanted.items() if now < until}
            mine |= {(held.kind, held.epoch) for held in self._held if (held.kind, held.iteration) in awaited}
            dead = link.stuck - link.moving
            return tuple(sorted(epoch for kind, epoch in mine if kind not in dead and epoch not in link.finished))

    def _require(self, epochs: tuple[int, ...]) -> None:
        """Ends the repeats of a call that names outdated leases: a proxy may cut each of them off before its answer."""
        if self._alive() != epochs:
            raise _Outdated

    def _parked(self) -> set[PhaseKind]:
        with self.link.lock:
            return set(self.link.parked)

    def _follow(self, orders: Orders, asked_of: Iterable[int], parked: set[PhaseKind]) -> None:
        """Obeys. A lease missing from the answer is lost only if the call named it: it may be newer than the answer."""
        link, held = self.link, {each.epoch: each for each in orders.held}
        with link.lock:
            stints = [(stint, stint.lease.epoch) for stint in link.stints.values() if stint.lease is not None]
            fenced = {each.epoch for each in orders.held if each.state == "fenced"}
            left = fenced - {epoch for _, epoch in stints}  # a stint that is under a lease says itself when it has left
            link.never_again(*left)
        for stint, epoch in stints:
            now = held.get(epoch)
            if now is not None and now.state != "fenced":
                heed(stint, now)
                if now.given_up:
                    lose(stint, epoch, now.given_up)
            elif (now is not None or epoch in asked_of) and (stint.arriving or not stint.paused):
                lose(stint, epoch, orders.stop or "there was no sign of life from it for too long")
        if orders.stop:
            return  # the process is about to end, and its state with it
        for kind in parked - {each.kind for each in orders.held}:
            self._start(partial(link.take_off, kind), kind.value)
        for each in orders.held:
            if each.epoch in left or self._must_move(each):
                self._start(partial(link.leave_behind_nothing, each.kind, each.epoch), each.kind.value)
            if link.is_unwanted(each) and each.state not in _NOT_ITS_TURN:
                self._start(partial(link.decline, each), each.kind.value)

    def _must_move(self, held: Held) -> bool:
        """Whether state is to leave the nodes. If it has left, this is said again, for a controller that is new."""
        link = self.link
        with link.lock:
            stayed = held.epoch in link.finished or held.epoch == link.parked.get(held.kind, (0,))[0]
        return held.state == "offloading" or (
            stayed and held.keep and (held.state in ("fenced", "pausing") or bool(held.given_up))
        )

    def _start(self, work: Callable[[], None], of: str) -> None:
        Thread(target=self._free, args=(work, of), name="rollmux-offload", daemon=True).start()

    def _free(self, work: Callable[[], None], of: str) -> None:
        try:
            work()
        except Unreachable:
            log.debug("%s was moved off, and the controller is away", of)
        except Exception:
            log.exception("the state of %s could not be moved off", of)

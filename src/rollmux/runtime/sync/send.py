"""A sender: it keeps the version that it was given, and gives each receiver the pieces that the plan names.

Each sender rank calls `publish` and then `sync` with the same epoch; the first of them leads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Lock

from rollmux.checks import Checks
from rollmux.runtime.host import Budget
from rollmux.runtime.sync import door
from rollmux.runtime.sync.channel import Carry, Channel
from rollmux.runtime.sync.errors import Broken, SyncFailed, at_receiver
from rollmux.runtime.sync.generation import Words
from rollmux.runtime.sync.give import Stock, Tally, give
from rollmux.runtime.sync.lead import Lead
from rollmux.runtime.sync.plan import Plan
from rollmux.runtime.sync.receive import PATIENCE_S
from rollmux.runtime.sync.shelf import Shelf
from rollmux.runtime.sync.transports.sockets import call
from rollmux.runtime.sync.wire import Hello

# Wait between looks for connections that were not made yet when the others were hung up.
_PUT_THROUGH_S = 0.05

Fill = Callable[[str, Words], None]
Why = Callable[[int], SyncFailed | None]


class Sender:
    """One rank of the sending side. With `delta` it keeps the version before, too, and sends only what changed."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        folder: Path,
        token: str,
        *,
        delta: bool = False,
        budget: Budget | None = None,
        carry: Carry | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.plan, self.rank = plan, rank
        self._token, self._patience_s = door.checked_token(token), patience_s
        self._shelf = Shelf(folder, plan, plan.exchange.senders, rank, 2 if delta else 1, budget)
        self._carry = carry
        self._calls: list[Channel] = []
        self._lock = Lock()
        self._busy = Lock()  # nothing is published while it is sent

    @property
    def version(self) -> int | None:
        """The version that `sync` would send."""
        return self._shelf.held.version if self._shelf.held is not None else None

    def publish(self, version: int, fill: Fill) -> None:
        """Takes a version over: `fill` writes this rank's part of each tensor, in the type in which it lands."""
        _check("version", version)
        with self._busy:
            target = self._shelf.begin(self._patience_s)
            target.clear_all()
            for name in self._shelf.slots:
                fill(name, target.whole(name))
            self._shelf.prepare(target, version, epoch=0)
            self._shelf.flip()

    def sync(self, epoch: int, addresses: Sequence[Sequence[str]]) -> Tally:
        """Brings the published version to all receivers; returns what this rank gave.

        When the leader returns, all receivers serve it. The other ranks return when theirs has landed.
        """
        _check("epoch", epoch)
        expected = len(self.plan.exchange.receivers.places)
        if len(addresses) != expected:
            raise SyncFailed(
                f"addresses of {len(addresses)} receivers, and the plan has {expected}: give those of each"
            )
        with self._busy:
            self._shelf.require_open()
            version = self.version
            if version is None:
                raise SyncFailed(f"sender {self.rank} has no version: publish one first")
            return (self._give_all if self.rank else self._lead)(epoch, version, addresses)

    def _lead(self, epoch: int, version: int, addresses: Sequence[Sequence[str]]) -> Tally:
        lead = Lead(self.plan, epoch, version, self._token, self._patience_s)
        try:
            if not lead.begin(addresses):
                return Tally()
            tally = self._give_all(epoch, version, addresses, lead.why)
            lead.finish()
            return tally
        finally:
            lead.close()

    def close(self, keep: bool = True) -> None:
        """Ends the sender. With `keep` its version stays for the next sender of this folder, else it goes."""
        self._shelf.close(keep)

    def _give_all(
        self, epoch: int, version: int, addresses: Sequence[Sequence[str]], why: Why = lambda to: None
    ) -> Tally:
        """Gives to all receivers at once, each over its own connection. If one fails the others are hung up on, and the
        first is asked why: the others could only say that they were hung up on.
        """
        given = self.plan.given(self.rank)
        total, stock = Tally(), Stock(*self._shelf.stock())
        if not given:
            return total
        with ThreadPoolExecutor(len(given), "sync to receiver") as executor:
            tasks = {executor.submit(self._give, stock, epoch, version, to, addresses[to]): to for to in given}
            try:
                first, _ = wait(tasks, return_when=FIRST_EXCEPTION)
            finally:  # if one has failed, or this was interrupted, the others are hung up once they are connected
                self._hang_up()
                while wait(tasks, _PUT_THROUGH_S).not_done:
                    self._hang_up()
        for task in sorted(tasks, key=lambda task: (task not in first, _told(task))):
            with at_receiver(to := tasks[task]):
                if isinstance(trouble := task.exception(), Broken):
                    raise why(to) or trouble from trouble
                total.add(task.result())
        return total

    def _give(self, stock: Stock, epoch: int, version: int, to: int, addresses: Sequence[str]) -> Tally:
        exchange = self.plan.exchange
        near = exchange.senders.places[self.rank].node == exchange.receivers.places[to].node
        channel = call(addresses, near, self._patience_s)
        with self._lock:
            self._calls.append(channel)
        try:
            hello = Hello("give", "sender", self.rank, epoch, version, self.plan.fingerprint, door.nonce())
            if not door.knock(channel, self._token, hello):
                return Tally()
            if self._carry is not None:
                channel.carrier = self._carry(("sender", self.rank), ("receiver", to))
            indices = self.plan.given(self.rank)[to]
            return give(channel, [self.plan.pieces[index] for index in indices], iter(indices), stock)
        finally:
            with self._lock:
                self._calls.remove(channel)
            channel.close()

    def _hang_up(self) -> None:
        with self._lock:
            for channel in self._calls:
                channel.hang_up()


def _check(name: str, number: int) -> None:
    checks = Checks("sync")
    checks.whole(name, number, 0, 2**63 - 1, "count with int")
    checks.require()


def _told(task: "Future[Tally]") -> int:
    """Sorts errors that are a cause before those that may only have followed."""
    trouble = task.exception()
    return 2 if trouble is None else 1 if isinstance(trouble, Broken) else 0

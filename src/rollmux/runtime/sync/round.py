"""One attempt at one receiver: which pieces are still missing, who works on them, and how it ends.

Invariant: after `end` returned nobody writes to where its pieces land; until then no newer attempt does.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Condition

from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken, Refused
from rollmux.runtime.sync.generation import Generation
from rollmux.runtime.sync.give import Stock
from rollmux.runtime.sync.plan import Plan
from rollmux.runtime.sync.take import Landing

# Between two signs of life of a receiver whose pieces are landing.
_SIGN_S = 1.0


class Round:
    """One attempt at one receiver. It begins without a place where pieces land; `open` gives it one."""

    def __init__(self, plan: Plan, rank: int, epoch: int, version: int) -> None:
        self.epoch, self.version = epoch, version
        self._plan, self._rank = plan, rank
        self._changed = Condition()
        self._missing = set(plan.taken(rank))
        self._queues: dict[int, SimpleQueue[int | None]] = {peer: SimpleQueue() for peer in plan.shared(rank)}
        self._workers: set[Channel] = set()
        self._busy: set[tuple[str, int]] = set()
        self._stock: Stock | None = None
        self._moved_at = 0.0  # when the round was opened, or the last piece landed
        self._over = ""  # why nothing more may land

    def open(self, target: Generation, base: Generation | None) -> None:
        with self._changed:
            self._stock, self._moved_at = Stock(target, base), time.monotonic()
            self._changed.notify_all()

    def wait_open(self, patience_s: float) -> None:
        """Waits until pieces may come; raises if the round is over."""
        with self._changed:
            opened = self._changed.wait_for(lambda: self._over or self._stock is not None, patience_s)
            if self._over or not opened:
                raise Broken(self._over or f"epoch {self.epoch} has not begun here")

    @property
    def stock(self) -> Stock:
        if self._stock is None:
            raise Broken("pieces came before the attempt had begun")
        return self._stock

    @property
    def landing(self) -> Landing:
        return Landing(self.stock.new, self.stock.base, self._landed)

    @contextmanager
    def working(self, channel: Channel, role: str, rank: int) -> Iterator[None]:
        """Within, the channel belongs to the round, which may hang it up. Each other party may have one."""
        with self._changed:
            if self._over:
                raise Broken(self._over)
            if (role, rank) in self._busy:
                raise Refused(f"{role} {rank} already gives here in epoch {self.epoch}")
            self._busy.add((role, rank))
            self._workers.add(channel)
        try:
            yield
        finally:
            with self._changed:
                self._workers.discard(channel)
                self._busy.discard((role, rank))
                self._changed.notify_all()

    def ready_for(self, peer: int) -> Iterator[int]:
        """The pieces that a peer is to get, as they land."""
        for _ in self._plan.shared(self._rank)[peer]:
            index = self._queues[peer].get()
            if index is None:
                raise Broken(self._over)
            yield index

    def _landed(self, index: int) -> None:
        piece = self._plan.pieces[index]
        with self._changed:
            if self._over:
                raise Broken(self._over)
            self._missing.discard(index)
            self._moved_at = time.monotonic()
            self._changed.notify_all()
        for peer in piece.shared if piece.first == self._rank else ():
            self._queues[peer].put(index)

    def until_whole(self, patience_s: float) -> Iterator[None]:
        """Yields now and then until all has landed; raises if the round is over, or nothing has landed for so long."""
        while True:
            with self._changed:
                left_s = self._moved_at + patience_s - time.monotonic()
                self._changed.wait_for(lambda: self._over or not self._missing, max(0.0, min(left_s, _SIGN_S)))
                if not self._missing:
                    return
                if self._over:
                    raise Broken(self._over)
                if time.monotonic() >= self._moved_at + patience_s:
                    what = f"{len(self._missing)} pieces are missing, and none has landed for {patience_s:g} s"
                    raise Broken(f"{what}: over a slow link give a smaller `chunk_bytes`, or more `patience_s`")
            yield

    def end(self, reason: str) -> None:
        """Ends the round: nothing more lands. Whoever works on it is woken, and learns why."""
        with self._changed:
            self._over = self._over or reason
            for channel in self._workers:
                channel.hang_up()
            self._changed.notify_all()
        for queue in self._queues.values():
            queue.put(None)

    def wait_idle(self, patience_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: not self._workers, patience_s):
                raise Refused(f"epoch {self.epoch} is over, but still busy after {patience_s:g} s: try again")

"""The weights of one rank in a folder of host memory: the version that is held, and beside it the one that lands.

Invariant: `held` names a generation in which every piece of the rank is whole and of one version. Only the rename of
a small file changes it, and the generation that it names is not written to before another has taken its place.
"""

import os
from pathlib import Path

import msgspec

from rollmux.checks import Checks
from rollmux.runtime.host import Budget
from rollmux.runtime.host.budget import cleared
from rollmux.runtime.sync.errors import SyncFailed
from rollmux.runtime.sync.generation import Generation
from rollmux.runtime.sync.host_room import claimed
from rollmux.runtime.sync.layout import slots
from rollmux.runtime.sync.plan import Plan, Side
from rollmux.system import let_go, took_lock

GENERATIONS = 2
# All files that a shelf makes, in the order in which they are deleted: no mark outlives what it names. The last is the
# lock of whoever writes there.
MARKS = ("held", "ready", "epoch")
FILES = (
    *(f"{mark}{fresh}" for mark in MARKS for fresh in ("", ".new")),
    *(f"{kind}-{number}" for kind in ("weights", "digests") for number in range(GENERATIONS)),
    "writer",
)


class Mark(msgspec.Struct, frozen=True):
    """A version that is whole, the attempt that brought it, and where it lies."""

    version: int
    epoch: int
    generation: int
    plan: str


class _Epoch(msgspec.Struct, frozen=True):
    epoch: int


def read_mark(folder: Path, name: str) -> Mark | None:
    path = folder / name
    return msgspec.json.decode(path.read_bytes(), type=Mark) if path.exists() else None


class Shelf:
    """Only one process at a time writes to it. With one generation there is no version while the next one is written.

    With a budget all bytes are claimed before any is taken, and stay claimed for as long as the folder is there.
    """

    def __init__(
        self, folder: Path, plan: Plan, side: Side, rank: int, generations: int = 2, budget: Budget | None = None
    ) -> None:
        checks = Checks("shelf")
        checks.whole("rank", rank, 0, len(side.places) - 1, "give a rank of the layout")
        need = "two are needed to serve one while the other is written"
        checks.whole("generations", generations, 1, GENERATIONS, need)
        checks.require()
        self.folder, self.plan, self._generations = folder, plan, generations
        self.slots, self._nbytes = slots(plan.exchange.tensors, side.layout, rank)
        self._claim = claimed(budget, folder, self._size()) if budget is not None else None
        joined = self._claim is None or self._claim.entry.place is not None
        self._writer: int | None = None
        self._open: dict[int, Generation] = {}
        self.held: Mark | None = None
        self.ready: Mark | None = None
        try:
            self._take()
        except BaseException:
            self.close(keep=joined or self.held is not None or self.ready is not None)
            raise

    def _take(self) -> None:
        """Takes all that the shelf needs: if anything is lacking it is noticed here, and not while a version lands."""
        folder, plan = self.folder, self.plan
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._writer = self._only_writer()
        if self._claim is not None:
            self._claim.lies_in(folder, FILES)
        self.held, self.ready = self._found("held"), self._found("ready")
        if self.ready is not None and self.ready.plan != plan.fingerprint:
            self._forget("ready")  # its room is taken for pieces of this plan
            self.ready = None
        path = folder / "epoch"
        self.epoch = msgspec.json.decode(path.read_bytes(), type=_Epoch).epoch if path.exists() else 0
        for number in range(self._generations):
            if self.held is None or self.held.generation != number or self.held.plan == plan.fingerprint:
                self._generation(number)

    def _found(self, name: str) -> Mark | None:
        """A mark of the folder. If its files are gone, as in a folder that was not wholly cleared, it is forgotten."""
        mark, plan = read_mark(self.folder, name), self.plan
        if mark is None or mark.plan != plan.fingerprint:
            return mark
        if Generation.is_there(self.folder, mark.generation, self._nbytes, len(plan.pieces), plan.fingerprint):
            return mark
        self._forget(name)
        return None

    def _size(self) -> int:
        """The most that the folder takes from now on: a version of another plan stays until the next one is served."""
        mine, held = Generation.size(self._nbytes, len(self.plan.pieces)), read_mark(self.folder, "held")
        total = 0
        for number in range(GENERATIONS):
            stays = number >= self._generations or (held is not None and held.generation == number)
            there = Generation.found(self.folder, number) if stays else 0
            total += max(there, mine if number < self._generations else 0)
        return total

    def base(self) -> Generation | None:
        """The generation that is held, if it is of the same plan."""
        if self.held is None or self.held.plan != self.plan.fingerprint:
            return None
        return self._generation(self.held.generation)

    def stock(self) -> tuple[Generation, Generation | None]:
        """The generation that is held and, if there are two, the version before."""
        if self.held is None or self.held.plan != self.plan.fingerprint:
            raise SyncFailed(f"{self.folder} holds no version of this plan: publish one first")
        other = self._generation(1 - self.held.generation) if self._generations == 2 else None
        return self._generation(self.held.generation), other

    def saw(self, epoch: int) -> None:
        """Remembers the newest attempt, so that no older one is listened to, after a restart either."""
        if epoch > self.epoch:
            self._write("epoch", _Epoch(epoch))
            self.epoch = epoch

    def begin(self, patience_s: float) -> Generation:
        """Gives the generation to write to. What lies there is a version no longer, but its pieces may be of use."""
        number = (self.held.generation + 1) % self._generations if self.held is not None else 0
        target = self._generation(number)
        target.lock(patience_s)
        self._forget("ready")
        self.ready = None
        if self.held is not None and self.held.generation == number:
            self._forget("held")
            self.held = None
        return target

    def prepare(self, target: Generation, version: int, epoch: int) -> None:
        """Marks a version of which all has landed as ready."""
        self.ready = Mark(version, epoch, target.number, self.plan.fingerprint)
        self._write("ready", self.ready)

    def flip(self) -> Mark:
        """The version that is ready becomes the one that is held."""
        if self.ready is None:
            raise SyncFailed(f"{self.folder} has no version that has landed: it must be sent first")
        self._write("held", self.ready)
        self.held, self.ready = self.ready, None
        self._forget("ready")
        self._generation(self.held.generation).unlock()
        return self.held

    def close(self, keep: bool = True) -> None:
        """With `keep` the folder stays, and its claim with it; else its files are deleted, and the claim ends."""
        for generation in self._open.values():
            generation.close()
        self._open.clear()
        self._leave(keep)

    def _leave(self, keep: bool) -> None:
        if self._writer is not None:
            let_go(self._writer)
            self._writer = None
        if self._claim is not None:
            self._claim.leave() if keep else self._claim.release()
        elif not keep:
            cleared(self.folder, FILES)

    def require_open(self) -> None:
        """Refuses work on a closed shelf: the folder may be another's by then."""
        if self._writer is None:
            raise SyncFailed(f"{self.folder} is closed here: open it again")

    def _generation(self, number: int) -> Generation:
        self.require_open()
        if number not in self._open:
            pieces, name = len(self.plan.pieces), self.plan.fingerprint
            self._open[number] = Generation(self.folder, number, self.slots, self._nbytes, pieces, name)
        return self._open[number]

    def _only_writer(self) -> int:
        lock = os.open(self.folder / "writer", os.O_RDWR | os.O_CREAT, 0o600)
        if not took_lock(lock):
            os.close(lock)
            raise SyncFailed(f"{self.folder} is written to by another process: give each rank its own")
        if os.fstat(lock).st_nlink:
            return lock
        os.close(lock)  # the folder that was here has just been reclaimed
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._only_writer()

    def _write(self, name: str, content: Mark | _Epoch) -> None:
        fresh = self.folder / f"{name}.new"
        fresh.write_bytes(msgspec.json.encode(content))
        os.replace(fresh, self.folder / name)

    def _forget(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

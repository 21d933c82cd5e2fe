"""What a job keeps on the host: its claim on the budget, the mapped file, and the version that holds.

A new version is written beside the one that holds, or in its place where there is one slot only.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from rollmux.runtime.host.budget import Budget, Claim
from rollmux.runtime.host.errors import NotKept
from rollmux.runtime.residency.checksum import UNSUMMED, ZEROS, checksum
from rollmux.runtime.residency.errors import BadCopy
from rollmux.runtime.residency.host_copy import HostCopy
from rollmux.runtime.residency.layout import Layout
from rollmux.runtime.residency.memory import Memory
from rollmux.runtime.residency.record import Record, require_fit
from rollmux.system import let_go


class Kept:
    """One state on the host. Writers of all processes take turns.

    What only this process will ever read is not summed, if nothing but the processor would make the sums.
    """

    def __init__(self, claim: Claim, host: HostCopy, memory: Memory, shared: bool) -> None:
        self.host, self.record = host, host.newest()
        self._claim, self._memory, self._pid = claim, memory, os.getpid()
        self._before: HostCopy | None = None  # holds until the new file, of another layout, has a version
        self._spoilt = False
        self.sums = shared or claim.entry.survive_s > 0 or memory.copies_itself
        memory.pin(host.data)

    @classmethod
    def create(cls, claim: Claim, layout: Layout, slots: int, memory: Memory, *, shared: bool) -> "Kept":
        """Under a claim on its bytes, which is given back if they can't be had."""
        try:
            return cls(claim, HostCopy.create(claim.budget.state_path(claim.name), layout, slots), memory, shared)
        except BaseException:
            claim.release()
            raise

    @classmethod
    def join(cls, budget: Budget, name: str, memory: Memory, *, shared: bool) -> "Kept":
        """What a dead process has left, or a living one shares, checked from the first byte to the last."""
        try:
            claim = budget.join(name, shared=shared)
        except NotKept as error:
            raise BadCopy(f"{error}; start cold") from error
        try:
            kept = cls(claim, HostCopy.open(budget.state_path(name)), memory, shared)
        except BaseException:
            claim.leave()
            raise
        try:
            kept.verify()
            if not shared:
                kept.tidy()
        except BaseException:
            kept.leave()
            raise
        return kept

    @property
    def survive_s(self) -> float:
        """How long it outlives its process."""
        return self._claim.entry.survive_s

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether there is a version of this layout."""
        return self.record is not None and self.record.stamp == self.host.stamp

    def newest(self) -> Record | None:
        """Whoever has written it."""
        found = self.host.newest(self.record)
        return found if found is not None and found.version > self.version else self.record

    @property
    def version(self) -> int:
        return self.record.version if self.record is not None else 0

    @property
    def aside(self) -> bytes:
        return self.record.aside if self.record is not None else b""

    def refresh(self) -> Record:
        """The version that holds now."""
        found = self.host.newest(self.record)
        if found is None:
            raise BadCopy(f"{self.host.path} holds no whole version: its writer was broken off; start cold")
        self.record = found
        return found

    def current(self, chunk: int, count: int = 1) -> Tensor:
        """Of neighbours that are in one place."""
        return self.host.view(chunk, self._slot(chunk), count)

    def beginning(self, chunk: int) -> bytes | None:
        """Of a chunk, where it is known and not zeros."""
        return self.host.beginning(chunk, self._slot(chunk)) if self.sum_of(chunk) not in (None, ZEROS) else None

    def place(self, chunk: int) -> int | None:
        """The slot that holds it; None: it is zeros, and in none."""
        return None if self.is_zero(chunk) else self._slot(chunk)

    def sum_of(self, chunk: int) -> bytes | None:
        return self.record.sum_of(chunk) if self.record is not None and self.whole else None

    def is_zero(self, chunk: int) -> bool:
        """Whether the chunk is nothing but zeros: what its slot holds is of no matter then."""
        return self.sum_of(chunk) == ZEROS

    def verify(self) -> None:
        """Reads all of the version that holds, again if another one is written meanwhile."""
        while (chunk := self._wrong()) is not None:
            read = self.record
            if self.refresh() == read:
                where = f"chunk {chunk} of version {self.version} in {self.host.path}"
                raise BadCopy(f"{where} does not have its checksum; remove the file and start cold")

    def _wrong(self) -> int | None:
        """The first chunk that is not what its checksum says."""
        record = self.refresh()
        for chunk in range(self.host.layout.chunks):
            known = record.sum_of(chunk)
            if known == UNSUMMED:
                raise BadCopy(f"{self.host.path} was not to outlive its process; give it `survive_s`, and start cold")
            if known != ZEROS and checksum(self.current(chunk)) != known:
                return chunk
        return None

    # -- writing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, layout: Layout | None = None) -> Iterator[None]:
        """One version is written inside; if that fails, the one before holds, where there are two slots."""
        file = os.open(self.host.path, os.O_RDWR | os.O_CLOEXEC) if self.host.is_visible else None
        try:
            if file is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            if layout is not None and layout != self.host.layout:
                self._grow(layout)
            self._take_stock()
            yield
        except BaseException:
            self._revert()
            raise
        finally:
            if file is not None:
                let_go(file)

    def _take_stock(self) -> None:
        found = self.host.newest(self.record)
        if found is not None:
            self.record = found
        elif self.record is not None:
            self.record = replace(self.record, stamp=0)  # its number goes on, though nothing of it is here
        self._spoilt = False

    def target(self, chunk: int, count: int = 1) -> Tensor:
        """Where the next version of a chunk goes, and of neighbours that have the same `next_slot`."""
        if self.host.slots == 1 and not self._spoilt:
            self.host.spoil()
            self._spoilt = True
        return self.host.view(chunk, self.next_slot(chunk), count)

    def take_over(self, chunk: int) -> None:
        """Begins the next version of a chunk with what it holds now."""
        if self.is_zero(chunk):
            self.target(chunk).zero_()
        elif self.host.slots == 2:
            self.target(chunk).copy_(self.current(chunk))

    def drafted(self, changed: Mapping[int, bytes], notes: bytes | None = None, aside: bytes | None = None) -> Record:
        """The next version: the chunks in `changed` go to their targets, or are zeros; these are their checksums."""
        notes = notes if notes is not None else self.record.notes if self.record is not None else b""
        aside = aside if aside is not None else self.aside
        require_fit(notes)
        chunks = range(self.host.layout.chunks)
        slots = bytes(self.next_slot(each) if each in changed else self._slot(each) for each in chunks)
        sums = [found for each in chunks if (found := changed.get(each) or self.sum_of(each)) is not None]
        assert len(sums) == len(chunks)  # of all that was written or held
        return Record(self.version + 1, self.host.stamp, slots, b"".join(sums), notes, aside)

    def commit(self, record: Record) -> None:
        """What it names was written."""
        self.host.commit(record)
        self.record = record
        if self._before is not None:
            self._before = None
            self._claim.resize(self.host.nbytes + self._memory.staging_bytes)

    def _slot(self, chunk: int) -> int:
        return self.record.slots[chunk] if self.record is not None and self.whole else 0

    def next_slot(self, chunk: int) -> int:
        if self.record is None or self.host.slots == 1 or not self.whole:
            return 0
        return 1 - self.record.slots[chunk]

    def tidy(self) -> None:
        """A process that was killed while its state grew has left room for two."""
        self.host.path.with_suffix(".new").unlink(missing_ok=True)
        needed = self.host.nbytes + self._memory.staging_bytes
        if self._claim.entry.nbytes > needed:
            self._claim.resize(needed)

    def _grow(self, layout: Layout) -> None:
        """Room for another layout, beside this one until a version is in it."""
        before = self.host
        size = before.nbytes + HostCopy.size(layout, before.slots) + self._memory.staging_bytes
        self._claim.resize(size)
        self._before = before
        self.host = HostCopy.create(before.path, layout, before.slots)
        self._memory.unpin()
        self._memory.pin(self.host.data)

    def _revert(self) -> None:
        if self._before is None:
            self._take_stock()  # in one slot the version before is gone
            return
        if self.host is not self._before:
            self.host.discard()
            self._memory.unpin()
            self.host, self._before = self._before, None
            self._memory.pin(self.host.data)
        self._before, self.record = None, self.host.newest()
        self._claim.resize(self.host.nbytes + self._memory.staging_bytes)

    # -- the end -----------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """As a process does that ends: what is kept stays."""
        self._memory.unpin()
        self._claim.leave()

    def release(self) -> None:
        """Gives it up, unless others share it; not in a child that has inherited it."""
        if os.getpid() == self._pid:
            self._memory.unpin()
            self._claim.release()

    def forsake(self) -> None:
        """The same at the end of its owner, whenever that comes."""
        if os.getpid() == self._pid:
            self._memory.unpin()
            self._claim.forsake()

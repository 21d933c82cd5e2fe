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

    There are no checksums if only this process will ever read the state, and the processor would have to make them.
    """

    def __init__(self, claim: Claim, host: HostCopy, memory: Memory, shared: bool) -> None:
        self.host, self.record = host, host.newest()
        self._claim, self._memory, self._pid = claim, memory, os.getpid()
        self._before: HostCopy | None = None  # the file that holds until the new one, of another layout, has a version
        self._spoilt = False
        self.sums = shared or claim.entry.survive_s > 0 or memory.copies_itself
        memory.pin(host.data)

    @classmethod
    def create(cls, claim: Claim, layout: Layout, slots: int, memory: Memory, *, shared: bool) -> "Kept":
        """Makes the file under a claim on its bytes. The claim is given back if that fails."""
        try:
            return cls(claim, HostCopy.create(claim.budget.state_path(claim.name), layout, slots), memory, shared)
        except BaseException:
            claim.release()
            raise

    @classmethod
    def join(cls, budget: Budget, name: str, memory: Memory, *, shared: bool) -> "Kept":
        """Opens what a dead process has left, or a living one shares, and checks it from the first byte to the last."""
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
        """How long the state outlives its process."""
        return self._claim.entry.survive_s

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether there is a version of this layout."""
        return self.record is not None and self.record.stamp == self.host.stamp

    def newest(self) -> Record | None:
        """The newest version, whichever process has written it."""
        found = self.host.newest(self.record)
        return found if found is not None and found.version > self.version else self.record

    @property
    def version(self) -> int:
        return self.record.version if self.record is not None else 0

    @property
    def aside(self) -> bytes:
        return self.record.aside if self.record is not None else b""

    def refresh(self) -> Record:
        """Looks which version holds now, and goes by its record from now on."""
        found = self.host.newest(self.record)
        if found is None:
            raise BadCopy(f"{self.host.path} holds no whole version: its writer was broken off; start cold")
        self.record = found
        return found

    def current(self, chunk: int, count: int = 1) -> Tensor:
        """What the version that holds has of a chunk, and of neighbours behind it in the same `place`."""
        return self.host.view(chunk, self._slot(chunk), count)

    def beginning(self, chunk: int) -> bytes | None:
        """The first bytes of a chunk; None if the version has none for it, or it is zeros."""
        return self.host.beginning(chunk, self._slot(chunk)) if self.sum_of(chunk) not in (None, ZEROS) else None

    def place(self, chunk: int) -> int | None:
        """The slot that holds a chunk; None if the chunk is zeros, and so in no slot."""
        return None if self.is_zero(chunk) else self._slot(chunk)

    def sum_of(self, chunk: int) -> bytes | None:
        return self.record.sum_of(chunk) if self.record is not None and self.whole else None

    def is_zero(self, chunk: int) -> bool:
        """Whether the chunk is nothing but zeros: then its slot may hold anything."""
        return self.sum_of(chunk) == ZEROS

    def verify(self) -> None:
        """Checks every chunk of the version that holds, and begins again if another version is written meanwhile."""
        while (chunk := self._wrong()) is not None:
            read = self.record
            if self.refresh() == read:
                where = f"chunk {chunk} of version {self.version} in {self.host.path}"
                raise BadCopy(f"{where} does not have its checksum; remove the file and start cold")

    def _wrong(self) -> int | None:
        """The first chunk that does not fit its checksum."""
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
        """One version is written within. If that fails, the one before holds on, if there are two slots."""
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
            self.record = replace(self.record, stamp=0)  # no version is here any more, but its number counts on
        self._spoilt = False

    def target(self, chunk: int, count: int = 1) -> Tensor:
        """Where the next version of a chunk goes, and of neighbours behind it that have the same `next_slot`."""
        if self.host.slots == 1 and not self._spoilt:
            self.host.spoil()
            self._spoilt = True
        return self.host.view(chunk, self.next_slot(chunk), count)

    def take_over(self, chunk: int) -> None:
        """Begins the next version of a chunk with the bytes of the present one."""
        if self.is_zero(chunk):
            self.target(chunk).zero_()
        elif self.host.slots == 2:
            self.target(chunk).copy_(self.current(chunk))

    def drafted(self, changed: Mapping[int, bytes], notes: bytes | None = None, aside: bytes | None = None) -> Record:
        """The next version's record. `changed` has the checksums of chunks that go to their targets or are zeros."""
        notes = notes if notes is not None else self.record.notes if self.record is not None else b""
        aside = aside if aside is not None else self.aside
        require_fit(notes)
        chunks = range(self.host.layout.chunks)
        slots = bytes(self.next_slot(each) if each in changed else self._slot(each) for each in chunks)
        sums = [found for each in chunks if (found := changed.get(each) or self.sum_of(each)) is not None]
        assert len(sums) == len(chunks)  # each chunk is written now, or was in the version before
        return Record(self.version + 1, self.host.stamp, slots, b"".join(sums), notes, aside)

    def commit(self, record: Record) -> None:
        """Makes this version the one that holds. All chunks that it names are written by now."""
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
        """Gives back the second file's room, which a process leaves if it is killed while its state grows."""
        self.host.path.with_suffix(".new").unlink(missing_ok=True)
        needed = self.host.nbytes + self._memory.staging_bytes
        if self._claim.entry.nbytes > needed:
            self._claim.resize(needed)

    def _grow(self, layout: Layout) -> None:
        """Makes a file for another layout. The file before stays beside it until the new one has a version."""
        before = self.host
        size = before.nbytes + HostCopy.size(layout, before.slots) + self._memory.staging_bytes
        self._claim.resize(size)
        self._before = before
        self.host = HostCopy.create(before.path, layout, before.slots)
        self._memory.unpin()
        self._memory.pin(self.host.data)

    def _revert(self) -> None:
        if self._before is None:
            self._take_stock()  # with one slot the version before is gone
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
        """Lets go as a process does that ends: what is kept stays."""
        self._memory.unpin()
        self._claim.leave()

    def release(self) -> None:
        """Gives the state up unless others share it. A forked child that has inherited it does nothing here."""
        if os.getpid() == self._pid:
            self._claim.release()
            self._memory.unpin()

    def forsake(self) -> None:
        """For an owner that is collected unclosed, at whatever moment: only what is to survive stays."""
        if os.getpid() == self._pid:
            self._memory.unpin()
            self._claim.leave() if self.survive_s else self._claim.forsake()

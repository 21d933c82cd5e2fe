"""The version that is held, read in place by whoever serves it.

Invariant: while a `Weights` is open its bytes do not change: a writer waits for its shared lock.
"""

import mmap
import os
import time
from pathlib import Path
from typing import Self

import numpy as np

from rollmux.runtime.sync.errors import Corrupt, SyncFailed
from rollmux.runtime.sync.generation import DIGEST_BYTES, Words, bytes_of, digest_of, whole_of, words_of
from rollmux.runtime.sync.layout import slots
from rollmux.runtime.sync.plan import Plan, Side
from rollmux.runtime.sync.shelf import Mark, read_mark
from rollmux.system import let_go, took_lock

# Each further try means that the version changed in between.
_TRIES, _TRY_S = 100, 0.002


class Weights:
    """One version of one rank's weights. Close it before the version after the next one is to land.

    It is mapped copy-on-write: an engine that changes a weight in place changes its own copy of that page.
    """

    def __init__(self, folder: Path, plan: Plan, side: Side, rank: int) -> None:
        self._folder, self._plan, self._rank = folder, plan, rank
        self._file, self.mark = self._locked()
        self._closed = False
        size = os.fstat(self._file).st_size
        self._bytes = np.frombuffer(mmap.mmap(self._file, size, access=mmap.ACCESS_COPY), np.uint8)
        self._slots, _ = slots(plan.exchange.tensors, side.layout, rank)
        self.words: dict[str, Words] = {name: whole_of(self._bytes, slot) for name, slot in self._slots.items()}
        self.dtypes = {tensor.name: tensor.dtype for tensor in plan.exchange.tensors}

    @property
    def version(self) -> int:
        return self.mark.version

    def _locked(self) -> tuple[int, Mark]:
        for _ in range(_TRIES):
            mark = read_mark(self._folder, "held")
            if mark is None:
                raise SyncFailed(f"{self._folder} holds no version yet: wait for the first sync")
            if mark.plan != self._plan.fingerprint:
                raise SyncFailed(
                    f"version {mark.version} in {self._folder} is of another plan: sync again, or read by it"
                )
            file = os.open(self._folder / f"weights-{mark.generation}", os.O_RDONLY)
            # There is no lock to be had if the next version is already being written here.
            if took_lock(file, shared=True) and read_mark(self._folder, "held") == mark:
                return file, mark
            os.close(file)
            time.sleep(_TRY_S)
        raise SyncFailed(f"{self._folder} changed {_TRIES} times while it was opened: try again")

    def verify(self) -> None:
        """Compares every byte with the digests that it landed with."""
        table = (self._folder / f"digests-{self.mark.generation}").read_bytes()[len(self.mark.plan) // 2 :]
        for index in self._plan.taken(self._rank):
            piece = self._plan.pieces[index]
            words = words_of(self._bytes, self._slots[piece.tensor.name], piece)
            if digest_of(bytes_of(words)) != table[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]:
                raise Corrupt(f"piece {index} ({piece.tensor.name}) of version {self.version} in {self._folder}")

    def close(self) -> None:
        """The bytes may change from now on. The lock is given back by name: the mapping keeps the file open."""
        if not self._closed:
            self._closed = True
            let_go(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

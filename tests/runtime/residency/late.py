"""A device that copies as late as it may: what was read or written too soon shows.

It stands in for a GPU, which has lanes too.
"""

import torch
from torch import Tensor

from rollmux.runtime.residency.layout import CHUNK_BYTES
from rollmux.runtime.residency.memory import CpuMemory
from rollmux.runtime.residency.transfer import Direct, Staged, Transfer


class LateCopies:
    """Copies only when it is waited for: who reads or writes too soon meets other bytes."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.open: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(lanes)]
        self.most_at_once = self.moved_bytes = 0

    def start(self, lane: int, target: Tensor, source: Tensor) -> None:
        self.open[lane].append((target, source))
        self.moved_bytes += source.nbytes
        self.most_at_once = max(self.most_at_once, sum(map(bool, self.open)))

    def wait(self, lane: int) -> None:
        for target, source in self.open[lane]:
            target.copy_(source)
        self.open[lane].clear()


class LateMemory(CpuMemory):
    """A device like a GPU: copies in two lanes, checksums of several chunks at once; pinned host memory or buffers."""

    copies_itself, window, span = True, 2, 64

    def __init__(self, copies: LateCopies, buffers: bool, single_numbers: bool = True) -> None:
        super().__init__()
        self.copies, self.buffers, self.single_numbers = copies, buffers, single_numbers
        self.pins: list[str] = []
        self.staging_bytes = copies.lanes * CHUNK_BYTES if buffers else 0

    def holds(self, tensor: Tensor) -> bool:
        """Single numbers lie on the host, as an optimizer's count of steps does, unless this device has them too."""
        return tensor.dim() > 0 or self.single_numbers

    def pin(self, data: Tensor) -> None:
        self.pins.append("pin")

    def unpin(self) -> None:
        self.pins.append("unpin")

    def transfer(self) -> Transfer:
        if not self.buffers:
            return Direct(self.copies)
        return Staged(
            self.copies, [torch.full((CHUNK_BYTES,), 0xEE, dtype=torch.uint8) for _ in range(self.copies.lanes)]
        )

"""Copies in lanes beside each other: a device that is as late as it may be finds every mistake in their order."""

import pytest
import torch
from torch import Tensor

from rollmux.runtime.residency import Resident
from rollmux.runtime.residency.budget import Budget
from rollmux.runtime.residency.layout import CHUNK_BYTES
from rollmux.runtime.residency.memory import CpuMemory
from rollmux.runtime.residency.transfer import Direct, Staged, Transfer


class LateCopies:
    """Copies only when it is waited for: who reads or writes too soon meets other bytes."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.open: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(lanes)]
        self.most_at_once = 0

    def start(self, lane: int, target: Tensor, source: Tensor) -> None:
        self.open[lane].append((target, source))
        self.most_at_once = max(self.most_at_once, sum(map(bool, self.open)))

    def wait(self, lane: int) -> None:
        for target, source in self.open[lane]:
            target.copy_(source)
        self.open[lane].clear()


class LateMemory(CpuMemory):
    """A device like a GPU: copies in two lanes, checksums of several chunks at once; pinned host memory or buffers."""

    window = 2

    def __init__(self, copies: LateCopies, buffers: bool) -> None:
        super().__init__()
        self.copies, self.buffers = copies, buffers
        self.pins: list[str] = []
        self.staging_bytes = copies.lanes * CHUNK_BYTES if buffers else 0

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


def pieces(count: int) -> list[tuple[Tensor, Tensor]]:
    """Sizes below, at and above a chunk."""
    sizes = [(3, CHUNK_BYTES, 5000, 2 * CHUNK_BYTES + 1)[number % 4] for number in range(count)]
    return [
        (torch.zeros(size, dtype=torch.uint8), torch.full((size,), n + 1, dtype=torch.uint8))
        for n, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("way", ["load", "save"])
def test_no_buffer_is_used_again_while_a_copy_needs_it(lanes: int, way: str) -> None:
    copies, moved = LateCopies(lanes), pieces(8)
    staged = Staged(copies, [torch.empty(CHUNK_BYTES, dtype=torch.uint8) for _ in range(lanes)])
    for target, source in moved:
        (staged.load if way == "load" else staged.save)(target, source)
    staged.finish()
    assert all(torch.equal(target, source) for target, source in moved)
    assert copies.most_at_once == lanes  # they do run beside each other
    assert not any(copies.open)


def test_direct_copies_take_turns_in_all_lanes() -> None:
    copies, moved = LateCopies(2), pieces(4)
    direct = Direct(copies)
    for target, source in moved:
        direct.load(target, source)
    assert [len(lane) for lane in copies.open] == [2, 2]
    direct.finish()
    assert all(torch.equal(target, source) for target, source in moved)


@pytest.mark.parametrize("buffers", [False, True], ids=["pinned", "through buffers"])
def test_a_late_device_loads_and_saves_the_same_values(budget: Budget, buffers: bool) -> None:
    state = {"a": torch.arange(3 * CHUNK_BYTES // 4 + 9, dtype=torch.int32), "b": torch.ones(5)}
    before = {name: tensor.clone() for name, tensor in state.items()}
    memory = LateMemory(LateCopies(2), buffers)
    resident = Resident(state, name="late", budget=budget, memory=memory)
    for turn in range(3):
        resident.offload()
        resident.load()
        assert all(torch.equal(state[name], before[name] + turn) for name in state)
        for tensor in state.values():
            tensor.add_(1)
    assert budget.holdings()[0].nbytes > 2 * resident.nbytes + memory.staging_bytes
    state["more"] = torch.ones(7)
    resident.offload()
    resident.close()
    assert memory.pins == ["pin", "unpin", "pin", "unpin"]

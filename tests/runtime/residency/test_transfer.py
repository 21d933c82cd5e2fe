"""Copies in lanes beside each other: a device that is as late as it may be finds every mistake in their order."""

import pytest
import torch
from torch import Tensor

from rollmux.runtime.host import Budget
from rollmux.runtime.residency import Resident
from rollmux.runtime.residency.layout import CHUNK_BYTES
from rollmux.runtime.residency.transfer import Direct, Staged
from tests.runtime.residency.late import LateCopies, LateMemory


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

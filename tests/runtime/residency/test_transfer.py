"""Copies in lanes beside each other: a device that is as late as it may be finds every mistake in their order."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from rollmux.runtime.host import Budget
from rollmux.runtime.host.budget import Claim
from rollmux.runtime.residency import CpuMemory, Resident, Unfit, Visitor
from rollmux.runtime.residency.layout import CHUNK_BYTES, Layout, Place
from rollmux.runtime.residency.on_device import OnDevice
from rollmux.runtime.residency.sending import AHEAD
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


CHUNKS = 2 * (AHEAD + 2)  # of which so many windows are copied whatever they hold


def many(budget: Budget, copies: LateCopies) -> tuple[dict[str, Tensor], Resident]:
    """State on a late device that has been on the host already."""
    state = {"w": torch.arange(CHUNKS * CHUNK_BYTES // 8)}
    resident = Resident(state, name="many", budget=budget, memory=LateMemory(copies, buffers=False))
    for _ in range(2):  # a version in each slot
        resident.offload()
        resident.load()
        state["w"].add_(1)
    resident.offload()
    resident.load()
    return state, resident


def test_what_is_copied_before_it_is_compared_counts_only_if_it_has_changed(budget: Budget) -> None:
    copies = LateCopies(2)
    state, resident = many(budget, copies)
    version, before = resident.version, state["w"].clone()
    moved = copies.moved_bytes
    resident.offload()
    assert (resident.version, copies.moved_bytes - moved) == (version, 2 * AHEAD * CHUNK_BYTES)
    resident.load()
    assert torch.equal(state["w"], before)
    state["w"][-1] = state["w"][0] = -7
    moved = copies.moved_bytes
    resident.offload()
    assert (resident.version, copies.moved_bytes - moved) == (version + 1, (2 * AHEAD + 1) * CHUNK_BYTES)
    resident.load()
    before[-1] = before[0] = -7
    assert torch.equal(state["w"], before)


def test_tensors_that_were_replaced_are_found_while_others_are_under_way(budget: Budget) -> None:
    state, resident = many(budget, LateCopies(2))
    kept = resident.kept
    state["w"] = torch.full_like(state["w"], 5)
    resident.offload()
    assert resident.kept is kept
    resident.load()
    assert state["w"].eq(5).all()


@pytest.mark.parametrize("at", ["while it is looked at", "while it is copied"])
def test_what_can_not_leave_is_where_it_was(budget: Budget, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    copies = LateCopies(2)
    state, resident = many(budget, copies)
    before, version = state["w"].clone(), resident.version
    state["w"][3] = before[3] = -1
    with monkeypatch.context() as patched:
        if at == "while it is looked at":
            state["more"] = object()  # type: ignore[assignment]
        else:
            patched.setattr(copies, "wait", broken)
        with pytest.raises(Unfit if "more" in state else RuntimeError):
            resident.offload()
    state.pop("more", None)
    assert resident.version == version
    assert torch.equal(state["w"], before)
    resident.offload()
    resident.load()
    assert resident.version == version + 1
    assert torch.equal(state["w"], before)


def test_tensors_that_have_left_by_half_come_back(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    state: dict[str, Tensor] = {name: torch.arange(1000.0) for name in "abc"}
    resident = Resident(state, name="half", budget=budget, memory=LateMemory(LateCopies(2), buffers=False))
    for _ in range(2):
        resident.offload()
        resident.load()
    with monkeypatch.context() as patched:
        patched.setattr(resident.device, "_empty", partial(half_empty, state))
        with pytest.raises(KeyboardInterrupt):
            resident.offload()
    assert all(torch.equal(tensor, torch.arange(1000.0)) for tensor in state.values())
    resident.offload()
    resident.load()
    assert all(torch.equal(tensor, torch.arange(1000.0)) for tensor in state.values())


@pytest.mark.parametrize("then", ["offload", "load"])
@pytest.mark.parametrize("what", ["resident", "resident for the first time", "visitor", "read-only visitor"])
def test_an_offload_that_was_interrupted_while_tensors_left_is_ended_by_the_next_or_undone_by_a_load(
    budget: Budget, monkeypatch: pytest.MonkeyPatch, what: str, then: str
) -> None:
    state: dict[str, Tensor] = {name: torch.arange(1_000_000.0) for name in "abc"}
    memory = CpuMemory()
    moved: Resident | Visitor
    if what.startswith("resident"):
        moved = Resident(state, name="half", budget=budget, memory=memory)
    else:
        moved = Visitor(lambda: state, name="half", memory=memory, read_only=what == "read-only visitor")
    if what == "resident":
        moved.offload()
    moved.load()
    if what != "read-only visitor":
        for tensor in state.values():
            tensor.add_(1)
    before, real = {name: tensor.clone() for name, tensor in state.items()}, Layout.view

    def view(layout: Layout, place: Place, flat: Tensor) -> Tensor:
        if place.name == "b":
            raise KeyboardInterrupt
        return real(layout, place, flat)

    with monkeypatch.context() as patched:
        patched.setattr(OnDevice, "_empty", lambda _: half_empty(state))
        patched.setattr(Layout, "view", view)
        with pytest.raises(KeyboardInterrupt):
            moved.offload()
    assert isinstance(moved, Resident) or moved.is_here  # a part of it
    if then == "offload":
        moved.offload()
        assert memory.resident_bytes() == 0
        assert not (what.startswith("resident") and any(tensor.numel() for tensor in state.values()))
    moved.load()
    assert len({tensor.untyped_storage().data_ptr() for tensor in state.values()}) == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.items())
    moved.close()


def test_a_visit_that_was_interrupted_while_tensors_came_is_ended_by_an_offload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state: dict[str, Tensor] = {name: torch.arange(1_000_000.0) for name in "abc"}
    memory, real = CpuMemory(), Layout.view
    visitor = Visitor(lambda: state, name="half", memory=memory)

    def view(layout: Layout, place: Place, flat: Tensor) -> Tensor:
        if place.name == "b":
            raise KeyboardInterrupt
        return real(layout, place, flat)

    with monkeypatch.context() as patched:
        patched.setattr(Layout, "view", view)
        with pytest.raises(KeyboardInterrupt):
            visitor.load()
    visitor.offload()
    assert memory.resident_bytes() == 0
    assert all(torch.equal(tensor, torch.arange(1_000_000.0)) for tensor in state.values())
    visitor.close()


def half_empty(state: dict[str, Tensor]) -> None:
    state["a"].data = torch.empty(0)
    raise KeyboardInterrupt


def test_an_offload_that_failed_once_it_was_committed_can_be_done_again(
    budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"w": torch.arange(1000.0)}
    resident = Resident(state, name="grown", budget=budget, memory=LateMemory(LateCopies(2), buffers=False))
    for _ in range(2):
        resident.offload()
        resident.load()
    state["more"] = torch.ones(CHUNK_BYTES)
    real, calls = Claim.resize, list[int]()

    def resize(claim: Claim, nbytes: int) -> None:
        calls.append(nbytes)
        if len(calls) == 2:  # the first makes room for both layouts, the second gives that of the old one back
            raise RuntimeError("no copies today")
        real(claim, nbytes)

    with monkeypatch.context() as patched:
        patched.setattr(Claim, "resize", resize)
        with pytest.raises(RuntimeError, match="no copies"):
            resident.offload()
    for _ in range(2):
        resident.offload()
        resident.load()
        assert torch.equal(state["w"], torch.arange(1000.0))
        assert state["more"].eq(1).all()


class BesideIt(LateMemory):
    """Small whole numbers lie on the host."""

    def holds(self, tensor: Tensor) -> bool:
        return tensor.dtype != torch.int16


def test_an_empty_tensor_that_lies_on_the_host_goes_with_those_that_are_not(budget: Budget) -> None:
    numbers = torch.arange(5, dtype=torch.int16)
    state = {"w": torch.arange(1000.0), "none": numbers[:0], "numbers": numbers}
    resident = Resident(state, name="beside", budget=budget, memory=BesideIt(LateCopies(2), buffers=False))
    resident.offload()
    numbers.zero_()
    resident.load()
    assert numbers.tolist() == [0, 1, 2, 3, 4]


def test_what_is_to_survive_may_not_come_to_lie_on_the_host(budget: Budget) -> None:
    state, memory = {"w": torch.arange(1000.0)}, BesideIt(LateCopies(2), buffers=False)
    resident = Resident(state, name="lasting", budget=budget, memory=memory, survive_s=60)
    resident.offload()
    resident.load()
    state["beside"] = torch.ones(1 << 20, dtype=torch.int16)
    with pytest.raises(Unfit, match="is to survive"):
        resident.offload()
    assert torch.equal(state["w"], torch.arange(1000.0))


def test_of_a_large_state_a_span_is_summed_at_a_time(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateMemory, "span", 4)
    state, resident = many(budget, LateCopies(2))
    for place in (0, -1, len(state["w"]) // 2, 3 * CHUNK_BYTES // 8):
        before = state["w"].clone()
        state["w"][place] = before[place] = -9
        resident.offload()
        resident.load()
        assert torch.equal(state["w"], before)


def test_an_order_that_changes_within_few_words_is_not_lost(budget: Budget) -> None:
    state, resident = many(budget, LateCopies(2))
    for _ in range(2):
        state["w"][:3] = state["w"][[1, 2, 0]]
        before = state["w"].clone()
        resident.offload()
        resident.load()
        assert torch.equal(state["w"], before)


def test_what_sums_to_nothing_is_not_nothing(budget: Budget) -> None:
    state, resident = many(budget, LateCopies(2))
    state["w"].zero_()
    resident.offload()
    resident.load()
    assert not state["w"].any()
    state["w"].view(-1, 2).copy_(torch.tensor([1, -1]))
    resident.offload()
    resident.load()
    assert state["w"].view(-1, 2).eq(torch.tensor([1, -1])).all()


def test_a_load_that_breaks_off_leaves_nothing_on_the_device(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = LateCopies(2)
    state, resident = many(budget, copies)
    before = state["w"].clone()
    resident.offload()
    real = copies.wait

    def wait(lane: int) -> None:
        real(lane)
        broken()

    with monkeypatch.context() as patched:
        patched.setattr(copies, "wait", wait)
        with pytest.raises(RuntimeError, match="no copies"):
            resident.load()
    assert not state["w"].numel()
    for lane in copies.open:
        lane.clear()  # which hold what they were to copy
    resident.offload()
    memory = resident.device.memory
    assert isinstance(memory, LateMemory)
    assert memory.resident_bytes() == 0
    resident.load()
    assert torch.equal(state["w"], before)


class Asked(LateMemory):
    """Counts the sums that were asked for and that nobody has waited for."""

    awaited = 0

    def sums(self, data: Tensor) -> Callable[[], Tensor]:
        self.awaited += 1

        def arrived() -> Tensor:
            self.awaited -= 1
            return there()

        there = super().sums(data)
        return arrived


@pytest.mark.parametrize("buffers", [False, True], ids=["pinned", "through buffers"])
@pytest.mark.parametrize("what", ["first offload", "offload", "load", "visit", "visit home"])
def test_what_is_interrupted_leaves_no_copy_and_no_sums_under_way(
    budget: Budget, monkeypatch: pytest.MonkeyPatch, buffers: bool, what: str
) -> None:
    """They would be written to memory that is somebody else's by then."""
    copies, state = LateCopies(2), {"w": torch.arange(3 * CHUNK_BYTES // 8), "v": torch.arange(3 * CHUNK_BYTES // 8)}
    memory = Asked(copies, buffers)
    moved: Resident | Visitor
    if what.startswith("visit"):
        moved = Visitor(lambda: state, name="a", memory=memory)
    else:
        moved = Resident(state, name="a", budget=budget, memory=memory)
    move = moved.load if what in ("load", "visit") else moved.offload
    if what in ("load", "offload"):
        moved.offload()
    if what in ("offload", "visit home"):
        moved.load()
    real, begun = copies.start, list[int]()

    def start(lane: int, target: Tensor, source: Tensor) -> None:
        if begun:
            raise KeyboardInterrupt
        begun.append(lane)
        real(lane, target, source)

    with monkeypatch.context() as patched:
        patched.setattr(copies, "start", start)
        with pytest.raises(KeyboardInterrupt):
            move()
    assert begun
    assert not any(copies.open)
    assert not memory.awaited
    moved.load()
    moved.offload()
    moved.load()
    assert all(torch.equal(tensor, torch.arange(3 * CHUNK_BYTES // 8)) for tensor in state.values())
    moved.close()


def broken(*_: object) -> None:
    raise RuntimeError("no copies today")

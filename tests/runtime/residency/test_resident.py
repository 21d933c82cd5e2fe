"""Residency as a phase uses it: what moves, what does not, what is refused, and that the memory is really free."""

import errno
import fcntl
import gc
import mmap
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rollmux.client import residency as phases
from rollmux.runtime.residency import (
    BadCopy,
    Budget,
    Changed,
    CpuMemory,
    NameTaken,
    NoRoom,
    NotFreed,
    Resident,
    Unfit,
    pages,
)
from rollmux.runtime.residency.layout import CHUNK_BYTES
from rollmux.runtime.residency.pages import MADV_FREE, MADV_HUGEPAGE, Piece
from tests.runtime.residency.keeping import MB
from tests.runtime.residency.late import LateCopies, LateMemory

BIG = 3_000_000  # floats: three chunks


def mapped_bytes(resident: Resident) -> int:
    """What the kernel keeps of the state's working memory."""
    memory = resident.device.memory
    assert isinstance(memory, CpuMemory)
    return memory.resident_bytes()


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(900, 900), nn.Linear(900, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss = model(torch.ones(2, 900)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test_a_phase_of_the_sdk_takes_it_as_its_state(budget: Budget) -> None:
    resident = Resident({"w": torch.ones(BIG)}, name="a", budget=budget)
    state = phases.as_state(resident)
    assert phases.moves(state)
    assert phases.size(state) == resident.nbytes >= 4 * BIG
    phases.offload(state)
    phases.load(state)
    assert mapped_bytes(resident) >= 4 * BIG


def test_training_with_moves_between_the_steps_is_training(budget: Budget) -> None:
    torch.manual_seed(0)
    model, optimizer = trained()
    torch.manual_seed(0)
    same, its_optimizer = trained()
    resident = Resident({"model": model, "optimizer": optimizer}, name="a", budget=budget)
    names = [place.name for place in resident._layout.places]
    assert {"model.0.weight", "model.0.weight.grad", "optimizer.state.0.exp_avg"} <= set(names)
    for turn in range(4):
        resident.offload()
        resident.load()
        if turn == 2:
            optimizer.zero_grad()
            its_optimizer.zero_grad()
        assert step(model, optimizer) == step(same, its_optimizer)


def test_what_a_fused_optimizer_changes_past_the_counters_is_copied_back(budget: Budget) -> None:
    weight = nn.Parameter(torch.ones(10))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    resident = Resident([weight, optimizer], name="a", budget=budget)
    resident.offload()
    resident.load()
    counted, (weight.grad) = weight._version, torch.ones(10)
    optimizer.step()
    assert weight._version == counted  # the reason why counters are not enough
    expected = weight.detach().clone()
    resident.offload()
    resident.load()
    assert torch.equal(weight.detach(), expected)


def test_after_offload_the_kernel_keeps_none_of_it(budget: Budget) -> None:
    resident = Resident({"w": torch.ones(BIG)}, name="a", budget=budget, memory=CpuMemory())
    for _ in range(3):
        resident.offload()
        resident.load()
        assert mapped_bytes(resident) >= 4 * BIG
    resident.offload()
    assert mapped_bytes(resident) == 0
    assert resident.leaked_bytes == 0


@pytest.mark.parametrize("kernel", ["does not know that", "takes none of it", "keeps no books", "is not Linux"])
def test_memory_that_the_kernel_will_not_take_is_given_back(
    budget: Budget, monkeypatch: pytest.MonkeyPatch, kernel: str, request: pytest.FixtureRequest
) -> None:
    if kernel == "is not Linux":
        request.getfixturevalue("elsewhere")
    elif kernel == "does not know that":
        monkeypatch.setattr(Piece, "advise", refusing(MADV_FREE))
    elif kernel == "takes none of it":
        monkeypatch.setattr(Piece, "unreclaimable_bytes", lambda piece: 1 << 40)
    else:
        monkeypatch.setattr(pages, "SMAPS", Path("/proc/self/nowhere"))
    state = {"w": torch.ones(BIG)}
    resident = Resident(state, name="a", budget=budget)
    for _ in range(3):
        resident.offload()
        assert mapped_bytes(resident) == 0
        resident.load()
        assert torch.equal(state["w"], torch.ones(BIG))


def test_memory_that_can_not_be_given_back_is_not_free(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"w": torch.ones(BIG), "then zeros": torch.ones(BIG)}
    resident = Resident(state, name="a", budget=budget)
    resident.offload()
    resident.load()
    with monkeypatch.context() as patched:
        patched.setattr(Piece, "advise", refusing(MADV_FREE, mmap.MADV_DONTNEED))
        for _ in range(2):  # asked again, it does not pretend
            with pytest.raises(NotFreed, match=r"can't be given back \(Invalid argument\); do not lock them"):
                resident.offload()
        resident.update({"then zeros": torch.zeros(BIG)})
        resident.load()
    assert torch.equal(state["w"], torch.ones(BIG))
    assert not state["then zeros"].any()
    resident.offload()


def test_a_kernel_that_has_no_huge_pages_gives_small_ones(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Piece, "advise", refusing(MADV_HUGEPAGE))
    state = {"w": torch.ones(BIG)}
    resident = Resident(state, name="a", budget=budget)
    resident.offload()
    resident.load()
    assert torch.equal(state["w"], torch.ones(BIG))


def refusing(*refused: int) -> Callable[[Piece, int], None]:
    """As the kernel does for memory that is locked, or for what it does not know."""
    real = Piece.advise

    def advise(piece: Piece, advice: int, part: Tensor | None = None) -> None:
        if advice in refused:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(piece, advice, part)

    return advise


@pytest.mark.parametrize("lazy", [False, True])
def test_memory_that_a_child_holds_is_not_free(budget: Budget, lazy: bool) -> None:
    state = {"w": torch.ones(BIG)}
    resident = Resident(state, name="a", budget=budget, memory=CpuMemory(lazy=lazy))
    resident.offload()
    resident.load()
    child = os.fork()
    if not child:
        signal.pause()
    try:
        with pytest.raises(NotFreed, match="look for who shares them"):
            resident.offload()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    resident.load()
    assert torch.equal(state["w"], torch.ones(BIG))
    resident.offload()


def test_two_states_in_one_memory_do_each_other_no_harm(budget: Budget) -> None:
    memory = CpuMemory(lazy=True)
    states = [{"w": torch.full((BIG,), value)} for value in (1.0, 2.0)]
    residents = [Resident(state, name=str(number), budget=budget, memory=memory) for number, state in enumerate(states)]
    for resident in residents:
        resident.offload()
    for resident in residents:
        resident.load()
    with pytest.raises(NotFreed, match="and give each state a memory of its own"):
        residents[0].offload()
    assert torch.equal(states[1]["w"], torch.full((BIG,), 2.0))


def test_a_tensor_that_was_replaced_and_is_still_held_keeps_its_memory(budget: Budget) -> None:
    state = {"w": torch.ones(BIG)}
    resident = Resident(state, name="a", budget=budget)
    resident.offload()
    resident.load()
    old, state["w"] = state["w"], torch.full((BIG,), 2.0)
    with pytest.raises(NotFreed, match="others still hold"):
        resident.offload()
    resident.load()
    assert (old[0].item(), state["w"][0].item()) == (1.0, 2.0)
    del old
    resident.offload()
    assert resident.leaked_bytes == 0


def test_an_offload_that_frees_nothing_fails_and_says_what_is_held(budget: Budget) -> None:
    state = {"w": torch.ones(BIG)}
    resident = Resident(state, name="a", budget=budget)
    resident.offload()
    resident.load()
    sneaky = state["w"][5:6]
    with pytest.raises(NotFreed, match=r"'a' is on the host, but others still hold 12\.00 MB"):
        resident.offload()
    with pytest.raises(NotFreed):
        resident.offload()  # asked again, it does not pretend
    assert sneaky.item() == 1.0  # what is held stays what it was
    resident.load()
    assert torch.equal(state["w"], torch.ones(BIG))
    del sneaky
    resident.offload()
    assert resident.leaked_bytes == 0


def test_a_leak_before_the_first_move_is_noticed_too(budget: Budget) -> None:
    state = {"w": torch.ones(BIG)}
    kept = state["w"].detach()
    resident = Resident(state, name="a", budget=budget)
    with pytest.raises(NotFreed):
        resident.offload()
    del kept
    resident.offload()


def test_what_only_a_cycle_of_dead_objects_holds_is_no_leak(budget: Budget) -> None:
    state = {"w": torch.ones(BIG)}
    resident = Resident(state, name="a", budget=budget)
    cycle: list[object] = [state["w"].detach()]
    cycle.append(cycle)
    gc.collect()
    del cycle
    resident.offload()
    assert resident.leaked_bytes == 0


def test_unchanged_state_is_not_written_again(budget: Budget) -> None:
    state = {"w": torch.ones(BIG), "v": torch.zeros(BIG)}
    resident = Resident(state, name="a", budget=budget)
    resident.offload()
    first = resident.kept.record if resident.kept is not None else None
    resident.load()
    resident.offload()
    assert resident.version == 1
    resident.load()
    state["v"][7] = 1.0
    resident.offload()
    second = resident.kept.record if resident.kept is not None else None
    assert first is not None
    assert second is not None
    assert second.version == 2
    moved = [chunk for chunk, (a, b) in enumerate(zip(first.slots, second.slots, strict=True)) if a != b]
    assert len(moved) == 1


def a_late_memory() -> LateMemory:
    return LateMemory(LateCopies(2), buffers=False)


def a_lazy_memory() -> CpuMemory:
    return CpuMemory(lazy=True)


@pytest.mark.parametrize("make", [CpuMemory, a_lazy_memory, a_late_memory])
@pytest.mark.parametrize("slots", [1, 2])
def test_zeros_are_known_and_not_moved(budget: Budget, make: Callable[[], CpuMemory], slots: int) -> None:
    state = {"w": torch.ones(BIG), "grad": torch.zeros(3 * MB)}
    resident = Resident(state, name="a", budget=budget, memory=make(), slots=slots)
    for turn in (1.0, 0.0, 0.0, 2.0, -3.0, 0.0):
        state["grad"].fill_(turn)
        state["w"].fill_(turn + 1)
        resident.offload()
        kept = resident.kept
        assert kept is not None
        held = [kept.is_zero(chunk) for chunk in range(kept.host.layout.chunks)]
        assert sum(held) == (3 if turn == 0.0 else 0)  # chunks that nothing else lies in
        for chunk in [number for number, zero in enumerate(held) if zero]:
            kept.current(chunk).fill_(7)  # what lies there is of no matter
        resident.load()
        assert torch.equal(state["grad"], torch.full((3 * MB,), turn))
        assert torch.equal(state["w"], torch.full((BIG,), turn + 1))
    resident.offload()
    resident.update({"grad": torch.arange(3 * MB) // MB})
    resident.load()
    assert torch.equal(state["grad"], (torch.arange(3 * MB) // MB).float())


def test_gradients_that_are_zero_are_one_run_of_zeros_whatever_they_belong_to(budget: Budget) -> None:
    model = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(12))  # four of them a chunk
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    resident = Resident(model, name="a", budget=budget)
    resident.offload()
    kept = resident.kept
    assert kept is not None
    assert [kept.is_zero(chunk) for chunk in range(kept.host.layout.chunks)] == [False] * 3 + [True] * 3


def test_zeros_outlive_their_process_as_all_else(budget: Budget) -> None:
    resident = Resident({"w": torch.zeros(BIG)}, name="a", budget=budget, survive_s=60)
    resident.offload()
    resident.close(keep=True)
    state = {"w": torch.ones(BIG)}
    Resident.attach(state, name="a", budget=budget).load()
    assert not state["w"].any()


def test_words_that_add_up_to_nothing_are_not_taken_for_zeros(budget: Budget) -> None:
    state = {"w": torch.tensor([5, -5]).repeat(BIG // 2)}
    resident = Resident(state, name="a", budget=budget)
    resident.offload()
    resident.load()
    assert torch.equal(state["w"], torch.tensor([5, -5]).repeat(BIG // 2))
    state["w"].mul_(2)
    resident.offload()
    resident.load()
    assert torch.equal(state["w"], torch.tensor([10, -10]).repeat(BIG // 2))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_what_is_moved(budget: Budget, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        state = {"w": torch.arange(6 * MB + 77)}
        resident = Resident(state, name="a", budget=budget)
        for turn in range(3):
            resident.offload()
            resident.load()
            assert torch.equal(state["w"], torch.arange(6 * MB + 77) + turn)
            state["w"][turn * MB :].add_(1)
            state["w"][: turn * MB].add_(1)
        resident.close(keep=True)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("past_the_counter", [False, True])
def test_read_only_state_is_let_go_of_uncopied_and_a_change_is_noticed(budget: Budget, past_the_counter: bool) -> None:
    weight = torch.ones(BIG)
    resident = Resident({"w": weight}, name="a", budget=budget, read_only=True, slots=1)
    resident.offload()
    resident.load()
    resident.offload()
    assert resident.version == 1
    resident.load()
    (weight.data if past_the_counter else weight).mul_(2)
    with pytest.raises(Changed, match=r"'a' is read-only, and .* was? ?changed"):
        resident.offload()
    assert weight[0] == 2.0  # nothing is lost: it is still there


def test_a_read_only_tensor_that_was_put_elsewhere_is_noticed(budget: Budget) -> None:
    weight = torch.ones(BIG)
    resident = Resident({"w": weight}, name="a", budget=budget, read_only=True)
    resident.offload()
    resident.load()
    weight.data = torch.ones(BIG)
    with pytest.raises(Changed, match="'w' was changed, or put elsewhere"):
        resident.offload()


def test_an_update_on_the_host_reaches_read_only_weights_with_the_next_load(budget: Budget) -> None:
    model = nn.Linear(1500, 1500)
    model.requires_grad_(False)
    resident = Resident(model, name="a", budget=budget, read_only=True)
    for version in (2, 3):
        assert resident.update({"weight": torch.full((1500, 1500), float(version))}, notes=b"step") == version
        assert model.weight[0, 0] != version  # what runs is not disturbed
        assert resident.outdated
        resident.load()
        assert torch.equal(model.weight, torch.full((1500, 1500), float(version)))
        assert not resident.outdated
    assert resident.notes == b"step"


def test_updates_that_do_not_fit_change_nothing(budget: Budget) -> None:
    resident = Resident({"w": torch.ones(8), "v": torch.ones(8)}, name="a", budget=budget)
    with pytest.raises(Unfit, match="offload it before its update"):
        resident.update({"w": torch.ones(8)})
    resident.offload()
    with pytest.raises(Unfit, match=r"'w' has the shape \(8,\), not \(9,\)"):
        resident.update({"v": torch.zeros(8), "w": torch.ones(9)})
    with pytest.raises(Unfit, match="'x' is not in the state 'a'"):
        resident.update({"x": torch.ones(9)})
    assert resident.version == 1
    resident.load()
    assert resident.device.flat is not None


def test_one_copy_serves_several_and_an_update_reaches_all(budget: Budget) -> None:
    mine, theirs = {"w": torch.ones(BIG)}, {"w": torch.zeros(BIG)}
    owner = Resident(mine, name="a", budget=budget, read_only=True, shared=True)
    owner.offload()
    joined = Resident.attach(theirs, name="a", budget=budget, read_only=True, shared=True)
    assert len(budget.holdings()) == 1
    owner.load()
    joined.load()
    assert torch.equal(theirs["w"], mine["w"])
    joined.update({"w": torch.full((BIG,), 5.0)})
    assert owner.outdated
    owner.load()
    assert mine["w"][-1] == 5.0
    owner.close()
    assert len(budget.holdings()) == 1  # somebody still has it
    joined.load()
    assert theirs["w"][0] == 5.0
    joined.close()
    assert budget.holdings() == ()


def test_what_is_not_shared_is_its_owners_alone(budget: Budget) -> None:
    owner = Resident({"w": torch.ones(8)}, name="a", budget=budget)
    owner.offload()
    for shared in (False, True):
        with pytest.raises(NameTaken, match="a living process keeps state as 'a'"):
            Resident.attach({"w": torch.ones(8)}, name="a", budget=budget, shared=shared)
    with pytest.raises(NameTaken):
        Resident({"w": torch.ones(8)}, name="a", budget=budget)
    owner.load()
    assert owner.version == 1


def test_a_copy_that_was_tampered_with_is_refused(budget: Budget) -> None:
    resident = Resident({"w": torch.ones(BIG)}, name="a", budget=budget, survive_s=60)
    resident.offload()
    assert resident.kept is not None
    resident.kept.current(1)[12345] ^= 1
    resident.close(keep=True)
    with pytest.raises(BadCopy, match=r"chunk 1 of version 1 in .*a\.state does not have its checksum"):
        Resident.attach({"w": torch.ones(BIG)}, name="a", budget=budget)


def late_with_numbers_on_the_host() -> LateMemory:
    """As where AdamW's counts of steps stay off the GPU."""
    return LateMemory(LateCopies(2), buffers=False, single_numbers=False)


@pytest.mark.parametrize("memory", [CpuMemory, late_with_numbers_on_the_host])
@pytest.mark.parametrize("gradients", [True, False])
def test_an_optimizer_goes_on_after_a_crash_as_if_nothing_had_been(
    budget: Budget, gradients: bool, memory: Callable[[], CpuMemory]
) -> None:
    def trained(steps: int, state: Any, drawn: torch.Generator) -> None:
        for _ in range(steps):
            loss = state["model"](torch.randn(4, 3, generator=drawn)).square().sum()
            loss.backward()
            state["optimizers"][0].step()
            state["optimizers"][0].zero_grad(set_to_none=not gradients)

    def new() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        return {"model": model, "optimizers": [torch.optim.AdamW(model.parameters(), lr=0.1)]}

    plain, dies = new(), new()
    trained(4, plain, torch.Generator().manual_seed(1))
    drawn = torch.Generator().manual_seed(1)
    trained(2, dies, drawn)
    resident = Resident(dies, name="a", budget=budget, memory=memory(), survive_s=60)
    resident.offload()
    resident.close(keep=True)
    again = new()
    Resident.attach(again, name="a", budget=budget, memory=memory()).load()
    trained(2, again, drawn)
    for one, other in zip(plain["model"].parameters(), again["model"].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_number_on_the_host_is_of_the_version_like_all_else(budget: Budget) -> None:
    state = {"w": torch.ones(8), "steps": torch.tensor(1.0), "seen": torch.tensor(7, dtype=torch.int64)}
    resident = Resident(state, name="a", budget=budget, memory=late_with_numbers_on_the_host(), survive_s=60)
    resident.offload()
    resident.load()
    state["steps"].add_(1)
    resident.offload()
    assert resident.version == 2
    resident.load()
    resident.offload()
    assert resident.version == 2  # nothing has changed
    state["more"] = torch.tensor(3.0)
    resident.load()
    resident.offload()
    resident.close(keep=True)
    other = {name: torch.zeros_like(state[name]) if name != "w" else torch.zeros(8) for name in state}
    attached = Resident.attach(other, name="a", budget=budget, memory=late_with_numbers_on_the_host())
    attached.load()
    assert {name: float(tensor.sum()) for name, tensor in other.items()} == {"w": 8, "steps": 2, "seen": 7, "more": 3}
    attached.close(keep=True)
    del other["more"]
    with pytest.raises(Unfit, match=r"'more' is missing, and \('float32', \(\)\) in the copy"):
        Resident.attach(other, name="a", budget=budget, memory=late_with_numbers_on_the_host())


def test_a_number_on_the_host_that_read_only_state_changes_is_noticed(budget: Budget) -> None:
    state = {"w": torch.ones(8), "scale": torch.tensor(1.0)}
    memory = late_with_numbers_on_the_host()
    resident = Resident(state, name="a", budget=budget, memory=memory, read_only=True)
    resident.offload()
    resident.load()
    resident.offload()
    resident.load()
    state["scale"].fill_(2.0)
    with pytest.raises(Changed, match="a number of it that lies on the host was changed"):
        resident.offload()


def test_who_takes_over_takes_over_for_how_long_it_survives_too(budget: Budget) -> None:
    resident = Resident({"w": torch.ones(8)}, name="a", budget=budget, survive_s=60)
    resident.offload()
    resident.close(keep=True)
    state = {"w": torch.zeros(8)}
    attached = Resident.attach(state, name="a", budget=budget, declared_bytes=30 * MB)
    attached.load()
    attached.drop()
    attached.offload()
    attached.close(keep=True)
    assert budget.sweep() == ()
    held = {"w": torch.zeros(8)}
    again = Resident.attach(held, name="a", budget=budget, declared_bytes=1)
    again.load()
    held["w"] = torch.ones(9)
    with pytest.raises(NoRoom, match="are declared"):
        again.offload()


def test_much_that_is_on_the_host_anyway_is_no_state_that_survives(budget: Budget) -> None:
    class Half(CpuMemory):
        def holds(self, tensor: Tensor) -> bool:
            return tensor.dim() == 1

    state = {"w": torch.ones(8), "moments": torch.ones(600, 600)}
    resident = Resident(state, name="a", budget=budget, memory=Half())
    for _ in range(2):
        resident.offload()
        assert not state["w"].numel()
        assert state["moments"].eq(1).all()
        resident.load()
    with pytest.raises(Unfit, match=r"'b' is to survive, and 1.44 MB of it are on the host, and end with this process"):
        Resident(state, name="b", budget=budget, memory=Half(), survive_s=1)


def test_an_optimizer_whose_state_is_not_taken_over_begins_as_new(budget: Budget) -> None:
    model = nn.Linear(3, 5)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    resident = Resident([model, optimizer], name="a", budget=budget, survive_s=60)
    resident.offload()
    resident.close(keep=True)
    other = nn.Linear(3, 6)
    fresh = torch.optim.AdamW(other.parameters())
    with pytest.raises(Unfit, match="build the state as it was"):
        Resident.attach([other, fresh], name="a", budget=budget)
    assert not fresh.state
    assert all(parameter.grad is None for parameter in other.parameters())


def test_what_was_not_to_outlive_its_process_is_not_taken_over(budget: Budget) -> None:
    resident = Resident({"w": torch.ones(BIG)}, name="a", budget=budget)
    resident.offload()
    resident.close(keep=True)
    with pytest.raises(BadCopy, match=r"a\.state was not to outlive its process; give it `survive_s`"):
        Resident.attach({"w": torch.ones(BIG)}, name="a", budget=budget)


def test_state_of_another_shape_is_not_taken_over(budget: Budget) -> None:
    resident = Resident({"w": torch.ones(8)}, name="a", budget=budget, survive_s=60)
    resident.offload()
    resident.close(keep=True)
    with pytest.raises(Unfit, match=r"'a': 'w' is \('float32', \(9,\)\), and \('float32', \(8,\)\) in the copy"):
        Resident.attach({"w": torch.ones(9)}, name="a", budget=budget)
    attached = Resident.attach({"w": torch.zeros(8)}, name="a", budget=budget)
    attached.load()


def test_more_than_the_budget_is_refused_before_anything_is_taken(folder: Path) -> None:
    budget = Budget(folder, 30 * MB)
    neighbour = Resident({"w": torch.ones(BIG // 2)}, name="neighbour", budget=budget)
    with pytest.raises(NoRoom, match=r"'a' needs 2\d\.\d\d MB of host memory, and .* of the node's 30\.00 MB are left"):
        Resident({"w": torch.ones(BIG)}, name="a", budget=budget)
    assert [each.name for each in budget.holdings()] == ["neighbour"]
    assert [path.name for path in folder.glob("a.*")] == []
    neighbour.offload()


def test_state_that_outgrows_the_budget_stays_where_it_is(folder: Path) -> None:
    budget = Budget(folder, 60 * MB)
    state = {"w": torch.ones(BIG)}
    resident = Resident(state, name="a", budget=budget)
    resident.offload()
    resident.load()
    state["more"] = torch.ones(BIG)
    held = budget.holdings()
    with pytest.raises(NoRoom):
        resident.offload()
    assert state["more"][0] == 1.0
    assert budget.holdings() == held
    del state["more"]
    resident.offload()
    assert resident.version == 1


def test_an_owner_that_can_start_cold_gives_up_its_own_copy_and_no_neighbours(folder: Path) -> None:
    budget = Budget(folder, 60 * MB)
    neighbour = Resident({"w": torch.ones(8)}, name="neighbour", budget=budget)
    neighbour.offload()
    state: dict[str, Tensor] = {"w": torch.ones(BIG)}
    rebuilt: list[int] = []

    def rebuild() -> None:
        rebuilt.append(1)
        for tensor in state.values():
            tensor.fill_(7)

    resident = Resident(state, name="a", budget=budget, rebuild=rebuild)
    resident.offload()
    resident.load()
    assert rebuilt == []
    state["more"] = torch.ones(2 * BIG)
    resident.offload()
    assert [each.name for each in budget.holdings()] == ["neighbour"]
    resident.load()
    assert rebuilt == [1]
    assert state["more"][-1] == 7.0
    neighbour.load()


def test_a_footprint_above_the_declared_one_is_refused(budget: Budget) -> None:
    with pytest.raises(NoRoom, match=r"for 2 slots, and 20\.00 MB are declared"):
        Resident({"w": torch.ones(BIG)}, name="a", budget=budget, declared_bytes=20 * MB)
    Resident({"w": torch.ones(BIG)}, name="a", budget=budget, declared_bytes=20 * MB, slots=1)


def test_two_limits_for_one_memory_are_refused(budget: Budget, folder: Path) -> None:
    with pytest.raises(Unfit, match="all jobs of a node give the same limit"):
        Budget(folder, budget.limit_bytes + 1)
    folder.chmod(0o755)
    with pytest.raises(Unfit, match="open to other users"):
        Budget(folder, budget.limit_bytes)


@pytest.mark.parametrize("name", ["", "../x", "a.b", "-x", "a" * 101])
def test_names_that_are_no_plain_words_are_refused(budget: Budget, name: str) -> None:
    with pytest.raises(Unfit, match="must be letters"):
        Resident({"w": torch.ones(8)}, name=name, budget=budget)


def test_what_can_not_be_looked_into_is_refused_and_not_skipped(budget: Budget) -> None:
    with pytest.raises(Unfit, match=r"deep\.0 is a set"):
        Resident({"deep": [{torch.ones(1)}]}, name="a", budget=budget)
    with pytest.raises(Unfit, match=r"w is torch\.sparse_coo"):
        Resident({"w": torch.ones(3, 3).to_sparse()}, name="a", budget=budget)
    with pytest.raises(Unfit, match="holds no tensor"):
        Resident({"w": 3}, name="a", budget=budget)


def test_state_that_is_gone_is_not_made_up(budget: Budget) -> None:
    resident = Resident({"w": torch.ones(8)}, name="a", budget=budget)
    resident.offload()
    resident.drop()
    with pytest.raises(BadCopy, match="no `rebuild` was given"):
        resident.load()


def test_a_cold_start_that_fails_leaves_nothing_on_the_device(budget: Budget) -> None:
    def rebuild() -> None:
        raise OSError("no checkpoint")

    state = {"w": torch.ones(BIG)}
    resident = Resident(state, name="a", budget=budget, rebuild=rebuild)
    resident.offload()
    resident.drop()
    with pytest.raises(OSError, match="no checkpoint"):
        resident.load()
    assert state["w"].numel() == 0
    assert mapped_bytes(resident) == 0


def test_shared_state_in_one_slot_is_not_written_under_its_readers(budget: Budget) -> None:
    resident = Resident({"w": torch.ones(8)}, name="a", budget=budget, read_only=True, shared=True, slots=1)
    resident.offload()
    with pytest.raises(Unfit, match="use two for updates"):
        resident.update({"w": torch.zeros(8)})


def test_those_who_share_a_copy_write_in_turns(budget: Budget) -> None:
    state = {"w": torch.zeros(1000)}
    resident = Resident(state, name="shared", budget=budget, shared=True)
    resident.offload()
    resident.load()
    assert resident.kept is not None
    with resident.kept.host.path.open("rb+") as other, ThreadPoolExecutor(1) as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        state["w"].fill_(1)
        writes = pool.submit(resident.offload)
        with pytest.raises(TimeoutError):
            writes.result(0.2)
        assert resident.version == 1
        fcntl.flock(other, fcntl.LOCK_UN)
        writes.result(30)
    assert resident.version == 2


def test_a_child_that_was_forked_while_a_version_was_written_holds_nobody_up(budget: Budget) -> None:
    state = {"w": torch.zeros(1000)}
    resident = Resident(state, name="alone", budget=budget)
    resident.offload()
    resident.load()
    assert resident.kept is not None
    with resident.kept.writing():
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(resident.offload).result(20)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_number_that_is_given_again_is_not_taken_for_the_version_it_named(budget: Budget) -> None:
    """In one slot a version that was broken off leaves none, and the next writer goes on from what it has seen."""
    states = [{"w": torch.arange(3.0 * CHUNK_BYTES // 4)} for _ in range(2)]
    memory = [LateMemory(LateCopies(2), buffers=False) for _ in range(2)]
    one = Resident(states[0], name="one", budget=budget, memory=memory[0], slots=1, shared=True)
    one.offload()
    two = Resident.attach(states[1], name="one", budget=budget, memory=memory[1], shared=True)
    one.load()
    two.load()
    states[1]["w"][: CHUNK_BYTES // 4] = 0
    two.offload()
    two.load()
    before = states[1]["w"].clone()
    assert two.kept is not None
    with two.kept.writing():
        two.kept.target(1)  # and no commit
    states[0]["w"].fill_(5)
    one.offload()
    two.offload()
    two.load()
    assert torch.equal(states[1]["w"], before)

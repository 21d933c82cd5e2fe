"""The same residency on a GPU; where there is none, a fake of torch's books and of the driver stands in."""

import ctypes
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rollmux.runtime.residency import Budget, NoRoom, NotFreed, Resident, Unfit, Visitor, cuda, driver, on_device, sheet
from rollmux.runtime.residency.checksum import LINE, checksum, digests, sums_of
from rollmux.runtime.residency.cuda import STREAMS, CudaMemory
from rollmux.runtime.residency.layout import CHUNK_BYTES, ROW_BYTES
from tests.runtime.residency.late import LateCopies

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


BLOCK_BYTES = 32 << 20  # more than is ever left of a segment that torch has taken for small tensors


@needs_gpu
def test_device_memory_comes_and_goes_with_the_state(budget: Budget) -> None:
    state = {"w": torch.arange(30_000_000, dtype=torch.float32, device="cuda")}
    before = state["w"].cpu()
    resident = Resident(state, name="a", budget=budget)
    for _ in range(3):
        held = torch.cuda.memory_allocated()
        resident.offload()
        assert held - torch.cuda.memory_allocated() >= 4 * 30_000_000
        resident.load()
        assert torch.equal(state["w"].cpu(), before)


@needs_gpu
def test_a_view_that_outlives_the_phase_is_noticed(budget: Budget) -> None:
    state = {"w": torch.ones(3_000_000, device="cuda")}
    resident = Resident(state, name="a", budget=budget)
    view = state["w"][:1].detach()
    with pytest.raises(Exception, match="others still hold"):
        resident.offload()
    del view
    resident.offload()


@needs_gpu
def test_a_gpu_sums_as_the_processor_does() -> None:
    data = torch.arange(3 * CHUNK_BYTES // 8 + 5 * ROW_BYTES // 8).view(torch.uint8)
    data[CHUNK_BYTES : 2 * CHUNK_BYTES] = 0
    there, room = data.cuda(), torch.empty((4, LINE), dtype=torch.int64, device="cuda")
    torch.cuda.empty_cache()
    asked = torch.cuda.memory_stats()["num_device_alloc"]
    sums = sums_of(there, room)
    assert torch.cuda.memory_stats()["num_device_alloc"] == asked  # which would wait for copies
    assert [*digests(sums.cpu())] == [checksum(each) for each in torch.split(data, CHUNK_BYTES)]


@needs_gpu
def test_what_the_device_is_still_computing_is_waited_for(budget: Budget) -> None:
    state = {"w": torch.zeros(3_000_000, device="cuda")}
    resident = Resident(state, name="a", budget=budget)
    for value in (1, 2, 3):
        torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]
        state["w"].add_(1)
        resident.offload()
        resident.load()
        assert state["w"].eq(value).all()


@needs_gpu
def test_the_driver_tells_allocations_apart() -> None:
    memory = CudaMemory(torch.device("cuda"))
    piece = memory.allocate(BLOCK_BYTES)
    address, beside = piece.data_ptr(), torch.ones(1, device="cuda")
    number = driver.allocation(address)
    assert number is not None
    assert driver.allocation(address + BLOCK_BYTES - 1) == number != driver.allocation(beside.data_ptr())
    with ThreadPoolExecutor(1) as pool:  # which has asked nothing of the device before
        assert pool.submit(driver.allocation, address).result() == number
    del piece
    torch.cuda.empty_cache()
    assert driver.allocation(address) is None
    again = memory.allocate(BLOCK_BYTES)
    assert driver.allocation(again.data_ptr()) not in (None, number)


@pytest.mark.parametrize(("code", "told"), [(0, 7), (1, None)])
def test_the_driver_names_an_allocation_or_knows_none(
    monkeypatch: pytest.MonkeyPatch, code: int, told: int | None
) -> None:
    def asked(number: Any, attribute: int, address: Any) -> int:
        assert (attribute, address.value) == (7, 4096)
        number._obj.value = 7
        return code

    monkeypatch.setattr(driver, "_driver", lambda: SimpleNamespace(cuPointerGetAttribute=asked))
    assert driver.allocation(4096) == told


def test_a_driver_that_can_not_tell_is_not_taken_for_one_that_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_driver", lambda: SimpleNamespace(cuPointerGetAttribute=lambda *_: 201))
    with pytest.raises(RuntimeError, match="does not tell what lies at 0x1000: CUDA error 201"):
        driver.allocation(4096)


def test_where_there_is_no_driver_it_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", library)
    driver._driver.cache_clear()
    try:
        assert driver.allocation(4096) is None
    finally:
        driver._driver.cache_clear()


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_an_allocator_that_would_keep_freed_memory_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "expandable_segments:True")
    with pytest.raises(Unfit, match="take expandable_segments out of"):
        CudaMemory(torch.device("cuda"))


class Gpu(SimpleNamespace):
    """As much of torch and the driver as the memory of a GPU asks for, over host memory that counts as the device's."""

    def __init__(self, register: int, buffers: bool) -> None:
        super().__init__(device=torch.device, uint8=torch.uint8, int64=torch.int64)
        self._late: list[Callable[[], object]] = []
        self.register, self.buffers = register, buffers
        self.pinned: set[int] = set()
        self._taken: dict[int, Tensor] = {}
        self.keeps_bytes = self.reserved = 0
        self.error = 0  # of the last call that was refused, until a kernel is launched
        self.copies_what_it_maps = False
        self.has_driver = True
        self._there: list[tuple[weakref.ref[torch.UntypedStorage], int]] = []
        self._blocks: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._numbers = count(1)
        self._C = SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: None)
        self.cuda = SimpleNamespace(
            current_device=lambda: 0,
            device=lambda _: nullcontext(),
            current_stream=lambda _: SimpleNamespace(record_event=self._event),
            empty_cache=self._empty_cache,
            memory_stats_as_nested_dict=lambda _: {
                f"{which}_bytes": {"all": {"current": nbytes}}
                for which, nbytes in (("allocated", self.allocated()), ("reserved", self.reserved))
            },
            cudart=lambda: SimpleNamespace(cudaHostRegister=self._register, cudaHostUnregister=self.pinned.remove),
        )

    def zeros(self, size: int, *, device: object) -> Tensor:
        self._launch()
        return torch.zeros(size)

    def _launch(self) -> None:
        """As torch does after each kernel: it asks for the last error, whoever made it, which takes it away."""
        error, self.error = self.error, 0
        if error:
            raise RuntimeError(f"CUDA error: {error}")

    def bitwise_or(self, sums: Tensor, zero: int, *, out: Tensor) -> None:
        """What a kernel writes to the host is there once it was waited for."""
        self._launch()
        self._late.append(partial(out.copy_, sums | zero))

    def _event(self) -> SimpleNamespace:
        asked, self._late = self._late, []

        def synchronize() -> None:
            for write in asked:
                write()

        return SimpleNamespace(synchronize=synchronize)

    def empty(self, size: Any, *, dtype: torch.dtype, device: object = None, pin_memory: bool = False) -> Tensor:
        if pin_memory and not self.buffers:
            raise RuntimeError("CUDA error: out of memory")
        made = torch.full(size if isinstance(size, tuple) else (size,), 0xEE, dtype=dtype)
        if pin_memory:
            self._taken[made.data_ptr()] = made
        else:
            self._there.append((weakref.ref(made.untyped_storage()), size))
            self._blocks[made.data_ptr()] = (next(self._numbers), weakref.ref(made.untyped_storage()))
            self.reserved += size
        return made

    def as_tensor(self, data: Any, *, device: object) -> Tensor:
        """The device has the host's memory at the same address."""
        seen = self._taken[data.__cuda_array_interface__["data"][0]]
        return seen.clone() if self.copies_what_it_maps else seen

    def put(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """What was made elsewhere counts as made here."""
        self._there += [(weakref.ref(each.untyped_storage()), each.nbytes) for each in state.values() if each.dim()]
        self._empty_cache()
        return state

    def allocated(self) -> int:
        return sum(nbytes for storage, nbytes in self._there if storage() is not None)

    def allocation(self, address: int) -> int | None:
        """The driver's number for the block that begins there."""
        return self._blocks.get(address, (None,))[0] if self.has_driver else None

    def _empty_cache(self) -> None:
        self.reserved = self.allocated() + self.keeps_bytes
        if not self.keeps_bytes:
            self._blocks = {address: block for address, block in self._blocks.items() if block[1]() is not None}

    def _register(self, address: int, nbytes: int, flags: int) -> int:
        if not self.register:
            self.pinned.add(address)
        self.error = self.register or self.error
        return self.register


class Copies(LateCopies):
    """Its lanes."""

    def __init__(self, _: torch.device) -> None:
        super().__init__(STREAMS)

    def follow(self, device: torch.device) -> None: ...


def on_a_fake(monkeypatch: pytest.MonkeyPatch, *, register: int = 0, buffers: bool = True) -> Gpu:
    gpu = Gpu(register, buffers)
    for module in (cuda, sheet):
        monkeypatch.setattr(module, "torch", gpu)
    monkeypatch.setattr(cuda, "allocation", gpu.allocation)
    monkeypatch.setattr(cuda, "CudaCopies", Copies)
    monkeypatch.setattr(CudaMemory, "holds", lambda _, tensor: tensor.dim() > 0)
    return gpu


def some(value: float) -> dict[str, Any]:
    """More than two chunks, and a number that lies on the host."""
    return {"w": torch.full((CHUNK_BYTES // 2 + 77,), value), "steps": torch.tensor(value)}


@pytest.mark.parametrize("register", [0, 1], ids=["pinned where it lies", "through pinned buffers"])
def test_state_comes_and_goes_whether_it_can_be_pinned_where_it_lies_or_not(
    budget: Budget, monkeypatch: pytest.MonkeyPatch, register: int
) -> None:
    gpu = on_a_fake(monkeypatch, register=register)
    state = gpu.put(some(1))
    resident = Resident(state, name="a", budget=budget, memory=CudaMemory(torch.device("cuda")), survive_s=60)
    for value in (2, 3, 4):
        resident.offload()
        assert gpu.allocated() == gpu.reserved == 0
        assert len(gpu.pinned) == (register == 0)
        resident.load()
        assert state["w"].eq(value - 1).all()
        state["w"].fill_(value)
    resident.close()
    assert not gpu.pinned


@pytest.mark.parametrize("why", ["it is another device's", "it can't be pinned"])
def test_where_the_device_can_not_write_its_sums_they_are_copied(
    budget: Budget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    gpu = on_a_fake(monkeypatch, buffers=why != "it can't be pinned")
    gpu.copies_what_it_maps = why == "it is another device's"
    monkeypatch.setattr(CudaMemory, "window", 1)
    monkeypatch.setattr(CudaMemory, "span", 2)
    state = gpu.put(some(1))
    resident = Resident(state, name="a", budget=budget, memory=CudaMemory(torch.device("cuda")))
    for value in (2, 3, 4):
        resident.offload()
        resident.load()
        assert state["w"].eq(value - 1).all()
        state["w"].fill_(value)
    resident.close()
    assert "sums are copied to the host" in caplog.text


def test_where_nothing_can_be_pinned_nothing_is_taken(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_fake(monkeypatch, register=1, buffers=False)
    state = some(1)
    with pytest.raises(NoRoom, match=r"not even 8\.39 MB can be pinned: CUDA error: out of memory; raise the limit on"):
        Resident(state, name="a", budget=budget, memory=CudaMemory(torch.device("cuda")))
    assert budget.holdings() == ()
    assert state["w"].eq(1).all()


@pytest.mark.parametrize(
    ("has_driver", "told"),
    [
        (True, r"cuda:0: 18\.87 MB were let go of, and torch keeps them"),
        (False, r"cuda:0: of 18\.87 MB, 18\.87 MB were freed and .* given back; look for"),
    ],
    ids=["the driver tells", "torch's books tell"],
)
def test_memory_that_the_allocator_does_not_give_back_is_not_free(
    budget: Budget, monkeypatch: pytest.MonkeyPatch, has_driver: bool, told: str
) -> None:
    gpu = on_a_fake(monkeypatch)
    gpu.has_driver = has_driver
    resident = Resident(gpu.put(some(1)), name="a", budget=budget, memory=CudaMemory(torch.device("cuda")))
    resident.offload()
    resident.load()
    gpu.keeps_bytes = CHUNK_BYTES
    for _ in range(2):  # asked again, it does not pretend
        with pytest.raises(NotFreed, match=told):
            resident.offload()
    gpu.keeps_bytes = 0
    resident.offload()
    assert gpu.reserved == 0


@pytest.mark.parametrize("make", [Resident, Visitor], ids=["resident", "visitor"])
def test_memory_that_others_held_goes_back_to_the_device_once_they_have_let_go(
    budget: Budget, monkeypatch: pytest.MonkeyPatch, make: type
) -> None:
    """Until then torch's allocator can't give it back, and then nobody has told it to."""
    gpu = on_a_fake(monkeypatch)
    state, memory = gpu.put(some(1)), CudaMemory(torch.device("cuda"))
    if make is Resident:
        moved: Resident | Visitor = Resident(state, name="a", budget=budget, memory=memory)
        moved.offload()
    else:
        moved = Visitor(lambda: {"w": state["w"]}, name="a", memory=memory)
    moved.load()
    view = state["w"][:3].detach()
    with pytest.raises(NotFreed, match="others still hold"):
        moved.offload()
    del view
    moved.offload()
    assert gpu.reserved == 0
    moved.close()


def test_what_was_allocated_while_others_held_a_state_s_memory_is_not_taken_for_it(
    budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a first offload the state is in no piece that the driver knows, and torch's books are everybody's."""
    gpu = on_a_fake(monkeypatch)
    state = gpu.put(some(1))
    resident = Resident(state, name="a", budget=budget, memory=CudaMemory(torch.device("cuda")))
    view = state["w"][:3].detach()
    with pytest.raises(NotFreed, match="others still hold"):
        resident.offload()
    del view
    other, real = [gpu.put(some(2))], gpu.cuda.empty_cache

    def empty_cache() -> None:
        real()
        other.append(gpu.put(some(3)))

    gpu.cuda.empty_cache = empty_cache
    for _ in range(2):
        resident.offload()
    assert len(other) == 2
    assert gpu.reserved == gpu.allocated()
    resident.close()


@pytest.mark.parametrize("make", [Resident, Visitor], ids=["resident", "visitor"])
@pytest.mark.parametrize("breaks", [(Copies, "start"), (on_device, "Guard")], ids=["a copy", "the first sample"])
def test_a_load_that_fails_holds_no_memory_of_the_device_once_it_is_offloaded(
    budget: Budget, monkeypatch: pytest.MonkeyPatch, make: type, breaks: tuple[Any, str]
) -> None:
    """Whoever gives the nodes back for an error has that error in hand."""
    gpu = on_a_fake(monkeypatch)
    state, memory = gpu.put(some(1)), CudaMemory(torch.device("cuda"))
    if make is Resident:
        moved: Resident | Visitor = Resident(state, name="a", budget=budget, memory=memory, read_only=True)
    else:
        moved = Visitor(lambda: {"w": state["w"]}, name="a", memory=memory, read_only=True)
        moved.load()
    moved.offload()

    def fail(*_: object) -> None:
        raise RuntimeError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(*breaks, fail)
        with pytest.raises(RuntimeError, match="no room") as failed:
            moved.load()
        moved.offload()
    assert gpu.allocated() == gpu.reserved == 0
    del failed
    moved.load()
    assert state["w"].eq(1).all()
    moved.close()


@pytest.mark.parametrize("has_driver", [True, False], ids=["the driver tells", "torch's books tell"])
def test_what_others_take_while_copies_are_under_way_is_theirs(
    budget: Budget, monkeypatch: pytest.MonkeyPatch, has_driver: bool
) -> None:
    gpu = on_a_fake(monkeypatch)
    gpu.has_driver = has_driver
    resident = Resident(gpu.put(some(1)), name="a", budget=budget, memory=CudaMemory(torch.device("cuda")))
    resident.offload()
    resident.load()
    real, others = Copies.wait, list[Tensor]()

    def wait(copies: Copies, lane: int) -> None:
        others.append(gpu.empty(64 << 10, dtype=torch.uint8))
        real(copies, lane)

    monkeypatch.setattr(Copies, "wait", wait)
    resident.offload()
    assert gpu.allocated() == sum(each.nbytes for each in others) > 0
    resident.close()


def test_what_others_take_while_the_memory_goes_back_is_theirs(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, others = on_a_fake(monkeypatch), list[Tensor]()
    resident = Resident(gpu.put(some(1)), name="a", budget=budget, memory=CudaMemory(torch.device("cuda")))
    resident.offload()
    resident.load()
    real = gpu.cuda.empty_cache

    def empty_cache() -> None:
        real()
        others.append(gpu.empty(32 << 20, dtype=torch.uint8))

    gpu.cuda.empty_cache = empty_cache
    resident.offload()
    assert others
    resident.close()


def test_sums_of_one_span_are_read_while_those_of_the_next_come(
    budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = on_a_fake(monkeypatch)
    monkeypatch.setattr(CudaMemory, "window", 1)
    monkeypatch.setattr(CudaMemory, "span", 2)
    state = gpu.put({"w": torch.arange(8 * CHUNK_BYTES // 8)})
    resident = Resident(state, name="a", budget=budget, memory=CudaMemory(torch.device("cuda")))
    for place in (0, -1, 3 * CHUNK_BYTES // 8, 5 * CHUNK_BYTES // 8):
        resident.offload()
        resident.load()
        before = state["w"].clone()
        state["w"][place] = before[place] = -9
        resident.offload()
        resident.load()
        assert torch.equal(state["w"], before)
    resident.close()


def test_two_states_may_not_share_one_memory(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = on_a_fake(monkeypatch)
    memory, states = CudaMemory(torch.device("cuda")), [gpu.put(some(value)) for value in (1, 2)]
    resident = Resident(states[0], name="a", budget=budget, memory=memory)
    with pytest.raises(Unfit, match="give each its own"):
        Resident(states[1], name="b", budget=budget, memory=memory)
    assert [each.name for each in budget.holdings()] == ["a"]
    resident.close()


def test_a_block_has_room_for_sums_and_a_size_that_torch_cuts_nothing_from(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = on_a_fake(monkeypatch)
    memory = CudaMemory(torch.device("cuda"))
    for nbytes, block in ((1, 10 << 20), (8 << 20, 10 << 20), (9 << 20, 12 << 20), ((12 << 20) + 1, 14 << 20)):
        piece = memory.allocate(nbytes)
        assert (piece.numel(), piece.untyped_storage().nbytes(), gpu.reserved) == (nbytes, block, block)
        del piece

"""The same residency on a GPU; where there is none, the fake device of `test_transfer.py` stands in for its lanes."""

import pytest
import torch

from rollmux.runtime.residency import Budget, Resident, Unfit
from rollmux.runtime.residency.cuda import CudaMemory

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


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


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_an_allocator_that_would_keep_freed_memory_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "expandable_segments:True")
    with pytest.raises(Unfit, match="take expandable_segments out of"):
        CudaMemory(torch.device("cuda"))

"""State that lives in host memory and visits a device: whatever is done to it, it is what plain tensors would be."""

import weakref
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor, nn

from rollmux.runtime.residency import Changed, CpuMemory, NotFreed, Visitor
from rollmux.runtime.residency.layout import CHUNK_BYTES
from rollmux.runtime.residency.memory import Memory, memory_of
from tests.runtime.residency.late import LateCopies, LateMemory

MEMORIES: dict[str, Callable[[], Memory]] = {
    "processor": CpuMemory,
    "pinned": lambda: LateMemory(LateCopies(2), buffers=False),
    "buffers": lambda: LateMemory(LateCopies(2), buffers=True),
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def trained(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """A step whose gradient depends on the weights."""
    sum(((parameter**2).sum() for parameter in model.parameters()), torch.tensor(0.0)).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    optimiser.zero_grad()


def moments(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    found = {f"{n}.{name}": value for n, each in enumerate(optimiser.state.values()) for name, value in each.items()}
    return {name: value for name, value in found.items() if value.dim()}


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
def test_a_model_trains_where_it_visits_as_it_trains_at_home(memory: Callable[[], Memory]) -> None:
    """Of more than one chunk; its weights are tied, and its moments are made on the way."""
    torch.manual_seed(0)
    made, plain = (nn.ModuleDict({"a": nn.Linear(1200, 900), "b": nn.Linear(3, 2)}) for _ in range(2))
    made.register_buffer("numbers", torch.arange(7))
    plain.register_buffer("numbers", torch.arange(7))
    plain.load_state_dict(made.state_dict())
    for model in (made, plain):
        model["b"].bias = model["a"].bias
    state: list[Any] = [made]
    optimisers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (made, plain)]
    visitor = Visitor(lambda: state, name="made", memory=memory())
    assert visitor.nbytes > CHUNK_BYTES
    for _ in range(3):
        visitor.load()
        trained(made, optimisers[0])
        trained(plain, optimisers[1])
        state[1:] = [moments(optimisers[0])]
        visitor.offload()
        for name, tensor in plain.state_dict().items():
            assert torch.equal(made.state_dict()[name], tensor)
    assert made["b"].bias is made["a"].bias
    visitor.close()


@needs_gpu
def test_a_model_trains_on_a_gpu_and_leaves_it() -> None:
    model = nn.Linear(1200, 900)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    visitor = Visitor(lambda: [model, moments(optimiser)], name="w", memory=memory_of(torch.device("cuda")))
    plain = nn.Linear(1200, 900)
    plain.load_state_dict(model.state_dict())
    other = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for _ in range(3):
        visitor.load()
        assert model.weight.device.type == "cuda"
        trained(model, optimiser)
        trained(plain, other)
        visitor.offload()
        assert all(parameter.device.type == "cpu" for parameter in model.parameters())
        assert not torch.cuda.memory_allocated()
        torch.testing.assert_close(model.weight, plain.weight)


def test_what_is_read_only_is_let_go_of_uncopied_and_watched() -> None:
    copies = LateCopies(2)
    state = {"w": torch.arange(1000.0)}
    visitor = Visitor(lambda: state, name="w", memory=LateMemory(copies, buffers=False), read_only=True)
    visitor.load()
    copies.start = None  # type: ignore[method-assign,assignment]  # nothing may be copied
    visitor.offload()
    assert torch.equal(state["w"], torch.arange(1000.0))


def test_who_changes_what_is_read_only_must_say_so() -> None:
    state = {"w": torch.zeros(1000)}
    visitor = Visitor(lambda: state, name="w", memory=CpuMemory(), read_only=True)
    visitor.load()
    state["w"] += 1
    with pytest.raises(Changed, match="read-only"):
        visitor.offload()
    with visitor.writing():
        state["w"] += 1
    visitor.offload()
    assert state["w"].eq(2).all()
    visitor.load()
    visitor.offload()  # it is watched again, and has not changed
    visitor.load()
    with suppress(ZeroDivisionError), visitor.writing():
        state["w"] += 1
        raise ZeroDivisionError
    visitor.offload()
    assert state["w"].eq(3).all()


def test_what_joins_read_only_state_where_it_visits_comes_home_with_it() -> None:
    state = {"w": torch.zeros(1000)}
    visitor = Visitor(lambda: state, name="w", memory=CpuMemory(), read_only=True)
    visitor.load()
    state["new"] = torch.ones(500)
    visitor.offload()
    visitor.load()
    assert visitor.nbytes >= 1500 * 4
    assert visitor._device.look().at_home
    visitor.offload()
    assert state["new"].eq(1).all()


def test_whoever_still_looks_at_what_left_is_told_of() -> None:
    state = {"w": torch.ones(3_000_000)}
    visitor = Visitor(lambda: state, name="w", memory=CpuMemory())
    visitor.load()
    view = state["w"][:1].detach()
    with pytest.raises(NotFreed, match="others still hold"):
        visitor.offload()
    assert state["w"].eq(1).all()
    with pytest.raises(NotFreed, match="others still hold"):
        visitor.offload()
    del view
    visitor.offload()


def test_nothing_moves_while_it_is_read() -> None:
    state = {"w": torch.ones(1000)}
    visitor = Visitor(lambda: state, name="w", memory=CpuMemory())
    visitor.load()
    leaves = Thread(target=visitor.offload)
    with visitor.still():
        leaves.start()
        leaves.join(0.05)
        assert leaves.is_alive()
        assert visitor.is_here
    leaves.join()
    assert not visitor.is_here


def test_what_is_pinned_is_let_go_of_with_the_visitor() -> None:
    memory, state = LateMemory(LateCopies(2), buffers=False), {"w": torch.ones(1000)}
    visitor = Visitor(lambda: state, name="w", memory=memory)
    gone = weakref.ref(visitor)
    del visitor
    assert gone() is None
    assert memory.pins == ["unpin", "pin", "unpin"]


class Visits(RuleBasedStateMachine):
    """State and a plain copy of it: the same is done to both."""

    def __init__(self) -> None:
        super().__init__()
        self.state: dict[str, Tensor] = {"0": torch.zeros(5)}
        self.plain: dict[str, Tensor] = {"0": torch.zeros(5)}

    @initialize(read_only=st.booleans(), buffers=st.booleans())
    def begin(self, read_only: bool, buffers: bool) -> None:
        memory = LateMemory(LateCopies(2), buffers)
        self.visitor = Visitor(lambda: self.state, name="state", memory=memory, read_only=read_only)

    @rule()
    def load(self) -> None:
        self.visitor.load()

    @rule()
    def offload(self) -> None:
        self.visitor.offload()
        assert self.visitor._device.flat is None

    @rule(place=st.integers(0, 9), value=st.integers(-5, 5))
    def write(self, place: int, value: int) -> None:
        """In place, wherever it is."""
        name = sorted(self.state)[place % len(self.state)]
        with self.visitor.writing():
            for each in (self.state, self.plain):
                each[name] += value

    @rule(size=st.integers(1, 3 * CHUNK_BYTES // 4))
    def join(self, size: int) -> None:
        for each in (self.state, self.plain):
            each[str(len(each))] = torch.full((size,), float(size))

    @rule(place=st.integers(0, 9))
    def replace(self, place: int) -> None:
        """By another tensor of other length, as an optimiser that takes a step back does."""
        name = sorted(self.state)[place % len(self.state)]
        for each in (self.state, self.plain):
            each[name] = torch.full((each[name].numel() + 3,), 7.0)

    @precondition(lambda self: len(self.state) > 1)
    @rule()
    def leave(self) -> None:
        for each in (self.state, self.plain):
            each.popitem()

    @invariant()
    def same(self) -> None:
        assert self.state.keys() == self.plain.keys()
        for name, tensor in self.plain.items():
            assert torch.equal(self.state[name], tensor)


Visits.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
test_whatever_is_done_to_state_that_visits_is_done_as_to_plain_tensors = Visits.TestCase

"""Whatever is done to a state in whatever order, its values are those of a plain dict to which the same was done."""

from contextlib import ExitStack

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from rollmux.runtime.residency import CpuMemory, Resident
from tests.runtime.residency.keeping import a_budget

NAMES = ("small", "large", "half", "tied", "slice", "rows")


def first_state() -> dict[str, Tensor]:
    """Tensors over one chunk and below, of several types, two that share memory, one that is not contiguous."""
    base = torch.arange(300.0)
    return {
        "small": torch.ones(7),
        "large": torch.arange(1_300_000, dtype=torch.int32),
        "half": torch.full((1000, 3), 0.5, dtype=torch.bfloat16),
        "tied": base,
        "slice": base[100:200].view(10, 10).t(),
        "rows": torch.zeros(64, 3)[:, 1],
    }


class Moves(RuleBasedStateMachine):
    """The resident state against its model."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = ExitStack()
        self.budget = self.opened.enter_context(a_budget())

    @initialize(slots=st.sampled_from([1, 2]), lazy=st.booleans(), survive_s=st.sampled_from([0.0, 60.0]))
    def begin(self, slots: int, lazy: bool, survive_s: float) -> None:
        self.state, self.model = first_state(), first_state()
        self.memory = CpuMemory(lazy=lazy)
        self.survives = survive_s > 0
        self.resident = Resident(
            self.state, name="a", budget=self.budget, slots=slots, memory=self.memory, survive_s=survive_s
        )
        self.loaded, self.notes = True, b""

    @rule()
    def load(self) -> None:
        self.resident.load()
        self.loaded = True

    @rule(notes=st.none() | st.binary(max_size=20))
    def offload(self, notes: bytes | None) -> None:
        if self.loaded and notes is not None:
            self.notes = notes
        self.resident.offload(notes)
        self.loaded = False

    @precondition(lambda self: self.loaded)
    @rule(name=st.sampled_from(NAMES), by=st.integers(1, 3), how=st.sampled_from(["counted", "data", "numpy"]))
    def change_in_place(self, name: str, by: int, how: str) -> None:
        for tensor in (self.state[name], self.model[name]):
            if how == "counted" or (how == "numpy" and tensor.dtype is torch.bfloat16):
                tensor.add_(by)
            elif how == "data":
                tensor.data.add_(by)
            else:
                tensor.numpy()[...] += by

    @precondition(lambda self: self.loaded)
    @rule(name=st.sampled_from(["small", "large", "half"]), value=st.integers(0, 9))
    def put_elsewhere(self, name: str, value: int) -> None:
        for each in (self.state, self.model):
            each[name].data = torch.full_like(each[name], value)

    @precondition(lambda self: self.loaded)
    @rule(value=st.integers(0, 9))
    def come_or_go(self, value: int) -> None:
        for each in (self.state, self.model):
            if each.pop("more", None) is None:
                each["more"] = torch.full((1 + value,), value)

    @precondition(lambda self: not self.loaded and self.resident.version > 0)
    @rule(name=st.sampled_from(NAMES), value=st.integers(0, 9))
    def update_on_the_host(self, name: str, value: int) -> None:
        before = self.resident.version
        assert self.resident.update({name: torch.full_like(self.model[name], value)}) == before + 1
        self.model[name].fill_(value)

    @precondition(lambda self: self.survives and not self.loaded)
    @rule()
    def hand_over(self) -> None:
        """Another process takes over; here the same one, with a state built anew."""
        version, slots = self.resident.version, self.resident._slots
        self.resident.close(keep=True)
        self.state = first_state()
        if "more" in self.model:
            self.state["more"] = torch.empty_like(self.model["more"])
        self.resident = Resident.attach(self.state, name="a", budget=self.budget, memory=CpuMemory())
        assert (self.resident.version, self.resident._slots) == (version, slots)

    @invariant()
    def values_are_the_models(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.resident.notes == self.notes
        assert self.budget.holdings()[0].nbytes <= self.budget.limit_bytes
        for name, tensor in self.state.items():
            if self.loaded:
                assert torch.equal(tensor, self.model[name]), name
                assert tensor.stride() == self.model[name].stride()
            else:
                assert tensor.numel() == 0

    def teardown(self) -> None:
        with self.opened:
            if hasattr(self, "model"):
                self.resident.load()
                self.loaded = True
                self.values_are_the_models()
                self.resident.close()
                assert self.budget.holdings() == ()


Moves.TestCase.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
TestMoves = Moves.TestCase

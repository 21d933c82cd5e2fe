"""Records and chunks are kept in order for processors that keep none.

No test on one of the x86 kind can see the order that another kind might choose: these see where the barriers stand.
"""

import re
from itertools import groupby

import pytest
import torch

from rollmux.runtime.residency import Budget, CpuMemory, Resident, host_copy, record
from rollmux.runtime.residency.transfer import Transfer

OLD, NEW = 1, 2


@pytest.mark.parametrize(
    ("slots", "stages"),
    [
        (2, [(OLD, False), (OLD, True), (NEW, True)]),
        (1, [(OLD, False), (0, False), (0, True), (NEW, True)]),  # no version stands while it is written over
    ],
)
def test_between_a_record_and_the_chunks_before_and_behind_it_is_a_barrier(
    budget: Budget, monkeypatch: pytest.MonkeyPatch, slots: int, stages: list[tuple[int, bool]]
) -> None:
    state = {"w": torch.arange(1000)}
    resident = Resident(state, name="a", budget=budget, slots=slots)
    resident.offload()
    resident.load()
    state["w"] += 10_000
    written = state["w"].numpy().tobytes()
    seen: list[tuple[int, bool]] = []

    def look() -> None:
        """As another process would: which version the file has, and whether the new chunk is there."""
        file = budget.state_path("a").read_bytes()
        heads = [found.start() for found in re.finditer(re.escape(record.MARK), file)]
        seen.append((max((record.HEAD.unpack_from(file, at)[1] for at in heads), default=0), written in file))

    monkeypatch.setattr(host_copy, "barrier", look)
    resident.offload()
    assert [stage for stage, _ in groupby(seen)] == stages


def test_chunks_are_read_between_two_looks_at_the_record(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Watched(CpuMemory):
        def transfer(self) -> Transfer:
            order.append("chunks")
            return super().transfer()

    resident = Resident({"w": torch.ones(8)}, name="a", budget=budget, memory=Watched())
    resident.offload()
    read = record.version_at

    def look(data: memoryview, stamp: int) -> int:
        order.append("record")
        return read(data, stamp)

    monkeypatch.setattr(host_copy, "barrier", lambda: order.append("barrier"))
    monkeypatch.setattr(record, "version_at", look)
    order.clear()
    resident.load()
    looked = ["barrier", "record", "barrier"]
    assert [step for step, _ in groupby(order)] == [*looked, "chunks", *looked]

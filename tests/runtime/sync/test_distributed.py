"""Pieces that go by torch.distributed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollmux.runtime.sync.transports.distributed import connections
from tests.runtime.sync.models import small

ROOT = Path(__file__).resolve().parents[3]


def test_connections_come_in_the_same_order_for_all_and_each_direction_once() -> None:
    plan = small(senders=(2, 1), receivers=(1, 2))
    found = connections(plan)
    assert found == sorted(set(found))
    assert (("receiver", 0), ("receiver", 1)) in found
    assert (("receiver", 1), ("receiver", 0)) in found
    assert {giver for giver, _ in found if giver[0] == "sender"} == {("sender", 0), ("sender", 1)}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cpu:0"], ids=["in place", "through the memory of a device, as for NCCL"])
def test_pieces_go_by_gloo_between_processes(tmp_path: Path, device: str) -> None:
    command = [sys.executable, "-m", "tests.runtime.sync.gloo_rank"]
    ranks = [
        subprocess.Popen([*command, str(number), str(tmp_path), device], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    said = [[json.loads(line) for line in rank.communicate(timeout=120)[0].splitlines()] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    first, *_, last = said[0]
    assert first["plain"] == len(small(senders=(1, 1), receivers=(1, 2)).pieces)
    assert last["plain"] == 0
    assert last["delta"] > 0
    assert said[1:] == [[True], [True]]

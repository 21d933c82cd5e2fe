"""SIGKILL at every step: no receiver ever serves anything but a whole version, and the next attempt completes (F4)."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from rollmux.runtime.sync import Receiver, Sender, SyncFailed, Weights
from tests.runtime.sync.models import TOKEN, filling, part, small, whole
from tests.runtime.sync.party import NEVER

ROOT = Path(__file__).resolve().parents[3]
SHAPE: dict[str, Any] = {"senders": [2, 1], "receivers": [1, 2], "chunk_bytes": 4096}
PLAN = small(**SHAPE)
CHANGED_BY = 0.3
SEED = 20_261
# How long a sender waits for a leader that died before it began.
PATIENCE_S = 5.0
HEALTHY_PATIENCE_S = 60.0  # where nobody dies: a busy disk has taken more than five seconds


class Party:
    """A process of `party.py`."""

    def __init__(self, role: str, rank: int, folder: Path, die_at: int = NEVER) -> None:
        command = [sys.executable, "-m", "tests.runtime.sync.party", role, str(rank), str(folder), str(die_at)]
        self.process = subprocess.Popen(
            [*command, json.dumps(SHAPE)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, order: object) -> None:
        assert self.process.stdin is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)

    def hear(self) -> Any:
        """None: it is dead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # of what it did not live to read
                if pipe is not None:
                    pipe.close()


class Watch:
    """Reads what receivers serve over and over: it must always be one whole version of those that there are."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders, self._end = folders, Event()
        self._models = {version: whole(PLAN, version, CHANGED_BY) for version in (1, 2, 3)}
        self.wrong: list[str] = []
        self.looks = 0
        self._thread = Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._end.wait(0.002):
            for rank, folder in enumerate(self._folders):
                with Weights(folder, PLAN, PLAN.exchange.receivers, rank) as weights:
                    self.looks += 1
                    weights.verify()
                    model, layout = self._models[weights.version], PLAN.exchange.receivers.layout
                    for tensor in PLAN.exchange.tensors:
                        if (weights.words[tensor.name] != part(model[tensor.name], layout.box(tensor, rank))).any():
                            self.wrong.append(f"receiver {rank}: {tensor.name} is not of version {weights.version}")

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        assert not self.wrong
        assert self.looks > 0


@contextmanager
def closing(*parties: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for each in parties:
            each.close()


def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"receiver-{rank}" for rank in PLAN.exchange.receivers.ranks]


def sync(senders: Sequence[Sender], version: int, epoch: int, addresses: Sequence[Sequence[str]]) -> int:
    """Publishes and syncs; returns how many pieces the receivers had already."""
    for sender in senders:
        model = whole(PLAN, version, CHANGED_BY)
        sender.publish(version, filling(PLAN, PLAN.exchange.senders, sender.rank, model))
    with ThreadPoolExecutor(len(senders)) as executor:
        tallies = list(executor.map(lambda sender: sender.sync(epoch, addresses), senders))
    return sum(tally.kept for tally in tallies)


def new_sender(rank: int, tmp_path: Path, patience_s: float = PATIENCE_S) -> Sender:
    return Sender(PLAN, rank, tmp_path / f"sender-{rank}", TOKEN, delta=True, patience_s=patience_s)


def new_receiver(rank: int, tmp_path: Path, patience_s: float = PATIENCE_S) -> Receiver:
    return Receiver(PLAN, rank, folders(tmp_path)[rank], TOKEN, ["tcp://127.0.0.1:0"], patience_s=patience_s)


def in_order(rank: int, one: Any, other: Any) -> list[Any]:
    return [one, other] if rank == 0 else [other, one]


def first_version(tmp_path: Path) -> None:
    senders = [new_sender(rank, tmp_path, HEALTHY_PATIENCE_S) for rank in range(2)]
    receivers = [new_receiver(rank, tmp_path, HEALTHY_PATIENCE_S) for rank in range(2)]
    with closing(*senders, *receivers):
        sync(senders, 1, 1, [receiver.addresses for receiver in receivers])


def with_a_sender_that_dies(tmp_path: Path, rank: int, die_at: int) -> int:
    """Version 2 is tried and version 3 comes. Returns the steps that version 2 took, 0 if its sender died."""
    first_version(tmp_path)
    receivers = [new_receiver(each, tmp_path) for each in range(2)]
    addresses = [receiver.addresses for receiver in receivers]
    other, party = new_sender(1 - rank, tmp_path), Party("sender", rank, tmp_path / f"sender-{rank}", die_at)
    with closing(party, other, *receivers), closing(Watch(folders(tmp_path))):
        party.tell({"version": 2, "epoch": 2, "changed_by": CHANGED_BY, "addresses": addresses})
        with suppress(SyncFailed):  # as it must where the other one dies
            sync([other], 2, 2, addresses)
        heard = party.hear()
        party.close()
        with closing(restarted := new_sender(rank, tmp_path)):
            sync(in_order(rank, restarted, other), 3, 3, addresses)
        assert [receiver.held and receiver.held.version for receiver in receivers] == [3, 3]
    return int(heard["steps"]) if heard else 0


def with_a_receiver_that_dies(tmp_path: Path, rank: int, die_at: int) -> tuple[int, int]:
    """Version 2 is tried, and tried again. Returns the steps of the first time, and what the second did not bring."""
    first_version(tmp_path)
    other, senders = new_receiver(1 - rank, tmp_path), [new_sender(each, tmp_path) for each in range(2)]
    folder = folders(tmp_path)[rank]
    party = Party("receiver", rank, folder, die_at)
    with closing(party, other, *senders), closing(Watch(folders(tmp_path))):
        mine = party.hear()
        party.tell("from here")
        party.hear()
        with suppress(SyncFailed):
            sync(senders, 2, 2, in_order(rank, mine, other.addresses))
        with suppress(BrokenPipeError):
            party.tell("how many")
        heard = party.hear()
        party.close()
        with closing(again := Party("receiver", rank, folder)):
            kept = sync(senders, 2, 3, in_order(rank, again.hear(), other.addresses))
            with Weights(folder, PLAN, PLAN.exchange.receivers, rank) as weights:
                assert weights.version == 2
        assert other.held is not None
        assert other.held.version == 2
    return int(heard["steps"]) if heard else 0, kept


def late(steps: int) -> int:
    """A step to die at in the second half of an attempt."""
    return int(steps * random.Random(SEED).uniform(0.55, 0.9))


def test_the_leader_may_be_killed_while_pieces_cross(tmp_path: Path) -> None:
    steps = with_a_sender_that_dies(tmp_path / "whole", 0, NEVER)
    assert steps > 10
    assert not with_a_sender_that_dies(tmp_path / "dead", 0, late(steps))


def test_a_receiver_may_be_killed_while_pieces_land(tmp_path: Path) -> None:
    steps, _ = with_a_receiver_that_dies(tmp_path / "whole", 0, NEVER)
    assert steps > 10
    steps, kept = with_a_receiver_that_dies(tmp_path / "dead", 0, late(steps))
    assert not steps
    assert kept > 0, "what had landed before the kill is not sent again"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1], ids=["the leader", "another"])
def test_a_sender_is_killed_at_every_step(tmp_path: Path, rank: int) -> None:
    steps = with_a_sender_that_dies(tmp_path / "whole", rank, NEVER)
    survived = [at for at in range(1, steps + 1) if with_a_sender_that_dies(tmp_path / str(at), rank, at)]
    assert len(survived) < steps / 2


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_receiver_is_killed_at_every_step(tmp_path: Path, rank: int) -> None:
    steps, _ = with_a_receiver_that_dies(tmp_path / "whole", rank, NEVER)
    survived = [at for at in range(1, steps + 1) if with_a_receiver_that_dies(tmp_path / str(at), rank, at)[0]]
    assert len(survived) < steps / 2

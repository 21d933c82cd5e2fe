"""One rank of the sync benchmark, in a network namespace of its own: it obeys orders, one a line.

It is a sender or a receiver of ours, by turns under either plan, and a rank of a torch.distributed group.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux.runtime.sync import (
    Corrupt,
    Exchange,
    Layout,
    Place,
    Plan,
    Receiver,
    Sender,
    Side,
    SyncFailed,
    TensorSpec,
    make_plan,
)  # fmt: skip
from rollmux.runtime.sync.layout import inside, slots

TOKEN = "of the benchmark alone"
# The dimension that tensor parallelism cuts, by the last word of a tensor's name; norms are whole on every rank.
SPLIT = {"embed": 0, "q": 0, "k": 0, "v": 0, "o": 1, "up": 0, "down": 1}
CHUNK_BYTES = 256 * 1024
# Between two looks at all that is served.
LOOK_S = 0.1


def model(layers: int, width: int) -> tuple[TensorSpec, ...]:
    """The tensors of a decoder in bfloat16."""
    hidden = width * 11 // 4
    shapes: dict[str, tuple[int, ...]] = {"embed": (4 * width, width)}
    for layer in range(layers):
        matrices = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width)}
        matrices |= {"up": (hidden, width), "down": (width, hidden)}
        shapes |= {f"{layer}.{name}": shape for name, shape in matrices.items()}
        shapes[f"{layer}.norm"] = (width,)
    return tuple(TensorSpec(name, "BF16", shape) for name, shape in shapes.items())


def plan_of(sizes: Mapping[str, Any], two_stage: bool) -> Plan:
    """The same in the process that measures and in every rank."""
    tensors = model(sizes["layers"], sizes["width"])
    split = {tensor.name: SPLIT[last] for tensor in tensors if (last := tensor.name.rpartition(".")[2]) in SPLIT}
    made = []
    for name in ("senders", "receivers"):
        tp, dp = sizes[name]
        made.append(Side(Layout(tp, dp, split), tuple(Place(name, f"{name}-{rank}") for rank in range(tp * dp))))
    return make_plan(Exchange(tensors, made[0], made[1], CHUNK_BYTES, two_stage))


def words(tensor: TensorSpec, place: int, version: int, touched: bool) -> NDArray[np.uint16]:
    """A whole tensor of one version: every word changes with it. `touched`: and one in a hundred once more."""
    rng = np.random.default_rng(place)
    found = rng.integers(0, 2**16, tensor.shape, dtype=np.uint16) + np.uint16(version)
    if touched:
        found += rng.random(tensor.shape, dtype=np.float32) < 0.01
    return found


class Watch:
    """Whether each look finds one whole version, every byte as its digest says."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver, self._end = receiver, Event()
        self._looks = self._wrong = 0
        self._versions = set[int]()
        self._thread = Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        last = False
        while not last:
            last = self._end.wait(LOOK_S)
            self._looks += 1
            with self._receiver.read() as weights:
                self._versions.add(weights.version)
                try:
                    weights.verify()
                except Corrupt:
                    self._wrong += 1

    def ended(self) -> dict[str, object]:
        self._end.set()
        self._thread.join()
        return {"looks": self._looks, "wrong": self._wrong, "versions": sorted(self._versions)}


class Rank:
    """What the lines call."""

    def __init__(self, role: str, rank: int, folder: Path, sizes: Mapping[str, Any]) -> None:
        self.role, self.rank, self.folder, self.sizes = role, rank, folder, sizes
        self._party: Sender | Receiver | None = None
        self._group: Any = None
        self._watch: Watch | None = None

    def open(self, two_stage: bool, delta: bool, host: str) -> object:
        """Each way has its own folder, so that a run finds what the one before it left: room, and another version."""
        plan = plan_of(self.sizes, two_stage)
        folder = self.folder / f"{plan.fingerprint}-{delta}"
        if self.role == "senders":
            self._party = Sender(plan, self.rank, folder, TOKEN, delta=delta)
            return None
        self._party = Receiver(plan, self.rank, folder, TOKEN, [f"tcp://{host}:0"])
        return self._party.addresses

    def publish(self, version: int, touched: bool = False) -> object:
        assert isinstance(self._party, Sender)
        plan = self._party.plan
        parts = self._parts(plan, version, touched)
        self._party.publish(version, lambda name, place: np.copyto(place, parts[name]))
        return None

    def sync(self, epoch: int, addresses: list[list[str]]) -> object:
        assert isinstance(self._party, Sender)
        began = perf_counter()
        try:
            tally = self._party.sync(epoch, addresses)
        except SyncFailed as trouble:
            return {"failed": str(trouble)}
        return {"seconds": perf_counter() - began, "sent_bytes": tally.sent_bytes, "piece_bytes": tally.piece_bytes}

    def check(self, version: int, touched: bool = False) -> object:
        """Whether this receiver serves exactly this version."""
        assert isinstance(self._party, Receiver)
        parts = self._parts(self._party.plan, version, touched)
        with self._party.read() as weights:
            return all(np.array_equal(weights.words[name], part) for name, part in parts.items())

    def watch(self) -> object:
        """Reads what is served, over and over, until `seen`."""
        assert isinstance(self._party, Receiver)
        self._watch = Watch(self._party)
        return None

    def seen(self) -> object:
        assert self._watch is not None
        return self._watch.ended()

    def close(self) -> object:
        assert self._party is not None
        self._party.close()
        return None

    def join(self, host: str, world: int, number: int) -> object:
        """Becomes a member of a gloo group of all senders and receivers."""
        import torch.distributed as dist  # noqa: PLC0415 - seconds and memory that the other ways don't need

        os.environ |= {"GLOO_SOCKET_IFNAME": "eth0"}
        dist.init_process_group("gloo", init_method=f"tcp://{host}:29500", world_size=world, rank=number)
        self._group = dist
        return None

    def gather(self, version: int) -> object:
        """An all-gather of parts that only senders have: each comes to all ranks from its owner, one after the other.

        So torch.distributed does it for parts of uneven size.
        """
        import torch  # noqa: PLC0415

        plan = plan_of(self.sizes, True)
        mine = self._flat(plan, version)
        self._group.barrier()
        began = perf_counter()
        for owner in plan.exchange.senders.ranks:
            is_mine = self.role == "senders" and self.rank == owner
            nbytes = sum(
                slot.nbytes for slot in slots(plan.exchange.tensors, plan.exchange.senders.layout, owner)[0].values()
            )
            part = torch.from_numpy(mine) if is_mine else torch.empty(nbytes, dtype=torch.uint8)
            self._group.broadcast(part, owner)
        self._group.barrier()
        return {"seconds": perf_counter() - began}

    def _flat(self, plan: Plan, version: int) -> NDArray[np.uint8]:
        if self.role == "receivers":
            return np.empty(0, np.uint8)
        parts = self._parts(plan, version).values()
        return np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])

    def _parts(self, plan: Plan, version: int, touched: bool = False) -> dict[str, NDArray[np.uint16]]:
        layout = (plan.exchange.senders if self.role == "senders" else plan.exchange.receivers).layout
        found = {}
        for place, tensor in enumerate(plan.exchange.tensors):
            whole = tuple((0, extent) for extent in tensor.shape)
            found[tensor.name] = words(tensor, place, version, touched)[inside(whole, layout.box(tensor, self.rank))]
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["senders", "receivers"])
    parser.add_argument("rank", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("sizes", type=json.loads)
    args = parser.parse_args()
    rank = Rank(args.role, args.rank, args.folder, args.sizes)
    for line in sys.stdin:
        order = json.loads(line)
        do: Callable[..., object] = getattr(rank, order.pop("do"))
        print(json.dumps(do(**order)), flush=True)


if __name__ == "__main__":
    main()

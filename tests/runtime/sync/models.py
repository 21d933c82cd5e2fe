"""Small models whose every word tells its version, and both sides of an exchange in one process."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollmux.runtime.sync import Exchange, Layout, Place, Plan, Receiver, Sender, Side, Tally, TensorSpec, make_plan
from rollmux.runtime.sync.generation import Words
from rollmux.runtime.sync.layout import Box, inside, slots
from rollmux.runtime.sync.send import Fill

TOKEN = "0123456789abcdef"
PATIENCE_S = 20.0
TENSORS = (
    TensorSpec("up", "F32", (96, 40)),
    TensorSpec("down", "BF16", (40, 96)),
    TensorSpec("norm", "F32", (40,)),
    TensorSpec("scale", "F64", ()),
    TensorSpec("none", "F32", (0, 7)),
)
Whole = Mapping[str, NDArray[np.unsignedinteger]]


def side(tp: int, dp: int, split: Mapping[str, int], cluster: str) -> Side:
    """Each rank on a node of its own."""
    return Side(Layout(tp, dp, dict(split)), tuple(Place(cluster, f"{cluster}{rank}") for rank in range(tp * dp)))


def small(senders: tuple[int, int] = (2, 1), receivers: tuple[int, int] = (1, 2), chunk_bytes: int = 1024) -> Plan:
    """Senders cut by rows, receivers by the other dimension."""
    theirs = side(*senders, {"up": 0, "down": 1}, "train")
    ours = side(*receivers, {"up": 1, "down": 0}, "roll")
    return make_plan(Exchange(TENSORS, theirs, ours, chunk_bytes))


def whole(plan: Plan, version: int, changed_by: float = 1.0) -> Whole:
    """The words of all tensors; with each version this share of them changes."""
    found = {}
    for place, tensor in enumerate(plan.exchange.tensors):
        rng = np.random.default_rng(place)
        words = np.dtype(f"u{tensor.item_bytes}")
        base = rng.integers(0, 2 ** (8 * tensor.item_bytes - 1), tensor.shape, dtype=np.uint64).astype(words)
        moves = np.asarray(rng.random(tensor.shape) < changed_by)
        found[tensor.name] = np.asarray(base + moves.astype(words) * words.type(version))
    return found


def part(array: NDArray[np.unsignedinteger], box: Box) -> NDArray[np.unsignedinteger]:
    return array[inside(tuple((0, extent) for extent in array.shape), box)]


def filling(plan: Plan, side: Side, rank: int, model: Whole) -> Fill:
    boxes = {name: slot.box for name, slot in slots(plan.exchange.tensors, side.layout, rank)[0].items()}

    def fill(name: str, words: Words) -> None:
        words[...] = part(model[name], boxes[name])

    return fill


def holds(plan: Plan, receiver: Receiver, model: Whole) -> bool:
    """Whether what is served is exactly this rank's part of the model, and its digests say so too."""
    layout = plan.exchange.receivers.layout
    with receiver.read() as weights:
        weights.verify()
        return all(
            np.array_equal(weights.words[tensor.name], part(model[tensor.name], layout.box(tensor, receiver.rank)))
            for tensor in plan.exchange.tensors
        )


class World:
    """All senders and receivers of a plan."""

    def __init__(self, plan: Plan, folder: Path, delta: bool, listen: Callable[[int], Sequence[str]]) -> None:
        self.plan, self.folder = plan, folder
        exchange = plan.exchange
        self.receivers = [
            Receiver(plan, rank, folder / f"receiver-{rank}", TOKEN, listen(rank), patience_s=PATIENCE_S)
            for rank in exchange.receivers.ranks
        ]
        self.senders = [
            Sender(plan, rank, folder / f"sender-{rank}", TOKEN, delta=delta, patience_s=PATIENCE_S)
            for rank in exchange.senders.ranks
        ]

    @property
    def addresses(self) -> list[tuple[str, ...]]:
        return [receiver.addresses for receiver in self.receivers]

    def publish(self, version: int, model: Whole) -> None:
        for sender in self.senders:
            sender.publish(version, filling(self.plan, self.plan.exchange.senders, sender.rank, model))

    def sync(self, epoch: int) -> Tally:
        """All senders at once; what they gave together."""
        with ThreadPoolExecutor(len(self.senders)) as executor:
            tasks = [executor.submit(sender.sync, epoch, self.addresses) for sender in self.senders]
        total = Tally()
        for task in tasks:
            total.add(task.result())
        return total

    def serve(self, model: Whole) -> bool:
        return all(holds(self.plan, receiver, model) for receiver in self.receivers)

    def close(self) -> None:
        for sender in self.senders:
            sender.close()
        for receiver in self.receivers:
            receiver.close()


def on_tcp(_: int) -> Sequence[str]:
    return ["tcp://127.0.0.1:0"]


@contextmanager
def world(
    plan: Plan, folder: Path, *, delta: bool = False, listen: Callable[[int], Sequence[str]] = on_tcp
) -> Iterator[World]:
    made = World(plan, folder / secrets.token_hex(4), delta, listen)
    try:
        yield made
    finally:
        made.close()

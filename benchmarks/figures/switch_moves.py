"""Load and offload of one state, each in turn with a bare copy of the same bytes.

A bare copy is one call of `copy_` between the same two pieces of memory, by as many threads, with the target in the
same condition: working memory that the kernel has just taken back, or may take; host memory that is mapped. Beside it
is one `memmove` of all bytes. In a virtual machine that gives free memory back to its host, one of several loads must
wait for pages, depending on its place in the order. So loads run in all orders, each as often behind each other one.
The fastest turn of each is shown beside the median: in such a machine most turns of either may have waited.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice, permutations
from statistics import median

import numpy as np
import torch
from torch import Tensor

from benchmarks.figures.switch_jobs import Shape, built
from benchmarks.harness import Row, seconds
from rollmux.runtime.residency import Budget, Memory, Resident

MEDIAN, FASTEST = "ours/bare", "ours/bare, fastest"
Copy = Callable[[Tensor, Tensor], object]


class Lane:
    """One state, and the bare copies between its two pieces of memory."""

    def __init__(self, budget: Budget, shape: Shape, train: bool, memory: Memory) -> None:
        self.memory = memory
        self.resident = Resident(built(shape, train, memory.device), name="moves", budget=budget, memory=memory)
        self.resident.offload()
        self.resident.load()
        self._pinned = pinned(self.resident.nbytes) if memory.device.type == "cuda" else None

    def orders(self) -> list[tuple[str, ...]]:
        """Of the loads of a turn."""
        return list(permutations(("ours", *self.copies())))

    def turn(self, order: Sequence[str]) -> dict[tuple[str, str], float]:
        """Seconds of each way and means; begins and ends on the device."""
        self.touch()
        copies = self.copies()
        taken = {("offload", means): self.bare_offload(copy) for means, copy in copies.items()}
        taken["offload", "ours"] = seconds(self.resident.offload)
        for means in order:
            if means == "ours":
                taken["load", means] = seconds(self.resident.load)
                taken["offload", "unchanged"] = seconds(self.resident.offload)
            else:
                taken["load", means] = self.bare_load(copies[means])
        self.resident.load()
        return taken

    def touch(self) -> None:
        """Changes something in each row, so that all of it has to be copied back."""
        flat = self.resident.device.flat
        assert flat is not None
        flat.view(torch.int64)[::512].bitwise_xor_(1)

    def copies(self) -> dict[str, Copy]:
        if self.memory.device.type == "cuda":
            return {"bare": from_pinned}
        return {"bare": Tensor.copy_, "memmove": moved}

    def host(self) -> tuple[Tensor, Tensor]:
        """The host's memory that holds, and the one for the next version; on a GPU a pinned piece for both."""
        if self._pinned is not None:
            return self._pinned, self._pinned
        kept = self.resident.kept
        assert kept is not None
        assert kept.record is not None
        halves = kept.host.data.view(2, -1)
        now = kept.record.slots[0]
        return halves[now], halves[1 - now]

    def bare_load(self, copy: Copy) -> float:
        """Into working memory that was just let go of, which is let go of again."""
        source, target = self.host()[0], self.memory.allocate(self.resident.nbytes)
        taken = seconds(partial(copy, target, source))
        self.memory.expect(source.numel(), target.data_ptr())
        del target
        self.memory.release()
        return taken

    def bare_offload(self, copy: Copy) -> float:
        """Into mapped memory, without giving anything back."""
        source, target = self.resident.device.flat, self.host()[1]
        assert source is not None
        return seconds(partial(copy, target, source))


def pinned(nbytes: int) -> Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


def from_pinned(target: Tensor, source: Tensor) -> None:
    """One copy between pinned memory and a GPU, either way."""
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()


def moved(target: Tensor, source: Tensor) -> None:
    np.copyto(target.numpy(), source.numpy())


def moves(budget: Budget, shape: Shape, train: bool, memory: Memory, told: str, rounds: int) -> list[Row]:
    """A row for each way: GB/s by each means, and how near ours come to a bare copy, by the median and the fastest."""
    lane = Lane(budget, shape, train, memory)
    orders = lane.orders()
    lane.turn(orders[0])
    turns = [lane.turn(order) for order in islice(cycle(orders), rounds)]
    nbytes = lane.resident.nbytes
    lane.resident.close()
    head = {"state": "train" if train else "rollout", "working memory": told, "MB": nbytes / 1e6}
    rows: list[Row] = []
    for way in ("load", "offload"):
        speeds = {
            f"{means} GB/s": nbytes / median(turn[key] for turn in turns) / 1e9
            for key in turns[0]
            for means in key[1:]
            if key[0] == way
        }
        over = median(turn[way, "bare"] / turn[way, "ours"] for turn in turns)
        fastest = min(turn[way, "bare"] for turn in turns) / min(turn[way, "ours"] for turn in turns)
        rows.append({**head, "way": way, **speeds, MEDIAN: over, FASTEST: fastest})
    return rows

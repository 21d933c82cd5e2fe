"""An update's gradient by several processes at once: this one, and replicas beside it over the same weights.

The weights lie in memory that all of them share, so an optimiser's step here is seen by all, and nothing is sent but
samples and gradients. Groups are dealt out whole, the longest first, so that each replica can train them as they come.
Some come early, before the batch is complete: those go to the others, one by one, while this process draws the rest.

Invariant: a replica changes no weight. One that is gone, or fails, costs the gradient under way alone: all are begun
anew, and it is computed again from the same weights and samples, dealt out alike. They end with this process, whatever
ends it.
"""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rollmux.errors import InvariantViolated, RollmuxError
from rollmux.trainer.sample import Sample
from rollmux.trainer.update import Exchange, GradientSum, Objective, Replicas, Stats

# A replica that says nothing for so long within one gradient is taken for dead.
PATIENCE_S = 600.0
_TRIES = 3
_END_S = 5.0
_CONTEXT = mp.get_context("spawn")


@dataclass(frozen=True, slots=True)
class _Part:
    """Samples for a replica's sum: the first of a gradient, the last, both, or some in between."""

    version: int
    samples: Sequence[Sample]
    is_first: bool
    is_last: bool


class Replicated:
    """So many replicas of a model, this process being the first. The others begin with the first gradient."""

    def __init__(self, model: Any, objective: Objective, replicas: int) -> None:
        self._model, self._objective, self._replicas = model, objective, replicas
        self._others: list[tuple[SpawnProcess, Connection]] = []
        self._early: list[tuple[int, Sequence[Sample]]] = []  # groups that came early, and the place of who has each
        self._told = 0  # of them, those that the present others have heard of
        if replicas > 1:
            model.share_memory()

    def forget_early(self) -> None:
        """What came early comes to no update."""
        self._early, self._told = [], 0

    def again(self) -> None:
        """The weights are as before the last gradient, which is to be computed again."""
        self._told = 0

    def early(self, version: int, group: Sequence[Sample]) -> None:
        """A whole group of the gradient that is asked for next. What becomes of it is told then."""
        loads = [0] * (self._replicas - 1)
        for place, had in self._early:
            loads[place] += _tokens(had)
        self._early.append((loads.index(min(loads)), group))
        try:
            self._tell_early(version)
        except (OSError, RuntimeError):  # whoever asks for the gradient hears of it
            self.close()

    def gradient(self, version: int, samples: Sequence[Sample]) -> Stats:
        """Leaves the whole gradient in `grad`."""
        if self._replicas == 1:
            return _gradient(self._model, self._objective, version, samples)
        for left in reversed(range(_TRIES)):
            try:
                return self._together(version, samples)
            except RollmuxError:
                self.close()
                raise
            except (OSError, RuntimeError):  # in one of these a replica's end is heard of
                refusal = self._refusal()
                self.close()
                if refusal is not None:
                    raise refusal from None
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _refusal(self) -> RollmuxError | None:
        """What a replica had against its samples, if that is why it is gone."""
        for _, pipe in self._others:
            with suppress(OSError, EOFError):
                if pipe.poll():
                    found: RollmuxError = pipe.recv()
                    return found
        return None

    def _together(self, version: int, samples: Sequence[Sample]) -> Stats:
        self._tell_early(version)
        early = {sample.group for _, group in self._early for sample in group}
        if not early <= {sample.group for sample in samples}:
            raise InvariantViolated("a gradient's samples", "some that came early are not among them")
        mine, *parts = dealt([sample for sample in samples if sample.group not in early], self._replicas)
        have = {place for place, _ in self._early}
        for place, ((_, pipe), part) in enumerate(zip(self._others, parts, strict=True)):
            pipe.send(_Part(version, part, place not in have, True))
        self._told = 0
        return _gradient(self._model, self._objective, version, mine, Replicas())

    def _tell_early(self, version: int) -> None:
        if not self._others:
            self._begin()
        while self._told < len(self._early):
            place, group = self._early[self._told]
            is_first = all(before != place for before, _ in self._early[: self._told])
            self._others[place][1].send(_Part(version, group, is_first, False))
            self._told += 1

    def _begin(self) -> None:
        threads = max(1, torch.get_num_threads() // self._replicas)
        with tempfile.TemporaryDirectory(prefix="rollmux-replicas-") as folder:
            store = Path(folder, "store")
            for rank in range(1, self._replicas):
                here, there = _CONTEXT.Pipe()
                told = (rank, self._replicas, store, threads, self._model, self._objective, there)
                process = _CONTEXT.Process(target=_replicate, args=told, name=f"replica {rank}", daemon=True)
                self._others.append((process, here))
                process.start()
                there.close()
            _join(0, self._replicas, store)

    def close(self) -> None:
        """Ends the others. Whatever comes next begins them anew."""
        others, self._others, self._told = self._others, [], 0
        for _, pipe in others:
            pipe.close()
        if others and dist.is_initialized():
            dist.destroy_process_group()
        for process, _ in others:
            process.join(_END_S)
            process.kill()
            process.join()


def dealt(samples: Sequence[Sample], replicas: int) -> list[list[Sample]]:
    """Whole groups, the longest to whoever has the least yet; in each part in their order."""
    lengths: dict[str, int] = {}
    for sample in samples:
        lengths[sample.group] = lengths.get(sample.group, 0) + sample.length
    loads, owner = [0] * replicas, dict[str, int]()
    for group in sorted(lengths, key=lambda group: -lengths[group]):
        owner[group] = loads.index(min(loads))
        loads[owner[group]] += lengths[group]
    parts: list[list[Sample]] = [[] for _ in range(replicas)]
    for sample in samples:
        parts[owner[sample.group]].append(sample)
    return parts


def _tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.length for sample in samples)


def _gradient(
    model: Any, objective: Objective, version: int, samples: Sequence[Sample], exchange: Exchange | None = None
) -> Stats:
    gradient = GradientSum(model, objective, version=version)
    gradient.add(samples)
    return gradient.finish() if exchange is None else gradient.finish(exchange)


def _join(rank: int, replicas: int, store: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=replicas, timeout=timedelta(seconds=PATIENCE_S)
    )
    dist.barrier()  # who comes out of it needs the file no more, and nor does anybody else


def _replicate(
    rank: int, replicas: int, store: Path, threads: int, model: Any, objective: Objective, pipe: Connection
) -> None:
    """A replica, until its pipe is closed: by whoever has begun it, or with that process."""
    inbox = SimpleQueue[_Part]()
    Thread(target=_receive, args=(pipe, inbox), daemon=True).start()
    torch.set_num_threads(threads)
    _join(rank, replicas, store)
    gradient: GradientSum | None = None
    while True:
        part = inbox.get()
        try:
            if gradient is None or part.is_first:
                gradient = GradientSum(model, objective, version=part.version)
            gradient.add(part.samples)
            if part.is_last:
                gradient.finish(Replicas())
                model.zero_grad(set_to_none=True)
                gradient = None
        except RollmuxError as refusal:
            pipe.send(refusal)
            return


def _receive(pipe: Connection, inbox: SimpleQueue[_Part]) -> None:
    """Whoever sends never waits for a sum under way. Once the pipe is closed nothing that this process does counts."""
    try:
        while True:
            inbox.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)

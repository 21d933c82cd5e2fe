"""An update's gradient by several processes at once: this one, and replicas beside it over the same weights.

The weights lie in memory that all of them share, so an optimiser's step here is seen by all, and nothing is sent but
samples and gradients. Groups are dealt out whole, the longest first, so that each replica can train them as they come.

Invariant: a replica changes no weight. One that is gone, or fails, costs the gradient under way alone: all are begun
anew, and it is computed again from the same weights and samples. They end with this process, whatever ends it.
"""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rollmux.errors import RollmuxError
from rollmux.trainer.sample import Sample
from rollmux.trainer.update import Exchange, GradientSum, Objective, Replicas, Stats

# A replica that says nothing for so long within one gradient is taken for dead.
PATIENCE_S = 600.0
_TRIES = 3
_END_S = 5.0
_CONTEXT = mp.get_context("spawn")


class Replicated:
    """So many replicas of a model, this process being the first. The others begin with the first gradient."""

    def __init__(self, model: Any, objective: Objective, replicas: int) -> None:
        self._model, self._objective, self._replicas = model, objective, replicas
        self._others: list[tuple[SpawnProcess, Connection]] = []
        if replicas > 1:
            model.share_memory()

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
        if not self._others:
            self._begin()
        mine, *parts = dealt(samples, self._replicas)
        for (_, pipe), part in zip(self._others, parts, strict=True):
            pipe.send((version, part))
        return _gradient(self._model, self._objective, version, mine, Replicas())

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
        """Ends the others. The next gradient begins them anew."""
        others, self._others = self._others, []
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


def _replicate(
    rank: int, replicas: int, store: Path, threads: int, model: Any, objective: Objective, pipe: Connection
) -> None:
    """A replica, until its pipe is closed: by whoever has begun it, or with that process."""
    torch.set_num_threads(threads)
    _join(rank, replicas, store)
    with suppress(EOFError):
        while True:
            version, samples = pipe.recv()
            try:
                _gradient(model, objective, version, samples, Replicas())
            except RollmuxError as refusal:
                pipe.send(refusal)
                return
            model.zero_grad(set_to_none=True)

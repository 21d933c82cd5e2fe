"""An update's gradient by several processes at once: this one, and replicas beside it over the same weights.

The weights lie in memory that all of them share, so all see an optimiser's step here, and only samples and gradients
are sent. Groups are dealt out whole, the longest first, so that each replica can train them as they come.

Some groups come early, while this process still draws the rest: the replica with the least to do gets the next one. At
the end the remaining groups are dealt out so that all processes are done at the same time.

Invariant: a replica changes no weight. One that is gone, or fails, costs only the gradient under way: all replicas are
begun anew, and it is computed again from the same weights and samples. They end with this process, whatever ends it.
"""

import os
import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist

from rollmux.errors import InvariantViolated, RollmuxError
from rollmux.runtime.forks import Fork, begun
from rollmux.system import loopback
from rollmux.trainer.errors import ReplicasLost
from rollmux.trainer.model import share
from rollmux.trainer.sample import Sample
from rollmux.trainer.update import ALONE, Exchange, GradientSum, Objective, Replicas, Stats

# A replica that says nothing for so long within one gradient is taken for dead.
PATIENCE_S = 600.0
# How long a replica may take to get the model, once its process is there.
START_S = 120.0
_TRIES = 3
_AHEAD = 2  # groups that a replica has while it draws on: one under way, and the next
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class _Part:
    """Samples for a replica's sum of a gradient. After the last part the sum is exchanged; after any other the replica
    says that it is done."""

    version: int
    samples: Sequence[Sample]
    is_last: bool


class Replicated:
    """`replicas` replicas of a model; this process is the first. The others begin with the first gradient."""

    def __init__(self, model: Any, objective: Objective, replicas: int) -> None:
        self._model, self._objective, self._replicas = model, objective, replicas
        self._others: list[Fork] = []
        # Early groups that no replica has yet, those that one has, and the tokens that each replica has yet to do.
        self._queue = deque[Sequence[Sample]]()
        self._handed = set[str]()
        self._given: list[deque[int]] = []
        if replicas > 1:
            share(model)

    def forget_early(self) -> None:
        """Drops early groups: those that come from here on are of the next gradient."""
        if self._handed:
            self.close(0.0)

    def be_ready(self) -> None:
        """Begins the other replicas, if they are not there."""
        if self._replicas > 1 and not self._others:
            try:
                self._begin()
            except (OSError, EOFError, RuntimeError):  # the gradient begins them anew, and raises what lasts
                self.close()

    def early(self, version: int, group: Sequence[Sample]) -> None:
        """Takes a whole group of the next gradient, if there are other replicas to begin with it."""
        if self._others:
            self._queue.append(group)
            self.go_on(version)

    def go_on(self, version: int) -> None:
        """Gives the next early groups to replicas that are done with theirs."""
        try:
            self._hear()
            while self._queue and min(map(len, self._given)) < _AHEAD:
                place = min(range(len(self._given)), key=lambda each: len(self._given[each]))
                group = self._queue.popleft()
                self._send(place, version, group, is_last=False)
                self._handed.update(sample.group for sample in group)
                self._given[place].append(_tokens(group))
        except RollmuxError:
            self.close()
            raise
        except (OSError, EOFError):  # the gradient begins them anew, and raises what lasts
            self.close()

    def rest(self, within_s: float) -> None:
        """Once this returns the others compute nothing. If one takes longer all are ended; the gradient begins them."""
        end = monotonic() + within_s
        try:
            while busy := [fork.pipe for given, fork in zip(self._given, self._others, strict=True) if given]:
                if not wait(busy, max(0.0, end - monotonic())):
                    return self.close(0.0)
                self._hear()
        except (RollmuxError, OSError, EOFError):  # the gradient begins them anew, and raises what lasts
            self.close(0.0)

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
            except (OSError, EOFError, RuntimeError) as trouble:  # a replica's end shows as one of these
                refusal = self._refusal()
                self.close()
                if refusal is not None:
                    raise refusal from None
                if not left:
                    what = f"a gradient by {self._replicas} processes has failed {_TRIES} times in a row"
                    raise ReplicasLost(f"{what}: their log may say why ({trouble!r})") from trouble
        raise AssertionError("the last try returns or raises")

    def _refusal(self) -> RollmuxError | None:
        """The refusal of its samples for which a replica is gone, if there is one."""
        for fork in self._others:
            with suppress(OSError, EOFError):
                while fork.pipe.poll():
                    refusal: RollmuxError | None = fork.pipe.recv()
                    if refusal is not None:
                        return refusal
        return None

    def _together(self, version: int, samples: Sequence[Sample]) -> Stats:
        if not self._others:
            self._begin()
        self._hear()
        if not self._handed <= {sample.group for sample in samples}:
            raise InvariantViolated("a gradient's samples", "some that came early are not among them")
        rest = [sample for sample in samples if sample.group not in self._handed]
        mine, *parts = dealt(rest, self._replicas, [0, *map(sum, self._given)])
        for place, part in enumerate(parts):
            self._send(place, version, part, is_last=True)
        stats = _gradient(self._model, self._objective, version, mine, Replicas())
        for given, fork in zip(self._given, self._others, strict=True):
            for _ in given:  # each was told as done before the last part
                fork.pipe.recv()
        self._begin_anew()
        return stats

    def _send(self, place: int, version: int, samples: Sequence[Sample], is_last: bool) -> None:
        self._others[place].pipe.send(_Part(version, samples, is_last))

    def _hear(self) -> None:
        """Hears which early groups are done. Raises what a replica refuses."""
        for given, fork in zip(self._given, self._others, strict=True):
            while fork.pipe.poll():
                refusal: RollmuxError | None = fork.pipe.recv()
                if refusal is not None:
                    raise refusal
                given.popleft()

    def _begin_anew(self) -> None:
        """Resets the accounts: no replica has samples of the next gradient."""
        self._queue.clear()
        self._handed.clear()
        self._given = [deque() for _ in self._others]

    def _begin(self) -> None:
        threads = max(1, torch.get_num_threads() // self._replicas)
        with tempfile.TemporaryDirectory(prefix="rollmux-replicas-") as folder:
            store = Path(folder, "store")
            for rank in range(1, self._replicas):
                self._others.append(begun(_replicate, rank, self._replicas, store, threads, name=f"replica {rank}"))
                self._hand_over(self._others[-1].pipe)
            for fork in self._others:
                if fork.pipe.poll():
                    fork.pipe.recv()  # raises: all that it can say is that it died while others began
            _join(0, self._replicas, store)
        self._begin_anew()

    def _hand_over(self, pipe: Connection) -> None:
        """Sends the model to one replica at a time, as each tensor on its way takes a descriptor.

        This comes before the process group is formed, which waits long: so a replica that dies is noticed at once.
        """
        pipe.send((self._model, self._objective))
        if not pipe.poll(START_S):
            raise TimeoutError(f"a replica has not begun within {START_S:g} s")
        pipe.recv()

    def close(self, patience_s: float = _END_S) -> None:
        """Ends the other replicas, which have `patience_s` to end themselves. The next call begins them anew."""
        others, self._others = self._others, []
        self._begin_anew()
        for fork in others:
            fork.pipe.close()
        if others and dist.is_initialized():
            dist.destroy_process_group()
        for fork in others:
            fork.end(patience_s)


def dealt(samples: Sequence[Sample], replicas: int, had: Sequence[int] = ()) -> list[list[Sample]]:
    """Deals out whole groups, the longest first, each to the replica with the fewest tokens (it `had` some before).
    Samples keep their order in each part."""
    lengths: dict[str, int] = {}
    for sample in samples:
        lengths[sample.group] = lengths.get(sample.group, 0) + sample.length
    loads, owner = list(had) or [0] * replicas, dict[str, int]()
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
    model: Any, objective: Objective, version: int, samples: Sequence[Sample], exchange: Exchange = ALONE
) -> Stats:
    gradient = GradientSum(model, objective, version=version)
    gradient.add(samples)
    return gradient.finish(exchange)


def _join(rank: int, replicas: int, store: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=replicas, timeout=timedelta(seconds=PATIENCE_S)
    )
    dist.barrier()  # behind it no process needs the file any more


def _replicate(rank: int, replicas: int, store: Path, threads: int, pipe: Connection) -> None:
    """A replica's process, until its pipe is closed, at the latest with the process that has begun it."""
    try:
        model, objective = pipe.recv()
    except (OSError, EOFError):
        return
    inbox = SimpleQueue[_Part]()
    Thread(target=_receive, args=(pipe, inbox), daemon=True).start()
    torch.set_num_threads(threads)
    pipe.send(None)
    _join(rank, replicas, store)
    gradient: GradientSum | None = None
    while True:
        part = inbox.get()
        try:
            if gradient is None:
                gradient = GradientSum(model, objective, version=part.version)
            gradient.add(part.samples)
            if part.is_last:
                gradient.finish(Replicas())
                model.zero_grad(set_to_none=True)
                gradient = None
            else:
                pipe.send(None)
        except RollmuxError as refusal:
            pipe.send(refusal)
            return


def _receive(pipe: Connection, inbox: SimpleQueue[_Part]) -> None:
    """Reads the pipe, so that the sender never waits for a sum under way. Ends the process once the pipe is closed."""
    try:
        with suppress(EOFError, OSError):
            while True:
                inbox.put(pipe.recv())
    finally:
        os._exit(0)

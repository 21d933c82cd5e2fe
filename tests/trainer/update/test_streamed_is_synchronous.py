"""A streamed update is the synchronous one, parameter by parameter, whatever came when, where and with what."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rollmux.trainer.sample import Sample
from rollmux.trainer.update import Baseline, GradientSum, Loss, Objective, Stats, WholeBatch
from tests.thorough import examples
from tests.trainer.update.naive import (
    VERSION,
    Drawn,
    furthest,
    gradients,
    samples,
    sharing,
    synchronous,
    synchronous_loss,
    tiny,
)

T = TypeVar("T")
DOUBLE, SINGLE = 1e-9, 2e-4
# Sums of these are exact: what rounding leaves of equal rewards, the textbook's formula would whiten to any size.
REWARDS = st.sampled_from([0.0, 1.0, 0.5, -0.25, 1000.0, 1001.0])
LOSSES = st.sampled_from([Loss.SAMPLE_MEAN, Loss.TOKEN_MEAN])
CLIPS = st.sampled_from([(None, None), (0.2, 0.2), (0.2, 0.28), (0.05, 0.5)])


@st.composite
def objectives(draw: st.DrawFn) -> Objective:
    baseline, (low, high) = draw(st.sampled_from(Baseline)), draw(CLIPS)
    return Objective(
        baseline=baseline,
        group_std=baseline is Baseline.GROUP_MEAN and draw(st.booleans()),
        whiten=baseline is not Baseline.BATCH_MEAN and draw(st.booleans()),
        clip_low=low,
        clip_high=high,
        loss=draw(LOSSES),
        drop_equal_groups=draw(st.booleans()),
    )


@st.composite
def batches(draw: st.DrawFn) -> list[Sample]:
    """One to four groups of the same number of responses, of different lengths."""
    size = draw(st.integers(2, 4))
    made = [
        Drawn(group, draw(REWARDS), 1 + group, draw(st.integers(1, 7)))
        for group in range(draw(st.integers(1, 4)))
        for _ in range(size)
    ]
    return samples(made, draw(st.sampled_from([0.0, 1e-4, 0.3])), draw(st.integers(0, 9)))


@dataclass(frozen=True)
class Arrival:
    """Which replica gets which samples, in calls of how many."""

    replicas: int
    order: tuple[int, ...]
    calls: tuple[int, ...]
    budget: int
    whole_batch: WholeBatch
    shares: bool  # samples of a prompt share its row

    def of(self, batch: Sequence[Sample], replica: int) -> list[list[Sample]]:
        mine = [batch[place] for n, place in enumerate(self.order) if self.replica(n) == replica]
        cut: list[list[Sample]] = []
        for call in self.calls:
            cut.append(mine[:call])
            mine = mine[call:]
        return [*cut, mine]

    def replica(self, n: int) -> int:
        return self.calls[n % len(self.calls)] % self.replicas


@st.composite
def arrivals(draw: st.DrawFn, count: int) -> Arrival:
    return Arrival(
        replicas=draw(st.integers(1, 4)),
        order=tuple(draw(st.permutations(range(count)))),
        calls=tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))),
        budget=draw(st.sampled_from([1, 16, 1024])),
        whole_batch=draw(st.sampled_from(WholeBatch)),
        shares=draw(st.booleans()),
    )


class Meeting:
    """An exchange between threads, each a replica."""

    def __init__(self, replicas: int) -> None:
        self._barrier = threading.Barrier(replicas, timeout=60)
        self._said: dict[int, Any] = {}
        self._replicas = replicas

    def at(self, rank: int) -> "Seat":
        return Seat(self, rank)

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Nobody waits for one that failed."""
        try:
            yield
        except BaseException:
            self._barrier.abort()
            raise

    def everybody(self, rank: int, mine: T) -> list[T]:
        self._said[rank] = mine
        self._barrier.wait()
        said = [self._said[other] for other in range(self._replicas)]
        self._barrier.wait()
        return said


@dataclass
class Seat:
    """One replica's place at it."""

    meeting: Meeting
    rank: int

    def gather(self, mine: T, kind: type[T]) -> list[T]:
        return self.meeting.everybody(self.rank, mine)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        said = self.meeting.everybody(self.rank, [tensor.clone() for tensor in tensors])
        for place, tensor in enumerate(tensors):
            tensor.copy_(torch.stack([theirs[place] for theirs in said]).sum(0))


def filled(objective: Objective, batch: Sequence[Sample], arrival: Arrival, replica: int) -> tuple[Any, GradientSum]:
    model = tiny()
    mine = GradientSum(model, objective, version=VERSION, whole_batch=arrival.whole_batch, token_budget=arrival.budget)
    for call in arrival.of(batch, replica):
        mine.add(call)
    return model, mine


def exchanged(objective: Objective, batch: Sequence[Sample], arrival: Arrival) -> list[tuple[list[Tensor], Stats]]:
    """What each replica is left with."""
    meeting = Meeting(arrival.replicas)

    def work(rank: int) -> tuple[list[Tensor], Stats]:
        with meeting.attended():
            model, mine = filled(objective, batch, arrival, rank)
            stats = mine.finish(meeting.at(rank))
            return gradients(model), stats

    with ThreadPoolExecutor(arrival.replicas) as threads:
        return list(threads.map(work, range(arrival.replicas)))


@settings(max_examples=examples(50), deadline=None)
@given(st.data(), objectives(), batches(), st.booleans())
def test_replicas_that_exchange_are_left_with_the_synchronous_gradient_and_loss(
    data: st.DataObject, objective: Objective, batch: list[Sample], size_known: bool
) -> None:
    arrival = data.draw(arrivals(len(batch)))
    told = replace(objective, group_size=sum(s.group == "0" for s in batch) if size_known else None)
    wanted, loss = synchronous(objective, batch), synchronous_loss(tiny(), objective, batch)
    with sharing() if arrival.shares else nullcontext():
        exchange = exchanged(told, batch, arrival)
    for found, stats in exchange:
        assert furthest(found, wanted) < DOUBLE
        assert abs(stats.loss - (0.0 if loss is None else loss.item())) < 1e-6
        assert (stats.samples > 0) == bool(wanted)
        assert stats.streamed + stats.late == stats.samples

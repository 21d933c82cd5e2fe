"""The gradient of one update, added up while its samples arrive.

Invariant: after `finish`, `grad` is that of one synchronous update over all added samples, whatever their order, their
split over calls and replicas, and the micro-batches. Each sample counts once; a refused call has added nothing.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from math import fsum, sqrt

from torch import Tensor, nn

from rollmux.checks import MAX_COUNT, Checks
from rollmux.errors import IllegalEvent
from rollmux.packer.gradient_share import Count, Given, GradientShare
from rollmux.trainer.sample import Sample
from rollmux.trainer.update.errors import WrongVersion
from rollmux.trainer.update.exchange import ALONE, Exchange
from rollmux.trainer.update.ledger import Entry, Ledger, Whole
from rollmux.trainer.update.micro_batches import micro_batches, shared_rows
from rollmux.trainer.update.objective import Objective
from rollmux.trainer.update.passes import Passes
from rollmux.trainer.update.stats import Measured, Stats
from rollmux.trainer.update.sums import Accumulator

TOKEN_BUDGET = 1024


class WholeBatch(Enum):
    """How to train samples whose advantages need the whole batch (whitening, the batch's mean)."""

    LINEAR = "linear"  # at once, into two sums; samples that a clip could bind wait for the end
    DEFER = "defer"  # all at the end, into one sum: half the memory, three fifths of the work


class GradientSum:
    """One replica's part of an update; make one for each update.

    With `version`, weights of this version must have drawn each token. If a computation raises in `add`, its samples go
    on waiting, and the next call tries again; if one raises in `finish`, this sum has ended.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        *,
        version: int | None = None,
        whole_batch: WholeBatch = WholeBatch.LINEAR,
        token_budget: int = TOKEN_BUDGET,
    ) -> None:
        checks = Checks("gradient sum")
        checks.whole("token_budget", token_budget, 1, MAX_COUNT, "give the tokens of a micro-batch, padding counted")
        checks.require()
        self.objective, self.version, self._whole_batch, self._budget = objective, version, whole_batch, token_budget
        self._passes = Passes(model, objective)
        self._ledger = Ledger(objective)
        self._waiting: dict[int, Sample] = {}  # by the number of their arrival
        self._bound: set[int] = set()  # those of them that a clip may bind
        self._arrived = 0
        self._measured = Measured()
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many samples are not trained yet."""
        return len(self._waiting)

    def add(self, samples: Iterable[Sample]) -> None:
        """Takes these samples, and trains all that can be trained exactly by now."""
        self._require_open()
        more = list(samples)
        self._check(more)
        self._ledger.book(_entry(sample) for sample in more)
        self._waiting.update(enumerate(more, self._arrived))
        self._arrived += len(more)
        self._train_known()

    def finish(self, exchange: Exchange = ALONE) -> Stats:
        """The batch is complete on all replicas: trains samples that waited, and leaves the whole gradient in `grad`.

        A batch that is not complete is refused on every replica, and more samples can be added.
        """
        self._require_open()
        ledger = Ledger(self.objective)
        for entries in exchange.gather(self._ledger.entries, list[Entry]):
            ledger.book(entries)
        whole = ledger.whole()
        self._closed = True
        gradient = self._passes.sums.settle(whole.affine)
        self._train_rest(ledger, whole)
        told = exchange.gather((self._measured, gradient.value), tuple[Measured, float])
        exchange.add_up(gradient.tensors)
        gradient.value = fsum(value for _, value in told)
        self._leave(gradient, whole.total)
        return _stats(whole, gradient, sum((measured for measured, _ in told), Measured()))

    def _require_open(self) -> None:
        if self._closed:
            raise IllegalEvent("this sum was finished: make another for the next update")

    def _check(self, samples: Sequence[Sample]) -> None:
        checks, vocabulary = Checks("samples"), self._passes.vocabulary
        for place, sample in enumerate(samples):
            highest = max(max(sample.prompt), max(sample.tokens))
            if highest >= vocabulary:
                checks.report(f"{place}", highest, f"a token below {vocabulary}", "take the tokenizer of this model")
        checks.require()
        for sample in samples:
            versions = {sample.versions[place] for place in sample.places}
            if self.version is not None and versions != {self.version}:
                raise WrongVersion(
                    f"a sample of group {sample.group!r} was drawn by weights {sorted(versions)}, and this "
                    f"update is of {self.version}: end the run, or leave out what other weights have drawn"
                )

    def _train_known(self) -> None:
        """Trains the samples whose advantages are known, except for the part that the whole batch has in them."""
        known = [n for n, s in self._waiting.items() if n not in self._bound and self._ledger.is_known(s.group)]
        kept = self._drop(self._ledger, known)
        if self.objective.needs_batch and self._whole_batch is WholeBatch.DEFER:
            return
        for rows in self._micro_batches(kept):
            numbers = [number for row in rows for number in row]
            advantages = self._ledger.own_advantages([_entry(self._waiting[number]) for number in numbers])
            if self.objective.needs_batch:
                measured, trained = self._passes.linear(self._of(rows), advantages)
            else:
                measured, trained = self._passes.final(self._of(rows), advantages), [True] * len(numbers)
            self._bound.update(number for number, done in zip(numbers, trained, strict=True) if not done)
            done = [number for number in numbers if number not in self._bound]
            self._trained(done, measured + Measured(streamed=len(done)))

    def _train_rest(self, ledger: Ledger, whole: Whole) -> None:
        kept = self._drop(ledger, list(self._waiting))
        for rows in self._micro_batches(kept):
            numbers = [number for row in rows for number in row]
            own = ledger.own_advantages([_entry(self._waiting[number]) for number in numbers])
            measured = self._passes.final(self._of(rows), [whole.affine.of(advantage) for advantage in own])
            self._trained(numbers, measured + Measured(late=len(numbers)))

    def _drop(self, ledger: Ledger, numbers: Sequence[int]) -> list[int]:
        """Forgets samples of groups that the objective drops, and returns the others."""
        dropped = {number for number in numbers if ledger.drops(self._waiting[number].group)}
        for number in dropped:
            del self._waiting[number]
        return [number for number in numbers if number not in dropped]

    def _micro_batches(self, numbers: Sequence[int]) -> list[list[list[int]]]:
        """Micro-batches: rows of samples' numbers. Rows of a single sample need no mask, and have their own batches."""
        samples = [self._waiting[number] for number in numbers]
        rows = shared_rows(samples, self._budget, self._passes.pairs_per_token)
        batches = []
        for alike in ([row for row in rows if len(row) == 1], [row for row in rows if len(row) > 1]):
            widths = [len(samples[row[0]].prompt) + sum(len(samples[place].tokens) for place in row) for row in alike]
            batches += [[alike[place] for place in places] for places in micro_batches(widths, self._budget)]
        return [[[numbers[place] for place in row] for row in batch] for batch in batches]

    def _of(self, rows: Sequence[Sequence[int]]) -> list[list[Sample]]:
        return [[self._waiting[number] for number in row] for row in rows]

    def _trained(self, numbers: Sequence[int], measured: Measured) -> None:
        for number in numbers:
            del self._waiting[number]
        self._measured += measured

    def _leave(self, gradient: Accumulator, total: Count | None) -> None:
        """Leaves the gradient of the loss, the negative objective; None without samples: an optimiser does nothing."""
        if total is not None:
            gradient.scale(-float(GradientShare(self.objective.loss, Given.SUM).at_end(total)))
        for parameter, tensor in zip(self._passes.parameters, gradient.tensors, strict=True):
            parameter.grad = None if total is None else tensor.to(parameter.dtype)


def _entry(sample: Sample) -> Entry:
    return Entry(sample.group, sample.reward, sample.drawn)


def _stats(whole: Whole, gradient: Accumulator, measured: Measured) -> Stats:
    total, tokens = whole.total, max(1, measured.tokens)
    return Stats(
        samples=total.samples if total else 0,
        tokens=total.tokens if total else 0,
        dropped_groups=whole.dropped,
        loss=gradient.value,
        reward_mean=whole.rewards.mean,
        reward_deviation=whole.rewards.deviation,
        advantage_deviation=whole.advantages.deviation if whole.advantages else 0.0,
        gradient_norm=sqrt(fsum(_square(tensor) for tensor in gradient.tensors)),
        clipped_part=measured.clipped_tokens / tokens,
        divergence=measured.divergence / tokens,
        furthest_log_ratio=measured.furthest,
        streamed=measured.streamed,
        late=measured.late,
    )


def _square(tensor: Tensor) -> float:
    return float(tensor.norm().double()) ** 2

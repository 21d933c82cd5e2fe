"""One round of rollout: the batcher says what is wanted, engines generate it, a scorer rewards it.

Invariants: what the batcher is told, and when, depends on the responses' tokens alone. So it makes no difference how
many engines there are, which of them runs what, and which come or go meanwhile. A round ends with idle engines; its
samples come in the order of their prompts and sample numbers.
"""

import logging
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from rollmux.packer import (
    Abort,
    Batch,
    Command,
    Draw,
    Event,
    Launch,
    PromptDrawn,
    Request,
    ResponseAborted,
    ResponseFailed,
    ResponseGenerated,
    ResponseRewarded,
    RoundComplete,
    RoundStarted,
    TailBatcher,
    TrainedPrompt,
)
from rollmux.plain import plain
from rollmux.runtime.engine import Engine
from rollmux.runtime.rewards import Status
from rollmux.trainer.data import Data
from rollmux.trainer.early import Early, UnderWay
from rollmux.trainer.errors import RolloutStuck
from rollmux.trainer.prompts import named
from rollmux.trainer.safe_points import SafePoints
from rollmux.trainer.sample import Sample
from rollmux.trainer.scoring import Scored, Scorer
from rollmux.trainer.settings import Sampling
from rollmux.trainer.tasks import Task
from rollmux.trainer.token_clock import TokenClock
from rollmux.trainer.turns import Over, Response, Turns, first_turn
from rollmux.trainer.workers import Workers

log = logging.getLogger("rollmux")

Progress = Callable[[int, int], None]

MOST_FAILURES = 10  # in a round, for each response that it began with: more can't be an accident


@dataclass(frozen=True, slots=True)
class Rolled:
    """The result of a round. `lengths` are the drawn tokens of all responses that ended by themselves."""

    batch: Batch
    samples: tuple[Sample, ...]
    lengths: tuple[int, ...]
    generated_tokens: int  # of all responses, trained or not
    cut: int  # how many samples were cut off before their end
    failures: Mapping[str, int]  # responses without a reward, by cause: they were launched again, and are no zeros


class Rollout:
    """Plays rounds on these engines."""

    def __init__(
        self, engines: Sequence[Engine], batcher: TailBatcher, data: Data, task: Task, scorer: Scorer,
        sampling: Sampling, max_length: int, seed: int, early: Early | None = None, lengths: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.batcher, self.data = batcher, data
        self._workers, self._points = Workers(engines), SafePoints()
        most_turns = sampling.max_turns if task.needs.talks else 1
        self._turns = Turns(self._workers, scorer, task.tokenizer, most_turns, max_length)
        self._task, self.scorer, self._sampling, self._seed = task, scorer, sampling, seed
        self._early, self.lengths = early, tuple(lengths)  # those of the last round
        self._before: frozenset[int] | None = None  # the workers before training got some of them
        self._clock = TokenClock()
        self.ended: dict[Request, Response] = {}
        self._over = 0  # responses whose end was heard
        self._generated_tokens = 0
        self._failures = Counter[str]()
        self._failed_once = set[str]()  # causes of which the log has an example
        self._most_failures = 0
        self._complete: list[Batch] = []
        self._closed = False

    @property
    def engines(self) -> tuple[Engine, ...]:
        return self._workers.engines

    def round(self, progress: Progress, rounds_left: int | None = None) -> Rolled:
        """Plays a round, from fresh weights to a batch. `progress` hears how many responses are over, of how many.

        `rounds_left` is that of RoundStarted.
        """
        with self._points.round():
            self._take_back()
            self.ended.clear()
            self._clock = TokenClock()
            self._over = self._generated_tokens = 0
            self._failures.clear()
            if self._early is not None:
                self._early.begin()
            self._tell(RoundStarted(rounds_left))
            self._most_failures = MOST_FAILURES * self._clock.running
            while not self._complete:
                self._points.pass_by()
                self._sweep()
                progress(self._over, self._over + self._clock.running)
            self._drain()
            self._take_back()
            return self._rolled(self._complete.pop())

    def share(self, workers: Collection[int]) -> None:
        """From now on only these workers work. May be called in any thread: a round does it between two sweeps."""
        self._points.do(lambda: self._workers.share(workers))

    def suspend(self) -> None:
        """The engines give their memory back until `share`. May be called in any thread, even amid a round."""

        def suspended() -> None:
            if not self._closed:
                for engine in self.engines:
                    engine.suspend()

        self._points.do(suspended)

    def update(self, version: int) -> None:
        """Tells the engines that the weights were written in place. Harmless the second time."""

        def updated() -> None:
            for engine in self.engines:
                if engine.version != version:
                    engine.update(version)

        self._points.do(updated)

    def close(self) -> None:
        self.scorer.close()
        self._points.do(self._close)

    def _close(self) -> None:
        self._closed = True
        for engine in self.engines:
            engine.close()

    # -- what happens, and what follows from it ------------------------------------------------------------------------

    def _sweep(self) -> None:
        """One step of every engine; then tells, tick by tick, the ends and the rewards that follow from it."""
        has_told = self._step()
        while (ends := self._clock.tick()) is not None:
            self._tell(*(self._ended(request, over) for request, over in ends))
            self._reward(wait=False)
        if self._complete:
            return
        if self._clock.is_empty and self.scorer.pending:
            self._reward(wait=True)
        elif self._turns.is_idle and not has_told and not self._step():
            raise RolloutStuck("nothing is generated or scored, and the round is not complete: an engine lost requests")

    def _step(self) -> bool:
        """One step of every engine. Whether anything was heard."""
        heard = self._turns.step()
        self._over += sum(map(self._clock.hear, heard))
        return bool(heard)

    def _ended(self, request: Request, over: Over) -> Event:
        response, tokens = over.response, over.response.drawn
        self._generated_tokens += tokens
        if over.failed:
            return self._failed(request, over.failed, over.why, tokens)
        self.ended[request] = response
        self.scorer.submit(request, *response.said)
        return ResponseGenerated(request, tokens)

    def _reward(self, wait: bool) -> None:
        scored = self.scorer.collect(wait)
        self._tell(*map(self._rewarded, scored))
        if scored and self._early is not None and not self._complete:
            self._train(self._early)

    def _rewarded(self, scored: Scored) -> Event:
        reward = scored.reward
        if reward.status is Status.SCORE:
            return ResponseRewarded(scored.request, reward.value)
        return self._failed(scored.request, f"reward {reward.status.value}", reward.detail)

    def _failed(self, request: Request, cause: str, why: str, tokens: int = 0) -> Event:
        why = plain(why)  # it may quote the response
        self._failures[cause] += 1
        which = named(self._task, int(request.prompt.id))
        if self._failures.total() > self._most_failures:
            told = f"{MOST_FAILURES} times as many failures as responses in one round"
            raise RolloutStuck(f"{told}, the last one of {which}: {cause}: {why}")
        if cause not in self._failed_once:
            self._failed_once.add(cause)
            told = "that is no zero, and `failures` in a step's metrics counts what fails so"
            log.warning("a response to %s has failed (%s: %s): %s", which, cause, why, told)
        return ResponseFailed(request, f"{cause}: {why}", tokens)

    def _tell(self, *events: Event) -> None:
        """Tells the batcher these events, obeys its commands, and tells the events that follow from them."""
        while events:
            follows: list[Event] = []
            for command in self.batcher.handle(*events):
                follows += self._obey(command)
            events = tuple(follows)

    def _obey(self, command: Command) -> list[Event]:
        match command:
            case Draw(count=count):
                return [PromptDrawn(self.data.draw()) for _ in range(count)]
            case Launch(request=request):
                self._launch(request)
            case Abort(requests=requests):
                return self._abort(requests)
            case RoundComplete(batch=batch):
                self._complete.append(batch)
        return []

    def _launch(self, request: Request) -> None:
        name = _name(request)
        self._turns.launch(request, first_turn(name, request, self._task, self._sampling, self._seed))
        self._clock.begin(name, request)

    def _abort(self, requests: Collection[Request]) -> list[Event]:
        """Aborts the requests. Their lengths are known at once: tokens drawn ahead of the clock don't count."""
        self._turns.cancel([_name(request) for request in requests])
        self.scorer.cancel(requests)
        aborted: list[Event] = []
        for request in requests:
            tokens = self._clock.abort(_name(request))
            if tokens is not None:
                self._generated_tokens += tokens
                aborted.append(ResponseAborted(request, tokens))
        return aborted

    # -- training before the end ---------------------------------------------------------------------------------------

    def _train(self, early: Early) -> None:
        """Sends out the prompts that are sure now that these rewards are told, if the learner has nodes."""
        if not early.trains.has_nodes:
            return
        if early.is_due(len(self.ended)):
            there = self._workers.there
            freed = early.freed(sorted(there), self._under_way(), self.lengths)
            if freed:
                self._before = there
                self._workers.share(there - freed)
        early.trains.go_on()
        if early.wanted:
            for trained in self.batcher.sure(early.sent)[: early.wanted]:
                early.send(trained, self._samples(trained))

    def _under_way(self) -> list[UnderWay]:
        return [
            UnderWay(name, worker, self._turns.given(name), tokens)
            for name, tokens in self._clock.under_way()
            if (worker := self._workers.of(name)) is not None
        ]

    def _take_back(self) -> None:
        """Brings back freed workers: at a round's end, and at its beginning if the last round was broken off."""
        if self._before is not None:
            self._workers.share(self._before)
            self._before = None

    def _drain(self) -> None:
        """Steps until the engines have nothing left to tell."""
        while self._workers.untold:
            if not self._step():
                raise RolloutStuck(f"{self._workers.untold} aborted responses never ended: an engine lost requests")

    # -- the result of a round -----------------------------------------------------------------------------------------

    def _rolled(self, batch: Batch) -> Rolled:
        samples = [
            sample
            for trained in sorted(batch.prompts, key=lambda each: each.prompt.order)
            for sample in self._samples(trained)
        ]
        self.lengths = tuple(sorted(each.drawn for each in self.ended.values()))
        cut = sum(self.ended[each.request].is_cut for trained in batch.prompts for each in trained.responses)
        failures = dict(sorted(self._failures.items()))
        return Rolled(batch, tuple(samples), self.lengths, self._generated_tokens, cut, failures)

    def _samples(self, trained: TrainedPrompt) -> list[Sample]:
        prompt, group = self._task.tokenizer.encode(self._task.prompt(int(trained.prompt.id))), str(trained.prompt)
        drawn = [(self.ended[response.request], response.reward) for response in trained.responses]
        return [
            Sample(
                prompt,
                each.tokens,
                _single(each.logprobs),
                each.versions,
                reward,
                group,
                () if all(each.mask) else each.mask,
            )
            for each, reward in drawn
        ]


def _single(logprobs: Sequence[float]) -> tuple[float, ...]:
    """Rounds to single precision: further digits depend on what ran beside the response, and whether it moved."""
    return tuple(array("f", logprobs))


def _name(request: Request) -> str:
    prompt = request.prompt
    return f"{request.round}/{prompt.epoch}/{prompt.domain}/{prompt.id}/{request.sample}"

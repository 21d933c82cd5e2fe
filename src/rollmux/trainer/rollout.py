"""One round of rollout: the batcher says what is wanted, engines generate it, a scorer rewards it.

Invariants: all responses that end in one sweep over the engines end at the same time, so which engine is asked first
decides nothing; a round ends with idle engines; its samples come in the order of their prompts and sample numbers.
"""

from collections.abc import Callable, Sequence
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
)
from rollmux.runtime.engine import Ended, Engine, FinishReason, Generated, GenerationRequest
from rollmux.trainer.data import Data
from rollmux.trainer.errors import RolloutStuck
from rollmux.trainer.sample import Sample
from rollmux.trainer.scoring import Scored, Scorer
from rollmux.trainer.seeds import response_seed
from rollmux.trainer.settings import Sampling
from rollmux.trainer.tasks import Task

Progress = Callable[[int, int], None]

MOST_FAILURES = 10  # in a round, for each response that it began with: more are no accident


@dataclass(frozen=True, slots=True)
class Rolled:
    """What a round came to. `lengths` are those of all responses that ended by themselves, trained or not."""

    batch: Batch
    samples: tuple[Sample, ...]
    lengths: tuple[int, ...]
    generated_tokens: int  # trained or not


class Rollout:
    """Rounds on these engines, until it is given others."""

    def __init__(
        self, engines: Sequence[Engine], batcher: TailBatcher, data: Data, task: Task, scorer: Scorer,
        sampling: Sampling, seed: int,
    ) -> None:  # fmt: skip
        self.engines = tuple(engines)
        self.batcher, self.data = batcher, data
        self._task, self._scorer, self._sampling, self._seed = task, scorer, sampling, seed
        self._running: dict[str, Request] = {}
        self.ended: dict[Request, Generated] = {}
        self._generated_tokens = 0
        self._failures_left = 0
        self._complete: list[Batch] = []

    def round(self, progress: Progress) -> Rolled:
        """From fresh weights to a batch. `progress` hears how many responses are over, of how many."""
        self.ended.clear()
        self._generated_tokens = 0
        self._tell(RoundStarted())
        self._failures_left = MOST_FAILURES * len(self._running)
        while not self._complete:
            self._sweep()
            progress(len(self.ended), len(self.ended) + len(self._running))
        self._drain()
        return self._rolled(self._complete.pop())

    def update(self, version: int) -> None:
        """The weights were written in place. Harmless if they are told again."""
        for engine in self.engines:
            if engine.version != version:
                engine.update(version)

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    # -- what happens, and what follows from it ------------------------------------------------------------------------

    def _sweep(self) -> None:
        """One step of every engine, then the rewards that are there."""
        self._tell(*self._step())
        is_idle = not any(engine.unfinished for engine in self.engines)
        if is_idle and not self._scorer.pending and not self._complete:
            raise RolloutStuck("nothing is generated or scored, and the round is not complete: an engine lost requests")
        scored = self._scorer.collect(wait=is_idle)
        self._tell(*map(self._rewarded, scored))

    def _step(self) -> list[Event]:
        events: list[Event] = []
        for engine in self.engines:
            for event in engine.step():
                if isinstance(event, Ended):
                    events.append(self._over(self._running.pop(event.id), event))
        return events

    def _over(self, request: Request, ended: Ended) -> Event:
        tokens = len(ended.response.tokens)
        self._generated_tokens += tokens
        if ended.reason is FinishReason.CANCELLED:
            return ResponseAborted(request, tokens)
        if ended.reason is FinishReason.FAILED:
            return self._failed(request, ended.why, tokens)
        self.ended[request] = ended.response
        self._scorer.submit(request, self._task.tokenizer.decode(ended.response.tokens))
        return ResponseGenerated(request, tokens)

    def _rewarded(self, scored: Scored) -> Event:
        if scored.why:
            return self._failed(scored.request, scored.why)
        return ResponseRewarded(scored.request, scored.score)

    def _failed(self, request: Request, why: str, tokens: int = 0) -> Event:
        self._failures_left -= 1
        if self._failures_left < 0:
            raise RolloutStuck(f"{MOST_FAILURES} times as many failures as responses in one round, the last one: {why}")
        return ResponseFailed(request, why, tokens)

    def _tell(self, *events: Event) -> None:
        """Tells the batcher, obeys it, and tells what comes of that."""
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
                names = [_name(request) for request in requests]
                for engine in self.engines:
                    engine.cancel(names)
                self._scorer.cancel(requests)
            case RoundComplete(batch=batch):
                self._complete.append(batch)
        return []

    def _launch(self, request: Request) -> None:
        """On the engine with the least to do. Which one it is changes no token."""
        engine = min(self.engines, key=lambda each: each.unfinished)
        engine.submit(self._request(request))
        self._running[_name(request)] = request

    def _request(self, request: Request) -> GenerationRequest:
        tokenizer, sampling = self._task.tokenizer, self._sampling
        return GenerationRequest(
            _name(request),
            tokenizer.encode(self._task.prompt(int(request.prompt.id))),
            sampling.max_tokens,
            sampling.temperature,
            sampling.top_p,
            response_seed(self._seed, request),
            tokenizer.end_tokens,
        )

    def _drain(self) -> None:
        """How far the aborted ones had come: after this the engines have nothing left to tell."""
        while self._running:
            events = self._step()
            if not events:
                raise RolloutStuck(f"{len(self._running)} aborted responses never ended: an engine lost requests")
            self._tell(*events)

    # -- what a round came to ------------------------------------------------------------------------------------------

    def _rolled(self, batch: Batch) -> Rolled:
        encode = self._task.tokenizer.encode
        samples = []
        for trained in sorted(batch.prompts, key=lambda each: each.prompt.order):
            prompt = encode(self._task.prompt(int(trained.prompt.id)))
            for response in trained.responses:
                drawn = self.ended[response.request]
                samples.append(
                    Sample(prompt, drawn.tokens, drawn.logprobs, drawn.versions, response.reward, str(trained.prompt))
                )
        lengths = tuple(sorted(len(each.tokens) for each in self.ended.values()))
        return Rolled(batch, tuple(samples), lengths, self._generated_tokens)


def _name(request: Request) -> str:
    prompt = request.prompt
    return f"{request.round}/{prompt.epoch}/{prompt.domain}/{prompt.id}/{request.sample}"

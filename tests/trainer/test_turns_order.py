"""What a round of dialogues comes to, and what is told when, is no matter of who draws, or of how long replies take."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollmux.packer import Event, Request, TailBatcher
from rollmux.runtime.engine import Ended, FinishReason, Generated, GenerationRequest, Grown, Unfinished
from rollmux.runtime.engine import Event as Heard
from rollmux.runtime.rewards import Reply, Reward, Status
from rollmux.trainer.data import Data
from rollmux.trainer.rollout import Rolled, Rollout
from rollmux.trainer.scoring import Scored
from rollmux.trainer.settings import Sampling
from rollmux.trainer.tasks import Arithmetic, Needs, build_task
from tests.trainer.jobs import tiny

END = 14
RACES: tuple[dict[str, Any], ...] = (
    {"mode": "sync"},
    {"race": "rewarded", "eta_responses": 1.5},
    {"eta_prompts": 1.5},
)


@dataclass(frozen=True)
class Case:
    """`seed`: of what is said. The rest is how."""

    seed: int
    race: dict[str, Any]
    lag: int
    max_turns: int
    max_length: int


class Engine:
    """Draws what the request's seed says, now this one and now that one."""

    def __init__(self, pace: Random) -> None:
        self._pace = pace
        self.live: dict[str, tuple[GenerationRequest, list[int]]] = {}
        self._events: list[Heard] = []
        self.version = 0

    @property
    def unfinished(self) -> int:
        return len(self.live)

    def submit(self, request: GenerationRequest) -> None:
        self.adopt([Unfinished(request, Generated())])

    def adopt(self, unfinished: Iterable[Unfinished]) -> None:
        for each in unfinished:
            assert each.request.id not in self.live
            self.live[each.request.id] = each.request, list(each.response.tokens)

    def export(self, names: Collection[str] | None = None) -> tuple[Unfinished, ...]:
        taken = [self.live.pop(name) for name in tuple(self.live) if names is None or name in names]
        return tuple(Unfinished(request, _generated(tokens)) for request, tokens in taken)

    def cancel(self, names: Collection[str]) -> None:
        for each in self.export(names):
            self._events.append(Ended(each.request.id, FinishReason.CANCELLED, each.response))

    def suspend(self) -> None: ...

    def resume(self) -> None: ...

    def step(self) -> list[Heard]:
        while self.live and not self._events:
            for name in [name for name in self.live if self._pace.random() < 0.7]:
                self._draw(name)
        events, self._events = self._events, []
        return events

    def _draw(self, name: str) -> None:
        request, tokens = self.live[name]
        wanted = _drawn(request)
        tokens.append(wanted[len(tokens)])
        self._events.append(Grown(name, len(tokens) - 1, _generated(tokens[-1:])))
        if tokens == wanted:
            del self.live[name]
            reason = FinishReason.STOP if tokens[-1] == END else FinishReason.LENGTH
            self._events.append(Ended(name, reason, _generated(tokens)))


def _drawn(request: GenerationRequest) -> list[int]:
    draw = Random(f"{request.seed} {request.prompt}")
    tokens = [draw.randrange(10) for _ in range(request.max_tokens)]
    stop = draw.choice((1, 1, 2, 3, 5, 9, request.max_tokens))
    return [*tokens[: stop - 1], END] if stop < request.max_tokens else tokens


def _generated(tokens: Collection[int]) -> Generated:
    return Generated(tuple(tokens), (-1.0,) * len(tokens), (0,) * len(tokens))


class Scorer:
    """Says what was said before to the same, at once or later."""

    def __init__(self, seed: int, lag: int, pace: Random) -> None:
        self._seed, self._lag, self._pace = seed, lag, pace
        self._tick = 0
        self.asked: dict[Request, Reply] = {}
        self._waiting: dict[Request, tuple[int, float]] = {}

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def ask(self, request: Request, *said: str) -> Reply | None:
        draw = self._draw(request, said)
        texts = ["", *("".join(draw.choices("123*=", k=k)) for k in (1, 4))]
        reply = draw.choice([Reply(), Reply(None, "no"), *map(Reply, texts * 2)])
        if self._pace.random() < 0.2:
            return reply
        self.asked[request] = reply
        return None

    def replies(self, wait_s: float) -> list[tuple[Request, Reply]]:
        there = [request for request in self.asked if self._pace.random() < 0.3]
        return [(request, self.asked.pop(request)) for request in there]

    def submit(self, request: Request, *said: str) -> None:
        self._waiting[request] = self._tick + 1 + self._lag, self._draw(request, (*said, "worth")).random()

    def collect(self, wait: bool) -> list[Scored]:
        self._tick += 1
        last = max(self._tick, next(iter(self._waiting.values()))[0]) if wait and self._waiting else self._tick
        due = [request for request, (tick, _) in self._waiting.items() if tick <= last]
        return [Scored(request, Reward(Status.SCORE, self._waiting.pop(request)[1])) for request in due]

    def cancel(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.asked.pop(request, None)
            self._waiting.pop(request, None)

    def state(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...

    def _draw(self, request: Request, said: object) -> Random:
        return Random(f"{self._seed} {request.prompt} {request.sample} {said}")


class Told(TailBatcher):
    """Notes what it is told."""

    told: list[tuple[Event, ...]]

    def handle(self, *events: Event) -> Any:
        self.told = [*getattr(self, "told", []), events]
        return super().handle(*events)


def played(case: Case, pace: Random, workers: int, comes_and_goes: bool) -> tuple[Rolled, list[tuple[Event, ...]]]:
    """A round, after which nobody is left anywhere."""
    job = tiny(batching=case.race)
    task = build_task(job.task, 0)
    assert isinstance(task, Arithmetic)
    task.needs = Needs([], talks=True)
    engines = [Engine(pace) for _ in range(workers)]
    batcher, scorer = Told(job.batching.terms), Scorer(case.seed, case.lag, pace)
    sampling = Sampling(max_tokens=25, max_turns=case.max_turns)
    data = Data(len(task), case.seed, 0)
    rollout = Rollout(engines, batcher, data, task, scorer, sampling, case.max_length, case.seed)  # type: ignore[arg-type]

    def progress(done: int, total: int) -> None:
        if comes_and_goes and pace.random() < 0.2:
            rollout._workers.share(set(pace.sample(range(workers), pace.randint(1, workers))))

    rolled = rollout.round(progress)
    turns, held = rollout._turns, rollout._workers
    assert not any((turns._talks, turns._asked, held._with, held._rests, scorer.asked))
    assert not any(engine.live for engine in engines)
    return rolled, batcher.told


CASES = st.builds(
    Case, st.integers(0, 10**6), st.sampled_from(RACES), st.integers(0, 4), st.integers(1, 6), st.integers(20, 60)
)


@given(CASES, st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_what_is_told_and_when_is_no_matter_of_replies_workers_and_their_pace(
    case: Case, pace: int, workers: int, comes_and_goes: bool
) -> None:
    assert played(case, Random(pace), workers, comes_and_goes) == played(case, Random(0), 1, comes_and_goes=False)

"""An engine, a reward pool and a data source for tests: random lengths, failures, late words, ties, in virtual time.

Whatever is random is drawn from the seed and the request, so the same request fares alike however it comes to be made.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import strategies as st

from rollmux.packer import (
    Abort,
    AdaptiveEta,
    Batch,
    Batching,
    Command,
    DataEnded,
    Draw,
    EtaPolicy,
    Event,
    Factors,
    KnownLong,
    Launch,
    Prompt,
    PromptDrawn,
    Race,
    Request,
    ResponseAborted,
    ResponseFailed,
    ResponseGenerated,
    ResponseRewarded,
    RoundComplete,
    RoundStarted,
    TailBatcher,
)


@dataclass(frozen=True)
class Setting:
    """One job: its settings, its data and how its world behaves."""

    batching: Batching
    seed: int = 0
    data: int = 7  # prompts of each domain in an epoch
    epochs: int = 3
    ends: int | None = None  # the job is to end after so many rounds
    fails: float = 0.0  # of generations, and of rewards
    refused: float = 0.0  # rewards that are zero: prompts with nothing else are filtered, if anything is
    slow_source: int = 0
    knows_long: bool = False
    adapts: bool = False  # whether the factors follow what was seen

    def batcher(self, state: dict[str, Any] | None = None) -> TailBatcher:
        keep = (lambda responses: any(each.reward for each in responses)) if self.refused else None
        known_long = KnownLong(0.3) if self.knows_long else None
        if state is None:
            return TailBatcher(self.batching, keep, self.eta(), known_long)
        return TailBatcher.from_state(self.batching, state, keep, self.eta(), known_long)

    def eta(self) -> EtaPolicy | None:
        """One of its own for each batcher; it remembers few rounds, so that it forgets within a test."""
        if not self.adapts:
            return None
        start = Factors(self.batching.eta_prompts, self.batching.eta_responses)
        return AdaptiveEta(start, Factors(3.0, 2.0), rounds=4)

    @property
    def domains(self) -> list[str]:
        return [domain for domain, _ in self.batching.lanes]

    def random(self, *of: object) -> Random:
        return Random(repr((self.seed, *of)))

    def length(self, request: Request) -> int:
        """A few tokens, with ties; long prompts are long in every epoch."""
        prompt = request.prompt
        hardness = self.random(prompt.domain, prompt.id).choice((1, 1, 2, 8))
        return hardness * self.random("length", request).randint(1, 4)


@dataclass
class Player:
    """Plays a job until it, its data or the rounds are at their end. `told` and `batches` are what it came to."""

    setting: Setting
    rounds: int = 10**6
    shuffle: Callable[[list[Event]], Sequence[Event]] = tuple  # in which order simultaneous events are told
    at_once: bool = True  # whether simultaneous events are told in one call
    told: list[tuple[tuple[Event, ...], tuple[Command, ...]]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    generated_at: dict[Request, int] = field(default_factory=dict)
    rewarded_at: dict[Request, int] = field(default_factory=dict)
    launched: dict[Request, None] = field(default_factory=dict)  # in their order
    between: Callable[["Player"], None] = lambda player: None  # called before every call
    now: int = 0

    def __post_init__(self) -> None:
        self.batcher = self.setting.batcher()
        self.heap: list[tuple[int, int, Event]] = []
        self.count = 0
        self.aborted: set[Request] = set()
        self.drawn = dict.fromkeys(self.setting.domains, 0)
        self.source_at = dict.fromkeys(self.setting.domains, 0)
        self.ended: set[str] = set()

    def play(self) -> "Player":
        ends = self.setting.ends
        most = self.rounds if ends is None else min(self.rounds, ends)
        while len(self.batches) < most and not (self.batches and self.batches[-1].is_last):
            complete = len(self.batches)
            self.tell([RoundStarted(None if ends is None else ends - complete)])
            while len(self.batches) == complete:
                assert self.heap, "nothing is under way, and the round is not complete: it hangs"
                self.advance()
        return self

    def advance(self) -> None:
        """What happens next, with all that happens at the same time."""
        self.now = self.heap[0][0]
        events = []
        while self.heap and self.heap[0][0] == self.now:
            event = heapq.heappop(self.heap)[2]
            if not (isinstance(event, ResponseRewarded) and event.request in self.aborted):
                events.append(event)
        if self.at_once and events:
            self.tell(self.shuffle(events))
        elif not self.at_once:
            for event in events:
                self.tell([event])

    def tell(self, events: Sequence[Event]) -> None:
        self.between(self)
        commands = self.batcher.handle(*events)
        self.told.append((tuple(events), commands))
        for event in sorted(events, key=repr):
            if isinstance(event, ResponseGenerated):
                self.reward(event.request)
        for command in commands:
            self.obey(command)

    def later(self, delay: int, event: Event) -> None:
        self.count += 1
        heapq.heappush(self.heap, (self.now + delay, self.count, event))

    def obey(self, command: Command) -> None:
        if isinstance(command, Draw):
            assert command.count > 0, "nothing is asked for"
            for _ in range(command.count):
                self.draw(command.domain)
        elif isinstance(command, Launch):
            self.launch(command.request)
        elif isinstance(command, Abort):
            self.abort(command.requests)
        elif isinstance(command, RoundComplete):
            self.batches.append(command.batch)

    def draw(self, domain: str) -> None:
        setting, number = self.setting, self.drawn[domain]
        if number >= setting.data * setting.epochs:
            if domain not in self.ended:
                self.ended.add(domain)
                self.later(max(0, self.source_at[domain] - self.now), DataEnded(domain))
            return
        self.drawn[domain] += 1
        prompt = Prompt(number // setting.data, number % setting.data, domain)
        ready = self.now + setting.random("draw", prompt).randint(0, setting.slow_source)
        self.source_at[domain] = max(ready, self.source_at[domain])  # a source gives its prompts in their order
        self.later(self.source_at[domain] - self.now, PromptDrawn(prompt))

    def launch(self, request: Request) -> None:
        tokens = self.setting.length(request)
        assert request not in self.launched, "a request is made once"
        self.launched[request] = None
        if self.setting.random("engine", request).random() < self.setting.fails:
            self.later(tokens, ResponseFailed(request, "engine", tokens))
        else:
            self.generated_at[request] = self.now + tokens
            self.later(tokens, ResponseGenerated(request, tokens))

    def reward(self, request: Request) -> None:
        rng = self.setting.random("reward", request)
        delay = rng.choice((0, 1, 1, 6))
        if rng.random() < self.setting.fails:
            self.later(delay, ResponseFailed(request, "reward"))
        else:
            self.rewarded_at[request] = self.now + delay
            self.later(delay, ResponseRewarded(request, float(rng.random() >= self.setting.refused)))

    def abort(self, requests: Iterable[Request]) -> None:
        """The engine tells how far they had come, or nothing, or that they were done before it was told."""
        for request in requests:
            assert request in self.launched
            assert request not in self.aborted, "nothing is aborted twice"
            self.aborted.add(request)
            if self.setting.random("abort", request).random() < 0.5:
                self.later(1, ResponseAborted(request, 1))
                self.heap = [
                    each for each in self.heap if getattr(each[2], "request", None) != request or each[1] == self.count
                ]
                heapq.heapify(self.heap)


def batchings(
    most_prompts: int = 5, most_responses: int = 3, races: Sequence[Race] = tuple(Race)
) -> st.SearchStrategy[Batching]:
    """Small batches with every kind of race, one to three domains, and the shortest waits that they allow."""

    @st.composite
    def build(draw: st.DrawFn) -> Batching:
        quotas = draw(st.lists(st.integers(1, most_prompts), min_size=1, max_size=3))
        eta = draw(st.sampled_from((1.0, 1.25, 1.5, 2.0, 3.0)))
        return Batching(
            sum(quotas),
            draw(st.integers(1, most_responses)),
            eta,
            draw(st.sampled_from((1.0, 1.5, 2.0))),
            draw(st.sampled_from(races)),
            {chr(ord("a") + place): quota for place, quota in enumerate(quotas)} if len(quotas) > 1 else (),
            draw(st.integers(max(1, round(eta + 0.4) - 1), 5)),
            draw(st.integers(0, 2)),
        )

    return build()


def settings_of_jobs(batching: st.SearchStrategy[Batching] | None = None, **fixed: Any) -> st.SearchStrategy[Setting]:
    free: dict[str, st.SearchStrategy[Any]] = {
        "seed": st.integers(0, 10**6),
        "data": st.integers(1, 25),
        "epochs": st.integers(1, 3),
        "ends": st.none() | st.integers(1, 12),
        "fails": st.sampled_from((0.0, 0.0, 0.1, 0.5)),
        "refused": st.sampled_from((0.0, 0.0, 0.3, 0.7)),
        "slow_source": st.sampled_from((0, 0, 3)),
        "knows_long": st.booleans(),
    }
    free |= {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fixed.items()}
    return st.builds(Setting, batchings() if batching is None else batching, **free)

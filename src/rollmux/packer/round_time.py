"""How long a round of rollouts takes on replicas of one size, predicted from event to event, never token by token.

Invariant: running requests never hold more KV than the replica has room for, and every response that the round waits
for is generated to its end, however often it is preempted.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil

from rollmux.checks import MAX_COUNT, MAX_SECONDS, Checks

GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, visit the unit interval evenly and in no order of size


@dataclass(frozen=True, slots=True)
class DecodeRates:
    """What one replica of `size` tensor-parallel GPUs does.

    A decode step takes `base_s` (weights read, launches, reductions), `per_request_s` for each running request and
    `per_kv_token_s` for each token whose KV is read. The arithmetic, `compute_s` for each request, adds only what it
    takes beyond `hidden_s`, while weights are read. Prefill, also of preempted requests, holds decoding up.
    """

    size: int
    kv_room_tokens: int
    base_s: float
    per_request_s: float
    per_kv_token_s: float
    prefill_tokens_per_s: float
    compute_s: float = 0.0
    hidden_s: float = 0.0

    def __post_init__(self) -> None:
        checks = Checks("decode_rates")
        checks.whole("size", self.size, 1, 1024, "give the GPUs of one replica")
        checks.whole("kv_room_tokens", self.kv_room_tokens, 0, MAX_COUNT, "give the tokens that one replica can hold")
        for name in ("base_s", "per_request_s", "per_kv_token_s", "compute_s", "hidden_s"):
            checks.number(name, getattr(self, name), 0.0, MAX_SECONDS, "give seconds of one decode step")
        checks.number("prefill_tokens_per_s", self.prefill_tokens_per_s, 1e-9, 1e15, "give tokens per second")
        checks.require()

    def decode_s(self, steps: int, running: int, kv_tokens: int) -> float:
        """Seconds of so many steps in a row, each of which adds a token to every running request."""
        kv_reads = steps * kv_tokens + running * (steps * (steps - 1) // 2)
        computing_s = max(0.0, self.compute_s * running - self.hidden_s)
        return steps * (self.base_s + self.per_request_s * running + computing_s) + self.per_kv_token_s * kv_reads


@dataclass(frozen=True, slots=True)
class RoundLoad:
    """What a round generates: `requests` responses whose lengths are spread like `lengths`, all equally likely.

    The round is over at its first `needed` responses (None: at all of them); the others are aborted then.
    """

    requests: int
    lengths: tuple[int, ...]
    prompt_tokens: int = 0
    needed: int | None = None

    def __post_init__(self) -> None:
        checks = Checks("round_load")
        counted = checks.whole("requests", self.requests, 1, MAX_COUNT, "give the responses that are launched")
        if counted and self.needed is not None:
            checks.whole("needed", self.needed, 1, self.requests, "leave it out where the round waits for all")
        checks.whole("prompt_tokens", self.prompt_tokens, 0, MAX_COUNT, "give the mean length of a prompt")
        if not self.lengths:
            checks.report("lengths", self.lengths, "at least one length", "give observed lengths or quantiles")
        for place, length in enumerate(self.lengths):
            checks.whole(f"lengths[{place}]", length, 1, MAX_COUNT, "give tokens, at least one")
        checks.require()

    def share(self, replicas: int) -> tuple[list[int], int]:
        """The lengths on one of `replicas`, in an order that has nothing to do with length; how many must be done.

        The longest length is always among them, for the round waits for it, and of several lengths the shortest too.
        """
        count = ceil(self.requests / replicas)
        needed = ceil(count * (self.requests if self.needed is None else self.needed) / self.requests)
        ordered, last = sorted(self.lengths), len(self.lengths) - 1
        places = sorted(range(count), key=lambda i: i * GOLDEN % 1.0)
        return [ordered[round(last * i / (count - 1))] if count > 1 else ordered[-1] for i in places], needed


@dataclass(frozen=True, slots=True)
class Prediction:
    """A round's time, and what a lack of KV room cost on all replicas together."""

    round_s: float
    preemptions: int
    recomputed_tokens: int


def predict(rates: DecodeRates, load: RoundLoad, gpus: int) -> Prediction | None:
    """The round on all GPUs as replicas of this size; None where a replica can't hold the longest request."""
    replicas = gpus // rates.size
    if not replicas or load.prompt_tokens + max(load.lengths) > rates.kv_room_tokens:
        return None
    lengths, needed = load.share(replicas)
    replica = _Replica(rates, deque((load.prompt_tokens, length) for length in lengths))
    replica.run(needed)
    return Prediction(replica.elapsed_s, replica.preemptions * replicas, replica.recomputed * replicas)


@dataclass(slots=True)
class _Replica:
    """One engine: first come, first served; when KV is full, the newest request goes back to the head of the queue."""

    rates: DecodeRates
    waiting: deque[tuple[int, int]]  # tokens to prefill, tokens to generate
    step: int = 0
    elapsed_s: float = 0.0
    kv: int = 0
    done: int = 0
    preemptions: int = 0
    recomputed: int = 0
    running: dict[int, tuple[int, int]] = field(default_factory=dict)  # by entry, oldest first: last step, last length
    ends: list[tuple[int, int]] = field(default_factory=list)  # heap of (last step, entry), also of the preempted
    entries: int = 0

    def run(self, needed: int) -> None:
        while self.done < needed:
            self.admit()
            ending = self.next_end()
            full = self.step + (self.rates.kv_room_tokens - self.kv) // len(self.running)
            self.decode(min(ending, full) - self.step)
            if self.step == ending:
                self.finish()
            else:
                self.preempt()

    def admit(self) -> None:
        """Admits the requests that fit, with a token more for each that runs; a head that does not fit holds up all.

        So a preempted request waits until another one has ended.
        """
        while self.waiting and self.kv + self.waiting[0][0] + len(self.running) + 1 <= self.rates.kv_room_tokens:
            context, left = self.waiting.popleft()
            self.elapsed_s += context / self.rates.prefill_tokens_per_s
            self.kv += context
            self.running[self.entries] = (self.step + left, context + left)
            heappush(self.ends, (self.step + left, self.entries))
            self.entries += 1

    def next_end(self) -> int:
        while self.ends[0][1] not in self.running:
            heappop(self.ends)
        return self.ends[0][0]

    def decode(self, steps: int) -> None:
        self.elapsed_s += self.rates.decode_s(steps, len(self.running), self.kv)
        self.kv += steps * len(self.running)
        self.step += steps

    def finish(self) -> None:
        while self.running and self.next_end() == self.step:
            self.kv -= self.running.pop(self.ends[0][1])[1]
            self.done += 1

    def preempt(self) -> None:
        end, length = self.running.popitem()[1]
        context, left = length - (end - self.step), end - self.step
        self.kv -= context
        self.recomputed += context
        self.preemptions += 1
        self.waiting.appendleft((context, left))

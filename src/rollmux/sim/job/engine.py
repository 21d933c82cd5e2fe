"""One replica of the rollout engine: continuous batching from event to event, never token by token.

All running requests gain a token in each step, and the time of `k` steps has a closed form. So a replica knows when
its next request ends or its room is full, and is updated only then, or when a caller needs its state.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, sqrt
from typing import Generic, Protocol, TypeVar

from rollmux.sim.job.machine import Rates


class Work(Protocol):
    """The lengths of a request, which are all that the engine needs to know."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def tokens(self) -> int: ...


R = TypeVar("R", bound=Work)


@dataclass(slots=True)
class _Running(Generic[R]):
    """A request in the batch: the step at which it ends, the step at which it came in, and the tokens it had then."""

    request: R
    end: int
    start: int
    had: int
    order: int
    over: bool = False


class Engine(Generic[R]):
    """Requests wait, run, are preempted if room is short, and end. Times are seconds of one clock."""

    __slots__ = (
        "_by_order", "_ends", "_queue", "_ready", "_steps", "_waiting_had", "admitted", "kv_tokens", "now",
        "preemptions", "rates", "recomputed", "running", "slots",
    )  # fmt: skip

    def __init__(self, rates: Rates, slots: int, now: float = 0.0) -> None:
        self.rates, self.slots, self.now = rates, slots, now
        self.running: dict[R, _Running[R]] = {}
        self.preemptions = self.recomputed = self.admitted = 0
        self._by_order: list[_Running[R]] = []  # admitted requests, the latest at the end
        self._ends: list[tuple[int, int, _Running[R]]] = []
        self._queue: deque[R] = deque()
        self._waiting_had: dict[R, int] = {}
        self.kv_tokens = 0  # tokens whose keys and values are held
        self._steps = 0
        self._ready = now  # the time up to which steps are counted, or at which prefilling is done

    @property
    def load(self) -> int:
        """Requests that run or wait."""
        return len(self.running) + len(self._queue)

    def submit(self, request: R, had: int = 0) -> None:
        """The request waits for room. `had` tokens come with it: their keys and values are computed again."""
        if had:
            self._waiting_had[request] = had
        self._queue.append(request)

    def admit(self) -> None:
        """Lets waiting requests in, as long as there is room for their tokens and for a step of all requests."""
        queue, rates = self._queue, self.rates
        prefill, before = 0, self.admitted
        while queue and len(self.running) < self.slots:
            request = queue[0]
            had = self._waiting_had.get(request, 0)
            need = request.prompt_tokens + had
            if self.kv_tokens + need + len(self.running) + 1 > rates.room_tokens and self.running:
                break
            queue.popleft()
            self._waiting_had.pop(request, None)
            prefill += need
            self.recomputed += had
            self.admitted += 1
            left = max(1, request.tokens - had)
            entry = _Running(request, self._steps + left, self._steps, had, self.admitted)
            self.running[request] = entry
            self._by_order.append(entry)
            heappush(self._ends, (entry.end, entry.order, entry))
            self.kv_tokens += need
        if self.admitted > before:
            self._ready = max(self._ready, self.now) + prefill * rates.prefill_token_s

    def next_at(self) -> float:
        """When the next request ends or one must be preempted; infinite if none runs.

        When requests leave, the step under way becomes shorter: it may have ended before now, and then ends now.
        """
        steps = self._steps_to_event()
        return inf if steps is None else max(self.now, self._ready + self._takes(steps))

    def _steps_to_event(self) -> int | None:
        ends = self._ends
        while ends and ends[0][2].over:
            heappop(ends)
        if not ends:
            return None
        to_end = ends[0][0] - self._steps
        running = len(self.running)
        if running == 1:
            return to_end  # alone, it may use all room
        return min(to_end, max(1, (self.rates.room_tokens - self.kv_tokens) // running))

    def _takes(self, steps: int) -> float:
        running = len(self.running)
        rates = self.rates
        each = rates.step_s(running) + rates.kv_token_s * self.kv_tokens
        return steps * each + rates.kv_token_s * running * steps * (steps - 1) / 2

    def advance(self, now: float) -> list[R]:
        """Updates the replica to this time, which is not after its next event; returns the requests that have ended."""
        start, self.now = self._ready, now
        if not self.running or now < start:
            return []
        due = self._steps_to_event()
        assert due is not None
        steps = due if now >= start + self._takes(due) - 1e-9 else min(due, self._steps_in(now - start))
        self._steps += steps
        self.kv_tokens += steps * len(self.running)
        self._ready = now if steps == due else start + self._took(steps)
        ended = []
        while self._ends and (self._ends[0][2].over or self._ends[0][0] <= self._steps):
            entry = heappop(self._ends)[2]
            if not entry.over:
                ended.append(entry.request)
                self._drop(entry)
        if self.running and self.kv_tokens + len(self.running) > self.rates.room_tokens:
            self._preempt()
        return ended

    def _took(self, steps: int) -> float:
        """The time that the steps just made took."""
        self.kv_tokens -= steps * len(self.running)
        took = self._takes(steps)
        self.kv_tokens += steps * len(self.running)
        return took

    def _steps_in(self, seconds: float) -> int:
        running, rates = len(self.running), self.rates
        grows = rates.kv_token_s * running / 2
        each = rates.step_s(running) + rates.kv_token_s * self.kv_tokens - grows
        if grows <= 0:
            return int(seconds / each)
        return int((sqrt(each * each + 4 * grows * seconds) - each) / (2 * grows))

    def _preempt(self) -> None:
        """Preempts requests until there is room: those admitted last go first, and come back first, too."""
        while len(self.running) > 1 and self.kv_tokens + len(self.running) > self.rates.room_tokens:
            entry = self._by_order.pop()
            if entry.over:
                continue
            had = self.tokens_of(entry.request)
            self._drop(entry)
            self.preemptions += 1
            self._waiting_had[entry.request] = had
            self._queue.appendleft(entry.request)

    def tokens_of(self, request: R) -> int:
        """How many tokens a request has got so far."""
        entry = self.running.get(request)
        if entry is None:
            return self._waiting_had.get(request, 0)
        return min(request.tokens, entry.had + self._steps - entry.start)

    def remove(self, request: R) -> int:
        """Takes a request out, running or waiting; returns the tokens it had."""
        had = self.tokens_of(request)
        entry = self.running.get(request)
        if entry is not None:
            self._drop(entry)
        else:
            self._queue.remove(request)
            self._waiting_had.pop(request, None)
        return had

    def _drop(self, entry: _Running[R]) -> None:
        entry.over = True
        del self.running[entry.request]
        self.kv_tokens -= entry.request.prompt_tokens + entry.had + self._steps - entry.start
        if len(self._by_order) > 2 * len(self.running) + 64:
            self._by_order = [e for e in self._by_order if not e.over]
            self._ends = [e for e in self._ends if not e[2].over]
            heapify(self._ends)

    def requests(self) -> list[R]:
        """All requests: those that run, then those that wait."""
        return [*self.running, *self._queue]

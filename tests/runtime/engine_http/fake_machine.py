"""What stands behind the fake server: weights, memory and caches that can be told apart by the tokens drawn.

A token is a matter of the weights, the text before it, and the draw; of stale keys and values too, if there are any.
Invariant: what a real server would crash at kills it: it is `dead`, and answers nothing but 500.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from time import monotonic

from tests.runtime.engine_http.faults import Faults

VOCABULARY = 1000
WEIGHTS_BYTES, CACHE_BYTES, GRAPH_BYTES, DRIVER_BYTES = 1000, 3000, 40, 60
BASE_BYTES = GRAPH_BYTES + DRIVER_BYTES  # what stays
BYTES = {"weights": WEIGHTS_BYTES, "kv_cache": CACHE_BYTES, "cuda_graph": GRAPH_BYTES}


def draw(weights: str, context: tuple[int, ...], luck: tuple[int, int] | None) -> tuple[int, float]:
    """`luck`: seed and number of the draw; none is greedy. Token 0 is never drawn."""
    digest = blake2b(repr((weights, context, luck)).encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest[:4]) % (VOCABULARY - 1), -(1 + int.from_bytes(digest[4:]) % 4000) / 1000


def greedy(weights: str, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """What a sound server answers."""
    context = prompt
    for _ in range(count):
        context += (draw(weights, context, None)[0],)
    return context[len(prompt) :]


@dataclass
class Machine:
    """All of it under one lock."""

    faults: Faults = field(default_factory=Faults)
    weights: str = "base"
    version: str = "default"
    asleep: set[str] = field(default_factory=set)
    paused: bool = False
    frozen: bool = False  # not even what is aborted gets on
    dead: str = ""
    updating: bool = False
    torn: str = ""  # vLLM: what came, or began to come, in an update of which no end was made
    late_pauses: int = 0  # those that found something running: SGLang looks again after a second
    sleeps: int = 0
    slept_at_s: float = 0.0
    kept: int = 0
    running: dict[str, str] = field(default_factory=dict)  # name: "runs" or "abort"
    queue: set[str] = field(default_factory=set)  # names of those for whom there is no room yet
    readers: dict[str, Callable[[], bool]] = field(default_factory=dict)  # of these: whether they are gone
    cache: dict[tuple[int, ...], tuple[str, int]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))

    def held(self) -> int:
        with self.changed:
            leaked = self.faults.leak_bytes * self.sleeps
            late = self.asleep and monotonic() - self.slept_at_s < self.faults.frees_after_s
            awake = sum(size for tag, size in BYTES.items() if late or tag not in self.asleep)
            return DRIVER_BYTES + leaked + awake + self.kept + (self.faults.holds_bytes if self.asleep else 0)

    def kill(self, why: str) -> None:
        self.dead = self.dead or why

    def pause(self, keep: bool) -> None:
        with self.changed:
            self.paused = True
            if not keep:
                self.abort((*self.running, *self.queue))

    def proceed(self) -> None:
        with self.changed:
            if self.asleep:
                self.kill(f"proceeds while {sorted(self.asleep)} sleep")
            self.paused = self.frozen = False
            self.changed.notify_all()

    def abort(self, names: tuple[str, ...]) -> None:
        with self.changed:
            for name in names:
                self.queue.discard(name)
                if name in self.running:
                    self.running[name] = "abort"
            self.changed.notify_all()

    def drained(self, *, unread: bool, within_s: float = 5.0) -> bool:
        """Whether nothing runs any more; or, but for `unread`, nothing to which somebody still listens."""
        until = monotonic() + within_s
        with self.changed:
            self.late_pauses += bool(self.running)
            while any(unread or not gone() for gone in self.readers.values()) and monotonic() < until:
                self.changed.wait(0.005)
            return not self.running

    def sleep(self, *tags: str) -> None:
        with self.changed:
            if self.running:
                self.kill("sleeps while requests run")
            self.asleep = set(tags)
            self.sleeps += 1
            self.slept_at_s = monotonic()
            self.kept = 0
            if self.faults.gibberish:
                self.weights = f"damaged {self.weights}"

    def wake(self, tag: str) -> None:
        with self.changed:
            if tag == "kv_cache" and "weights" in self.asleep:
                self.kill("wakes the cache before the weights")
            self.asleep.discard(tag)

    def load(self, weights: str) -> None:
        with self.changed:
            if "weights" in self.asleep:
                self.kill("writes weights that sleep")
            if self.running and not self.paused:
                self.kill("writes weights while requests run")
            self.weights, self.kept = weights, self.faults.keeps_bytes

    def invalidate(self) -> None:
        with self.changed:
            if "kv_cache" in self.asleep:
                self.kill("flushes a cache that sleeps")
            self.cache.clear()

    def restart(self) -> None:
        """Another process, at the same address."""
        self.weights, self.version, self.updating, self.torn = "base", "default", False, ""
        self.cache.clear()

    def begin(self, name: str, prompt: tuple[int, ...], gone: Callable[[], bool]) -> str | None:
        """Waits until it may run, or nobody listens any more; what it draws with from there on. None: it was aborted
        before."""
        with self.changed:
            while self.paused:  # not among those that a pause aborts
                self.changed.wait(0.005)
                if gone():
                    raise BrokenPipeError
            self.queue.add(name)
            while len(self.running) >= self.faults.room or self.paused:
                self.changed.wait(0.005)
                if name not in self.queue:
                    return None
                if gone():
                    self.queue.discard(name)
                    raise BrokenPipeError
            self.queue.discard(name)
            self.running[name], self.readers[name] = "runs", gone
            if self.asleep:
                self.kill(f"generates while {sorted(self.asleep)} sleep")
            now = (self.weights, self.sleeps)
            stale = [was for text, was in self.cache.items() if prompt[: len(text)] == text and was != now]
            self.cache[prompt] = now
            return f"{self.weights} upon the stale cache of {stale[0]}" if stale else self.weights

    def goes_on(self, name: str) -> bool:
        """Waits while it is frozen; whether it may draw its next token."""
        with self.changed:
            self.changed.wait_for(lambda: not self.frozen and (not self.paused or self.running[name] == "abort"))
            return self.running[name] == "runs"

    def draws_with(self, began_with: str) -> str:
        """Where weights came in beneath its keys and values, that is to be seen in what it draws."""
        return began_with if began_with.startswith(self.weights) else f"{self.weights} upon keys of {began_with}"

    def end(self, name: str) -> None:
        with self.changed:
            self.running.pop(name, None)
            self.readers.pop(name, None)
            self.changed.notify_all()

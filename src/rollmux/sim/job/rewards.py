"""How long rewards take: a sandbox over a pool of workers, a judge model on the servers, and plain rules.

A pool is a queue with a number of servers: work comes at one time and is over at another. The behaviour of a program in
the sandbox is drawn from the prompt and the response only, so every system meets the same programs.
"""

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf, sqrt
from random import Random
from statistics import NormalDist
from typing import Generic, TypeVar

K = TypeVar("K")

# How long the tests of a response run in a sandbox, in seconds at these shares of all responses, and the share that
# runs into a limit of 30 s (RollPacker, arXiv 2509.21009, figure 7a: hardly anything lies between 2 s and the limit).
TEST_SHARES = (0.0, 0.005, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.93, 0.94, 0.95)
TEST_S = (0.1, 0.13, 0.152, 0.174, 0.213, 0.248, 0.278, 0.313, 0.356, 0.444, 0.656, 0.868, 1.0, 1.05, 1.938)
HANGS = 0.05
# Programs for one prompt hang alike, and two correct ones take about as long: the part of hanging that the prompt
# explains, and the spread of a run's logarithm. The figure shows neither.
HANGS_ALIKE, RUN_SPREAD = 0.3, 0.1
HANGING_S = 600.0
# The time limit of every test if limits are not learnt.
CEILING_S = 30.0
_HANGING_SCORE = NormalDist().inv_cdf(1 - HANGS)


@dataclass(frozen=True, slots=True)
class Program:
    """A response's program in the sandbox: how long its tests run if nobody kills them, and whether they then pass."""

    seconds: float
    correct: bool


def reference_s(heaviness: float) -> float:
    """How long the tests of a prompt run on a typical program: prompts have the same quantiles as single runs."""
    share = NormalDist().cdf(heaviness) * TEST_SHARES[-1]
    i = min(bisect_right(TEST_SHARES, share), len(TEST_SHARES) - 1)
    part = (share - TEST_SHARES[i - 1]) / (TEST_SHARES[i] - TEST_SHARES[i - 1])
    return TEST_S[i - 1] + part * (TEST_S[i] - TEST_S[i - 1])


def drawn_program(heaviness: float, looseness: float, rng: Random, right: float) -> Program:
    """One program for a prompt whose tests are this heavy and make programs hang this easily (normal numbers)."""
    score = sqrt(HANGS_ALIKE) * looseness + sqrt(1 - HANGS_ALIKE) * rng.gauss(0.0, 1.0)
    if score > _HANGING_SCORE:
        return Program(HANGING_S, correct=False)
    seconds = reference_s(heaviness) * rng.lognormvariate(0.0, RUN_SPREAD)
    return Program(seconds, rng.random() < right)


class Pool(Generic[K]):
    """Servers that take work in the order in which it comes. Work can be called off while it waits or runs."""

    __slots__ = ("_begun", "_ends", "_free", "_numbers", "_waiting")

    def __init__(self, servers: int) -> None:
        self._free = servers
        self._waiting: dict[K, float] = {}
        self._begun: dict[K, tuple[float, int]] = {}
        self._ends: list[tuple[float, int, K]] = []
        self._numbers = count()

    def submit(self, key: K, work_s: float, now: float) -> None:
        self._waiting[key] = work_s
        self._serve(now)

    def cancel(self, key: K, now: float) -> bool:
        """Calls the work off; says whether there was any."""
        if self._waiting.pop(key, None) is not None:
            return True
        if self._begun.pop(key, None) is None:
            return False
        self._free += 1
        self._serve(now)
        return True

    def next_at(self) -> float:
        """When the next piece of work is over."""
        ends = self._ends
        while ends and self._begun.get(ends[0][2]) != ends[0][:2]:
            heappop(ends)
        return ends[0][0] if ends else inf

    def advance(self, now: float) -> list[K]:
        """The keys of work that is over at this time."""
        over = []
        while self.next_at() <= now:
            key = heappop(self._ends)[2]
            del self._begun[key]
            self._free += 1
            over.append(key)
        self._serve(now)
        return over

    def _serve(self, now: float) -> None:
        while self._free and self._waiting:
            key = next(iter(self._waiting))
            work_s = self._waiting.pop(key)
            self._free -= 1
            ends = (now + work_s, next(self._numbers))
            self._begun[key] = ends
            heappush(self._ends, (*ends, key))

"""Goals and how far they are met, means with confidence intervals, and work that is spread over the cores."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from math import log
from multiprocessing import get_context
from typing import TypeVar

from rollmux.sim.sweep import Interval

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and what it should be: at most the limit or, where more is better, at least."""

    name: str
    value: float
    limit: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    @property
    def ratio(self) -> float:
        return self.value / self.limit

    def line(self) -> str:
        """The goal in one line."""
        side = "at most" if self.at_most else "at least"
        return f"{self.name}: {self.value:,.4g}, goal {side} {self.limit:,g}; ratio {self.ratio:.3g}; met: {self.met}"

    def row(self) -> dict[str, object]:
        """The goal as plain data."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


def show(goals: Sequence[Goal]) -> list[dict[str, object]]:
    """Print each goal; they are returned as plain data."""
    for goal in goals:
        print(goal.line())
    return [goal.row() for goal in goals]


def told(interval: Interval | None, digits: int = 3) -> str:
    """A mean with half its confidence interval, as it stands in a table."""
    if interval is None:
        return "-"
    if interval.half_width is None:
        return f"{interval.mean:.{digits}f}"
    return f"{interval.mean:.{digits}f} ±{interval.half_width:.{digits}f}"


def per_dollar(iterations_per_s: float, usd_per_hour: float) -> float:
    """Iterations for a dollar."""
    return iterations_per_s * 3600 / usd_per_hour


def growth(small: tuple[float, float], large: tuple[float, float]) -> float:
    """The power with which a figure grows from one size to another: 1 is in proportion, 2 as the square."""
    return log(large[1] / small[1]) / log(large[0] / small[0])


def spread(do: Callable[[A], B], items: Sequence[A], workers: int) -> list[B]:
    """Does the same to all items in so many fresh processes; results come in the order of the items."""
    if workers == 1 or len(items) < 2:
        return [do(item) for item in items]
    with ProcessPoolExecutor(min(workers, len(items)), get_context("spawn")) as executor:
        return list(executor.map(do, items))

"""One table of a benchmark: rows with the paper's figures beside ours, notes on what the paper lacks, and goals."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.figures.goals import Goal, show
from benchmarks.harness import table


@dataclass(frozen=True, slots=True)
class Part:
    """One table."""

    title: str
    rows: list[dict[str, object]]
    words: tuple[str, ...]
    goals: list[Goal] = field(default_factory=list)


def beside(ours: float, paper: float | None) -> dict[str, object]:
    """Our figure, the paper's, and how many times it ours is."""
    return {"ours": ours, "paper's": "-" if paper is None else paper, "ratio": "-" if paper is None else ours / paper}


def off(ours: float, paper: float) -> float:
    """How far ours is from the paper's, whichever is greater."""
    return abs(ours / paper - 1)


def shown(parts: Iterable[Part]) -> dict[str, object]:
    """Prints the tables; they are returned as plain data."""
    rows: list[dict[str, object]] = []
    goals: list[dict[str, object]] = []
    words: dict[str, str] = {}
    for part in parts:
        print(f"\n{part.title}")
        table(part.rows)
        print(*part.words, sep="\n")
        goals += show(part.goals)
        rows += [{"table": part.title, **row} for row in part.rows]
        words[part.title] = " ".join(part.words)
    return {"rows": rows, "unsaid": words, "goals": goals}

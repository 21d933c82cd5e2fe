"""The figures of the runs: pure arithmetic over what the controllers have seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from rollmux.errors import RollmuxError
from rollmux.protocol.history import HistoryView, SpanView
from rollmux.report.live import spans_of
from rollmux.sim.outcome import Span

FINISHED = "finished"
LEAST_STEPS = 2


class NotSideBySide(RollmuxError):
    """The jobs were not beside each other for long enough to measure anything."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A run as its controller saw it. What its jobs did between `from_s` and `to_s` counts."""

    history: HistoryView
    rewards: dict[str, tuple[float, ...]]  # by job, of each step
    from_s: float
    to_s: float

    @property
    def spans(self) -> tuple[Span, ...]:
        return spans_of(self.history)

    def steps_s(self, job: str) -> list[float]:
        """How long each step took: from the end of the one before to its own end."""
        ends = [end for end in step_ends(self.history, job) if self.from_s <= end <= self.to_s]
        return [end - before for before, end in pairwise(ends)]

    def phase_s(self, job: str, kind: str) -> list[float]:
        """How long each phase took once its state was there."""
        mine = [span for span in finished(self.history, job) if span.kind == kind]
        return [(span.ended_s or 0.0) - (span.started_s or 0.0) for span in mine if self.from_s <= span.began_s]

    def switches_s(self) -> list[float]:
        """How long it took to move each state in."""
        loads = [span for span in self.history.spans if span.load and span.started_s is not None]
        return [(span.started_s or 0.0) - span.began_s for span in loads if self.from_s <= span.began_s <= self.to_s]

    def idle(self, nodes: int) -> float:
        """The part of the nodes' time in which no job was at work on them."""
        total_s = nodes * (self.to_s - self.from_s)
        busy_s = sum(max(0.0, min(span.end_s, self.to_s) - max(span.start_s, self.from_s)) for span in self.spans)
        return 1.0 - busy_s / total_s


def measured(history: HistoryView, rewards: dict[str, tuple[float, ...]]) -> Measured:
    """The run from when all jobs have made a step until one has made its last: in this time all of them are there."""
    ends = [step_ends(history, job) for job in rewards]
    from_s, to_s = max(each[0] for each in ends), min(each[-1] for each in ends)
    if to_s < from_s:
        raise NotSideBySide(
            f"{' and '.join(rewards)} had no place beside each other: by what their phases took alone, "
            "together they would not keep their SLO. This machine was busy, or is unlike those that the demo was made "
            "for; try again"
        )
    if any(sum(from_s <= end <= to_s for end in each) < LEAST_STEPS for each in ends):
        raise NotSideBySide(f"{', '.join(rewards)}: fewer than {LEAST_STEPS} steps side by side; try more --steps")
    return Measured(history, rewards, from_s, to_s)


def step_ends(history: HistoryView, job: str) -> list[float]:
    """When each step of the job was done, which is the end of its last phase."""
    return [span.ended_s or 0.0 for span in finished(history, job) if span.kind == "sync"]


def finished(history: HistoryView, job: str) -> list[SpanView]:
    spans = [span for span in history.spans if span.job == job and span.how == FINISHED]
    return sorted(spans, key=lambda span: span.ended_s or 0.0)


@dataclass(frozen=True, slots=True)
class JobFigures:
    """One job, alone and woven, by its median steps: what else the machine does for a moment is not the job's pace."""

    job: str
    alone_s: float
    woven_s: float
    mean_slowdown: float  # of all steps
    slo: float
    steps: int  # how many were made in both runs
    same_rewards: bool
    rewards: tuple[float, ...]  # of each step, woven

    @property
    def slowdown(self) -> float:
        return self.woven_s / self.alone_s


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of all jobs."""

    jobs: tuple[JobFigures, ...]
    idle_alone: float  # the idle part of the nodes' time, with two nodes for each job
    idle_woven: float
    switch_s: float | None

    @property
    def gain(self) -> float:
        """Work for a node-hour, woven over alone: each job's steps are worth the node-hours that they take alone."""
        return sum(1 / job.slowdown for job in self.jobs)

    @property
    def mean_gain(self) -> float:
        """Like `gain`, by the mean of all steps: this includes whatever else the machine did meanwhile."""
        return sum(1 / job.mean_slowdown for job in self.jobs)


def figures(alone: Sequence[Measured], woven: Measured, slo: float) -> Figures:
    """The figures of all runs; each run of `alone` has one job."""
    found = [_figures(job, run, woven, slo) for run in alone for job in run.rewards]
    switches = woven.switches_s()
    return Figures(
        tuple(found),
        fmean(run.idle(2) for run in alone),
        woven.idle(2),
        fmean(switches) if switches else None,
    )


def _figures(job: str, alone: Measured, woven: Measured, slo: float) -> JobFigures:
    before, after = alone.rewards[job], woven.rewards[job]
    alone_s, woven_s = alone.steps_s(job), woven.steps_s(job)
    steps = min(len(before), len(after))
    return JobFigures(
        job,
        median(alone_s),
        median(woven_s),
        fmean(woven_s) / fmean(alone_s),
        slo,
        steps,
        before[:steps] == after[:steps],
        after,
    )

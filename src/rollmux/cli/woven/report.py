"""The demo's runs as the outcomes that reports draw: the figures of a simulated run, made from what controllers saw."""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace

from rollmux.cli.woven.figures import Figures, JobFigures, Measured, step_ends
from rollmux.report.live import SWITCH
from rollmux.sim.outcome import JobOutcome, Level, Outcome, PoolHours, Span
from rollmux.sim.workload import HOUR_S

ALONE, WOVEN = "alone, nodes for each", "woven, on the nodes of one"


def outcomes(alone: Sequence[Measured], woven: Measured, found: Figures) -> tuple[Outcome, Outcome]:
    """The outcome of all jobs alone, side by side although each had a controller of its own; and that of all woven."""
    before = [replace(job, woven_s=job.alone_s) for job in found.jobs]
    apart = [_outcome(ALONE, run, [job]) for run, job in zip(alone, before, strict=True)]
    return _side_by_side(apart), _outcome(WOVEN, woven, found.jobs)


def _outcome(what: str, run: Measured, jobs: Sequence[JobFigures]) -> Outcome:
    begin_s = min((span.start_s for span in run.spans), default=0.0)
    spans = tuple(replace(span, start_s=span.start_s - begin_s, end_s=span.end_s - begin_s) for span in run.spans)
    end_s = max((span.end_s for span in spans), default=0.0)
    nodes = {pool.pool: pool for pool in run.history.pools}
    hours = {name: _hours(_of(spans, name), pool.nodes, end_s) for name, pool in nodes.items()}
    prices = {name: pool.usd_per_hour for name, pool in nodes.items()}
    return Outcome(
        policy=what,
        usd_total=sum(hours[name].paid * prices[name] for name in nodes),
        makespan_h=end_s / HOUR_S,
        fluid_usd=sum(hours[name].busy * prices[name] for name in nodes),
        whole_node_usd=0.0,  # not known here: it means something only with many nodes
        rollout=hours["rollout"],
        train=hours["train"],
        peak_rollout=nodes["rollout"].nodes,
        peak_train=nodes["train"].nodes,
        moves=0,
        jobs=tuple(_job(run, job, begin_s) for job in jobs),
        levels=(
            Level(0.0, nodes["rollout"].nodes, nodes["train"].nodes, _usd_per_hour(run), len(jobs), 0),
            Level(end_s, 0, 0, 0.0, 0, 0),
        ),
        spans=spans,
    )


def _usd_per_hour(run: Measured) -> float:
    return sum(pool.nodes * pool.usd_per_hour for pool in run.history.pools)


def _of(spans: Iterable[Span], pool: str) -> list[Span]:
    return [span for span in spans if span.node.startswith(f"{pool}-")]


def _hours(spans: Sequence[Span], nodes: int, end_s: float) -> PoolHours:
    switch_h = sum(span.end_s - span.start_s for span in spans if span.kind == SWITCH) / HOUR_S
    busy_h = sum(span.end_s - span.start_s for span in spans) / HOUR_S - switch_h
    paid_h = nodes * end_s / HOUR_S
    return PoolHours(paid_h, busy_h, switch_h, max(0.0, paid_h - busy_h - switch_h))


def _job(run: Measured, job: JobFigures, begin_s: float) -> JobOutcome:
    ends = step_ends(run.history, job.job)
    (group,) = {span.group for span in run.history.spans if span.job == job.job}
    return JobOutcome(
        job=job.job,
        arrival_h=0.0,
        started_h=0.0,
        ended_h=(ends[-1] - begin_s) / HOUR_S,
        iterations=len(ends),
        solo_s=job.alone_s,
        iteration_s=job.woven_s,
        slowdown=job.slowdown,
        slo=job.slo,
        group=group,
        admission="direct",
        moves=0,
    )


def _side_by_side(apart: Sequence[Outcome]) -> Outcome:
    """One outcome of several runs, each on nodes of its own: a group for each job, and the bill of all."""
    first, spans = apart[0], []
    for run in apart:
        name = run.jobs[0].job
        spans += [replace(span, node=f"{span.node} of {name}", group=f"{name}, alone") for span in run.spans]
    return replace(
        first,
        usd_total=sum(run.usd_total for run in apart),
        makespan_h=max(run.makespan_h for run in apart),
        fluid_usd=sum(run.fluid_usd for run in apart),
        rollout=_sum(run.rollout for run in apart),
        train=_sum(run.train for run in apart),
        peak_rollout=sum(run.peak_rollout for run in apart),
        peak_train=sum(run.peak_train for run in apart),
        jobs=tuple(replace(job, group=f"{job.job}, alone") for run in apart for job in run.jobs),
        levels=_levels(apart),
        spans=tuple(spans),
    )


def _levels(apart: Sequence[Outcome]) -> tuple[Level, ...]:
    """What runs and what is paid over time: each run's nodes are paid until the run has ended."""
    there = [(run.levels[0], run.levels[-1].at_s) for run in apart]
    return tuple(
        Level(
            at_s,
            sum(level.rollout_nodes for level, end_s in there if end_s > at_s),
            sum(level.train_nodes for level, end_s in there if end_s > at_s),
            sum(level.usd_per_hour for level, end_s in there if end_s > at_s),
            sum(level.running for level, end_s in there if end_s > at_s),
            0,
        )
        for at_s in (0.0, *sorted(end_s for _, end_s in there))
    )


def _sum(hours: Iterable[PoolHours]) -> PoolHours:
    return PoolHours(*map(sum, zip(*map(astuple, hours), strict=True)))

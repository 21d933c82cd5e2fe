"""An outcome as plain data: what `rollmux simulate --json` writes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from rollmux.sim.books import NAMES
from rollmux.sim.outcome import JobOutcome, Outcome, PoolHours


def summary(outcome: Outcome, timings: bool = False) -> dict[str, Any]:
    """The figures of one policy, always with the same keys; figures that are not known are None.

    Decision latencies are there only with `timings`: all other figures depend only on workload, settings and seed.
    """
    admitted = Counter(job.admission for job in outcome.jobs if job.group)
    decisions, names = outcome.decision_ms if timings else (), tuple(NAMES.values())
    return {
        "usd_total": outcome.usd_total,
        "usd_per_hour_mean": _ratio(outcome.usd_total, outcome.billed_h),
        "fluid_usd": outcome.fluid_usd,
        "whole_node_usd": outcome.whole_node_usd or None,
        "cost_over_fluid": _ratio(outcome.usd_total, outcome.fluid_usd),
        "cost_over_whole_node": _ratio(outcome.usd_total, outcome.whole_node_usd),
        "slo_attainment": outcome.slo_attainment,
        "jobs": len(outcome.jobs),
        "makespan_h": outcome.makespan_h,
        "decision_latency_ms": {
            "p50": percentile(decisions, 50),
            "p99": percentile(decisions, 99),
            "max": max(decisions, default=None),
        },
        "utilisation": {"rollout": _used(outcome.rollout), "train": _used(outcome.train)},
        "peak_nodes": {"rollout": outcome.peak_rollout, "train": outcome.peak_train},
        "admissions": {name: admitted[name] for name in names} if admitted.keys() <= set(names) else None,
        "moves": outcome.moves,
        "restarts": outcome.restarts,
        "bubbles": {"rollout": _bubbles(outcome.rollout), "train": _bubbles(outcome.train)},
        "per_job": [_job(job) for job in outcome.jobs],
    }


def percentile(values: Sequence[float], at: float) -> float | None:
    """The nearest-rank percentile; None if there are no values."""
    return sorted(values)[max(0, ceil(len(values) * at / 100) - 1)] if values else None


def _ratio(value: float, base: float) -> float | None:
    return value / base if base else None


def _used(hours: PoolHours) -> float | None:
    return _ratio(hours.busy, hours.paid)


def _bubbles(hours: PoolHours) -> dict[str, float]:
    """Node-hours by their use."""
    return {"paid_h": hours.paid, "busy_h": hours.busy, "switch_h": hours.switch, "idle_h": hours.idle}


def _job(job: JobOutcome) -> dict[str, Any]:
    return {**asdict(job), "met": job.met}

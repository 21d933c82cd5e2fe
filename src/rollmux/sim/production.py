"""The ten most frequent production jobs of the RollMux paper (arXiv 2512.11306, top-10 workload table).

Seconds are the paper's measured rollout and training times of one iteration, on one node of each pool here; host
memory and switch times come from its tables for the nearest model size, sync from its 8-to-8-GPU two-stage figures.
"""

from dataclasses import replace

from rollmux.mux.hardware import GB
from rollmux.mux.job import JobSpec, PhaseSpec

# model, token limit, turns, rollout s, train s
_WORKLOADS = (
    ("7B", "8K", "single", 134, 113),
    ("8B", "8K", "multi", 310, 121),
    ("8B", "16K", "multi", 581, 241),
    ("14B", "8K", "single", 239, 197),
    ("4B", "4K", "multi", 122, 51),
    ("4B", "16K", "multi", 496, 180),
    ("32B", "8K", "single", 268, 271),
    ("8B", "32K", "multi", 888, 560),
    ("7B", "4K", "single", 81, 77),
    ("4B", "8K", "multi", 262, 87),
)

# size: resident GB per node in rollout and training, warm load s in rollout and training, cold start s, sync s
_SIZES = {
    "4B": (113.4, 156.2, 0.8, 1.9, 26.7, 0.9),
    "7B": (275.7, 240.0, 0.9, 4.1, 38.8, 0.9),
    "8B": (275.7, 240.0, 0.9, 4.1, 38.8, 0.9),
    "14B": (445.4, 456.1, 1.8, 4.7, 60.4, 1.7),
    "32B": (490.3, 520.4, 1.7, 5.9, 81.7, 3.9),
}


def production_jobs(slo: float) -> tuple[JobSpec, ...]:
    """One job of each kind, in the order of the table."""
    return tuple(replace(job, slo=slo) for job in map(_job, _WORKLOADS))


def _job(row: tuple[str, str, str, int, int]) -> JobSpec:
    model, limit, turns, rollout_s, train_s = row
    rollout_gb, train_gb, rollout_load_s, train_load_s, cold_s, sync_s = _SIZES[model]
    return JobSpec(
        id=f"{model}-{limit}-{turns}",
        rollout=PhaseSpec(rollout_s, nodes=1, resident_bytes=round(rollout_gb * GB), load_s=rollout_load_s),
        train=PhaseSpec(train_s, nodes=1, resident_bytes=round(train_gb * GB), load_s=train_load_s),
        slo=1.5,
        sync_s=sync_s,
        cold_start_s=cold_s,
    )

"""How much each policy pays over the limits that no schedule can undercut, in many workloads.

The workloads are the four simulated ones of the RollMux paper (arXiv 2512.11306): 300 jobs over 580 h, and two of them
with 1,200 jobs. By work accounting, every job does the iterations that it would do alone in its running time. A move
takes 300 s. The whole-node limit and the fluid limit are yardsticks, and `bound` is proven (docs/design/limits.md). All
seeds are played at the forecast pace, and a few phase by phase, too.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import cpu_count
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from benchmarks.figures.goals import Goal, show, spread, told
from benchmarks.harness import arguments, record, table
from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.sim.generate import GENERATORS
from rollmux.sim.limits import workload_bound_usd
from rollmux.sim.replay import Fidelity
from rollmux.sim.sweep import Case, Figures, Interval, interval, sweep

POLICIES = ("solo", "colocated", "gavel", "random", "most-idle", "paper", "rollmux")
PHASED = ("solo", "colocated", "random", "most-idle", "paper", "rollmux")  # gavel weaves no phases
WORKLOADS = ("mixed", "balanced", "rollout-heavy", "train-heavy")
DENSE, DENSE_JOBS = ("mixed", "rollout-heavy"), 1200

GOAL_WHOLE_NODE = {"mixed": 1.12, "balanced": 1.12, "rollout-heavy": 1.15, "train-heavy": 1.20}
GOAL_FLUID = {"mixed": 1.12, "rollout-heavy": 1.20}  # with 1,200 jobs
PHASE, PACE = Fidelity.PHASE.value, Fidelity.PACE.value


@dataclass(frozen=True, slots=True)
class Size:
    """How many jobs over how many hours, and which workloads are run so."""

    jobs: int
    hours: float
    workloads: tuple[str, ...]


def cases(args: Namespace, sizes: Sequence[Size]) -> list[Case]:
    """Every run: the longest first, so that no core is left with one at the end."""
    found = []
    for size in sizes:
        for workload in size.workloads:
            base = Case(workload, "solo", jobs=size.jobs, hours=size.hours)
            if size is sizes[0]:
                for seed in range(args.seed, args.seed + args.optimal_seeds):
                    found.append(replace(base, policy="optimal", seed=seed))
                for seed in range(args.seed, args.seed + args.phase_seeds):
                    found += [replace(base, policy=policy, seed=seed, fidelity=PHASE) for policy in PHASED]
            for seed in range(args.seed, args.seed + (args.seeds if size is sizes[0] else args.dense_seeds)):
                found += [replace(base, policy=policy, seed=seed) for policy in POLICIES]
    return sorted(found, key=lambda case: (case.policy != "optimal", case.fidelity != PHASE, -(case.jobs or 0)))


def bound_usd(case: Case) -> float:
    """Dollars that no schedule of this case's workload undercuts."""
    workload = GENERATORS[case.workload](case.seed, case.jobs, case.hours)
    return workload_bound_usd(workload, PAPER_CLUSTER, case.max_group or None)


Key = tuple[int, str, str, str]  # jobs, workload, policy, fidelity
Results = Mapping[Key, Mapping[int, Mapping[str, float]]]  # by seed


def by_key(results: Mapping[Case, Figures], bounds: Mapping[Case, float]) -> dict[Key, dict[int, dict[str, float]]]:
    """The figures of each row by seed, with the cost over the proven bound."""
    rows: dict[Key, dict[int, dict[str, float]]] = {}
    for case, figures in results.items():
        known = {name: value for name, value in figures.items() if value is not None}
        known["cost_over_bound"] = known["usd_total"] / bounds[unplayed(case)]
        rows.setdefault((case.jobs or 0, case.workload, case.policy, case.fidelity), {})[case.seed] = known
    return rows


def unplayed(case: Case) -> Case:
    """What runs of one workload have in common."""
    return replace(case, policy="solo", fidelity=PACE)


def rows_of(results: Results) -> list[dict[str, object]]:
    """One row for each size, workload, policy and fidelity, as the table shows it."""
    rows: list[dict[str, object]] = []
    order = (*POLICIES, "optimal")
    for key in sorted(results, key=lambda key: (key[0], WORKLOADS.index(key[1]), key[3], order.index(key[2]))):
        jobs, workload, policy, fidelity = key
        runs = list(results[key].values())

        def mean(name: str, runs: Sequence[Mapping[str, float]] = runs) -> Interval:
            return interval([run[name] for run in runs])

        kept, gaps = [run["slo_attainment"] for run in runs], [run["mean_gap"] for run in runs if "mean_gap" in run]
        rows.append(
            {
                "jobs": jobs,
                "workload": workload,
                "policy": policy,
                "played": fidelity,
                "whole-node": mean("cost_over_whole_node"),
                "fluid": mean("cost_over_fluid"),
                "bound": mean("cost_over_bound"),
                "SLO": fmean(kept),
                "worst": min(kept),
                "moves": round(fmean(run["moves"] for run in runs), 1),
                "seeds": len(runs),
                "gap": fmean(gaps) if gaps else None,
            }
        )
    return rows


def shown(row: Mapping[str, object]) -> dict[str, object]:
    """A row as it is printed."""
    percent = {name: f"{value:.2%}" for name in ("SLO", "worst", "gap") if isinstance(value := row[name], float)}
    means = {name: told(value) for name, value in row.items() if isinstance(value, Interval)}
    unknown = {name: "-" for name, value in row.items() if value is None}
    return {name: value for name, value in {**row, **percent, **means, **unknown}.items() if name != "played"}


def plain(row: Mapping[str, object]) -> dict[str, object]:
    """A row as it is written."""
    return {name: asdict(value) if isinstance(value, Interval) else value for name, value in row.items()}


def pace_rows(results: Results) -> list[dict[str, object]]:
    """What phases played one by one change, on the same seeds."""
    rows: list[dict[str, object]] = []
    for (jobs, workload, policy, fidelity), phases in results.items():
        if fidelity != PHASE:
            continue
        paces = results[jobs, workload, policy, PACE]
        pairs = [(phase, paces[seed]) for seed, phase in phases.items()]
        rows.append(
            {
                "workload": workload,
                "policy": policy,
                "dollars, phase over pace": fmean(phase["usd_total"] / pace["usd_total"] for phase, pace in pairs),
                "SLO kept, phase": f"{fmean(phase['slo_attainment'] for phase, _ in pairs):.2%}",
                "SLO kept, pace": f"{fmean(pace['slo_attainment'] for _, pace in pairs):.2%}",
                "seeds": len(pairs),
            }
        )
    return rows


def goals_of(results: Results, sizes: Sequence[Size], policy: str = "rollmux") -> list[Goal]:
    """The goals of our policy, by the mean over all seeds; SLOs in each of them."""
    goals = []
    for size, figure, limits in zip(
        sizes, ("cost_over_whole_node", "cost_over_fluid"), (GOAL_WHOLE_NODE, GOAL_FLUID), strict=True
    ):
        for workload in size.workloads:
            runs = results[size.jobs, workload, policy, PACE].values()
            what = f"{policy}, {size.jobs:,} jobs, {workload}: {figure.replace('_', ' ')}"
            goals.append(Goal(what, fmean(run[figure] for run in runs), limits[workload]))
    for fidelity in (PACE, PHASE):
        kept = [
            run["slo_attainment"]
            for (_, _, who, how), seeds in results.items()
            if (who, how) == (policy, fidelity)
            for run in seeds.values()
        ]
        if kept:
            goals.append(Goal(f"{policy}: SLOs kept in the mean, by {fidelity}", fmean(kept), 1.0, at_most=False))
    return goals


def main() -> None:
    parser = arguments("fluid", __doc__)
    parser.add_argument("--seeds", type=int, default=20, help="workloads of each kind")
    parser.add_argument("--dense-seeds", type=int, default=3, help="workloads of each kind with many jobs")
    parser.add_argument("--phase-seeds", type=int, default=3, help="of which played phase by phase too")
    parser.add_argument("--optimal-seeds", type=int, default=1, help="of which regrouped at the optimum; minutes each")
    parser.add_argument("--results", type=Path, help="keep each run's figures here, and go on from what is there")
    parser.add_argument("--workers", type=int, default=cpu_count() or 1, help="processes at once")
    args = parser.parse_args()
    known, args.results = args.results, args.results is not None  # where they are says nothing to who reads the result
    sizes = [Size(300, 580.0, WORKLOADS), Size(DENSE_JOBS, 580.0, DENSE)]
    if args.quick:
        sizes = [Size(5, 10.0, WORKLOADS), Size(10, 10.0, DENSE)]
        args.seeds, args.dense_seeds, args.phase_seeds, args.optimal_seeds, args.workers = 2, 2, 1, 1, 1

    def run() -> dict[str, object]:
        todo = cases(args, sizes)
        # Results of a sweep are known by the version of RollMux, which is too coarse here: they start afresh, unless
        # somebody who knows that they are of this code says where they are.
        with TemporaryDirectory() as folder:
            results = sweep(todo, known or Path(folder) / "results.jsonl", args.workers)
        workloads = list(dict.fromkeys(unplayed(case) for case in todo))
        bounds = dict(zip(workloads, spread(bound_usd, workloads, args.workers), strict=True))
        found = by_key(results, bounds)
        rows, paces = rows_of(found), pace_rows(found)
        print("Cost over the whole-node limit, the fluid limit and the proven bound, at the forecast pace")
        table([shown(row) for row in rows if row["played"] == PACE])
        print("Means with 95 % confidence intervals over the seeds; SLO in the mean and in the worst seed.")
        print("Gap: how far below the optimum's price the bound lies that is proven for its moments.")
        print("`colocated` rents other nodes than the limits speak of, and its SLOs are those of its own pace alone.")
        print("Phase by phase beside the forecast pace, on the same seeds")
        table(paces)
        return {
            "rows": [plain(row) for row in rows],
            "phase_and_pace": paces,
            "goals": show(goals_of(found, sizes)),
            "move_s": 300.0,
        }

    record("fluid", args, run)


if __name__ == "__main__":
    main()

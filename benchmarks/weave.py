"""Whether jobs that share nodes go as fast as was forecast: three shapes on two rollout nodes and a training node.

They run under a real `rollmux serve`, in real job processes that take time and need no core, so only the weaving is
measured; moving state takes time, too, and phases can pause. Each job first runs alone; then its owner says how long
its phases took, and all three run in one group, which is the placement's own choice (else nothing is measured).

- *constant*: all phases of a kind take the same time.
- *varying*: the times of phases are drawn anew in each step, from a skewed distribution. Owners say the mean alone.

`forecast` is the iteration time by which the controller places jobs (`rollmux status`): it takes phases to be constant.
`bound` is the same if owners said the longest phases seen alone. `likely` is the iteration time of phases that vary as
they did alone; `lately` is the same with the times that the controller saw, in its latest state (`rollmux status JOB`).
`simulated` is the same work in virtual time, without processes, network and disk. Constant phases are compared with
`forecast`, varying ones with `likely`: how far these are from `forecast` is the cost of varying, shown beside it.
"""

import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

from benchmarks.figures.goals import Goal, show
from benchmarks.figures.woven_jobs import (
    ROLLOUT,
    SLO_ALONE,
    SYNC,
    TRAIN,
    UNKNOWN,
    Plan,
    Run,
    Shape,
    run,
    simulated,
)
from benchmarks.harness import arguments, record, table

GOAL = 0.1  # the part by which a measured iteration may differ from its forecast
SHAPES = (
    Shape("long-rollout", 1.4, 0.3, 1, 1.6),
    Shape("balanced", 0.8, 0.6, 1, 1.8),
    Shape("gang", 0.4, 0.6, 2, 2.0),
)
SPREAD = 0.25  # standard deviation of a varying phase over its mean
WAYS = {"constant": (0.0, 6), "varying": (SPREAD, 20)}  # spread, and steps that each job makes alone
QUICK_STEPS, QUICK_ALONE = 6, 3
NOT_SHOWN = ("steps", "/ simulated")

Phases = Mapping[str, Mapping[str, float]]  # by job and kind


def alone(folder: Path, plans: Sequence[Plan]) -> list[Run]:
    """Each by itself, under a controller of its own; all at the same time, as they need no core."""

    def one(plan: Plan) -> Run:
        mine = folder / plan.name
        return run(mine, [plan.submission(mine / "job", UNKNOWN, SLO_ALONE)])

    with ThreadPoolExecutor(len(plans)) as pool:
        return list(pool.map(one, plans))


def said(runs: Sequence[Run], of: Callable[[list[float]], float]) -> Phases:
    """What owners say of their phases, knowing how they went alone."""
    jobs = [(seen, spec.id) for seen in runs for spec in seen.specs]
    return {job: {kind: of(seen.phases_s(job, kind)) for kind in (ROLLOUT, TRAIN, SYNC)} for seen, job in jobs}


def measure(args: Namespace, folder: Path) -> dict[str, object]:
    found: list[dict[str, object]] = []
    for name, (spread, alone_steps) in WAYS.items():
        steps, few = (QUICK_STEPS, QUICK_ALONE) if args.quick else (args.steps, alone_steps)
        plans = [Plan.drawn(shape, steps, spread, args.seed) for shape in SHAPES]
        apart = alone(folder / f"{name}-alone", [plan.first(few) for plan in plans])
        means, here = said(apart, fmean), folder / name
        told = [plan.submission(here / plan.name, means[plan.name], plan.shape.slo) for plan in plans]
        mine = rows(apart, run(here, told), plans)
        print(f"{name} phases, in one group; seconds an iteration")
        table([shown(row) for row in mine])
        found += [{"phases": name, **row} for row in mine]
    return {"rows": found, "goals": show(goals(found)), "spread": SPREAD}


def rows(apart: Sequence[Run], seen: Run, plans: Sequence[Plan]) -> list[dict[str, object]]:
    """A row for each job, by what was seen of each alone and of all woven."""
    virtual = simulated(seen.cluster, seen.specs, plans)
    likely = virtual.likely_s({spec.id: one.taken(spec.id) for one in apart for spec in one.specs})
    bound = virtual.forecast_s(said(apart, max))
    woven = seen.paces_s()
    found: list[dict[str, object]] = []
    for one in apart:
        ((job, alone_s),) = one.paces_s().items()
        view, woven_s = seen.views[job], woven[job]
        row: dict[str, object] = {"job": job, "steps": view.synced, "alone s": alone_s, "woven s": woven_s}
        row |= {"forecast s": view.iteration_s, "bound s": bound[job]}
        row |= {"likely s": likely[job], "lately s": view.likely_s, "simulated s": virtual.paces_s[job]}
        row |= {f"/ {of}": woven_s / float(str(row[f"{of} s"])) for of in ("forecast", "likely", "simulated")}
        row["/ SLO"] = woven_s / alone_s / view.slo
        found.append({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    return found


def shown(row: Mapping[str, object]) -> dict[str, object]:
    """What fits on a line."""
    return {key.removesuffix(" s").replace(" ", ""): value for key, value in row.items() if key not in NOT_SHOWN}


def goals(found: Sequence[Mapping[str, object]]) -> list[Goal]:
    """How far the worst job of each run is from what was forecast for it."""

    def ratios(name: str, of: str) -> list[float]:
        return [float(str(row[of])) for row in found if row["phases"] == name]

    def off(name: str, of: str) -> float:
        return max(abs(ratio - 1) for ratio in ratios(name, of))

    return [
        Goal("constant phases: off the forecast by", off("constant", "/ forecast"), GOAL),
        Goal("varying phases: off what is likely by", off("varying", "/ likely"), GOAL),
        Goal("slowest job over its SLO", max(ratio for name in WAYS for ratio in ratios(name, "/ SLO")), 1.0),
    ]


def main() -> None:
    parser = arguments("weave", __doc__)
    parser.add_argument("--steps", type=int, default=32, help="of each job, woven")
    args = parser.parse_args()

    def measured() -> dict[str, object]:
        with tempfile.TemporaryDirectory() as folder:
            return measure(args, Path(folder))

    record("weave", args, measured)


if __name__ == "__main__":
    main()

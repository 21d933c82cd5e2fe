"""How fast a workload is replayed on one core, decisions included, and how time and memory grow with the jobs.

Mixed jobs over 580 h are replayed under `rollmux`, at the forecast pace and phase by phase, each size in a process of
its own. In turn with each replay a bare heap handles as many events: this is the cost of virtual time itself. In the
end the two fidelities run in turn, and compiled code beside the same in Python, which must give the same bill. The
garbage collector is off, so the peak of memory has what it would have freed: with 1,200 jobs a tenth more.
"""

from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from unittest.mock import patch

from benchmarks.figures.goals import Goal, growth, show
from benchmarks.harness import Alternation, alternate, arguments, record, seconds, table
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.hardware import Cluster
from rollmux.mux.policies import Policy
from rollmux.mux.urgent_play import urgent_play
from rollmux.sim.generate import GENERATORS
from rollmux.sim.outcome import Outcome
from rollmux.sim.replay import Fidelity, Settings, replay
from rollmux.sim.workload import Workload

HOURS = 580.0
SIZES = (300, 1200, 5000, 20_000)
# Many jobs are held to their goal at the pace, which is made for them; phase by phase they are 35 million events.
GOAL_S = {(Fidelity.PACE, 300): 2.0, (Fidelity.PHASE, 300): 2.0, (Fidelity.PACE, 20_000): 180.0}
ROUNDS = {300: 5}
MB = 10**6


@dataclass(frozen=True, slots=True)
class Run:
    """One replay to measure."""

    jobs: int
    hours: float
    fidelity: Fidelity
    policy: str
    seed: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of the replay and of a bare heap, both as medians, and what happened in it."""

    replay_s: float
    heap_s: float
    heap_ratio: float
    deciding_s: float
    events: int
    peak_bytes: int
    before_bytes: int


def measure(run: Run) -> Measured:
    """Measures one run in this process."""
    workload = GENERATORS["mixed"](run.seed, run.jobs, run.hours)
    settings = Settings(fidelity=run.fidelity, seed=run.seed)
    before = peak_bytes()
    outcomes: list[Outcome] = []

    def once() -> None:
        outcomes[:] = [replay(workload, run.policy, settings)]

    if run.rounds == 1:
        events, replay_s = counted(lambda: seconds(once))
        timing = Alternation((seconds(lambda: bare_heap(events, run.jobs)),), (replay_s,))
    else:
        events, _ = counted(lambda: seconds(once))
        timing = alternate(lambda: bare_heap(events, run.jobs), once, run.rounds)
    ratio = timing.summary()["ratio_median"]
    assert isinstance(ratio, float)
    deciding_s = sum(outcomes[0].decision_ms) / 1000
    return Measured(median(timing.b_s), median(timing.a_s), ratio, deciding_s, events, peak_bytes(), before)


def counted(call: Callable[[], float]) -> tuple[int, float]:
    """How many events the machine of this replay has taken, compiled or not, and what the call returned."""
    made: list[ClusterMachine] = []

    def making(cluster: Cluster, policy: Policy, rules: Rules) -> ClusterMachine:
        made.append(ClusterMachine(cluster, policy, rules))
        return made[-1]

    with patch("rollmux.sim.replay.ClusterMachine", making):
        returned = call()
    (machine,) = made
    return machine.state.ledger.seq, returned


def bare_heap(events: int, waiting: int) -> None:
    """As many events through a heap that holds so many at once, with nothing to do for any."""
    heap = [(float(i % 97), i) for i in range(max(1, waiting))]
    heapify(heap)
    for number in range(events):
        at, _ = heappop(heap)
        heappush(heap, (at + number % 89, number))


def peak_bytes() -> int:
    """The most memory that this process has held; it alone, where the system tells."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return getrusage(RUSAGE_SELF).ru_maxrss * 1024


def alone(run: Run) -> Measured:
    """Measures in a fresh process, so that memory is this run's alone."""
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        return executor.submit(measure, run).result()


def runs_of(args: Namespace) -> list[Run]:
    """What is measured, smaller sizes first."""
    if args.quick:
        sizes = ((fidelity, jobs) for fidelity in Fidelity for jobs in (4, 8))
        return [Run(jobs, 20.0, fidelity, args.policy, args.seed, 1) for fidelity, jobs in sizes]
    return [
        Run(jobs, HOURS, fidelity, args.policy, args.seed, ROUNDS.get(jobs, 1))
        for fidelity in (Fidelity.PACE, Fidelity.PHASE)
        for jobs in SIZES
        if args.only in (None, fidelity.value)
    ]


def rows_of(measured: dict[Run, Measured]) -> list[dict[str, object]]:
    """One row for each run; `grows` is the power of the jobs since the size before."""
    rows: list[dict[str, object]] = []
    before: tuple[Run, Measured] | None = None
    for run, got in measured.items():
        grows = {"time grows": "-", "memory grows": "-"}
        if before is not None and before[0].fidelity is run.fidelity:
            small, less = before
            for name, first, then in (
                ("time grows", less.replay_s, got.replay_s),
                ("memory grows", less.peak_bytes, got.peak_bytes),
            ):
                grows[name] = f"{growth((small.jobs, first), (run.jobs, then)):.2f}"
        rows.append(
            {
                "played": run.fidelity.value,
                "jobs": run.jobs,
                "seconds": round(got.replay_s, 3),
                "deciding": round(got.deciding_s, 3),
                "events": got.events,
                "events/s": round(got.events / got.replay_s),
                "over bare heap": round(got.heap_ratio, 1),
                "peak MB": round(got.peak_bytes / MB, 1),
                "at start": round(got.before_bytes / MB, 1),
                **grows,
                "rounds": run.rounds,
            }
        )
        before = run, got
    return rows


def goals_of(measured: dict[Run, Measured]) -> list[Goal]:
    """Seconds allowed at each size that has a goal."""
    return [
        Goal(f"{run.jobs:,} jobs, by {run.fidelity.value}: seconds", got.replay_s, GOAL_S[run.fidelity, run.jobs])
        for run, got in measured.items()
        if (run.fidelity, run.jobs) in GOAL_S
    ]


# What is compiled: by which fidelity it is seen, where it is used, and what stands there where there is no compiler.
IN_PYTHON: dict[str, tuple[Fidelity, str, Callable[..., object]]] = {
    "plays": (Fidelity.PACE, "rollmux.mux.forecast.fastest_play", urgent_play),
    "phases": (Fidelity.PHASE, "rollmux.sim.replay.hasten", lambda cast, books: None),
}


def in_turn(workload: Workload, args: Namespace, rounds: int) -> dict[str, object]:
    """Phase by phase beside the pace, and either beside the same in Python, in turn."""

    def by(fidelity: Fidelity, in_python: str = "") -> Callable[[], object]:
        def once() -> None:
            with patch(*IN_PYTHON[in_python][1:]) if in_python else nullcontext():
                bill = replay(workload, args.policy, Settings(fidelity=fidelity, seed=args.seed)).usd_total
            assert usd.setdefault(fidelity, bill) == bill, f"the same {in_python} led to other decisions"

        return once

    usd: dict[Fidelity, float] = {}
    found = {"phase_over_pace": alternate(by(Fidelity.PACE), by(Fidelity.PHASE), rounds).summary()}
    for name, (fidelity, *_) in IN_PYTHON.items():
        found[f"{name}_in_python_over_here"] = alternate(by(fidelity), by(fidelity, name), rounds).summary()
    for name, ratio in found.items():
        print(f"{name}: {ratio['ratio_median']:.3g}, in turn on {len(workload.arrivals)} jobs")
    return dict(found)


def main() -> None:
    parser = arguments("replay", __doc__)
    parser.add_argument("--policy", default="rollmux", help="the policy that decides")
    parser.add_argument("--only", choices=[each.value for each in Fidelity], help="one fidelity: half the time")
    args = parser.parse_args()

    def run() -> dict[str, object]:
        measured = {each: alone(each) for each in runs_of(args)}
        rows = rows_of(measured)
        table(rows)
        jobs, hours, rounds = (4, 20.0, 2) if args.quick else (300, HOURS, 3)
        ratios = in_turn(GENERATORS["mixed"](args.seed, jobs, hours), args, rounds)
        return {"hours": hours, "rows": rows, **ratios, "goals": show(goals_of(measured))}

    record("replay", args, run)


if __name__ == "__main__":
    main()

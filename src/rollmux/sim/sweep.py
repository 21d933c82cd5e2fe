"""Many runs at once: policies × seeds × parameters, over all cores, each result on disk as soon as it is there.

A sweep that was stopped goes on where it was: a result counts for every later sweep with the same case, the same
version of RollMux and the same content of its files. Results depend only on the cases.
"""

import json
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from math import atan, cos, pi, sin, sqrt
from multiprocessing import get_context, parent_process
from pathlib import Path
from statistics import fmean, stdev
from threading import Thread

from rollmux import __version__
from rollmux.checks import one_of
from rollmux.errors import InvalidSpec, Problem
from rollmux.mux.hardware import PAPER_CLUSTER, Cluster
from rollmux.mux.validation import MAX_DURATION_S, MAX_SPARES
from rollmux.protocol.cluster_file import read_cluster
from rollmux.sim.abilities import PAUSE_S, SPARES
from rollmux.sim.generate import GENERATORS
from rollmux.sim.optimal_run import optimal_replay, require_optimum
from rollmux.sim.outcome import Outcome
from rollmux.sim.policies import CONTENDERS, OPTIMAL, RANDOM, played_paced
from rollmux.sim.realised import BOUND, DISTRIBUTIONS, durations
from rollmux.sim.replay import Accounting, Fidelity, Settings, replay
from rollmux.sim.summary import summary
from rollmux.sim.workload import Workload
from rollmux.sim.workload_file import read_workload

FIGURES = ("cost_over_fluid", "cost_over_whole_node", "slo_attainment", "usd_total", "moves")
OF_EVERY_RUN = (*FIGURES, "jobs", "makespan_h")

Figures = dict[str, float | None]
Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One run. `workload` is a generator's name or a file, `cluster` a file or, if empty, the paper's.

    `jobs` and `hours` are for generators; without them a generator uses its own.
    """

    workload: str
    policy: str
    seed: int = 0
    jobs: int | None = None
    hours: float | None = None
    accounting: str = Accounting.WORK.value
    fidelity: str = Fidelity.PACE.value
    max_group: int = 0
    move_s: float = 300.0
    pause_s: float = PAUSE_S
    spares: int = SPARES
    realised: str = BOUND
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and half the width of its 95 % confidence interval (None for a single run)."""

    mean: float
    half_width: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """All seeds of one case; `case` has the first seed. Figures that one of the runs lacks are left out."""

    case: Case
    seeds: int
    figures: dict[str, Interval]


def is_drawn(case: Case) -> bool:
    """Whether the case depends on its seed. Runs that don't are one run again and again, and tell of no other."""
    draws_durations = case.realised != BOUND and not played_paced(case.policy)
    return case.workload in GENERATORS or case.policy == RANDOM or draws_durations


def run_case(case: Case) -> Figures:
    """The figures of one case, without those that differ from run to run."""
    settings = Settings(
        cluster=_cluster(case),
        accounting=Accounting(case.accounting),
        fidelity=Fidelity(case.fidelity),
        max_group=case.max_group,
        seed=case.seed,
        move_s=case.move_s,
        pause_s=case.pause_s,
        spares=case.spares,
        takes=durations(case.realised, case.seed),
    )
    workload = _workload(case)
    if case.policy == OPTIMAL:
        run = optimal_replay(workload, settings)
        return {**_of(run.outcome), "mean_gap": run.mean_gap}
    return _of(replay(workload, case.policy, settings))


def _of(outcome: Outcome) -> Figures:
    figures = summary(outcome)
    return {name: figures[name] for name in OF_EVERY_RUN}


def sweep(
    cases: Iterable[Case], results_file: Path, workers: int, told: Told = lambda done, total: None
) -> dict[Case, Figures]:
    """The figures of all cases, in their order. `told` hears how many are there, of how many."""
    cases = list(dict.fromkeys(cases))
    require_cases(cases)
    keys = _keys(cases)
    known = _resumed(results_file)
    todo = [case for case in cases if keys[case] not in known]
    with results_file.open("a", encoding="utf-8") as file, closing(_finished(todo, workers)) as finished:
        told(len(cases) - len(todo), len(cases))
        for count, (case, figures) in enumerate(finished, len(cases) - len(todo) + 1):
            known[keys[case]] = figures
            file.write(f"{json.dumps({'key': keys[case], 'case': asdict(case), 'figures': figures})}\n")
            file.flush()
            told(count, len(cases))
    return {case: known[keys[case]] for case in cases}


def summaries(results: dict[Case, Figures]) -> list[Summary]:
    """Summaries over all seeds of each workload, policy and set of parameters, in the order of their first results."""
    by_case: dict[Case, list[tuple[Case, Figures]]] = {}
    for case, figures in results.items():
        by_case.setdefault(replace(case, seed=0), []).append((case, figures))
    found = []
    for runs in by_case.values():
        columns = {name: [figures[name] for _, figures in runs] for name in FIGURES}
        values = {name: [v for v in column if v is not None] for name, column in columns.items()}
        intervals = {name: interval(column) for name, column in values.items() if len(column) == len(runs)}
        found.append(Summary(runs[0][0], len(runs), intervals))
    return found


# -- running ---------------------------------------------------------------------------------------------------------


def _finished(cases: Sequence[Case], workers: int) -> Generator[tuple[Case, Figures], None, None]:
    """Each case as soon as it is done. Processes are spawned, so they share nothing."""
    if workers == 1 or len(cases) < 2:
        yield from ((case, run_case(case)) for case in cases)
        return
    executor = ProcessPoolExecutor(min(workers, len(cases)), get_context("spawn"), initializer=_begin_work)
    try:
        _hear_interrupts(False)  # workers are born deaf to them: they would print where they were just then
        try:
            futures = {executor.submit(run_case, case): case for case in cases}
        finally:
            _hear_interrupts(True)
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        executor.shutdown(cancel_futures=True)


def _begin_work() -> None:
    """Prepares a worker: it ends silently at an interrupt, which its parent reports, and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _hear_interrupts(True)
    Thread(target=_end_with_parent, daemon=True).start()


def _hear_interrupts(now: bool) -> None:
    """Whether this thread, and processes that it starts, hear interrupts. Not every system can be deaf to them."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK if now else signal.SIG_BLOCK, {signal.SIGINT})


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _workload(case: Case) -> Workload:
    if case.workload in GENERATORS:
        return GENERATORS[case.workload](case.seed, case.jobs, case.hours)
    return read_workload(case.workload)


def _cluster(case: Case) -> Cluster:
    return read_cluster(case.cluster) if case.cluster else PAPER_CLUSTER


# -- checking --------------------------------------------------------------------------------------------------------


def require_cases(cases: Sequence[Case]) -> None:
    """InvalidSpec with all that is wrong with any case, its files included, before the first one runs."""
    problems = list(dict.fromkeys(problem for case in cases for problem in _case_problems(case)))
    if not cases:
        problems.append(Problem("cases", 0, "at least one", "name a workload, a policy and a seed"))
    if problems:
        raise InvalidSpec("sweep", tuple(problems))
    for case in {(c.workload, c.jobs, c.hours): c for c in cases}.values():
        _workload(case)
    for case in {c.cluster: c for c in cases}.values():
        _cluster(case)
    optima = [case for case in cases if case.policy == OPTIMAL]
    for case in {(c.workload, _drawn_by(c), c.jobs, c.hours, c.cluster): c for c in optima}.values():
        require_optimum(_workload(case), _cluster(case))


def _drawn_by(case: Case) -> int | None:
    """The seed of a generated workload; None for a file, which is the same for all seeds."""
    return case.seed if case.workload in GENERATORS else None


def _case_problems(case: Case) -> Iterator[Problem]:
    known = {
        "policy": (*CONTENDERS, OPTIMAL),
        "accounting": tuple(each.value for each in Accounting),
        "fidelity": tuple(each.value for each in Fidelity),
        "realised": tuple(DISTRIBUTIONS),
    }
    for name, names in known.items():
        value = getattr(case, name)
        if value not in names:
            yield Problem(name, value, *one_of(names, value))
    if case.workload not in GENERATORS:
        limit = f"a file, or one of {', '.join(GENERATORS)}"
        if not Path(case.workload).is_file():
            yield Problem("workload", case.workload, limit, "correct the name, or write that file first")
        for name in ("jobs", "hours"):
            if getattr(case, name) is not None:
                remedy = f"{case.workload} is read from a file as it is, leave {name} out"
                yield Problem(name, getattr(case, name), "for generated workloads only", remedy)
    if case.max_group < 0:
        yield Problem("max_group", case.max_group, "at least 0", "1 shares nothing, 0 is the policy's own")
    if not 0 <= case.move_s < float("inf"):
        yield Problem("move_s", case.move_s, "seconds from 0", "0 moves jobs for nothing")
    if not -float("inf") < case.pause_s <= MAX_DURATION_S:
        yield Problem("pause_s", case.pause_s, f"seconds, at most {MAX_DURATION_S:g}", "below 0 nothing pauses")
    if not 0 <= case.spares <= MAX_SPARES:
        yield Problem(
            "spares", case.spares, f"from 0 to {MAX_SPARES}", "0 pins every rollout to the nodes that it wants"
        )
    if case.realised != BOUND and case.fidelity == Fidelity.PACE.value:
        limit = f"{BOUND} where fidelity is pace, which plays no single phase"
        yield Problem("realised", case.realised, limit, "choose fidelity phase, which takes longer")


# -- the file of results ---------------------------------------------------------------------------------------------

_OPENING = b'{"key": "'


def _keys(cases: Sequence[Case]) -> dict[Case, str]:
    """The key of each case in the results file: a digest of all that its result depends on."""
    files = {name for case in cases for name in (case.workload, case.cluster) if name and name not in GENERATORS}
    contents = {name: sha256(Path(name).read_bytes()).hexdigest() for name in files}
    keys = {}
    for case in cases:
        read = [contents.get(case.workload), contents.get(case.cluster)]
        text = json.dumps([__version__, asdict(case), read], sort_keys=True)
        keys[case] = sha256(text.encode()).hexdigest()[:32]
    return keys


def _resumed(path: Path) -> dict[str, Figures]:
    """The results of a file by key. An unfinished last line is removed from the file."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    whole, newline, rest = content.rpartition(b"\n")
    lines = whole.splitlines() if newline else []
    known = dict(_result(path, number, line) for number, line in enumerate(lines, 1))
    if rest:
        if not rest.startswith(_OPENING[: len(rest)]):
            raise _not_a_result(path, len(lines) + 1, rest)
        with path.open("r+b") as file:
            file.truncate(len(whole) + len(newline))
    return known


def _result(path: Path, number: int, line: bytes) -> tuple[str, Figures]:
    try:
        row = json.loads(line)
        key, figures = row["key"], row["figures"]
        return key, {**figures, **{name: figures[name] for name in OF_EVERY_RUN}}  # all of these must be there
    except (ValueError, TypeError, KeyError) as error:
        raise _not_a_result(path, number, line) from error


def _not_a_result(path: Path, number: int, line: bytes) -> InvalidSpec:
    remedy = "name another file, or take this line out"
    problem = Problem(f"line {number}", line.decode(errors="replace"), "a result of a sweep", remedy)
    return InvalidSpec(f"results file {str(path)!r}", (problem,))


# -- statistics ------------------------------------------------------------------------------------------------------


def interval(values: Sequence[float]) -> Interval:
    """The mean of independent runs, and how far the true mean may be from it."""
    if len(values) < 2:
        return Interval(fmean(values), None)
    return Interval(fmean(values), student_t(len(values) - 1) * stdev(values) / sqrt(len(values)))


@cache
def student_t(freedom: int, confidence: float = 0.95) -> float:
    """The t within which a variable of Student's distribution is with this confidence, found by halving."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability of being in [-t, t]; for whole degrees of freedom it is a finite sum of powers of a cosine."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power + 1) / (power + 2)
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total

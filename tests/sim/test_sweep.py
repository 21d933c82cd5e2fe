"""Sweeps: what runs, what is kept, and what is said of it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from pickle import dumps, loads
from statistics import NormalDist

import pytest

from rollmux.errors import InvalidSpec, InvariantViolated, Problem
from rollmux.sim import sweep as module
from rollmux.sim.generate import GENERATORS
from rollmux.sim.policies import CONTENDERS
from rollmux.sim.replay import Fidelity, Settings, replay
from rollmux.sim.sweep import (
    FIGURES,
    Case,
    Figures,
    Interval,
    interval,
    require_cases,
    run_case,
    student_t,
    summaries,
    sweep,
)
from rollmux.sim.workload_file import write_workload

SMALL = Case("mixed", "rollmux", jobs=8, hours=10.0)
CASES = [replace(SMALL, policy=policy, seed=seed) for policy in ("solo", "rollmux") for seed in range(3)]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """The cases that are run from here on."""
    ran: list[Case] = []

    def run(case: Case) -> Figures:
        ran.append(case)
        return run_case(case)

    monkeypatch.setattr(module, "run_case", run)
    return ran


def problems(*cases: Case) -> set[str]:
    with pytest.raises(InvalidSpec) as refused:
        require_cases(cases)
    return {problem.path for problem in refused.value.problems}


def test_a_case_is_the_replay_of_its_workload() -> None:
    case = replace(SMALL, policy="paper", seed=3, max_group=3, fidelity="phase")
    outcome = replay(GENERATORS["mixed"](3, 8, 10.0), "paper", Settings(max_group=3, seed=3, fidelity=Fidelity.PHASE))
    figures = run_case(case)
    assert figures["usd_total"] == outcome.usd_total
    assert figures["cost_over_whole_node"] == outcome.usd_total / outcome.whole_node_usd
    assert figures["slo_attainment"] == outcome.slo_attainment
    assert run_case(replace(case, realised="tail")) != figures


@pytest.mark.parametrize("policy", CONTENDERS)
def test_every_policy_can_be_swept(policy: str) -> None:
    figures = run_case(replace(SMALL, policy=policy))
    assert figures["jobs"] == 8
    assert (figures["cost_over_fluid"] or 0.0) >= 1 or policy == "colocated"


def test_the_optimum_tells_how_far_it_may_be_from_the_best() -> None:
    assert run_case(replace(SMALL, jobs=3, policy="optimal"))["mean_gap"] == 0.0


def test_the_results_are_the_same_from_one_process_as_from_several(tmp_path: Path) -> None:
    one = sweep(CASES, tmp_path / "one", workers=1)
    two = sweep(CASES, tmp_path / "two", workers=2)
    assert list(one) == CASES
    assert one == two
    assert json.dumps(summaries(one), default=str) == json.dumps(summaries(two), default=str)
    assert sorted((tmp_path / "one").read_text().splitlines()) == sorted((tmp_path / "two").read_text().splitlines())


def test_what_is_done_is_not_done_again(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sweep(CASES[:4], results, workers=1)
    ran = counted(monkeypatch)
    told: list[tuple[int, int]] = []
    again = sweep(CASES, results, 1, lambda done, total: told.append((done, total)))
    assert ran == CASES[4:]
    assert told == [(4, 6), (5, 6), (6, 6)]
    assert {case: again[case] for case in first} == first
    assert sweep([CASES[0], CASES[0]], results, workers=1) == {CASES[0]: first[CASES[0]]}


def test_a_sweep_that_goes_on_knows_all_figures_of_before(results: Path) -> None:
    optima = [replace(SMALL, jobs=2, policy="optimal", seed=seed) for seed in range(2)]
    first = sweep(optima[:1], results, workers=1)
    again = sweep(optima, results, workers=1)
    assert again[optima[0]] == first[optima[0]]
    assert [again[each]["mean_gap"] for each in optima] == [0.0, 0.0]


@pytest.mark.parametrize("cut", [1, 2, 5, 60, 300])
def test_a_sweep_that_was_killed_while_writing_goes_on(
    results: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    whole = sweep(CASES[:3], results, workers=1)
    content = results.read_bytes()
    results.write_bytes(content[:-cut])
    ran = counted(monkeypatch)
    assert sweep(CASES[:3], results, workers=1) == whole
    assert ran == [CASES[2]]
    assert results.read_bytes() == content


def test_each_case_is_on_disk_before_the_next_one_is_told_of(results: Path) -> None:
    def told(done: int, _: int) -> None:
        assert len(results.read_text().splitlines()) == done

    sweep(CASES[:3], results, 1, told)


def test_a_workload_file_that_has_changed_is_run_anew(results: Path, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    case = Case(str(path), "solo")
    write_workload(GENERATORS["mixed"](0, 5), path)
    before = sweep([case], results, workers=1)[case]
    write_workload(GENERATORS["mixed"](1, 5), path)
    after = sweep([case], results, workers=1)[case]
    assert before != after
    assert len(results.read_text().splitlines()) == 2


def test_another_version_runs_everything_anew(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(CASES[:1], results, workers=1)
    monkeypatch.setattr(module, "__version__", "another")
    ran = counted(monkeypatch)
    sweep(CASES[:1], results, workers=1)
    assert ran == CASES[:1]


@pytest.mark.parametrize(
    "content", [b"my notes", b"my notes\n", b'{"key": 1}\n', b'{"key": "a", "figures": {}}\n{"key']
)
def test_a_file_that_holds_something_else_is_left_as_it_is(results: Path, content: bytes) -> None:
    results.write_bytes(content)
    with pytest.raises(InvalidSpec, match="line 1"):
        sweep(CASES[:1], results, workers=1)
    assert results.read_bytes() == content


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_case_raises_comes_through_and_what_is_done_stays(results: Path, tmp_path: Path, workers: int) -> None:
    path = tmp_path / "jobs.csv"
    write_workload(GENERATORS["mixed"](0, 2), path)
    sound = path.read_text()

    def told(done: int, _: int) -> None:
        path.write_text(sound.replace("job,", "jub,", 1))  # after the check, before the run

    sweep(CASES[:1], results, workers)
    cases = [CASES[0], *[Case(str(path), "solo", seed) for seed in range(2)]]
    with pytest.raises(InvalidSpec, match="the nearest is job"):
        sweep(cases, results, workers, told)
    assert len(results.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "error",
    [InvariantViolated("I1", "it broke"), InvalidSpec("job a", (Problem("slo", 0.5, "at least 1", "raise it"),))],
)
def test_errors_go_from_process_to_process(error: InvariantViolated | InvalidSpec) -> None:
    copy = loads(dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_everything_wrong_is_said_before_anything_runs() -> None:
    bad = Case("nothing", "best", jobs=3, accounting="tax", fidelity="high", max_group=-1, move_s=-1.0, realised="x")
    names = {"workload", "policy", "jobs", "accounting", "fidelity", "max_group", "move_s", "realised"}
    assert problems(bad) == names
    assert problems(replace(SMALL, realised="tail")) == {"realised"}
    assert problems(replace(SMALL, jobs=0)) == {"jobs"}
    assert problems(replace(SMALL, pause_s=1e10)) == {"pause_s"}
    assert problems() == {"cases"}


def test_the_optimum_of_every_seed_is_looked_at_before_anything_runs(tmp_path: Path) -> None:
    """The hosts of this cluster hold all but the largest of the production jobs, which one of the two seeds draws."""
    node = "{name: x, gpus: 8, usd_per_gpu_hour: 2, hbm_gb: 80, host_memory_gb: 500}"
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"rollout: {{node: {node}}}\ntrain: {{node: {node}}}\n", encoding="utf-8")
    optima = [Case("production", "optimal", seed, jobs=2, hours=5.0, cluster=str(cluster)) for seed in (0, 2)]
    require_cases(optima[1:])
    assert problems(*optima) == {"job"}


def test_figures_are_summed_up_over_the_seeds_of_each_set_of_parameters(results: Path) -> None:
    found = summaries(sweep(CASES, results, workers=1))
    assert [(each.case.policy, each.seeds) for each in found] == [("solo", 3), ("rollmux", 3)]
    runs = [run_case(case)["usd_total"] or 0.0 for case in CASES[:3]]
    assert found[0].figures["usd_total"].mean == pytest.approx(sum(runs) / 3)
    assert set(found[0].figures) == set(FIGURES)


def test_a_figure_that_a_run_has_not_got_is_left_out() -> None:
    some: Figures = {**dict.fromkeys(FIGURES, 1.0), "cost_over_fluid": None}
    (found,) = summaries({SMALL: some, replace(SMALL, seed=1): dict.fromkeys(FIGURES, 3.0)})
    assert "cost_over_fluid" not in found.figures
    assert found.figures["moves"].mean == 2.0


def test_the_interval_of_a_mean() -> None:
    assert interval([5.0]) == Interval(5.0, None)
    assert interval([4.0, 4.0]) == Interval(4.0, 0.0)
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half_width == pytest.approx(2.776 * 2.5**0.5 / 5**0.5, rel=1e-3)


# Rows of the table in every textbook, two-sided 95 %.
@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (19, 2.093), (30, 2.042), (60, 2.000), (120, 1.980)],
)
def test_the_quantiles_of_students_distribution(freedom: int, t: float) -> None:
    assert student_t(freedom) == pytest.approx(t, abs=5e-4)


def test_with_many_runs_students_distribution_is_the_normal_one() -> None:
    assert student_t(20_000) == pytest.approx(NormalDist().inv_cdf(0.975), rel=1e-3)
    assert student_t(9, 0.99) == pytest.approx(3.2498, abs=5e-4)


PROGRAM = """
import sys
from pathlib import Path
from rollmux.sim.sweep import Case, sweep

if __name__ == "__main__":
    cases = [Case("mixed", "rollmux", seed, jobs=int(sys.argv[2])) for seed in range(12)]
    sweep(cases, Path(sys.argv[1]), 2, lambda done, total: print(done, flush=True))
"""


def test_workers_end_with_a_sweep_that_is_killed_and_its_results_stay(results: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(results), "300"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["0\n", "1\n"]
        process.kill()
        process.stdout.read()  # comes to its end when the last worker has closed it
    assert len(results.read_text().splitlines()) >= 1
    assert 1 <= len(module._resumed(results)) < 12


def test_a_worker_that_hears_ctrl_c_as_it_begins_ends_without_a_word(results: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "sitecustomize.py").write_text(  # what each process imports first
        "import os, signal, sys\nif '--multiprocessing-fork' in sys.orig_argv: os.kill(os.getpid(), signal.SIGINT)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, str(program), str(results), "3"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert "BrokenProcessPool" in done.stderr
    assert "KeyboardInterrupt" not in done.stderr

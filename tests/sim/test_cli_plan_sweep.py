"""`rollmux plan` and `rollmux sweep`, as a person calls them."""

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rollmux.cli.plan import plan
from rollmux.cli.sweep import sweep
from rollmux.sim.generate import GENERATORS
from rollmux.sim.sweep import Case, is_drawn
from rollmux.sim.workload_file import write_workload
from tests.calling import printed, told

EXAMPLES = Path(__file__).parents[2] / "examples"

app = typer.Typer()
app.command()(plan)
app.command()(sweep)
run = partial(told, app)


def data(*words: str | Path) -> Any:
    """What a command prints as data: that, and nothing else."""
    return json.loads(printed(app, *words))


def test_a_plan_says_who_shares_what_and_what_it_costs() -> None:
    code, output = run("plan", "production", "--first", "8")
    assert code == 0, output
    assert "8 jobs in 4 groups by policy rollmux" in output
    assert "group-0 7B-4K-single-job-1 rollout-0 train-0 159 s" in output
    assert "on dedicated nodes:" in output
    assert "no place" not in output


def test_a_plan_is_data_too(tmp_path: Path) -> None:
    words = ("plan", "production", "--first", "8", "--policy", "paper", "--max-group", "2")
    found = data(*words)
    assert found["policy"] == "paper"
    assert found["jobs"] == len(found["explanations"]) == 8
    assert max(len(group["jobs"]) for group in found["groups"]) == 2
    assert all(job["iteration_s"] <= job["limit_s"] for group in found["groups"] for job in group["jobs"])
    assert found["usd_per_hour"] == pytest.approx(sum(group["usd_per_hour"] for group in found["groups"]))
    assert found["saved"] == pytest.approx(1 - found["usd_per_hour"] / found["dedicated_usd_per_hour"])
    code, output = run(*words, "--json", tmp_path / "plan.json")
    assert (code, "per hour shared" in output) == (0, True)
    assert json.loads((tmp_path / "plan.json").read_text()) == found


def test_jobs_of_a_file_on_a_cluster_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    write_workload(GENERATORS["mixed"](0, 60), path)
    code, output = run("plan", path, "--cluster", EXAMPLES / "cluster-fixed.yaml", "--policy", "solo")
    assert code == 0, output
    assert "48 of 60 jobs have no place: job-13, job-14, job-15, job-16, job-17 and 43 more: a group of its" in output
    assert "0 of the 1 nodes it needs in pool train" in output


def test_a_plan_explains_one_job_or_all() -> None:
    code, output = run("plan", "mixed", "--first", "3", "--explain", "job-2")
    assert (code, output.count("policy rollmux")) == (0, 1)
    assert output.startswith("Job job-2, policy rollmux: group-0 by direct packing")
    assert run("plan", "mixed", "--first", "3", "--explain", "all")[1].count("policy rollmux") == 3


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (("--policy", "rolmux"), "the nearest is rollmux"),
        (("--policy", "colocated"), "there is no policy 'colocated'"),
        (("--explain", "job-9"), "there is no job 'job-9'; the nearest is job-"),
        (("--cluster", "nowhere.yaml"), "nowhere.yaml: No such file"),
        (("--cluster", EXAMPLES), "Is a directory"),
        (
            ("--json", "nowhere/plan.json"),
            "--json nowhere/plan.json: must be in a folder that is there, nowhere is not; make it first",
        ),
        (("--max-group", "-1"), "greater than or equal to 0"),
        (("--seed", "-1"), "greater than or equal to 0"),
    ],
)
def test_a_plan_refuses_what_is_wrong_with_what_would_be_right(wrong: tuple[str, ...], hint: str) -> None:
    code, output = run("plan", "mixed", "--first", "3", *wrong)
    assert code == 2
    assert hint in output


def test_a_job_that_fits_no_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    text = (EXAMPLES / "cluster.yaml").read_text(encoding="utf-8").replace("1000", "100")
    path.write_text(text, encoding="utf-8")
    code, output = run("plan", "production", "--first", "2", "--cluster", path)
    assert code == 2
    assert "job 1, job.rollout.resident_bytes" in output
    assert "job 2, job.train.resident_bytes" in output


def test_a_sweep_is_a_table_with_intervals_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    words: tuple[str, ...] = (
        "sweep",
        "--workload",
        "mixed,burst",
        "--policy",
        "solo,rollmux",
        "--jobs",
        "6",
        "--hours",
        "8",
    )
    words += ("--max-group", "5,2", "--workers", "1", "-o", str(out))
    code, output = run(*words, "--seeds", "2")
    assert code == 0, output
    assert "16 runs; each is a line of" in output
    assert re.search(r"mixed rollmux ≤ 2 2 \d\.\d{3} ± \d\.\d{3} ", output)
    assert len(out.read_text().splitlines()) == 16
    found = data(*words, "--seeds", "0:3")
    assert len(out.read_text().splitlines()) == 24
    assert [(r["workload"], r["max_group"], r["policy"], r["seeds"]) for r in found[:3]] == [
        ("mixed", 5, "solo", 3),
        ("mixed", 5, "rollmux", 3),
        ("mixed", 2, "solo", 3),
    ]
    assert found[0]["usd_total"]["mean"] > found[1]["usd_total"]["mean"]
    assert "seed" not in found[0]
    assert run(*words, "--seeds", "0:3")[1].count("24 runs") == 1
    assert len(out.read_text().splitlines()) == 24


def test_a_single_seed_has_no_interval(tmp_path: Path) -> None:
    words = ("sweep", "--policy", "solo", "--jobs", "4", "--seeds", "7:8", "-o", tmp_path / "r.jsonl")
    code, output = run(*words)
    assert (code, output.count("±")) == (0, 1)
    (row,) = data(*words)
    assert row["usd_total"]["half_width"] is None


def test_what_draws_nothing_is_run_once_and_has_no_interval(tmp_path: Path) -> None:
    """It was run with every seed, and its equal results looked like a mean that is known to the last digit."""
    path, out = tmp_path / "jobs.csv", tmp_path / "r.jsonl"
    write_workload(GENERATORS["mixed"](0, 4, 2.0), path)
    words = ("sweep", "--workload", path, "--policy", "solo,random", "--seeds", "1:4", "--workers", "1", "-o", out)
    rows = data(*words)
    assert [(row["policy"], row["seeds"]) for row in rows] == [("solo", 1), ("random", 3)]
    assert rows[0]["usd_total"]["half_width"] is None
    code, output = run(*words)
    assert (code, output.count("4 runs;"), output.count("the same with every seed: run once")) == (0, 1, 1)
    assert [row["seeds"] for row in data(*words, "--fidelity", "phase", "--realised", "tail")] == [3, 3]
    assert not is_drawn(Case(str(path), "gavel", fidelity="phase", realised="tail"))  # it plays no phase


def test_a_sweep_says_what_the_slos_of_co_located_jobs_are_held_against(tmp_path: Path) -> None:
    code, output = run("sweep", "--policy", "colocated", "--jobs", "4", "--seeds", "1", "-o", tmp_path / "r.jsonl")
    assert code == 0, output
    assert "colocated: SLOs are of each job's own time on training nodes alone" in output


def test_a_row_of_a_policy_that_plays_no_phase_says_so(tmp_path: Path) -> None:
    words = ["sweep", "--policy", "gavel,solo", "--jobs", "4", "--seeds", "1", "-o", str(tmp_path / "r.jsonl")]
    result = CliRunner().invoke(app, [*words, "--fidelity", "phase", "--realised", "tail", "--json", "-"])
    assert "--realised tail does not apply to gavel" in result.stderr
    assert "does not apply to gavel" in run(*words, "--fidelity", "phase", "--realised", "tail")[1].split("± half")[1]
    rows = json.loads(result.stdout)
    assert [(row["policy"], row["fidelity"], row["realised"]) for row in rows] == [
        ("gavel", "pace", "bound"),
        ("solo", "phase", "tail"),
    ]


def test_without_the_solver_a_sweep_of_the_optimum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    out = tmp_path / "r.jsonl"
    code, output = run("sweep", "--policy", "solo,optimal", "--jobs", "3", "--seeds", "1", "-o", out)
    assert code == 2, output
    assert "pip install 'rollmux[solver]'" in output
    assert not out.exists()


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (("--policy", "solo,papr"), "the nearest is paper"),
        (("--policy", ","), "--policy names nothing"),
        (("--workload", "nothing"), "workload = 'nothing': must be a file, or one of mixed"),
        (("--seeds", "3:"), "a number like 20, or a range like 0:20"),
        (("--seeds", "0"), "a number like 20"),
        (("--max-group", "5,17"), "numbers up to 16"),
        (("--realised", "tail"), "choose fidelity phase"),
        (("--realised", "tial", "--fidelity", "phase"), "the nearest is tail"),
        (("--jobs", "0"), "300 is this workload's own"),
        (("--cluster", "nowhere.yaml"), "nowhere.yaml: No such file"),
        (("-o", "nowhere/results.jsonl"), "--out nowhere/results.jsonl: must be in a folder that is there"),
        (("--json", "nowhere/table.json"), "--json nowhere/table.json: must be in a folder that is there"),
        (("--json", EXAMPLES), "must be a file, this is a folder"),
        (("-o", "same", "--json", "same"), "--json same: that is --out's already"),
        (("--policy", "optimal", "--cluster", EXAMPLES / "cluster-fixed.yaml"), "rents whatever nodes it needs"),
        (("-o", str(EXAMPLES / "cluster.yaml")), "must be a result of a sweep"),
    ],
)
def test_a_sweep_refuses_what_is_wrong_with_what_would_be_right(
    tmp_path: Path, wrong: tuple[str | Path, ...], hint: str
) -> None:
    code, output = run("sweep", "--jobs", "3", "--seeds", "1", "-o", tmp_path / "r.jsonl", *wrong)
    assert code == 2
    assert hint in output
    assert list(tmp_path.iterdir()) == []

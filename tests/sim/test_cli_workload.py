"""`rollmux workload`, as a person calls it."""

import json
from functools import partial
from pathlib import Path

import pytest
import typer

from rollmux.cli.inputs import load_workload
from rollmux.cli.workload import describe_workload, workload_app
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.sim.generate import GENERATORS
from rollmux.sim.workload import HOUR_S, Arrival, Workload
from rollmux.sim.workload_file import read_workload
from tests.calling import told

run = partial(told, workload_app)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "CSV", "Parquet"])
def test_a_made_workload_is_that_of_its_generator(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"production.{suffix}"
    code, output = run("make", "production", "--jobs", "30", "--hours", "48", "--seed", "3", "-o", path)
    assert code == 0, output
    assert "30 jobs that arrive over 4" in output
    assert read_workload(path) == GENERATORS["production"](3, 30, 48.0)


def test_a_workload_is_described_in_words_and_as_data(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    assert run("make", "rollout-heavy", "-o", path)[0] == 0
    code, output = run("describe", path)
    assert code == 0
    assert "mean duration alone 14.4 h" in output
    data = json.loads(run("describe", "rollout-heavy", "--json")[1])
    assert data["jobs"] == 300
    assert data["longest_duration_h"] == pytest.approx(142.9)
    assert data["rollout_share"] == pytest.approx(0.8, abs=0.02)
    assert data["slo_quantiles"] == sorted(data["slo_quantiles"])
    assert json.loads(run("describe", path, "--json")[1]) == data | {"name": "few"}
    assert json.loads(run("describe", "rollout-heavy", "--json", "--seed", "1")[1]) != data


def test_the_figures_of_a_description() -> None:
    def arrival(name: str, at_h: float, hours: float, slo: float) -> Arrival:
        job = JobSpec(name, PhaseSpec(120.0, nodes=2), PhaseSpec(60.0, nodes=1), slo)
        return Arrival(at_h * HOUR_S, hours * HOUR_S, job)

    both = describe_workload(
        Workload("two", (arrival("a", 1, 3, 1.0), arrival("b", 2, 1, 2.0), arrival("c", 3, 2, 2.0)))
    )
    assert (both.jobs, both.last_arrival_h, both.end_h, both.mean_duration_h, both.longest_duration_h) == (
        3,
        3,
        5,
        2,
        3,
    )
    assert (both.mean_concurrency, both.most_at_once, both.iterations) == (6 / 4, 2, 120)
    assert (both.rollout_node_hours, both.train_node_hours, both.rollout_share) == pytest.approx((8, 2, 0.8))
    assert both.slo_quantiles == (1.0, 1.5, 2.0, 2.0, 2.0)
    assert describe_workload(Workload("one", (arrival("a", 0, 1, 1.5),))).slo_quantiles == (1.5,) * 5


def test_a_trace_is_imported_with_its_options(tmp_path: Path) -> None:
    trace = tmp_path / "workload-1.csv"
    rows = [f"bert-{n},{n * 1800},bert,{n + 1},64" for n in range(20)]
    trace.write_text("\n".join(["name,time,application,num_replicas,batch_size", *rows]), encoding="utf-8")
    out = tmp_path / "bert.csv"
    options = (
        "--jobs",
        "5",
        "--evenly",
        "--start",
        "1",
        "--hours",
        "5",
        "--gpus-per-node",
        "4",
        "--profile",
        "balanced",
    )
    code, output = run("import", "sia", trace, "--app-hours", "bert=2.5", *options, "-o", out)
    assert code == 0, output
    assert "5 jobs" in output
    workload = read_workload(out)
    assert [(a.job.id, a.at_s, a.job.train.nodes) for a in workload.arrivals] == [
        (f"bert-{n}", (n - 2) * 1800, (n + 4) // 4) for n in (2, 4, 6, 8, 10)
    ]
    assert {a.duration_s for a in workload.arrivals} == {9000.0}


def test_published_tables_are_imported_by_name_of_their_format(tmp_path: Path) -> None:
    table = tmp_path / "pai_job_table.csv"
    table.write_text("j1,i1,u1,Terminated,7200.0,10800.0\n", encoding="utf-8")
    assert run("import", "alibaba", table, "-o", tmp_path / "out.parquet")[0] == 0
    assert read_workload(tmp_path / "out.parquet").arrivals[0].duration_s == 3600


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["make", "mixd", "-o", "x.csv"], "choose mixed, balanced, rollout-heavy, train-heavy, production, burst"),
        (["make", "mixed", "-o", "x.txt"], "must be .csv or .parquet"),
        (["make", "mixed", "-o", "nowhere/x.csv"], "--out nowhere/x.csv: must be in a folder that is there"),
        (["make", "mixed", "-o", "."], "--out .: must be a file, this is a folder"),
        (["make", "mixed", "-o", "bad.csv/x.csv"], "must be in a folder, bad.csv is a file"),
        (["import", "philly", "nothing", "-o", "nowhere/x.csv"], "--out nowhere/x.csv: must be in a folder"),
        (["import", "philly", "nothing", "-o", "x.txt"], "must be .csv or .parquet"),
        (["make", "mixed", "-o", "x.csv", "--jobs", "0"], "must be from 1 to 1000000; 300 is this workload's own"),
        (["make", "mixed", "-o", "x.csv", "--seed", "-1"], "greater than or equal to 0"),
        (["make", "mixed"], "Missing option"),
        (["describe", "nothing.csv"], "there is no workload or file 'nothing.csv'; choose mixed, "),
        (["describe", "bad.csv"], "row 2, slo = 'fast': must be a number"),
        (["import", "borg", "bad.csv", "-o", "x.csv"], "choose philly, alibaba, sia"),
        (["import", "philly", "bad.csv", "-o", "x.csv"], "well-formed JSON"),
        (["import", "philly", "nothing", "-o", "x.csv"], "nothing: No such file"),
        (["import", "sia", "bad.csv", "-o", "x.csv", "--app-hours", "bert"], "write it like bert=2.5"),
        (["import", "philly", "bad.csv", "-o", "x.csv", "--app-hours", "bert=1"], "is for sia"),
        (["import", "sia", "bad.csv", "-o", "x.csv", "--profile", "heavy"], "one of balanced, rollout-heavy"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(
    words: list[str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("job,arrival_h,duration_h,rollout_s,train_s,slo\na,0,1,10,10,fast\n", encoding="utf-8")
    code, output = run(*words)
    assert code == 2
    assert hint in output
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


def test_many_problems_are_cut_to_a_screenful(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    rows = [f"job-{n},0,1,10,10,fast" for n in range(50)]
    path.write_text("\n".join(["job,arrival_h,duration_h,rollout_s,train_s,slo", *rows]), encoding="utf-8")
    code, output = run("describe", path)
    assert code == 2
    assert "has 50 problems" in output
    assert "row 21" in output
    assert "row 22" not in output
    assert "and 30 more" in output


def test_other_commands_load_a_workload_by_name_or_file(tmp_path: Path) -> None:
    assert load_workload("burst", 4) == GENERATORS["burst"](4)
    path = tmp_path / "w.csv"
    run("make", "burst", "-o", path)
    assert load_workload(str(path), 4).arrivals == GENERATORS["burst"](0).arrivals
    with pytest.raises(typer.BadParameter, match="choose mixed"):
        load_workload("none", 0)

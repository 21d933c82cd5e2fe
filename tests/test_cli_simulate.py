"""`rollmux simulate` from the command line: figures as data, files, and refusals that say what to do."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.sim.generate import GENERATORS
from rollmux.sim.workload_file import write_workload
from tests.simulating import figures, short_jobs, simulate, text

EXAMPLES = Path(__file__).parents[1] / "examples"

FIGURES = {
    "usd_total": float,
    "usd_per_hour_mean": float,
    "fluid_usd": float,
    "cost_over_fluid": float,
    "cost_over_whole_node": float,
    "slo_attainment": float,
    "jobs": int,
    "makespan_h": float,
    "moves": int,
    "restarts": int,
}
PARTS = {
    "decision_latency_ms": {"p50", "p99", "max"},
    "utilisation": {"rollout", "train"},
    "peak_nodes": {"rollout", "train"},
    "bubbles": {"rollout", "train"},
}
STRATEGIES = {"direct", "rollout_scaling", "train_scaling", "isolated"}
OF_A_JOB = {"job", "arrival_h", "started_h", "ended_h", "iterations", "solo_s", "iteration_s", "slowdown", "slo", "met"}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten mixed jobs of a tenth of the usual length, in a file."""
    return short_jobs(tmp_path_factory.mktemp("workloads") / "ten.csv", 10)


def test_the_figures_are_those_of_the_contract(jobs: Path) -> None:
    policies = ("solo", "colocated", "gavel", "random", "most-idle", "paper", "rollmux")
    found = figures("--workload", jobs, "--policy", ",".join(policies))
    assert found.keys() == {"workload", "policies"}
    assert found["workload"]["jobs"] == 10
    assert tuple(found["policies"]) == policies
    first_h = min(each["arrival_h"] for each in found["policies"]["solo"]["per_job"])
    assert first_h > 0
    for of in found["policies"].values():
        for name, kind in FIGURES.items():
            assert isinstance(of[name], kind), name
        for name, keys in PARTS.items():
            assert of[name].keys() == keys
        assert of["admissions"].keys() >= STRATEGIES
        assert sum(of["admissions"].values()) == of["jobs"] == len(of["per_job"]) == 10
        assert all(each.keys() >= OF_A_JOB for each in of["per_job"])
        assert of["cost_over_fluid"] == pytest.approx(of["usd_total"] / of["fluid_usd"])
        assert of["usd_per_hour_mean"] == pytest.approx(of["usd_total"] / (of["makespan_h"] - first_h))
        assert set(of["decision_latency_ms"].values()) == {None}


def test_a_table_says_what_the_slos_of_co_located_jobs_are_held_against(jobs: Path) -> None:
    against = "colocated: SLOs are of each job's own time on training nodes alone"
    assert against in simulate("--workload", jobs, "--policy", "solo,colocated")[1]
    assert against not in simulate("--workload", jobs, "--policy", "solo")[1]


def test_a_table_says_what_its_limits_are_and_what_is_paid_for_machines_that_are_there(jobs: Path) -> None:
    fluid, paid = "× fluid: cost over that of the work alone", "All machines of this cluster are paid for until the"
    rented = simulate("--workload", jobs, "--policy", "solo")[1]
    assert fluid in rented
    assert paid not in rented
    there = simulate("--workload", jobs, "--policy", "solo", "--cluster", EXAMPLES / "cluster-fixed.yaml")[1]
    assert re.search(rf"{paid} last job ends, after [\d.]+ h \(solo\)", " ".join(there.split()))


def test_the_optimum_has_the_keys_of_a_policy_and_its_proof(jobs: Path) -> None:
    pytest.importorskip("highspy", reason="the optimum needs the extra `solver`")
    found = figures("--workload", jobs, "--policy", "solo,optimal")["policies"]
    assert found["optimal"].keys() == found["solo"].keys() | {"optimum"}
    assert found["optimal"]["admissions"] is None
    assert all(found["optimal"][name].keys() == keys for name, keys in PARTS.items())
    assert set(found["optimal"]["decision_latency_ms"].values()) == {None}


def test_alone_nobody_is_slowed_and_sharing_is_cheaper(jobs: Path) -> None:
    found = figures("--workload", jobs, "--policy", "solo,paper")["policies"]
    assert found["solo"]["slo_attainment"] == found["paper"]["slo_attainment"] == 1.0
    assert found["solo"]["admissions"]["isolated"] == 10
    assert found["paper"]["usd_total"] < found["solo"]["usd_total"]
    assert found["solo"]["cost_over_whole_node"] > 1


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--fidelity", "pace"),
        ("--realised", "tail"),
        ("--accounting", "lifetime"),
        ("--node-mtbf-h", "20", "--job-mtbf-h", "10"),
        ("--cluster", EXAMPLES / "cluster-fixed.yaml"),
    ],
)
def test_the_same_seed_and_workload_give_the_same_bytes(jobs: Path, more: tuple[str | Path, ...]) -> None:
    words = ("--workload", jobs, "--policy", "paper,random", "--seed", "3", *more)
    assert text(*words) == text(*words)


def test_the_bytes_do_not_depend_on_how_a_process_hashes_names(jobs: Path) -> None:
    words = ("--workload", str(jobs), "--policy", "solo,paper,rollmux,random", "--node-mtbf-h", "20", "--json", "-")
    program = "from rollmux.cli import app; app()"
    command = [sys.executable, "-c", program, "simulate", *words]
    one, other = (
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True).stdout
        for seed in ("1", "2")
    )
    assert one == other
    assert one.startswith(b"{")


def test_another_seed_draws_another_workload_and_other_lots(jobs: Path) -> None:
    one, other = (figures("--workload", jobs, "--policy", "solo,random", "--seed", seed) for seed in "01")
    assert one["policies"]["solo"] == other["policies"]["solo"]
    assert (one["workload"].pop("seed"), other["workload"].pop("seed")) == (0, 1)
    assert one["workload"] == other["workload"]


def test_faults_strike_and_all_work_is_done_nevertheless(jobs: Path) -> None:
    struck = figures("--workload", jobs, "--policy", "paper", "--node-mtbf-h", "20", "--job-mtbf-h", "10")
    spared = figures("--workload", jobs, "--policy", "paper")
    one, other = struck["policies"]["paper"], spared["policies"]["paper"]
    assert [job["iterations"] for job in one["per_job"]] == [job["iterations"] for job in other["per_job"]]
    assert one["restarts"] > other["restarts"] == 0
    assert one["restarts"] == sum(job["restarts"] for job in one["per_job"])
    assert one["usd_total"] != other["usd_total"]


def test_restarts_are_told_beside_the_table(jobs: Path) -> None:
    words = ("--workload", jobs, "--policy", "paper")
    assert re.search(r"paper: \d+ restarts after faults\.", simulate(*words, "--job-mtbf-h", "10")[1])
    assert "restarts" not in simulate(*words)[1]


def test_timings_fill_the_latencies(jobs: Path) -> None:
    found = figures("--workload", jobs, "--policy", "paper", "--timings")["policies"]["paper"]["decision_latency_ms"]
    assert 0 < found["p50"] <= found["p99"] <= found["max"] < 1000


def test_a_table_and_a_page_say_which_bills_are_of_longer_phases_than_the_others(jobs: Path, tmp_path: Path) -> None:
    """Beside bills of real durations that of gavel looked far dearer, and the page named it the dearest."""
    words = ("--workload", jobs, "--policy", "solo,gavel", "--report", tmp_path / "r.html")
    note = "--realised tail does not apply to gavel, which plays no single phase; there every phase takes its bound"
    result = CliRunner().invoke(app, ["simulate", *map(str, words), "--realised", "tail"])
    assert note in " ".join(result.stdout.split())
    assert note in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert note not in simulate(*words)[1]
    assert note not in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_policy_that_plays_no_phase_says_that_real_durations_do_not_apply_to_it(jobs: Path) -> None:
    words = ("--workload", jobs, "--policy", "gavel,solo", "--json", "-")
    plain, real = (
        CliRunner().invoke(app, ["simulate", *map(str, words), *more]) for more in ((), ("--realised", "tail"))
    )
    assert plain.stderr == ""
    assert "--realised tail does not apply to gavel, which plays no single phase" in real.stderr
    one, other = (json.loads(result.stdout)["policies"] for result in (plain, real))
    assert one["gavel"] == other["gavel"]
    assert [(name, of["fidelity"], of["realised"]) for name, of in other.items()] == [
        ("gavel", "pace", "bound"),
        ("solo", "phase", "tail"),
    ]
    assert one["solo"]["usd_total"] > other["solo"]["usd_total"]


def test_files_are_written_and_named(jobs: Path, tmp_path: Path) -> None:
    data, page, trace = (tmp_path / name for name in ("figures.json", "page.html", "trace.json"))
    words = ("--workload", jobs, "--policy", "solo,paper", "--json", data, "--report", page, "--trace", trace)
    code, output = simulate(*words)
    assert code == 0, output
    assert output.count("Written:") == 3
    assert "ten: 10 jobs" in output
    assert data.read_text() == text("--workload", jobs, "--policy", "solo,paper")
    assert "<html" in page.read_text().lower()
    assert json.loads(trace.read_text())["traceEvents"]


def test_beside_a_page_the_data_are_all_that_is_printed(jobs: Path, tmp_path: Path) -> None:
    plain = text("--workload", jobs, "--policy", "paper")
    assert text("--workload", jobs, "--policy", "paper", "--report", tmp_path / "page.html") == plain


@pytest.mark.parametrize("option", ["--report", "--trace"])
def test_a_path_that_can_not_be_written_is_refused_before_anything_is_done(
    jobs: Path, tmp_path: Path, option: str
) -> None:
    figures = tmp_path / "figures.json"
    code, output = simulate("--workload", jobs, "--policy", "solo", "--json", figures, option, "nowhere/out")
    assert code == 2
    assert f"{option} nowhere/out: must be in a folder that is there" in output
    assert not figures.exists()


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("cluster*.yaml")), ids=lambda path: path.name)
def test_every_example_of_a_cluster_works(jobs: Path, example: Path) -> None:
    found = figures("--workload", jobs, "--policy", "paper", "--cluster", example)["policies"]["paper"]
    assert found["slo_attainment"] == 1.0
    assert (found["peak_nodes"] == {"rollout": 16, "train": 12}) == ("fixed" in example.name)


def test_jobs_for_which_there_is_no_machine_are_named(tmp_path: Path) -> None:
    cluster = tmp_path / "small.yaml"
    cluster.write_text((EXAMPLES / "cluster.yaml").read_text().replace("1000", "10"), encoding="utf-8")
    production = tmp_path / "production.csv"
    write_workload(GENERATORS["production"](0, 3), production)
    words = ("--workload", production, "--policy", "paper", "--cluster", cluster)
    code, output = simulate(*words)
    assert code == 0, output
    assert "paper: 3 jobs never had a place: " in output
    found = figures(*words)["policies"]["paper"]
    assert (found["usd_total"], found["slo_attainment"], found["usd_per_hour_mean"]) == (0.0, 0.0, None)


def test_what_goes_to_standard_output_has_it_for_itself(jobs: Path) -> None:
    for words in (("--trace", "-"), ("--trace", "-", "--json", os.devnull)):
        code, output = simulate("--workload", jobs, "--policy", "solo", *words)
        assert code == 0, output
        assert json.loads(output)["traceEvents"]
    assert simulate("--workload", jobs, "--policy", "solo", "--report", "-")[1].rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (("--policy", "papr"), "there is no policy papr; choose from solo, "),
        (("--policy", ","), "choose from solo"),
        (("--workload", "nowhere.csv"), "there is no workload or file 'nowhere.csv'; choose mixed"),
        (("--workload", EXAMPLES / "cluster.yaml"), ".csv or .parquet"),
        (("--realised", "tial"), "there is no distribution 'tial'; choose bound, tail, drift"),
        (("--realised", "tail", "--fidelity", "pace"), "need --fidelity phase"),
        (("--trace", "t.json", "--fidelity", "pace"), "need --fidelity phase"),
        (("--fidelity", "high"), "'phase', 'pace'"),
        (("--accounting", "tax"), "'work', 'lifetime'"),
        (("--cluster", "nowhere.yaml"), "nowhere.yaml: "),
        (("--cluster", EXAMPLES), "Is a directory"),
        (("--max-group", "-1"), "greater than or equal to 0"),
        (("--seed", "-1"), "greater than or equal to 0"),
        (("--move-s", "-1"), "greater than or equal to 0"),
        (("--move-s", "nan"), "--move-s"),
        (("--move-s", "inf"), "give seconds"),
        (("--pause-s", "1e10"), "give at most"),
        (("--node-mtbf-h", "0"), "give hours above 0"),
        (("--job-mtbf-h", "-3"), "give hours above 0"),
        (("--job-mtbf-h", "nan", "--node-mtbf-h", "5"), "give hours above 0"),
        (("--json", "nowhere/out.json"), "--json nowhere/out.json: must be in a folder that is there"),
        (("--report", "nowhere/out.html"), "--report nowhere/out.html: must be in a folder that is there"),
        (("--json", "same", "--report", "./same"), "--report same: that is --json's already; name another one"),
        (("--json", "-", "--trace", "-"), "--trace -: that is --json's already"),
        (("--json", "n" * 300), "File name too long"),
        (("--workload", "n" * 300), "File name too long"),
        (("--policy", "solo,gavel", "--trace", "t.json"), "gavel plays no single phase: name another last"),
        (("--policy", "optimal", "--cluster", EXAMPLES / "cluster-fixed.yaml"), "rents whatever nodes it needs"),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_do(jobs: Path, wrong: tuple[str | Path, ...], hint: str) -> None:
    code, output = simulate("--workload", jobs, "--policy", "solo", *wrong)
    assert code == 2, output
    assert hint in output


HEADER = "job,arrival_h,duration_h,rollout_s,train_s,slo"


def test_a_job_that_fits_no_node_is_refused_for_the_optimum_before_anything_is_played(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(f"{HEADER},rollout_mem_gb\na,0,5,100,100,1.5,5000\n", encoding="utf-8")
    code, output = simulate("--workload", jobs, "--policy", "solo,optimal")
    assert code == 2, output
    assert "give it smaller state or more nodes" in output
    assert "per hour" not in output


def test_without_the_solver_the_optimum_is_refused(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    code, output = simulate("--workload", jobs, "--policy", "solo,optimal")
    assert code == 2, output
    assert "pip install 'rollmux[solver]'" in output
    assert "per hour" not in output


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    jobs = tmp_path / "run[v2].csv"
    jobs.write_text(f"{HEADER},rollout_mem_gb\n[/b],0,5,100,100,1.5,5000\n:key:,0,5,9,9,2,1\n", encoding="utf-8")
    code, output = simulate("--workload", jobs, "--policy", "solo")
    assert code == 0, output
    assert "run[v2]: 2 jobs" in output
    assert "1 jobs never had a place: [/b]." in output
    jobs.write_text(f"{HEADER}\nsft[v1],0,5,100,100,1.5\n:key:,0,5,9,9,2\n", encoding="utf-8")
    planned = CliRunner().invoke(app, ["plan", str(jobs)])
    assert planned.exit_code == 0, planned.output
    assert "sft[v1]" in planned.output
    assert ":key:" in planned.output


def test_jobs_that_fail_for_good_are_named_and_the_optimum_meets_no_faults(tmp_path: Path) -> None:
    pytest.importorskip("highspy", reason="the optimum needs the extra `solver`")
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(f"{HEADER}\nlong,0,5,100,100,1.5\n", encoding="utf-8")
    words = ("--workload", jobs, "--policy", "solo,optimal", "--job-mtbf-h", "0.01")
    code, output = simulate(*words)
    assert code == 0, output
    assert "solo: 1 jobs failed or lost nodes 1000 times and were given up: long." in output
    assert "optimal meets no faults" in output
    found = figures(*words)
    assert (found["workload"]["job_mtbf_h"], found["workload"]["node_mtbf_h"]) == (0.01, None)
    assert found["policies"]["solo"]["slo_attainment"] == 0.0


@pytest.mark.parametrize(
    ("more", "known"), [((), True), (("--realised", "tail"), False), (("--accounting", "lifetime"), False)]
)
def test_the_bound_is_of_all_the_work_at_its_bounds(jobs: Path, more: tuple[str, ...], known: bool) -> None:
    found = figures("--workload", jobs, "--policy", "solo", *more)["workload"]["lower_bound_usd"]
    assert (found is not None) == known


def test_jobs_for_which_there_can_be_no_place_are_named_with_what_they_want(tmp_path: Path) -> None:
    jobs, cluster = tmp_path / "jobs.csv", tmp_path / "cluster.yaml"
    wide = [f"wide{number},0,5,100,100,1.2,1,3,4\n" for number in range(7)]
    jobs.write_text(f"{HEADER},staleness,rollout_nodes,train_nodes\n{''.join(wide)}", encoding="utf-8")
    node = "{name: some, gpus: 8, usd_per_gpu_hour: 2.0, hbm_gb: 80, host_memory_gb: 1000}"
    cluster.write_text(f"shared: {{node: {node}, max_nodes: 6}}\n", encoding="utf-8")
    code, output = simulate("--workload", jobs, "--cluster", cluster, "--policy", "paper")
    assert code == 0, output
    said = " ".join(output.split())
    assert "paper: 7 jobs never had a place: wide0, wide1, wide2, wide3, wide4 …." in said
    assert "paper refused wide4: job = 'wide4': must be a job for which policy paper has a place" in said
    assert "6 free nodes, 7 are needed" in said
    assert "paper refused 2 more." in said
    found = figures("--workload", jobs, "--cluster", cluster, "--policy", "paper")["policies"]["paper"]["per_job"]
    assert "7 are needed" in found[0]["refused"]


def test_what_nothing_is_done_with_in_a_cluster_file_is_said_beside_the_figures(jobs: Path, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    content = (EXAMPLES / "cluster.yaml").read_text(encoding="utf-8")
    path.write_text(content.replace("hbm_tb_per_s: 4.0", "network_gbps: 20"), encoding="utf-8")
    found = CliRunner().invoke(
        app, ["simulate", "--workload", str(jobs), "--policy", "solo", "--cluster", str(path), "--json", "-"]
    )
    assert found.stderr == f"{path}: nothing is done with rollout.node.network_gbps: leave that out.\n"
    assert json.loads(found.stdout)["policies"]["solo"]["jobs"]


@pytest.mark.parametrize("content", ["rollout: {}\n", "- 1\n", "rollout: {nod: 1}\n", "\x00", ": :\n", ""])
def test_a_bad_cluster_file_is_refused(jobs: Path, tmp_path: Path, content: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(content, encoding="utf-8")
    code, output = simulate("--workload", jobs, "--cluster", path)
    assert code == 2, output
    assert "problem" in output
    path.write_bytes(b"\xff\xfe\x00\x81")
    assert simulate("--workload", jobs, "--cluster", path)[0] == 2

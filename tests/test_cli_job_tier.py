"""`rollmux simulate --job-tier` from the command line: what is applied, what it saves, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollmux.sim.generate import GENERATORS
from rollmux.sim.workload import Workload
from rollmux.sim.workload_file import write_workload
from tests.simulating import figures, short_jobs, simulate, text

SETUP = Path(__file__).parents[1] / "examples" / "job-setup.yaml"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six mixed jobs of a tenth of the usual length, in a file."""
    return short_jobs(tmp_path_factory.mktemp("workloads") / "six.csv", 6)


def test_packed_jobs_do_as_many_iterations_for_less(jobs: Path) -> None:
    words = ("--workload", jobs, "--policy", "solo,rollmux")
    before, after = figures(*words), figures(*words, "--job-tier", SETUP)
    for policy in ("solo", "rollmux"):
        one, other = before["policies"][policy], after["policies"][policy]
        assert [job["iterations"] for job in one["per_job"]] == [job["iterations"] for job in other["per_job"]]
        assert other["usd_total"] < one["usd_total"]
    assert before["workload"]["job_tier"] is None
    assert after["policies"]["solo"]["slo_attainment"] == 1.0


def test_what_was_applied_is_told(jobs: Path) -> None:
    words = ("--workload", jobs, "--policy", "solo", "--job-tier", f"{SETUP}:rollpacker")
    told = figures(*words)["workload"]["job_tier"]
    assert told["setup"] == str(SETUP)
    assert (told["system"], told["slo_of"], told["stagger"]) == ("rollpacker", "packed", False)
    ((name, profile),) = told["profiles"].items()
    assert name == "rollpacker on 8B/4k on one server"
    assert profile["jobs"] == 6
    assert profile["mean"].keys() == profile["worst"].keys() == {"rollout", "train"}
    assert profile["mean"]["rollout"] < profile["worst"]["rollout"]
    assert profile["rounds"]["short"] > profile["rounds"]["long"] > 0
    assert profile["period"] > 1


def test_a_promised_slo_allows_the_time_of_before(jobs: Path) -> None:
    words = ("--workload", jobs, "--policy", "solo", "--fidelity", "pace")
    before, packed = figures(*words), figures(*words, "--job-tier", SETUP)
    promised = figures(*words, "--job-tier", SETUP, "--slo-of", "promised")
    assert promised["workload"]["job_tier"]["slo_of"] == "promised"
    rows = zip(*(found["policies"]["solo"]["per_job"] for found in (before, packed, promised)), strict=True)
    for job, one, other in rows:
        assert other["slo"] * other["solo_s"] == pytest.approx(job["slo"] * job["solo_s"])
        assert one["slo"] == job["slo"]


def test_staggering_is_a_choice_where_rounds_are_played(jobs: Path) -> None:
    words = ("--workload", jobs, "--policy", "paper", "--job-tier", SETUP)
    told = [figures(*words, *more)["workload"]["job_tier"]["stagger"] for more in ((), ("--stagger",))]
    assert told == [False, True]
    assert figures(*words, "--fidelity", "pace")["workload"]["job_tier"]["stagger"] is None


def test_the_same_seed_gives_the_same_bytes(jobs: Path) -> None:
    words = ("--workload", jobs, "--policy", "rollmux", "--job-tier", SETUP, "--seed", "3")
    assert text(*words) == text(*words)


def test_production_jobs_are_packed_by_their_names(tmp_path: Path) -> None:
    drawn = GENERATORS["production"](0, 20)
    small = [a for a in drawn.arrivals if a.job.id.startswith("7B")][:2]
    path = tmp_path / "production.csv"
    write_workload(Workload("production", tuple(replace(a, duration_s=a.duration_s / 10) for a in small)), path)
    words = ("--workload", path, "--policy", "solo", "--fidelity", "pace", "--job-tier", "production:rlhfuse")
    profiles = figures(*words)["workload"]["job_tier"]["profiles"]
    assert {name: profile["jobs"] for name, profile in profiles.items()} == {"rlhfuse on 7B/8k": 2}


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (("--job-tier", "7B/9k"), "there is no setup or file '7B/9k'; choose 7B/8k"),
        (("--job-tier", "7B/8k:rolmux"), "there is no system 'rolmux'; the nearest is rollmux"),
        (("--job-tier", ":rollmux"), "names no setup; choose 7B/8k"),
        (("--job-tier", ""), "names no setup; choose 7B/8k"),
        (("--job-tier", "production"), "goes by names like 14B-8K-single, which job-1, "),
        (("--job-tier", "7B/8k", "--realised", "tail"), "both say how long phases take"),
        (("--job-tier", "7B/8k", "--fidelity", "pace", "--stagger"), "--stagger needs --fidelity phase"),
        (("--slo-of", "promised"), "say with --job-tier how they pack"),
        (("--no-stagger",), "say with --job-tier how they pack"),
        (("--job-tier", "7B/8k", "--slo-of", "nobody"), "'packed', 'promised'"),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_do(jobs: Path, wrong: tuple[str, ...], hint: str) -> None:
    code, output = simulate("--workload", jobs, "--policy", "solo", *wrong)
    assert code == 2, output
    assert hint in output

"""Workloads: made from a seed, written to files and read back."""

import sys
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import mean

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.job import JobSpec, PhaseSpec, Tail
from rollmux.mux.validation import MAX_DURATION_S, job_problems
from rollmux.sim.generate import (
    BURST_H,
    BURSTS,
    GENERATORS,
    RANGES,
    clipped_mean,
    draw_hours,
    draw_job,
    draw_production_job,
    log_median,
)
from rollmux.sim.production import production_jobs
from rollmux.sim.workload import HOUR_S, Arrival, Workload
from rollmux.sim.workload_file import COLUMNS, hours, read_workload, write_workload

SEEDS = range(10)
HEADER = "job,arrival_h,duration_h,rollout_s,train_s,slo"

# -- files -----------------------------------------------------------------------------------------------------------

seconds = st.floats(0.001, MAX_DURATION_S)
switches = st.sampled_from([0.0, 0.95, 1 / 3])
names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@st.composite
def phases(draw: st.DrawFn) -> PhaseSpec:
    resident = draw(st.sampled_from([0, 113_400_000_000, 999_999_999_999_999]) | st.integers(0, 10**15))
    return PhaseSpec(
        draw(seconds),
        nodes=draw(st.integers(1, 64)),
        resident_bytes=resident,
        load_s=draw(switches),
        offload_s=draw(switches),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    arrivals = [
        Arrival(
            draw(st.floats(0, 1000)) * HOUR_S,
            draw(st.floats(1e-6, 1000)) * HOUR_S,
            JobSpec(
                name,
                draw(phases()),
                draw(phases()),
                slo=draw(st.floats(1, 10)),
                sync_s=draw(switches),
                priority=draw(st.integers(-1000, 1000)),
                staleness=draw(st.integers(0, 2)),
                cold_start_s=draw(switches),
            ),
        )
        for name in draw(st.lists(names, min_size=1, max_size=5, unique=True))
    ]
    return Workload("drawn", tuple(sorted(arrivals, key=lambda arrival: arrival.at_s)))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(workload=workloads())
def test_a_workload_comes_back_from_its_file_exactly(tmp_path: Path, suffix: str, workload: Workload) -> None:
    path = tmp_path / f"drawn.{suffix}"
    write_workload(workload, path)
    assert read_workload(path) == workload


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("name", GENERATORS)
def test_every_generated_workload_comes_back_from_its_file_exactly(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"{name}.{suffix}"
    write_workload(GENERATORS[name](5), path)
    assert read_workload(path) == GENERATORS[name](5)


@given(st.integers(0, 10**9))
def test_whole_seconds_that_no_hours_give_move_by_a_rounding_at_most(whole: int) -> None:
    assert hours(whole) * HOUR_S == pytest.approx(whole, rel=1e-15)
    assert hours(hours(whole) * HOUR_S) == hours(whole)


def rows(tmp_path: Path, *lines: str, header: str = HEADER, name: str = "few.csv") -> Path:
    path = tmp_path / name
    path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return path


def problems_of(path: Path) -> list[str]:
    with pytest.raises(InvalidSpec) as caught:
        read_workload(path)
    return [str(problem) for problem in caught.value.problems]


def test_the_six_columns_are_enough(tmp_path: Path) -> None:
    workload = read_workload(rows(tmp_path, "a,0.5,2,300,60.5,1.25"))
    job = JobSpec("a", PhaseSpec(300.0, nodes=1), PhaseSpec(60.5, nodes=1), slo=1.25)
    assert workload == Workload("few", (Arrival(1800.0, 7200.0, job),))
    assert workload.arrivals[0].iterations == 20


def test_memory_is_gigabytes_per_node_and_blank_cells_take_the_default(tmp_path: Path) -> None:
    path = rows(
        tmp_path,
        "a,0,1,10,10,1,2.0,275.7,-3",
        "b,0,1,10,10,1,,,",
        header=f"{HEADER},rollout_nodes,rollout_mem_gb,priority",
    )
    first, second = (arrival.job for arrival in read_workload(path).arrivals)
    assert (first.rollout.nodes, first.rollout.resident_bytes, first.priority) == (2, 275_700_000_000, -3)
    assert (second.rollout.nodes, second.rollout.resident_bytes, second.priority) == (1, 0, 0)


def test_rows_go_by_arrival_and_ties_keep_the_order_of_the_file(tmp_path: Path) -> None:
    path = rows(tmp_path, *(f"{name},{at},1,10,10,1" for name, at in [("d", 2), ("c", 1), ("a", 2), ("b", 0)]))
    assert [arrival.job.id for arrival in read_workload(path).arrivals] == ["b", "c", "d", "a"]


def test_every_problem_of_every_row_is_told_at_once(tmp_path: Path) -> None:
    path = rows(
        tmp_path,
        "a,0,1,100,100,1.5,1",
        "a,nan,0,100,-5,0.5,x",
        "",
        ",1,1,,100,abc,0",
        "c,1,1",
        header=f"{HEADER},rollout_nodes",
    )
    found = problems_of(path)
    assert found == [
        "row 3, arrival_h = nan: must be a number from 0 to 100000; mind the unit of the column",
        "row 3, duration_h = 0.0: must be a number from 1e-06 to 100000; mind the unit of the column",
        "row 3, rollout_nodes = 'x': must be a whole number; write it in digits",
        "row 3, train_s = -5.0: must be a number from 0.001 to 2.592e+06; give the worst case in seconds",
        "row 3, slo = 0.5: must be a number from 1 to 1000; 1 tolerates no slowing, 2 twice the time alone",
        "row 3, job = 'a': must be a name of its own; row 2 has it too, rename one of them",
        "row 5, job = '': must be a name; fill the cell in",
        "row 5, rollout_s = '': must be a number; fill the cell in",
        "row 5, slo = 'abc': must be a number; write it in digits",
        "row 5, rollout_nodes = 0: must be a whole number from 1 to 4096; mind the unit of the column",
        "row 6, cells = 3: must be the 7 cells of the header; quote names that hold a comma",
    ]


@given(cells=st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=5, max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_text_in_a_row_is_read_or_refused_as_a_description(tmp_path: Path, cells: list[str]) -> None:
    quoted = [f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in cells]
    path = rows(tmp_path, ",".join(["a", *quoted]))
    with suppress(InvalidSpec):
        assert len(read_workload(path).arrivals) == 1


def test_an_unknown_column_is_refused_with_the_nearest_name_and_a_missing_one_named(tmp_path: Path) -> None:
    path = rows(tmp_path, "0,1,10,10,1,2", header="arrival_h,duration_h,rollout_s,train_s,slo,rolout_nodes")
    assert problems_of(path) == [
        f"column 6 = 'rolout_nodes': must be one of {', '.join(COLUMNS)}; the nearest is rollout_nodes",
        "header = ['arrival_h', 'duration_h', 'rollout_s', 'train_s', 'slo', 'rolout_nodes']: "
        "must be with a column job; add job for each job",
    ]
    twice = rows(tmp_path, "a,0,1,10,10,1,1", header=f"{HEADER},slo")
    assert problems_of(twice) == ["column 7 = 'slo': must be there once; leave one of them out"]


@pytest.mark.parametrize("other", [";", "\t"])
def test_a_table_without_commas_is_refused_as_that(tmp_path: Path, other: str) -> None:
    path = rows(tmp_path, other.join(["a", "0", "1", "10", "10", "1,5"]), header=HEADER.replace(",", other))
    (problem,) = problems_of(path)
    assert problem.endswith("must be names with commas between them; export the file with commas")


def test_every_column_is_told_of() -> None:
    page = Path(__file__).parents[2] / "docs" / "design" / "simulator.md"
    told = page.read_text(encoding="utf-8").partition("## A workload file")[2].partition("## How fast")[0]
    assert [name for name in COLUMNS if f"`{name}`" not in told] == []


def test_a_file_without_jobs_or_with_broken_content_is_refused(tmp_path: Path) -> None:
    assert "at least one job" in problems_of(rows(tmp_path))[0]
    assert "column job" in problems_of(rows(tmp_path, header=""))[0]
    assert "well-formed CSV" in problems_of(rows(tmp_path, '"a,0,1'))[0]
    assert "well-formed Parquet" in problems_of(rows(tmp_path, name="few.parquet"))[0]
    assert ".csv or .parquet" in problems_of(rows(tmp_path, name="few.txt"))[0]
    (tmp_path / "few.csv").write_bytes(b"\xff\xfe")
    assert "UTF-8" in problems_of(tmp_path / "few.csv")[0]


def test_parquet_that_is_damaged_inside_is_refused(tmp_path: Path) -> None:
    import_module("pyarrow")
    path = tmp_path / "few.parquet"
    write_workload(GENERATORS["mixed"](0, 200, 20.0), path)
    content = bytearray(path.read_bytes())
    for at in range(4, len(content) // 2, 40):
        content[at] ^= 0xFF
    path.write_bytes(bytes(content))
    assert "well-formed Parquet" in problems_of(path)[0]


def test_parquet_cells_of_other_types_are_refused_in_place(tmp_path: Path) -> None:
    arrow = import_module("pyarrow")
    parquet = import_module("pyarrow.parquet")
    columns = {name: [1, 2] for name in HEADER.split(",")} | {"priority": [None, 2], "slo": [True, False]}
    path = tmp_path / "few.parquet"
    parquet.write_table(arrow.table(columns), path)
    assert problems_of(path) == [
        "row 1, slo = True: must be a number; write it in digits",
        "row 2, slo = False: must be a number; write it in digits",
    ]
    columns["slo"] = [1, 2]
    parquet.write_table(arrow.table(columns), path)
    jobs = [arrival.job for arrival in read_workload(path).arrivals]
    assert [(job.id, job.priority, job.slo) for job in jobs] == [("1", 0, 1.0), ("2", 2, 2.0)]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = rows(tmp_path, name="few.parquet")
    assert problems_of(path) == [
        "suffix = '.parquet': must be .csv as long as pyarrow is not installed; pip install 'rollmux[parquet]'"
    ]
    with pytest.raises(InvalidSpec, match="rollmux\\[parquet\\]"):
        write_workload(GENERATORS["mixed"](0, jobs=1), path)


def test_what_a_file_has_no_column_for_is_refused_when_writing(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    arrival = GENERATORS["mixed"](0, jobs=1).arrivals[0]
    job = replace(
        arrival.job, tail=Tail(100, 10, 5.0), iterations=4, rollout=replace(arrival.job.rollout, tensor_parallel=2)
    )
    with pytest.raises(InvalidSpec) as caught:
        write_workload(Workload("few", (replace(arrival, job=job),)), path)
    assert [problem.path for problem in caught.value.problems] == [
        "job 'job-1', rollout.tensor_parallel",
        "job 'job-1', iterations",
        "job 'job-1', tail",
    ]
    twice = Workload("few", (arrival, arrival))
    with pytest.raises(InvalidSpec, match="a name of its own"):
        write_workload(twice, path)
    assert not path.exists()


def test_columns_that_nobody_needs_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    write_workload(GENERATORS["mixed"](0), path)
    assert path.read_text(encoding="utf-8").splitlines()[0] == HEADER
    write_workload(GENERATORS["production"](0), path)
    used = path.read_text(encoding="utf-8").splitlines()[0].split(",")
    assert set(COLUMNS) - set(used) == {"rollout_nodes", "train_nodes", "priority", "staleness"}


# -- generators ------------------------------------------------------------------------------------------------------


def mean_hours(workload: Workload) -> float:
    return mean(arrival.duration_s for arrival in workload.arrivals) / HOUR_S


@pytest.mark.parametrize(
    ("name", "jobs", "span_h", "mean_h", "longest_h"),
    [(name, 300, 580.0, 14.4, 142.9) for name in ("mixed", "balanced", "rollout-heavy", "train-heavy")]
    + [("production", 200, 370.2, 27.9, 27.9 * 142.9 / 14.4)],
)
def test_the_papers_workloads_have_its_figures(
    name: str, jobs: int, span_h: float, mean_h: float, longest_h: float
) -> None:
    for seed in SEEDS:
        workload = GENERATORS[name](seed)
        assert len(workload.arrivals) == jobs
        at_h = [arrival.at_s / HOUR_S for arrival in workload.arrivals]
        assert at_h == sorted(at_h)
        assert 0 <= at_h[0] < at_h[-1] <= span_h
        assert at_h[-1] > span_h * 0.95
        assert mean(at_h) == pytest.approx(span_h / 2, rel=0.15)
        assert mean_hours(workload) == pytest.approx(mean_h, rel=0.02)
        assert max(arrival.duration_s for arrival in workload.arrivals) / HOUR_S == pytest.approx(longest_h, rel=0.02)
        assert mean(arrival.job.slo for arrival in workload.arrivals) == pytest.approx(1.5, abs=0.08)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generated_job_is_sound_and_fits_the_papers_cluster(name: str) -> None:
    for arrival in GENERATORS[name](1).arrivals:
        assert not job_problems(arrival.job, PAPER_CLUSTER)
        assert arrival.duration_s > 0
        assert 1 <= arrival.job.slo <= 2


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_says_it_all(name: str) -> None:
    assert GENERATORS[name](3) == GENERATORS[name](3)
    assert GENERATORS[name](3) != GENERATORS[name](4)


@pytest.mark.parametrize("name", GENERATORS)
def test_jobs_and_hours_can_be_chosen_and_leave_durations_alone(name: str) -> None:
    workload = GENERATORS[name](0, 1000, 48.0)
    assert len(workload.arrivals) == 1000
    assert workload.arrivals[-1].at_s <= 48 * HOUR_S
    assert mean_hours(workload) == pytest.approx(GENERATORS[name].mean_h, rel=0.01)


def test_one_job_can_be_drawn_and_none_is_refused() -> None:
    assert len(GENERATORS["burst"](0, 1, 0.1).arrivals) == 1
    with pytest.raises(InvalidSpec, match="2 problems") as caught:
        GENERATORS["mixed"](0, 0, float("nan"))
    assert [problem.path for problem in caught.value.problems] == ["jobs", "hours"]


def within(job: JobSpec, profile: str) -> bool:
    return any(
        rollout[0] <= job.rollout.duration_s <= rollout[1] and train[0] <= job.train.duration_s <= train[1]
        for rollout, train in RANGES[profile]
    )


@pytest.mark.parametrize("profile", RANGES)
def test_phases_lie_in_the_ranges_of_their_profile(profile: str) -> None:
    assert all(within(arrival.job, profile) for arrival in GENERATORS[profile](0).arrivals)


def test_mixed_jobs_are_of_every_profile() -> None:
    jobs = [arrival.job for arrival in GENERATORS["mixed"](0).arrivals]
    counts = {profile: sum(within(job, profile) for job in jobs) for profile in RANGES}
    assert all(count > 50 for count in counts.values()), counts


def test_a_drawn_job_stays_what_earlier_measurements_were_made_of() -> None:
    job = draw_job(Random(7), "a", "mixed")
    assert (job.rollout.duration_s, job.train.duration_s, job.slo) == (
        139.48234964231736,
        26.20716059067031,
        1.8212742919913083,
    )


def test_production_jobs_are_the_ten_with_memory_and_switches_both_ways() -> None:
    types = {job.id: job for job in production_jobs(slo=1.5)}
    rng = Random(0)
    drawn = [draw_production_job(rng, "x") for _ in range(300)]
    assert {job.id.removesuffix("-x") for job in drawn} == set(types)
    for job in drawn:
        of_type = types[job.id.removesuffix("-x")]
        for phase, typical in ((job.rollout, of_type.rollout), (job.train, of_type.train)):
            assert (phase.duration_s, phase.resident_bytes) == (typical.duration_s, typical.resident_bytes)
            assert phase.load_s == phase.offload_s > 0
            assert phase.switch_s == pytest.approx(typical.switch_s)


def test_bursts_are_short_and_few() -> None:
    at_h = [arrival.at_s / HOUR_S for arrival in GENERATORS["burst"](0).arrivals]
    assert {int(at // 24) for at in at_h} == set(range(BURSTS))
    assert all(at % 24 <= BURST_H for at in at_h)


@given(st.floats(0.2, 2.5), st.floats(3, 50))
def test_the_clipped_lognormal_has_mean_one(sigma: float, longest: float) -> None:
    assert clipped_mean(log_median(sigma, longest), sigma, longest) == pytest.approx(1)


def test_durations_have_the_mean_that_the_formula_says() -> None:
    drawn = draw_hours(Random(0), 20_000, 10.0)
    assert mean(drawn) == pytest.approx(10.0, rel=1e-3)
    assert sorted(drawn) != drawn
    assert max(drawn) == pytest.approx(10.0 * 142.9 / 14.4)
    assert drawn.count(max(drawn)) == pytest.approx(20_000 * 0.014, rel=0.1)

"""Public traces become workloads: each importer on a small file of the published form."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollmux.errors import InvalidSpec
from rollmux.sim.importers import IMPORTERS, Selection, import_alibaba, import_philly, import_sia
from rollmux.sim.workload import HOUR_S, Workload
from rollmux.sim.workload_file import read_workload, write_workload


def philly_job(name: str, submitted: str | None, *attempts: tuple[str | None, str | None, int]) -> dict[str, Any]:
    """A job whose attempts are (start, end, GPUs), times of one October day as HH:MM:SS."""

    def day(time: str | None) -> str | None:
        return time and (time if time == "None" else f"2017-10-07 {time}")

    return {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": name,
        "attempts": [
            {
                "start_time": day(start),
                "end_time": day(end),
                "detail": [{"ip": "m47", "gpus": [f"gpu{number}" for number in range(gpus)]}],
            }
            for start, end, gpus in attempts
        ],
        "submitted_time": day(submitted),
        "user": "ce2f4c",
    }


def philly_log(path: Path, *jobs: object) -> Path:
    log = path / "cluster_job_log"
    log.write_text(json.dumps(jobs), encoding="utf-8")
    return log


PHILLY = (
    philly_job("late", "06:00:00", ("06:30:00", "08:30:00", 16)),
    philly_job("retried", "01:00:00", ("01:30:00", "02:30:00", 8), ("04:00:00", "06:00:00", 8)),
    philly_job("unlogged", "02:00:00", (None, "02:30:00", 8), ("03:00:00", "04:00:00", 1)),
    philly_job("running", "03:00:00", ("03:30:00", "04:00:00", 8), ("05:00:00", None, 8)),
    philly_job("still", "03:00:00", ("03:30:00", "None", 8)),
    philly_job("never", "03:30:00"),
    philly_job("nowhere", "None", ("03:30:00", "04:00:00", 8)),
    philly_job("short", "05:00:00", ("05:00:00", "05:00:36", 1)),
)


def taken(workload: Workload) -> list[tuple[str, float, float]]:
    """Names, arrivals and durations in hours."""
    return [(a.job.id, a.at_s / HOUR_S, a.duration_s / HOUR_S) for a in workload.arrivals]


def test_philly_jobs_arrive_when_submitted_and_run_as_long_as_their_attempts(tmp_path: Path) -> None:
    assert taken(import_philly(philly_log(tmp_path, *PHILLY))) == [
        ("retried", 0.0, 3.0),
        ("unlogged", 1.0, 1.0),
        ("short", 4.0, 0.01),
        ("late", 5.0, 2.0),
    ]


def test_a_log_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    log = philly_log(tmp_path, *PHILLY)
    without = import_philly(log)
    log.write_bytes(b"\xef\xbb\xbf" + log.read_bytes())
    assert import_philly(log) == without


def test_a_window_and_a_least_duration_choose_jobs(tmp_path: Path) -> None:
    log = philly_log(tmp_path, *PHILLY)
    assert taken(import_philly(log, Selection(min_duration_h=0.5, start_h=1.0, hours=4.0))) == [("unlogged", 0, 1)]
    assert taken(import_philly(log, Selection(start_h=1.0, hours=4.5)))[-1] == ("late", 4, 2)


def test_so_many_jobs_are_the_first_ones_or_even_over_the_trace(tmp_path: Path) -> None:
    log = philly_log(
        tmp_path, *(philly_job(f"job-{n}", f"{n:02}:00:00", ("22:00:00", "23:00:00", 1)) for n in range(9))
    )

    def names(**wants: Any) -> list[str]:
        return [name for name, _, _ in taken(import_philly(log, Selection(**wants)))]

    assert names(jobs=3) == ["job-0", "job-1", "job-2"]
    assert names(jobs=3, evenly=True) == ["job-0", "job-3", "job-6"]
    assert names(jobs=4, evenly=True) == ["job-0", "job-2", "job-4", "job-6"]
    assert len(names(jobs=50, evenly=True)) == 9


def test_phases_and_slo_are_drawn_by_profile_and_seed(tmp_path: Path) -> None:
    log = philly_log(tmp_path, *PHILLY)
    workload = import_philly(log, Selection(profile="rollout-heavy", seed=1))
    assert workload == import_philly(log, Selection(profile="rollout-heavy", seed=1))
    assert workload != import_philly(log, Selection(profile="rollout-heavy", seed=2))
    for job in (arrival.job for arrival in workload.arrivals):
        assert job.rollout.duration_s > job.train.duration_s
        assert (job.rollout.nodes, job.train.nodes) == (1, 1)
        assert 1 <= job.slo <= 2


def test_gpus_become_nodes_where_asked_for(tmp_path: Path) -> None:
    workload = import_philly(philly_log(tmp_path, *PHILLY), Selection(gpus_per_node=8))
    nodes = {a.job.id: (a.job.rollout.nodes, a.job.train.nodes) for a in workload.arrivals}
    assert nodes == {"retried": (1, 1), "unlogged": (1, 1), "short": (1, 1), "late": (2, 2)}


def problems_of(read: Callable[[], Workload]) -> list[str]:
    with pytest.raises(InvalidSpec) as caught:
        read()
    return [str(problem) for problem in caught.value.problems]


def test_what_is_wrong_in_a_philly_log_is_told_at_once(tmp_path: Path) -> None:
    good = philly_job("a", "01:00:00", ("01:30:00", "02:30:00", 8))
    wrong_times = good | {"submitted_time": "yesterday"}
    wrong_detail = good | {"attempts": [good["attempts"][0] | {"detail": [{"ip": "m1"}]}, "second"]}
    found = problems_of(lambda: import_philly(philly_log(tmp_path, wrong_times, wrong_detail, 7, {"jobid": "b"})))
    assert [problem.split(" = ")[0] for problem in found] == [
        "job 1, submitted_time",
        "job 2, attempt 1, detail",
        "job 2, attempt 2",
        "job 3",
        "job 4",
    ]
    assert "must be a time like 2017-10-07 01:12:09" in found[0]
    assert "there once" in problems_of(lambda: import_philly(philly_log(tmp_path, good, good)))[0]
    (tmp_path / "cluster_job_log").write_text("[{", encoding="utf-8")
    assert "well-formed JSON" in problems_of(lambda: import_philly(tmp_path / "cluster_job_log"))[0]
    (tmp_path / "cluster_job_log").write_text("[" * 100_000, encoding="utf-8")
    assert "well-formed JSON" in problems_of(lambda: import_philly(tmp_path / "cluster_job_log"))[0]
    (tmp_path / "cluster_job_log").write_text("{}", encoding="utf-8")
    assert "a list of jobs" in problems_of(lambda: import_philly(tmp_path / "cluster_job_log"))[0]


def test_an_empty_window_and_wrong_wishes_are_refused(tmp_path: Path) -> None:
    log = philly_log(tmp_path, *PHILLY)
    assert "at least one of the 4 usable ones" in problems_of(lambda: import_philly(log, Selection(start_h=9.0)))[0]
    wants = Selection(jobs=0, hours=0, start_h=-1, gpus_per_node=0, profile="heavy", min_duration_h=float("nan"))
    evenly = problems_of(lambda: import_philly(log, Selection(evenly=True)))
    assert evenly == ["evenly = True: must be left out without jobs, all of which are taken; say how many to take"]
    paths = [problem.split(" = ")[0] for problem in problems_of(lambda: import_philly(log, wants))]
    assert paths == ["jobs", "hours", "start_h", "min_duration_h", "gpus_per_node", "profile"]


def lines(path: Path, name: str, *rows: str) -> Path:
    file = path / name
    file.write_text("\n".join([*rows, ""]), encoding="utf-8")
    return file


JOB_HEADER = "job_name,inst_id,user,status,start_time,end_time"
JOB_ROWS = (
    "j1,i1,u1,Terminated,7200.0,10800.0",
    "j2,i2,u1,Failed,3600.0,5400.0",
    "j3,i3,u2,Running,3600.0,",
    "j4,i4,u2,Waiting,,",
)
TASK_HEADER = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
TASK_ROWS = (
    "j1,worker,2.0,Terminated,3600.0,10800.0,600.0,29.3,50.0,T4",
    "j1,ps,1.0,Terminated,0.0,9000.0,600.0,29.3,,CPU",
    "j2,worker,9.0,Terminated,7200.0,9000.0,600.0,29.3,100.0,V100",
    "j3,worker,1.0,Terminated,7200.0,9000.0,600.0,29.3,0.0,CPU",
    "j4,worker,1.0,Terminated,100.0,200.0,600.0,29.3,100.0,V100",
    "j4,evaluator,1.0,Running,100.0,,600.0,29.3,100.0,V100",
)


@pytest.mark.parametrize("header", [(), (JOB_HEADER,)])
def test_alibabas_job_table_is_read_with_and_without_a_header(tmp_path: Path, header: tuple[str, ...]) -> None:
    workload = import_alibaba(lines(tmp_path, "pai_job_table.csv", *header, *JOB_ROWS))
    assert taken(workload) == [("j2", 0.0, 0.5), ("j1", 1.0, 1.0)]
    assert workload.name == "pai_job_table"


@pytest.mark.parametrize("header", [(), (TASK_HEADER,)])
def test_alibabas_tasks_are_joined_to_jobs_with_their_gpus(tmp_path: Path, header: tuple[str, ...]) -> None:
    table = lines(tmp_path, "pai_task_table.csv", *header, *TASK_ROWS)
    workload = import_alibaba(table, Selection(gpus_per_node=8))
    assert taken(workload) == [("j1", 0.0, 3.0), ("j2", 2.0, 0.5)]
    assert [arrival.job.rollout.nodes for arrival in workload.arrivals] == [1, 2]


@pytest.mark.parametrize(("percent", "gpus_per_node"), [(7.0, 1), (56.0, 8)])
def test_parts_of_gpus_that_add_up_to_whole_nodes_are_no_more_than_these(
    tmp_path: Path, percent: float, gpus_per_node: int
) -> None:
    row = f"j1,worker,100.0,Terminated,3600.0,10800.0,600.0,29.3,{percent},T4"
    workload = import_alibaba(lines(tmp_path, "t.csv", TASK_HEADER, row), Selection(gpus_per_node=gpus_per_node))
    assert workload.arrivals[0].job.rollout.nodes == 7


def test_alibabas_job_table_knows_no_gpus(tmp_path: Path) -> None:
    table = lines(tmp_path, "pai_job_table.csv", *JOB_ROWS)
    found = problems_of(lambda: import_alibaba(table, Selection(gpus_per_node=8)))
    assert len(found) == 2
    assert "leave out gpus_per_node" in found[0]


def test_what_is_wrong_in_alibabas_tables_is_told_by_line(tmp_path: Path) -> None:
    table = lines(tmp_path, "t.csv", JOB_ROWS[0], "j2,i2,u1,Failed,soon,inf", "j3,i3", *JOB_ROWS[2:])
    found = problems_of(lambda: import_alibaba(table))
    assert [problem.split(" = ")[0] for problem in found] == ["line 2, start_time", "line 2, end_time", "line 3"]
    assert "a header with job_name" in problems_of(lambda: import_alibaba(lines(tmp_path, "t.csv", "a,b,c")))[0]
    assert "end_time" in problems_of(lambda: import_alibaba(lines(tmp_path, "t.csv", "job_name,start_time", "a,1")))[0]
    (tmp_path / "t.csv").write_bytes(b"job_name,\xff\n")
    assert "UTF-8" in problems_of(lambda: import_alibaba(tmp_path / "t.csv"))[0]


SIA_HEADER = "name,time,application,num_replicas,batch_size"
SIA_ROWS = ("cifar10-0,107,cifar10,6,2048", "bert-1,467,bert,12,384", "bert-2,3707,bert,16,384")


def test_sias_durations_come_from_a_table_of_applications(tmp_path: Path) -> None:
    trace = lines(tmp_path, "workload-1.csv", SIA_HEADER, *SIA_ROWS)
    workload = import_sia(trace, Selection(gpus_per_node=4), {"cifar10": 0.5, "bert": 2.0})
    assert taken(workload) == [("cifar10-0", 0.0, 0.5), ("bert-1", 0.1, 2.0), ("bert-2", 1.0, 2.0)]
    assert [arrival.job.train.nodes for arrival in workload.arrivals] == [2, 3, 4]
    found = problems_of(lambda: import_sia(trace, None, {"cifar10": 0.5}))
    assert found == [
        "line 3, application = 'bert': must be one whose hours are given, as the file has no duration; "
        "give app_hours, or add a column duration"
    ]
    assert "above 0" in problems_of(lambda: import_sia(trace, None, {"cifar10": 0.5, "bert": 0.0}))[0]


def test_sias_durations_may_stand_in_the_file(tmp_path: Path) -> None:
    rows = (f"{row},{duration}" for row, duration in zip(SIA_ROWS, ("3600", "", "60.5"), strict=True))
    trace = lines(tmp_path, "workload-1.csv", f"{SIA_HEADER},duration", *rows)
    assert [duration for _, _, duration in taken(import_sia(trace, None, {"bert": 3.0}))] == pytest.approx(
        [1.0, 3.0, 60.5 / 3600]
    )


def test_a_sia_job_of_which_nobody_knows_when_it_comes_is_told_of(tmp_path: Path) -> None:
    """It was left out without a word."""
    trace = lines(tmp_path, "workload-1.csv", SIA_HEADER, *SIA_ROWS, "bert-3,,bert,8,384")
    found = problems_of(lambda: import_sia(trace, None, {"cifar10": 0.5, "bert": 2.0}))
    assert found == ["line 5, time = '': must be a number; mend it or take the job out"]


def test_a_sia_trace_needs_its_header(tmp_path: Path) -> None:
    assert "header with application" in problems_of(lambda: import_sia(lines(tmp_path, "w.csv", *SIA_ROWS)))[0]
    table = lines(tmp_path, "w.csv", "application,time", "bert,1")
    assert "with name" in problems_of(lambda: import_sia(table))[0]


def test_an_imported_workload_comes_back_from_its_file_exactly(tmp_path: Path) -> None:
    table = lines(tmp_path, "t.csv", *(f"j{n},i,u,Terminated,{n * 7}.0,{n * 1009 + 60}.0" for n in range(200)))
    workload = IMPORTERS["alibaba"](table, None)
    assert len(workload.arrivals) == 200
    write_workload(workload, tmp_path / "t.parquet")
    assert read_workload(tmp_path / "t.parquet") == workload

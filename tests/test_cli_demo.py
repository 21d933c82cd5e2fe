"""The demo: two jobs under real controllers, and the figures that it makes of what these have seen."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from rollmux.cli import app, demo
from rollmux.cli.woven.figures import Figures, JobFigures, Measured, NotSideBySide, figures, measured
from rollmux.cli.woven.floor import ROLLMUX
from rollmux.cli.woven.report import outcomes
from rollmux.cli.woven.show import curve, show
from rollmux.protocol.history import HistoryView, PoolView, SpanView, UseView
from rollmux.service.local.process_tree import descendants
from tests.service.local.launching import be_init, nothing_left

R, T, STEPS = 3.0, 2.0, 5


def steps_of(job: str, at: float, pace: float, switch_s: float = 0.0) -> list[SpanView]:
    """Steps of a job whose rollout takes R and whose update T, each step `pace` after the one before."""
    spans = []
    for step in range(STEPS):
        begin = at + step * pace
        for kind, node, length in (("rollout", "rollout-0", R), ("train", "train-0", T), ("sync", "", 0.0)):
            use = (UseView(node, begin, begin + length),) if node else ()
            times = (0.0, begin, begin + switch_s, begin + length, switch_s > 0 and bool(node), False, "finished")
            spans.append(SpanView(1, job, "group-0", kind, step, 1, use, *times))
            begin += length
    return sorted(spans, key=lambda span: span.ended_s or 0.0)


def seen(*jobs: list[SpanView], rewards: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)) -> Measured:
    pools = tuple(
        PoolView(pool, 1, 1, usd, 0.0, 0.0, 0.0, 0.0, 0.0) for pool, usd in (("rollout", 2.0), ("train", 5.0))
    )
    spans = tuple(sorted((span for job in jobs for span in job), key=lambda span: span.ended_s or 0.0))
    history = HistoryView(100.0, 1, 0.0, 0.0, spans, (), pools)
    return measured(history, {job[0].job: rewards for job in jobs})


def both(pace: float = 6.0) -> tuple[list[Measured], Measured]:
    """Two jobs alone; and woven, the second half a round behind the first."""
    alone = [seen(steps_of(job, 1.0, R + T)) for job in ("a", "b")]
    return alone, seen(steps_of("a", 1.0, pace), steps_of("b", 1.0 + R, pace, switch_s=0.5))


def test_a_step_is_as_long_as_from_end_to_end_and_its_slowdown_is_against_its_time_alone() -> None:
    found = figures(*both(), 1.25)
    assert [(job.job, job.alone_s, job.woven_s, job.slowdown) for job in found.jobs] == [
        ("a", R + T, 6.0, 1.2),
        ("b", R + T, 6.0, 1.2),
    ]
    assert found.gain == pytest.approx(2 / 1.2)
    assert all(job.same_rewards and job.steps == STEPS for job in found.jobs)


def test_alone_a_pool_is_idle_while_the_other_works_and_woven_little_is() -> None:
    found = figures(*both(), 1.25)
    assert found.idle_alone == pytest.approx(0.5)
    assert found.idle_woven == pytest.approx(1 - 2 * (R + T) / 12)
    assert found.switch_s == pytest.approx(0.5)


def test_other_rewards_than_alone_are_said() -> None:
    alone, _ = both()
    woven = seen(steps_of("a", 1.0, 6.0), steps_of("b", 4.0, 6.0), rewards=(0.1, 0.2, 0.3, 0.4, 0.6))
    assert not any(job.same_rewards for job in figures(alone, woven, 1.2).jobs)


def test_jobs_that_were_never_beside_each_other_measure_nothing() -> None:
    with pytest.raises(NotSideBySide, match="no place beside each other"):
        seen(steps_of("a", 0.0, 5.0), steps_of("b", 60.0, 5.0))
    with pytest.raises(NotSideBySide, match="--steps"):
        seen(steps_of("a", 0.0, 5.0), steps_of("b", 19.0, 5.0))


def test_the_reports_pay_for_the_nodes_of_each_job_alone_and_for_those_of_one_woven() -> None:
    alone, woven = both()
    apart, together = outcomes(alone, woven, figures(alone, woven, 1.25))
    long_h = STEPS * (R + T) / 3600
    assert apart.usd_total == pytest.approx(2 * long_h * (2.0 + 5.0))
    assert apart.rollout.busy == pytest.approx(2 * STEPS * R / 3600)
    assert (
        apart.fluid_usd
        == pytest.approx(2 * STEPS * (R * 2.0 + T * 5.0) / 3600)
        == pytest.approx(together.fluid_usd + 2.0 * together.rollout.switch + 5.0 * together.train.switch)
    )
    assert together.usd_total == pytest.approx((4 * 6.0 + R + R + T) / 3600 * 7.0)
    assert [job.slowdown for job in together.jobs] == [1.2, 1.2]
    assert [(level.rollout_nodes, level.usd_per_hour) for level in apart.levels] == [(2, 14.0), (0, 0.0), (0, 0.0)]
    assert [(level.train_nodes, level.running) for level in together.levels] == [(1, 2), (0, 0)]
    assert len({(span.group, span.node) for span in apart.spans}) == 4
    assert {span.node for span in together.spans} == {"rollout-0", "train-0"}
    assert min(span.start_s for span in apart.spans) == min(span.start_s for span in together.spans) == 0.0


def test_a_curve_has_its_first_and_last_value_and_a_bar_for_each_part() -> None:
    assert curve([0.0, 1.0]) == "0.00 ▁█ 1.00"
    assert curve([0.5] * 30) == f"0.50 {'▅' * 8} 0.50"
    assert curve([-1.0, 2.0]) == "-1.00 ▁█ 2.00"
    assert curve([]) == ""


@pytest.mark.parametrize(("slowdown", "is_said"), [(0.83, True), (0.97, False), (1.1, False)])
def test_that_the_machine_was_busy_while_they_ran_alone_is_said(slowdown: float, is_said: bool) -> None:
    job = JobFigures("a", 1.0, slowdown, slowdown, 1.2, 1, True, (0.5,))
    console = Console(record=True, width=120)
    show(Figures((job,), 0.5, 0.1, None), console)
    assert ("Run it again" in console.export_text()) == is_said


def test_the_gain_is_the_work_of_all_jobs_for_a_node_hour() -> None:
    jobs = tuple(JobFigures(name, 1.0, slow, 1.5, 1.2, 1, True, ()) for name, slow in (("a", 1.0), ("b", 1.25)))
    found = Figures(jobs, 0.5, 0.1, None)
    assert found.gain == pytest.approx(1.8)
    assert found.mean_gain == pytest.approx(2 / 1.5)


def test_one_step_in_which_the_machine_did_something_else_is_in_the_mean_alone() -> None:
    alone = [seen(steps_of(job, 1.0, R + T)) for job in ("a", "b")]
    late = [*steps_of("a", 1.0, 6.0)[:-3], *(moved(span, 6.0) for span in steps_of("a", 1.0, 6.0)[-3:])]
    found = figures(alone, seen(late, steps_of("b", 1.0 + R, 7.0)), 1.2).jobs[0]
    assert found.woven_s == pytest.approx(6.0)
    assert found.mean_slowdown == pytest.approx((6 + 6 + 12) / 3 / (R + T))


def moved(span: SpanView, by_s: float) -> SpanView:
    assert span.started_s is not None
    assert span.ended_s is not None
    return replace(span, began_s=span.began_s + by_s, started_s=span.started_s + by_s, ended_s=span.ended_s + by_s)


def run_demo(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ROLLMUX_")}
    return subprocess.run([*ROLLMUX, "demo", *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_without_a_model_two_jobs_share_the_nodes_of_one_and_report_it(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--engine", "replay", "--steps", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("6 steps") == 2
    assert "Work for a node-hour" in done.stdout
    report = (tmp_path / "runs" / "demo-1" / "report.html").read_text(encoding="utf-8")
    assert "alone, nodes for each" in report
    assert "woven, on the nodes of one" in report
    events = json.loads((tmp_path / "runs" / "demo-1" / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {event["args"].get("name") for event in events} >= {"rollout-0", "train-0"}


@pytest.mark.slow
def test_two_models_learn_woven_what_they_learn_alone(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--json", "--out", "here")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    for job in found["jobs"]:
        assert job["same_rewards"]
        missed = [1 - reward for reward in job["rewards"]]
        assert sum(missed[-8:]) < 0.8 * sum(missed[:8]), "it learns: 0.4 to 0.6, on machines of different speed"
    assert found["idle_woven"] < found["idle_alone"] - 0.2
    assert found["gain"] > 1.2, "goal 1.8, on a quiet machine"


@contextmanager
def demo_at_work(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo whose first job has made a step. Nothing of it is left at the end."""
    with nothing_left() as older:
        env = {name: value for name, value in os.environ.items() if not name.startswith("ROLLMUX_")}
        words = [*ROLLMUX, "demo", "--engine", "replay", "--steps", "400", "--out", "here"]
        process = subprocess.Popen(words, cwd=folder, env=env, stderr=subprocess.PIPE, text=True, process_group=0)
        metrics = folder / "here" / "alone-sums-3" / "sums-3" / "out" / "metrics.jsonl"
        give_up = time.monotonic() + 60
        while not (metrics.exists() and metrics.stat().st_size):
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.05)
        with process:
            yield process
        be_init(older)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_who_interrupts_the_demo_is_left_with_nothing_that_runs(number: signal.Signals, tmp_path: Path) -> None:
    """However impatiently: all but the first signal came while controllers and jobs were being ended."""
    with demo_at_work(tmp_path) as process:
        give_up = time.monotonic() + 60
        while process.poll() is None:
            assert time.monotonic() < give_up
            os.killpg(process.pid, number)
            time.sleep(0.05)
        assert process.returncode != 0


def test_below_nohup_the_demo_outlives_its_terminal() -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        demo._hear_signals()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        with pytest.raises(SystemExit, match="143"):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)  # one more breaks nothing off
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_a_controller_that_dies_ends_the_demo_with_the_place_of_its_log(tmp_path: Path) -> None:
    with demo_at_work(tmp_path) as process:
        controllers = [each.pid for each in descendants(process.pid) if each.parent == process.pid]
        assert len(controllers) == 2, "one for each job that is alone"
        os.kill(controllers[-1], signal.SIGKILL)
        _, said = process.communicate(timeout=90)
        assert process.returncode == 1
        assert "serve.log" in said


@pytest.mark.parametrize("words", [["--hours", "2"], ["--explain", "x"], ["--virtual", "--steps", "5"]])
def test_an_option_that_means_nothing_here_is_refused(words: list[str]) -> None:
    found = CliRunner().invoke(app, ["demo", *words])
    assert found.exit_code == 2
    assert "--virtual" in found.output


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    found = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert found.exit_code == 2
    assert "name a new folder" in found.output


def test_without_torch_the_demo_plays_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    refused = CliRunner().invoke(app, ["demo", "--engine", "slots"])
    assert refused.exit_code == 2
    assert "torch" in refused.output
    assert demo._engine("").value == "replay"
    assert demo._engine("replay").value == "replay"


def test_with_torch_it_computes_and_a_wrong_name_is_refused() -> None:
    assert demo._engine("").value == "slots"
    refused = CliRunner().invoke(app, ["demo", "--engine", "vllm"])
    assert refused.exit_code == 2
    assert "slots, replay" in refused.output


def test_runs_on_a_disk_that_is_not_there_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").symlink_to(tmp_path / "not-mounted")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["demo", "--engine", "replay"], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert "--out runs: this is no folder; name another folder" in result.stderr

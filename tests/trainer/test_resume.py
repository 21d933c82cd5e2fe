"""A run that ends anywhere and is resumed leaves behind, byte by byte, what one that ran through leaves behind."""

import fcntl
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest
import torch
import yaml

from rollmux.client import Mux
from rollmux.trainer import job as job_module
from rollmux.trainer.checkpoints import Checkpoints
from rollmux.trainer.errors import CheckpointRefused, RunExists
from rollmux.trainer.job import CHECKPOINTS, train
from rollmux.trainer.job_file import MODEL
from rollmux.trainer.metrics import METRICS, TIMES, Metrics
from rollmux.trainer.summary import SUMMARY
from tests.trainer.jobs import TINY, alone, left_behind, tiny

JOB = tiny()
STARTED_WITHIN_S = 120.0


class Killed(BaseException):
    """Stands for the end of a process: nothing catches it."""


def killer(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, at: int, before: bool) -> None:
    """Ends the run at this call of a method, before it does anything or when it is done."""
    calls = iter(range(10**6))
    real: Callable[..., object] = getattr(owner, method)

    def call(*arguments: object) -> object:
        is_it = next(calls) == at
        if is_it and before:
            raise Killed
        result = real(*arguments)
        if is_it:
            raise Killed
        return result

    monkeypatch.setattr(owner, method, call)


PLACES = [
    (Checkpoints, "save", 0, True),  # in the warm-up
    (Checkpoints, "save", 3, True),  # the metrics of a step are there, its checkpoint is not
    (Checkpoints, "save", 4, False),  # between two steps, after a long round
    (Metrics, "tell", 5, False),
]


@pytest.mark.parametrize(
    "place", PLACES, ids=lambda place: f"{place[1]} {place[2]} {'before' if place[3] else 'after'}"
)
def test_a_run_that_was_killed_and_resumed_equals_one_that_ran_through(
    place: tuple[type, str, int, bool], whole: tuple[bytes, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        killer(patched, *place)
        with pytest.raises(Killed):
            train(JOB, tmp_path, alone())
    torch.manual_seed(12345)  # whatever the new process has drawn before
    train(JOB, tmp_path, alone(), resume=True)
    assert left_behind(tmp_path) == whole
    assert (tmp_path / TIMES).read_bytes().count(b"\n") == 6


def test_a_run_that_is_made_longer_equals_one_that_was_planned_so(whole: tuple[bytes, ...], tmp_path: Path) -> None:
    train(tiny(steps=2), tmp_path, alone())
    train(tiny(steps=6, checkpoint_every=3), tmp_path, alone(), resume=True)
    assert left_behind(tmp_path) == whole
    assert Checkpoints(tmp_path / CHECKPOINTS).steps() == [3, 6]


def test_half_a_line_of_metrics_is_cut_off(whole: tuple[bytes, ...], tmp_path: Path) -> None:
    train(tiny(steps=2), tmp_path, alone())
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"step": 2, "kind": "sh')
    train(JOB, tmp_path, alone(), resume=True)
    assert left_behind(tmp_path) == whole


def test_another_seed_leaves_something_else_behind(whole: tuple[bytes, ...], tmp_path: Path) -> None:
    train(tiny(seed=1), tmp_path, alone())
    for mine, other in zip(left_behind(tmp_path)[:2], whole, strict=False):
        assert mine != other


def test_a_folder_with_a_run_is_refused_unless_it_is_resumed_and_so_are_other_settings(tmp_path: Path) -> None:
    train(tiny(steps=1), tmp_path, alone())
    with pytest.raises(RunExists, match="--resume"):
        train(tiny(steps=2), tmp_path, alone())
    with pytest.raises(CheckpointRefused, match=r"job\.optimiser\.rate"):
        train(tiny(steps=2, optimiser={"rate": 0.5}), tmp_path, alone(), resume=True)


@pytest.mark.parametrize("kept", [METRICS, MODEL, SUMMARY])
@pytest.mark.parametrize("resume", [False, True])
def test_what_a_run_left_behind_is_not_written_over_though_its_checkpoints_are_gone(
    kept: str, resume: bool, tmp_path: Path
) -> None:
    (tmp_path / kept).write_text('{"step": 0}\n')
    with pytest.raises(RunExists, match=f"holds {kept} of a run, and no checkpoint .* name another --out"):
        train(tiny(steps=1, seed=1), tmp_path, alone(), resume=resume)
    assert (tmp_path / kept).read_text() == '{"step": 0}\n'


def test_fewer_steps_than_are_done_are_told_to_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tiny(steps=2), tmp_path, alone())
    done = left_behind(tmp_path)
    train(tiny(steps=2), tmp_path, alone(), resume=True)
    assert not caplog.messages
    train(tiny(steps=1), tmp_path, alone(), resume=True)
    assert caplog.messages == ["2 steps are done, and 1 were asked for: nothing is trained"]
    assert left_behind(tmp_path) == done


def test_two_processes_do_not_work_in_one_folder(tmp_path: Path) -> None:
    def second(step: int, found: object) -> None:
        with pytest.raises(RunExists, match="another process"):
            train(JOB, tmp_path, alone(), resume=True)
        raise Killed

    with pytest.raises(Killed):
        train(JOB, tmp_path, alone(), trackers=[second])


def test_beside_a_controller_an_attempt_waits_until_the_one_before_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / job_module.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with ThreadPoolExecutor(1) as other:
            patient = job_module._alone(tmp_path, job_module.LOCK_PATIENCE_S)
            attempt = other.submit(patient.__enter__)
            with pytest.raises(TimeoutError):
                attempt.result(timeout=0.5)
            fcntl.flock(lock, fcntl.LOCK_UN)
            attempt.result(timeout=30)
        monkeypatch.setattr(job_module, "LOCK_PATIENCE_S", 0.3)
        for attached in (False, True):
            monkeypatch.setattr(Mux, "attached", attached)
            began = monotonic()
            with pytest.raises(RunExists, match="another process"):
                train(JOB, tmp_path, alone(), resume=True)
            assert (monotonic() - began >= 0.3) == attached


def command(folder: Path) -> list[str]:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(dict(TINY)), encoding="utf-8")
    program = "from rollmux.cli import app; app()"
    return [sys.executable, "-c", program, "train", str(file), "--out", str(folder / "out"), "--resume", "--json"]


@pytest.mark.slow
def test_a_process_that_is_killed_and_another_that_goes_on_equal_one_run(
    whole: tuple[bytes, ...], tmp_path: Path, environment: dict[str, str]
) -> None:
    with subprocess.Popen(command(tmp_path), env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    done = subprocess.run(command(tmp_path), env=environment, check=True, capture_output=True, text=True)
    assert 1 <= len(done.stdout.splitlines()) <= 4
    assert left_behind(tmp_path / "out") == whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_process_that_is_killed_at_random_moments_again_and_again_equals_one_run(
    seed: int, whole: tuple[bytes, ...], tmp_path: Path, environment: dict[str, str]
) -> None:
    random, metrics = Random(seed), tmp_path / "out" / METRICS
    for _ in range(3):
        with subprocess.Popen(command(tmp_path), env=environment, stdout=subprocess.DEVNULL) as process:
            until = monotonic() + STARTED_WITHIN_S
            while not metrics.exists() and process.poll() is None and monotonic() < until:
                sleep(0.01)
            sleep(random.uniform(0.0, 1.5))
            process.kill()
    subprocess.run(command(tmp_path), env=environment, check=True, capture_output=True)
    assert left_behind(tmp_path / "out") == whole

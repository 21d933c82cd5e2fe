"""Forks: what they are told, how they end, and what becomes of them with the process that they are forks of."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from rollmux.runtime import forks
from rollmux.runtime.forks import Fork, begun
from rollmux.service.local.process_tree import look


@pytest.fixture(autouse=True, scope="module")
def _own_server() -> Iterator[None]:
    """Forks here are of a server of their own, which has imported no more than they need: some kill it, and the tests
    of other files would wait for theirs to import all that it had."""
    own = forkserver.ForkServer()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect_to_new_process", "ensure_running", "set_forkserver_preload"):
            patch.setattr(forkserver, name, getattr(own, name))
        patch.setattr(forks, "_HEAVY", ("torch",))
        patch.setattr(forks, "_HEAVY_PARTS", ())
        yield
    own._stop()  # type: ignore[attr-defined]


def adds_up(pipe: Connection) -> None:
    """Answers each list of tensors with their sum, until the pipe is closed."""
    try:
        while True:
            pipe.send(sum(float(each.sum()) for each in pipe.recv()))
    except EOFError:
        pass


def is_busy(pipe: Connection) -> None:
    """Hears nothing any more."""
    pipe.send("busy")
    time.sleep(600)


@pytest.fixture
def busy() -> Iterator[Fork]:
    fork = begun(is_busy, name="busy")
    assert fork.pipe.recv() == "busy"
    yield fork
    fork.end(0.0)


def lives(pid: int) -> bool:
    found = look(pid)
    return found is not None and found.alive


def server_of(fork: Fork) -> int:
    found = look(fork.pid)
    assert found is not None
    return found.parent


def test_it_has_as_many_tensors_as_it_is_sent_and_ends_with_its_pipe() -> None:
    fork = begun(adds_up, name="adds up")
    fork.pipe.send([torch.full((2,), float(each)) for each in range(400)])
    assert fork.pipe.recv() == 400 * 399
    fork.end(60.0)
    assert not lives(fork.pid)
    fork.end(60.0)


def test_whoever_does_not_end_itself_is_ended(busy: Fork) -> None:
    began = time.monotonic()
    busy.end(0.2)
    assert not lives(busy.pid)
    assert time.monotonic() - began >= 0.2


def test_it_is_ended_though_what_it_is_a_fork_of_was_killed_and_others_begin_as_before(busy: Fork) -> None:
    before = server_of(busy)
    os.kill(before, signal.SIGKILL)
    other = begun(adds_up, name="adds up")
    other.pipe.send([torch.ones(3)])
    assert other.pipe.recv() == 3.0
    assert server_of(other) != before
    other.end(60.0)
    assert lives(busy.pid)
    busy.end(0.0)
    assert not lives(busy.pid)


def test_it_is_ended_though_what_it_is_a_fork_of_stands_still(busy: Fork) -> None:
    server = server_of(busy)
    os.kill(server, signal.SIGSTOP)
    try:
        busy.end(0.0)
        assert not lives(busy.pid)
    finally:
        os.kill(server, signal.SIGCONT)


def test_a_terminal_s_interrupt_is_left_to_whoever_began_it() -> None:
    fork = begun(adds_up, name="adds up")
    for _ in range(2):
        fork.pipe.send([torch.ones(3)])
        assert fork.pipe.recv() == 3.0
        os.kill(fork.pid, signal.SIGINT)
    fork.end(60.0)
    assert not lives(fork.pid)


def test_one_that_was_killed_has_ended() -> None:
    fork = begun(adds_up, name="adds up")
    os.kill(fork.pid, signal.SIGKILL)
    fork.end(60.0)
    assert not lives(fork.pid)


def test_a_file_of_the_job_that_is_called_as_a_module_is_in_nobody_s_way(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('it is not this one')\n")
    job = tmp_path / "elsewhere" / "job.py"
    job.parent.mkdir()
    job.write_text(
        """
import torch
from rollmux.runtime.forks import begun

def doubles(pipe):
    pipe.send(float(2 * pipe.recv()))

if __name__ == "__main__":
    fork = begun(doubles, name="doubles")
    fork.pipe.send(torch.ones(1))
    print(fork.pipe.recv())
    fork.end(60.0)
"""
    )
    done = subprocess.run([sys.executable, str(job)], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr

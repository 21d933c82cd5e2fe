"""What each system has in its own way comes to the same on all of them, as far as one can stand in for another."""

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rollmux import system
from rollmux.system import MOST_FILES, Watched

PATIENCE_S = 10.0


@pytest.fixture(params=["here", "elsewhere"])
def _both(request: pytest.FixtureRequest) -> None:
    if request.param == "elsewhere":
        request.getfixturevalue("elsewhere")


@pytest.fixture
def child(_both: None) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        if process.returncode is None:
            process.kill()


def test_cores_are_those_that_may_be_used_or_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 5, 7})
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert system.cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert system.cores() == 16
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert system.cores() == 1


def test_the_most_memory_is_in_bytes_whatever_the_system_counts_in(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert system.peak_bytes() >= counted * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert system.peak_bytes() < counted * 512


@pytest.mark.usefixtures("_both")
def test_memory_is_told_of_the_whole_machine() -> None:
    free, whole = system.memory_bytes()
    assert 0 < free < whole == psutil.virtual_memory().total


@pytest.mark.parametrize(("found", "name"), [(["eth0", "lo"], "lo"), (["lo0", "en0"], "lo0")])
def test_processes_of_one_machine_meet_at_its_loopback(
    found: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(found, 1)))
    assert system.loopback() == name


@pytest.mark.usefixtures("elsewhere")
def test_time_since_the_boot_goes_on() -> None:
    first = system.since_boot_s()
    assert 0.0 < first < system.since_boot_s()


@pytest.mark.usefixtures("_both")
@pytest.mark.parametrize("nbytes", [1, 2**20, 2**21 + 1])
def test_room_is_taken_before_anything_is_written(tmp_path: Path, nbytes: int) -> None:
    with (tmp_path / "file").open("wb") as file:
        system.take_room(file.fileno(), nbytes)
        found = os.fstat(file.fileno())
    assert (found.st_size, found.st_blocks * 512 >= nbytes) == (nbytes, True)
    assert (tmp_path / "file").read_bytes() == bytes(nbytes)


@pytest.mark.usefixtures("elsewhere")
def test_room_is_taken_bit_by_bit_where_a_write_takes_less_until_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.pwrite, [1500]

    def little(file: int, what: bytes, at: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(file, what[: min(700, room[0])], at)
        room[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", little)
    with (tmp_path / "file").open("wb") as file:
        system.take_room(file.fileno(), 1500)
        assert os.fstat(file.fileno()).st_size == 1500
        with pytest.raises(OSError, match="No space left"):
            system.take_room(file.fileno(), 1)


@pytest.mark.usefixtures("_both")
def test_a_file_without_a_name_is_nobody_s_to_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = system.without_name("plan")
    try:
        os.write(file, b"secret")
        os.lseek(file, 0, os.SEEK_SET)
        assert os.read(file, 10) == b"secret"
        assert os.fstat(file).st_nlink == 0
        assert not os.get_inheritable(file)
        assert not list(tmp_path.iterdir())
    finally:
        os.close(file)


def test_no_process_asks_for_files_without_end() -> None:
    assert system.all_files(4096) == 4096
    assert system.all_files(resource.RLIM_INFINITY) == MOST_FILES


def test_a_process_is_watched_until_it_ends(child: subprocess.Popen[bytes]) -> None:
    watched = Watched(child.pid)
    assert not watched.wait(0.0)
    watched.send(signal.SIGTERM)
    for _ in range(2):
        assert watched.wait(PATIENCE_S)
    watched.reap()
    with pytest.raises(ProcessLookupError):
        watched.send(signal.SIGTERM)
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)
    child.returncode = -signal.SIGTERM
    watched.close()


def test_a_process_that_ended_before_anybody_watched_is_seen_to_have_ended(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    ended = Watched(child.pid)
    assert ended.wait(PATIENCE_S)
    late = Watched(child.pid)
    assert late.wait(0.0)
    late.reap()
    for watched in (ended, late):
        watched.close()
    child.returncode = -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        Watched(child.pid)


def test_who_is_no_child_is_not_reaped(child: subprocess.Popen[bytes]) -> None:
    watched = Watched(os.getppid())
    watched.reap()
    watched.close()
    assert child.poll() is None


WITHOUT = """
import os, signal, sys
import asyncio, concurrent.futures.process, httpx, multiprocessing, rich.live, subprocess, tempfile, typer  # not ours
for name in ("fcntl", "grp", "psutil", "pwd", "resource", "termios", "uvloop"):
    sys.modules[name] = None
for name in ("SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGSTOP", "SIGUSR1", "pidfd_send_signal", "pthread_sigmask"):
    delattr(signal, name)
for name in ("fork", "getuid", "memfd_create", "pidfd_open", "posix_fallocate", "sched_getaffinity", "sysconf"):
    delattr(os, name)
from rollmux.cli import app
from rollmux.mux import *
import rollmux.packer, rollmux.client, rollmux.sim, rollmux.runtime.engine.replay
app(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "words",
    [["--help"], ["demo", "--virtual", "--hours", "1"], ["sweep", "--help"], ["top", "--help"], ["submit", "--help"]],
    ids=" ".join,
)
def test_planning_and_calling_a_controller_need_no_posix_system(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

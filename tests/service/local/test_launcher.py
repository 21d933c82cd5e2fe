"""Attempts as processes of this machine: started once, heard, bounded, and gone when they are said to be."""

import asyncio
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import pytest

from rollmux.mux.placed import Placement
from rollmux.protocol.job_file import Submission
from rollmux.protocol.node_means import Means
from rollmux.service.launcher import Attempt, LaunchFailed
from rollmux.service.local import by_proc, memory
from rollmux.service.local import launcher as launchers
from rollmux.service.local.attempt_files import KEPT_JOBS, AttemptFiles
from rollmux.service.local.kept import spawn
from rollmux.service.local.plans import plan_for
from rollmux.service.local.process_tree import look
from tests import builders
from tests.service.local.launching import STUBBORN_DAEMON, launching, nothing_left, shell, until, written
from tests.service.test_disk import small_disk


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


def end_of(folder: Path, script: str, processes: int = 1) -> str:
    """What is told of the end of an attempt that runs this script."""

    async def story() -> str:
        async with launching(folder) as (launcher, exits):
            await launcher.start(shell(folder, script, processes=processes))
            failed = await exits.next()
            await launcher.stop("a", 1, 0.0)
            assert len(exits.heard) == 1
            return failed

    return asyncio.run(story())


def test_what_was_printed_is_read_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            monkeypatch.setattr(AttemptFiles, "tail", lambda *_: [threading.current_thread().name])
            assert await launcher.log("a", 1) != [threading.current_thread().name]

    asyncio.run(story())


def test_an_attempt_whose_processes_all_exit_with_0_has_not_failed(tmp_path: Path) -> None:
    assert end_of(tmp_path, "echo done", processes=2) == ""


@pytest.mark.parametrize("env", [{}, {"PATH": "/usr/bin:/bin"}, {"PATH": ""}])
def test_a_job_finds_what_its_controller_is_installed_with_after_all_else(tmp_path: Path, env: dict[str, str]) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            await launcher.start(shell(tmp_path, "echo $PATH > path", env=env))
            assert await exits.next() == ""

    asyncio.run(story())
    before = env.get("PATH", os.environ["PATH"]) or os.defpath
    assert (tmp_path / "path").read_text() == f"{before}:{Path(sys.executable).parent}\n"


FILLS_MEMORY = "mkdir -p $ROLLMUX_MEMORY/deep; echo weights > $ROLLMUX_MEMORY/deep/$ROLLMUX_RANK"


@pytest.mark.parametrize("then", ["true", "exit 3", "sleep 60"], ids=["ended", "failed", "stopped"])
def test_memory_that_ranks_share_goes_with_the_last_of_them(then: str, tmp_path: Path) -> None:
    told = "echo $ROLLMUX_MEMORY > part$ROLLMUX_RANK; mv part$ROLLMUX_RANK $ROLLMUX_RANK"
    both = "until [ -e 0 -a -e 1 ]; do sleep 0.01; done"
    script = f"{FILLS_MEMORY}; ln -sfn {tmp_path} $ROLLMUX_MEMORY/out; stat -c %a $ROLLMUX_MEMORY > mode; "

    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            await launcher.start(shell(tmp_path, f"{script}{told}; {both}; {then}", processes=2))
            await until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
            if then == "sleep 60":
                await launcher.stop("a", 1, 0.0)
            else:
                await exits.next()

    asyncio.run(story())
    where = {(tmp_path / rank).read_text().strip() for rank in "01"}
    assert len(where) == 1
    assert (tmp_path / "mode").read_text() == "700\n"
    assert not Path(where.pop()).exists()
    assert (tmp_path / "0").exists(), "what a link leads to is not part of it"


def test_the_memory_of_keepers_that_are_gone_is_found_by_their_marker() -> None:
    mine, another = (f"ROLLMUX_KEEPER=test-{uuid4().hex}" for _ in range(2))
    paths = [memory.path_of(mine, 1), memory.path_of(mine, 2), memory.path_of(another, 1)]
    for path in paths:
        assert memory.make(path) == {memory.VARIABLE: path}
        Path(path, "deep").mkdir()
        Path(path, "deep", "weights").write_bytes(b"x")
    memory.remove_all(mine)
    assert [Path(path).exists() for path in paths] == [False, False, True]
    memory.remove_all(another)


def test_a_machine_without_such_memory_gives_none(tmp_path: Path) -> None:
    assert memory.make(str(tmp_path / "not there" / "memory")) == {}


@pytest.mark.parametrize(
    ("script", "failed"),
    [
        ("echo hello; echo 'out of luck' >&2; exit 3", "rank 0 ended with exit code 3; its last line: out of luck"),
        ("exit 1", "rank 0 ended with exit code 1; it printed nothing"),
        ("kill -SEGV $$", "rank 0 was ended by SIGSEGV; it printed nothing"),
        (
            "kill -KILL $$",
            "rank 0 was ended by SIGKILL (memory ran out, or it was killed from outside); it printed nothing",
        ),
        (
            "sh -c 'kill -KILL $$'; exit $?",
            "rank 0 ended with exit code 137 (SIGKILL of what it ran); its last line: Killed",
        ),
        ("kill -TERM 0", "rank 0 was ended by SIGTERM; it printed nothing"),
        ("kill -40 $$", "rank 0 was ended by signal 40; it printed nothing"),
        ("exec >&- 2>&-; sleep 0.1; exit 4", "rank 0 ended with exit code 4; it printed nothing"),
        ("echo out of luck; echo =====; exit 3", "rank 0 ended with exit code 3; its last line: out of luck"),
        (r"printf 'a\033[1mb\377\n\n  \n'; exit 1", "rank 0 ended with exit code 1; its last line: a [1mb�"),
        (
            f"{sys.executable} -c 'print(\"x\" * 9999)'; exit 1",
            f"rank 0 ended with exit code 1; its last line: {'x' * 299}…",
        ),
    ],
)
def test_the_owner_hears_how_and_with_what_last_line_a_process_ended(script: str, failed: str, tmp_path: Path) -> None:
    assert end_of(tmp_path, script) == failed


def test_if_one_rank_fails_the_others_are_ended_within_seconds(tmp_path: Path) -> None:
    begun = time.monotonic()
    script = 'trap "" TERM; if [ $ROLLMUX_RANK = 1 ]; then echo oh; exit 7; fi; sleep 60; sleep 60'
    assert end_of(tmp_path, script, processes=3) == "rank 1 ended with exit code 7; its last line: oh"
    assert time.monotonic() - begun < 4


def test_what_a_finished_job_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    assert end_of(tmp_path, STUBBORN_DAEMON) == ""
    assert look(int((tmp_path / "daemon").read_text())) is None


def test_stop_returns_when_all_is_gone_even_what_hides_and_takes_no_hint(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            await launcher.start(shell(tmp_path, f'trap "" TERM; {STUBBORN_DAEMON}; while :; do sleep 1; done'))
            daemon = await written(tmp_path / "daemon")
            begun = time.monotonic()
            await launcher.stop("a", 1, 0.3)
            assert look(daemon) is None
            assert 0.3 <= time.monotonic() - begun < 3
            assert exits.heard == []

    asyncio.run(story())


def test_a_stopped_process_has_its_grace_to_save_its_work(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            script = 'trap "sleep 0.3; echo 1 > saved; exit 0" TERM; echo 1 > up; while :; do sleep 0.02; done'
            await launcher.start(shell(tmp_path, script))
            await written(tmp_path / "up")
            await launcher.stop("a", 1, 10.0)
            assert (tmp_path / "saved").exists()
            assert exits.heard == []

    asyncio.run(story())


def test_stopping_again_or_what_never_ran_does_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            await launcher.stop("nobody", 7, 5.0)
            await launcher.start(shell(tmp_path, "sleep 60"))
            await asyncio.gather(*(launcher.stop("a", 1, 5.0) for _ in range(3)))
            await launcher.stop("a", 1, 5.0)
            assert exits.heard == []

    asyncio.run(story())


def test_an_attempt_that_is_asked_for_often_is_started_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            attempt = shell(tmp_path, "echo $$ >> started; sleep 60")
            impatient = asyncio.create_task(launcher.start(attempt))
            await asyncio.sleep(0)
            impatient.cancel()
            await asyncio.gather(launcher.start(attempt), launcher.start(attempt))
            await launcher.start(attempt)
            await written(tmp_path / "started")
            await asyncio.sleep(0.2)
            await launcher.stop("a", 1, 5.0)
            assert len((tmp_path / "started").read_text().split()) == 1

    asyncio.run(story())


@pytest.mark.parametrize(("of", "name"), [(Path, "read_bytes"), (os, "pidfd_open")], ids=["a record", "a keeper"])
def test_where_no_more_files_can_be_open_nothing_of_the_attempt_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: Any, name: str
) -> None:
    real = getattr(of, name)

    def full(_: object) -> None:
        monkeypatch.setattr(of, name, real)
        raise OSError(errno.EMFILE, "Too many open files")

    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            monkeypatch.setattr(of, name, full)
            with pytest.raises(LaunchFailed, match="Too many open files"):
                await launcher.start(shell(tmp_path, "echo 1 >> ran; sleep 60"))
            await launcher.start(shell(tmp_path, "echo 2 >> ran; sleep 60", number=2))
            await until(lambda: (tmp_path / "ran").exists() and "2" in (tmp_path / "ran").read_text())
            await launcher.stop("a", 2, 5.0)
            assert exits.heard == []

    asyncio.run(story())


def test_what_one_start_removes_is_nothing_that_another_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that began long ago starts again while the folders of old jobs are cleared."""
    records = tmp_path / "state" / "attempts"
    for name in [*(f"other{number}" for number in range(KEPT_JOBS)), "old"]:
        (records / name).mkdir(parents=True)
    (records / "old" / "1.told").touch()
    os.utime(records / "old", (1e9, 1e9))
    real, removing = shutil.rmtree, threading.Event()

    def slowly(path: Path, **how: Any) -> None:
        if path == records / "old":
            removing.set()
            time.sleep(0.3)
        real(path, **how)

    monkeypatch.setattr(shutil, "rmtree", slowly)

    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            new = asyncio.create_task(launcher.start(shell(tmp_path, "sleep 60", name="new")))
            await asyncio.to_thread(removing.wait, 5.0)
            await launcher.start(shell(tmp_path, "sleep 60", name="old", number=2))
            await new
            assert {each.key for each in AttemptFiles(tmp_path / "state").all_started()} == {("new", 1), ("old", 2)}
            await launcher.stop("new", 1, 5.0)
            await launcher.stop("old", 2, 5.0)

    asyncio.run(story())


def test_an_attempt_is_stopped_while_it_is_being_started(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            starting = asyncio.create_task(launcher.start(shell(tmp_path, "sleep 60")))
            await asyncio.sleep(0)
            await launcher.stop("a", 1, 5.0)
            await starting
            assert exits.heard == []

    asyncio.run(story())


@pytest.mark.parametrize(
    ("command", "folder", "said"),
    [
        (("no-such-program", "x"), "", "its command could not be started: 'no-such-program': No such file"),
        (("./data",), "", "its command could not be started: './data': Permission denied"),
        (("sh",), "missing", "missing' is not on this machine: name an existing folder"),
        (("sh",), "data", "data' is not on this machine"),
        (("sh", "-c", "\ud800"), "", "its command could not be started: 'utf-8' codec can't encode"),
    ],
)
def test_what_cant_be_started_is_refused_with_the_reason(
    command: tuple[str, ...], folder: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("no program")

    async def story() -> None:
        submission = Submission(builders.job(), command, folder=str(tmp_path / folder), processes=2)
        async with launching(tmp_path) as (launcher, exits):
            with pytest.raises(LaunchFailed) as failure:
                await launcher.start(Attempt(submission, 1, Placement(("r0",), ("t0",)), {}))
            assert said in str(failure.value)
        async with launching(tmp_path) as (_, later):
            assert (later.running, later.heard, exits.heard) == (set(), [], [])

    asyncio.run(story())


def test_a_process_gets_its_environment_and_no_word_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLMUX_SECRET", "of the controller")
    monkeypatch.setenv("PGPASSWORD", "of its journal")
    monkeypatch.setenv("INHERITED", "yes")
    program = "import json, os; print(json.dumps([dict(os.environ), os.getcwd(), os.sched_getaffinity(0) == {CORE}]))"
    core = min(os.sched_getaffinity(0))

    async def story() -> list[str]:
        devices = {"r0": ("0", "1"), "r1": ("1", "2"), "t0": ("GPU-x",), "other": ("9",)}
        means = {node: Means((core,) if node == "t0" else None, seen) for node, seen in devices.items()}
        async with launching(tmp_path, means=means) as (launcher, exits):
            command = f"{sys.executable} -c '{program.replace('CORE', str(core))}'; cat"
            await launcher.start(
                shell(
                    tmp_path, command, env=(("HERS", "ü = ä"), ("ROLLMUX_JOB", "b")), processes=2, ranks_per_process=3
                )
            )
            assert await exits.next() == ""
            return await launcher.log("a", 2)

    for rank, line in enumerate(asyncio.run(story())):
        assert line.startswith(f"[{rank}] ")
        env, folder, pinned = json.loads(line[4:])
        assert env["ROLLMUX_MEMORY"].startswith(f"/dev/shm/rollmux-{env['ROLLMUX_KEEPER']}-")
        names = {name for name in env if name.startswith("ROLLMUX_")} - {"ROLLMUX_KEEPER", "ROLLMUX_MEMORY"}
        ours = {name: env[name] for name in names}
        assert ours == {
            "ROLLMUX_JOB": "a",
            "ROLLMUX_RANK": str(rank),
            "ROLLMUX_PROCESSES": "2",
            "ROLLMUX_RANKS_PER_PROCESS": "3",
            "ROLLMUX_ROLLOUT_NODES": "r0,r1",
            "ROLLMUX_TRAIN_NODES": "t0",
        }
        assert "PGPASSWORD" not in env
        assert (env["HERS"], env["INHERITED"], env["CUDA_VISIBLE_DEVICES"]) == ("ü = ä", "yes", "0,1,2,GPU-x")
        assert (folder, pinned) == (str(tmp_path), True)


def test_cores_that_the_machine_lacks_are_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path, means={"t0": Means((1000,))}) as (launcher, _):
            with pytest.raises(LaunchFailed, match="no such cores"):
                await launcher.start(shell(tmp_path, "true"))

    asyncio.run(story())


def test_a_process_that_wants_more_memory_than_it_may_have_fails_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path, means={"t0": Means(memory_bytes=2**28)}) as (launcher, exits):
            await launcher.start(shell(tmp_path, "sleep 60", name="other"))
            await launcher.start(shell(tmp_path, f"{sys.executable} -c 'x = bytearray(2**29)'"))
            assert await exits.next() == "rank 0 ended with exit code 1; its last line: MemoryError"
            await launcher.stop("other", 1, 5.0)

    asyncio.run(story())


def test_a_rank_may_signal_its_group_and_open_files_as_usual(tmp_path: Path) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert end_of(tmp_path, f'trap "" TERM; kill 0; [ "$(ulimit -n)" = {limit} ]', processes=2) == ""


def test_a_start_is_quick(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            begun = time.monotonic()
            for number in range(5):
                await launcher.start(shell(tmp_path, "true", name=f"j{number}"))
            assert time.monotonic() - begun < 5
            await until(lambda: len(exits.heard) == 5)

    asyncio.run(story())


def test_a_folder_on_a_server_that_is_silent_holds_up_nobody_else_nor_the_end_of_its_job_or_of_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers, looked = threading.Event(), Path.is_dir
    away = tmp_path / "away"
    away.mkdir()

    def is_dir(path: Path) -> bool:
        assert path != away or answers.wait(20)
        return looked(path)

    async def story() -> None:
        try:
            async with asyncio.timeout(10), launching(tmp_path) as (launcher, _):
                waiting = [
                    asyncio.create_task(launcher.start(shell(away, "sleep 60", name=name))) for name in ("b", "c")
                ]
                await launcher.start(shell(tmp_path, "sleep 60"))
                await launcher.stop("b", 1, 5.0)
                await launcher.stop("a", 1, 5.0)
                assert [task.done() for task in waiting] == [True, False]
            for name, task in zip("bc", waiting, strict=True):
                with pytest.raises(LaunchFailed, match=f"'{name}': its folder .* did not answer before it was stopped"):
                    await task
            async with launching(tmp_path) as (launcher, _):
                again = asyncio.create_task(launcher.start(shell(away, "sleep 60", name="c")))
                await until(lambda: "job 'c'" in caplog.records[-1].getMessage())
                answers.set()
                await again
                await launcher.stop("c", 1, 5.0)
        finally:
            answers.set()

    monkeypatch.setattr(launchers, "SILENT_S", 0.05)
    monkeypatch.setattr(Path, "is_dir", is_dir)
    asyncio.run(story())


def test_how_an_attempt_has_ended_is_known_though_the_disk_has_filled_meanwhile(tmp_path: Path) -> None:
    if not small_disk(tmp_path / "state"):
        pytest.skip("file systems can't be mounted here")

    async def story() -> str:
        async with launching(tmp_path) as (launcher, exits):
            await launcher.start(shell(tmp_path, "while [ ! -e full ]; do sleep 0.01; done; exit 3"))
            with suppress(OSError), (tmp_path / "state" / "other").open("wb", 0) as other:
                while other.write(bytes(4096)):
                    pass
            (tmp_path / "full").touch()
            return await exits.next()

    try:
        assert "ended with exit code 3" in asyncio.run(story())
    finally:
        subprocess.run(["umount", "-l", tmp_path / "state"], check=True)


def test_a_start_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    """Else each of a job's attempts on a full disk would take some of the controller's."""
    plan = plan_for(shell(tmp_path, "true"), {}, 2**16, AttemptFiles(tmp_path))
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(FileNotFoundError):
        spawn(plan._replace(record=str(tmp_path / "nowhere" / "1")))
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError(24, "Too many open files"), LaunchFailed), (KeyError(), KeyError)]
)
def test_a_start_that_breaks_off_once_its_processes_are_up_leaves_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    """Its job begins again, and would run twice."""

    def started(files: AttemptFiles, key: tuple[str, int]) -> None:
        if Path(f"{files.record(key)}.started").exists():
            raise error

    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            with pytest.raises(raised):
                await launcher.start(shell(tmp_path, "sleep 60"))
            await launcher.stop("a", 1, 5.0)

    monkeypatch.setattr(AttemptFiles, "started", started)
    asyncio.run(story())


def test_processes_at_which_nobody_else_may_look_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is where /proc is mounted with `hidepid=1`: the controller could end nothing there."""

    def opened(path: str, mode: str) -> IO[Any]:
        if path == f"/proc/{os.getppid()}/stat":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return open(path, mode)

    monkeypatch.setattr(by_proc, "open", opened, raising=False)
    seen = {process.pid for process in by_proc.everything()}
    assert os.getpid() in seen
    assert os.getppid() not in seen

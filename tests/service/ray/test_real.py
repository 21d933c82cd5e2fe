"""Attempts on a real Ray cluster of several nodes: where they run, how they end, and what is left of them."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollmux.mux.placed import Placement
from rollmux.protocol.node_means import Means, RayName
from rollmux.service.launcher import LaunchFailed
from tests.service.ray.launching import HERE, launching, machine_of, processes_of, shell, until
from tests.service.ray.real import RealRay

# Lives in a session of its own and takes no hint, as a daemon would that a job has left behind.
DAEMON = f"""setsid {sys.executable} -c '
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("daemon", "w").write(str(os.getpid()))
time.sleep(600)' & while [ ! -s daemon ]; do sleep 0.01; done"""


def numbers(folder: Path) -> dict[str, int]:
    """What ranks have written of themselves: their process ids, by their names for it; nothing half written."""
    return {path.name: int(path.read_text()) for path in folder.glob("rank[0-9]")}


@pytest.mark.slow
def test_each_rank_runs_on_its_node_and_what_it_prints_can_be_read(cluster: RealRay, tmp_path: Path) -> None:
    async def story() -> None:
        means = {
            "train-0": Means(
                cores=(0,), devices=("3", "5"), memory_bytes=2**31, ray=RayName("ip", cluster.ip("train-0"))
            ),
            "rollout-1": Means(
                cores=(1,), devices=(), memory_bytes=2**31, ray=RayName("id", cluster.nodes["rollout-1"])
            ),
            "train-1": Means(cores=(0, 1), devices=("7",), memory_bytes=2**31),
        }
        place = Placement(("rollout-0", "rollout-1"), ("train-0", "train-1"))
        async with launching(tmp_path, cluster, means) as (launcher, heard):
            assert heard.there == {"rollout-0", "rollout-1", "train-0", "train-1"}
            script = (
                "echo $$ > rank$ROLLMUX_RANK.new; mv rank$ROLLMUX_RANK.new rank$ROLLMUX_RANK; ulimit -d;"
                "echo $ROLLMUX_NODE ${CUDA_VISIBLE_DEVICES-all} $HERS $(taskset -cp $$ | sed 's/.*: //');"
                "while [ ! -e enough ]; do sleep 0.05; done"
            )
            attempt = shell(tmp_path, script, place=place, processes=4, env=(("HERS", "ü"),))
            await launcher.start(attempt)
            await launcher.start(attempt)
            await until(lambda: len(numbers(tmp_path)) == 4)
            ranks = {name: machine_of(pid) for name, pid in numbers(tmp_path).items()}
            nodes = ("rollout-0", "rollout-1", "train-0", "train-1")
            assert ranks == {f"rank{i}": cluster.ip(node) for i, node in enumerate(nodes)}
            (tmp_path / "enough").touch()
            assert await heard.why("a", 1) == ""
            kb = 2**31 // 1024
            assert (await launcher.log("a", 8))[0::2] == ["[0] unlimited", f"[1] {kb}", f"[2] {kb}", f"[3] {kb}"]
            assert (await launcher.log("a", 4))[2:] == ["[2] train-0 3,5 ü 0", "[3] train-1 7 ü 0,1"]

    asyncio.run(story())


@pytest.mark.slow
def test_the_owner_hears_how_each_attempt_ended(cluster: RealRay, tmp_path: Path) -> None:
    scripts = {
        "good": ("echo done", ""),
        "exits": ("echo 'out of luck' >&2; exit 3", "rank 0 ended with exit code 3; its last line: out of luck"),
        "raises": (
            f"exec {sys.executable} -c 'raise ValueError(\"too big\")'",
            "rank 0 ended with exit code 1; its last line: ValueError: too big",
        ),
        "killed": (
            "kill -KILL $$",
            "rank 0 was ended by SIGKILL (memory ran out, or it was killed from outside); it printed nothing",
        ),
    }

    async def story() -> None:
        async with launching(tmp_path, cluster) as (launcher, heard):
            await asyncio.gather(*[launcher.start(shell(tmp_path, each, name)) for name, (each, _) in scripts.items()])
            assert {name: await heard.why(name, 1) for name in scripts} == {n: why for n, (_, why) in scripts.items()}
            assert len(heard.exits) == len(scripts)
            with pytest.raises(LaunchFailed, match="'/nowhere' is not on this node"):
                await launcher.start(shell(Path("/nowhere"), "true", "lost"))
            absent = Placement(("rollout-9",), ("train-0",))
            with pytest.raises(LaunchFailed, match="rollout-9 is not there"):
                await launcher.start(shell(tmp_path, "true", "lost", 2, absent))
            assert ("rollout-9", False) in heard.nodes
        async with launching(tmp_path, cluster) as (launcher, later):
            assert (later.running, later.exits) == (set(), [])

    asyncio.run(story())


@pytest.mark.slow
def test_a_stopped_attempt_has_its_grace_and_leaves_nothing(cluster: RealRay, tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path, cluster) as (launcher, heard):
            script = f"trap 'echo saved; exit 0' TERM; {DAEMON}; touch up; while :; do sleep 0.05; done"
            await launcher.start(shell(tmp_path, script))
            await until((tmp_path / "up").exists)
            assert processes_of(launcher)
            await launcher.stop("a", 1, 5.0)
            assert processes_of(launcher) == {}
            assert (await launcher.log("a", 1)) == ["saved"]
            await launcher.stop("a", 1, 5.0)
            starting = asyncio.create_task(launcher.start(shell(tmp_path, "touch ran; sleep 600", number=2)))
            await asyncio.sleep(0.3)
            await launcher.stop("a", 2, 5.0)
            with pytest.raises(LaunchFailed):
                await starting
            assert processes_of(launcher) == {}
            assert heard.exits == []

    asyncio.run(story())


@pytest.mark.slow
def test_attempts_go_on_without_their_launcher_and_the_next_one_tells_their_ends_once(
    cluster: RealRay, tmp_path: Path
) -> None:
    async def story() -> None:
        async with launching(tmp_path, cluster) as (launcher, _):
            wait = "while [ ! -e enough ]; do sleep 0.05; done"
            await asyncio.gather(
                launcher.start(shell(tmp_path, f"{wait}; echo bye; exit 5", "ends")),
                launcher.start(shell(tmp_path, "sleep 600", "stays")),
            )
        (tmp_path / "enough").touch()
        await until(lambda: not any("bye" in command for command in processes_of(launcher).values()))
        async with launching(tmp_path, cluster) as (launcher, heard):
            assert await heard.why("ends", 1) == "rank 0 ended with exit code 5; its last line: bye"
            assert ("stays", 1) in heard.running
            await launcher.start(shell(tmp_path, "sleep 600", "stays"))
            assert len([each for each in processes_of(launcher).values() if each.startswith("sleep")]) == 1
            await launcher.stop("stays", 1, 5.0)
        async with launching(tmp_path, cluster) as (_, later):
            assert (later.running, later.exits) == (set(), [])

    asyncio.run(story())


@pytest.mark.slow
def test_if_its_program_on_ray_is_killed_nothing_of_an_attempt_goes_on(cluster: RealRay, tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path, cluster) as (launcher, heard):
            await launcher.start(shell(tmp_path, f"{DAEMON}; touch up; sleep 600"))
            await until((tmp_path / "up").exists)
            os.kill(program(launcher.intents.cluster), signal.SIGKILL)
            assert "has ended without a word" in await heard.why("a", 1)
            assert processes_of(launcher) == {}

    asyncio.run(story())


def program(of: str) -> int:
    """The process that Ray runs for the one attempt of this launcher."""
    found = subprocess.run(
        ["pgrep", "-f", "^python -P -m rollmux.service.ray.attempt"], check=True, capture_output=True, text=True
    )
    mine = [int(pid) for pid in found.stdout.split() if f"rollmux-{of}-" in Path(f"/proc/{pid}/environ").read_text()]
    assert len(mine) == 1
    return mine[0]


@pytest.mark.slow
def test_when_a_node_is_lost_that_is_told_and_its_attempt_has_failed_for_it(cluster: RealRay, tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path, cluster) as (launcher, heard):
            await launcher.start(
                shell(tmp_path, f"{DAEMON}; touch up$ROLLMUX_RANK; sleep 600", place=HERE, processes=2)
            )
            await until(lambda: (tmp_path / "up0").exists() and (tmp_path / "up1").exists())
            await asyncio.to_thread(cluster.remove, cluster.nodes["rollout-0"])
            assert "node rollout-0 was lost" in await heard.why("a", 1)
            assert heard.nodes == [("rollout-0", False)]
            assert processes_of(launcher) == {}
            await asyncio.to_thread(cluster.add, "rollout-0")
            await until(lambda: heard.nodes == [("rollout-0", False), ("rollout-0", True)])

    asyncio.run(story())

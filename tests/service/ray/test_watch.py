"""What a launcher's watch bears: a Ray that has forgotten all, and what nobody has thought of."""

import asyncio
import math
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollmux.mux.placed import Placement
from rollmux.protocol.job_file import Submission
from rollmux.service.launcher import Attempt
from rollmux.service.ray.gateway import RayJob, RayNode, Unsure, Wish
from rollmux.service.ray.launcher import LOST, Pace, RayLauncher
from tests import builders
from tests.service.ray.model import RayModel, played

PACE = Pace(look_s=2.0, pause_s=2.0, begin_s=12.0, start_s=24.0, word_s=5.0, sweep_s=60.0)
NODES = ("rollout-0", "train-0")
# Within the time that a controller waits for Ray when it begins, and beyond it.
SOON_S, LATE_S = 3.0, 20.0


class Life:
    """One life of a launcher: what it is told to do, and what it tells. An end is told when nothing runs any more."""

    def __init__(self, folder: Path, ray: RayModel) -> None:
        self.ray, self.launcher = ray, RayLauncher(folder, ray, pace=PACE)
        self.exits: list[tuple[int, str]] = []
        self.nodes: list[tuple[str, bool]] = []

    async def begin(self) -> set[tuple[str, int]]:
        self.there = await self.launcher.watch(NODES, self._node)
        return await self.launcher.begin(self._exit)

    async def start(self, number: int, what: str = "run") -> None:
        submission = Submission(builders.job("a"), (what,), folder="/")
        await self.launcher.start(Attempt(submission, number, Placement(NODES[:1], NODES[1:]), {}))

    async def told(self) -> None:
        async with asyncio.timeout(1000):
            while not self.exits:
                await asyncio.sleep(0.1)

    async def _exit(self, job: str, attempt: int, failed: str) -> None:
        if self.ray.running:
            self.ray.wrong.append(f"({job!r}, {attempt}) is over while {self.ray.running} runs")
        self.exits.append((attempt, failed))

    async def _node(self, node: str, there: bool) -> None:
        self.nodes.append((node, there))


@asynccontextmanager
async def begun(folder: Path, ray: RayModel, what: str = "run") -> AsyncIterator[Life]:
    """A life with its first attempt."""
    life = Life(folder, ray)
    await life.begin()
    await life.start(1, what)
    yield life
    await life.launcher.close()


@pytest.mark.parametrize("away_s", [0.0, SOON_S, LATE_S])
def test_an_attempt_that_ray_has_forgotten_is_over_when_its_nodes_have_been_swept(
    away_s: float, tmp_path: Path
) -> None:
    async def story() -> None:
        ray = RayModel(*NODES)
        async with begun(tmp_path, ray) as life:
            ray.starts_anew(away_s)
            await life.told()
            await life.start(2)
            assert (life.exits, ray.wrong, ray.ran) == ([(1, LOST)], [], [("a", 1), ("a", 2)])

    played(story())


def test_a_job_is_at_work_for_the_next_life_until_its_attempt_is_over(tmp_path: Path) -> None:
    async def story() -> None:
        ray = RayModel(*NODES)
        async with begun(tmp_path, ray):
            pass
        then = Life(tmp_path, ray)
        assert then.launcher.at_work() == {"a"}
        shutil.copytree(tmp_path, tmp_path / "lost")
        shutil.rmtree(tmp_path / "lost/ray/a")  # as is advised where its journal is lost
        assert Life(tmp_path / "lost", ray).launcher.at_work() == set()
        await then.begin()
        await then.launcher.stop("a", 1, 0.0)
        await then.launcher.close()
        assert Life(tmp_path, ray).launcher.at_work() == set()

    played(story())


def test_what_an_older_job_of_its_name_has_printed_is_not_read_before_an_attempt_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes have that until it takes the place, which one that can't be started never does."""

    async def story() -> None:
        ray, logs = RayModel(*NODES), []

        async def tail(node: str, file: str, lines: int) -> str:
            return "" if file.endswith(".1") else "older" if not ray.running else "own"

        monkeypatch.setattr(ray, "tail", tail)
        life = Life(tmp_path, ray)
        await life.begin()
        starting = asyncio.create_task(life.start(1))
        while not starting.done():
            await asyncio.sleep(0.1)
            logs += await life.launcher.log("a", 2)
        assert set(logs) <= {"own"}
        assert await life.launcher.log("a", 2) == ["own"]
        await life.launcher.close()

    played(story())


def test_nodes_that_are_back_as_others_of_rays_have_been_lost(tmp_path: Path) -> None:
    async def story() -> None:
        ray = RayModel(*NODES)
        async with begun(tmp_path, ray) as life:
            ray.starts_anew(0.0)
            await life.told()
            assert life.nodes == [(node, there) for there in (False, True) for node in NODES]
            await life.start(2)
        ray.starts_anew(0.0)
        await asyncio.sleep(SOON_S)
        then = Life(tmp_path, ray)
        await then.begin()
        assert (then.there, then.nodes) == (set(), [(node, True) for node in NODES])
        await then.launcher.close()

    played(story())


def test_a_dashboard_that_does_not_answer_is_told_of_once_and_so_is_that_it_does_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        ray, looks = RayModel(*NODES), 0
        answer = ray.nodes

        async def nodes() -> list[RayNode]:
            nonlocal looks
            looks += 1
            if looks <= 3 or 6 <= looks <= 9:
                raise Unsure("Ray has not answered")
            return await answer()

        monkeypatch.setattr(ray, "nodes", nodes)
        life = Life(tmp_path, ray)
        await life.begin()
        while looks < 12:
            await asyncio.sleep(0.1)
        await life.launcher.close()

    with caplog.at_level("INFO", "rollmux.service"):
        played(story())
    told = [record.getMessage() for record in caplog.records]
    assert told == ["Ray has not answered: it is asked again until it answers", "Ray answers again"] * 2


def test_nodes_that_stay_away_are_done_without_after_a_while(tmp_path: Path) -> None:
    async def story() -> None:
        ray = RayModel(*NODES)
        async with begun(tmp_path, ray) as life:
            ray.starts_anew(math.inf)
            began = asyncio.get_running_loop().time()
            await life.told()
            assert asyncio.get_running_loop().time() - began < 2 * PACE.sweep_s
            assert life.exits == [(1, LOST)]
            assert sorted(life.nodes) == [(node, False) for node in NODES]

    played(story())


def test_a_stop_returns_when_what_ray_has_forgotten_has_been_swept(tmp_path: Path) -> None:
    async def story() -> None:
        ray = RayModel(*NODES)
        async with begun(tmp_path, ray) as life:
            ray.starts_anew(LATE_S)
            await life.launcher.stop("a", 1, 5.0)
            assert (ray.running, life.exits) == ({}, [])

    played(story())


@pytest.mark.parametrize("away_s", [0.0, SOON_S, LATE_S])
def test_what_ray_has_forgotten_while_no_controller_was_there_is_swept_and_not_forgotten(
    away_s: float, tmp_path: Path
) -> None:
    async def story() -> None:
        ray = RayModel(*NODES)
        async with begun(tmp_path, ray):
            pass
        ray.starts_anew(away_s)
        then = Life(tmp_path, ray)
        running = await then.begin()
        assert running == set(ray.running.values())
        if running:
            await then.told()
        await then.start(2)
        assert (ray.wrong, ray.ran) == ([], [("a", 1), ("a", 2)])
        assert then.exits == [(1, LOST)][: len(running)]
        await then.launcher.close()

    played(story())


@pytest.mark.parametrize("away_s", [PACE.begin_s + 1.0, 5 * PACE.begin_s])
def test_a_controller_that_is_killed_before_that_sweep_leaves_it_to_the_next(away_s: float, tmp_path: Path) -> None:
    async def story() -> None:
        ray = RayModel(*NODES)
        async with begun(tmp_path, ray):
            pass
        ray.starts_anew(away_s)
        second = Life(tmp_path, ray)
        assert await second.begin() == {("a", 1)}
        await second.launcher.close()
        third = Life(tmp_path, ray)
        running = await third.begin()
        assert running == set(ray.running.values())
        if running:
            await third.told()
        await third.start(2)
        assert (ray.wrong, ray.ran) == ([], [("a", 1), ("a", 2)])
        assert third.exits == [(1, LOST)][: len(running)]
        await third.launcher.close()

    played(story())


def test_what_a_controller_starts_as_it_goes_is_known_to_the_one_that_waits_for_its_folder(tmp_path: Path) -> None:
    """Else the next one would start it again, beside the first."""

    async def story() -> None:
        ray = RayModel(*NODES)
        going, then = Life(tmp_path, ray), Life(tmp_path, ray)
        await going.begin()
        await going.start(1)
        await going.launcher.close()
        assert await then.begin() == {("a", 1)}
        await then.start(1)
        assert (ray.ran, ray.wrong) == ([("a", 1)], [])
        await then.launcher.close()

    played(story())


class Odd(RayModel):
    """A Ray some of whose answers nobody has thought of."""

    odd = odd_submissions = 0

    async def jobs(self) -> dict[str, RayJob]:
        self._oddly()
        return await super().jobs()

    async def nodes(self) -> list[RayNode]:
        self._oddly()
        return await super().nodes()

    async def submit(self, wish: Wish) -> None:
        if not self.odd_submissions:
            await super().submit(wish)
            return
        self.odd_submissions -= 1
        raise RuntimeError("can't start new thread")

    def _oddly(self) -> None:
        if self.odd:
            self.odd -= 1
            raise KeyError("submission_id")


def test_the_watch_goes_on_whatever_a_look_ends_in_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        ray = Odd(*NODES)
        async with begun(tmp_path, ray, "fail") as life:
            ray.odd = 5
            await life.told()
            assert life.exits == [(1, "bad luck")]
            assert ray.odd == 0

    played(story())
    assert len([each for each in caplog.records if each.exc_info and each.exc_info[0] is KeyError]) == 5


def test_a_stop_that_breaks_off_is_tried_again_with_pauses(tmp_path: Path) -> None:
    """Else the log would be full of it in no time: a start that broke off for that reason is stopped."""

    async def story() -> None:
        ray, times = Odd(*NODES), 5
        life, ray.odd_submissions = Life(tmp_path, ray), times
        await life.begin()
        with pytest.raises(RuntimeError, match="new thread"):
            await life.start(1)
        began = asyncio.get_running_loop().time()
        await life.launcher.stop("a", 1, 0.0)
        assert asyncio.get_running_loop().time() - began >= (times - 1) * PACE.pause_s
        assert (ray.odd_submissions, ray.ran, life.launcher.at_work()) == (0, [], set())
        await life.launcher.close()

    played(story())

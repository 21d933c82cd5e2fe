"""The ranks of an attempt on one node, without Ray: their actor is an object here."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollmux.service.local.kept import answer
from rollmux.service.ray.wire import Part, RayPlan
from tests.service.local.launching import nothing_left, written

part = pytest.importorskip("rollmux.service.ray.part", reason="Ray is not installed")


def test_what_is_stopped_while_it_starts_is_gone_once_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another node of its job lacks the folder: what is said to be gone is looked for by nobody."""

    async def slowly(heard: int, wait_s: float) -> str | None:
        await is_stopped.wait()
        return await answer(heard, wait_s)

    async def story() -> None:
        ranks = part.Ranks()
        command = ("sh", "-c", "echo $$ > pid; sleep 60")
        plan = RayPlan("one", "logs", "a", 1, command, str(tmp_path), {}, 1, 2**20, 5.0, ())
        starting = asyncio.create_task(ranks.start(plan, Part("here", {0: "rollout-0"})))
        rank = await written(tmp_path / "pid")
        await ranks.stop(5.0)
        assert not Path(f"/proc/{rank}").exists()
        is_stopped.set()
        await starting
        assert await ranks.ended() == "it was told to end from outside (SIGTERM)"

    is_stopped = asyncio.Event()
    monkeypatch.setattr(part, "answer", slowly)
    monkeypatch.setattr(part, "_logs", lambda: tmp_path)
    monkeypatch.setattr(part.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=""))
    with nothing_left():
        asyncio.run(story())

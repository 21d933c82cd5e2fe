"""A real controller with real sockets, a real journal and real processes, within the test's own process."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvloop

from rollmux.mux.cluster_state import Checks, Rules
from rollmux.mux.hardware import GB, Cluster, NodeType, Pool
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.weave import Timing
from rollmux.service.journal import Journal, SqliteJournal
from rollmux.service.local.launcher import ProcessLauncher
from rollmux.service.serve import Service, Wanted
from rollmux.service.tokens import Role

CHEAP = NodeType("cheap", 8, 1.85, 96 * GB, 1000 * GB)
DEAR = NodeType("dear", 8, 5.28, 80 * GB, 1000 * GB)
SMALL = Cluster(Pool("rollout", CHEAP, on_demand=False, max_nodes=2), Pool("train", DEAR, on_demand=False, max_nodes=2))
PAIR = Cluster(Pool("rollout", CHEAP, on_demand=False, max_nodes=1), Pool("train", DEAR, on_demand=False, max_nodes=1))
RULES = Rules(timing=Timing(lease_s=2.0, drain_s=1.0), checks=Checks.ALL)


class Served:
    """A controller that runs in a thread, and calls to it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.admin = service.tokens.create("admin", Role.ADMIN) if not service.tokens.names() else ""
        self._ready = threading.Event()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        self.client = httpx.Client(base_url=service.url, timeout=20, verify=False)

    def _run(self) -> None:
        async def main() -> None:
            ready = asyncio.Event()
            task = asyncio.ensure_future(self.service.run(ready))
            await asyncio.wait([asyncio.ensure_future(ready.wait()), task], return_when=asyncio.FIRST_COMPLETED)
            self._ready.set()
            await task

        self._loop.run_until_complete(main())

    def close(self) -> None:
        self.client.close()
        self._loop.call_soon_threadsafe(self.service.end)
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._loop.close()

    def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> httpx.Response:
        bearer = self.admin if token is None else token
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        return self.client.request(method, path, json=body, headers=headers)

    def post(self, path: str, body: Any = None, token: str | None = None) -> Any:
        answer = self.call("POST", path, body, token)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def attached(self, name: str) -> int:
        """The attempt of a new job that attaches by itself, and has its place."""
        self.post("/v1/jobs", job(name))
        attempt: int = self.post(f"/v1/jobs/{name}/attach", {"instance": "one", "wait_s": 5.0})["attempt"]
        return attempt

    def get(self, path: str, token: str | None = None) -> Any:
        answer = self.call("GET", path, None, token)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def served(
    folder: Path,
    cluster: Cluster = SMALL,
    rules: Rules = RULES,
    journal: Callable[[Path], Journal] = SqliteJournal,
    port: int = 0,
    certificate: tuple[Path, Path] | tuple[None, None] = (None, None),
) -> Iterator[Served]:
    """A controller over this folder, as long as the block lasts."""
    wanted = Wanted(cluster, RollmuxPolicy(), folder, rules, port=port, certificate=certificate[0], key=certificate[1])
    there = Served(Service(wanted, ProcessLauncher(folder), journal))
    try:
        yield there
    finally:
        there.close()


def job(name: str, **more: Any) -> dict[str, Any]:
    """A job that attaches by itself."""
    phase = {"duration_s": 1.0, "nodes": 1}
    return {"name": name, "slo": 3.0, "rollout": phase, "train": phase, **more}

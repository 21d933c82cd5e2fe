"""What calls leave behind, where the interpreter's own collector is off."""

import asyncio
import gc
import json
import weakref
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from rollmux.service import garbage
from tests.service.serving import job, served

ROUNDS = 40


def called(
    there: HTTPConnection, method: str, path: str, token: str, body: dict[str, Any] | None = None
) -> tuple[int, Any]:
    """By a client that leaves nothing behind itself. A connection does, so that all go through one."""
    there.request(method, path, None if body is None else json.dumps(body), {"Authorization": f"Bearer {token}"})
    answer = there.getresponse()
    content = answer.read()
    return answer.status, json.loads(content) if content.startswith(b"{") else content


def a_little_of_everything(there: HTTPConnection, token: str, number: int) -> None:
    """Calls that are answered, parked, refused, and those of strangers."""
    name = f"job-{number}"

    def post(path: str, body: dict[str, Any]) -> Any:
        status, answer = called(there, "POST", path, token, body)
        assert status == 200, answer
        return answer

    post("/v1/jobs", job(name, iterations=1))
    attempt = post(f"/v1/jobs/{name}/attach", {"instance": "one", "wait_s": 5.0})["attempt"]
    for kind in ("rollout", "train", "sync"):
        ask = {"attempt": attempt, "kind": kind, "iteration": 0, "wait_s": 5.0}
        epoch = post(f"/v1/jobs/{name}/ask", ask)["lease"]["epoch"]
        listen = {"attempt": attempt, "epochs": [epoch], "wait_s": 0.01}
        post(f"/v1/jobs/{name}/listen", {**listen, "seen": post(f"/v1/jobs/{name}/listen", listen)["version"]})
        for said in ("started", "finished"):
            post(f"/v1/jobs/{name}/report", {"said": said, "epoch": epoch})
    post(f"/v1/jobs/{name}/leave", {"attempt": attempt})
    for path in ("/v1/cluster", f"/v1/jobs/{name}", "/v1/history", "/v1/bill", "/metrics", "/healthz"):
        assert called(there, "GET", path, token)[0] == 200, path
    assert called(there, "POST", "/v1/jobs", token, {"name": name, "slo": "none"})[0] == 422
    assert called(there, "GET", "/v1/jobs/nobody", token)[0] == 404
    assert called(there, "GET", "/v1/cluster", "wrong")[0] == 401


def test_calls_leave_little_that_only_a_collector_finds(tmp_path: Path) -> None:
    with (
        served(tmp_path) as there,
        closing(HTTPConnection(there.client.base_url.host, there.client.base_url.port)) as connection,
    ):
        a_little_of_everything(connection, there.admin, 0)
        gc.collect()
        gc.disable()
        try:
            for number in range(1, ROUNDS):
                a_little_of_everything(connection, there.admin, number)
            found = gc.collect()
        finally:
            gc.enable()
    assert found < 20 * ROUNDS, "cycles in every call would fill the memory between two looks"


def test_the_interpreters_own_looks_end_and_ours_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    gone: list[int] = []

    async def main() -> None:
        collecting = asyncio.ensure_future(garbage.collect_forever())
        await asyncio.sleep(0)
        assert not gc.isenabled()
        weakref.finalize(Cycle(), gone.append, 1)
        assert not gone
        await asyncio.sleep(0.05)
        collecting.cancel()

    monkeypatch.setattr(garbage, "EVERY_S", 0.01)
    try:
        asyncio.run(main())
    finally:
        gc.enable()
    assert gone

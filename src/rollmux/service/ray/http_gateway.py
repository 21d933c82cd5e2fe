"""The gateway to a real Ray cluster: the HTTP calls of its dashboard (Jobs and State APIs).

Plain HTTP and not Ray's own client: that one blocks, has no time limits, and must be of the cluster's very version.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from rollmux.errors import RollmuxError
from rollmux.service.ray.gateway import RayJob, RayNode, Rejected, Unsure, Wish

# Each call has so long; a submission waits for Ray's agent.
CALL_S, SUBMIT_S = 10.0, 30.0
_MOST_NODES = 10_000


def token(env: Mapping[str, str]) -> str:
    """Where Ray's own tools have it from; nothing where the cluster wants none."""
    mode = env.get("RAY_AUTH_MODE", "").lower()
    if mode == "disabled":
        return ""
    if given := env.get("RAY_AUTH_TOKEN", "").strip():
        return given
    path = Path(env.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        if mode != "token":
            return ""
        raise CantCall(f"RAY_AUTH_MODE is token, and there is none in {str(path)!r}: {error.strerror}") from error


class CantCall(RollmuxError):
    """Ray can't be called, for a reason that somebody can mend."""


class HttpGateway:
    """Speaks to the dashboard at this address, with the token of a cluster that wants one (RAY_AUTH_MODE=token)."""

    def __init__(self, address: str, token: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Limits(max_connections=16)
        self._http = httpx.AsyncClient(base_url=address, headers=headers, timeout=CALL_S, limits=limits)

    async def submit(self, wish: Wish) -> None:
        runtime_env: dict[str, Any] = {"env_vars": dict(wish.env)}
        if wish.working_dir:
            runtime_env["working_dir"] = wish.working_dir
        body = {
            "submission_id": wish.id,
            "entrypoint": wish.command,
            "runtime_env": runtime_env,
            "metadata": dict(wish.metadata),
        }
        answer = await self._call("POST", "/api/jobs/", json=body, timeout=SUBMIT_S)
        if answer.is_error and "already exists" not in answer.text:
            raise _trouble(answer)

    async def jobs(self) -> dict[str, RayJob]:
        answer = await self._good("GET", "/api/jobs/")
        return {job.id: job for each in _json(answer) if (job := _job(each)) is not None}

    async def job(self, job_id: str) -> RayJob | None:
        answer = await self._call("GET", f"/api/jobs/{quote(job_id, safe='')}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return _job(_json(_require_good(answer)))

    async def stop(self, job_id: str) -> None:
        await self._good("POST", f"/api/jobs/{quote(job_id, safe='')}/stop")

    async def said(self, job_id: str) -> str:
        answer = await self._good("GET", f"/api/jobs/{quote(job_id, safe='')}/logs")
        return str(_json(answer)["logs"])

    async def tail(self, node: str, file: str, lines: int) -> str:
        wanted = {"node_id": node, "filename": file, "lines": str(lines)}
        answer = await self._call("GET", "/api/v0/logs/file", params=wanted)
        if answer.is_error and "not found" in answer.text.lower():
            return ""
        return _require_good(answer).text

    async def nodes(self) -> list[RayNode]:
        wanted = {"limit": str(_MOST_NODES), "filter_keys": "state", "filter_predicates": "=", "filter_values": "ALIVE"}
        found = _json(await self._good("GET", "/api/v0/nodes", params=wanted))
        try:
            rows = found["data"]["result"]["result"]
            nodes = [RayNode(row["node_id"], row["node_ip"], _numbers(row["resources_total"])) for row in rows]
        except (KeyError, TypeError) as error:
            raise Unsure(f"Ray has listed its nodes in a way that can't be read: {error!r}") from error
        return sorted(nodes, key=lambda node: node.id)

    async def forget(self, job_id: str) -> None:
        await self._good("DELETE", f"/api/jobs/{quote(job_id, safe='')}")

    async def close(self) -> None:
        await self._http.aclose()

    async def _good(self, method: str, path: str, **more: Any) -> httpx.Response:
        return _require_good(await self._call(method, path, **more))

    async def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return await self._http.request(method, path, **more)
        except httpx.HTTPError as error:
            raise Unsure(f"Ray at {self._http.base_url} has not answered: {error or type(error).__name__}") from error


def _require_good(answer: httpx.Response) -> httpx.Response:
    if not answer.is_success:
        raise _trouble(answer)
    return answer


def _trouble(answer: httpx.Response) -> Unsure | Rejected:
    """A fault of Ray's says nothing of what it has done; a refusal does."""
    last = (answer.text.strip().splitlines() or [""])[-1][:500]
    said = f"Ray has answered {answer.status_code} to {answer.request.method} {answer.request.url.path}: {last}"
    return Rejected(said) if answer.is_client_error else Unsure(said)


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise Unsure(f"Ray has answered {answer.request.url.path} with what is not JSON") from error


def _job(row: Mapping[str, Any]) -> RayJob | None:
    """None for a driver that was not submitted."""
    job_id = row.get("submission_id")
    if not job_id:
        return None
    return RayJob(job_id, str(row["status"]), row.get("message") or "", row.get("metadata") or {})


def _numbers(resources: Mapping[str, Any]) -> dict[str, float]:
    """Amounts of memory come as texts, and are of no interest here."""
    return {name: float(amount) for name, amount in resources.items() if isinstance(amount, int | float)}

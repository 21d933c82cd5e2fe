"""The gateway to a real Ray cluster: the HTTP calls of its dashboard (Jobs and State APIs).

Plain HTTP and not Ray's own client: that one blocks, has no time limits, and must be of the cluster's very version.
An answer that can't be read as what was asked for counts as none.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from rollmux.errors import RollmuxError
from rollmux.service.local.kept import beside
from rollmux.service.ray.gateway import RayJob, RayNode, Rejected, Unsure, Wish

# How long a call may take; a submission takes longer, for it waits for Ray's agent.
CALL_S, SUBMIT_S = 10.0, 30.0
_MOST_NODES = 10_000
# What Ray says of a job that it does not know. A proxy in front of it has other words for what it does not find.
_NO_SUCH_JOB = "does not exist"
# Where KubeRay mounts the token of a pod, which Kubernetes renews each hour.
K8S_TOKEN = Path("/var/run/secrets/ray.io/serviceaccount/token")
T = TypeVar("T")


def token(env: Mapping[str, str]) -> str:
    """The token, from where Ray's own tools get it; nothing if the cluster wants none."""
    mode = env.get("RAY_AUTH_MODE", "").lower()
    if mode == "disabled":
        return ""
    found = env.get("RAY_AUTH_TOKEN", "").strip() or _in_file(_token_file(env), wanted=mode == "token")
    if not found.isascii():
        raise CantCall("the token for Ray can't be sent: it has letters that are not ASCII")
    return found


def _in_file(path: Path, wanted: bool) -> str:
    """The token in a file, which may be away or empty for a moment while it is written anew."""
    try:
        found, why = path.read_text(encoding="utf-8", errors="replace").strip(), "it is empty"
    except OSError as error:
        found, why = "", error.strerror or str(error)
    if wanted and not found:
        raise CantCall(f"RAY_AUTH_MODE is token, and there is none in {str(path)!r}: {why}")
    return found


def _token_file(env: Mapping[str, str]) -> Path:
    if named := env.get("RAY_AUTH_TOKEN_PATH"):
        return Path(named)
    if env.get("RAY_ENABLE_K8S_TOKEN_AUTH", "").lower() in ("true", "1"):
        return K8S_TOKEN
    return Path(os.path.expanduser("~/.ray/auth_token"))  # not `Path.home()`, which raises for a user without one


class CantCall(RollmuxError):
    """Ray can't be called, for a reason that somebody can mend."""


class _Job(msgspec.Struct, frozen=True):
    """A job as Ray shows it. Without a `submission_id` it is a driver that was not submitted."""

    status: str
    submission_id: str | None = None
    message: str | None = None
    metadata: dict[str, str] | None = None


class _Printed(msgspec.Struct, frozen=True):
    logs: str


class _Node(msgspec.Struct, frozen=True):
    """A node as Ray shows it. Amounts of memory come as texts, and are not needed here."""

    node_id: str
    node_ip: str
    resources_total: dict[str, float | str]


class _Rows(msgspec.Struct, frozen=True):
    result: list[_Node]


class _Page(msgspec.Struct, frozen=True):
    result: _Rows


class _Nodes(msgspec.Struct, frozen=True):
    data: _Page


class HttpGateway:
    """Speaks to the dashboard at this address, with the token of a cluster that wants one (RAY_AUTH_MODE=token).

    The token is asked for with each call, for it may be renewed.
    """

    def __init__(
        self, address: str, token: Callable[[], str] = str, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._token = token
        self._asking: asyncio.Task[str] | None = None
        # A transport of its own, since proxies that the environment names are for addresses outside of the cluster.
        direct = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=16))
        self._http = httpx.AsyncClient(base_url=address, timeout=CALL_S, transport=transport or direct)

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
        if not answer.is_success and "already exists" not in answer.text:
            raise _trouble(answer)

    async def jobs(self) -> dict[str, RayJob]:
        answer = await self._good("GET", "/api/jobs/")
        return {each.submission_id: _job(each) for each in _read(answer, list[_Job]) if each.submission_id}

    async def job(self, job_id: str) -> RayJob | None:
        answer = await self._call("GET", f"/api/jobs/{quote(job_id, safe='')}")
        if answer.status_code == httpx.codes.NOT_FOUND and _NO_SUCH_JOB in answer.text:
            return None
        job = _job(_read(_require_good(answer), _Job))
        if job.id != job_id:
            raise Unsure(f"Ray was asked for job {job_id!r} and has answered with {job.id!r}")
        return job

    async def stop(self, job_id: str) -> None:
        await self._good("POST", f"/api/jobs/{quote(job_id, safe='')}/stop")

    async def said(self, job_id: str) -> str:
        answer = await self._good("GET", f"/api/jobs/{quote(job_id, safe='')}/logs")
        return _read(answer, _Printed).logs

    async def tail(self, node: str, file: str, lines: int) -> str:
        wanted = {"node_id": node, "filename": file, "lines": str(lines)}
        answer = await self._call("GET", "/api/v0/logs/file", params=wanted)
        if answer.is_error and "not found" in answer.text.lower():
            return ""
        return _require_good(answer).text

    async def nodes(self) -> list[RayNode]:
        wanted = {"limit": str(_MOST_NODES), "filter_keys": "state", "filter_predicates": "=", "filter_values": "ALIVE"}
        rows = _read(await self._good("GET", "/api/v0/nodes", params=wanted), _Nodes).data.result.result
        nodes = [RayNode(row.node_id, row.node_ip, _numbers(row.resources_total)) for row in rows]
        return sorted(nodes, key=lambda node: node.id)

    async def forget(self, job_id: str) -> None:
        await self._good("DELETE", f"/api/jobs/{quote(job_id, safe='')}")

    async def close(self) -> None:
        await self._http.aclose()

    async def _good(self, method: str, path: str, **more: Any) -> httpx.Response:
        return _require_good(await self._call(method, path, **more))

    async def _found(self) -> str:
        """The token. Its file may be on a server that has gone silent: then all calls wait for one answer of that."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(beside(self._token))
        try:
            async with asyncio.timeout(CALL_S):
                return await asyncio.shield(self._asking)
        except TimeoutError as error:
            raise CantCall("the token for Ray can't be read: what has its file does not answer") from error

    async def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            found = await self._found()
            headers = {"Authorization": f"Bearer {found}"} if found else {}
            return await self._http.request(method, path, headers=headers, **more)
        except CantCall as error:
            raise Unsure(str(error)) from error
        except httpx.HTTPError as error:
            raise Unsure(f"Ray at {self._http.base_url} has not answered: {error or type(error).__name__}") from error


def _require_good(answer: httpx.Response) -> httpx.Response:
    if not answer.is_success:
        raise _trouble(answer)
    return answer


def _trouble(answer: httpx.Response) -> Unsure | Rejected:
    """After a fault of Ray's nobody knows what the call has done; after a refusal it has done nothing."""
    last = (answer.text.strip().splitlines() or [""])[-1][:500]
    said = f"Ray has answered {answer.status_code} to {answer.request.method} {answer.request.url.path}: {last}"
    return Rejected(said) if answer.is_client_error else Unsure(said)


def _read(answer: httpx.Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unsure(f"Ray has answered {answer.request.url.path} with what can't be read: {error}") from error


def _job(row: _Job) -> RayJob:
    return RayJob(row.submission_id or "", row.status, row.message or "", row.metadata or {})


def _numbers(resources: Mapping[str, float | str]) -> dict[str, float]:
    return {name: amount for name, amount in resources.items() if isinstance(amount, float)}

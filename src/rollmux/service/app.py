"""The controller over HTTP: who calls, whether they may, what they bring; then the answer, or why there is none.

JSON only, and nothing is read that is larger than it may be.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as Path

from rollmux.errors import IllegalEvent, InvalidSpec, RollmuxError
from rollmux.protocol.messages import Refusal
from rollmux.service.controller import NoSuchJob, Refused
from rollmux.service.host import Host, Unavailable
from rollmux.service.openapi import description
from rollmux.service.rates import Rates
from rollmux.service.routes import EVERYBODY, ROUTES, Call, Route
from rollmux.service.tokens import Caller, Role, Tokens

log = logging.getLogger("rollmux.service")
audit = logging.getLogger("rollmux.audit")

# The largest job description, and the largest of all other messages.
MOST_BYTES, MOST_SUBMITTED_BYTES = 64 * 1024, 1024 * 1024

_NOBODY = Caller(Role.TENANT, "nobody")
_encode = msgspec.json.Encoder().encode


class Denied(RollmuxError):
    """The call is not answered, for a reason that has a number in HTTP."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


def app(host: Host, tokens: Tokens) -> Starlette:
    """Everything that is served."""
    server = _Server(host, tokens)
    described = json.dumps(description(ROUTES)).encode()

    async def openapi(request: Request) -> Response:
        return Response(described, media_type="application/json")

    paths = [Path(route.path, server.endpoint(route), methods=[route.method]) for route in ROUTES]
    return Starlette(routes=[*paths, Path("/openapi.json", openapi)])


class _Server:
    """One endpoint for each route."""

    def __init__(self, host: Host, tokens: Tokens) -> None:
        self.host, self.tokens, self.rates = host, tokens, Rates()

    def endpoint(self, route: Route) -> Callable[[Request], Awaitable[Response]]:
        decoder: msgspec.json.Decoder[Any] | None = None
        if route.takes is not None:
            decoder = msgspec.json.Decoder(route.takes)
        read = None if decoder is None else decoder.decode

        async def answer(request: Request) -> Response:
            caller = _NOBODY
            try:
                caller = self._caller(request, route)
                body = await _body(request, route, read)
                found = await route.answer(Call(self.host, caller, request.path_params, request.query_params, body))
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:  # noqa: BLE001  every call is answered, and what is not foreseen is logged
                status, refusal = _refusal(error)
                self._note(route, request, caller, status)
                return Response(_encode(refusal), status, media_type="application/json")
            self._note(route, request, caller, 200)
            return Response(_encode(found), media_type="application/json")

        return answer

    def _caller(self, request: Request, route: Route) -> Caller:
        """Who calls, if they may."""
        if route.who is EVERYBODY:
            return _NOBODY
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        caller = self.tokens.caller(token.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            raise Denied(
                401, "who calls is not known: send the header `Authorization: Bearer TOKEN` with a valid token"
            )
        if caller.role not in route.who:
            raise Denied(403, f"a token with the role {caller.role.value} may not do this")
        if not self.rates.allow(caller.name):
            raise Denied(429, "too many calls: wait a second")
        job = request.path_params.get("job")
        if job is not None:
            if caller.role is Role.JOB and caller.job != job:
                raise NoSuchJob(f"there is no job {job!r}")
            self.host.controller.live(job, caller.sees)
        return caller

    def _note(self, route: Route, request: Request, caller: Caller, status: int) -> None:
        """A line for each change, and for each that was not allowed."""
        if route.changes or status in (401, 403):
            where = request.client.host if request.client else ""
            line = {"who": caller.name, "from": where, "call": f"{route.method} {request.url.path}", "status": status}
            audit.info(json.dumps(line))


async def _body(request: Request, route: Route, read: Callable[[bytes], Any] | None) -> Any:
    if read is None:
        return None
    most = MOST_SUBMITTED_BYTES if route.takes is dict else MOST_BYTES
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Denied(413, f"the body is larger than {most} bytes")
        parts.append(part)
    return read(b"".join(parts))


def _refusal(error: Exception) -> tuple[int, Refusal]:
    """The number and the words of an error."""
    match error:
        case Denied():
            return error.status, Refusal(str(error))
        case NoSuchJob():
            return 404, Refusal(str(error))
        case InvalidSpec():
            return 422, Refusal(f"{error.subject} is described wrongly", tuple(map(str, error.problems)))
        case Refused():
            return 422, Refusal("the job can't be taken", error.reasons)
        case IllegalEvent():
            return 409, Refusal(str(error))
        case Unavailable():
            return 503, Refusal(str(error))
        case msgspec.MsgspecError() | UnicodeDecodeError() | RecursionError():
            return 400, Refusal(f"the body can't be read: {error}")
    log.error("a call failed", exc_info=error)
    return 500, Refusal("the controller has a bug: its log says more")

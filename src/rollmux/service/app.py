"""The controller over HTTP: who calls, whether they may, what they bring; then the answer, or why there is none.

JSON only, and nothing is read that is larger than it may be. Plain ASGI: a framework would cost as much as the rest.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from rollmux.errors import IllegalEvent, InvalidSpec, RollmuxError
from rollmux.protocol.messages import Refusal
from rollmux.protocol.plain_json import read_object
from rollmux.service.controller import NoSuchJob, Refused
from rollmux.service.host import Host, Unavailable
from rollmux.service.metrics import Metrics
from rollmux.service.openapi import description
from rollmux.service.rates import Rates
from rollmux.service.routes import EVERYBODY, OWNERS, ROUTES, Call, Route
from rollmux.service.tokens import Caller, Role, Tokens

log = logging.getLogger("rollmux.service")
audit = logging.getLogger("rollmux.audit")

# The largest job description, and the largest of all other messages.
MOST_BYTES, MOST_SUBMITTED_BYTES = 64 * 1024, 1024 * 1024

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_NOBODY = Caller(Role.TENANT, "nobody")
_encode = msgspec.json.Encoder().encode


class Denied(RollmuxError):
    """The call is not answered, for a reason that has a number in HTTP."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


class App:
    """The ASGI application: one endpoint for each route."""

    def __init__(self, host: Host, tokens: Tokens) -> None:
        self.host, self.tokens, self.rates = host, tokens, Rates()
        self._routes = {_shape(route): _Endpoint(route) for route in ROUTES}
        self._described = json.dumps(description(ROUTES)).encode()
        self.metrics = Metrics(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # uvicorn speaks of its own life too, which is not asked for
        method, segments = scope["method"], scope["raw_path"].decode("latin-1").split("/")[1:]
        if method == "GET" and segments == ["openapi.json"]:
            await _send(send, 200, self._described)
            return
        if method == "GET" and segments == ["metrics"]:
            await self._figures(scope, send)
            return
        endpoint = self._routes.get((method, *_statics(segments)))
        caller = _NOBODY
        try:
            if endpoint is None:
                raise Denied(404, f"there is no call {method} {scope['path']}")
            path = {name: unquote(segments[place]) for place, name in endpoint.names}
            caller = self._caller(scope, endpoint.route, path)
            body = await endpoint.body(receive)
            found = await endpoint.route.answer(Call(self.host, caller, path, _query(scope), body))
            status, content = 200, _encode(found)
        except Exception as error:  # noqa: BLE001  every call is answered, and what is not foreseen is logged
            status, refusal = _refusal(error)
            content = _encode(refusal)
        if endpoint is not None:
            self.metrics.calls[endpoint.route.answer.__name__, status] += 1
        if endpoint is not None and (endpoint.route.changes or status in (401, 403)):
            _note(scope, caller, status)
        await _send(send, status, content)

    async def _figures(self, scope: Scope, send: Send) -> None:
        """For Prometheus, which knows no JSON; prices are nothing for strangers."""
        try:
            self._entitled(scope, OWNERS)
        except Denied as error:
            await _send(send, error.status, _encode(Refusal(str(error))))
            return
        await _send(send, 200, self.metrics.text(), b"text/plain; version=0.0.4; charset=utf-8")

    def _caller(self, scope: Scope, route: Route, path: Mapping[str, str]) -> Caller:
        """Who calls, if they may."""
        if route.who is EVERYBODY:
            return _NOBODY
        caller = self._entitled(scope, route.who)
        if not self.rates.allow(caller.name):
            raise Denied(429, "too many calls: wait a second")
        job = path.get("job")
        if job is not None:
            if caller.role is Role.JOB and caller.job != job:
                raise NoSuchJob(f"there is no job {job!r}")
            self.host.controller.live(job, caller.sees)
        return caller

    def _entitled(self, scope: Scope, who: frozenset[Role]) -> Caller:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = header.decode("latin-1").partition(" ")
        caller = self.tokens.caller(token.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            raise Denied(
                401, "who calls is not known: send the header `Authorization: Bearer TOKEN` with a valid token"
            )
        if caller.role not in who:
            raise Denied(403, f"a token with the role {caller.role.value} may not do this")
        return caller


class _Endpoint:
    """One route, and how what it takes is read."""

    def __init__(self, route: Route) -> None:
        self.route = route
        segments = route.path.split("/")[1:]
        self.names = tuple((place, part[1:-1]) for place, part in enumerate(segments) if part.startswith("{"))
        self._most = MOST_SUBMITTED_BYTES if route.takes is dict else MOST_BYTES
        self._read: Callable[[bytes], Any] | None = None
        if route.takes is not None:
            self._read = read_object if route.takes is dict else msgspec.json.Decoder(route.takes).decode

    async def body(self, receive: Receive) -> Any:
        """What the call brings, as the route's type."""
        if self._read is None:
            return None
        content, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Denied(499, "the caller is gone")
            content += message.get("body", b"")
            more = message.get("more_body", False)
            if len(content) > self._most:
                raise Denied(413, f"the body is larger than {self._most} bytes")
        return self._read(content)


def _shape(route: Route) -> tuple[str, ...]:
    return (route.method, *_statics(route.path.split("/")[1:]))


def _statics(segments: Sequence[str]) -> Iterator[str]:
    """A path with its variable parts left open: by our convention every second part after `/v1/KIND`."""
    return (part if place != 2 or segments[0] != "v1" else "*" for place, part in enumerate(segments))


def _query(scope: Scope) -> Mapping[str, str]:
    text = scope["query_string"]
    return dict(parse_qsl(text.decode("latin-1"))) if text else {}


def _note(scope: Scope, caller: Caller, status: int) -> None:
    """A line for each change, and for each that was not allowed."""
    where = scope["client"][0] if scope.get("client") else ""
    call = f"{scope['method']} {scope['path']}"
    audit.info(json.dumps({"who": caller.name, "from": where, "call": call, "status": status}))


async def _send(send: Send, status: int, content: bytes, kind: bytes = b"application/json") -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


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

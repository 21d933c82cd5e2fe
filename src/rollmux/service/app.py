"""The controller over HTTP: finds out who calls, whether they may, and what they bring; then answers, or says why not.

JSON only, and no body is read beyond its limit. Plain ASGI: a framework would cost as much as the rest.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import aclosing
from functools import cache, partial
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from rollmux.errors import IllegalEvent, InvalidSpec, RollmuxError
from rollmux.protocol.messages import Refusal
from rollmux.protocol.plain_json import read_object
from rollmux.service.controller import NoSuchJob, Refused
from rollmux.service.host import Host, HungUp, Unavailable
from rollmux.service.metrics import Metrics
from rollmux.service.openapi import description
from rollmux.service.page import page
from rollmux.service.paths import Paths
from rollmux.service.rates import PER_S, Rates
from rollmux.service.routes import ALL, EVERYBODY, OWNERS, ROUTES, Call, Route
from rollmux.service.stream import Follower
from rollmux.service.tokens import Caller, Role, Tokens
from rollmux.service.views import cluster_view

log = logging.getLogger("rollmux.service")
audit = logging.getLogger("rollmux.audit")

# The largest body of a message, and of a job description.
MOST_BYTES, MOST_SUBMITTED_BYTES = 64 * 1024, 1024 * 1024

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

Headers = Sequence[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
KIND_OF_FIGURES = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
# The last header is for nginx, which otherwise hands on no news before they fill a buffer.
STREAM = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))

# The most streams that are open at a time, in all and of one caller; a reader that takes nothing for `SLOW_S` is cut
# off.
MOST_STREAMS, MOST_STREAMS_EACH, SLOW_S = 200, 20, 15.0

# An answer about all jobs takes 20 ms with 1,000 of them. So that other callers have their share, it counts as one call
# more, against the rate that its caller may have, for each so many jobs.
JOBS_A_CALL = 50.0
# A job's processes share a token. If there are more of them than this, each may still make a call a second.
PROCESSES_A_CALL = PER_S
# The rate of calls without a good token from one address: each of them is a line in the log.
STRANGERS_PER_S, STRANGERS_BURST = 10.0, 200.0
TOO_MANY = 429
# No caller hears this status, which is nginx's for callers that hung up: it is for the metrics.
GONE = 499

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
        self.strangers = Rates(per_s=STRANGERS_PER_S, burst=STRANGERS_BURST)
        self._paths = Paths((route.method, route.path, _Endpoint(route)) for route in ROUTES)
        content = page.content()
        self._pages: dict[tuple[str, bytes], tuple[Callable[[], bytes], Headers]] = {
            ("GET", b"/"): (lambda: content, page.HEADERS),
            ("GET", b"/openapi.json"): (_described, ()),
        }
        self.metrics = Metrics(host)
        self._readers: Counter[str] = Counter()  # open streams, by caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # uvicorn also tells of its own start and end, which need no answer
        method, raw_path = scope["method"], scope["raw_path"]
        found = self._paths.find(method, raw_path.decode("latin-1"))
        if found is None and (method, raw_path) in self._pages:
            made, headers = self._pages[method, raw_path]
            await _send(send, 200, made(), headers)
            return
        if found is None and (method, raw_path) == ("GET", b"/metrics"):
            await self._figures(scope, send)
            return
        endpoint, path = found or (None, {})
        caller, answer, allowed, began = _NOBODY, None, False, time.perf_counter()
        query = _query(scope)
        try:
            if endpoint is None:
                raise Denied(404, f"there is no call {method} {scope['path']}")
            route, ended = endpoint.route, endpoint.route.most_ended(query)
            caller = self._caller(scope, route.who, self._looked_at(ended) if route.of_all else 0, path.get("job", ""))
            self._require_entitled(caller, route.who, path)
            allowed = True
            body = await endpoint.body(scope, receive)
            answer = await route.answer(Call(self.host, caller, path, query, body, ended, partial(_left, receive)))
            if route.streams:
                self._require_room(caller)
            status, content = 200, b"" if route.streams else _encode(answer)
        except asyncio.CancelledError:  # the controller ends, and waits for no call any more
            status, content = 503, _encode(Refusal("the controller is ending: try again in a moment"))
        except Exception as error:  # noqa: BLE001  every call is answered, and what is not foreseen is logged
            status, refusal = _refusal(error)
            content = _encode(refusal)
        if endpoint is not None:
            self.metrics.calls[endpoint.route.answer.__name__, status] += 1
            if not endpoint.parks:
                self.metrics.answered_s(time.perf_counter() - began)
        if endpoint is not None and (endpoint.route.changes or not allowed):
            _note(scope, caller, status)
        if status == 200 and isinstance(answer, Follower):
            await self._stream(scope, receive, send, caller, answer)
        else:
            await _send(send, status, content)

    def _require_room(self, caller: Caller) -> None:
        if self._readers[caller.name] >= MOST_STREAMS_EACH or self._readers.total() >= MOST_STREAMS:
            raise Denied(TOO_MANY, "too many streams are open: close one, or read a page that is open already")

    async def _stream(self, scope: Scope, receive: Receive, send: Send, caller: Caller, follower: Follower) -> None:
        """Sends until nobody reads any more. A reader that does not take what is sent within `SLOW_S` is cut off."""
        self._readers[caller.name] += 1
        gone = asyncio.ensure_future(_left(receive))
        chunks = follower.chunks(gone, lambda: self._bearer(scope) == caller)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": STREAM})
            async with aclosing(chunks):
                async for chunk in chunks:
                    message = {"type": "http.response.body", "body": chunk, "more_body": True}
                    await asyncio.wait_for(send(message), SLOW_S)
            await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), SLOW_S)
        except TimeoutError:
            log.warning("a reader of %s was too slow, and is cut off", caller.name)
        finally:
            gone.cancel()
            self._readers -= Counter((caller.name,))

    async def _figures(self, scope: Scope, send: Send) -> None:
        """The metrics for Prometheus, which knows no JSON. Strangers don't get them, for they hold prices."""
        caller = _NOBODY
        try:
            caller = self._caller(scope, OWNERS, self._looked_at())
            self._require_entitled(caller, OWNERS, {})
        except Denied as error:
            _note(scope, caller, error.status)
            await _send(send, error.status, _encode(Refusal(str(error))))
            return
        host = self.host
        view = await host.look_through(lambda now: cluster_view(host.controller, now, None, host.broken, 0))
        await _send(send, 200, self.metrics.text(view), (KIND_OF_FIGURES,))

    def _looked_at(self, ended: int = 0) -> int:
        """How many jobs an answer about all jobs shows, of the ended ones at most this many."""
        state = self.host.controller.machine.state
        return len(state.jobs) + min(ended, len(state.ended))

    def _caller(self, scope: Scope, who: frozenset[Role], looked_at: int, job: str = "") -> Caller:
        """Who calls. Raises Denied if that is not known, or if they call too often."""
        if who is EVERYBODY:
            return _NOBODY
        caller, jobs = self._bearer(scope), self.host.controller.jobs
        weight = 1.0 + looked_at / JOBS_A_CALL
        if who is ALL and caller is not None and job in jobs and caller.sees in (None, jobs[job].tenant):
            weight = min(1.0, PROCESSES_A_CALL / jobs[job].submission.ranks)
        if not (self.strangers.allow(_address(scope)) if caller is None else self.rates.allow(caller.name, weight)):
            raise Denied(TOO_MANY, "too many calls: wait a second")
        if caller is None:
            why = "who calls is not known: set ROLLMUX_TOKEN to a valid token (in HTTP, `Authorization: Bearer TOKEN`)"
            raise Denied(401, why)
        return caller

    def _require_entitled(self, caller: Caller, who: frozenset[Role], path: Mapping[str, str]) -> None:
        """Raises if the caller may not make this call, or not about the job in its path."""
        if who is EVERYBODY:
            return
        if caller.role not in who:
            raise Denied(403, f"a token with the role {caller.role.value} may not do this")
        job = path.get("job")
        if job is not None:
            if caller.role is Role.JOB and caller.job != job:
                raise NoSuchJob(f"there is no job {job!r}")
            self.host.controller.live(job, caller.sees)

    def _bearer(self, scope: Scope) -> Caller | None:
        scheme, _, token = _header(scope, b"authorization").partition(" ")
        return self.tokens.caller(token.strip()) if scheme.lower() == "bearer" else None


@cache
def _described() -> bytes:
    """Made once, when somebody first asks: it takes longer to make than all else of an app."""
    return json.dumps(description(ROUTES)).encode()


class _Endpoint:
    """One route, and how its body is read."""

    def __init__(self, route: Route) -> None:
        self.route, self.parks = route, route.parks
        self._most = MOST_SUBMITTED_BYTES if route.takes is dict else MOST_BYTES
        self._read: Callable[[bytes], Any] | None = None
        if route.takes is not None:
            self._read = read_object if route.takes is dict else msgspec.json.Decoder(route.takes).decode

    async def body(self, scope: Scope, receive: Receive) -> Any:
        """What the call brings, as the route's type."""
        if self._read is None:
            return None
        if _header(scope, b"upgrade") and "upgrade" in _header(scope, b"connection").lower():
            # The parser takes all that follows for another protocol.
            raise Denied(400, "this is HTTP/1.1 alone: send no `Upgrade` (curl --http1.1; in Java Version.HTTP_1_1)")
        content, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise HungUp("the caller is gone")
            content += message.get("body", b"")
            more = message.get("more_body", False)
            if len(content) > self._most:
                raise Denied(413, f"the body is larger than {self._most} bytes")
        return self._read(content)


def _header(scope: Scope, wanted: bytes) -> str:
    value: bytes = next((value for name, value in scope["headers"] if name == wanted), b"")
    return value.decode("latin-1")


async def _left(receive: Receive) -> None:
    """Returns once the caller is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _query(scope: Scope) -> Mapping[str, str]:
    """What the query says. A browser that comes back to a stream names in a header the last record that it heard of."""
    text = scope["query_string"]
    said = dict(parse_qsl(text.decode("latin-1"))) if text else {}
    last = _header(scope, b"last-event-id") if scope["method"] == "GET" else ""
    return {**said, "after": last} if last else said


def _note(scope: Scope, caller: Caller, status: int) -> None:
    """Writes an audit line for a change, or a call that was not allowed; none for calls that come too often."""
    if status == TOO_MANY:
        return
    call = f"{scope['method']} {scope['path']}"
    fields = {"who": caller.name, "from": _address(scope), "call": call, "status": status}
    audit.info("call", extra={"fields": fields})


def _address(scope: Scope) -> str:
    return str(scope["client"][0]) if scope.get("client") else ""


async def _send(send: Send, status: int, content: bytes, more: Headers = ()) -> None:
    headers = [*(more or (JSON,)), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _refusal(error: Exception) -> tuple[int, Refusal]:
    """The number and the words of an error."""
    match error:
        case Denied():
            return error.status, Refusal(str(error))
        case HungUp():
            return GONE, Refusal(str(error))
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

"""The connection to one server: a thread of its own with an event loop, in which all streams are read.

Invariant: after `close` there is neither the thread nor a socket; whoever waits for an answer then gets `ServerFailed`.
A `close` whose wait was interrupted goes on, and the next `close` waits for it.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import Any, TypeVar

import httpx

from rollmux.checks import MAX_SECONDS, Checks
from rollmux.runtime.engine.http.calls import Call, Piece, Reply
from rollmux.runtime.engine.http.errors import ServerFailed, ServerRefused
from rollmux.runtime.engine.http.inbox import Inbox
from rollmux.runtime.engine.http.sse import Events

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # with these the same call may go well a little later
# A call that changes something has a connection of its own: `uvicorn` closes, without announcing it, a connection over
# which it answered that something broke, and the next call over it would have no answer.
ALONE = {"connection": "close"}
KEPT_S = 2.0  # both servers close a connection that is idle for 5 s, and a call just then has no answer
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # what the name of one may be
Answer = TypeVar("Answer")
Key = tuple[str, int]  # a request and the attempt at it


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is, and how long a call may take. A stream may take as long as it likes."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    connect_s: float = 5.0
    call_s: float = 120.0

    def __post_init__(self) -> None:
        """Refuses settings that no waiting would cure."""
        checks = Checks("server")
        if not _is_address(self.url):
            remedy = "write it with http:// or https://, and without /v1"
            checks.report("url", self.url, "like http://machine:8000", remedy)
        for name, value in self.headers.items():
            if not _is_header(name, value):
                remedy = "give a name without spaces, and its value as a text of one line"
                checks.report("headers", name, "of letters, digits and signs", remedy)
        for name in ("connect_s", "call_s"):
            checks.number(name, getattr(self, name), 1e-3, MAX_SECONDS, "give seconds")
        checks.require()


@dataclass(frozen=True, slots=True)
class Cut:
    """A stream ended without saying so, or never began, and may be tried again."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The server will not do this, however often it is asked."""

    why: str


@dataclass(frozen=True, slots=True)
class Heard:
    """What was heard of one attempt."""

    key: Key
    what: Piece | Cut | Refused


@dataclass(frozen=True, slots=True)
class Opening:
    """A stream to be opened: what to ask, how to read it, and what must hold before."""

    key: Key
    call: Call
    read: Callable[[bytes], Piece | None]
    before: Call | None = None
    refuse: Callable[[Reply], str | None] = lambda reply: None


class Stream:
    """An attempt that is being listened to. Hanging up closes its connection, which both servers take as an abort.

    A stream is not cancelled while its connection is made: anyio would leave a coroutine behind that nobody awaits. Nor
    while its connection is put back, as a stream does that ends by itself when its response is over: httpcore would
    take the connection for in use for ever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, streams: set["Stream"]) -> None:
        self._loop, self._streams = loop, streams  # all streams that are listened to
        self._task: asyncio.Task[None] | None = None
        self._connecting = self._closing = self._hung_up = False

    def hang_up(self) -> None:
        self._loop.call_soon_threadsafe(self.hang_up_here)

    def hang_up_here(self) -> None:
        """The same, called in the loop's thread."""
        self._hung_up = True
        if self._task is not None and not (self._connecting or self._closing):
            self._task.cancel()

    def begins(self, task: "asyncio.Task[None]") -> bool:
        """Registers the task that listens; False if the stream was hung up already."""
        self._task = task
        self._streams.add(self)
        task.add_done_callback(lambda ended: self._streams.discard(self))
        return not self._hung_up

    async def trace(self, event: str, info: object) -> None:
        """Notes when the connection is made and put back. Called by httpcore (its `trace` extension)."""
        if event == "connection.connect_tcp.started":
            self._connecting = True
        elif event == "http11.response_closed.started":
            self._closing = True
        elif event.startswith("connection.connect_tcp."):
            self._connecting = False
            if self._hung_up:
                self.hang_up_here()

    def ends(self) -> bool:
        """Its connection is put back, so it may be cancelled again; False if it was hung up."""
        self._closing = False
        return not self._hung_up


class Wire:
    """The connection to one server: asks, and listens to streams."""

    def __init__(self, server: Server, capacity: int) -> None:
        self._server = server
        self._inbox: Inbox[Heard] = Inbox(capacity)
        self._loop = asyncio.new_event_loop()
        self._streams: set[Stream] = set()
        self._asking: asyncio.Task[Reply] | None = None
        self._client = httpx.AsyncClient(
            base_url=server.url,
            headers=server.headers,
            timeout=httpx.Timeout(server.call_s, connect=server.connect_s, read=None, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=KEPT_S),
            verify=server.url.startswith("https:"),  # without need: to load certificates is most of the start
            trust_env=False,  # a proxy named in the environment is not meant for machines of our own
        )
        self._closing = asyncio.Event()
        self._thread = Thread(target=self._run, name="rollmux-engine-http", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_until_complete(self._until_closed())

    def ask(self, call: Call, within_s: float | None = None) -> Reply:
        """Sends a call and waits for the answer."""
        return self._wait(self._asked(call, within_s or self._server.call_s))

    def take(self, wait_s: float) -> list[Heard]:
        return self._inbox.take(wait_s, self._loop.call_soon_threadsafe)

    def open(self, opening: Opening) -> Stream:
        stream = Stream(self._loop, self._streams)
        asyncio.run_coroutine_threadsafe(self._follow(opening, stream), self._loop)
        return stream

    def ask_anew(self) -> None:
        """From now on no attempt takes the answer to a question that was asked before: it may tell of old weights."""
        self._loop.call_soon_threadsafe(setattr, self, "_asking", None)

    def tell(self, call: Call) -> None:
        """Sends a call without waiting. For mere courtesies: whether they are heard makes no difference."""
        asyncio.run_coroutine_threadsafe(self._told(call), self._loop)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        self._loop.close()

    def _wait(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError as error:
            raise ServerFailed(f"{self._server.url}: the connection was closed while waiting") from error
        except BaseException:
            future.cancel()  # the wait was interrupted: nobody wants the answer
            raise

    async def _asked(self, call: Call, within_s: float, stream: Stream | None = None) -> Reply:
        where = f"{self._server.url}{call.path}"
        try:
            async with asyncio.timeout(within_s):
                response = await self._client.send(self._request(call, stream, alone=call.method == "POST"))
        except TimeoutError as error:
            raise ServerFailed(f"{where} did not answer within {within_s:g} s") from error
        except httpx.HTTPError as error:
            raise ServerFailed(f"{where}: {_said(error)}") from error
        if response.is_success or (call.optional and response.status_code == 404):
            return Reply(response.status_code, response.content)
        if response.status_code == 404 and call.older:
            return await self._asked(replace(call, path=call.older, older=""), within_s, stream)
        raise ServerRefused(response.status_code, f"{where} answered {response.status_code}: {response.text:.300}")

    def _request(self, call: Call, stream: Stream | None, alone: bool = False) -> httpx.Request:
        query, headers = dict(call.query) or None, ALONE if alone else None
        request = self._client.build_request(call.method, call.path, params=query, json=call.body, headers=headers)
        if stream is not None:
            request.extensions["trace"] = stream.trace
        return request

    async def _told(self, call: Call) -> None:
        with suppress(ServerFailed):
            await self._asked(call, self._server.call_s)

    async def _asked_for_all(self, call: Call) -> Reply:
        """Asks once for all attempts that wait. Asked by each, this took half the time of many short responses."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._asked_apart(call))
            self._asking.add_done_callback(self._answered)
        return await asyncio.shield(self._asking)

    def _answered(self, asking: "asyncio.Task[Reply]") -> None:
        if asking is self._asking:
            self._asking = None

    async def _asked_apart(self, call: Call) -> Reply:
        stream = Stream(self._loop, self._streams)
        stream.begins(_this_task())
        return await self._asked(call, self._server.call_s, stream)

    async def _follow(self, opening: Opening, stream: Stream) -> None:
        """Reads a stream. Each ends by a note that it is cut, which changes nothing if its response was over before.

        One that was hung up ends without: it would wait for room in the inbox, and `close` would wait for it.
        """
        if not stream.begins(_this_task()):
            return
        try:
            last: Cut | Refused = await self._streamed(opening, stream)
        except (httpx.HTTPError, ServerFailed) as error:
            last = Cut(_said(error))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            last = Cut(f"what came can't be read: {error}")  # JSON may have any shape: it is not trusted
        if stream.ends():
            await self._inbox.put(Heard(opening.key, last))

    async def _streamed(self, opening: Opening, stream: Stream) -> Cut | Refused:
        if opening.before is not None:
            why = opening.refuse(await self._asked_for_all(opening.before))
            if why is not None:
                return Refused(why)
        response = await self._client.send(self._request(opening.call, stream), stream=True)
        try:
            if response.status_code != 200:
                said = (await response.aread())[:300].decode(errors="replace")
                why = f"{opening.call.path} answered {response.status_code}: {said}"
                return Cut(why) if response.status_code in PASSING else Refused(why)
            events = Events()
            async for chunk in response.aiter_bytes():
                for data in events.feed(chunk):
                    if (piece := opening.read(data)) is not None:
                        await self._inbox.put(Heard(opening.key, piece))
        finally:
            await response.aclose()
        return Cut("the stream ended without an end")

    async def _until_closed(self) -> None:
        await self._closing.wait()
        for stream in tuple(self._streams):
            stream.hang_up_here()
        if tasks := asyncio.all_tasks() - {_this_task()}:
            await asyncio.wait(tasks, timeout=self._server.connect_s)
        while tasks := asyncio.all_tasks() - {_this_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()
        # Generators that were broken off are closed by tasks, which the loop begins only at its next turn.
        await self._loop.shutdown_asyncgens()
        await asyncio.sleep(0)
        if tasks := asyncio.all_tasks() - {_this_task()}:
            await asyncio.wait(tasks)


def _is_address(url: str) -> bool:
    try:
        found = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        return False
    port = 80 if found.port is None else found.port
    is_base = not found.path.rstrip("/").endswith("/v1")  # which clients of OpenAI's interface want at the end
    return found.scheme in ("http", "https") and bool(found.host) and 0 < port < 2**16 and is_base


def _is_header(name: object, value: object) -> bool:
    if not (isinstance(name, str) and isinstance(value, str)):
        return False
    return bool(_HEADER.fullmatch(name)) and value.isascii() and value.isprintable() and value == value.strip()


def _this_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None  # only coroutines of the loop call this
    return task


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

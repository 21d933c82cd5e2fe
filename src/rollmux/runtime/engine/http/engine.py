"""The `vllm` engine: a vLLM or SGLang server behind its HTTP interface, driven as every other engine is.

The server computes. What it says is checked here, and nothing is believed that can be looked at instead. Unlike our own
engines this one has a thread (see `wire`), which reads streams; `step` takes what came, and waits a moment at most.

Invariants: as the seam says, with one exception: a response that was broken off and continued has the same distribution
as one that was not, but the same tokens only if it is greedy (see docs/design/engine_http.md).
"""

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from rollmux.checks import Checks
from rollmux.runtime.engine.canary import Canary
from rollmux.runtime.engine.errors import EngineClosed, EngineSuspended, UpdateRefused
from rollmux.runtime.engine.http.calls import Attempt, Reply
from rollmux.runtime.engine.http.counter import Counter
from rollmux.runtime.engine.http.dialect import Dialect
from rollmux.runtime.engine.http.errors import ServerFailed, ServerMismatch, ServerRefused, Unsound
from rollmux.runtime.engine.http.life import Life
from rollmux.runtime.engine.http.live import Live
from rollmux.runtime.engine.http.memory import Memory
from rollmux.runtime.engine.http.settings import Settings
from rollmux.runtime.engine.http.sse import Events
from rollmux.runtime.engine.http.weights import FromDisk, source
from rollmux.runtime.engine.http.whole import Shapes, require_whole, vocabulary_in, weights_in
from rollmux.runtime.engine.http.wire import Heard, Opening, Server, Stream, Wire
from rollmux.runtime.engine.requests import Event, FinishReason, Generated, GenerationRequest, Unfinished
from rollmux.runtime.engine.seam import Begun, Gauges
from rollmux.runtime.engine.versions import require_adoptable, require_newer, require_permitted

HEALTH_EVERY_S = 0.1
HEALTH_WITHIN_S = 5.0
FORBIDDEN = frozenset({401, 403})  # waiting does not change these


class HttpEngine:
    """See `rollmux.runtime.engine.seam.Engine`. `close` does not end the server: whoever started it does."""

    def __init__(
        self,
        server: Server,
        dialect: Dialect,
        settings: Settings,
        version: int = 0,
        memory: Memory | None = None,
        canary: tuple[int, ...] = (),
    ) -> None:
        """Waits until the server is ready. With a `canary` prompt, the answer to it is compared after each sleep."""
        self._dialect, self._settings, self._memory = dialect, settings, memory
        self._version = version
        self._prefix = uuid4().hex[:12]  # so that no two engines use the same names, nor one that was started again
        self._suspended = self._closed = False
        self._slept = False  # the server has, and its canary was not asked since
        self._canary_prompt = canary
        self._canary: Canary | None = None
        self._shapes: Shapes = {}  # of all weights, once a folder with them was readable here
        self._vocabulary = settings.vocabulary
        self._notes: deque[Heard] = deque()  # taken from the wire, and not heard yet
        self._counter = Counter(settings, self._check, monotonic, dialect.spare)
        self._wire = Wire(server, settings.inbox)
        self._life = Life(self._wire, dialect, memory)
        try:
            self._wait_ready()
            self._life.require_sleeper()
            self._tells_version = self._announce()
            if self._vocabulary is None and (folder := self._folder()) is not None:
                self._vocabulary = vocabulary_in(folder)
        except BaseException:
            self._wire.close()
            raise

    def _wait_ready(self) -> None:
        until = monotonic() + self._settings.ready_s
        while True:
            try:
                self._wire.ask(self._dialect.health(), HEALTH_WITHIN_S)
                return
            except ServerFailed as failed:
                if isinstance(failed, ServerRefused) and failed.status in FORBIDDEN:
                    raise
                if monotonic() >= until:
                    why = f"not ready after {self._settings.ready_s:g} s: {failed}{self._but_there()}"
                    raise ServerFailed(why) from failed
            sleep(HEALTH_EVERY_S)

    def _but_there(self) -> str:
        """A hint if the server answers other calls: SGLang draws a token to prove its health, and paused it can't."""
        try:
            self._wire.ask(self._dialect.version(), HEALTH_WITHIN_S)
        except ServerFailed:
            return ""
        return "; it answers other calls, so an engine before may have left it paused or asleep: start it anew"

    def _announce(self) -> bool:
        """Tells the server its version, or refuses one that has another. False: the server can't tell versions."""
        reply = self._wire.ask(self._dialect.version())
        if reply.status == 404:
            return False
        try:
            why = self._wrong_version(reply)
        except (ValueError, LookupError) as error:
            raise ServerMismatch(
                f"the server does not say the version of its weights ({error!r:.120}): name the right dialect, or "
                "start a newer server"
            ) from error
        if why is not None and (found := self._dialect.read_version(reply)).isdecimal():
            raise ServerMismatch(
                f"{why}: make the engine with version={found}, and update it to a later one with the weights that it "
                "is to have, or start the server anew"
            )
        self._wire.ask(self._dialect.announce(self._version))
        return True

    def _wrong_version(self, reply: Reply) -> str | None:
        found = self._dialect.read_version(reply)
        if found == str(self._version):
            return None
        return f"the server has version {found!r} of the weights, the engine has {self._version}"

    @property
    def version(self) -> int:
        return self._version

    @property
    def is_suspended(self) -> bool:
        return self._suspended

    @property
    def unfinished(self) -> int:
        return len(self._counter.live)

    @property
    def leaked_bytes(self) -> int:
        """The bytes by which the server's worst sleep held more than its first one."""
        return self._life.leaked_bytes

    def is_healthy(self) -> bool:
        """Whether the server answers now. Suspended, it is asked for its version: SGLang's health draws a token."""
        self._require_open()
        try:
            self._wire.ask(self._dialect.version() if self._suspended else self._dialect.health(), HEALTH_WITHIN_S)
        except ServerFailed:
            return False
        return True

    def submit(self, request: GenerationRequest) -> None:
        self._require_open()
        self._counter.add((Unfinished(request, Generated()),))

    def _check(self, each: Unfinished) -> None:
        self._dialect.check(each.request)
        self._require_known(each.request.prompt + each.response.tokens)

    def _require_known(self, tokens: tuple[int, ...]) -> None:
        """Refuses a token that the model does not have: SGLang would end, with all its requests."""
        if self._vocabulary is not None and (highest := max(tokens)) >= self._vocabulary:
            limit = f"tokens below {self._vocabulary}"
            raise Checks("request").refusal("prompt", highest, limit, "use the tokenizer of this model")

    def cancel(self, ids: Iterable[str]) -> None:
        for live in self._counter.find(ids):
            self._abort(self._counter.end(live, FinishReason.CANCELLED))

    def export(self, ids: Iterable[str] | None = None) -> tuple[Unfinished, ...]:
        self._require_open()
        counter = self._counter
        lives = tuple(counter.live.values()) if ids is None else counter.find(ids)
        for live in lives:
            self._abort(counter.park(live))  # one that has all its tokens is over now
        return tuple(counter.remove(live) for live in lives if live.request.id in counter.live)

    def _abort(self, name: str | None) -> None:
        """Tells the server that an attempt is over. A closed connection says so too, unless a proxy is between."""
        if name is not None:
            self._wire.tell(self._dialect.abort(name))

    def adopt(self, unfinished: Iterable[Unfinished], mixed: bool = False) -> None:
        self._require_open()
        adopted = tuple(unfinished)
        if not mixed:
            require_adoptable(adopted, self._version)
        self._counter.add(adopted)

    def update(self, version: int, weights: Mapping[str, Any] | None = None, begun: Begun = Begun.REFUSE) -> None:
        """`weights`: None if they are in place, {"path": folder} or {"update_info": what the server is told}.

        If the server fails in the middle, the engine stays suspended until an update has ended.
        """
        self._require_open()
        where = source(weights)
        self._require_updatable(version, begun)
        shapes = self._require_whole(where.path) if isinstance(where, FromDisk) else {}
        goes_on = not self._suspended
        self._suspended = True
        self._empty(keep_tokens=begun is not Begun.REFUSE)
        self._life.update(version, weights)
        self._version = version
        self._wire.ask_anew()
        self._shapes = self._shapes or shapes
        self._canary = None
        if goes_on:
            self.resume()

    def _require_updatable(self, version: int, begun: Begun) -> None:
        require_newer(version, self._version)
        if begun is Begun.KEEP:
            raise UpdateRefused(
                "a server does not tell for each token on its way which weights drew it, so responses can't go on over "
                "an update: say RECOMPUTE"
            )
        started = [live.request.id for live in self._counter.live.values() if live.tokens]
        require_permitted(started, self._version, begun)

    def _require_whole(self, folder: str) -> Shapes:
        """Compares a folder with the server's own or, if that can't be seen, with the first folder that it took."""
        if not self._shapes and (own := self._folder()) is not None:
            with suppress(ValueError):
                self._shapes = weights_in(own)
        return require_whole(folder, self._shapes)

    def _folder(self) -> str | None:
        """The server's own folder, if it tells; it may be on another machine."""
        with suppress(ServerRefused, ValueError, LookupError, TypeError, AttributeError, StopIteration):
            return self._dialect.read_folder(self._wire.ask(self._dialect.folder()))
        return None

    def _empty(self, keep_tokens: bool) -> None:
        """Takes the server's requests back. Tokens that it still sends count if `keep_tokens`, else they don't."""
        if keep_tokens and self._life.may_be_frozen:
            self._listen(0.0, parking=True)  # tokens that were sent before the freeze count
            keep_tokens = False  # later ones may be drawn by weights that were written in place meanwhile
        if not keep_tokens:
            for live in self._counter.find(tuple(self._counter.open)):
                self._abort(self._counter.park(live))
        self._counter.pausing()
        try:
            self._life.empty()
            self._drain()
        finally:  # a server that gave no answer may have aborted them, which is no failure of theirs
            for live in self._counter.find(tuple(self._counter.open)):
                self._abort(self._counter.park(live))

    def _drain(self) -> None:
        """Listens until all streams have ended or are silent: a request that reaches a paused server waits there."""
        quiet_s = self._settings.drain_s
        until = last = monotonic() + quiet_s
        last += 9 * quiet_s  # for a server that does not pause
        while self._counter.open and monotonic() < min(until, last):
            if self._listen(min(self._settings.wait_s, quiet_s), parking=True):
                until = monotonic() + quiet_s

    def suspend(self, keep: bool = False) -> None:
        """Without `keep`, returns only when the server's memory is seen to be free, and raises otherwise."""
        self._require_open()
        if not keep:
            self._life.require_memory()
        if self._canary_prompt and self._canary is None and not self._suspended:
            self._canary = Canary.learn(self, self._canary_prompt)  # also before a freeze: a sleep may follow it
        self._suspended = True
        if keep:
            self._counter.pausing()
            self._life.freeze()
            return
        self._empty(keep_tokens=True)
        self._slept = True
        self._life.sleep()

    def resume(self) -> None:
        self._require_open()
        self._life.proceed()
        if self._slept and self._canary is not None:
            self._check_canary(self._canary)
        self._slept = False
        self._counter.listen_anew()  # while frozen, no stream could say anything
        self._suspended = False

    def _check_canary(self, canary: Canary) -> None:
        self._suspended = False  # so that the canary can be asked
        try:
            canary.check(self)
        except BaseException:
            self._suspended = True
            raise

    def step(self) -> list[Event]:
        self._require_open()
        counter = self._counter
        if self._suspended:
            return counter.told()
        counter.launch(self._begin, self._prefix)
        self._listen(0.0 if counter.events or not counter.live else self._settings.wait_s)
        for live in counter.stalled():
            self._abort(counter.cut(live, f"nothing came for {self._settings.stall_s:g} s"))
        return counter.told()

    def _begin(self, attempt: Attempt, live: Live) -> Stream:
        """Opens a stream. A server that was started anew has other weights: it is asked, or tells with each token."""
        key = (live.request.id, live.attempt)
        opening = Opening(key, self._dialect.generate(attempt), self._dialect.read)
        if not self._dialect.tells_version_with_tokens and (self._tells_version or live.cuts):
            opening = replace(opening, before=self._dialect.version(), refuse=self._refusal)
        return self._wire.open(opening)

    def _refusal(self, reply: Reply) -> str | None:
        """Why an attempt must not begin, by the server's version. Called in the wire's thread, so it only reads."""
        if reply.status == 404:
            return "the stream was cut, and the server can't say whether it still has the same weights"
        why = self._wrong_version(reply)
        return why and f"{why}: update it"

    def _listen(self, wait_s: float, parking: bool = False) -> bool:
        """Takes what was heard; returns whether there was anything."""
        self._notes += self._wire.take(0.0 if self._notes else wait_s)
        count = len(self._notes)
        while self._notes:
            self._counter.hear(self._notes[0], self._version, parking)
            self._notes.popleft()  # only now: if Ctrl-C comes before, it is heard again, and nothing comes of that
        if count >= self._settings.inbox:
            self._counter.listen_anew()  # the inbox may have had no room for what others said
        return bool(count)

    def probe(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        """All are -1, which is no model's token, if the answer is not sound."""
        self._require_open()
        if self._suspended:
            raise EngineSuspended("a suspended engine can't be probed: resume it first")
        self._require_known(prompt)
        live = Live(GenerationRequest("probe", prompt, count, temperature=0.0))
        reply = self._wire.ask(self._dialect.generate(live.next_attempt(uuid4().hex[:12])))
        try:
            for data in Events().feed(reply.content):
                if (piece := self._dialect.read(data)) is not None:
                    live.take(piece, self._version)
        except (Unsound, ValueError, LookupError, TypeError, AttributeError):
            return (-1,) * count
        return tuple(live.tokens) if len(live.tokens) == count else (-1,) * count

    def gauges(self) -> Gauges:
        """As the server tells them, except `nbytes`: all that its processes hold, if `memory` can tell."""
        self._require_open()
        gauges = self._dialect.read_gauges(self._wire.ask(self._dialect.metrics()))
        return replace(
            gauges,
            waiting=gauges.waiting + len(self._counter.waiting),
            nbytes=self._memory.held() if self._memory is not None else 0,
            recomputed_tokens=self._counter.continued_tokens,
        )

    def close(self) -> list[Event]:
        self._closed = self._suspended = True
        self.cancel(list(self._counter.live))
        self._wire.close()
        return self._counter.told()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosed("the engine is closed: make a new one")

"""A server's life between running and asleep, one step at a time, in the one order that works:

    [end all], pause, [idle], sleep, [bytes seen free], wake weights, update, wake KV, invalidate caches, proceed

Invariant: each step may be asked for again, whether it was done, half done or its answer was lost; a step that is done
is not sent a second time. A server whose weights are half new never proceeds.
"""

from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from time import monotonic, sleep
from typing import Any

from rollmux.runtime.engine.http.calls import Call, Reply
from rollmux.runtime.engine.http.dialect import CACHE, WEIGHTS, Dialect
from rollmux.runtime.engine.http.errors import (
    EngineWorn,
    MemoryHeld,
    MemoryUnknown,
    ServerMismatch,
    ServerRefused,
)
from rollmux.runtime.engine.http.memory import Memory
from rollmux.runtime.engine.http.reading import thing
from rollmux.runtime.engine.http.wire import Wire

BOTH = frozenset({WEIGHTS, CACHE})
UNKNOWN = 404  # a call that this server does not have
BUSY = (400, 200)  # SGLang says by the first that it is not idle, vLLM in its answer to the second
# The longest until nothing is computed any more, and the time between two questions whether that is so.
IDLE_S, LOOK_S = 30.0, 0.01
PAUSE_LOOK_S = 1.0  # SGLang's pause, if it finds something running, looks again after this time


class Pause(Enum):
    """How a server is paused."""

    NONE = "it runs"
    FROZEN = "they wait where they are"
    EMPTY = "there are none"


class Life:
    """How the server stands, as far as its answers tell."""

    def __init__(self, wire: Wire, dialect: Dialect, memory: Memory | None) -> None:
        self._wire, self._dialect, self._memory = wire, dialect, memory
        self.pause = Pause.NONE
        self.asleep: frozenset[str] = frozenset()
        self._unsure: frozenset[str] = frozenset()  # parts that sleep or don't: the last call's answer is missing
        self._stale = False  # keys and values of old weights may still be there
        self._half: int | None = None  # the version of an update that was begun and not ended
        self._undo: tuple[Call, ...] = ()  # the calls that end such an update
        self._opened = False  # the server has said that it began to take weights
        self._touched = False  # the server was asked to pause, and may have done so
        self._first_held: int | None = None
        self._without_cache = 0  # bytes that it held when all except the cache was awake
        self.leaked_bytes = 0

    def freeze(self) -> None:
        if self.pause is Pause.NONE:
            self._touched = True
            self._ask(self._dialect.freeze())
            self.pause = Pause.FROZEN

    @property
    def may_be_frozen(self) -> bool:
        return self._touched and self.pause is not Pause.EMPTY

    def empty(self) -> None:
        """Pauses the server, and aborts its requests. If it is frozen it goes on first: frozen, some end no request."""
        if self.may_be_frozen:
            self.proceed()
        if self.pause is not Pause.EMPTY:
            self._touched = True
            if (call := self._dialect.end_all()) is not None:
                self._ask(call)
                self._wait_idle()
            self._ask(self._dialect.pause())
            if (call := self._dialect.idle()) is not None:
                self._ask_until_idle(call, IDLE_S)
            self.pause = Pause.EMPTY

    def _wait_idle(self) -> None:
        """Waits until the server is idle, at most as long as its pause would wait to look again."""
        if (call := self._dialect.idle()) is not None:
            with suppress(ServerRefused):
                self._ask_until_idle(call, PAUSE_LOOK_S)

    def require_memory(self) -> Memory:
        if self._memory is None:
            raise MemoryHeld("nobody tells what the server holds: give the engine `memory`, or suspend with `keep`")
        return self._memory

    def require_sleeper(self) -> None:
        """Refuses a server whose weights a sleep would lose, if it tells how it was started; without a canary, too."""
        if self._memory is None or (reply := self._setup()) is None:
            return
        try:
            self._dialect.require_sleeper(reply)
        except ValueError as error:
            raise ServerMismatch(
                f"it does not tell how it was started, and so not whether it can sleep: {error}"
            ) from error

    def sleep(self) -> None:
        """Puts an empty server to sleep. Returns when its bytes are seen to be free."""
        memory = self.require_memory()
        self._look()
        if self.asleep != BOTH:
            if self._unsure != BOTH:
                self._wake()  # if it is half awake after an update, it would sleep no further
            self._stale = True
            self._once(BOTH, self._dialect.sleep())
            self.asleep, self._unsure = BOTH, frozenset()
        held = memory.settle()
        self._first_held = held if self._first_held is None else self._first_held
        self.leaked_bytes = max(self.leaked_bytes, held - self._first_held)

    def update(self, version: int, weights: Mapping[str, Any] | None) -> None:
        """Updates an empty server, awake or asleep; its cache sleeps on. Ends an earlier update that broke off."""
        calls, undo = self._dialect.update(version, weights), self._dialect.undo(weights)
        if self._undo and weights is None:
            raise ServerMismatch(
                "weights began to come, or may have, and did not all come, so none are in place: let them come from a "
                "folder or over a group"
            )
        self._wake(WEIGHTS)
        self._half = version
        for call in self._undo:
            if not (call.opens and self._opened):
                self._step(call)
        self._undo = undo
        for call in calls:
            self._step(call)
        self._undo, self._half = (), None
        self._stale = True

    def _step(self, call: Call) -> None:
        if call.closes:
            self._opened = False  # or unknown, if its answer is lost
        try:
            reply = self._ask(call)
            _require_success(call, reply)
        except ServerRefused:
            if not call.vain:
                raise
        else:
            if call.opens:
                self._opened = reply.status != UNKNOWN
                if not self._opened:
                    self._undo = ()

    def proceed(self) -> None:
        """Brings the server to where requests run."""
        if self._half is not None:
            raise ServerMismatch(f"the update to version {self._half} did not end: update again before resuming")
        if self._memory is not None and self.leaked_bytes > self._memory.leak_bytes:
            raise EngineWorn(
                f"from sleep to sleep the server has gained {self.leaked_bytes} bytes, {self._memory.leak_bytes} are "
                "allowed: export what is unfinished and start it anew"
            )
        self._wake()
        if self._stale:
            self._ask_until_idle(self._dialect.invalidate(), IDLE_S)
            self._stale = False
        if self._touched:
            self.pause = Pause.NONE  # so even if the answer is lost
            self._ask(self._dialect.proceed())
            self._touched = False

    def _wake(self, *tags: str) -> None:
        """Wakes these parts, or both if none is named, as far as they sleep or may sleep."""
        self._look()
        for tag in tags or (WEIGHTS, CACHE):
            if tag in self.asleep | self._unsure:
                if tag == CACHE and self._dialect.setup() is not None:
                    self._without_cache = self.require_memory().held()
                self._once(frozenset({tag}), self._dialect.wake(tag))

    def _ask_until_idle(self, call: Call, within_s: float) -> None:
        """Asks until idle: what was just ended may still have a step to go, or keys and values on their way."""
        until = monotonic() + within_s
        while True:
            try:
                return _require_success(call, self._ask(call))
            except ServerRefused as refused:
                if refused.status not in BUSY or monotonic() > until:
                    raise
            sleep(LOOK_S)

    def _look(self) -> None:
        """Finds out what came of a sleep or wake whose answer is missing, for servers that can't bear either twice.
        Once the server answers again it is done with that call, and its bytes tell."""
        if not self._unsure or self._dialect.setup() is None:
            return
        self._setup()
        memory = self.require_memory()
        if self._unsure == BOTH:
            slept = _has_slept(memory)
        elif WEIGHTS in self._unsure:
            slept = memory.held() <= memory.asleep_bytes
        else:
            slept = memory.held() <= self._without_cache + memory.leak_bytes
        self.asleep = self.asleep | self._unsure if slept else self.asleep - self._unsure
        self._unsure = frozenset()

    def _setup(self) -> Reply | None:
        """How the server was started, if it tells."""
        call = self._dialect.setup()
        try:
            return None if call is None else self._ask(call)
        except ServerRefused as refused:
            if refused.status != UNKNOWN:
                raise
            return None

    def _once(self, tags: frozenset[str], call: Call) -> None:
        """Puts these parts to sleep or wakes them, which some servers can't bear twice. After a lost answer, a refusal
        means that it was done already, or was never begun and need not be undone; bytes and canary tell whether that
        is true. Errors of 500 and above mean nothing: they may be a proxy's, or come from the middle of the call."""
        before, again = self.asleep, tags <= self._unsure
        self.asleep, self._unsure = before - tags, self._unsure | tags
        try:
            self._ask(call)
        except ServerRefused as refused:
            if refused.status >= 500:
                raise
            if not again:
                self.asleep, self._unsure = before, self._unsure - tags
                raise
        self._unsure -= tags

    def _ask(self, call: Call) -> Reply:
        return self._wire.ask(call)


def _has_slept(memory: Memory) -> bool:
    """Whether the server sleeps, by its bytes: some free their memory a while after they say so."""
    try:
        memory.settle()
    except MemoryUnknown:
        raise
    except MemoryHeld:
        return False
    return True


def _require_success(call: Call, reply: Reply) -> None:
    """Raises ServerRefused if the answer says that the call failed: some servers say so with status 200."""
    if not reply.content:
        return
    try:
        said = thing(reply.content)
    except ValueError:
        return  # not every answer is an object, and only objects tell a failure
    if said.get("success") is False:
        raise ServerRefused(reply.status, f"{call.path} failed: {said.get('message', said)!s:.300}")

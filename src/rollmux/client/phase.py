"""`mux.phase(...)`: a decorator for functions and coroutines, and a context, plain or asynchronous.

Inside, the nodes are this job's and the state is on them. An error of the body is raised to the job's script once the
nodes are given back. A child process that leaves the body tells the controller nothing: the phase is its parent's. A
child can't enter a phase: nobody would give signs of life for it.

An asynchronous phase begins and ends in threads of its own, which no loop can cancel or hold up: a phase that was begun
is ended even if nobody waits for its end.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextvars import copy_context
from functools import partial, wraps
from itertools import starmap
from threading import Lock, Thread
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rollmux.client.residency import State
from rollmux.client.stint import Stint
from rollmux.errors import RollmuxError
from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import Held

if TYPE_CHECKING:
    from rollmux.client.mux import Mux

P = ParamSpec("P")
R = TypeVar("R")

# Types whose work runs only when their results are asked for.
_LATER = (CoroutineType, GeneratorType, AsyncGeneratorType, map, filter, starmap)

log = logging.getLogger("rollmux")


class _Entry:
    """A thread enters an asynchronous context, whose task may be cancelled or thrown away meanwhile.

    The stint belongs to the entry until the context is entered: the phase may be entered anew while the stint of a
    cancelled entry is on its way out.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()  # raises if another library runs the task, which would not wait
        self.stint: Stint | None = None
        self._is_in = self._abandoned = False
        self._lock = Lock()

    def begins(self, stint: Stint) -> bool:
        """Whether the task still waits for this stint, which is about to begin."""
        with self._lock:
            self.stint = stint
            return self._is_awaited

    def arrives(self) -> bool:
        """The stint has begun; False if the task no longer waits for it."""
        with self._lock:
            self._is_in = self._is_awaited
            return self._is_in

    @property
    def _is_awaited(self) -> bool:
        return not (self._abandoned or self._loop.is_closed())

    def abandon(self) -> bool:
        """The task was cancelled: True if the stint had just begun, so that the task must end it itself."""
        with self._lock:
            self._abandoned = not self._is_in
            if self.stint is not None:
                self.stint.abandon()
            return self._is_in


class Phase:
    """One kind of phase of the job. It may be entered again and again, but not twice at once."""

    def __init__(self, mux: "Mux", kind: PhaseKind, state: State, iteration: int | None) -> None:
        self._mux, self._kind, self._state, self._iteration = mux, kind, state, iteration
        self._stint: Stint | None = None
        self._coming: Stint | None = None  # it has yet to begin, but may have its lease: its state is told the nodes

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that the phase holds; none without a controller."""
        lease = self._lease
        return lease.nodes if lease is not None else ()

    @property
    def epoch(self) -> int:
        """The number of the lease that the phase has now, higher than that of any lease before; 0 without a lease."""
        lease = self._lease
        return lease.epoch if lease is not None else 0

    @property
    def lost(self) -> str:
        """Why the work will not count, if that is known before its end."""
        stint = self._stint or self._coming
        return stint.lost if stint is not None else ""

    @property
    def _lease(self) -> Held | None:
        stint = self._stint or self._coming
        return stint.lease if stint is not None else None

    def __call__(self, body: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            name = getattr(body, "__qualname__", repr(body))  # a partial has none
            raise TypeError(f"{name} is a generator: it would run outside of its phase; use `with`")
        if inspect.iscoroutinefunction(body) or inspect.iscoroutinefunction(type(body).__call__):
            return self._around_coroutine(body)

        @wraps(body)
        def phase(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._anew():
                return _require_done(body, body(*args, **kwargs))

        return phase

    def _around_coroutine(self, body: Callable[P, Any]) -> Callable[P, Any]:
        @wraps(body)
        async def phase(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with self._anew():
                return _require_done(body, await body(*args, **kwargs))

        return phase

    def _anew(self) -> "Phase":
        return Phase(self._mux, self._kind, self._state, self._iteration)

    def __enter__(self) -> "Phase":
        stint = self._mux.open_stint(self._kind, self._state, self._iteration)
        if stint is not None:
            self._coming = stint
            try:
                stint.begin()
                self._stint = stint  # only now: until then another thread's may be at work, which ends meanwhile
            except BaseException as error:  # Ctrl-C may come at any point: nobody else would end the stint
                stint.fail(error)
                raise
            finally:
                self._coming = None
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        stint, self._stint = self._stint, None
        try:
            if stint is not None and self._mux.is_own:
                self._end(stint, error)
                self._hear(stint, error)
        except KeyboardInterrupt as broken_off:  # between two lines, too: nobody else would end the stint
            if stint is not None and self._mux.is_own:
                stint.fail(broken_off)
            raise

    def _end(self, stint: Stint, error: BaseException | None) -> None:
        if error is None:
            stint.end()
            return
        stint.fail(error)
        if stint.lost and isinstance(error, Exception):
            raise stint.link.lost(f"{stint} broke off without its lease") from error

    def _hear(self, stint: Stint, error: BaseException | None) -> None:
        """The script learns that its phase counts: only now the iteration goes on."""
        if error is None:
            stint.link.counts(self._kind, stint.iteration)
            self._mux.measured()

    async def __aenter__(self) -> "Phase":
        entry = _Entry()
        try:
            await _in_thread(partial(self._enter, entry))
        except (asyncio.CancelledError, GeneratorExit) as given_up:  # the latter where the loop has gone
            if entry.abandon() and entry.stint is not None:
                await _in_thread(partial(entry.stint.fail, given_up), or_here=True)
            raise
        self._stint = entry.stint
        return self

    def _enter(self, entry: _Entry) -> None:
        stint = self._mux.open_stint(self._kind, self._state, self._iteration)
        if stint is None or not entry.begins(stint):
            return
        self._coming = stint
        try:
            stint.begin()
        finally:
            self._coming = None
        if not entry.arrives():
            stint.fail(asyncio.CancelledError("cancelled while it waited"))

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        stint, self._stint = self._stint, None
        if stint is not None and self._mux.is_own:
            stint.leave_off()
            await _in_thread(partial(self._end, stint, error), or_here=True)
            self._hear(stint, error)


async def _in_thread(work: Callable[[], None], *, or_here: bool = False) -> None:
    """Runs the work in a thread and waits for it. If the wait is given up, the work goes on; its errors are logged.

    `or_here`: where no thread can be started the work holds up the loop, as it must be done.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # the loop is gone: Python throws the unfinished task away
        Thread(target=_alone, args=(work,), name="rollmux-phase", daemon=True).start()
        return
    over: asyncio.Future[BaseException | None] = loop.create_future()
    context = copy_context()

    def run() -> None:
        error = None
        try:
            context.run(work)
        except BaseException as raised:  # noqa: BLE001  raised again by whoever waits
            error = raised
        try:
            loop.call_soon_threadsafe(tell, error)
        except RuntimeError:  # the loop was closed
            _unheard(error)
        error = None  # its frames hold this one, and so itself

    def tell(error: BaseException | None) -> None:
        if over.done():
            _unheard(error)
        else:
            over.set_result(error)

    try:
        Thread(target=run, name="rollmux-phase", daemon=True).start()
    except RuntimeError:
        if not or_here:
            raise
        run()
    error = await over
    if error is not None:
        try:
            raise error
        finally:
            del error, over


def _alone(work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001  nobody is left to hear it
        _unheard(error)


def _unheard(error: BaseException | None) -> None:
    """Logs an error of a phase that was given up: our own are no news, but an error of the script's state may be."""
    if error is not None:
        level = logging.DEBUG if isinstance(error, RollmuxError) else logging.ERROR
        log.log(level, "a phase that was given up: %s", error, exc_info=error)


def _require_done(body: Callable[..., Any], made: R) -> R:
    """What the body has made; TypeError if that has yet to run, or still runs."""
    if asyncio.isfuture(made) and not made.done():
        made.cancel()
    elif not isinstance(made, _LATER):
        return made
    if isinstance(made, CoroutineType | GeneratorType):
        made.close()
    remedy = "finish it there, as by list() or await, or use `with`"
    raise TypeError(f"{body!r} has made a {type(made).__name__}: it would run outside of its phase; {remedy}")

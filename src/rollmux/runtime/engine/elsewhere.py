"""An engine in another process, on this machine or on another: several of them compute at the same time.

A step is asked for ahead: the engine computes while its owner is busy with another one, and the next call of `step`
tells what came of it. If the process dies it is begun anew, and its requests are resubmitted with the tokens that were
heard: as a response depends on its request and the weights alone, it comes out the same. A call that is interrupted
(by Ctrl-C, say) ends the process too, for nobody would hear its answer.

Invariants: an exported request has only the tokens that were told: whoever goes on with it draws the others again. No
process begins over weights that are half new, except for the update that makes them whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rollmux.errors import InvalidSpec
from rollmux.runtime.engine.errors import EngineClosed, EngineLost, UpdateRefused
from rollmux.runtime.engine.growing import Growing
from rollmux.runtime.engine.requests import (
    Ended,
    Event,
    FinishReason,
    Generated,
    GenerationRequest,
    Grown,
    Unfinished,
    several,
)
from rollmux.runtime.engine.seam import Begun, Engine, Gauges
from rollmux.runtime.engine.versions import half_new, require_newer, require_permitted

_LIVES = 3  # so many processes that end without a step in between are no accident
_END_S = 5.0
_GONE = (ConnectionError, EOFError)


@dataclass(frozen=True, slots=True)
class Standing:
    """How the engine stands: comes with each answer."""

    version: int
    is_suspended: bool


# An event of a step on its way here: plain tuples are quick to pack. An end (its reason, and why) comes without tokens,
# for all of them were sent before.
Told = tuple[str, int, tuple[int, ...], tuple[float, ...], tuple[int, ...], FinishReason | None, str]
Answer = tuple[Any, Exception | None, Standing]


class Line(Protocol):
    """Calls to an engine elsewhere and their answers, in order. ConnectionError or EOFError: the engine is gone."""

    def send(self, name: str, told: tuple[Any, ...]) -> None: ...

    def recv(self) -> Answer:
        """The engine's answer, or the error that it raised, and how it stands."""

    def close(self) -> None: ...


class Home(Protocol):
    """Where the engine lives, one life after the other."""

    def begin(self, version: int) -> Line:
        """A new engine over weights of this version. ConnectionError or EOFError: it died at once."""

    def end(self, patience_s: float) -> None:
        """Ends the present engine, if there is one, for good; it has so long to end by itself."""


class EngineElsewhere:
    """See `rollmux.runtime.engine.seam.Engine`. Its process begins with the first call that needs one."""

    def __init__(self, home: Home, version: int = 0) -> None:
        self._home = home
        self._stands = Standing(version, is_suspended=False)
        self._line: Line | None = None
        self._ahead = False  # a step was asked for, and its answer is not read yet
        self._heard: list[tuple[Event, Growing]] = []  # events that are not told yet, and whose they are
        self._failed: Exception | None = None  # an error of a step that is not raised yet
        self._known: dict[str, Growing] = {}  # requests that are not over, with all that was heard of them
        self._cancelled: set[str] = set()  # those of `_known` that were cancelled
        self._resting: set[str] = set()  # requests that are over, and rest for a next one
        self._half: int | None = None  # the version of an update that was begun, and whose end was not heard
        self._lives = 0
        self._closed = False

    @property
    def version(self) -> int:
        return self._stands.version

    @property
    def is_suspended(self) -> bool:
        return self._stands.is_suspended

    @property
    def unfinished(self) -> int:
        return len(self._known) - len(self._cancelled)

    def submit(self, request: GenerationRequest) -> None:
        self._hear_the_end_of({request.id})
        self._call("submit", request)
        self._known[request.id] = Growing(request)
        self._resting.discard(request.id)

    def cancel(self, ids: Iterable[str]) -> None:
        """A response that is over, which was told to nobody, counts as cancelled: no new weights draw it again."""
        asked = several(ids)
        names = [name for name in asked if name in self._known or name in self._resting]
        if names and not self._closed:
            self._call("cancel", names)
            self._resting.difference_update(names)
            self._cancelled.update(name for name in names if name in self._known)
        self._heard = [(_cancelled(event) if event.id in asked else event, whose) for event, whose in self._heard]

    def _hear_the_end_of(self, names: set[str]) -> None:
        """Hears all events of cancelled requests with these names first, for the names are about to be used again."""
        self._require_open()
        self._listen()
        while not self._cancelled.isdisjoint(names):
            if self._line is None:
                self._tell_cancelled()
                break
            self._begin_step()
            before, self._failed = self._failed, None
            self._listen()
            if self._failed is not None:
                raise self._failed
            self._failed = before

    def export(self, ids: Iterable[str] | None = None) -> tuple[Unfinished, ...]:
        taken: tuple[Unfinished, ...] = self._call("export", None if ids is None else list(several(ids)))
        left = [self._known.pop(each.request.id) for each in taken]
        untold = self._untold()
        self._forget(left)
        return tuple(each.unfinished(untold.get(each)) for each in left)

    def _untold(self) -> dict[Growing, int]:
        """Responses with tokens that were heard and not told, and the place of the first such token."""
        firsts: dict[Growing, int] = {}
        for event, whose in self._heard:
            if isinstance(event, Grown):
                firsts.setdefault(whose, event.first)
        return firsts

    def _forget(self, some: Iterable[Growing]) -> None:
        """Drops what was heard of these responses and not told."""
        left = set(some)
        self._heard = [(event, whose) for event, whose in self._heard if whose not in left]

    def adopt(self, unfinished: Iterable[Unfinished], mixed: bool = False) -> None:
        adopted = tuple(unfinished)
        names = {each.request.id for each in adopted}
        self._hear_the_end_of(names)
        self._call("adopt", adopted, mixed)
        self._known.update((each.request.id, Growing.of(each)) for each in adopted)
        self._resting -= names

    def update(self, version: int, weights: Mapping[str, Any] | None = None, begun: Begun = Begun.REFUSE) -> None:
        """The new weights draw again what was drawn ahead and told to nobody, even if its response is over.

        For the owner may have written them in place before that step was computed.
        """
        self._require_open()
        self._listen()
        require_newer(version, self.version)
        ahead = self._taken_ahead(begun)
        half, self._half = self._half, version
        try:
            self._call("update", version, weights, begun)
            self._half = None
            self._resting.clear()
        except (InvalidSpec, UpdateRefused):
            self._half = half  # nothing was changed
            if half is not None:
                self._end()
            raise
        finally:
            self._put_back(ahead)

    def _taken_ahead(self, begun: Begun) -> list[Unfinished]:
        untold = self._untold()
        ends = {whose: event.reason for event, whose in self._heard if isinstance(event, Ended)}
        over = [
            each
            for each in untold
            if ends.get(each, FinishReason.CANCELLED) is not FinishReason.CANCELLED
            and each.request.id not in self._known  # its name may be another request's by now
        ]
        going = [each for each in untold if each not in ends and each.request.id not in self._cancelled]
        started = [each.request.id for each in (*going, *over) if untold[each]]
        require_permitted(started, self.version, begun)
        taken = self.export([each.request.id for each in going])
        self._forget(over)
        return [*taken, *(each.unfinished(untold[each]) for each in over)]

    def _put_back(self, taken: Iterable[Unfinished]) -> None:
        """Makes requests known again, whatever has happened, and even if the process dies now."""
        back = tuple(taken)
        self._known.update((each.request.id, Growing.of(each)) for each in back)
        if back and self._line is not None:
            with suppress(*_GONE), self._whole():
                self._require_done(self._line, "adopt", back, True)

    def suspend(self, keep: bool = False) -> None:
        self._call("suspend", keep)
        if not keep:
            self._resting.clear()

    def resume(self) -> None:
        self._call("resume")

    def step(self) -> list[Event]:
        self._require_open()
        if self._line is None:
            self._tell_cancelled()
            if self.unfinished and not self.is_suspended:
                self._begin()
        if not self._heard and self._failed is None:
            self._begin_step()
        self._listen()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        self._begin_step()
        told, self._heard = self._heard, []
        return [event for event, _ in told]

    def probe(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        found: tuple[int, ...] = self._call("probe", prompt, count)
        return found

    def gauges(self) -> Gauges:
        """Counts of the present process: one that took the place of another began at zero."""
        found: Gauges = self._call("gauges")
        return found

    def close(self) -> list[Event]:
        if self._closed:
            return []
        self._end(_END_S)
        self._closed = True
        ends = [Ended(name, FinishReason.CANCELLED, each.generated()) for name, each in self._known.items()]
        told = [*(event for event, _ in self._heard), *ends]
        self._known, self._heard, self._cancelled = {}, [], set()
        self._stands = replace(self._stands, is_suspended=True)
        return told

    # -- its process -------------------------------------------------------------------------------------------------

    def _call(self, name: str, *told: Any) -> Any:
        """Asks until some process lives to answer. Raises what the engine refuses."""
        self._require_open()
        self._listen()
        while True:
            if self._line is None and self._needs_none(name, told):
                return self._done_without(name, told)
            line = self._line or self._begin(to_be_made_whole=name == "update")
            try:
                answer, refusal = self._asked(line, name, told)
            except _GONE:
                continue
            if refusal is not None:
                raise refusal
            return answer

    def _needs_none(self, name: str, told: tuple[Any, ...]) -> bool:
        """Whether a call needs no process: to begin one takes memory, perhaps on nodes that others hold."""
        if name == "update":
            return told[1] is None and not self._known
        return name in ("suspend", "export", "cancel")

    def _done_without(self, name: str, told: tuple[Any, ...]) -> tuple[Unfinished, ...] | None:
        if name == "update":
            self._stands = replace(self._stands, version=told[0])
        elif name == "suspend":
            self._stands = replace(self._stands, is_suspended=True)
        elif name == "export":
            (names,) = told
            left = [each for each in self._known if each not in self._cancelled and (names is None or each in names)]
            return tuple(self._known[each].unfinished() for each in left)
        return None

    def _begin_step(self) -> None:
        """Asks for a step ahead, if there is something to do."""
        if self._line is None or self._ahead or not self._known:
            return
        self._ahead = True
        with suppress(*_GONE), self._whole():
            self._line.send("step", ())

    def _tell_cancelled(self) -> None:
        """Tells the ends of cancelled requests, when no process is left to tell them."""
        for name in sorted(self._cancelled):
            over = self._known.pop(name)
            self._heard.append((Ended(name, FinishReason.CANCELLED, over.generated()), over))
        self._cancelled.clear()

    def _listen(self) -> None:
        """Reads what came of the step that was asked for ahead."""
        if not self._ahead or self._line is None:
            return
        with suppress(*_GONE), self._whole():
            events, self._failed = self._answer(self._line)
            self._ahead = False
            self._lives = 0
            self._heard += map(self._hear, events or ())

    def _hear(self, told: Told) -> tuple[Event, Growing]:
        name, first, tokens, logprobs, versions, reason, why = told
        if reason is not None:
            self._cancelled.discard(name)
            over = self._known.pop(name)
            if reason is FinishReason.STOP and over.request.rests:
                self._resting.add(name)
            return Ended(name, reason, over.generated(), why), over
        gained = Generated(tokens, logprobs, versions)
        self._known[name].grow(gained)
        return Grown(name, first, gained), self._known[name]

    def _asked(self, line: Line, name: str, told: tuple[Any, ...]) -> tuple[Any, Exception | None]:
        """The answer, or the error with which the call was refused."""
        with self._whole():
            line.send(name, told)
            return self._answer(line)

    def _answer(self, line: Line) -> tuple[Any, Exception | None]:
        answer, refusal, self._stands = line.recv()
        return answer, refusal

    def _require_done(self, line: Line, name: str, *told: Any) -> None:
        _, refusal = self._asked(line, name, told)
        if refusal is not None:
            raise refusal

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Ends the process if an exchange is broken off: its late answer would be taken for that to the next call."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, _GONE):
                self._lives = 0  # it has not died: whoever hears of this may try again
            self._end()
            raise

    def _begin(self, to_be_made_whole: bool = False) -> Line:
        """Begins a process in place of one that is gone, with all requests that are not over, as they were."""
        if self._half is not None and not to_be_made_whole:
            raise half_new(self._half)
        self._end()
        stands = self._stands
        trouble: Exception | None = None
        while self._lives < _LIVES:
            self._lives += 1
            try:
                with self._whole():
                    return self._begun(stands)
            except _GONE as error:
                trouble = error
            finally:
                self._stands = stands
        raise EngineLost(f"the engine's process has died {_LIVES} times in a row: its log may say why") from trouble

    def _begun(self, stands: Standing) -> Line:
        self._line = line = self._home.begin(stands.version)
        self._require_done(line, "adopt", tuple(each.unfinished() for each in self._known.values()), True)
        self._require_done(line, "cancel", sorted(self._cancelled))
        if stands.is_suspended:
            self._require_done(line, "suspend", False)
        return line

    def _end(self, patience_s: float = 0.0) -> None:
        line, self._line, self._ahead = self._line, None, False
        self._resting.clear()
        if line is not None:
            line.close()
        self._home.end(patience_s)

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosed("the engine is closed: make a new one")


def _cancelled(event: Event) -> Event:
    return replace(event, reason=FinishReason.CANCELLED, why="") if isinstance(event, Ended) else event


def answer(engine: Engine, name: str, told: tuple[Any, ...]) -> Answer:
    """Does a call where the engine lives."""
    found, refusal = None, None
    try:
        found = getattr(engine, name)(*told) if name != "step" else list(map(_packed, engine.step()))
    except Exception as error:  # noqa: BLE001  whatever it is, it is its owner's to deal with
        refusal = error
    return found, refusal, Standing(engine.version, engine.is_suspended)


def _packed(event: Event) -> Told:
    if isinstance(event, Ended):
        return event.id, 0, (), (), (), event.reason, event.why
    gained = event.gained
    return event.id, event.first, gained.tokens, gained.logprobs, gained.versions, None, ""

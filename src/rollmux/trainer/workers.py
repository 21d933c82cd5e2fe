"""The engines that share a rollout. Some may be away: their nodes are another job's for now.

Invariants: an engine that is away has no request and holds no memory; each request is with one engine, whichever come
and go, and gets the tokens that it would have had anyway. Only one thread at a time may call this.
"""

from collections.abc import Collection, Iterable, Sequence

from rollmux.errors import InvariantViolated
from rollmux.runtime.engine import Ended, Engine, Event, GenerationRequest, Unfinished


class Workers:
    """Engines with the same limits over the same weights."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = tuple(engines)
        self._there = list(self.engines)
        self._with: dict[str, Engine] = {}  # the engine that has yet to tell the end of a request, newest requests last
        self._rests: dict[str, Engine] = {}  # the engine that has, or had, a request from which a next one may go on

    @property
    def is_idle(self) -> bool:
        return not any(engine.unfinished for engine in self.engines)

    @property
    def untold(self) -> int:
        """How many requests have an end that was not told yet: those that are not over, and those just cancelled."""
        return len(self._with)

    @property
    def there(self) -> frozenset[int]:
        """The numbers of the workers that work now."""
        return frozenset(number for number, engine in enumerate(self.engines) if engine in self._there)

    def of(self, name: str) -> int | None:
        """The number of the worker that has this request; None if none has it."""
        engine = self._with.get(name)
        return None if engine is None else self.engines.index(engine)

    def launch(self, request: GenerationRequest) -> None:
        """Gives the request to the engine where it goes on from what rests, else to the one with the least to do. Which
        engine it is changes no token."""
        engine = self._rests.pop(request.id, None)
        if engine not in self._there:
            engine = self._idlest()
        engine.submit(request)
        self._with[request.id] = engine
        if request.rests:
            self._rests[request.id] = engine

    def cancel(self, names: Collection[str]) -> None:
        """Cancels these requests; the next steps tell them as cancelled."""
        for name in names:
            self._rests.pop(name, None)
        for engine in self.engines:
            engine.cancel(names)

    def forget(self, names: Collection[str]) -> None:
        """Frees what rests of these requests, which are over: nothing goes on from them."""
        resting: dict[Engine, list[str]] = {}
        for name in names:
            if engine := self._rests.pop(name, None):
                resting.setdefault(engine, []).append(name)
        for engine, those in resting.items():
            engine.cancel(those)

    def step(self) -> list[Event]:
        """One step of every engine; one that is away only tells what it has not told yet."""
        events = [event for engine in self.engines for event in engine.step()]
        for event in events:
            if isinstance(event, Ended):
                del self._with[event.id]
        return events

    def share(self, numbers: Collection[int]) -> None:
        """From now on only these workers work: all requests move to them, and the others give their memory back."""
        if not numbers:
            raise InvariantViolated("a rollout's workers", "all of them would be away: keep one at least")
        there = [engine for number, engine in enumerate(self.engines) if number in numbers]
        come = [engine for engine in there if engine not in self._there]
        gone = [engine for engine in self.engines if engine not in there]
        for engine in there:
            engine.resume()
        self._there = there
        for engine in gone:
            self._adopt(engine.export())
        if come:
            self._even_out()
        for engine in gone:
            engine.suspend()

    def _adopt(self, moved: Iterable[Unfinished]) -> None:
        for each in moved:
            engine = self._idlest()
            engine.adopt((each,))
            self._with[each.request.id] = engine
            if each.request.rests:
                self._rests[each.request.id] = engine

    def _even_out(self) -> None:
        """Moves the newest requests, which have the least to compute again, to engines with less to do."""
        for name, engine in reversed(tuple(self._with.items())):
            if engine.unfinished > self._idlest().unfinished + 1:
                self._adopt(engine.export((name,)))

    def _idlest(self) -> Engine:
        return min(self._there, key=lambda engine: engine.unfinished)

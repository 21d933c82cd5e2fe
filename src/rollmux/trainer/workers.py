"""The engines that share a rollout, of which some may be away: their nodes are somebody else's for now.

Invariants: who is away has no request and holds no memory; a request is with one engine, whoever comes and goes, and
has the tokens that it would have had anyway. Called from one thread at a time.
"""

from collections.abc import Collection, Iterable, Sequence

from rollmux.errors import InvariantViolated
from rollmux.runtime.engine import Ended, Engine, Event, GenerationRequest, Unfinished


class Workers:
    """Engines with the same limits over the same weights."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = tuple(engines)
        self._there = list(self.engines)
        self._with: dict[str, Engine] = {}  # who is yet to tell of which request, what came last at the end
        self._rests: dict[str, Engine] = {}  # who has, or had, a request that may be gone on from

    @property
    def is_idle(self) -> bool:
        return not any(engine.unfinished for engine in self.engines)

    @property
    def untold(self) -> int:
        """Requests whose end was not told yet: those that are not over, and those just cancelled."""
        return len(self._with)

    @property
    def there(self) -> frozenset[int]:
        """The numbers of those who work now."""
        return frozenset(number for number, engine in enumerate(self.engines) if engine in self._there)

    def of(self, name: str) -> int | None:
        """The number of whoever has this request; None where nobody has it."""
        engine = self._with.get(name)
        return None if engine is None else self.engines.index(engine)

    def launch(self, request: GenerationRequest) -> None:
        """Where it goes on from what rests, else with whoever has the least to do. Which one it is changes no token."""
        engine = self._rests.pop(request.id, None)
        if engine not in self._there:
            engine = self._idlest()
        engine.submit(request)
        self._with[request.id] = engine
        if request.rests:
            self._rests[request.id] = engine

    def cancel(self, names: Collection[str]) -> None:
        """They are told as cancelled by the next steps."""
        for name in names:
            self._rests.pop(name, None)
        for engine in self.engines:
            engine.cancel(names)

    def forget(self, names: Collection[str]) -> None:
        """Nobody goes on from these, which are over."""
        resting: dict[Engine, list[str]] = {}
        for name in names:
            if engine := self._rests.pop(name, None):
                resting.setdefault(engine, []).append(name)
        for engine, those in resting.items():
            engine.cancel(those)

    def step(self) -> list[Event]:
        """One step of every engine; who is away has something to tell at most."""
        events = [event for engine in self.engines for event in engine.step()]
        for event in events:
            if isinstance(event, Ended):
                del self._with[event.id]
        return events

    def share(self, numbers: Collection[int]) -> None:
        """From now on these work, and no others: all requests are moved to them, and who goes gives its memory back."""
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
        """What came last, and so has the least to be computed anew, goes to who has less to do."""
        for name, engine in reversed(tuple(self._with.items())):
            if engine.unfinished > self._idlest().unfinished + 1:
                self._adopt(engine.export((name,)))

    def _idlest(self) -> Engine:
        return min(self._there, key=lambda engine: engine.unfinished)

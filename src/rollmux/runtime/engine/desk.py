"""The desk where requests are kept: who waits, who runs, who gives way when the room is short.

Requests are let in in the order in which they came, so those that run are older than those that wait. If the room is
short the youngest gives way, and is the first to come back. Pure: neither torch nor a clock.

Invariants: a request is at the desk from `add` to exactly one of `end` and `remove`. It holds pages while it runs. A
request that rests, or waits to go on from its pages, holds them until another one that runs or could run wants them.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rollmux.checks import Checks
from rollmux.runtime.engine.growing import Growing
from rollmux.runtime.engine.requests import (
    Ended,
    Event,
    FinishReason,
    Generated,
    GenerationRequest,
    Grown,
    Unfinished,
    check_tokens,
)
from rollmux.runtime.engine.room import Room


@dataclass(slots=True, eq=False)
class Live(Growing):
    """A request at the desk. The keys and values of its first `cached` tokens lie in its pages."""

    pages: list[int] = field(default_factory=list)
    cached: int = 0
    known: int = 0  # so many tokens have been computed before, here or in another engine
    is_old: bool = False  # its keys and values come from older weights

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.tokens)

    @property
    def owed(self) -> int:
        """Tokens to be computed before the next one can be drawn."""
        return len(self.request.prompt) + len(self.tokens) - self.cached

    def following(self, count: int) -> list[int]:
        """The next tokens to be computed."""
        prompt, first = self.request.prompt, self.cached - len(self.request.prompt)
        if first >= 0:
            return self.tokens[first : first + count]
        return [*prompt[self.cached : self.cached + count], *self.tokens[: max(0, first + count)]]


Work = tuple[Live, int]
LEAST_SHARED = 16  # tokens: to compute fewer, beside the others, is quicker than to wait for a twin


class Desk:
    """The requests of an engine, each from its submission to its end."""

    def __init__(self, room: Room, max_running: int, max_length: int, vocabulary: int, prefill_tokens: int) -> None:
        self.room = room
        self.max_running, self.max_length, self.prefill_tokens = max_running, max_length, prefill_tokens
        self.vocabulary = vocabulary
        self.live: dict[str, Live] = {}
        self.waiting: OrderedDict[str, Live] = OrderedDict()  # by id: some leave from the middle of many
        self.running: list[Live] = []  # the youngest last
        self.resting: OrderedDict[str, Live] = OrderedDict()  # ended, with pages for a next request; the oldest first
        # Who has computed so many tokens of a prompt, and who gets a copy of them before the next computation.
        self.twins: list[tuple[Live, Live, int]] = []
        self.events: list[Event] = []
        self.preemptions = self.generated = self.computed = self.recomputed = self.ended = 0

    def add(self, requests: Iterable[Unfinished]) -> None:
        """Queues requests with the tokens that they have, all or none."""
        adding: dict[str, Live] = {}
        checks = Checks("request")
        for each in requests:
            self._check(checks, each, adding)
            adding[each.request.id] = _entering(each)
        checks.require()
        for live in adding.values():
            self._go_on(live)
        self.live |= adding
        self.waiting.update(adding)

    def _go_on(self, live: Live) -> None:
        """Takes over the pages of the request of its id that rests, if it begins with all of that one's tokens."""
        rested = self.resting.pop(live.request.id, None)
        if rested is None:
            return
        prompt, had = live.request.prompt, (*rested.request.prompt, *rested.tokens)
        if prompt[: len(had)] == had:
            live.pages, rested.pages = rested.pages, live.pages
            live.cached, live.known = rested.cached, max(live.known, rested.cached)
        else:
            self._forget(rested)

    def forget(self, names: Iterable[str]) -> None:
        """Gives up what rests of these."""
        for name in names:
            if rested := self.resting.pop(name, None):
                self._forget(rested)

    def _check(self, checks: Checks, each: Unfinished, adding: dict[str, Live]) -> None:
        request, had = each.request, len(each.response.tokens)
        if request.id in self.live or request.id in adding:
            checks.report("id", request.id, "the id of no other unfinished request", "give each request its own")
        if not check_tokens(checks, "response", each.response.tokens):
            return
        longest = len(request.prompt) + request.max_tokens
        if self._fits(checks, request, each.response.tokens) and self.room.needed(longest - 1) > self.room.pages:
            room = self.room.pages * self.room.page_tokens + 1  # nothing is computed from the last token
            checks.report("max_tokens", longest, f"at most {room} with the prompt", "give the engine more room")
        if had >= request.max_tokens or any(token in request.stop_tokens for token in each.response.tokens):
            checks.report("response", had, "an unfinished response", "take it as it is: it is over")

    def _fits(self, checks: Checks, request: GenerationRequest, had: Sequence[int] = ()) -> bool:
        """Whether the model could take the request if there were room enough."""
        highest = max(*request.prompt, *had, 0)
        if highest >= self.vocabulary:
            checks.report("prompt", highest, f"tokens below {self.vocabulary}", "use the tokenizer of this model")
        fits = len(request.prompt) + request.max_tokens <= self.max_length
        if not fits:
            checks.report(
                "max_tokens", request.max_tokens,
                f"at most {self.max_length} with the {len(request.prompt)} tokens of the prompt",
                "ask for less, or give the engine a longer `max_length`",
            )  # fmt: skip
        return fits

    def require_fitting(self, request: GenerationRequest) -> None:
        checks = Checks("request")
        self._fits(checks, request)
        checks.require()

    def plan(self) -> list[Work]:
        """Which requests are computed next, and how many tokens of each. They have the pages for these already."""
        self.forget_copies()
        self._admit()
        budget = self.prefill_tokens
        work: list[Work] = []
        first: dict[tuple[int, ...], Live] = {}  # by prompt, for prompts that are not all computed
        may_share = any(live.cached < len(live.request.prompt) - 1 for live in self.running)
        for live in tuple(self.running):
            if may_share and self._waits_for_twin(live, first):
                continue
            count = live.owed
            if not count:  # its drawn token got lost, as by Ctrl-C: it is drawn once more
                live.cached -= 1
                count = 1
            if count > 1:
                count = min(count, budget)
                budget -= count
            if count and self._hold(live, live.cached + count):
                work.append((live, count))
        return work

    def _waits_for_twin(self, live: Live, first: dict[tuple[int, ...], Live]) -> bool:
        """Whether a request waits for a twin: the oldest that runs computes a prompt for all that have the same one.

        The others get a copy of all but its last token, which each computes to draw for itself.
        """
        prompt, shared = live.request.prompt, len(live.request.prompt) - 1
        if shared < LEAST_SHARED or live.is_old or not live.pages:
            return False
        twin = first.setdefault(prompt, live)
        if live.cached >= shared:
            if twin.cached < shared:
                first[prompt] = live
            return False
        if twin.cached >= shared:
            self.twins.append((twin, live, shared))
            live.cached = shared
        return live.cached < shared and twin is not live

    def copies(self) -> list[tuple[list[int], list[int], int]]:
        """Copies of so many tokens, from pages to pages. A request that gave way since it was planned needs none."""
        return [(twin.pages, live.pages, shared) for twin, live, shared in self.twins if live.pages]

    def forget_copies(self) -> None:
        """Takes back copies that were planned and never made, as the step was broken off."""
        for _, live, _ in self.twins:
            live.cached = 0
        self.twins.clear()

    def _admit(self) -> None:
        """Lets in requests for which there is room beside the next step of all that run."""
        if not self.waiting:
            return
        room = self.room
        growing = sum(room.needed(each.length) > len(each.pages) for each in self.running)
        while self.waiting and len(self.running) < self.max_running:
            live = next(iter(self.waiting.values()))
            need = room.needed(live.length) - len(live.pages)
            if not self.has_room(need + growing, live):
                break
            room.take(live.pages, need)
            self.running.append(self.waiting.pop(live.request.id))

    def _hold(self, live: Live, tokens: int) -> bool:
        """Gives a running request pages for so many tokens. Younger ones give way; False if it had to do so itself."""
        if not live.pages:
            return False  # it has given way already
        short = self.room.needed(tokens) - len(live.pages)
        if short <= 0:
            return True
        while not self.has_room(short):
            youngest = self.running[-1]
            self.preempt()
            if youngest is live:
                return False
        self.room.take(live.pages, short)
        return True

    def has_room(self, pages: int, but_for: Live | None = None) -> bool:
        """Whether so many pages are free, if need be because others gave theirs up: resting requests, the oldest first,
        then those that wait to go on from their pages, the last in line first. Nobody gives pages up in vain.
        """
        if pages <= self.room.free:
            return True
        holders = [each for each in (*self.resting.values(), *reversed(self.waiting.values())) if each is not but_for]
        if pages > self.room.free + sum(len(each.pages) for each in holders):
            return False
        for each in holders:
            if pages > self.room.free:
                self.resting.pop(each.request.id, None)
                self._forget(each)
        return True

    def preempt(self) -> None:
        """The youngest that runs gives its pages back and is the next to come in."""
        self.preemptions += 1
        self._put_first(self.running.pop())

    def stop(self, begun: bool = True) -> None:
        """Sends all that run back to wait, without pages; those that have a token only if `begun`."""
        stopped = [live for live in self.running if begun or not live.tokens]
        self.running = [live for live in self.running if not begun and live.tokens]
        for live in self.running:
            live.is_old = True
        for live in reversed(stopped):
            self._put_first(live)
        for live in self.waiting.values():
            self._forget(live)
        self.forget(tuple(self.resting))

    def _put_first(self, live: Live) -> None:
        self._forget(live)
        self.waiting[live.request.id] = live
        self.waiting.move_to_end(live.request.id, last=False)

    def _forget(self, live: Live) -> None:
        self.room.give(live.pages)
        live.cached, live.is_old = 0, False

    def done(self, live: Live, count: int) -> None:
        """Notes that so many tokens of a request have been computed."""
        self.computed += count
        until = live.cached + count
        if live.known > live.cached:
            self.recomputed += min(live.known, until) - live.cached
        live.cached, live.known = until, max(live.known, until)

    def grow(self, live: Live, token: int, logprob: float, version: int) -> None:
        """Gives a request its next token, which may be its last."""
        grown = Grown(live.request.id, len(live.tokens), Generated((token,), (logprob,), (version,)))
        live.tokens.append(token)
        live.logprobs.append(logprob)
        live.versions.append(version)
        self.generated += 1
        self.events.append(grown)
        if token in live.request.stop_tokens:
            self.end(live, FinishReason.STOP)
        elif len(live.tokens) == live.request.max_tokens:
            self.end(live, FinishReason.LENGTH)

    def end(self, live: Live, reason: FinishReason, why: str = "") -> None:
        if reason is FinishReason.STOP and live.request.rests and not live.is_old:
            self.resting[live.request.id] = live
        self._leave(live)
        self.ended += 1
        self.events.append(Ended(live.request.id, reason, live.generated(), why))

    def remove(self, live: Live) -> Unfinished:
        """Takes a request out, to go on elsewhere."""
        self._leave(live)
        return live.unfinished()

    def _leave(self, live: Live) -> None:
        del self.live[live.request.id]
        if self.waiting.pop(live.request.id, None) is None:
            self.running.remove(live)
        if live.request.id not in self.resting:
            self._forget(live)

    def told(self) -> list[Event]:
        """What has happened since this was last asked."""
        events, self.events = self.events, []
        return events


def _entering(each: Unfinished) -> Live:
    live = Live.of(each)
    live.known = live.length - 1 if live.tokens else 0
    return live

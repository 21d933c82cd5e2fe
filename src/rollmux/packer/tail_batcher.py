"""Tail batching as one function: `handle(events) -> commands`.

It reads no clock: the order in which events come is all that it goes by, and events given in one call happen at the
same time, so their order within the call means nothing. An illegal event raises, and nothing of its call is done.
"""

from collections.abc import Callable, Collection
from typing import Any

from rollmux.packer import events as ev
from rollmux.packer.batching import Batching, Race, launches, require_batching, surpluses
from rollmux.packer.commands import Batch, Command, Draw, FailedPrompt, RoundComplete, RoundKind, TrainedPrompt
from rollmux.packer.eta import EtaPolicy, Factors, FixedEta
from rollmux.packer.known_long import KnownLong
from rollmux.packer.ledger import Account, Outcome
from rollmux.packer.legality import Said, check
from rollmux.packer.length_bias import LengthBias
from rollmux.packer.long_queue import Deferred
from rollmux.packer.memory import Memory
from rollmux.packer.prompt import Prompt, Request
from rollmux.packer.round import Keep, Lane, Round, Terms
from rollmux.packer.run import Run, Stand


class TailBatcher:
    """Takes events, runs the rounds, gives commands.

    `keep` says by a prompt's responses whether it is worth training. `eta` and `known_long` learn: give each batcher
    its own.
    """

    def __init__(
        self,
        batching: Batching,
        keep: Keep | None = None,
        eta: EtaPolicy | None = None,
        known_long: KnownLong | None = None,
    ) -> None:
        require_batching(batching)
        eta = eta or FixedEta(batching.eta_prompts, batching.eta_responses)
        self._terms = Terms(batching.responses, batching.race, batching.retries, keep)
        self._memory = Memory(batching, eta, known_long)

    @classmethod
    def from_state(
        cls,
        batching: Batching,
        state: dict[str, Any],
        keep: Keep | None = None,
        eta: EtaPolicy | None = None,
        known_long: KnownLong | None = None,
    ) -> "TailBatcher":
        """The batcher that gave this `state()`, with policies of the same kinds. InvalidSpec: they do not fit."""
        batcher = cls(batching, keep, eta, known_long)
        batcher._memory.restore(state, batcher._terms)
        return batcher

    def state(self) -> dict[str, Any]:
        """The checkpoint, as JSON values, at any point between two calls."""
        return self._memory.state()

    def handle(self, *events: ev.Event) -> tuple[Command, ...]:
        """What follows from events that happen at the same time.

        Raises IllegalEvent, and changes nothing, if one of them can't happen now.
        """
        memory = self._memory
        out: list[Command] = []
        for event, run in _checked(memory, events):
            _APPLY[type(event)](self, event, run, out)
            now = memory.round
            if now is not None and (now.ended or not now.open_lanes):
                self._book(now, out)
        return tuple(out)

    @property
    def bias(self) -> LengthBias:
        """Lengths offered and trained so far."""
        return self._memory.bias

    @property
    def queued(self) -> int:
        """Prompts that wait for a long round."""
        return self._memory.queue.size

    @property
    def next_kind(self) -> RoundKind:
        """The kind that the next round will start as, by what is known now; between rounds this is certain."""
        return self._kind(self._surplus(self._memory.eta.factors(self._memory.batching)))

    def sure(self, known: Collection[Prompt] = ()) -> tuple[TrainedPrompt, ...]:
        """The prompts that the batch of the round under way will have, whatever comes: they may be trained early.

        Those in `known` are left out.
        """
        now = self._memory.round
        return () if now is None else tuple(_trained(run) for run in now.sure() if run.prompt not in known)

    def accounts(self) -> dict[int, Account]:
        """What became of the prompts of each epoch."""
        return self._memory.ledger.accounts()

    # -- a round begins ------------------------------------------------------------------------------------------------

    def _started(self, event: ev.RoundStarted, run: None, out: list[Command]) -> None:
        batching = self._memory.batching
        self._memory.left = event.rounds_left
        factors = self._memory.eta.factors(batching)
        surplus = self._surplus(factors)
        kind = self._kind(surplus)
        self._memory.number += 1
        if kind is RoundKind.LONG:
            self._open(kind, batching.responses, dict.fromkeys(surplus, 0), out)
        else:
            factor = 1.0 if batching.race is Race.NONE else factors.responses
            self._open(kind, launches(batching.responses, factor), surplus, out)

    def _surplus(self, factors: Factors) -> dict[str, int]:
        """How many prompts a short round launches beyond its want: never more than long rounds can train in time."""
        memory, batching = self._memory, self._memory.batching
        queued = {domain: len(lane) for domain, lane in memory.queue.lanes.items() if domain not in memory.dry}
        wanted = surpluses(batching, factors.prompts, queued)
        return {domain: min(wanted[domain], batching.max_wait_rounds * quota) for domain, quota in batching.lanes}

    def _kind(self, surplus: dict[str, int]) -> RoundKind:
        memory = self._memory
        is_dry = len(memory.dry) == len(memory.drawing)
        is_long = is_dry or memory.queue.must_run(memory.number + 1, surplus)
        return RoundKind.LONG if is_long else RoundKind.SHORT

    def _open(self, kind: RoundKind, width: int, surplus: dict[str, int], out: list[Command]) -> None:
        memory = self._memory
        most = memory.batching.most_filtered
        lanes = [Lane(domain, quota, most * quota) for domain, quota in memory.batching.lanes]
        now = memory.round = Round(memory.number, kind, width, lanes, self._terms)
        for lane in lanes:
            if kind is RoundKind.LONG:
                self._enter_queued(now, lane, out)
            self._fill(now, lane, lane.missing + surplus[lane.domain], out)

    def _enter_queued(self, now: Round, lane: Lane, out: list[Command]) -> int:
        """Takes from the queue the prompts that the lane lacks, as far as it has them; they run without a race."""
        entries = self._memory.queue.take(lane.domain, lane.missing, now.number)
        for entry in entries:
            now.enter(lane, entry.prompt, self._terms.responses, now.number - entry.round, out)
        return len(entries)

    # -- prompts come --------------------------------------------------------------------------------------------------

    def _fill(self, now: Round, lane: Lane, count: int, out: list[Command]) -> None:
        """`count` fresh prompts are to join the lane: those that came too late for the last round, then newly drawn."""
        memory, domain = self._memory, lane.domain
        fresh = memory.fresh[domain]
        lane.awaited += max(count, 0)
        while fresh and lane.awaited:
            self._join(now, lane, fresh.popleft(), out)
        lacking = lane.awaited - memory.drawing[domain]
        drawn = memory.drawable(domain, max(lacking, 0))
        self._draw(domain, drawn, out)
        if drawn < lacking:
            lane.awaited -= lacking - drawn
            self._make_do(now, lane, out)

    def _make_do(self, now: Round, lane: Lane, out: list[Command]) -> None:
        """Takes from the queue what may not be drawn.

        If the queue has too few prompts, the data have ended and the lane wants fewer, or the job is shorter than it
        said and the lane draws what it can't do without.
        """
        if lane.missing > 0:
            if self._enter_queued(now, lane, out) and now.kind is RoundKind.SHORT:
                now.kind = RoundKind.MIXED
            if lane.domain in self._memory.dry:
                lane.wanted -= lane.missing
            else:
                self._draw(lane.domain, lane.missing, out)
                lane.awaited += lane.missing
        now.judge(lane, out)

    def _draw(self, domain: str, count: int, out: list[Command]) -> None:
        if count:
            self._memory.drawing[domain] += count
            out.append(Draw(count, domain))

    def _join(self, now: Round, lane: Lane, prompt: Prompt, out: list[Command]) -> None:
        """An awaited prompt races, unless it is known to be long and the lane can spare it."""
        memory, known_long = self._memory, self._memory.known_long
        lane.awaited -= 1
        if known_long is not None and lane.missing <= 0 and known_long.is_long(prompt):
            memory.queue.defer(lane.domain, Deferred(now.number, prompt))
            now.diverted.append(prompt)
        else:
            now.enter(lane, prompt, now.width, 0, out)

    def _drawn(self, event: ev.PromptDrawn, run: None, out: list[Command]) -> None:
        memory, prompt = self._memory, event.prompt
        domain = memory.lane_of(prompt)
        memory.ledger.draw(prompt)
        memory.drawing[domain] -= 1
        now = memory.round
        if now is not None and now.lanes[domain].awaited:
            self._join(now, now.lanes[domain], prompt, out)
        else:
            memory.fresh[domain].append(prompt)

    def _data_ended(self, event: ev.DataEnded, run: None, out: list[Command]) -> None:
        memory = self._memory
        memory.dry.add(event.domain)
        memory.drawing[event.domain] = 0
        if memory.round is not None:
            self._fill(memory.round, memory.round.lanes[event.domain], 0, out)

    # -- responses -----------------------------------------------------------------------------------------------------

    def _generated(self, event: ev.ResponseGenerated, run: Run | None, out: list[Command]) -> None:
        now, sample = self._memory.round, event.request.sample
        if now is None or run is None or run.stands[sample] is Stand.ABORTED:
            self._heard(run, event.request, event.tokens)
        else:
            self._memory.told_tokens += event.tokens
            now.generated(run, sample, event.tokens, out)

    def _rewarded(self, event: ev.ResponseRewarded, run: Run | None, out: list[Command]) -> None:
        now, sample = self._memory.round, event.request.sample
        if now is not None and run is not None and run.stands[sample] is Stand.GENERATED:
            now.rewarded(run, sample, float(event.reward), out)  # whatever real number it is

    def _failed(self, event: ev.ResponseFailed, run: Run | None, out: list[Command]) -> None:
        now, sample = self._memory.round, event.request.sample
        if now is None or run is None or run.stands[sample] is Stand.ABORTED:
            self._heard(run, event.request, event.tokens)
            return
        if sample not in run.tokens:
            self._memory.told_tokens += event.tokens
        now.failed_once(run, sample, event.why, out)

    def _aborted(self, event: ev.ResponseAborted, run: Run | None, out: list[Command]) -> None:
        self._heard(run, event.request, event.tokens)

    def _heard(self, run: Run | None, request: Request, tokens: int) -> None:
        """Counts an aborted response's tokens as waste, and its length as offered if its prompt does not run again."""
        memory = self._memory
        is_offered = memory.unheard.pop(request, None)
        if not tokens:  # the response had not begun: this says nothing about its length
            return
        if run is not None:
            if request.sample in run.tokens:
                return
            run.tokens[request.sample] = tokens
            is_offered = run.outcome not in {None, Outcome.DEFERRED}
        if is_offered is None:
            return
        memory.told_tokens += tokens
        if is_offered:
            memory.bias.offered(request.prompt.domain, (tokens,))

    # -- prompts and rounds end ----------------------------------------------------------------------------------------

    def _book(self, now: Round, out: list[Command]) -> None:
        """Books the prompts that have left the round, replaces those that it still needs, and may end it."""
        while now.ended:
            ended, now.ended = now.ended, []
            for run in ended:
                self._end(now, run)
            for lane in now.lanes.values():
                if lane.missing > 0:
                    self._fill(now, lane, lane.missing, out)
        if not now.open_lanes:
            out.append(RoundComplete(self._complete(now)))

    def _end(self, now: Round, run: Run) -> None:
        memory, prompt, outcome = self._memory, run.prompt, run.outcome
        assert outcome is not None
        if memory.known_long is not None:
            is_whole = outcome in {Outcome.TRAINED, Outcome.FILTERED}
            memory.known_long.learn(prompt, max(run.tokens.values(), default=0), is_whole)
        if outcome is Outcome.DEFERRED:
            memory.queue.defer(run.domain, Deferred(now.number, prompt))
            return
        memory.ledger.end(prompt, outcome)
        memory.bias.offered(prompt.domain, run.tokens.values())
        if outcome is Outcome.TRAINED:
            memory.bias.trained(prompt.domain, [run.tokens[sample] for sample in run.rewards])

    def _complete(self, now: Round) -> Batch:
        memory = self._memory
        batch = _batch(now, memory)
        memory.round = None
        memory.told_tokens = 0
        memory.unheard = {
            request: run.outcome is not Outcome.DEFERRED for run in now.runs.values() for request in run.unheard()
        }
        memory.eta.observe(batch)
        if memory.known_long is not None:
            memory.known_long.next_round()
        return batch


def _batch(now: Round, memory: Memory) -> Batch:
    """The batch of a round in which every run has its outcome."""
    runs: dict[Outcome | None, list[Run]] = {outcome: [] for outcome in Outcome}
    for run in sorted(now.runs.values(), key=lambda run: run.prompt.order):
        runs[run.outcome].append(run)
    prompts = tuple(map(_trained, runs[Outcome.TRAINED]))
    return Batch(
        round=now.number,
        kind=now.kind,
        prompts=prompts,
        deferred=tuple(run.prompt for run in runs[Outcome.DEFERRED]),
        diverted=tuple(now.diverted),
        filtered=tuple(run.prompt for run in runs[Outcome.FILTERED]),
        failed_prompts=tuple(FailedPrompt(run.prompt, run.why) for run in runs[Outcome.FAILED]),
        aborted=now.aborted,
        failed=now.failed,
        wasted_tokens=memory.told_tokens - sum(each.tokens for prompt in prompts for each in prompt.responses),
        is_last=len(memory.dry) == len(now.lanes) and not memory.queue.size and not any(memory.fresh.values()),
    )


def _trained(run: Run) -> TrainedPrompt:
    return TrainedPrompt(run.prompt, run.responses(), run.width, run.waited)


def _checked(memory: Memory, events: tuple[ev.Event, ...]) -> list[tuple[ev.Event, Run | None]]:
    """The events with their runs, if all are legal, in the one order in which simultaneous ones are applied."""
    if len(events) == 1:
        return [(events[0], check(memory, events[0], None))]
    for event in events:
        if type(event) not in _ORDER:
            check(memory, event, None)  # raises: this is no event
    said: Said = {}
    return [(event, check(memory, event, said)) for event in sorted(events, key=_place)]


def _place(event: ev.Event) -> tuple[Any, ...]:
    """A response may be rewarded as it is generated, and a prompt may be done as another of its responses fails."""
    rank = _ORDER[type(event)]
    if isinstance(event, ev.PromptDrawn):
        return rank, event.prompt.order
    if isinstance(event, ev.DataEnded):
        return rank, event.domain
    return (rank,) if isinstance(event, ev.RoundStarted) else (rank, event.request.order)


_APPLY: dict[type[ev.Event], Callable[[TailBatcher, Any, Any, list[Command]], None]] = {
    ev.RoundStarted: TailBatcher._started,
    ev.PromptDrawn: TailBatcher._drawn,
    ev.DataEnded: TailBatcher._data_ended,
    ev.ResponseGenerated: TailBatcher._generated,
    ev.ResponseRewarded: TailBatcher._rewarded,
    ev.ResponseFailed: TailBatcher._failed,
    ev.ResponseAborted: TailBatcher._aborted,
}
_ORDER = {kind: rank for rank, kind in enumerate(_APPLY)}

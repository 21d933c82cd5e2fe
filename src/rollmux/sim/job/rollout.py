"""One round of a job in virtual time: replicas generate, pools score, and the batcher decides which responses win.

The batcher is told at once of all that happens at one instant. Its commands take effect at that instant.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from rollmux.packer.commands import Abort, Batch, Command, Draw, Launch, RoundComplete
from rollmux.packer.events import Event, PromptDrawn, ResponseAborted, ResponseGenerated, ResponseRewarded, RoundStarted
from rollmux.packer.prompt import Request
from rollmux.packer.stream import Replica, RolloutSnapshot, Shrink, StreamPolicy, Unfinished
from rollmux.packer.tail_batcher import TailBatcher
from rollmux.sim.job.engine import Engine
from rollmux.sim.job.machine import rates
from rollmux.sim.job.rewards import Program
from rollmux.sim.job.scorer import Scorer
from rollmux.sim.job.setup import Setup, Source


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """A request with its outcome: the length of the response, and the program in it."""

    request: Request
    prompt_tokens: int
    tokens: int
    program: Program


@dataclass(slots=True)
class Rollout:
    """What happened in a round. Times are seconds since it began."""

    batch: Batch | None = None
    complete_s: float = 0.0
    generated_s: float = 0.0  # when the last response of the batch was made
    launched: int = 0
    ended: int = 0  # responses generated to their end
    preemptions: int = 0
    idle_s: list[float] = field(default_factory=list)  # the time since which each replica has had nothing to do
    made_s: dict[Request, float] = field(default_factory=dict)
    scored_s: dict[Request, float] = field(default_factory=dict)
    freed_s: float = inf  # when half of the replicas went to training
    freed: frozenset[int] = frozenset()


class RoundPlayer:
    """Plays one round."""

    def __init__(
        self,
        setup: Setup,
        source: Source,
        batcher: TailBatcher,
        scorer: Scorer,
        tp: int,
        *,
        wake_s: float,
        beside: bool,
        stream: StreamPolicy | None = None,
        known_lengths: tuple[int, ...] = (),
    ) -> None:
        self.setup, self.source, self.batcher, self.scorer, self.beside = setup, source, batcher, scorer, beside
        self.stream, self.known_lengths, self.tp = stream, known_lengths, tp
        self.now = 0.0
        speed = rates(setup.model, setup.device, tp)
        self.replicas: list[Engine[Response]] = [Engine(speed, setup.slots, wake_s) for _ in range(setup.gpus // tp)]
        self.next_at = [inf] * len(self.replicas)
        self.where: dict[Request, tuple[int, Response]] = {}
        self.unscored: dict[Request, Response] = {}  # generated, to be scored when all are
        self.lost: list[Response] = []  # generated, then out of the race: if scoring comes last they are scored, too
        self.ended: list[Response] = []  # ended at this instant
        self.told = Rollout(idle_s=[0.0] * len(self.replicas))

    def play(self) -> Rollout:
        """Plays from the first launch to the complete batch."""
        self._obey(self.batcher.handle(RoundStarted()))
        while self.told.batch is None:
            self._next()
        self.told.preemptions = sum(replica.preemptions for replica in self.replicas)
        return self.told

    def _next(self) -> None:
        """Plays all that happens at the next instant at which anything happens."""
        now = self.now if self.ended else min(min(self.next_at), self.scorer.next_at())
        if now == inf:
            self._score_all()
            return
        self.now = now
        for i, at in enumerate(self.next_at):
            if at <= now:
                self._touch(i)
        ended, self.ended = self.ended, []
        events: list[Event] = [ResponseGenerated(response.request, response.tokens) for response in ended]
        scored = self.scorer.advance(now)
        events += [ResponseRewarded(request, score) for request, score in scored]
        self.told.scored_s.update((request, now) for request, _ in scored)
        self.told.ended += len(ended)
        for response in ended:
            self.unscored[response.request] = response
            self.told.made_s[response.request] = now
        self._obey(self.batcher.handle(*events))
        if self.beside:
            for request, response in self.unscored.items():
                self.scorer.submit(request, response.program, now)
            self.unscored.clear()
        if ended and self.stream is not None and not self.told.freed and self.told.batch is None:
            self._ask_stream(self.stream, self.told.ended - len(ended))

    def _ask_stream(self, stream: StreamPolicy, before: int) -> None:
        """At its check points the policy may free replicas: their requests move, tokens kept."""
        total = self.setup.prompts * self.setup.responses
        before, ended = min(total, before), min(total, self.told.ended)
        if not stream.due(before, ended, total):
            return
        for i in range(len(self.replicas)):
            self._bring_up(i)
        there = {
            f"{i:04}/{n:04}": (i, r)
            for i, replica in enumerate(self.replicas)
            for n, r in enumerate(replica.requests())
        }
        decision = stream.decide(
            RolloutSnapshot(
                ended,
                total,
                tuple(Replica(f"{i:04}", self.tp, r.rates.room_tokens) for i, r in enumerate(self.replicas)),
                tuple(
                    Unfinished(name, f"{i:04}", r.prompt_tokens, self.replicas[i].tokens_of(r))
                    for name, (i, r) in there.items()
                ),
                self.known_lengths,
            )
        )
        if isinstance(decision, Shrink):
            self._shrink(decision, there)

    def _shrink(self, shrink: Shrink, there: dict[str, tuple[int, Response]]) -> None:
        for move in shrink.moves:
            i, response = there[move.request]
            had, to = self.replicas[i].remove(response), int(move.target)
            self.replicas[to].submit(response, had)
            self.where[response.request] = to, response
        self.told.freed_s, self.told.freed = self.now, frozenset(map(int, shrink.free))
        for i in range(len(self.replicas)):
            self._touch(i)

    def _score_all(self) -> None:
        """Everything is generated: scores one kind of reward after the other, and tells all scores at once."""
        assert self.unscored, "nothing runs, nothing is scored, and yet the round is not complete"
        work = [(request, response.program) for request, response in self.unscored.items()]
        awaited = set(self.unscored)
        self.unscored.clear()
        lost = [(response.request, response.program) for response in self.lost]
        self.now, scores = self.scorer.one_kind_after_the_other(work + lost, self.now)
        wanted = [(request, score) for request, score in scores if request in awaited]
        self.told.scored_s.update((request, self.now) for request, _ in wanted)
        self._obey(self.batcher.handle(*[ResponseRewarded(request, score) for request, score in wanted]))

    def _touch(self, i: int) -> None:
        """Brings a replica up to now."""
        self._bring_up(i)
        replica = self.replicas[i]
        replica.admit()
        self.next_at[i] = replica.next_at()
        if self.next_at[i] == inf:
            self.told.idle_s[i] = self.now

    def _obey(self, commands: Iterable[Command]) -> None:
        answers: list[Event] = []
        touched: set[int] = set()
        for command in commands:
            match command:
                case Draw(count, domain):
                    answers += [PromptDrawn(self.source.draw(domain)) for _ in range(count)]
                case Launch(request):
                    touched.add(self._launch(request))
                case Abort(requests):
                    answers += [ResponseAborted(request, self._stop(request, touched)) for request in requests]
                case RoundComplete(batch):
                    self.told.batch, self.told.complete_s = batch, self.now
                    made = [self.told.made_s[r.request] for p in batch.prompts for r in p.responses]
                    self.told.generated_s = max(made, default=self.now)
        for i in touched:
            self._touch(i)
        if answers:
            self._obey(self.batcher.handle(*answers))

    def _launch(self, request: Request) -> int:
        tokens, program = self.source.response(request.prompt, request.sample, request.round)
        response = Response(request, self.setup.prompt_tokens, tokens, program)
        i = min((i for i in range(len(self.replicas)) if i not in self.told.freed), key=lambda i: self.replicas[i].load)
        self._bring_up(i)
        self.replicas[i].submit(response)
        self.where[request] = (i, response)
        self.told.launched += 1
        return i

    def _stop(self, request: Request, touched: set[int]) -> int:
        """Ends all work for a request; returns the tokens it had."""
        i, response = self.where.pop(request, (-1, None))
        if response is not None:
            self._bring_up(i)
        over = next((each for each in self.ended if each.request == request), None)
        if over is not None:  # it ended at this very instant, which is not told yet
            self.ended.remove(over)
            return over.tokens
        if response is not None:
            touched.add(i)
            return self.replicas[i].remove(response)
        made = self.unscored.pop(request, None)
        self.scorer.cancel(request, self.now)
        if made is None:
            return 0
        self.lost.append(made)
        return made.tokens

    def _bring_up(self, i: int) -> None:
        for response in self.replicas[i].advance(self.now):
            self.where.pop(response.request, None)
            self.ended.append(response)

"""Responses, turn by turn: what the model says, and what it is told between two turns.

A turn is a request of its own to the engines, behind all that came before it. So they know nothing of dialogues, and
whoever drives this hears of whole responses alone.
Invariants: what a response comes to depends neither on how long a reply takes nor on who draws what; before a reply is
there nobody hears of the turn's last token, for it may be the response's last.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from rollmux.packer import Request
from rollmux.runtime.engine import Ended, Event, FinishReason, GenerationRequest, Grown
from rollmux.runtime.rewards import Reply, Told
from rollmux.trainer.errors import NotTaught
from rollmux.trainer.scoring import Scorer
from rollmux.trainer.seeds import derived, response_seed
from rollmux.trainer.settings import Sampling
from rollmux.trainer.tasks import Task, Tokenizer
from rollmux.trainer.workers import Workers

log = logging.getLogger("rollmux")

ENGINE, REPLY = "engine", "reply"
PATIENCE_S = 0.05  # for a reply, where nothing else is to be done: whoever shares the workers waits as long


@dataclass(frozen=True, slots=True)
class Response:
    """What is `said` are the model's texts, and between them what it was told. `tokens` are those of all of them.

    `mask` says which tokens the model drew; others have 0 for log-probability and version. One that `is_cut` has not
    come to its end: the tokens, turns or room that it may have were used up.
    """

    said: tuple[Told, ...] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    mask: tuple[bool, ...] = ()
    is_cut: bool = False

    @property
    def drawn(self) -> int:
        """How many tokens the model drew."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Of a response under way so many tokens are drawn."""

    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Over:
    """A whole response is. `failed` names what did, and nothing where nothing did; `why` says how."""

    id: str
    response: Response
    failed: str = ""
    why: str = ""


Heard = Drawn | Over


def first_turn(name: str, request: Request, task: Task, sampling: Sampling, seed: int) -> GenerationRequest:
    """Of a job with this seed; its engines know the response by this name."""
    return GenerationRequest(
        name,
        task.tokenizer.encode(task.prompt(int(request.prompt.id))),
        sampling.max_tokens,
        sampling.temperature,
        sampling.top_p,
        response_seed(seed, request),
        task.tokenizer.end_tokens,
    )


@dataclass(slots=True)
class _Talk:
    """A response under way. Its first request says what holds for all of it."""

    request: Request
    first: GenerationRequest
    so_far: Response = field(default_factory=Response)
    drawn: int = 0  # in all turns that are over

    @property
    def turns(self) -> int:
        return (len(self.so_far.said) + 1) // 2

    @property
    def length(self) -> int:
        """With the prompt."""
        return len(self.first.prompt) + len(self.so_far.tokens)

    @property
    def left(self) -> int:
        """The tokens that may still be drawn."""
        return self.first.max_tokens - self.drawn


class Turns:
    """Has workers draw turns, and a scorer answer them. A response has `max_turns` at most, and with its prompt at most
    `max_length` tokens.
    """

    def __init__(self, workers: Workers, scorer: Scorer, tokenizer: Tokenizer, max_turns: int, max_length: int) -> None:
        self._workers, self._scorer, self._tokenizer = workers, scorer, tokenizer
        self._max_turns, self._max_length = max_turns, max_length
        self._talks: dict[str, _Talk] = {}
        self._asked: dict[Request, str] = {}  # whose reply is to come
        self._ended: list[str] = []  # in the step that is under way
        self._room_is_told = False

    @property
    def is_idle(self) -> bool:
        """Nothing is drawn, and no reply awaited."""
        return self._workers.is_idle and not self._asked

    def given(self, name: str) -> int:
        """The tokens that the model sees and has not drawn: the prompt's, and what it was told."""
        talk = self._talks[name]
        return talk.length - talk.drawn

    def launch(self, request: Request, first: GenerationRequest) -> None:
        """The first turn of a response."""
        if self._max_turns > 1:
            first = replace(first, rests=True)
        self._talks[first.id] = _Talk(request, first)
        self._workers.launch(first)

    def cancel(self, names: Collection[str]) -> None:
        """They come to no end, and ask nobody any more."""
        self._workers.cancel(names)
        for name in names:
            talk = self._talks.pop(name, None)
            if talk is not None and talk.request in self._asked:
                del self._asked[talk.request]
                self._scorer.cancel([talk.request])

    def step(self) -> list[Heard]:
        """One step of every engine, and the replies that have come."""
        heard = [each for event in self._workers.step() for each in self._hear(event)]
        if self._asked:
            waits = self._workers.is_idle and not heard
            for request, reply in self._scorer.replies(PATIENCE_S if waits else 0.0):
                heard.append(self._go_on(self._asked.pop(request), reply))
        ended, self._ended = self._ended, []
        self._workers.forget(ended)  # of all at once: an engine elsewhere answers when it has done a step
        return heard

    def _hear(self, event: Event) -> list[Heard]:
        talk = self._talks.get(event.id)
        if talk is None:
            return [Drawn(event.id, 0)]  # of one that was cancelled: the engines had something to tell
        if isinstance(event, Grown):
            return [Drawn(event.id, talk.drawn + event.first + len(event.gained.tokens))]
        return [self._turn_is_over(talk, event)]

    def _turn_is_over(self, talk: _Talk, ended: Ended) -> Heard:
        name, turn = ended.id, ended.response
        talk.drawn += len(turn.tokens)
        text = self._tokenizer.decode(turn.tokens)
        talk.so_far = _more(talk.so_far, text, turn.tokens, turn.logprobs, turn.versions, is_drawn=True)
        if ended.reason is FinishReason.FAILED:
            return self._over(name, ENGINE, ended.why)
        if ended.reason is not FinishReason.STOP:
            return self._cut(name, talk.length >= self._max_length and talk.left > 0)
        reply = self._scorer.ask(talk.request, *talk.so_far.said)
        if reply is not None:
            return self._go_on(name, reply)
        self._asked[talk.request] = name
        return Drawn(name, talk.drawn - 1)

    def _go_on(self, name: str, reply: Reply) -> Heard:
        talk = self._talks[name]
        if reply.told is None:
            return self._over(name, REPLY if reply.trouble else "", reply.trouble)
        try:
            told = self._tokenizer.told(reply.told, talk.so_far.tokens[-1])
        except NotTaught as error:  # a reply may be what the response makes of it, and ends no run
            return self._over(name, REPLY, str(error))
        room = min(talk.left, self._max_length - talk.length - len(told))
        if room < 1 or talk.turns == self._max_turns:
            return self._cut(name, talk.left > 0 and talk.turns < self._max_turns)
        prompt = talk.first.prompt + talk.so_far.tokens + told
        nothing = (0,) * len(told)
        talk.so_far = _more(talk.so_far, reply.told, told, tuple(map(float, nothing)), nothing, is_drawn=False)
        seed, rests = derived(talk.first.seed, "turn", talk.turns), talk.turns + 1 < self._max_turns
        self._workers.launch(replace(talk.first, prompt=prompt, max_tokens=room, seed=seed, rests=rests))
        return Drawn(name, talk.drawn)

    def _cut(self, name: str, lacks_room: bool) -> Over:
        """One that lacks nothing but room could have gone on: the first of these is told."""
        talk = self._talks[name]
        if lacks_room and not self._room_is_told:
            self._room_is_told = True
            cut = f"a response was cut off in its turn {talk.turns} for want of room"
            limit = f"with its prompt and replies it may have {self._max_length} tokens"
            limit += " (rollout.max_length, or the model's places)"
            remedy = "give rollout.max_length more, or sampling.max_tokens less"
            log.warning("%s: %s; %s; `cut` in a step's metrics counts all that are cut off", cut, limit, remedy)
        talk.so_far = replace(talk.so_far, is_cut=True)
        return self._over(name)

    def _over(self, name: str, failed: str = "", why: str = "") -> Over:
        self._ended.append(name)
        return Over(name, self._talks.pop(name).so_far, failed, why)


def _more(
    so_far: Response,
    said: Told,
    tokens: tuple[int, ...],
    logprobs: tuple[float, ...],
    versions: tuple[int, ...],
    is_drawn: bool,
) -> Response:
    return Response(
        (*so_far.said, said),
        so_far.tokens + tokens,
        so_far.logprobs + logprobs,
        so_far.versions + versions,
        so_far.mask + (is_drawn,) * len(tokens),
    )

"""Responses, turn by turn: what the model says, and what it is told between two turns.

A turn is a request of its own to the engines, and its prompt is all that came before. So engines know nothing of
dialogues, and the rollout hears only of whole responses.
Invariants: a response's tokens depend neither on how long a reply takes nor on which engine draws what; before a reply
is there nobody hears of the turn's last token, for it may be the response's last.
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
PATIENCE_S = 0.05  # to wait for a reply if there is nothing else to do: a wish to move workers waits as long


@dataclass(frozen=True, slots=True)
class Response:
    """A response, whole or so far. `said` are the model's texts, and between them what it was told. `tokens` are those
    of all of them.

    `mask` says which tokens the model drew; the others have 0 for log-probability and version. A response that `is_cut`
    has not come to its end: the tokens, turns or room that it may have were used up.
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
    """A response under way has drawn so many tokens."""

    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Over:
    """A whole response is over. `failed` names what has failed (empty: nothing), `why` says how."""

    id: str
    response: Response
    failed: str = ""
    why: str = ""


Heard = Drawn | Over


def first_turn(name: str, request: Request, task: Task, sampling: Sampling, seed: int) -> GenerationRequest:
    """The request for the first turn of a response, in a job with this seed. Engines know the response by `name`."""
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
    """A response under way. Its first request has the limits and the settings of all its turns."""

    request: Request
    first: GenerationRequest
    so_far: Response = field(default_factory=Response)
    drawn: int = 0  # in all turns that are over

    @property
    def turns(self) -> int:
        return (len(self.so_far.said) + 1) // 2

    @property
    def length(self) -> int:
        """The tokens of prompt and response."""
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
        self._asked: dict[Request, str] = {}  # responses whose reply is to come
        self._ended: list[str] = []  # responses that ended in the step under way
        self._room_is_told = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being drawn, and no reply awaited."""
        return self._workers.is_idle and not self._asked

    def given(self, name: str) -> int:
        """The tokens that the model sees but has not drawn: those of the prompt and of replies."""
        talk = self._talks[name]
        return talk.length - talk.drawn

    def launch(self, request: Request, first: GenerationRequest) -> None:
        """Launches the first turn of a response."""
        if self._max_turns > 1:
            first = replace(first, rests=True)
        self._talks[first.id] = _Talk(request, first)
        self._workers.launch(first)

    def cancel(self, names: Collection[str]) -> None:
        """Cancels these responses: they never end, and their replies are not asked for any more."""
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
        self._workers.forget(ended)  # all at once: an engine elsewhere answers only after a step
        return heard

    def _hear(self, event: Event) -> list[Heard]:
        talk = self._talks.get(event.id)
        if talk is None:
            return [Drawn(event.id, 0)]  # of a cancelled response: shows that an engine had something to tell
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
        except NotTaught as error:  # the reply may depend on the response, so it must not end the run
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
        """Ends a response that is cut off. The log tells the first that lacked only room, and how to give it more."""
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

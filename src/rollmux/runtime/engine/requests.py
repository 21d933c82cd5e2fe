"""What is asked of an engine and what comes back: plain values that can be pickled and compared.

Invariant: the three records of a response (tokens, log-probabilities, versions) are equally long.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from rollmux.checks import MAX_COUNT, Checks

MAX_TOKEN = 2**31 - 1
MAX_STOPS = 256


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One response to one prompt. A `temperature` of 0 is greedy, and then `top_p` and `seed` decide nothing.

    `seed` and the place in the response decide each draw, and nothing else does.

    `rests`: once a stop token has ended this request, its keys and values stay for a next request of the same id whose
    prompt begins with all of its tokens, as long as nobody else wants the room. Cancel it if none is to come.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    rests: bool = False

    def __post_init__(self) -> None:
        checks = Checks("request")
        if not isinstance(self.id, str) or not self.id:
            checks.report("id", self.id, "a text that is not empty", "give each request a name of its own")
        check_tokens(checks, "prompt", self.prompt)
        if isinstance(self.prompt, tuple) and not self.prompt:
            checks.report("prompt", self.prompt, "at least one token", "begin with the model's first token")
        check_tokens(checks, "stop_tokens", self.stop_tokens, MAX_STOPS)
        checks.whole("max_tokens", self.max_tokens, 1, MAX_COUNT, "give the longest response wanted")
        checks.number("temperature", self.temperature, 0.0, 1e3, "give 0 for greedy, 1 for the model's own")
        if checks.number("top_p", self.top_p, 0.0, 1.0, "give 1 for all tokens") and self.top_p == 0:
            checks.report("top_p", self.top_p, "more than 0", "ask for temperature 0 for greedy")
        checks.whole("seed", self.seed, 0, 2**64 - 1, "give 64 bits")
        checks.require()


def check_tokens(checks: Checks, name: str, tokens: object, most: int = MAX_COUNT) -> bool:
    """Whether this is a tuple of token ids; only the first wrong one is reported."""
    if not isinstance(tokens, tuple) or len(tokens) > most:
        checks.report(name, tokens, f"a tuple of at most {most} token ids", "give whole numbers")
        return False
    wrong = [t for t in tokens if type(t) is not int or not 0 <= t <= MAX_TOKEN]
    if wrong:
        checks.report(name, wrong[0], f"whole numbers from 0 to {MAX_TOKEN}", "give token ids, not text or tensors")
    return not wrong


def several(ids: Iterable[str]) -> tuple[str, ...]:
    """Each id once. A text alone is refused: it would be taken for its letters."""
    if isinstance(ids, str):
        raise Checks("requests").refusal("ids", ids, "several ids", "give them in a list: a text alone is its letters")
    return tuple(dict.fromkeys(ids))


class FinishReason(Enum):
    """Why a response is over."""

    STOP = "stop"  # a stop token came; it is the last of the tokens
    LENGTH = "length"  # the request's own limit
    CANCELLED = "cancelled"  # it was cancelled, or the engine was closed; the tokens that there were are given
    FAILED = "failed"  # the engine can't go on with it; its tokens are given, and must not be scored


@dataclass(frozen=True, slots=True)
class Generated:
    """What there is of a response. A log-probability is the model's own, at temperature 1 and without `top_p`.

    `versions` tells for each token the version of the weights that drew it.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.logprobs) == len(self.versions):
            counts = (len(self.tokens), len(self.logprobs), len(self.versions))
            limit, remedy = "as many as logprobs and versions", "give the three together"
            raise Checks("generated").refusal("tokens", counts, limit, remedy)


@dataclass(frozen=True, slots=True)
class Grown:
    """A response has gained tokens; `first` is the place of the first of them."""

    id: str
    first: int
    gained: Generated


@dataclass(frozen=True, slots=True)
class Ended:
    """A response is over, and this is all of it. Comes exactly once for each request that was not exported."""

    id: str
    reason: FinishReason
    response: Generated
    why: str = ""


Event = Grown | Ended


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A request taken out of an engine, to be continued in this one or another exactly as if it had stayed."""

    request: GenerationRequest
    response: Generated

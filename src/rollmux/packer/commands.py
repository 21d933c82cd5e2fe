"""What the batcher wants done, and the batch in which each round ends."""

from dataclasses import dataclass
from enum import Enum

from rollmux.packer.prompt import Prompt, Request, Response


@dataclass(frozen=True, slots=True)
class Draw:
    """Draw `count` prompts of this domain from the data source. Tell the batcher each one, or that the data ended."""

    count: int
    domain: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Generate this response, then have it rewarded."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop these requests, wherever they are. What becomes of them no longer decides anything."""

    requests: tuple[Request, ...]


class RoundKind(Enum):
    """How a round was run."""

    SHORT = "short"  # more was launched than wanted, and the first to be done were taken
    LONG = "long"  # exactly what was wanted was launched, from the queue first, and all of it ran to its end
    MIXED = "mixed"  # begun as short, then filled up from the queue, as no more prompts could be drawn


@dataclass(frozen=True, slots=True)
class TrainedPrompt:
    """A prompt with exactly the responses wanted, of `launched` at first. It waited `waited` rounds in the queue."""

    prompt: Prompt
    responses: tuple[Response, ...]
    launched: int
    waited: int


@dataclass(frozen=True, slots=True)
class FailedPrompt:
    """A prompt given up, and what was said of its last failure."""

    prompt: Prompt
    why: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What one round came to: `prompts` are trained. They are fewer than wanted only if the data have ended.

    `aborted` and `failed` count responses. `wasted_tokens` are the tokens that the batcher was told of since the last
    batch and that are in no batch. `is_last`: no prompt is left, so a round after this one would train nothing.
    """

    round: int
    kind: RoundKind
    prompts: tuple[TrainedPrompt, ...]
    deferred: tuple[Prompt, ...]  # they lost their race
    diverted: tuple[Prompt, ...]  # they were known to be long, and join the queue without a race
    filtered: tuple[Prompt, ...]
    failed_prompts: tuple[FailedPrompt, ...]
    aborted: int
    failed: int
    wasted_tokens: int
    is_last: bool

    def figures(self) -> dict[str, float]:
        """What a tracker is told of this batch."""
        counts = {
            "long": self.kind is RoundKind.LONG,
            "deferred": len(self.deferred),
            "filtered": len(self.filtered),
            "aborted": self.aborted,
            "failed": self.failed,
            "wasted_tokens": self.wasted_tokens,
        }
        return {name: float(count) for name, count in counts.items()}


@dataclass(frozen=True, slots=True)
class RoundComplete:
    """The round is over: train this batch, then start the next round."""

    batch: Batch


Command = Draw | Launch | Abort | RoundComplete

"""What happens to a job's rollout. `TailBatcher.handle` takes these and nothing else.

An event about a request that was aborted, or about a round that is over, comes late: it is legal and decides nothing.
"""

from dataclasses import dataclass

from rollmux.packer.prompt import Prompt, Request


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """The trainer has fresh weights on the engine and wants the next batch.

    `rounds_left`: how many rounds are to come, with this one. No more prompts are drawn than these rounds train, so no
    prompt waits when the last of them is over. None: the job goes on for as long as there are data.
    """

    rounds_left: int | None = None


@dataclass(frozen=True, slots=True)
class PromptDrawn:
    """The data source gives one of the prompts asked for."""

    prompt: Prompt


@dataclass(frozen=True, slots=True)
class DataEnded:
    """The data source will give no more prompts of this domain, whatever was asked for."""

    domain: str = ""


@dataclass(frozen=True, slots=True)
class ResponseGenerated:
    """The engine has ended a response, which is `tokens` long."""

    request: Request
    tokens: int


@dataclass(frozen=True, slots=True)
class ResponseRewarded:
    """A generated response has its reward."""

    request: Request
    reward: float


@dataclass(frozen=True, slots=True)
class ResponseFailed:
    """The engine or the reward has failed on a response. `tokens`: how many were generated, unless told before."""

    request: Request
    why: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class ResponseAborted:
    """The engine has stopped a response, as it was told to do, after so many tokens."""

    request: Request
    tokens: int


ResponseEvent = ResponseGenerated | ResponseRewarded | ResponseFailed | ResponseAborted
Event = RoundStarted | PromptDrawn | DataEnded | ResponseEvent

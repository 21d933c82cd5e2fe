"""What is trained: prompts, the requests made for them, and scored responses.

A prompt is one occurrence in the data: the same id drawn in the next epoch is another prompt. A request is never made
twice: what is launched again after a failure has another sample number.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """One occurrence of a prompt: its id within its domain, in one epoch."""

    epoch: int
    id: int | str
    domain: str = ""

    @property
    def order(self) -> tuple[int, str, bool, int | str]:
        """Sorts prompts, whatever their ids are made of."""
        return self.epoch, self.domain, isinstance(self.id, str), self.id

    def __lt__(self, other: "Prompt") -> bool:
        return self.order < other.order

    def __str__(self) -> str:
        domain = f" of {self.domain}" if self.domain else ""
        return f"prompt {self.id!r}{domain} in epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class Request:
    """One response asked for. Its seed can be made of round, prompt and sample together."""

    round: int
    prompt: Prompt
    sample: int

    @property
    def order(self) -> tuple[int, tuple[int, str, bool, int | str], int]:
        return self.round, self.prompt.order, self.sample

    def __lt__(self, other: "Request") -> bool:
        return self.order < other.order

    def __str__(self) -> str:
        return f"sample {self.sample} of {self.prompt}, round {self.round}"


@dataclass(frozen=True, slots=True)
class Response:
    """A response that is trained. A reward of zero is a reward."""

    request: Request
    tokens: int
    reward: float

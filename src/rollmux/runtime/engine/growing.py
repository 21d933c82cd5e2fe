"""A response as it grows, for those who keep account of one: its request, and the tokens that it has by now."""

from dataclasses import dataclass, field
from typing import Self

from rollmux.runtime.engine.requests import Generated, GenerationRequest, Unfinished


@dataclass(slots=True, eq=False)
class Growing:
    """A request that is not over."""

    request: GenerationRequest
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, unfinished: Unfinished) -> Self:
        had = unfinished.response
        return cls(unfinished.request, list(had.tokens), list(had.logprobs), list(had.versions))

    def grow(self, gained: Generated) -> None:
        self.tokens += gained.tokens
        self.logprobs += gained.logprobs
        self.versions += gained.versions

    def generated(self, count: int | None = None) -> Generated:
        """The response with so many of its tokens; None: with all of them."""
        return Generated(tuple(self.tokens[:count]), tuple(self.logprobs[:count]), tuple(self.versions[:count]))

    def unfinished(self, count: int | None = None) -> Unfinished:
        return Unfinished(self.request, self.generated(count))

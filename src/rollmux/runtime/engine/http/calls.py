"""What goes over the wire and what comes back, in words that belong to neither server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rollmux.runtime.engine.requests import GenerationRequest


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request. `optional`: older servers don't know it, and go without. `vain`: a refusal does not matter.

    `older`: the path to ask instead if the server answers 404 to `path`.
    `opens`: some servers end if it comes twice before a call that `closes`; it is not sent if one is known to be open.
    """

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False
    opens: bool = False
    closes: bool = False
    vain: bool = False
    older: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of a server that did not refuse."""

    status: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request as it is sent, or what is left of it behind the tokens that are there already."""

    name: str  # no other attempt has it
    request: GenerationRequest
    tokens: tuple[int, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.request.prompt + self.tokens

    @property
    def max_tokens(self) -> int:
        return self.request.max_tokens - len(self.tokens)


class Over(Enum):
    """Why a server stopped."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Piece:
    """One event of a stream. `total`: tokens of this attempt up to the end of this piece, as the server counts."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    total: int | None = None
    prompt_tokens: int | None = None
    version: str | None = None
    over: Over | None = None
    why: str = ""

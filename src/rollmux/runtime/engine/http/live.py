"""One response as it grows over one or several attempts. Pure.

A piece says how many tokens there are up to its end. So tokens that come twice are seen and left out, and missing ones
are seen too: then the attempt is given up, and another one goes on from the last token that is certain.
Invariant: tokens are taken in order, once each, with a log-probability each, under the version that the server has.
"""

import math
from dataclasses import dataclass

from rollmux.runtime.engine.growing import Growing
from rollmux.runtime.engine.http.calls import Attempt, Over, Piece
from rollmux.runtime.engine.http.errors import Unsound
from rollmux.runtime.engine.requests import FinishReason, Generated


@dataclass(slots=True, eq=False)
class Live(Growing):
    """A request that is neither over nor exported."""

    attempt: int = 0  # its number among the attempts of all requests
    begun: int = 0  # tokens that were there when the attempt began
    cuts: int = 0
    not_before_s: float = 0.0  # when the next attempt may begin
    heard_s: float = 0.0  # when the last piece came

    def next_attempt(self, prefix: str) -> Attempt:
        self.attempt += 1
        self.begun = len(self.tokens)
        name = self.request.id.encode(errors="backslashreplace").decode()  # half a surrogate pair can't be sent
        # SGLang aborts all whose names begin with the one given: so a number of its own, and a dash, come first.
        return Attempt(f"{prefix}-{self.attempt}-{name}", self.request, tuple(self.tokens))

    def take(self, piece: Piece, version: int) -> Generated | None:
        """The tokens that are new in a piece; None if some before them are missing."""
        if piece.version is not None and piece.version != str(version):
            raise Unsound(f"the server draws with version {piece.version!r}, the engine has {version}: update it")
        prompt = len(self.request.prompt) + self.begun
        if piece.prompt_tokens not in (None, prompt):
            raise Unsound(f"the server has a prompt of {piece.prompt_tokens} tokens, it was sent {prompt}")
        count = len(piece.tokens)
        if count and piece.total is None:
            raise Unsound("the server does not count its tokens: one that is missing would not be seen")
        first = (piece.total if piece.total is not None else len(self.tokens) - self.begun) - count
        place = self.begun + first
        if first < 0:
            raise Unsound(f"{count} tokens came, {piece.total} in all by the server's count")
        if place > len(self.tokens):
            return None
        before = self.tokens[place : place + count]
        if tuple(before) != piece.tokens[: len(before)]:
            raise Unsound(f"tokens {place} and on were {before}, now they are {piece.tokens[: len(before)]}")
        return self._grow(piece, len(before), version)

    def _grow(self, piece: Piece, known: int, version: int) -> Generated:
        fresh, chances = piece.tokens[known:], piece.logprobs[known:]
        if len(piece.logprobs) != len(piece.tokens):
            raise Unsound(f"{len(piece.tokens)} tokens came with {len(piece.logprobs)} log-probabilities")
        try:
            numbers = tuple(float(each) for each in chances if each is not None and math.isfinite(each))
        except OverflowError:  # a whole number in JSON may have any number of digits
            numbers = ()
        if len(numbers) != len(fresh):
            raise Unsound(f"the log-probabilities {chances} are not all numbers: weights or memory may be damaged")
        if len(self.tokens) + len(fresh) > self.request.max_tokens:
            raise Unsound(f"more than {self.request.max_tokens} tokens came")
        if fresh and (stopped := {*self.tokens[-1:], *fresh[:-1]}.intersection(self.request.stop_tokens)):
            raise Unsound(f"tokens came after the stop token {min(stopped)}")
        gained = Generated(fresh, numbers, (version,) * len(fresh))
        self.grow(gained)
        return gained

    @property
    def whole(self) -> FinishReason | None:
        """How the response is over by its own tokens, whatever the server says; None if it is not."""
        if self.tokens and self.tokens[-1] in self.request.stop_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) == self.request.max_tokens else None

    def ending(self, over: Over, why: str) -> tuple[FinishReason, str]:
        """How the request ends, now that the server says that it is over."""
        last = self.tokens[-1] if self.tokens else None
        if over in (Over.STOP, Over.LENGTH) and (whole := self.whole) is not None:
            return whole, ""
        if over is Over.STOP:
            return FinishReason.FAILED, f"the server stopped at token {last}: name it among `stop_tokens` if it may"
        if over is Over.LENGTH:
            most = self.request.max_tokens
            return FinishReason.FAILED, f"the server's own limit came after {len(self.tokens)} of {most} tokens"
        return FinishReason.FAILED, why or f"the server ended it: {over.value}"

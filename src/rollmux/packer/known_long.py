"""Prompts known to be long from earlier epochs: they go to the queue without a race that they would lose.

One number is remembered for each prompt of the data: the length of the longest response in the latest run that came to
its end, or in a run that was given up since, if a response was seen to be longer there.
"""

from math import inf
from typing import Any

from rollmux.checks import Checks
from rollmux.packer.lengths import Lengths
from rollmux.packer.prompt import Prompt


class KnownLong:
    """Predicts that the longest `share` of the prompts will be long again.

    A round sends no more of them to the queue than it would defer anyway. The race is then between fewer prompts, and
    decides only which others are deferred.
    """

    def __init__(self, share: float = 0.1) -> None:
        checks = Checks("known_long")
        checks.number("share", share, 0.0, 1.0, "0.1 takes the longest tenth for long")
        checks.require()
        self.share = share
        self._longest: dict[tuple[str, int | str], int] = {}
        self._lengths = Lengths()
        self._threshold = inf

    def is_long(self, prompt: Prompt) -> bool:
        return self._longest.get((prompt.domain, prompt.id), -1) >= self._threshold

    def learn(self, prompt: Prompt, tokens: int, is_whole: bool) -> None:
        """Is told the longest response of a run, which came to its end (`is_whole`) or was given up before."""
        key = prompt.domain, prompt.id
        before = self._longest.get(key, 0)
        if not is_whole and tokens <= before:
            return
        if key in self._longest:
            self._lengths.add(before, -1)
        self._lengths.add(tokens)
        self._longest[key] = tokens

    def next_round(self) -> None:
        """From here on predictions use all that was learnt so far."""
        self._threshold = self._lengths.longest(self.share) if self.share else inf

    def state(self) -> Any:
        return {
            "threshold": None if self._threshold == inf else self._threshold,
            "longest": [[*key, tokens] for key, tokens in self._longest.items()],
        }

    def restore(self, state: Any) -> None:
        self._longest = {(domain, identity): tokens for domain, identity, tokens in state["longest"]}
        self._lengths = Lengths()
        for tokens in self._longest.values():
            self._lengths.add(tokens)
        self._threshold = inf if state["threshold"] is None else state["threshold"]

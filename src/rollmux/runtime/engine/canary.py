"""A fixed prompt whose greedy answer must stay the same as long as the weights do.

An engine that wakes up with damaged weights or memory goes on as if nothing had happened, but its canary dies.
Invariant: what `check` compares was learned from the same version of the weights.
"""

from dataclasses import dataclass

from rollmux.runtime.engine.errors import CanaryDied
from rollmux.runtime.engine.seam import Engine


@dataclass(frozen=True, slots=True)
class Canary:
    """What an engine answered when it was known to be sound. Learn it anew after each update of the weights."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    version: int

    @classmethod
    def learn(cls, engine: Engine, prompt: tuple[int, ...], count: int = 16) -> "Canary":
        """Asks an engine that is known to be sound."""
        answer = engine.probe(prompt, count)
        if -1 in answer:
            raise CanaryDied(f"the engine's answer to {prompt} is not a number: load its weights anew")
        return cls(prompt, answer, engine.version)

    def check(self, engine: Engine) -> None:
        """Raises unless the engine, of the same version, still answers the same."""
        if engine.version != self.version:
            raise CanaryDied(
                f"the canary knows version {self.version}, the engine has version {engine.version}: learn it anew "
                "after each update, before the engine sleeps"
            )
        found = engine.probe(self.prompt, len(self.answer))
        if found != self.answer:
            raise CanaryDied(f"the engine answers {found} to {self.prompt}, before it was {self.answer}")

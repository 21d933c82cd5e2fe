"""One prompt in one round: how each of its responses stands, from launch to the end.

A table says which events a response allows. A failed response is launched again with another sample number, `width`
higher, so that the number tells the attempt.
"""

from enum import Enum
from typing import Any

from rollmux.packer.commands import Launch
from rollmux.packer.events import ResponseAborted, ResponseEvent, ResponseFailed, ResponseGenerated, ResponseRewarded
from rollmux.packer.ledger import Outcome
from rollmux.packer.prompt import Prompt, Request, Response


class Stand(Enum):
    """Where a response is."""

    GENERATING = "generating"
    GENERATED = "generated"
    OVER = "over"  # rewarded or failed
    ABORTED = "aborted"

    # Members are singletons, and are looked up on every event: the default hashes the name each time.
    __hash__ = object.__hash__


AFTER: dict[type[ResponseEvent], dict[Stand, Stand]] = {
    ResponseGenerated: {Stand.GENERATING: Stand.GENERATED, Stand.ABORTED: Stand.ABORTED},
    ResponseRewarded: {Stand.GENERATED: Stand.OVER, Stand.ABORTED: Stand.ABORTED},
    ResponseFailed: {
        Stand.GENERATING: Stand.OVER,
        Stand.GENERATED: Stand.OVER,
        Stand.ABORTED: Stand.ABORTED,
    },
    ResponseAborted: {Stand.ABORTED: Stand.ABORTED},
}


class Run:
    """The responses to one prompt, and what is known of them."""

    __slots__ = (
        "alive",
        "domain",
        "outcome",
        "prompt",
        "ready",
        "requests",
        "rewards",
        "round",
        "stands",
        "tokens",
        "waited",
        "why",
        "width",
    )

    def __init__(self, round_number: int, domain: str, prompt: Prompt, width: int, waited: int = 0) -> None:
        self.round = round_number
        self.domain = domain  # of its lane
        self.prompt = prompt
        self.width = width
        self.waited = waited
        self.requests = {sample: Request(round_number, prompt, sample) for sample in range(width)}
        self.stands: dict[int, Stand] = dict.fromkeys(self.requests, Stand.GENERATING)
        self.tokens: dict[int, int] = {}  # by sample, as far as known; of aborted responses the length they had then
        self.rewards: dict[int, float] = {}
        self.alive = width  # responses that may still be trained
        self.ready = 0  # those of them that are generated
        self.outcome: Outcome | None = None
        self.why = ""  # the reason that came with the failure that ended the run

    def launch(self) -> list[Launch]:
        return list(map(Launch, self.requests.values()))

    def relaunch(self, sample: int, retries: int) -> Launch | None:
        """The next attempt at this response, if it has one left."""
        if sample // self.width >= retries:
            return None
        again = sample + self.width
        self.requests[again] = request = Request(self.round, self.prompt, again)
        self.stands[again] = Stand.GENERATING
        self.alive += 1
        return Launch(request)

    def abort(self, *stands: Stand) -> tuple[Request, ...]:
        """Gives up the responses that have one of these stands."""
        losers = [sample for sample, stand in self.stands.items() if stand in stands]
        for sample in losers:
            self.stands[sample] = Stand.ABORTED
        self.alive -= len(losers)
        return tuple(self.requests[sample] for sample in losers)

    def responses(self) -> tuple[Response, ...]:
        """The responses that have a reward, in the order of their sample numbers."""
        return tuple(
            Response(self.requests[sample], self.tokens[sample], reward)
            for sample, reward in sorted(self.rewards.items())
        )

    def unheard(self) -> list[Request]:
        """The aborted responses whose length at that moment is not known yet."""
        return [
            self.requests[sample]
            for sample, stand in self.stands.items()
            if stand is Stand.ABORTED and sample not in self.tokens
        ]

    def state(self) -> dict[str, Any]:
        prompt = self.prompt
        return {
            "domain": self.domain,
            "prompt": [prompt.epoch, prompt.id, prompt.domain],
            "width": self.width,
            "waited": self.waited,
            "stands": [[sample, stand.value] for sample, stand in self.stands.items()],
            "tokens": [[sample, tokens] for sample, tokens in self.tokens.items()],
            "rewards": [[sample, reward] for sample, reward in self.rewards.items()],
            "alive": self.alive,
            "ready": self.ready,
            "outcome": None if self.outcome is None else self.outcome.value,
            "why": self.why,
        }

    @classmethod
    def from_state(cls, round_number: int, state: dict[str, Any]) -> "Run":
        run = cls(round_number, state["domain"], Prompt(*state["prompt"]), state["width"], state["waited"])
        run.stands = {sample: Stand(stand) for sample, stand in state["stands"]}
        run.requests = {sample: Request(round_number, run.prompt, sample) for sample in run.stands}
        run.tokens = dict(state["tokens"])
        run.rewards = dict(state["rewards"])
        run.alive, run.ready = state["alive"], state["ready"]
        run.outcome = None if state["outcome"] is None else Outcome(state["outcome"])
        run.why = state["why"]
        return run

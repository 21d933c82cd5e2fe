"""One round: prompts race for the places of their lane, responses for those of their prompt.

A lane is a domain with its quota. It closes with exactly as many prompts as it wants, each with exactly the responses
wanted, so a batch meets its quotas by construction. Places are taken in the order in which prompts are done: when all
their responses are rewarded, or, where the order of generation decides, when they are generated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rollmux.packer.batching import Race
from rollmux.packer.commands import Abort, Command, RoundKind
from rollmux.packer.ledger import Outcome
from rollmux.packer.prompt import Prompt, Response
from rollmux.packer.run import Run, Stand

Keep = Callable[[tuple[Response, ...]], bool]


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every round."""

    responses: int
    race: Race
    retries: int
    keep: Keep | None


class Lane:
    """The places of one domain, who has them, and who still races for them."""

    __slots__ = ("awaited", "domain", "is_closed", "may_filter", "racing", "seated", "wanted")

    def __init__(self, domain: str, wanted: int, may_filter: int) -> None:
        self.domain = domain
        self.wanted = wanted
        self.may_filter = may_filter  # how many more of its prompts may be filtered
        self.awaited = 0  # prompts that will join the lane once they are drawn
        self.racing: dict[Prompt, Run] = {}
        self.seated: dict[Prompt, Run] = {}
        self.is_closed = False

    @property
    def running(self) -> int:
        return len(self.racing) + len(self.seated)

    @property
    def missing(self) -> int:
        """How many prompts the lane lacks to come to its end."""
        return 0 if self.is_closed else self.wanted - self.running - self.awaited


class Round:
    """The lanes and runs of one round. Runs that are over gather in `ended` until they are booked."""

    __slots__ = (
        "aborted",
        "diverted",
        "ended",
        "failed",
        "kind",
        "lanes",
        "number",
        "open_lanes",
        "runs",
        "terms",
        "width",
    )

    def __init__(self, number: int, kind: RoundKind, width: int, lanes: list[Lane], terms: Terms) -> None:
        self.number = number
        self.kind = kind
        self.width = width  # responses launched for each prompt that races
        self.lanes = {lane.domain: lane for lane in lanes}
        self.terms = terms
        self.open_lanes = len(lanes)
        self.runs: dict[Prompt, Run] = {}
        self.ended: list[Run] = []
        self.diverted: list[Prompt] = []  # sent to the queue without a race
        self.aborted = 0
        self.failed = 0

    def enter(self, lane: Lane, prompt: Prompt, width: int, waited: int, out: list[Command]) -> None:
        """The prompt joins the lane, and its responses are launched."""
        run = Run(self.number, lane.domain, prompt, width, waited)
        self.runs[prompt] = lane.racing[prompt] = run
        out.extend(run.launch())

    def generated(self, run: Run, sample: int, tokens: int, out: list[Command]) -> None:
        run.stands[sample] = Stand.GENERATED
        run.tokens[sample] = tokens
        run.ready += 1
        if run.ready == self.terms.responses and self.terms.race is Race.GENERATED:
            self._abort(run, out, Stand.GENERATING)
            self._seat(run)
            self.judge(self.lanes[run.domain], out)

    def rewarded(self, run: Run, sample: int, reward: float, out: list[Command]) -> None:
        run.stands[sample] = Stand.OVER
        run.rewards[sample] = reward
        if len(run.rewards) == self.terms.responses:
            self._finish(run, out)

    def failed_once(self, run: Run, sample: int, why: str, out: list[Command]) -> None:
        """A response has failed. If it is needed it is launched again; if it can't be, its prompt is given up."""
        self.failed += 1
        run.alive -= 1
        was, run.stands[sample] = run.stands[sample], Stand.OVER
        if was is Stand.GENERATED:
            run.ready -= 1
            self._unseat(run)
            self.judge(self.lanes[run.domain], out)  # another prompt may have the place now
        if run.outcome is not None or run.alive >= self.terms.responses:
            return
        again = run.relaunch(sample, self.terms.retries)
        if again is not None:
            out.append(again)
        else:
            run.why = why
            self._drop(run, Outcome.FAILED, out)

    def judge(self, lane: Lane, out: list[Command]) -> None:
        """Gives up the prompts that can't have a place any more, and closes a lane whose places are taken for good.

        With a filter a place is sure only when its prompt is rewarded: until then the other prompts are the reserve.
        """
        if lane.is_closed or len(lane.seated) < lane.wanted:
            return
        wanted = self.terms.responses
        are_done = all(len(run.rewards) == wanted for run in islice(lane.seated.values(), lane.wanted))
        if not are_done and self.terms.keep is not None:
            return
        lane.awaited = 0
        for run in [*lane.racing.values(), *islice(lane.seated.values(), lane.wanted, None)]:
            self._drop(run, Outcome.DEFERRED, out)
        if are_done:
            lane.is_closed = True
            self.open_lanes -= 1
            for run in lane.seated.values():
                self._end(run, Outcome.TRAINED)

    def sure(self) -> list[Run]:
        """The runs with a place and all of their rewards: no run loses its place then, and nothing of it can fail."""
        wanted = self.terms.responses
        placed = (run for lane in self.lanes.values() for run in islice(lane.seated.values(), lane.wanted))
        return [run for run in placed if len(run.rewards) == wanted]

    def _finish(self, run: Run, out: list[Command]) -> None:
        """The prompt has all the rewards that are wanted: it is seated, or filtered."""
        self._abort(run, out, Stand.GENERATING, Stand.GENERATED)
        lane = self.lanes[run.domain]
        if self._is_worth_it(lane, run):
            self._seat(run)
        else:
            lane.may_filter -= 1
            self._drop(run, Outcome.FILTERED, out)
        self.judge(lane, out)

    def _is_worth_it(self, lane: Lane, run: Run) -> bool:
        """Whether to train the prompt. A lane filters only so many: else a round of a solved task would never end."""
        keep = self.terms.keep
        return keep is None or not lane.may_filter or keep(run.responses())

    def _seat(self, run: Run) -> None:
        lane = self.lanes[run.domain]
        if lane.racing.pop(run.prompt, None) is not None:
            lane.seated[run.prompt] = run

    def _unseat(self, run: Run) -> None:
        lane = self.lanes[run.domain]
        if lane.seated.pop(run.prompt, None) is not None:
            lane.racing[run.prompt] = run

    def _abort(self, run: Run, out: list[Command], *stands: Stand) -> None:
        losers = run.abort(*stands)
        if losers:
            self.aborted += len(losers)
            out.append(Abort(losers))

    def _drop(self, run: Run, outcome: Outcome, out: list[Command]) -> None:
        """The prompt leaves its lane without being trained now."""
        self._abort(run, out, Stand.GENERATING, Stand.GENERATED)
        lane = self.lanes[run.domain]
        lane.racing.pop(run.prompt, None)
        lane.seated.pop(run.prompt, None)
        self._end(run, outcome)

    def _end(self, run: Run, outcome: Outcome) -> None:
        run.outcome = outcome
        self.ended.append(run)

    # -- checkpoint ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        places = {prompt: place for place, prompt in enumerate(self.runs)}
        return {
            "number": self.number,
            "kind": self.kind.value,
            "width": self.width,
            "aborted": self.aborted,
            "failed": self.failed,
            "diverted": [[prompt.epoch, prompt.id, prompt.domain] for prompt in self.diverted],
            "runs": [run.state() for run in self.runs.values()],
            "lanes": [
                {
                    "domain": lane.domain,
                    "wanted": lane.wanted,
                    "awaited": lane.awaited,
                    "may_filter": lane.may_filter,
                    "is_closed": lane.is_closed,
                    "racing": [places[prompt] for prompt in lane.racing],
                    "seated": [places[prompt] for prompt in lane.seated],
                }
                for lane in self.lanes.values()
            ],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], terms: Terms) -> "Round":
        number = state["number"]
        runs = [Run.from_state(number, each) for each in state["runs"]]
        lanes = []
        for each in state["lanes"]:
            lane = Lane(each["domain"], each["wanted"], each["may_filter"])
            lane.awaited, lane.is_closed = each["awaited"], each["is_closed"]
            lane.racing = {runs[place].prompt: runs[place] for place in each["racing"]}
            lane.seated = {runs[place].prompt: runs[place] for place in each["seated"]}
            lanes.append(lane)
        restored = cls(number, RoundKind(state["kind"]), state["width"], lanes, terms)
        restored.runs = {run.prompt: run for run in runs}
        restored.open_lanes = sum(not lane.is_closed for lane in lanes)
        restored.diverted = [Prompt(*fields) for fields in state["diverted"]]
        restored.aborted, restored.failed = state["aborted"], state["failed"]
        return restored

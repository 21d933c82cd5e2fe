"""The tensor-parallel size of each round: runs the planner with this machine's rates and the earlier rounds."""

from collections import deque
from collections.abc import Sequence

from rollmux.packer.parallelism import ParallelismPlanner, PlannerSettings
from rollmux.packer.round_time import DecodeRates, RoundLoad
from rollmux.sim.job.machine import rates
from rollmux.sim.job.rollout import Rollout
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.system import Sizing

SIZES = (1, 2, 4, 8)
# The time of a change of size: to shard the weights anew, capture graphs and build the groups of ranks.
RESIZE_S = 5.0
# How many short rounds are between two long ones, as published. If this is wrong, it is only misjudged when a change of
# size pays for itself.
SHORT_ROUNDS = 4
# How many lengths are remembered of each kind of round.
REMEMBERED = 2048


class Sizes:
    """Chooses a size before each round, and learns from the round."""

    def __init__(self, setup: Setup, sizing: Sizing) -> None:
        self.setup, self.sizing = setup, sizing
        self.planner = planner(setup, RESIZE_S, smallest=setup.tp if sizing is Sizing.PREEMPTIONS else None)
        self._lengths: dict[bool, deque[int]] = {long: deque(maxlen=REMEMBERED) for long in (False, True)}
        self._loads: dict[bool, RoundLoad] = {}

    def choose(self, *, long: bool) -> int:
        """The size for the coming round, which is part of a cycle of rounds."""
        cycle = [long, *[False] * SHORT_ROUNDS] if long else [*[False] * SHORT_ROUNDS, True]
        ahead = [self._loads[kind] for kind in cycle if kind in self._loads]
        if self.sizing is Sizing.PREEMPTIONS:
            self.planner.resized(self.planner.choose().size)
        elif long in self._loads:
            self.planner.resized(self.planner.choose(ahead).size)
        return self.planner.size

    def observe(self, rollout: Rollout, lengths: Sequence[int], *, long: bool) -> None:
        known = self._lengths[long]
        known.extend(lengths)
        needed = min(rollout.launched, max(1, rollout.ended))
        self._loads[long] = RoundLoad(rollout.launched, tuple(known), self.setup.prompt_tokens, needed)
        self.planner.observe(rollout.preemptions, short=not long)


def planner(setup: Setup, resize_s: float = 0.0, smallest: int | None = None) -> ParallelismPlanner:
    """The planner of this job's tensor-parallel size, with the rates of the machine's roofline.

    The published rule knows no times: after quiet rounds it would halve the size again and again, below the one that
    the job was set up with, so that is its smallest. If times are predicted, any size will do that holds the longest
    request.
    """
    rooms = {tp: rates(setup.model, setup.device, tp).room_tokens for tp in SIZES}
    smallest = smallest or next(tp for tp in SIZES if rooms[tp] > setup.cap + setup.prompt_tokens)
    settings = PlannerSettings(setup.gpus, setup.device.per_server, smallest, resize_s)
    return ParallelismPlanner(settings, [decode_rates(setup, tp) for tp in settings.sizes], setup.tp)


def decode_rates(setup: Setup, tp: int) -> DecodeRates:
    """The rates of a size, as the planner needs them."""
    speed = rates(setup.model, setup.device, tp)
    return DecodeRates(
        size=tp,
        kv_room_tokens=speed.room_tokens,
        base_s=speed.base_s,
        per_request_s=speed.sample_s,
        per_kv_token_s=speed.kv_token_s,
        prefill_tokens_per_s=1 / speed.prefill_token_s,
        compute_s=speed.compute_s,
        hidden_s=speed.weights_s,
    )

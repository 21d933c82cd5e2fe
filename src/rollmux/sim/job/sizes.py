"""The tensor-parallel size of each round: the planner, told what this machine does and how earlier rounds went."""

from collections import deque
from collections.abc import Sequence

from rollmux.packer.parallelism import ParallelismPlanner, PlannerSettings
from rollmux.packer.round_time import DecodeRates, RoundLoad
from rollmux.sim.job.machine import rates
from rollmux.sim.job.rollout import Rollout
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.system import Sizing

SIZES = (1, 2, 4, 8)
# To shard the weights anew, capture graphs and build the groups of ranks.
RESIZE_S = 5.0
# Short rounds from one long round to the next, as published; a wrong number here only misjudges when a change of size
# pays for itself.
SHORT_ROUNDS = 4
# Lengths remembered of each kind of round.
REMEMBERED = 2048


class Sizes:
    """Chooses before each round, and learns from it."""

    def __init__(self, setup: Setup, sizing: Sizing) -> None:
        self.setup, self.sizing = setup, sizing
        self.planner = planner(setup, RESIZE_S, smallest=setup.tp if sizing is Sizing.PREEMPTIONS else None)
        self._lengths: dict[bool, deque[int]] = {long: deque(maxlen=REMEMBERED) for long in (False, True)}
        self._loads: dict[bool, RoundLoad] = {}

    def choose(self, *, long: bool) -> int:
        """The size for the coming round, as one of a cycle."""
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
    """The planner of this job's tensor-parallel size, with what the machine's roofline says.

    The published rule knows no times: left alone it would halve, round after quiet round, below the size that the job
    was set up with, so this is its smallest. Where times are predicted, any that holds the longest request will do.
    """
    rooms = {tp: rates(setup.model, setup.device, tp).room_tokens for tp in SIZES}
    smallest = smallest or next(tp for tp in SIZES if rooms[tp] > setup.cap + setup.prompt_tokens)
    settings = PlannerSettings(setup.gpus, setup.device.per_server, smallest, resize_s)
    return ParallelismPlanner(settings, [decode_rates(setup, tp) for tp in settings.sizes], setup.tp)


def decode_rates(setup: Setup, tp: int) -> DecodeRates:
    """What the planner is told of a size."""
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

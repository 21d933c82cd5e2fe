"""The policies that can be simulated, by name."""

from collections.abc import Callable
from dataclasses import dataclass

from rollmux.mux.policies import Policy
from rollmux.mux.policies.paper import PaperPolicy
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.sim.baselines import Solo, gavel, most_idle, random_place


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to run a workload: how to make its policy (from largest group and seed), and how its runs differ."""

    make: Callable[[int, int], Policy]
    max_group: int = 5  # as in the paper
    compaction: bool = False
    paced_only: bool = False
    colocated: bool = False


COLOCATED, RANDOM = "colocated", "random"
# The offline optimum, which is no policy.
OPTIMAL = "optimal"

CONTENDERS: dict[str, Contender] = {
    "solo": Contender(lambda most, seed: Solo()),
    COLOCATED: Contender(lambda most, seed: Solo(name=COLOCATED), colocated=True),
    "gavel": Contender(lambda most, seed: gavel(most), paced_only=True),
    RANDOM: Contender(lambda most, seed: random_place(seed, most)),
    "most-idle": Contender(lambda most, seed: most_idle(most)),
    "paper": Contender(lambda most, seed: PaperPolicy(max_group=most)),
    "rollmux": Contender(lambda most, seed: RollmuxPolicy(max_group=most), max_group=8, compaction=True),
}


def played_paced(policy: str) -> bool:
    """Whether its jobs always go at their forecast pace, so that no phase is played, whatever fidelity is asked for.

    Gavel weaves no phases, and ways to run that are no policy, like the offline optimum, only place jobs.
    """
    return policy not in CONTENDERS or CONTENDERS[policy].paced_only

"""The systems that are compared: which parts of the job tier each has."""

from dataclasses import dataclass
from enum import Enum

from rollmux.packer.batching import Race


class Sizing(Enum):
    """How the tensor-parallel size of a round is chosen."""

    FIXED = "fixed"
    PREEMPTIONS = "preemptions"  # the published rule
    PREDICTION = "prediction"


@dataclass(frozen=True, slots=True)
class System:
    """One way to run a job's steps. Each part can be switched on and off by itself.

    `beside` scores responses while others are still generated, the judge beside the actor; else all are scored when the
    last is done, one kind of reward after the other. `adaptive_timeouts` kills tests by what correct runs have needed.
    `judge_batch` texts are judged in one pass over the judge's layers, which are streamed from host memory either way.
    `stream` frees half of the replicas for training when the others can take their requests; in short rounds it needs
    `stream_short`. With `stream_wide` replicas that run dry later join in, and log-probabilities do not wait for the
    rest of a prompt. `infer_early` computes log-probabilities on replicas that ran dry. `one_update` makes no pass for
    the old policy's log-probabilities: if a batch is one update, its own forward pass gives them.
    """

    name: str
    eta_prompts: float = 1.0
    eta_responses: float = 1.0
    race: Race = Race.GENERATED
    beside: bool = False
    adaptive_timeouts: bool = False
    sizing: Sizing = Sizing.FIXED
    stream: bool = False
    infer_early: bool = False
    one_update: bool = False
    judge_batch: int = 1
    stream_short: bool = True
    stream_wide: bool = False


SYNC = System("sync")
RLHFUSE = System("rlhfuse", beside=True, infer_early=True)
# In the order in which the paper adds its parts.
TAIL = System("tail batching", 1.25, 1.25)
REWARDS = System("and rewards", 1.25, 1.25, Race.REWARDED, beside=True, adaptive_timeouts=True)
PLANNER = System(
    "and planner", 1.25, 1.25, Race.REWARDED, beside=True, adaptive_timeouts=True, sizing=Sizing.PREEMPTIONS
)
ROLLPACKER = System(
    "rollpacker", 1.25, 1.25, Race.REWARDED, beside=True, adaptive_timeouts=True, sizing=Sizing.PREEMPTIONS, stream=True
)
# Ours: see benchmarks/packer.py for what each choice gives.
ROLLMUX = System(
    "rollmux",
    1.2,
    1.5,
    Race.REWARDED,
    beside=True,
    adaptive_timeouts=True,
    sizing=Sizing.PREDICTION,
    stream=True,
    judge_batch=8,
    stream_short=False,
    stream_wide=True,
    one_update=True,
)

SYSTEMS = {system.name: system for system in (SYNC, RLHFUSE, ROLLPACKER, ROLLMUX)}

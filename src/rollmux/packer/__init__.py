"""The job tier: what makes one job's steps shorter without leaving on-policy training. Pure, standard library only.

State machines and policies that any RL framework can import: events come in, commands go out, and neither a clock nor
a random number is read here.
"""

from rollmux.packer.batching import Batching, Race, batching_problems
from rollmux.packer.commands import (
    Abort,
    Batch,
    Command,
    Draw,
    FailedPrompt,
    Launch,
    RoundComplete,
    RoundKind,
    TrainedPrompt,
)
from rollmux.packer.eta import AdaptiveEta, EtaPolicy, Factors, FixedEta
from rollmux.packer.events import (
    DataEnded,
    Event,
    PromptDrawn,
    ResponseAborted,
    ResponseFailed,
    ResponseGenerated,
    ResponseRewarded,
    RoundStarted,
)
from rollmux.packer.gradient_share import GradientShare
from rollmux.packer.judge import JudgeBudget, JudgeModel
from rollmux.packer.known_long import KnownLong
from rollmux.packer.ledger import Account
from rollmux.packer.length_bias import Bias, BiasReport, LengthBias, LengthSummary
from rollmux.packer.parallelism import ParallelismPlanner, PlannerSettings
from rollmux.packer.prompt import Prompt, Request, Response
from rollmux.packer.round import Keep
from rollmux.packer.round_time import DecodeRates, RoundLoad
from rollmux.packer.stream import RolloutSnapshot, StreamPolicy, StreamSettings
from rollmux.packer.tail_batcher import TailBatcher
from rollmux.packer.timeouts import TimeoutPolicy, TimeoutSettings

__all__ = [
    "Abort",
    "Account",
    "AdaptiveEta",
    "Batch",
    "Batching",
    "Bias",
    "BiasReport",
    "Command",
    "DataEnded",
    "DecodeRates",
    "Draw",
    "EtaPolicy",
    "Event",
    "Factors",
    "FailedPrompt",
    "FixedEta",
    "GradientShare",
    "JudgeBudget",
    "JudgeModel",
    "Keep",
    "KnownLong",
    "Launch",
    "LengthBias",
    "LengthSummary",
    "ParallelismPlanner",
    "PlannerSettings",
    "Prompt",
    "PromptDrawn",
    "Race",
    "Request",
    "Response",
    "ResponseAborted",
    "ResponseFailed",
    "ResponseGenerated",
    "ResponseRewarded",
    "RolloutSnapshot",
    "RoundComplete",
    "RoundKind",
    "RoundLoad",
    "RoundStarted",
    "StreamPolicy",
    "StreamSettings",
    "TailBatcher",
    "TimeoutPolicy",
    "TimeoutSettings",
    "TrainedPrompt",
    "batching_problems",
]

"""Rewards: maths answers, code in a sandbox, functions of the caller's, judge models, each within a cap."""

from rollmux.runtime.rewards.judging import Judge, JudgeSettings
from rollmux.runtime.rewards.pool import PoolSettings, RewardPool, Scoring
from rollmux.runtime.rewards.reward import NotScored, Reply, Reward, Status
from rollmux.runtime.rewards.tasks import (
    KINDS,
    AsyncTask,
    Case,
    CodeTask,
    FunctionTask,
    JudgeTask,
    Kind,
    MathsTask,
    Task,
)

__all__ = [
    "KINDS",
    "AsyncTask",
    "Case",
    "CodeTask",
    "FunctionTask",
    "Judge",
    "JudgeSettings",
    "JudgeTask",
    "Kind",
    "MathsTask",
    "NotScored",
    "PoolSettings",
    "Reply",
    "Reward",
    "RewardPool",
    "Scoring",
    "Status",
    "Task",
]

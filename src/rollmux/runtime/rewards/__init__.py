"""Rewards: maths answers, code in a sandbox, functions of the caller's, judge models, each within a cap."""

from rollmux.runtime.rewards.judging import Judge, JudgeSettings
from rollmux.runtime.rewards.pool import PoolSettings, RewardPool, Scoring
from rollmux.runtime.rewards.reward import Message, NotScored, Reply, Reward, Status, Told
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
    "Message",
    "NotScored",
    "PoolSettings",
    "Reply",
    "Reward",
    "RewardPool",
    "Scoring",
    "Status",
    "Task",
    "Told",
]

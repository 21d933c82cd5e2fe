"""RollMux: many RL post-training jobs on shared rollout and training machines."""

__version__ = "0.1.0"

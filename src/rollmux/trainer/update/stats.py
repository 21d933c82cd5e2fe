"""The statistics of an update."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """What one replica has measured of the policy; measurements add up."""

    clipped_tokens: int = 0
    tokens: int = 0
    divergence: float = 0.0  # the sum over tokens of r - 1 - log r
    furthest: float = 0.0  # the largest |log r|
    streamed: int = 0  # samples trained before the batch was complete
    late: int = 0  # samples trained after it

    def __add__(self, other: "Measured") -> "Measured":
        return Measured(
            self.clipped_tokens + other.clipped_tokens,
            self.tokens + other.tokens,
            self.divergence + other.divergence,
            max(self.furthest, other.furthest),
            self.streamed + other.streamed,
            self.late + other.late,
        )


@dataclass(frozen=True, slots=True)
class Stats:
    """One update, over all replicas. `samples` and `tokens` are those that were trained, without dropped groups.

    `divergence` estimates KL(drawn, now) per token and should be near 0 on-policy: else the engine computes otherwise
    than the trainer.
    """

    samples: int
    tokens: int
    dropped_groups: int
    loss: float
    reward_mean: float
    reward_deviation: float
    advantage_deviation: float  # before whitening
    gradient_norm: float
    clipped_part: float  # the part of the tokens that a clip has bound
    divergence: float
    furthest_log_ratio: float
    streamed: int
    late: int

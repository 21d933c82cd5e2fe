"""The outcome of a simulated run: its bill, its jobs, and the history that reports draw. Values only."""

from dataclasses import dataclass

# A job may be this much over its SLO: whole iterations don't end at its last second.
SLO_ROUNDING = 1.001


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job's life. `slowdown` is its mean iteration time over its life against its solo time.

    If its phases were played, its first iteration may take `ramp_s` longer, as it does alone: neither time has that. It
    began again `moves` times because it was moved, and `restarts` times after a fault; it `failed` if it was given up
    in the end. Times are None for a start or an iteration that never came. `refused` says why it was not let into the
    line. `slowdown_at_least` also counts the time after the last iteration that was done: it is the slowdown if one
    more, as long as any may be alone, had ended with the job.
    """

    job: str
    arrival_h: float
    started_h: float | None
    ended_h: float
    iterations: int
    solo_s: float
    iteration_s: float | None
    slowdown: float | None
    slo: float
    group: str
    admission: str  # how it was first placed: direct, rollout_scaling, train_scaling, mixed_scaling, isolated
    moves: int
    restarts: int = 0
    failed: bool = False
    ramp_s: float = 0.0
    refused: str = ""
    slowdown_at_least: float = 0.0

    @property
    def over_slo(self) -> float:
        """Its slowdown over its SLO, which may also be broken by an iteration that was never done."""
        return max(self.slowdown or 0.0, self.slowdown_at_least) / self.slo

    @property
    def met(self) -> bool:
        """Whether the job had a place and its SLO was kept."""
        return bool(self.group) and not self.failed and self.over_slo <= SLO_ROUNDING


@dataclass(frozen=True, slots=True)
class Level:
    """How many nodes and jobs there were, and their price, from this time on until the next level."""

    at_s: float
    rollout_nodes: int
    train_nodes: int
    usd_per_hour: float
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Span:
    """A node at work for a job: in a phase (`rollout`, `train`), its `tail`, or a `switch` before or after it."""

    node: str
    group: str
    job: str
    kind: str
    start_s: float
    end_s: float
    iteration: int


@dataclass(frozen=True, slots=True)
class Admission:
    """One placement decision, with the ways that were tried, in words (`why`)."""

    at_s: float
    job: str
    group: str
    strategy: str
    added_usd_per_hour: float
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolHours:
    """Where the node-hours of one pool went: they add up to `paid`."""

    paid: float
    busy: float  # in a phase, at the speed that it has alone
    switch: float  # loading and offloading
    idle: float  # paid for, but no phase was there: the bubbles


@dataclass(frozen=True)
class Outcome:
    """One policy on one workload. `levels`, `admissions` and `spans` are empty if no history was asked for.

    The bill begins at hour `billed_from_h`: if all nodes are rented, when the first job arrives.
    `fluid_usd` and `whole_node_usd` are limits for the work that was done; the second is 0 if it is not known.
    `moves` and `restarts` are sums over all jobs.
    """

    policy: str
    usd_total: float
    makespan_h: float
    fluid_usd: float
    whole_node_usd: float
    rollout: PoolHours
    train: PoolHours
    peak_rollout: int
    peak_train: int
    moves: int
    jobs: tuple[JobOutcome, ...]
    restarts: int = 0
    decision_ms: tuple[float, ...] = ()
    levels: tuple[Level, ...] = ()
    admissions: tuple[Admission, ...] = ()
    spans: tuple[Span, ...] = ()
    billed_from_h: float = 0.0

    @property
    def billed_h(self) -> float:
        """The hours that the bill is for, to the end of the last job; 0 if no job ever had a place."""
        return max(0.0, self.makespan_h - self.billed_from_h)

    @property
    def slo_attainment(self) -> float:
        """The part of all jobs whose SLO was kept."""
        return sum(job.met for job in self.jobs) / len(self.jobs) if self.jobs else 1.0

"""What the controller shows of a cluster: plain values, for commands, pages and other programs."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class LaneView:
    """The state of one kind of phase of a job."""

    kind: str
    state: str
    iteration: int
    nodes: tuple[str, ...]
    epoch: int
    for_s: float | None = None  # how long its work has gone on
    waits_for: tuple[str, ...] = ()  # jobs that hold what it needs
    expected_s: float | None = None  # how much longer, if that is known


@dataclass(frozen=True, slots=True)
class JobView:
    """One job."""

    job: str
    tenant: str
    state: str
    group: str
    attempt: int
    rollout_nodes: tuple[str, ...]
    train_nodes: tuple[str, ...]
    synced: int
    iterations: int | None
    solo_s: float
    iteration_s: float | None  # the forecast, from what the group's jobs have told or measured of their phases
    recent_s: float | None  # as measured of late
    slowdown: float | None  # so far
    slo: float
    usd_per_hour_alone: float
    lanes: tuple[LaneView, ...] = ()
    reason: str = ""  # why it waits, moves, does nothing yet or has ended
    expected_wait_s: float | None = None
    likely_s: float | None = None  # an iteration, if phases vary on as of late; only if one job is asked for

    @property
    def slo_headroom(self) -> float | None:
        """The part of its SLO that is left; below 0 the job is too slow. None while its pace is not known."""
        return None if self.slowdown is None else 1.0 - self.slowdown / self.slo


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node."""

    node: str
    pool: str
    state: str
    cordoned: bool
    group: str
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All that a caller may see at one moment. Prices are those of the whole cluster."""

    now: float
    seq: int
    jobs: tuple[JobView, ...]
    nodes: tuple[NodeView, ...]
    usd_per_hour: float
    usd_per_hour_alone: float  # of the jobs that have their nodes, were each on nodes of its own
    usd_per_hour_fluid: float  # of the work that is done, at its pace, were no node ever idle
    alarms: tuple[str, ...] = ()
    broken: str = ""
    ended: int = 0  # how many ended jobs are remembered: `jobs` has the latest of them


@dataclass(frozen=True, slots=True)
class Text:
    """Lines for people."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quote:
    """The place that a job would get now, and how much it would add to the cost per hour; or why it would get none."""

    admitted: bool
    group: str
    rollout_nodes: tuple[str, ...]
    train_nodes: tuple[str, ...]
    added_usd_per_hour: float
    alone_usd_per_hour: float
    iteration_s: float | None
    limit_s: float
    lines: tuple[str, ...]
    submitted: bool = False  # the job has been submitted already, and gets no second place


class Standing(Enum):
    """Whether jobs can work with a running controller: only a ready one answers their calls."""

    STARTING = "starting"
    READY = "ready"
    BROKEN = "broken"  # it only answers questions
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Backup:
    """A folder on the controller's machine from which another controller can start, with all records up to `seq`."""

    folder: str
    seq: int


@dataclass(frozen=True, slots=True)
class Health:
    """That the controller runs, and its state."""

    ok: bool
    version: str
    seq: int
    broken: str = ""
    state: Standing = Standing.READY
    unix_s: float = 0.0  # the controller's wall clock

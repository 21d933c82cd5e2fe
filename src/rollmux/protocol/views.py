"""What the controller shows of a cluster: plain values, for commands, pages and other programs."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class LaneView:
    """One kind of phase of a job, as it stands."""

    kind: str
    state: str
    iteration: int
    nodes: tuple[str, ...]
    epoch: int
    for_s: float | None = None  # since when its work has gone on
    waits_for: tuple[str, ...] = ()  # jobs that hold what it needs
    expected_s: float | None = None  # for how long yet, if that can be told


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
    iteration_s: float | None  # forecast, by what its group's jobs have said or measured of their phases
    recent_s: float | None  # as it goes
    slowdown: float | None  # so far
    slo: float
    usd_per_hour_alone: float
    lanes: tuple[LaneView, ...] = ()
    reason: str = ""  # why it waits, moves, does nothing yet or has ended
    expected_wait_s: float | None = None
    likely_s: float | None = None  # an iteration, if phases go on to vary as of late; only where one job is asked for

    @property
    def slo_headroom(self) -> float | None:
        """Which part of what its SLO allows is left; below 0 it is too slow. None while its pace is not known."""
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
    """All that a caller may see at one moment. Prices are of the whole cluster."""

    now: float
    seq: int
    jobs: tuple[JobView, ...]
    nodes: tuple[NodeView, ...]
    usd_per_hour: float
    usd_per_hour_alone: float  # of the jobs that have their nodes, each on its own
    usd_per_hour_fluid: float  # of the work that is done in it, at its pace, were no node ever idle
    alarms: tuple[str, ...] = ()
    broken: str = ""
    ended: int = 0  # jobs that have ended and are remembered, of which `jobs` has the latest


@dataclass(frozen=True, slots=True)
class Text:
    """Lines for people."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quote:
    """The place that a job would get now, and what it would cost more per hour; or why it would get none."""

    admitted: bool
    group: str
    rollout_nodes: tuple[str, ...]
    train_nodes: tuple[str, ...]
    added_usd_per_hour: float
    alone_usd_per_hour: float
    iteration_s: float | None
    limit_s: float
    lines: tuple[str, ...]
    submitted: bool = False  # it has been already, and gets no second place


class Standing(Enum):
    """Whether a controller that lives can be worked with: calls are answered by a ready one alone."""

    STARTING = "starting"
    READY = "ready"
    BROKEN = "broken"  # it can only be looked at
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Backup:
    """A folder on the controller's machine from which another can start, with all records up to this one."""

    folder: str
    seq: int


@dataclass(frozen=True, slots=True)
class Health:
    """That the controller lives, and how it stands."""

    ok: bool
    version: str
    seq: int
    broken: str = ""
    state: Standing = Standing.READY
    unix_s: float = 0.0  # its wall clock

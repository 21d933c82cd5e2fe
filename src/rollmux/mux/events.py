"""What happens to the cluster. `ClusterMachine.handle` takes these and nothing else.

Messages of a job carry its attempt or the epoch of its lease: a message of an older one changes nothing.
"""

from dataclasses import dataclass

from rollmux.mux.hardware import Cluster
from rollmux.mux.job import JobSpec, PhaseKind


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """An owner asks for a job to be run."""

    job: JobSpec


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job's processes are up on their nodes."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobProfiled:
    """The job's phases have been measured: guarded quantiles, in place of the worst case.

    Switches are seconds to move a phase's state onto its nodes and off them, where that has been seen. Bytes are those
    of a phase's state, and the most that a process has had: they are for the owner, and change no plan.
    """

    job_id: str
    attempt: int
    rollout_s: float
    train_s: float
    sync_s: float
    rollout_switch_s: tuple[float, float] | None = None
    train_switch_s: tuple[float, float] | None = None
    rollout_bytes: int | None = None
    train_bytes: int | None = None
    process_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The job has done all its work and its processes are gone."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job's processes have ended before its work was done."""

    job_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobStopped:
    """The launcher confirms that the processes of a stopped attempt are gone."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """The owner wants the job ended."""

    job_id: str


@dataclass(frozen=True, slots=True)
class JobAbandoned:
    """The job's processes are gone before its first lease, and no others have come: it is not tried again."""

    job_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class PhaseRequested:
    """A job is ready for a phase."""

    job_id: str
    attempt: int
    kind: PhaseKind
    iteration: int


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """The phase's state is loaded and its work begins."""

    job_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PhaseProgressed:
    """`done` of a rollout's `total` responses are done."""

    job_id: str
    epoch: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class PhasePaused:
    """The phase has stopped where it can go on later, and its nodes are free."""

    job_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PhaseShrunk:
    """The rollout's tail has moved together: the nodes that it was told to free are free."""

    job_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PhaseFinished:
    """The phase is done; its state is off the nodes, unless the lease let it stay."""

    job_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PhaseFailed:
    """The phase was given up and its nodes are free; the job lives and may ask again."""

    job_id: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class PhaseOffloaded:
    """State that stayed on the nodes after its phase is now off them."""

    job_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The holder of a lease is alive."""

    job_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """Signs of life that came together. Those for leases that are over count for nothing."""

    of: tuple[Heartbeat, ...]


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node is ready for use."""

    node: str
    pool: str


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone, with whatever ran on it."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeCordoned:
    """An operator wants no more jobs put on a node; those on it stay until they end."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeUncordoned:
    """A cordoned node takes jobs again."""

    node: str


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """From now on the cluster is this one: other prices, more memory, more or fewer nodes, and without those `gone`."""

    cluster: Cluster
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: leases and drains that are over are dealt with."""


PhaseEvent = (
    PhaseRequested
    | PhaseStarted
    | PhaseProgressed
    | PhasePaused
    | PhaseShrunk
    | PhaseFinished
    | PhaseFailed
    | PhaseOffloaded
    | Heartbeat
)
JobEvent = JobSubmitted | JobStarted | JobProfiled | JobFinished | JobFailed | JobStopped | JobCancelled | JobAbandoned
NodeEvent = NodeJoined | NodeLost | NodeCordoned | NodeUncordoned
Event = JobEvent | PhaseEvent | Heartbeats | NodeEvent | ClusterChanged | Tick

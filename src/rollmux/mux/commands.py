"""What the machine wants done. A shell carries these out after the event that caused them is durable."""

from dataclasses import dataclass

from rollmux.mux.job import PhaseKind
from rollmux.mux.placed import Placement


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use nodes for one phase, until it is given back, expires or is revoked.

    `epoch` rises with each grant: whatever carries an older one is refused. `load` says that the state must be
    moved in first, `keep` that it may stay when the phase ends because nobody else is pinned to these nodes, `resumed`
    that the phase goes on where it has paused.
    """

    job_id: str
    attempt: int
    kind: PhaseKind
    iteration: int
    epoch: int
    nodes: tuple[str, ...]
    load: bool
    keep: bool
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Admit:
    """The job has a place."""

    job_id: str
    group_id: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Queue:
    """The job has to wait for nodes: its place in line, why, and how long if that can be told."""

    job_id: str
    position: int
    reason: str
    expected_wait_s: float | None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The job can't be taken, for all these reasons."""

    job_id: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the job's processes on its nodes."""

    job_id: str
    attempt: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class Stop:
    """End the processes of this attempt, and say when they are gone."""

    job_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Grant:
    """The phase may begin."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop at the next safe point, keep what is done, say when the nodes are free, and go on when granted again.

    This is a request: a phase that is as good as done may finish instead.
    """

    job_id: str
    epoch: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Extend:
    """A rollout that began on some of its nodes gets these too."""

    job_id: str
    epoch: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shrink:
    """Move the rollout's tail onto `keep` and free the other nodes."""

    job_id: str
    epoch: int
    keep: tuple[str, ...]
    free: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offload:
    """Move state that stayed on the nodes off them: somebody else is pinned there now."""

    job_id: str
    epoch: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Revoke:
    """The lease is over, whatever its holder believes."""

    job_id: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Provision:
    """Get this node."""

    node: str
    pool: str


@dataclass(frozen=True, slots=True)
class ReleaseNode:
    """Give this node back."""

    node: str
    pool: str


Command = (
    Admit
    | Queue
    | Refuse
    | Launch
    | Stop
    | Grant
    | Pause
    | Extend
    | Shrink
    | Offload
    | Revoke
    | Provision
    | ReleaseNode
)

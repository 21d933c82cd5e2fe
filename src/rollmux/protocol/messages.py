"""The messages between a job's processes and the controller. All of them may be repeated, and may come late.

A job *asks* for a phase until it has the lease, *reports* what it did with the lease, and *listens* for orders of the
controller. Each reply holds the whole state that concerns the job, never a change: a lost reply loses nothing.
"""

from dataclasses import dataclass
from enum import Enum

from rollmux.mux.job import PhaseKind

VERSION = 1

# Signs of life in each lease time: all but one may get lost.
SIGNS = 3
# The most characters of a reason for a failure that are passed on.
MOST_REASON = 1000


class Said(Enum):
    """What a job can report about a lease."""

    STARTED = "started"
    PROGRESSED = "progressed"
    PAUSED = "paused"
    SHRUNK = "shrunk"
    FINISHED = "finished"
    FAILED = "failed"
    OFFLOADED = "offloaded"


@dataclass(frozen=True, slots=True)
class Attach:
    """A process of the job attaches. `instance` names this life of the script, here and in its later messages: messages
    of an earlier life may come late. Older clients leave it out of their later messages, which is accepted.
    """

    instance: str
    rank: int = 0
    processes: int = 1
    attempt: int | None = None  # as its launcher said; None if it was started by other means
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Attached:
    """The job has its place; or, with attempt 0, why it waits."""

    attempt: int
    rollout_nodes: tuple[str, ...] = ()
    train_nodes: tuple[str, ...] = ()
    synced: int = 0  # how many iterations are committed: the job goes on with the next
    lease_s: float = 0.0  # how long a lease lasts without a sign of life
    reason: str = ""
    drain_s: float = 0.0  # how long state may take to leave nodes that somebody else needs
    rollout_holds: int = 0  # how many of its nodes a rollout has at once; 0: not told


@dataclass(frozen=True, slots=True)
class Ask:
    """This process is ready for the phase. `finished` are leases it is done with, which may not count yet."""

    attempt: int
    kind: PhaseKind
    iteration: int
    rank: int = 0
    finished: tuple[int, ...] = ()
    wait_s: float = 0.0
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that the job holds now, and the orders to its holder: see `mux.transitions.Phase` for the state."""

    epoch: int
    kind: PhaseKind
    iteration: int
    state: str
    nodes: tuple[str, ...]
    load: bool  # the state must be moved in first
    keep: bool  # the state may stay when the phase ends
    resumed: bool  # the phase goes on where it has paused
    free: tuple[str, ...] = ()  # nodes that a rollout is to free, if it is to shrink
    given_up: str = ""  # why the phase is not going to count: another process of the job has given it up


@dataclass(frozen=True, slots=True)
class Turn:
    """The lease; or why it is not there yet, which jobs hold the nodes, and for how long if that is known."""

    lease: Held | None
    done: bool = False  # the phase was committed before: there is nothing to do
    reason: str = ""
    holders: tuple[str, ...] = ()
    expected_s: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What has become of a lease. `left`: no state of this process is on its nodes any more. FINISHED alone does not
    say so, as state may stay.
    """

    said: Said
    epoch: int
    rank: int = 0
    done: int = 0
    total: int = 0
    reason: str = ""
    instance: str = ""
    left: bool = True


@dataclass(frozen=True, slots=True)
class Heard:
    """Whether the lease still holds, and whether its phase is committed: all its processes have finished in time."""

    holds: bool
    committed: bool


@dataclass(frozen=True, slots=True)
class Listen:
    """The process lives, and holds these leases. The answer comes once there are newer orders than it has `seen`."""

    attempt: int
    epochs: tuple[int, ...] = ()
    rank: int = 0
    finished: tuple[int, ...] = ()
    seen: int = 0
    wait_s: float = 0.0
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Orders:
    """All that the job holds, and whether it is to end. `version` changes with every order; a grant is no order."""

    version: int
    attempt: int
    held: tuple[Held, ...] = ()
    stop: str = ""  # why it is to end, if it is
    lease_s: float = 0.0  # as in Attached, but now: a new controller may have another lease time; 0: not told


@dataclass(frozen=True, slots=True)
class Leave:
    """A process of the job ends: `failed` says why its work is not done. Without a rank this holds for all processes.

    With attempt 0 the process ends before it has heard of its place.
    """

    attempt: int
    failed: str = ""
    rank: int | None = None
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """How long the job's phases really take. Each switch is the seconds to move state onto the nodes, and off them."""

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
class Done:
    """Nothing more to say."""

    ok: bool = True


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call was refused, and everything that is wrong with what it brought."""

    error: str
    problems: tuple[str, ...] = ()

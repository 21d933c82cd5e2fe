"""The two tables that everything live obeys: a phase's states and a job's. `docs/states.md` is made from them.

A pair that is not in its table is illegal: it raises, and nothing changes.
"""

from enum import Enum

from rollmux.errors import IllegalEvent


class _Named(Enum):
    """Members are singletons and looked up on every event; hashing them by name would be half the cost."""

    __hash__ = object.__hash__


class Phase(_Named):
    """Where one kind of phase of one job stands."""

    IDLE = "idle"
    WAITING = "waiting"
    GRANTED = "granted"
    RUNNING = "running"
    PAUSING = "pausing"
    SHRINKING = "shrinking"
    TAIL = "tail"
    PARKED = "parked"
    OFFLOADING = "offloading"
    FENCED = "fenced"


class On(_Named):
    """What moves a phase."""

    REQUEST = "requested"
    GRANT = "its turn comes"
    START = "started"
    PROGRESS = "progressed"
    PAUSE = "a more urgent job would begin too late"
    PAUSED = "paused"
    SHRINK = "tail can move, another job can start"
    SHRUNK = "shrunk"
    FINISH = "finished"
    PARK = "finished, may stay on the nodes"
    EVICT = "another job is pinned to the nodes"
    OFFLOADED = "offloaded"
    FAIL = "failed"
    EXPIRE = "lease expired"
    GONE = "the attempt is gone"


PHASES: dict[tuple[Phase, On], Phase] = {
    (Phase.IDLE, On.REQUEST): Phase.WAITING,
    (Phase.WAITING, On.GRANT): Phase.GRANTED,
    (Phase.GRANTED, On.START): Phase.RUNNING,
    (Phase.GRANTED, On.PAUSE): Phase.PAUSING,
    (Phase.GRANTED, On.FINISH): Phase.IDLE,
    (Phase.GRANTED, On.PARK): Phase.PARKED,
    (Phase.GRANTED, On.FAIL): Phase.IDLE,
    (Phase.GRANTED, On.EXPIRE): Phase.FENCED,
    (Phase.RUNNING, On.PROGRESS): Phase.RUNNING,
    (Phase.RUNNING, On.PAUSE): Phase.PAUSING,
    (Phase.RUNNING, On.SHRINK): Phase.SHRINKING,
    (Phase.RUNNING, On.FINISH): Phase.IDLE,
    (Phase.RUNNING, On.PARK): Phase.PARKED,
    (Phase.RUNNING, On.FAIL): Phase.IDLE,
    (Phase.RUNNING, On.EXPIRE): Phase.FENCED,
    (Phase.PAUSING, On.START): Phase.PAUSING,
    (Phase.PAUSING, On.PROGRESS): Phase.PAUSING,
    (Phase.PAUSING, On.PAUSED): Phase.WAITING,
    (Phase.PAUSING, On.FINISH): Phase.IDLE,
    (Phase.PAUSING, On.PARK): Phase.PARKED,
    (Phase.PAUSING, On.FAIL): Phase.IDLE,
    (Phase.PAUSING, On.EXPIRE): Phase.FENCED,
    (Phase.SHRINKING, On.PROGRESS): Phase.SHRINKING,
    (Phase.SHRINKING, On.SHRUNK): Phase.TAIL,
    (Phase.SHRINKING, On.FINISH): Phase.IDLE,
    (Phase.SHRINKING, On.FAIL): Phase.IDLE,
    (Phase.SHRINKING, On.EXPIRE): Phase.FENCED,
    (Phase.TAIL, On.PROGRESS): Phase.TAIL,
    (Phase.TAIL, On.FINISH): Phase.IDLE,
    (Phase.TAIL, On.FAIL): Phase.IDLE,
    (Phase.TAIL, On.EXPIRE): Phase.FENCED,
    (Phase.PARKED, On.REQUEST): Phase.GRANTED,
    (Phase.PARKED, On.EVICT): Phase.OFFLOADING,
    (Phase.OFFLOADING, On.REQUEST): Phase.OFFLOADING,
    (Phase.OFFLOADING, On.OFFLOADED): Phase.IDLE,
    (Phase.OFFLOADING, On.EXPIRE): Phase.FENCED,
    (Phase.FENCED, On.FINISH): Phase.IDLE,
    (Phase.FENCED, On.FAIL): Phase.IDLE,
    (Phase.FENCED, On.OFFLOADED): Phase.IDLE,
    **{(state, On.GONE): Phase.IDLE for state in Phase},
}

# Phases that hold their nodes, or the right to sync.
HOLDING = frozenset(Phase) - {Phase.IDLE, Phase.WAITING}


class Job(_Named):
    """Where a job stands."""

    QUEUED = "queued"
    PROVISIONING = "provisioning"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class JobOn(_Named):
    """What moves a job."""

    ADMIT = "a place is found"
    NODES_READY = "all its nodes are ready"
    STARTED = "started"
    STOP = "to be ended, moved or restarted"
    CANCEL = "cancelled before it ran"
    ABANDON = "abandoned by its script"
    DISPLACE = "a node is lost before it ran"
    FINISH = "finished"
    RESTART = "failed, attempts left"
    GIVE_UP = "failed, no attempt left"
    GONE_MOVE = "gone, to start again elsewhere"
    GONE_REPLACE = "gone, to find another place"
    GONE_END = "gone, to end"


JOBS: dict[tuple[Job, JobOn], Job] = {
    (Job.QUEUED, JobOn.ADMIT): Job.PROVISIONING,
    (Job.QUEUED, JobOn.CANCEL): Job.ENDED,
    (Job.QUEUED, JobOn.ABANDON): Job.ENDED,
    (Job.PROVISIONING, JobOn.NODES_READY): Job.STARTING,
    (Job.PROVISIONING, JobOn.CANCEL): Job.ENDED,
    (Job.PROVISIONING, JobOn.ABANDON): Job.ENDED,
    (Job.PROVISIONING, JobOn.DISPLACE): Job.QUEUED,
    (Job.STARTING, JobOn.STARTED): Job.RUNNING,
    (Job.STARTING, JobOn.STOP): Job.STOPPING,
    (Job.STARTING, JobOn.RESTART): Job.STARTING,
    (Job.STARTING, JobOn.GIVE_UP): Job.ENDED,
    (Job.STARTING, JobOn.ABANDON): Job.ENDED,
    (Job.RUNNING, JobOn.FINISH): Job.ENDED,
    (Job.RUNNING, JobOn.STOP): Job.STOPPING,
    (Job.RUNNING, JobOn.RESTART): Job.STARTING,
    (Job.RUNNING, JobOn.GIVE_UP): Job.ENDED,
    (Job.RUNNING, JobOn.ABANDON): Job.ENDED,
    (Job.STOPPING, JobOn.FINISH): Job.ENDED,
    (Job.STOPPING, JobOn.RESTART): Job.STARTING,
    (Job.STOPPING, JobOn.GIVE_UP): Job.ENDED,
    (Job.STOPPING, JobOn.GONE_MOVE): Job.PROVISIONING,
    (Job.STOPPING, JobOn.GONE_REPLACE): Job.QUEUED,
    (Job.STOPPING, JobOn.GONE_END): Job.ENDED,
}


def next_phase(state: Phase, on: On, who: object) -> Phase:
    """The phase's next state, or IllegalEvent."""
    following = PHASES.get((state, on))
    if following is None:
        raise IllegalEvent(f"{who} is {state.value}: it can't be {on.value} now")
    return following


def next_job(state: Job, on: JobOn, job_id: str) -> Job:
    """The job's next state, or IllegalEvent."""
    following = JOBS.get((state, on))
    if following is None:
        raise IllegalEvent(f"job {job_id} is {state.value}: {on.value!r} does not apply now")
    return following

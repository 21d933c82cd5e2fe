"""What has happened lately, what it cost, and what happens just now: plain values, for commands, pages, other programs.

Times are seconds of the controller's own clock, as in `now`: it stands still while the controller is away. No value
here names another tenant's job.
"""

from dataclasses import dataclass

import msgspec

ANOTHERS = "another tenant's job"


@dataclass(slots=True)  # not frozen: thousands are made in one go
class UseView:
    """One node while a lease held it: a tail gives some nodes back early, an elastic rollout gets some late."""

    node: str
    began_s: float
    ended_s: float | None  # None: it is still held


@dataclass(slots=True)  # not frozen: thousands are made in one go
class SpanView:
    """One phase under one lease: granted (`began_s`), started once its state was loaded, ended.

    `kind` is rollout, train, sync, or offload (state that had stayed on the nodes had to leave them). `how` it ended is
    finished, paused, failed, fenced (the lease was over before its holder was gone), gone (its attempt ended), or empty
    while it goes on. `fenced` is true from the moment when the lease is over before its holder is gone.
    """

    epoch: int
    job: str
    group: str
    kind: str
    iteration: int
    attempt: int
    uses: tuple[UseView, ...]
    waited_s: float  # from the request, or from the pause before, to the grant
    began_s: float
    started_s: float | None
    ended_s: float | None
    load: bool  # its state had to be moved in first
    resumed: bool
    how: str
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class WaitView:
    """A phase that waits: since when, for which jobs, and until when if that is known."""

    job: str
    kind: str
    iteration: int
    since_s: float
    reason: str
    holders: tuple[str, ...] = ()
    expected_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """Where the node-seconds of one pool went, since accounts are kept: the last five fields add up to all of them."""

    pool: str
    nodes: int
    gpus_per_node: int
    usd_per_hour: float  # of one node
    busy_s: float  # a phase was at work
    switch_s: float  # state was moved in before a phase, or out later
    lost_s: float  # the node was held under a lease that was over
    idle_s: float  # no phase was there, though jobs are pinned to the node: the bubbles
    free_s: float  # no job was pinned to the node


@dataclass(frozen=True, slots=True)
class HistoryView:
    """The phases that were under way at any time since `since_s`, in the order of their ends, and those that wait.

    Phases that ended before `whole_from_s` are missing: they are forgotten, or were not asked for. `seq` is the last
    record of the journal in this view: go on with the record after it in `/v1/events`.
    """

    now: float
    seq: int
    since_s: float
    whole_from_s: float
    spans: tuple[SpanView, ...]
    waits: tuple[WaitView, ...]
    pools: tuple[PoolView, ...]


@dataclass(frozen=True, slots=True)
class HeldView:
    """How much of one pool a job has held."""

    pool: str
    node_hours: float
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class JobBill:
    """What one job has cost: so far, or in its whole life if it has ended.

    `usd` is its part of the cost of its group's nodes while it was pinned to them: the group's jobs share the cost in
    proportion to their prices alone. `alone_usd` is what the same iterations would have cost at the job's solo pace.
    """

    job: str
    tenant: str
    state: str
    how: str  # how it has ended
    submitted_s: float
    ended_s: float | None
    iterations_done: int
    iterations: int | None
    usd: float
    usd_per_hour: float
    alone_usd: float
    alone_usd_per_hour: float
    held: tuple[HeldView, ...]
    slowdown: float | None
    slo: float


@dataclass(frozen=True, slots=True)
class BillView:
    """The bills of the jobs that the caller may see. `usd` is the cost of all nodes while jobs were pinned to them.

    `usd` is the sum over all jobs, with those that the controller has forgotten (`forgotten_usd`). `since_s` is when
    the accounts began: later than the first job only if an older version kept none. `ended` is how many ended jobs are
    remembered; `others_usd` and `others_alone_usd` are the sums over those of them that are not among `jobs`.
    """

    now: float
    seq: int
    since_s: float
    usd: float
    usd_per_hour: float
    forgotten_usd: float
    jobs: tuple[JobBill, ...]
    ended: int = 0
    others_usd: float = 0.0
    others_alone_usd: float = 0.0


class Change(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One thing that has changed. Made at every event, so it is cheap to make; fields with their default are not sent.

    `what` is submitted, job (its `state` and the reason), waiting, granted, started, nodes (those that a phase holds
    from now on), fenced, ended (`state` says how), offloading, node (its `state`), or gone (a node).
    """

    what: str
    job: str = ""
    kind: str = ""
    iteration: int = -1
    epoch: int = 0
    group: str = ""
    nodes: tuple[str, ...] = ()
    state: str = ""
    reason: str = ""
    waited_s: float = 0.0
    attempt: int = 0
    load: bool = False
    resumed: bool = False
    pool: str = ""
    cordoned: bool = False


class News(msgspec.Struct, frozen=True, gc=False):
    """What one record of the journal changed. It is sent only once that record is durable."""

    seq: int
    at: float
    changes: tuple[Change, ...]

"""What has happened lately, what it cost, and what happens just now: plain values, for commands, pages, other programs.

Times are the controller's own seconds, as in `now`: they stand still while it is away. Nothing here says what another
tenant's jobs are called.
"""

from dataclasses import dataclass

import msgspec

ANOTHERS = "another tenant's job"


@dataclass(slots=True)  # not frozen: thousands are made in one go
class UseView:
    """One node while a lease held it; a tail gives some back early, an elastic rollout gets some late."""

    node: str
    began_s: float
    ended_s: float | None  # None: it is held


@dataclass(slots=True)  # not frozen: thousands are made in one go
class SpanView:
    """One phase under one lease: granted, begun once its state was loaded, ended.

    `kind` is rollout, train, sync, or offload: state that had stayed on the nodes had to leave them. `how` is finished,
    paused, failed, fenced (the lease was over before its holder was gone), gone (its attempt ended), or empty while it
    goes on; `fenced` is true from the moment when the lease was over.
    """

    epoch: int
    job: str
    group: str
    kind: str
    iteration: int
    attempt: int
    uses: tuple[UseView, ...]
    waited_s: float  # from its request, or the end of its last part, to the grant
    began_s: float
    started_s: float | None
    ended_s: float | None
    load: bool  # its state had to be moved in first
    resumed: bool
    how: str
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class WaitView:
    """A phase that waits: since when, for whom, and until when if that can be told."""

    job: str
    kind: str
    iteration: int
    since_s: float
    reason: str
    holders: tuple[str, ...] = ()
    expected_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """Where the node-seconds of one pool went, since books are kept: the five add up to all that there were."""

    pool: str
    nodes: int
    gpus_per_node: int
    usd_per_hour: float  # of one node
    busy_s: float  # in a phase
    switch_s: float  # state was moved in before it, or out later
    lost_s: float  # held by somebody whose lease was over
    idle_s: float  # nobody there, though jobs are pinned to the node: the bubbles
    free_s: float  # no job is pinned to it


@dataclass(frozen=True, slots=True)
class HistoryView:
    """The phases that were under way at any time since `since_s`, in the order of their ends, and those that wait.

    `whole_from_s`: what ended before that is forgotten, or more than was asked for. `seq` is the last record that this
    has seen: the next is the one to follow in `/v1/events`.
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
    """What a job has held of one pool."""

    pool: str
    node_hours: float
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class JobBill:
    """One job's whole life, so far or for good.

    `usd` is its part of what its group's nodes cost while it was pinned to them: each tenant bears as much as its price
    alone is of all tenants' prices alone. `alone_usd` is what the same iterations would have cost at its solo pace.
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
    """The bills of the jobs that the caller may see. `usd` is the cluster's: all nodes, while jobs were pinned to them.

    It is the sum over all jobs, of those that are remembered no more (`forgotten_usd`) too. `since_s` is when the books
    were begun: later than the first job only where an older version had no books. Of the jobs that have ended and are
    remembered there are `ended`; what those have come to that are not among `jobs` is in `others_usd` and
    `others_alone_usd`.
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
    """One thing that has changed. Made at every event, so it is cheap to make; what is as usual is not sent.

    `what` is submitted, job (its `state`, and why), waiting, granted, started, nodes (those that a phase holds from now
    on), fenced, ended (`state` says how), offloading, node (its `state`), or gone (a node).
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
    """What one record of the journal changed. Sent only once that is durable."""

    seq: int
    at: float
    changes: tuple[Change, ...]

"""What jobs and pools come to: dollars by job, node-seconds by pool.

Invariant: the jobs' dollars add up to what all nodes cost while jobs were pinned to them; a pool's node-seconds by use
add up to those that there were.
"""

from collections.abc import Iterable

import msgspec

from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.job_record import JobRecord
from rollmux.service.history.spans import BUSY, LOST, SWITCH

HOUR_S = 3600.0


def shares(group: Group, cluster: Cluster) -> dict[str, float]:
    """An hour of a group's nodes, split among its tenants as their prices alone would be: all save the same part."""
    alone = {member.job.id: member.job.usd_per_hour(cluster) for member in group.members}
    whole, usd = sum(alone.values()), group.usd_per_hour(cluster)
    if not whole:
        return dict.fromkeys(alone, usd / len(alone))
    return {job_id: usd * price / whole for job_id, price in alone.items()}


class Account(msgspec.Struct):
    """One job's. What is known of a job that lives is read from its record; it is kept here once the job is over."""

    job: str
    submitted: float
    usd: float = 0.0
    parts: dict[str, float] = {}
    counted_to: float = 0.0
    node_s: dict[str, float] = {}
    state: str = ""  # as was told last
    since: float | None = None  # it is so; where an older release has told it nobody knows
    ended: float | None = None
    how: str = ""
    done: int = 0
    iterations: int | None = None
    solo_s: float = 0.0
    alone_usd_per_hour: float = 0.0
    slowdown: float | None = None
    slo: float = 1.0

    @property
    def usd_per_hour(self) -> float:
        return sum(self.parts.values())

    @property
    def alone_usd(self) -> float:
        return self.done * self.solo_s / HOUR_S * self.alone_usd_per_hour

    def usd_at(self, now: float) -> float:
        return self.usd + self.usd_per_hour * (now - self.counted_to) / HOUR_S

    def settle(self, now: float) -> None:
        self.usd = self.usd_at(now)
        self.counted_to = now

    def follow(self, record: JobRecord, cluster: Cluster) -> None:
        """What the record says now."""
        job = record.job
        self.done, self.iterations = record.progress.synced, job.iterations
        self.slowdown = record.progress.slowdown
        self.solo_s, self.alone_usd_per_hour, self.slo = job.solo_s, job.usd_per_hour(cluster), job.slo


class PoolBook(msgspec.Struct):
    """One pool's node-seconds."""

    used_s: dict[str, float]  # by what was done
    nodes: int = 0  # that there are
    pinned: int = 0  # of these, those that jobs are pinned to
    there_s: float = 0.0
    pinned_s: float = 0.0
    counted_to: float = 0.0

    def settle(self, now: float) -> None:
        self.there_s += self.nodes * (now - self.counted_to)
        self.pinned_s += self.pinned * (now - self.counted_to)
        self.counted_to = now


class Books(msgspec.Struct):
    """All accounts of one cluster."""

    since: float
    accounts: dict[str, Account]
    pools: dict[str, PoolBook]
    usd: float = 0.0  # of all jobs
    usd_per_hour: float = 0.0
    counted_to: float = 0.0
    forgotten_usd: float = 0.0

    @staticmethod
    def begun(cluster: Cluster, now: float) -> "Books":
        pools = {
            pool.name: PoolBook(dict.fromkeys((BUSY, SWITCH, LOST), 0.0), counted_to=now) for pool in cluster.pools
        }
        return Books(now, {}, pools, counted_to=now)

    def used(self, job: str, pool: str, what: str, node_s: float) -> None:
        self.pools[pool].used_s[what] += node_s
        account = self.accounts[job]
        account.node_s[pool] = account.node_s.get(pool, 0.0) + node_s

    def pinned(self, now: float, group_id: str, parts: dict[str, float], before: Iterable[str]) -> None:
        """From now on these jobs bear these parts of a group's hour; `before` are those that may have borne some."""
        for job_id in dict.fromkeys((*before, *parts)):
            account = self.accounts[job_id]
            part = parts.get(job_id)
            if account.parts.get(group_id) == part:
                continue
            account.settle(now)
            if part is None:
                del account.parts[group_id]
            else:
                account.parts[group_id] = part

    def costs(self, now: float, usd_per_hour: float) -> None:
        """From now on all that jobs are pinned to costs so much."""
        if usd_per_hour != self.usd_per_hour:
            self.usd = self.usd_at(now)
            self.counted_to, self.usd_per_hour = now, usd_per_hour

    def usd_at(self, now: float) -> float:
        return self.usd + self.usd_per_hour * (now - self.counted_to) / HOUR_S

    def node_is(self, now: float, pool: str, there: int, pinned: int) -> None:
        """So many nodes more, or less, are there and pinned from now on."""
        book = self.pools[pool]
        book.settle(now)
        book.nodes += there
        book.pinned += pinned

    def forget(self, job_id: str) -> None:
        self.forgotten_usd += self.accounts.pop(job_id).usd

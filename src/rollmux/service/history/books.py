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
    """The price of a group's hour, split among its jobs in proportion to their prices alone: all save the same part."""
    alone = {member.job.id: member.job.usd_per_hour(cluster) for member in group.members}
    whole, usd = sum(alone.values()) or 1.0, group.usd_per_hour(cluster)  # where machines cost nothing, no job does
    return {job_id: usd * price / whole for job_id, price in alone.items()}


class Account(msgspec.Struct):
    """The account of one job. What a living job's record says is read there; it is kept here once the job is over."""

    job: str
    submitted: float
    usd: float = 0.0
    parts: dict[str, float] = {}
    counted_to: float = 0.0
    node_s: dict[str, float] = {}
    state: str = ""  # the job's state that was told last
    since: float | None = None  # since when it is in this state; None if an older release has told it
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
        """Takes over what the record says now."""
        job = record.job
        self.done, self.iterations = record.progress.synced, job.iterations
        self.slowdown = record.progress.slowdown
        self.solo_s, self.alone_usd_per_hour, self.slo = job.solo_s, job.usd_per_hour(cluster), job.slo


class PoolBook(msgspec.Struct):
    """One pool's node-seconds."""

    used_s: dict[str, float]  # by what was done
    nodes: int = 0  # how many there are
    pinned: int = 0  # to how many of these jobs are pinned
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
    usd: float = 0.0  # what all jobs have cost
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
        """From now on these jobs bear these parts of a group's hourly price; `before` may have borne some until now."""
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
        """From now on all nodes that jobs are pinned to cost so much."""
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

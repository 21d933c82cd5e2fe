"""SIGKILL of the leading sender, at moments spread over a transfer, while receivers read their weights all the time."""

import time
from dataclasses import dataclass

from benchmarks.figures.sync_ranks import Ranks, completed, hear, tell, told


@dataclass(frozen=True, slots=True)
class Kill:
    """One death: `at` is the part of the time that the link alone needs."""

    at: float
    crossed: float  # of the model, when it came
    again: float  # of the model, in the next attempt
    looks: int
    served: tuple[int, ...]
    wrong: int

    def row(self) -> dict[str, object]:
        return {
            "killed at": self.at, "crossed": self.crossed, "crossed again": self.again, "looks": self.looks,
            "versions served": "→".join(map(str, self.served)), "half a version": self.wrong,
        }  # fmt: skip


def kills(ranks: Ranks, moments: list[float], ideal_s: float, model_bytes: int) -> list[Kill]:
    """Version after version; each is broken off once, and brought by a sender begun anew."""
    way: dict[str, object] = {"do": "open", "two_stage": True, "delta": False}
    told(ranks.senders, lambda _: {**way, "host": ""})
    addresses = told(ranks.receivers, lambda rank: {**way, "host": ranks.fabric.receiver_host(rank)})
    told(ranks.senders, lambda _: {"do": "publish", "version": 1})
    completed(ranks, {"epoch": 1, "addresses": addresses})
    found = []
    for number, at in enumerate(moments, 1):
        version, before = number + 1, ranks.fabric.crossed()["forth"]
        told(ranks.senders, lambda _: {"do": "publish", "version": version})  # noqa: B023 - called at once
        told(ranks.receivers, lambda _: {"do": "watch"})
        for each in ranks.senders:
            tell(each, {"do": "sync", "epoch": 2 * number, "addresses": addresses})
        time.sleep(at * ideal_s)
        ranks.senders[0].kill()
        for each in ranks.senders[1:]:
            hear(each)  # it fails, or had given all of its part
        dead = ranks.fabric.crossed()["forth"]
        ranks.senders[0] = ranks.start("senders", 0)
        told(ranks.senders[:1], lambda _: {**way, "host": ""})
        told(ranks.senders[:1], lambda _: {"do": "publish", "version": version})  # noqa: B023
        completed(ranks, {"epoch": 2 * number + 1, "addresses": addresses})
        seen = told(ranks.receivers, lambda _: {"do": "seen"})
        if not all(told(ranks.receivers, lambda _: {"do": "check", "version": version})):  # noqa: B023
            raise RuntimeError(f"a receiver does not serve version {version} after the attempt that completed it")
        after = ranks.fabric.crossed()["forth"]
        served = tuple(sorted({each for one in seen for each in one["versions"]}))
        looks, wrong = (sum(one[name] for one in seen) for name in ("looks", "wrong"))
        found.append(Kill(at, (dead - before) / model_bytes, (after - dead) / model_bytes, looks, served, wrong))
    told(ranks.all, lambda _: {"do": "close"})
    return found

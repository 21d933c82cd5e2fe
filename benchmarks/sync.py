"""Weights over a slow link: two stages beside a flat broadcast and an all-gather, with every byte counted.

Ranks are processes in network namespaces of their own, in two clusters that a shaped link joins (jumbo frames, as
between data centres). Bytes are those that the link's own interface has counted, with headers. After every run a
receiver's copy is compared with what was sent. Then the leading sender is killed at moments spread over a transfer.
This needs root and iproute2; without these it says so and ends.
"""

import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures.goals import Goal, show
from benchmarks.figures.slow_link import MTU, NotPermitted, fabric
from benchmarks.figures.sync_kills import kills
from benchmarks.figures.sync_rank import plan_of
from benchmarks.figures.sync_ranks import Ranks, completed, running, told
from benchmarks.harness import arguments, record, table

GOAL_BYTES, GOAL_TIME = 1.02, 1.10
LAST_KILL = 1.1  # of the time that the link alone needs
TWO_STAGE, DELTA, FLAT, GATHER = "two stages", "delta of 1 %", "flat broadcast", "all-gather"
# Tensor and data parallel ranks of the senders and of the receivers.
SHAPES = {"2→2": ((2, 1), (1, 2)), "4→4": ((4, 1), (2, 2)), "2→6": ((2, 1), (1, 6))}


def synced(ranks: Ranks, version: int, *, two_stage: bool = True, delta: bool = False) -> dict[str, float]:
    """Brings a new version. With `delta` what counts is the one after it, in which one word in a hundred differs."""
    way = {"do": "open", "two_stage": two_stage, "delta": delta}
    told(ranks.senders, lambda _: {**way, "host": ""})
    addresses = told(ranks.receivers, lambda rank: {**way, "host": ranks.fabric.receiver_host(rank)})
    found = {}
    for touched in (False, True) if delta else (False,):
        content = {"version": version, "touched": touched}
        told(ranks.senders, lambda _: {"do": "publish", **content})  # noqa: B023 - called at once
        epoch = 2 * version + touched
        found = counted(ranks, lambda: flipped(ranks, epoch, addresses))  # noqa: B023
        if not all(told(ranks.receivers, lambda _: {"do": "check", **content})):  # noqa: B023
            raise RuntimeError(f"a receiver does not serve version {version} as it was sent")
    told(ranks.all, lambda _: {"do": "close"})
    return found


def flipped(ranks: Ranks, epoch: int, addresses: list[Any]) -> float:
    """Seconds from the word to the leader's answer that all receivers serve the version."""
    began = time.perf_counter()
    completed(ranks, {"epoch": epoch, "addresses": addresses})
    return time.perf_counter() - began


def gathered(ranks: Ranks, version: int) -> float:
    """Seconds between two barriers, of the slowest rank."""
    answers = told(ranks.all, lambda _: {"do": "gather", "version": version})
    return float(max(answer["seconds"] for answer in answers))


def counted(ranks: Ranks, run: Callable[[], float]) -> dict[str, float]:
    before = ranks.fabric.crossed()
    seconds = run()
    after = ranks.fabric.crossed()
    return {"seconds": seconds, "forth": after["forth"] - before["forth"], "back": after["back"] - before["back"]}


def sizes_of(name: str, args: Namespace) -> dict[str, object]:
    senders, receivers = SHAPES[name]
    return {"layers": args.layers, "width": args.width, "senders": senders, "receivers": receivers}


def kill_run(name: str, args: Namespace, folder: Path) -> list[dict[str, object]]:
    """The leader dies once in each of so many attempts, the last time about when all has landed."""
    sizes = sizes_of(name, args)
    exchange = plan_of(sizes, True).exchange
    many = len(exchange.senders.ranks), len(exchange.receivers.ranks)
    moments = [(number + 0.5) / args.kills * LAST_KILL for number in range(args.kills)]
    with fabric(*many, args.mbit) as made, running(made, sizes, folder) as ranks:
        found = kills(ranks, moments, exchange.model_bytes * 8 / (args.mbit * 1e6), exchange.model_bytes)
    return [{"ranks": name, **each.row()} for each in found]


def shape_run(name: str, args: Namespace, folder: Path) -> list[dict[str, object]]:
    """All ways in turn, several times, under one shape."""
    sizes = sizes_of(name, args)
    exchange = plan_of(sizes, True).exchange
    ideal_s = exchange.model_bytes * 8 / (args.mbit * 1e6)
    found: dict[str, list[dict[str, float]]] = {TWO_STAGE: [], DELTA: [], FLAT: [], GATHER: []}
    many = len(exchange.senders.ranks), len(exchange.receivers.ranks)
    with fabric(*many, args.mbit) as made, running(made, sizes, folder) as ranks:
        told(ranks.all, lambda rank: {"do": "join", "host": made.sender_host(0), "world": sum(many), "number": rank})
        for turn in range(args.rounds):
            version = 10 * turn
            found[TWO_STAGE].append(synced(ranks, version + 1))
            found[DELTA].append(synced(ranks, version + 2, delta=True))
            found[FLAT].append(synced(ranks, version + 3, two_stage=False))
            found[GATHER].append(counted(ranks, lambda: gathered(ranks, version + 4)))  # noqa: B023
    return [row(name, way, runs, exchange.model_bytes, ideal_s) for way, runs in found.items()]


def row(name: str, way: str, runs: Sequence[dict[str, float]], model_bytes: int, ideal_s: float) -> dict[str, object]:
    taken = median(run["seconds"] for run in runs)
    return {
        "ranks": name,
        "way": way,
        "crossed / model": median(run["forth"] for run in runs) / model_bytes,
        "back / model": median(run["back"] for run in runs) / model_bytes,
        "seconds": taken,
        "time / ideal": taken / ideal_s,
        "worst time / ideal": max(run["seconds"] for run in runs) / ideal_s,
    }


def measure(args: Namespace) -> dict[str, object]:
    rows: list[dict[str, object]] = []
    names = [args.only] if args.only else list(SHAPES)
    folder = Path(tempfile.mkdtemp(prefix="rollmux-sync-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        for name in names:
            rows += shape_run(name, args, folder / name)
        broken_off = [row for name in names for row in kill_run(name, args, folder / f"{name}-killed")]
    finally:
        shutil.rmtree(folder)
    table(rows)
    table(broken_off)
    goals = []
    for name in names:
        ours, *others = (each for each in rows if each["ranks"] == name)
        for other in others:
            times = float(str(other["seconds"])) / float(str(ours["seconds"]))
            print(f"{name}: {other['way']} takes {times:.2f} times as long as two stages")
        goals.append(Goal(f"{name} bytes over the link / model", float(str(ours["crossed / model"])), GOAL_BYTES))
        goals.append(Goal(f"{name} time / (model / link rate)", float(str(ours["time / ideal"])), GOAL_TIME))
    looks, wrong = (sum(int(str(each[name])) for each in broken_off) for name in ("looks", "half a version"))
    goals.append(Goal("part of looks that found a whole version", 1 - wrong / looks, 1.0, at_most=False))
    return {"mtu": MTU, "rows": rows, "kills": broken_off, "goals": show(goals)}


def main() -> None:
    parser = arguments("sync", __doc__)
    parser.add_argument("--mbit", type=int, default=300, help="rate of the slow link, megabits a second")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3, help="of all ways in turn")
    parser.add_argument("--kills", type=int, default=6, help="of the leading sender, under each shape")
    parser.add_argument("--only", choices=SHAPES, help="one shape alone")
    args = parser.parse_args()
    if args.quick:
        args.layers, args.width, args.rounds, args.kills, args.only = 1, 256, 1, 2, "2→2"
    try:
        record("sync", args, lambda: measure(args))
    except NotPermitted as reason:
        print(f"not measured, as this machine does not let us: {reason}")


if __name__ == "__main__":
    main()

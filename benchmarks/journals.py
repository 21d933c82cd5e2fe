"""How long it takes to make a batch of events durable: in a SQLite file, on a PostgreSQL server, and at the least.

All run in turn, on one file system: an append of the same records to each journal, and a write of their bytes to a
plain file with `fdatasync`, which every journal needs. The server is started on this machine, behind a Unix socket: a
network would add its round trip (one for each append). Then old records are removed, a portion at a time: an append
that comes meanwhile waits for one portion at most.
"""

import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

from benchmarks.harness import arguments, percentile, record, table
from rollmux.mux import events as ev
from rollmux.service.journal import Batch, Image, Journal, Record, as_text
from rollmux.service.journal.history import PORTION
from rollmux.service.journal.place import FILE, opened
from tests.service.postgres_server import binaries, running

SIZES = (1, 10, 100)
Append = Callable[[Batch], object]


def events(rng: Random) -> Iterator[ev.Event]:
    """As a live controller has them: mostly signs of life."""
    while True:
        job, epoch = f"job-{rng.randrange(1000)}", rng.randrange(10**6)
        kinds: list[ev.Event] = [ev.PhaseStarted(job, epoch), ev.PhaseFinished(job, epoch)]
        yield rng.choice([*kinds, *[ev.Heartbeat(job, epoch)] * 4])


def batches(rng: Random) -> Callable[[int], Batch]:
    """The next so many records."""
    some, last = events(rng), 0

    def following(size: int) -> Batch:
        nonlocal last
        last += size
        return Batch(tuple(Record(seq, seq / 7, next(some), seq % 2**32) for seq in range(last - size + 1, last + 1)))

    return following


@contextmanager
def journals(folder: Path) -> Iterator[dict[str, Journal]]:
    """A file, and a server where there is one."""
    with closing(opened("", 0)(folder / FILE)) as file:
        if binaries() is None:
            yield {"sqlite": file}
            return
        with running() as server, closing(opened(server.url(), 0)(folder / FILE)) as there:
            yield {"sqlite": file, "postgresql": there}


def bare(folder: Path) -> Append:
    """The bytes alone."""
    file = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append(batch: Batch) -> None:
        os.write(file, "".join(as_text(each.event) for each in batch.records).encode())
        os.fdatasync(file)

    return append


def appended(
    size: int, rounds: int, following: Callable[[int], Batch], kinds: Mapping[str, Append]
) -> list[dict[str, object]]:
    """Each batch to each kind, in turn."""
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + rounds // 10):
        batch = following(size)
        for name, append in kinds.items():
            began = time.perf_counter()
            append(batch)
            if number >= rounds // 10:
                taken[name].append(time.perf_counter() - began)
    least = percentile(taken["fdatasync"], 50)
    return [
        {
            "records": size,
            "kind": name,
            "appends/s": len(found) / sum(found),
            "p50 ms": percentile(found, 50) * 1000,
            "p99 ms": percentile(found, 99) * 1000,
            "p50 over fdatasync": percentile(found, 50) / least,
        }
        for name, found in taken.items()
    ]


def trimmed(journal: Journal, last: int) -> list[float]:
    """Seconds of each portion of all but the last records."""
    for seq in (last - 1, last):
        journal.keep(Image(seq, 1.0, {}))
    taken, more = [], True
    while more:
        began = time.perf_counter()
        more = journal.trim()
        taken.append(time.perf_counter() - began)
    return taken


def measure(args: Namespace) -> dict[str, object]:
    rounds = 20 if args.quick else args.rounds
    with tempfile.TemporaryDirectory() as name, journals(Path(name)) as found:
        following = batches(Random(args.seed))
        kinds = {"fdatasync": bare(Path(name))} | {kind: journal.append for kind, journal in found.items()}
        rows = [row for size in SIZES for row in appended(size, rounds, following, kinds)]
        table(rows)
        last = following(1).records[0].seq - 1
        portions = []
        for kind, journal in found.items():
            taken = trimmed(journal, last)
            figures = {"p50 ms": percentile(taken, 50) * 1000, "p99 ms": percentile(taken, 99) * 1000}
            portions.append({"kind": kind, "records": PORTION, "portions": len(taken), **figures})
        table(portions)
    return {"rows": rows, "portions": portions}


def main() -> None:
    parser = arguments("journals", __doc__)
    parser.add_argument("--rounds", type=int, default=1500, help="appends of each size to each kind")
    args = parser.parse_args()
    record("journals", args, lambda: measure(args))


if __name__ == "__main__":
    main()

"""Warm starts against cold starts, how close moves are to a bare copy of memory, and engines that take turns.

- Moves (`figures/switch_moves.py`): load and offload of SmolLM2-135M's rollout and training state beside bare copies.
- Starts (`figures/switch_starts.py`): a new process against one whose state is on the host.
- Rotations (`figures/switch_rotation.py`): three engines on one device; weights and answers compared after each turn.

All of it runs on the processor, whose working memory is then the device, and on a GPU, too, if there is one.
"""

import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from benchmarks.figures.goals import Goal, show
from benchmarks.figures.switch_jobs import SMALL, SMOLLM2, TINY, written
from benchmarks.figures.switch_moves import FASTEST, MEDIAN, moves
from benchmarks.figures.switch_rotation import ENGINES, rotation
from benchmarks.figures.switch_starts import starts
from benchmarks.harness import Row, arguments, record, table
from rollmux.runtime.residency import Budget, CpuMemory, Memory
from rollmux.runtime.residency.cuda import CudaMemory
from rollmux.runtime.residency.memory import memory_of

GOAL_COPY, GOAL_GPU, GOAL_START, GOAL_ROTATIONS = 0.8, 0.9, 40.0, 200
# Private memory that may come and go with any rotation, of an allocator's own accord; a leak of a chunk in each
# rotation would be far more.
GROWTH_MB = 32.0
LIMIT_BYTES = 12 * 10**9
GIVEN_BACK = "given back"
Kinds = list[tuple[str, Callable[[], Memory]]]


def processors() -> Kinds:
    """How working memory is let go of."""
    return [("reclaimable", lambda: memory_of(torch.device("cpu"))), (GIVEN_BACK, CpuMemory)]


def gpus() -> Kinds:
    return [("GPU", lambda: CudaMemory(torch.device("cuda")))] if torch.cuda.is_available() else []


@contextmanager
def places() -> Iterator[tuple[Budget, Path]]:
    """A budget in shared memory, and a folder on disk."""
    shared = Path(tempfile.mkdtemp(prefix="rollmux-switch-", dir="/dev/shm"))
    try:
        with tempfile.TemporaryDirectory() as disk:
            yield Budget(shared, LIMIT_BYTES), Path(disk)
    finally:
        shutil.rmtree(shared)


def measure(args: Namespace) -> dict[str, object]:
    torch.manual_seed(args.seed)
    own = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    disable_progress_bar()
    shape, small = (TINY, TINY) if args.quick else (SMOLLM2, SMALL)
    rounds, count, turns = (2, 1, 3) if args.quick else (args.rounds, args.starts, args.rotations)
    kinds = [*([] if args.gpu_only else processors()), *gpus()]
    with places() as (budget, folder):
        sides = [(told, make, train) for told, make in kinds for train in (False, True)]
        moved = [row for told, make, train in sides for row in moves(budget, shape, train, make(), told, rounds)]
        show_all(moved)
        files = written(shape, folder)
        begun: list[Row] = []
        for threads in dict.fromkeys((args.threads, own)):
            torch.set_num_threads(threads)
            begun += starts(budget, shape, files, [(told, make()) for told, make in kinds], count)
        torch.set_num_threads(args.threads)
        show_all(begun)
        turned = [rotation(budget, small, [make() for _ in range(ENGINES)], turns, told) for told, make in kinds]
        show_all(turned)
    if not gpus():
        print("there is no GPU here: moves to and from one, starts and turns on it, were left out")
    found = show([*copy_goals(moved), *start_goals(begun, own), *rotation_goals(turned, turns if args.quick else 200)])
    return {"threads": args.threads, "rows": moved, "starts": begun, "rotations": turned, "goals": found}


def show_all(rows: Sequence[Row]) -> None:
    """Rows of different devices may have different columns."""
    for columns in dict.fromkeys(tuple(row) for row in rows):
        table([row for row in rows if tuple(row) == columns])


def copy_goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """By the median turn; loads into memory that was given back by the fastest, since which of the others had to wait
    for the host's pages is chance, and may be most of them."""
    for row in rows:
        told, way = row["working memory"], row["way"]
        limit = GOAL_GPU if told == "GPU" else GOAL_COPY
        over = number(row, FASTEST if (told, way) == (GIVEN_BACK, "load") else MEDIAN)
        yield Goal(f"{way} of {row['state']} state ({told}) over a bare copy", over, limit, False)


def start_goals(rows: Sequence[Row], threads: int) -> Iterator[Goal]:
    """Against files on the disk, for what a cold start can restore; kept gradients it can't. In memory as jobs have it:
    where it is given back, the kernel has to clear all of it first, which takes longer than the copy. With the threads
    that a process has of itself, cold and warm: who starts on a node has all of its cores."""
    for row in rows:
        asked = row["state"] in ("rollout", "train") and row["working memory"] != GIVEN_BACK
        if asked and row["cold from"] == "disk" and row["threads"] == threads:
            name = f"cold over warm start of {row['state']} ({row['working memory']})"
            yield Goal(name, number(row, "cold/warm"), GOAL_START, False)


def rotation_goals(rows: Sequence[Row], rotations: int) -> Iterator[Goal]:
    for row in rows:
        device = row["device"]
        turns, held = number(row, "turns"), number(row, "MB of each") * 1e6 * ENGINES
        yield Goal(f"rotations of three engines ({device})", number(row, "rotations"), rotations, False)
        for name, wrong in (("weights", "turns with other weights"), ("answers", "turns with another answer")):
            right = 1 - number(row, wrong) / turns
            yield Goal(f"part of all turns whose {name} were those that had been left ({device})", right, 1.0, False)
        left = number(row, "device bytes left at most") + number(row, "bytes leaked")
        yield Goal(
            f"part of the device's memory that was free after every offload ({device})", 1 - left / held, 1.0, False
        )
        yield Goal(f"MB grown after the first rotations ({device})", number(row, "MB grown after the first"), GROWTH_MB)


def number(row: Row, name: str) -> float:
    found = row[name]
    assert isinstance(found, int | float)
    return found


def main() -> None:
    parser = arguments("switch", __doc__)
    parser.add_argument("--rounds", type=int, default=12, help="turns of bare copies and moves")
    parser.add_argument("--starts", type=int, default=3, help="cold starts of each kind")
    parser.add_argument("--rotations", type=int, default=GOAL_ROTATIONS)
    parser.add_argument("--gpu-only", action="store_true", help="leave the processor's working memory out")
    parser.add_argument("--threads", type=int, default=1, help="of a copy; starts are timed with all, too")
    args = parser.parse_args()
    record("switch", args, lambda: measure(args))


if __name__ == "__main__":
    main()

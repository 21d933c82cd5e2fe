"""What sandboxed rewards cost: the overhead of a run, runs a second, and the gain and price of adaptive time limits.

The same programs run bare in the same command, in turn with the sandboxed ones.
"""

import asyncio
import os
from argparse import Namespace

from benchmarks.figures import sandbox_overhead, time_limits
from benchmarks.figures.goals import show
from benchmarks.harness import arguments, record, table
from rollmux.runtime.sandbox import Sandbox


async def measured(args: Namespace) -> dict[str, object]:
    runs = 15 if args.quick else args.runs
    at_once = 2 * len(os.sched_getaffinity(0))
    async with Sandbox() as sandbox:
        protections = sandbox.protections.lines()
        timed = await sandbox_overhead.in_turn(sandbox, runs)
        held, fresh = await sandbox_overhead.throughput(sandbox, runs, at_once)
    print(*protections, sep="\n")
    rows = sandbox_overhead.rows(timed)
    table(rows)
    print(f"{at_once} at once: {held:.1f} sandboxed runs/s, {fresh:.1f} bare processes/s, ratio {held / fresh:.2f}")
    limits = await limited(args)
    table(limits)
    return {
        "protections": protections,
        "rows": rows,
        "throughput": {"at_once": at_once, "sandbox_per_s": held, "process_per_s": fresh, "ratio": held / fresh},
        "limits": limits,
        "goals": show(sandbox_overhead.goals(timed)),
    }


async def limited(args: Namespace) -> list[dict[str, object]]:
    """Fixed against adaptive limits; many programs computed, some run."""
    many = time_limits.drawn(20 if args.quick else 2000, 8, args.seed)
    some = time_limits.drawn(2 if args.quick else 50, 4 if args.quick else 8, args.seed)
    scale = 0.02 if args.quick else 0.1
    turns = len(os.sched_getaffinity(0))
    return [time_limits.computed(many, at_once=turns), await time_limits.in_the_sandbox(some, scale, turns)]


def main() -> None:
    parser = arguments("rewards", __doc__)
    parser.add_argument("--runs", type=int, default=1000, help="sandboxed runs, each beside two bare ones")
    args = parser.parse_args()
    record("rewards", args, lambda: asyncio.run(measured(args)))


if __name__ == "__main__":
    main()

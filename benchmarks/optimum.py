"""How long it takes to choose the cheapest partition: by a table of all sets of jobs, and by HiGHS, in turns.

Groups have one to five jobs: all groups of one, and half of the others, each at a random price of whole nodes that is
at most the price of its jobs apart. So many prices are equal, as those of real groups are. The solver's branches are
limited, and it may prove less: both prices are shown.
"""

from argparse import Namespace
from itertools import combinations
from math import ceil
from random import Random

from benchmarks.harness import alternate, arguments, record, table
from rollmux.sim.optimal import Priced, by_solver, by_table

SIZES, QUICK_SIZES = (10, 14, 17, 20), (5, 6)
MAX_GROUP, NODE_USD = 5, 14.8


def columns_of(jobs: int, seed: int) -> list[Priced]:
    """Each job alone, and half of the larger sets."""
    random = Random(f"{seed} {jobs}")
    alone = [random.randint(2, 8) for _ in range(jobs)]  # nodes
    columns: list[Priced] = [((job,), NODE_USD * nodes) for job, nodes in enumerate(alone)]
    for size in range(2, MAX_GROUP + 1):
        for together in combinations(range(jobs), size):
            if random.random() < 0.5:
                apart = sum(alone[job] for job in together)
                columns.append((together, NODE_USD * ceil(apart * random.uniform(0.6, 1.0))))
    return columns


def row_of(jobs: int, args: Namespace) -> dict[str, object]:
    columns = columns_of(jobs, args.seed)
    sets = [(sum(1 << job for job in together), usd) for together, usd in columns]
    found: dict[str, tuple[list[int], float]] = {}

    def by_sets() -> None:
        found["table"] = by_table(sets, jobs)

    def by_branching() -> None:
        found["solver"] = by_solver(columns, args.branches)

    times = alternate(by_sets, by_branching, args.rounds).summary()
    chosen, bound = found["solver"]
    return {
        "jobs": jobs,
        "groups": len(columns),
        "table s": times["a_median_s"],
        "solver s": times["b_median_s"],
        "solver over table": times["ratio_median"],
        "table usd": found["table"][1],
        "solver usd": sum(columns[number][1] for number in chosen),
        "solver's bound": bound,
    }


def main() -> None:
    parser = arguments("optimum", __doc__)
    parser.add_argument("--branches", type=int, default=1000, help="of the solver, at most")
    parser.add_argument("--rounds", type=int, default=3, help="how often each chooses")
    args = parser.parse_args()

    def run() -> dict[str, object]:
        rows = [row_of(jobs, args) for jobs in (QUICK_SIZES if args.quick else SIZES)]
        table(rows)
        return {"rows": rows}

    record("optimum", args, run)


if __name__ == "__main__":
    main()

"""The figures of RollPacker (arXiv 2509.21009), each beside ours, with what the paper leaves unsaid.

Ours are by the job simulator. Its constants are calibrated on figures of 7B/8k and 14B/16k, so what is alike there
shows that one model gives them all; no constant is fitted to 32B/32k.
"""

from os import cpu_count

from benchmarks.figures import eta_table, rollpacker, size_tables, stage_tables, step_tables
from benchmarks.figures.job_runs import Scale, play_all
from benchmarks.figures.parts import shown
from benchmarks.harness import arguments, record

TABLES = (step_tables, eta_table, stage_tables, size_tables)
CYCLE = 5


def main() -> None:
    parser = arguments("rollpacker_tables", __doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each")
    parser.add_argument("--cycles", type=int, default=12, help="cycles of four short rounds and a long one in a run")
    parser.add_argument("--workers", type=int, default=cpu_count() or 1, help="processes at once")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.cycles, args.workers = 1, 1, 1

    def run() -> dict[str, object]:
        steps = CYCLE * args.cycles + args.quick  # the first long round may come a step late
        scale = Scale(range(args.seed, args.seed + args.seeds), steps, args.quick)
        got = play_all((each.cases(scale) for each in TABLES), args.workers)
        made = shown(part for each, ran in zip(TABLES, got, strict=True) for part in each.parts(ran))
        print("\nLeft out:", *(f"{name}: {why}" for name, why in rollpacker.LEFT_OUT.items()), sep="\n  ")
        return {**made, "left_out": rollpacker.LEFT_OUT}

    record("rollpacker_tables", args, run)


if __name__ == "__main__":
    main()

"""The figures of RollPacker (arXiv 2509.21009), each beside ours, with notes on what the paper leaves out.

Ours are from the job simulator. Its constants are calibrated on figures of 7B/8k and 14B/16k: if figures agree there,
this only shows that one model gives them all. No constant is fitted to 32B/32k.
"""

from benchmarks.figures import eta_table, rollpacker, size_tables, stage_tables, step_tables
from benchmarks.figures.job_runs import cycle_arguments, play_all, scale_of
from benchmarks.figures.parts import shown
from benchmarks.harness import record

TABLES = (step_tables, eta_table, stage_tables, size_tables)


def main() -> None:
    args = cycle_arguments("rollpacker_tables", __doc__)

    def run() -> dict[str, object]:
        scale = scale_of(args)
        got = play_all((each.cases(scale) for each in TABLES), args.workers)
        made = shown(part for each, ran in zip(TABLES, got, strict=True) for part in each.parts(ran))
        print("\nLeft out:", *(f"{name}: {why}" for name, why in rollpacker.LEFT_OUT.items()), sep="\n  ")
        return {**made, "left_out": rollpacker.LEFT_OUT}

    record("rollpacker_tables", args, run)


if __name__ == "__main__":
    main()

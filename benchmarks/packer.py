"""What our job tier gains over the published design of RollPacker, at which bias, and how fast its core is.

The job simulator plays the synchronous baseline, the published design, ours, and each part of ours alone, on the same
seeds. Then a recorded history of rounds is given to fresh `TailBatcher`s one event at a time, in turn with the same
loop around nothing.
"""

from os import cpu_count

from benchmarks.figures import packer_tables
from benchmarks.figures.batcher_events import Recorder, replay, walk
from benchmarks.figures.goals import Goal
from benchmarks.figures.job_runs import Scale, play_all
from benchmarks.figures.parts import Part, shown
from benchmarks.harness import alternate, arguments, record
from rollmux.packer.batching import Batching, Quotas

CYCLE = 5
PROMPTS, RESPONSES = 128, 8
LANES: dict[str, Quotas] = {"any prompt": (), "quotas of 42, 42, 44": {"math": 42, "code": 42, "judge": 44}}
GOAL_PER_S = 200_000


def events_per_s(rounds: int, turns: int, seed: int) -> Part:
    """How many events a batcher takes on one core."""
    rows: list[dict[str, object]] = []
    goals = []
    for name, quotas in LANES.items():
        batching = Batching(PROMPTS, RESPONSES, quotas=quotas)
        history = Recorder(batching, seed).record(rounds)
        timed = alternate(lambda: walk(history), lambda: replay(batching, history), turns)  # noqa: B023  called at once
        told = timed.summary()
        rate = len(history) / sorted(timed.b_s)[turns // 2]
        row = {"batches of": name, "events": len(history), "events/s": rate, "best": len(history) / min(timed.b_s)}
        rows.append(row | {"over a bare loop": told["ratio_median"], "rounds": rounds})
        goals.append(Goal(f"TailBatcher, events/s, {name}", rate, GOAL_PER_S, at_most=False))
    words = (
        f"{PROMPTS} x {RESPONSES} responses, factors of 1.25. Medians of {turns} turns; the bare loop calls a function",
        "that does nothing.",
    )
    return Part("Events that a TailBatcher takes", rows, words, goals)


def main() -> None:
    parser = arguments("packer", __doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each")
    parser.add_argument("--cycles", type=int, default=12, help="cycles of four short rounds and a long one in a run")
    parser.add_argument("--workers", type=int, default=cpu_count() or 1, help="processes at once")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.cycles, args.workers = 1, 1, 1

    def run() -> dict[str, object]:
        rounds, turns = (5, 3) if args.quick else (40, 15)
        speed = events_per_s(rounds, turns, args.seed)  # first, while nothing else runs
        steps = CYCLE * args.cycles + args.quick  # the first long round may come a step late
        scale = Scale(range(args.seed, args.seed + args.seeds), steps, args.quick)
        [got] = play_all([packer_tables.cases(scale)], args.workers)
        return shown([*packer_tables.parts(got), speed])

    record("packer", args, run)


if __name__ == "__main__":
    main()

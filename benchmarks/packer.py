"""How much our job tier gains over the published design of RollPacker, with which bias, and how fast its core is.

The job simulator plays the synchronous baseline, the published design, ours, and each part of ours alone, on the same
seeds. Then a recorded history of rounds is given to fresh `TailBatcher`s one event at a time, in turn with the same
loop without a batcher.
"""

from benchmarks.figures import packer_tables
from benchmarks.figures.batcher_events import Recorder, replay, walk
from benchmarks.figures.goals import Goal
from benchmarks.figures.job_runs import cycle_arguments, play_all, scale_of
from benchmarks.figures.parts import Part, shown
from benchmarks.harness import alternate, record
from rollmux.packer.batching import Batching, Quotas

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
    args = cycle_arguments("packer", __doc__)

    def run() -> dict[str, object]:
        rounds, turns = (5, 3) if args.quick else (40, 15)
        speed = events_per_s(rounds, turns, args.seed)  # first, while nothing else runs
        scale = scale_of(args)
        [got] = play_all([packer_tables.cases(scale)], args.workers)
        return shown([*packer_tables.parts(got), speed])

    record("packer", args, run)


if __name__ == "__main__":
    main()

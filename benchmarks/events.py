"""How many events the cluster machine takes per second on one core, and how much it costs to check its promises.

A history of a woven cluster is recorded in virtual time. Then the same events are given to fresh machines: without
checks, with the checks of the event's job after each event, and (on a part of it) with all checks after each event.
Arrivals are part of the history, so placement decisions are too.
"""

from collections.abc import Sequence
from random import Random

from benchmarks.harness import arguments, percentile, record, seconds, table
from benchmarks.populations import PROFILES, draw_job
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Checks, Rules
from rollmux.mux.events import Event
from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.sim.cast import Cast

GOAL_PER_S = 100_000
History = Sequence[tuple[float, Event]]


def recorded(jobs: int, events: int, profile: str, seed: int) -> list[tuple[float, Event]]:
    """What happens to so many jobs from their common arrival on."""
    rng = Random(seed)
    cast = Cast(ClusterMachine(PAPER_CLUSTER, RollmuxPolicy(), Rules(checks=Checks.NONE)))
    cast.keep_history = True
    for i in range(jobs):
        cast.submit(float(i), draw_job(rng, f"job-{i}", profile))
    while len(cast.history) < events:
        cast.run(happenings=1000)
    return [(now, event) for now, event, _ in cast.history[:events]]


def replay(history: History, checks: Checks) -> None:
    """Gives a history to a fresh machine."""
    machine = ClusterMachine(PAPER_CLUSTER, RollmuxPolicy(), Rules(checks=checks))
    handle = machine.handle
    for now, event in history:
        handle(now, event)


def main() -> None:
    parser = arguments("events", __doc__)
    parser.add_argument("--profile", choices=PROFILES, default="mixed")
    args = parser.parse_args()
    jobs, events, rounds = (20, 4000, 2) if args.quick else (100, 300_000, 5)

    def run() -> dict[str, object]:
        history = recorded(jobs, events, args.profile, args.seed)
        part = history[: events // 100]
        rows: list[dict[str, object]] = []
        rates: list[float] = []
        for name, what, checks in (
            ("no checks", history, Checks.NONE),
            ("checks of the job at hand", history, Checks.JOB),
            ("no checks, first part", part, Checks.NONE),
            ("all checks, first part", part, Checks.ALL),
        ):
            taken = [seconds(lambda: replay(what, checks)) for _ in range(rounds)]  # noqa: B023  called at once
            rates.append(len(what) / percentile(taken, 50))
            # Of each pair, the first is without checks.
            share = round(1 - rates[-1] / rates[len(rows) // 2 * 2], 3)
            rows.append({"replay": name, "events": len(what), "events/s": rates[-1], "share in checks": share})
        table(rows)
        print(f"{rates[0] / GOAL_PER_S:.2f} times the goal of {GOAL_PER_S:,} events/s; met: {rates[0] >= GOAL_PER_S}")
        return {"jobs": jobs, "profile": args.profile, "rounds": rounds, "rows": rows, "goal_per_s": GOAL_PER_S}

    record("events", args, run)


if __name__ == "__main__":
    main()

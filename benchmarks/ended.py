"""How much jobs that have ended cost a controller: in looks at the cluster, and with each further job.

The controller is in this process, and is called directly. It has some jobs that live, and many that were submitted and
cancelled. It remembers ten thousand of these, and forgets the oldest with each further one. This compares a look that
shows the latest of them with one that shows all; and a job that comes and goes while few are remembered with one for
which the oldest is forgotten.
"""

import tempfile
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.figures.goals import Goal, show
from benchmarks.harness import alternate, arguments, record, seconds, table
from rollmux.mux import PAPER_CLUSTER, RollmuxPolicy
from rollmux.mux.cluster_state import Rules
from rollmux.protocol.job_file import read_job
from rollmux.service.controller import Controller
from rollmux.service.history.seen import ALL_ENDED
from rollmux.service.journal.sqlite import SqliteJournal
from rollmux.service.recovery import recover
from rollmux.service.views import MOST_ENDED, cluster_view

LIVING, ROUNDS = 100, 20
# A job that comes and goes may take so many times as long, once others are forgotten for it, as before.
GOAL_JOB, GOAL_LOOK = 1.5, 10.0


@contextmanager
def controllers(ended_limit: int) -> Iterator[Controller]:
    with tempfile.TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder) / "journal.db")
        try:
            yield recover(journal, PAPER_CLUSTER, RollmuxPolicy(), Rules(ended_limit=ended_limit))[0]
        finally:
            journal.close()


class Crowd:
    """Jobs that come, live on, and go."""

    def __init__(self, controller: Controller) -> None:
        self.controller, self.count, self.now = controller, 0, 0.0

    def comes(self) -> str:
        self.count, self.now = self.count + 1, self.now + 1.0
        phase = {"duration_s": 100.0 + self.count % 50, "nodes": 1}
        submission = read_job({"name": f"job-{self.count}", "slo": 2.0, "rollout": phase, "train": phase})
        self.controller.submit(self.now, "team", submission)
        return submission.job.id

    def comes_and_goes(self) -> None:
        name = self.comes()
        self.controller.cancel(self.now, name)
        self.controller.take()  # what would be written


def looked(crowd: Crowd, most_ended: int) -> bytes:
    """The whole answer, as it is sent."""
    steps, found = cluster_view(crowd.controller, crowd.now, None, "", most_ended), deque[object](maxlen=1)

    def taken() -> Iterator[None]:
        found.append((yield from steps))

    deque(taken(), maxlen=0)
    return msgspec.json.encode(found[0])


def measure(args: Namespace) -> dict[str, object]:
    remembered, rounds = (200, 5) if args.quick else (10_000, ROUNDS)
    with controllers(remembered) as controller:
        crowd = Crowd(controller)
        for _ in range(LIVING):
            crowd.comes()
        early_s = [seconds(crowd.comes_and_goes) for _ in range(rounds)]
        for _ in range(remembered - rounds):
            crowd.comes_and_goes()
        assert len(controller.ended(None)) == remembered
        late_s = [seconds(crowd.comes_and_goes) for _ in range(rounds)]
        looks = alternate(lambda: looked(crowd, MOST_ENDED), lambda: looked(crowd, ALL_ENDED), rounds)
        sizes = {most: len(looked(crowd, most)) for most in (MOST_ENDED, ALL_ENDED)}
    rows: list[dict[str, object]] = [
        {"what": f"a look with the latest {MOST_ENDED}", "ms": 1e3 * median(looks.a_s), "kB": sizes[MOST_ENDED] / 1e3},
        {"what": f"a look with all {remembered}", "ms": 1e3 * median(looks.b_s), "kB": sizes[ALL_ENDED] / 1e3},
        {"what": "a job that comes and goes, at first", "ms": 1e3 * median(early_s), "kB": None},
        {"what": "one for which the oldest is forgotten", "ms": 1e3 * median(late_s), "kB": None},
    ]
    table(rows)
    shorter, longer = median(looks.b_s) / median(looks.a_s), median(late_s) / median(early_s)
    goals = [
        Goal("times as long as with the latest a look with all takes", shorter, GOAL_LOOK, at_most=False),
        Goal("times as long as at first a job takes for which the oldest is forgotten", longer, GOAL_JOB),
    ]
    return {"living": LIVING, "remembered": remembered, "rows": rows, "looks": looks.summary(), "goals": show(goals)}


def main() -> None:
    args = arguments("ended", __doc__).parse_args()
    record("ended", args, lambda: measure(args))


if __name__ == "__main__":
    main()

"""A real controller that is killed, as by SIGKILL, right before or right after every so many records of its journal."""

import argparse
import os
import signal
from pathlib import Path

from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service.journal import Batch, Journal
from rollmux.service.journal.place import opened
from rollmux.service.local.launcher import ProcessLauncher
from rollmux.service.serve import Service, Wanted, run
from tests.service.serving import PAIR, RULES


def dying(journal: Journal, left: int, before: bool) -> Journal:
    """Ends its own process once it has been given so many records."""
    append = journal.append

    def append_and_die(batch: Batch) -> None:
        nonlocal left
        left -= len(batch.records)
        if before and left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        append(batch)
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    journal.append = append_and_die  # type: ignore[method-assign]
    return journal


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--records", type=int, default=10**9)
    parser.add_argument("--before", action="store_true")
    parser.add_argument("--journal", default="")
    args = parser.parse_args()
    place = opened(args.journal)
    wanted = Wanted(PAIR, RollmuxPolicy(), args.folder, RULES, port=args.port)
    run(Service(wanted, ProcessLauncher(args.folder), lambda path: dying(place(path), args.records, args.before)))


if __name__ == "__main__":
    main()

"""A real controller that is killed, as by SIGKILL, right before or right after every so many records of its journal.

Each life is a fresh process, forked from one that has imported everything and done nothing else: that saves most of a
start, of which there are hundreds. How each has ended is printed.
"""

import argparse
import ctypes
import os
import signal
from pathlib import Path

from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service.journal import Batch, Journal
from rollmux.service.journal.place import opened
from rollmux.service.local.launcher import ProcessLauncher
from rollmux.service.serve import Service, Wanted, run
from tests.service.serving import PAIR, RULES

_PR_SET_PDEATHSIG = 1
prctl = ctypes.CDLL(None).prctl


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

    def journal(path: Path) -> Journal:
        return dying(place(path), args.records, args.before)

    wanted = Wanted(PAIR, RollmuxPolicy(), args.folder, RULES, port=args.port)
    while True:
        life = os.fork()
        if life == 0:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            run(
                Service(
                    wanted, ProcessLauncher(args.folder), lambda path: dying(place(path), args.records, args.before)
                )
            )
            return
        ended = os.waitstatus_to_exitcode(os.waitpid(life, 0)[1])
        print(ended, flush=True)


if __name__ == "__main__":
    main()

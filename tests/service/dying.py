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
from rollmux.service.journal import Batch, SqliteJournal
from rollmux.service.local.launcher import ProcessLauncher
from rollmux.service.serve import Service, Wanted, run
from tests.service.serving import PAIR, RULES

_PR_SET_PDEATHSIG = 1
prctl = ctypes.CDLL(None).prctl


class DyingJournal(SqliteJournal):
    """Ends its own process once it has been given so many records."""

    left = 10**9
    before = False

    def append(self, batch: Batch) -> None:
        DyingJournal.left -= len(batch.records)
        if self.before and DyingJournal.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().append(batch)
        if DyingJournal.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--records", type=int, default=10**9)
    parser.add_argument("--before", action="store_true")
    args = parser.parse_args()
    DyingJournal.left, DyingJournal.before = args.records, args.before
    wanted = Wanted(PAIR, RollmuxPolicy(), args.folder, RULES, port=args.port)
    while True:
        life = os.fork()
        if life == 0:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            run(Service(wanted, ProcessLauncher(args.folder), DyingJournal))
            return
        ended = os.waitstatus_to_exitcode(os.waitpid(life, 0)[1])
        print(ended, flush=True)


if __name__ == "__main__":
    main()

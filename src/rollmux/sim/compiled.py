"""Phases played in C, where there was a compiler: the same outcome to the last bit, several times as fast.

It leaves out only what a replay does not need: the single events and commands of plain phases, and the log.
"""

from collections.abc import Callable
from heapq import heappush
from importlib import import_module
from types import ModuleType

from rollmux.mux.commands import Grant, Lease, Pause
from rollmux.mux.events import PhaseFinished, PhaseRequested
from rollmux.mux.job import PhaseKind, PhaseSpec
from rollmux.mux.job_record import JobRecord
from rollmux.mux.order import DEBT, Turns
from rollmux.mux.seat import RECENT_PART, Lane, Progress, Seat
from rollmux.mux.transitions import Job, Phase
from rollmux.mux.weave import Ledger, Timing, Weave
from rollmux.sim.books import Books, PoolBook
from rollmux.sim.cast import Act, Actor, Cast, End, as_planned

# What the C code uses: classes whose slots it reads and writes, values that it compares by identity, and functions.
_KNOWN: dict[str, object] = {
    **{
        each.__name__: each
        for each in (
            *(Act, Actor, End, Lease, JobRecord, Progress, Lane, Seat, Weave, Turns, Ledger, Timing),
            *(PoolBook, PhaseSpec, Grant, Pause, PhaseRequested, PhaseFinished, heappush, as_planned),
        )
    },
    **{kind.name: kind for kind in PhaseKind},
    **{phase.name: phase for phase in Phase},
    "RUNS": Job.RUNNING,
}


def found_in_c() -> ModuleType | None:
    """The compiled module, if it was built."""
    try:
        found = import_module("rollmux.sim._phases")
    except ImportError:
        return None
    found.bind(_KNOWN, RECENT_PART, DEBT)
    return found


_IN_C = found_in_c()
IS_COMPILED = _IN_C is not None


def hasten(cast: Cast, books: Books) -> None:
    """From here on the cast plays plain phases in C, if it can. Nothing but these books may listen to it."""
    if cast.observer is not books or cast.keep_history or type(cast) is not Cast:
        raise ValueError("somebody would miss what is played in C: only a replay's own cast and books may be hastened")
    if _IN_C is None:
        return
    state, kinds = cast.machine.state, books.kinds
    end: Callable[[float, Actor, Act], bool] = _IN_C.Phases(
        cast=cast,
        state=state,
        ledger=state.ledger,
        jobs=state.jobs,
        weaves=state.weaves,
        actors=cast.actors,
        completed=cast.completed,
        active_s=cast.active_s,
        heap=cast.heap,
        numbers=cast.numbers,
        takes=cast.takes,
        mover=cast.machine.mover,
        books=books,
        rollout_book=books.pools[kinds[PhaseKind.ROLLOUT]],
        train_book=books.pools[kinds[PhaseKind.TRAIN]],
        rollout_wanted=books.wanted[PhaseKind.ROLLOUT],
        train_wanted=books.wanted[PhaseKind.TRAIN],
        history=books.history,
    ).end
    cast.played_in_c = end

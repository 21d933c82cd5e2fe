"""The fastest play by urgency that this installation has: in C where there was a compiler, else in Python.

Both give the same to the last bit (docs/design/compiled.md), so nothing but time depends on which it is.
"""

from collections.abc import Callable
from importlib import import_module

from rollmux.mux.order import AIM, DEBT, PATIENCE
from rollmux.mux.play import MOST_ITERATIONS, JobPlay, Played
from rollmux.mux.urgent_play import CLEAR, CLEAR_FROM, HOPELESS, HOPELESS_FROM, TRIAL_TURNS, urgent_play

Jobs = tuple[JobPlay, ...]
Rules = tuple[float, int, int, float, int, float, int, int, int]
InC = Callable[[Jobs, int, tuple[float, ...] | None, Rules], tuple[tuple[float, ...], bool] | None]
UrgentPlay = Callable[[Jobs, int, tuple[float, ...] | None], Played]

# The rules in the order in which the module in C takes them: each is defined once, where it is explained.
RULES: Rules = (AIM, DEBT, PATIENCE, HOPELESS, HOPELESS_FROM, CLEAR, CLEAR_FROM, TRIAL_TURNS, MOST_ITERATIONS)


def found_in_c() -> InC | None:
    """The compiled play, if it was built."""
    try:
        found: InC = import_module("rollmux.mux._urgent_play").urgent_play
    except ImportError:
        return None
    return found


def fastest(in_c: InC | None) -> UrgentPlay:
    """The compiled play, with the Python one for what it can't play; without a compiled one the Python one alone."""
    if in_c is None:
        return urgent_play

    def played(jobs: Jobs, max_turns: int, limits_ms: tuple[float, ...] | None) -> Played:
        found = in_c(jobs, max_turns, limits_ms, RULES)
        return urgent_play(jobs, max_turns, limits_ms) if found is None else Played(*found)

    return played


_IN_C = found_in_c()
IS_COMPILED = _IN_C is not None
fastest_play = fastest(_IN_C)

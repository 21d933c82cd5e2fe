"""The state of a phase, moved onto its nodes and off them. An object says how by `load()` and `offload()`, if at all,
and how large it is by `nbytes`.

They may be called from another thread than the phase's own, but never while its work goes on. `break_off()` is called
in the middle of a `load()` whose lease is lost: it may raise then, and the phase raises LeaseLost.
"""

import logging
from time import monotonic

log = logging.getLogger("rollmux")

State = tuple[object, ...]


def as_state(state: object) -> State:
    """One object, several, or none."""
    if state is None:
        return ()
    return tuple(state) if isinstance(state, list | tuple) else (state,)


def is_same(one: State, other: State) -> bool:
    """Whether these are the very same objects: one that is only equal is not where the other is."""
    return [id(part) for part in one] == [id(part) for part in other]


def load(state: State) -> float:
    """Moves state in; returns the seconds that it took."""
    return _each(state, "load")


def offload(state: State) -> float:
    """Moves state off, the last that came first; returns the seconds that it took."""
    return _each(state[::-1], "offload")


def break_off(state: State) -> None:
    """State that is being moved in need not arrive. Each part hears that, whatever becomes of the others."""
    for part in state:
        try:
            _each((part,), "break_off")
        except Exception:
            log.exception("%r could not be told that its lease is lost", part)


def size(state: State) -> int | None:
    """Bytes of what says how large it is (`nbytes`)."""
    known = [int(part.nbytes) for part in state if hasattr(part, "nbytes")]
    return sum(known) if known else None


def moves(state: State) -> bool:
    """Whether any of it says how it is moved."""
    return any(hasattr(part, "load") or hasattr(part, "offload") for part in state)


def _each(state: State, how: str) -> float:
    began = monotonic()
    for part in state:
        move = getattr(part, how, None)
        if move is not None:
            move()
    return monotonic() - began

"""The state of a phase, moved onto its nodes and off them. An object of the script may say how by `load()` and
`offload()`, and how large it is by `nbytes`.

These may be called in another thread than the phase's own, but never while its work goes on. If the lease is lost amid
a `load()`, `break_off()` is called: `load()` may raise then, and the phase raises LeaseLost.
"""

import logging
from time import monotonic

log = logging.getLogger("rollmux")

State = tuple[object, ...]


def as_state(state: object) -> State:
    """The parts of a state that was given as one object, several, or None."""
    if state is None:
        return ()
    return tuple(state) if isinstance(state, list | tuple) else (state,)


def is_same(one: State, other: State) -> bool:
    """Whether these are the very same objects: an equal one may be in another place."""
    return [id(part) for part in one] == [id(part) for part in other]


def load(state: State) -> float:
    """Moves state in; returns the seconds that it took."""
    return _each(state, "load")


def offload(state: State) -> float:
    """Moves state off, its last part first; returns the seconds that it took."""
    return _each(state[::-1], "offload")


def break_off(state: State) -> None:
    """Tells each part that is being moved in that it need not arrive, even if another part fails at this."""
    for part in state:
        try:
            _each((part,), "break_off")
        except Exception:
            log.exception("%r could not be told that its lease is lost", part)


def size(state: State) -> int | None:
    """Bytes of the parts that say how large they are (`nbytes`); None if none does."""
    known = [int(part.nbytes) for part in state if hasattr(part, "nbytes")]
    return sum(known) if known else None


def moves(state: State) -> bool:
    """Whether any part says how it is moved."""
    return any(hasattr(part, "load") or hasattr(part, "offload") for part in state)


def _each(state: State, how: str) -> float:
    began = monotonic()
    for part in state:
        move = getattr(part, how, None)
        if move is not None:
            move()
    return monotonic() - began

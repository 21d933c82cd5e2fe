"""Which tokens may meet which weights, asked in the same way by every engine.

Invariant: a response gets tokens of two versions only if its owner has said so.
"""

from collections.abc import Iterable, Sequence

from rollmux.errors import InvariantViolated
from rollmux.runtime.engine.errors import UpdateRefused
from rollmux.runtime.engine.requests import Unfinished
from rollmux.runtime.engine.seam import Begun


def require_adoptable(unfinished: Iterable[Unfinished], version: int) -> None:
    """Raises for tokens of any version but the engine's."""
    for each in unfinished:
        if any(other != version for other in each.response.versions):
            raise UpdateRefused(
                f"request {each.request.id!r} has tokens of versions {sorted(set(each.response.versions))}, the "
                f"engine has version {version}: bring it to an engine of its version, or allow `mixed`"
            )


def require_newer(version: int, current: int) -> None:
    """Raises unless the new version is higher than the present one."""
    if not isinstance(version, int) or isinstance(version, bool):
        raise UpdateRefused(f"version {version!r} is no whole number: count on from {current}")
    if version <= current:
        raise UpdateRefused(f"version {version} is not above {current}, which the engine has: count on")


def require_permitted(started: Sequence[str], current: int, begun: Begun) -> None:
    """Raises if these requests' responses have begun, and `begun` does not say what becomes of them."""
    if started and begun is Begun.REFUSE:
        raise UpdateRefused(
            f"{len(started)} responses have begun under version {current}, {started[0]!r} among them: let "
            "them end, cancel or export them, or say by `begun` what becomes of them"
        )


def half_new(version: int) -> InvariantViolated:
    """The error for weights of which nobody knows how far an update to this version has come."""
    return InvariantViolated("weights", f"the update to version {version} did not end: update again")

"""Where a server gets new weights from: the tensors themselves do not go over HTTP."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollmux.checks import Checks


@dataclass(frozen=True, slots=True)
class InPlace:
    """The weights are there already, brought by the owner in its own way; the server is only told the version."""


@dataclass(frozen=True, slots=True)
class FromDisk:
    """The server reads them from a folder that it sees too, such as one under /dev/shm."""

    path: str


@dataclass(frozen=True, slots=True)
class Transferred:
    """Weights come over a group that the server has joined; this is what it must be told of them."""

    info: Mapping[str, Any]


Source = InPlace | FromDisk | Transferred


def source(weights: Mapping[str, Any] | None) -> Source:
    """Reads the seam's `weights`: None, or {"path": folder}, or {"update_info": what the server is told}."""
    if weights is None:
        return InPlace()
    match dict(weights):
        case {"path": str(path), **rest} if path and not rest:
            return FromDisk(path)
        case {"update_info": Mapping() as info, **rest} if not rest:
            return Transferred(info)
    limit = "{'path': folder} or {'update_info': mapping}"
    remedy = "give none if they are in place; tensors can't go over HTTP"
    raise Checks("weights").refusal("keys", sorted(map(str, weights)), limit, remedy)

"""A process that keeps state and forks children that work with it until they are killed: one import for many deaths.

Each line on standard input names what the next child does; its process id is the answer. In version k of the state
every number is k, and so are the notes.
"""

import os
import sys
import time
from pathlib import Path

import torch

from rollmux.runtime.host import Claim
from rollmux.runtime.residency import Budget, NoRoom, Resident

LIMIT_BYTES = 500 * 10**6


def state(value: int, more: bool) -> dict[str, torch.Tensor]:
    """Three chunks, and another one now and then."""
    found = {"a": torch.full((5_000_000,), value, dtype=torch.int16), "b": torch.full((99,), float(value))}
    return found | ({"more": torch.full((70_001,), float(value))} if more else {})


def work(folder: Path, slots: int, survive_s: float, grows: bool) -> None:
    """Version after version, of another layout every third time."""
    held = state(1, more=False)
    resident = Resident(held, name="dying", budget=Budget(folder, LIMIT_BYTES), slots=slots, survive_s=survive_s)
    value = 1
    while True:
        resident.offload(str(value).encode())
        (folder / "begun").touch()
        resident.load()
        value += 1
        if grows and held.pop("more", None) is None and value % 3 == 0:
            held["more"] = torch.empty(70_001)
        for tensor in held.values():
            tensor.fill_(value)


def hold(folder: Path, name: str, nbytes: int) -> None:
    """Claims again and again what may not fit, and says after each try what all together hold."""
    budget = Budget(folder, LIMIT_BYTES)
    while True:
        try:
            claim: Claim | None = budget.claim(name, nbytes)
        except NoRoom:
            claim = None
        total = sum(each.nbytes for each in budget.holdings())
        with (folder / f"{name}.seen").open("a") as file:
            file.write(f"{total} {claim is not None}\n")
        time.sleep(0.001)
        if claim is not None:
            claim.release()


def main() -> None:
    for line in sys.stdin:
        kind, folder, *rest = line.split()
        child = os.fork()
        if child == 0:
            if kind == "work":
                work(Path(folder), int(rest[0]), float(rest[1]), rest[2] == "grows")
            hold(Path(folder), rest[0], int(rest[1]))
        print(child, flush=True)


if __name__ == "__main__":
    main()

"""What a shelf takes of the node's host memory, under the budget that everything on the node shares.

The claim outlives its process as the shelf does: a receiver that is begun again finds what had landed. To remove the
folder, as a launcher does when a job ends, gives the bytes back.
"""

import re
from hashlib import sha256
from pathlib import Path

from rollmux.runtime.host import Budget, Claim, NotKept

# How long the shelf of a dead process stays, for the one that is begun in its place.
SURVIVE_S = 600.0


def claimed(budget: Budget, folder: Path, nbytes: int) -> Claim:
    """Claims so many bytes for this folder. Takes a dead process's claim over; refused if a living one has it."""
    name = _name(folder.resolve())
    try:
        claim = budget.join(name)
    except NotKept:
        return budget.claim(name, nbytes, survive_s=SURVIVE_S)
    try:
        claim.resize(nbytes)
    except BaseException:
        claim.leave()
        raise
    return claim


def _name(folder: Path) -> str:
    """The claim's name: another for each folder, and readers can tell from it which folder it is."""
    said = re.sub(r"[^A-Za-z0-9]+", "-", f"{folder.parent.name}-{folder.name}").strip("-")[-60:]
    return f"sync-{said}-{sha256(bytes(folder)).hexdigest()[:12]}"

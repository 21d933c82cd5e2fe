"""How much memory the node has to give right now, whatever the budget says: the kernel's word and the container's."""

from pathlib import Path

from rollmux.system import memory_bytes

CGROUP = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = CGROUP) -> int | None:
    """None where neither says."""
    known = [each for each in (_of_machine(), _of_container(cgroup)) if each is not None]
    return min(known, default=None)


def _of_machine() -> int | None:
    try:
        return memory_bytes()[0]
    except FileNotFoundError:
        return None


def _of_container(cgroup: Path) -> int | None:
    """What is left below the limit; file pages that nobody needs count as left."""
    limit, current = cgroup / "memory.max", cgroup / "memory.current"
    if not limit.exists() or limit.read_text().strip() == "max":
        return None
    lines = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    return int(limit.read_text()) - int(current.read_text()) + int(lines["inactive_file"])

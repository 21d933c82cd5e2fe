"""What each node of a pool has, one entry a node: cores, devices and memory of its machine, and that machine in Ray.

Placement knows none of this: launchers use it, and hold jobs to it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from rollmux.checks import one_of
from rollmux.mux.hardware import GB

MEANS_KEYS = {
    "cores": "the cores of its machine that its jobs may use, as 0-7 or [0, 1]",
    "devices": "the GPUs of its machine that its jobs see, as [0, 1]",
    "memory_gb": "how much data in GB the processes of a job on it may have, together",
    "ray_resource": "the resource of Ray's that marks its machine; each node takes one unit of it",
    "ray_ip": "the address of its machine in Ray",
    "ray_id": "the id of its machine in Ray",
}
MOST_NODES = 10_000
MOST_CORES = 65_536

Report = Callable[[str, object, str, str], None]


@dataclass(frozen=True, slots=True)
class RayName:
    """How a machine is found in Ray: by a `resource`, an `ip` or an `id`."""

    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class Means:
    """What a node's jobs may have of its machine; None is no bound."""

    cores: tuple[int, ...] | None = None
    devices: tuple[str, ...] | None = None
    memory_bytes: int | None = None
    ray: RayName | None = None


def read_means(path: str, value: object, report: Report) -> list[Means]:
    """The entries of a list of nodes. Each bad value is reported, and a harmless one replaces it."""
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_NODES:
        report(path, value, f"a list of up to {MOST_NODES} nodes", "write one entry for each, as - {cores: 0-7}")
        return []
    return [_means(f"{path}[{i}]", each, report) for i, each in enumerate(value)]


def check_means(means: Mapping[str, Means], report: Report) -> None:
    """Checks what must hold among all nodes of a file. The keys of `means` are the nodes' places in the file."""
    for key in ("cores", "devices", "memory_gb"):
        without = [place for place, each in means.items() if getattr(each, _FIELDS[key]) is None]
        if without and len(without) < len(means):
            report(f"{without[0]}.{key}", None, "given for all nodes or for none", "add it, or leave it out everywhere")
    for key in ("cores", "devices"):
        owners: dict[tuple[object, object], str] = {}
        for place, each in means.items():
            for one in getattr(each, _FIELDS[key]) or () if _is_known(each.ray) else ():
                owner = owners.setdefault((each.ray, one), place)
                if owner != place:
                    report(f"{place}.{key}", one, f"not of {owner} too: they are on one machine", "give it to one")


_FIELDS = {"cores": "cores", "devices": "devices", "memory_gb": "memory_bytes"}


def _is_known(name: RayName | None) -> bool:
    """Whether two nodes of this name are surely on one machine."""
    return name is None or name.kind != "resource"


def _means(path: str, value: object, report: Report) -> Means:
    if not isinstance(value, dict):
        report(path, value, f"keys and values: {', '.join(MEANS_KEYS)}", "write {} for a node without bounds")
        return Means()
    for key in value:
        if key not in MEANS_KEYS:
            report(f"{path}.{key}", value[key], *one_of(MEANS_KEYS, key))
    cores = _cores(f"{path}.cores", value["cores"], report) if "cores" in value else None
    devices = _devices(f"{path}.devices", value["devices"], report) if "devices" in value else None
    memory = _memory(f"{path}.memory_gb", value["memory_gb"], report) if "memory_gb" in value else None
    return Means(cores, devices, memory, _ray(path, value, report))


def _cores(path: str, value: object, report: Report) -> tuple[int, ...]:
    found = _ranges(value) if isinstance(value, str) else [value] if _is_index(value) else value
    good = isinstance(found, list) and 1 <= len(found) <= MOST_CORES and all(map(_is_index, found))
    if not good or not isinstance(found, list) or len(set(found)) < len(found):
        report(path, value, "numbers of cores, each once, counted from 0", "write 0-7, or 0-3,8, or [0, 1]")
        return (0,)
    return tuple(found)


def _ranges(text: str) -> list[int] | None:
    """The numbers of a text like 0-3,8."""
    found: list[int] = []
    for piece in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", piece, re.ASCII)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            return None
        found += range(first, last + 1)
    return found


def _devices(path: str, value: object, report: Report) -> tuple[str, ...]:
    if isinstance(value, list) and all(map(_is_device, value)) and len(set(map(str, value))) == len(value) < MOST_CORES:
        return tuple(map(str, value))
    report(path, value, "a list of GPUs, each once, by index or UUID", "write [0, 1], or [] for none")
    return ()


def _memory(path: str, value: Any, report: Report) -> int | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0.001 <= value <= 1e6:
        return round(value * GB)
    report(path, value, "a number from 0.001 to 1e+06", "give GB, in digits and without quotes")
    return None


def _ray(path: str, value: Mapping[str, Any], report: Report) -> RayName | None:
    given = [key for key in MEANS_KEYS if key.startswith("ray_") and key in value]
    if len(given) > 1:
        report(f"{path}.{given[1]}", value[given[1]], f"absent beside {given[0]}", "say in one way which machine it is")
    checks: dict[str, tuple[Callable[[str], bool], str]] = {
        "ray_resource": (lambda text: 0 < len(text) <= 256, "the name of a resource"),
        "ray_ip": (_is_address, "an IP address"),
        "ray_id": (lambda text: re.fullmatch(r"[0-9a-f]{56}", text) is not None, "the 56 hexadecimal digits of a node"),
    }
    names = []
    for key in given:
        check, what = checks[key]
        if isinstance(value[key], str) and check(value[key]):
            names.append(RayName(key.removeprefix("ray_"), value[key]))
        else:
            report(f"{path}.{key}", value[key], what, "see what `ray list nodes` shows")
    return names[0] if names else None


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_CORES


def _is_device(value: object) -> bool:
    return _is_index(value) or (
        isinstance(value, str) and re.fullmatch(r"[\w.:/-]{1,100}", value, re.ASCII) is not None
    )


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True

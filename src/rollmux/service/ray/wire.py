"""What the launcher and its program on Ray say to each other: a plan by the environment, words by what is printed.

Nothing of Ray is imported here, so that the controller needs no Ray.
"""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

import msgspec

from rollmux.service.launcher import Attempt, LaunchFailed
from rollmux.service.ray.gateway import Wish

ATTEMPT = "exec python -P -m rollmux.service.ray.attempt"
SWEEP = "exec python -P -m rollmux.service.ray.sweep"
NOTHING = "true"

# In the environment of all that Ray starts for an attempt, and of all that its ranks start.
SUBMISSION, KEEPER = "ROLLMUX_SUBMISSION", "ROLLMUX_KEEPER"

_PLAN = "ROLLMUX_PLAN"
# Ray hands a whole environment on as JSON, in one argument and in one variable: Linux takes 128 KiB for each, and Ray
# adds words of its own. If the environment is longer, Ray starts nothing, and never says so.
MOST_ENV = 120_000
_MARK = "rollmux: "
LOG_BYTES = 2**23
# How long the program has, beyond the grace, to kill its processes. Then Ray ends it, and its nodes are swept.
STOP_S = 40.0


@dataclass(frozen=True, slots=True)
class Part:
    """What runs on one node of Ray's: `ranks` with the node of ours that each is on, and the devices that they see."""

    ray_node: str
    ranks: dict[int, str]
    cores: tuple[int, ...] = ()
    devices: dict[int, tuple[str, ...]] = field(default_factory=dict)  # a rank that is not in it sees all
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RayPlan:
    """An attempt, for the program that Ray runs."""

    id: str
    logs: str  # a folder among the logs of each node
    job: str
    attempt: int
    command: tuple[str, ...]
    folder: str  # "": the working directory that Ray has unpacked
    env: dict[str, str]
    processes: int
    log_bytes: int
    grace_s: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """What the program has said so far. `clean`: when it ended, nothing that it had started was left."""

    starting: bool = False
    up: bool = False
    ended: str | None = None
    clean: bool = False


class _Said(TypedDict, total=False):
    starting: bool
    up: bool
    ended: str
    clean: bool


def as_env(plan: RayPlan) -> dict[str, str]:
    """The plan as an environment, packed: plans for many nodes say the same of each."""
    return {_PLAN: b64encode(zlib.compress(json.dumps(asdict(plan)).encode())).decode()}


def wish_of(attempt: Attempt, name: str, logs: str, parts: tuple[Part, ...], grace_s: float) -> Wish:
    """What to ask of Ray. Raises LaunchFailed if that is longer than Ray can take."""
    submission = attempt.submission
    unpacked = "://" in submission.folder
    plan = RayPlan(
        id=name,
        logs=logs,
        job=attempt.key[0],
        attempt=attempt.number,
        command=submission.command,
        folder="" if unpacked else submission.folder,
        env=attempt.told,
        processes=submission.processes,
        log_bytes=LOG_BYTES,
        grace_s=grace_s,
        parts=parts,
    )
    env = as_env(plan) | {SUBMISSION: name, "RAY_JOB_STOP_WAIT_TIME_S": str(int(grace_s + STOP_S))}
    if (length := len(json.dumps(env))) > MOST_ENV:
        what = "its command and environment are too long for Ray"
        raise LaunchFailed(f"job {attempt.key[0]!r}: {what}: {length:,} bytes packed, {MOST_ENV:,} at most")
    return Wish(
        id=name,
        command=ATTEMPT,
        env=env,
        metadata={"rollmux": "attempt", "job": attempt.key[0], "attempt": str(attempt.number)},
        working_dir=submission.folder if unpacked else "",
    )


def from_env(env: Mapping[str, str]) -> RayPlan:
    data = json.loads(zlib.decompress(b64decode(env[_PLAN])))
    parts = tuple(_part(each) for each in data.pop("parts"))
    return RayPlan(**{**data, "command": tuple(data["command"]), "parts": parts})


def _part(data: dict[str, Any]) -> Part:
    ranks = {int(rank): node for rank, node in data["ranks"].items()}
    devices = {int(rank): tuple(seen) for rank, seen in data["devices"].items()}
    return Part(data["ray_node"], ranks, tuple(data["cores"]), devices, data["memory_bytes"])


def say(**what: object) -> None:
    """Prints a word for the launcher, which reads what is printed."""
    print(_MARK + json.dumps(what), flush=True)


def heard(printed: str) -> Word:
    """What the program has said for the launcher, among whatever else was printed."""
    said: _Said = {}
    for line in printed.splitlines():
        if line.startswith(_MARK):
            with suppress(msgspec.DecodeError):  # half a line says nothing yet
                said |= msgspec.json.decode(line.removeprefix(_MARK), type=_Said)
    return Word(**said)

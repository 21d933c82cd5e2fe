"""What a keeper is told to start for an attempt: with which environment, and within which bounds of this machine."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from rollmux.service.launcher import Attempt, LaunchFailed, seen_by
from rollmux.service.local.attempt_files import LEAST_LOG_BYTES, AttemptFiles
from rollmux.service.local.kept import own_env
from rollmux.service.local.rank import Plan

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What jobs may have of this machine. `devices` and `cores` are those of each node, None where all share all.

    `memory_bytes` is for the data of each process, `log_bytes` for all ranks of an attempt; `node_memory_bytes` is what
    the processes of a job share of each of its nodes.
    """

    devices: Mapping[str, Sequence[str]] | None
    cores: Mapping[str, Sequence[int]] | None
    memory_bytes: int | None
    log_bytes: int
    node_memory_bytes: Mapping[str, int] | None = None


def plan_for(attempt: Attempt, bounds: Bounds, files: AttemptFiles) -> Plan:
    """Or LaunchFailed, where it is plain already that this can't be started."""
    submission, key = attempt.submission, attempt.key
    if not Path(submission.folder).is_absolute() or not Path(submission.folder).is_dir():
        remedy = "name an existing folder by its whole path"
        raise LaunchFailed(f"job {key[0]!r}: its folder {submission.folder!r} is not on this machine: {remedy}")
    marker = uuid4().hex
    return Plan(
        job=key[0],
        attempt=key[1],
        command=list(submission.command),
        folder=submission.folder,
        env=_env(attempt) | {"ROLLMUX_KEEPER": marker},
        processes=submission.processes,
        record=str(files.record(key)),
        log=str(files.log(key)),
        log_bytes=max(LEAST_LOG_BYTES, bounds.log_bytes // submission.processes),
        marker=f"ROLLMUX_KEEPER={marker}",
        controller=os.getpid(),
        cores=_union(bounds.cores or {}, attempt.placement.all_nodes),
        memory_bytes=_memory(attempt, bounds),
        devices=_devices(attempt, bounds),
    )


def _env(attempt: Attempt) -> dict[str, str]:
    env = own_env() | attempt.told
    # A controller that was started by its path, in no shell of its environment, has jobs that look for `python` there.
    env["PATH"] = os.pathsep.join((env.get("PATH") or os.defpath, str(Path(sys.executable).parent)))
    return env


def _devices(attempt: Attempt, bounds: Bounds) -> dict[str, list[str]]:
    """By rank."""
    of_nodes, processes = bounds.devices, attempt.submission.processes
    if of_nodes is None:
        return {}
    return {str(rank): _union(of_nodes, seen_by(rank, processes, attempt.placement)) for rank in range(processes)}


def _memory(attempt: Attempt, bounds: Bounds) -> int | None:
    """What each process may have: the least of all bounds."""
    limits = [] if bounds.memory_bytes is None else [bounds.memory_bytes]
    if bounds.node_memory_bytes is not None:
        shared = sum(bounds.node_memory_bytes.get(node, 0) for node in attempt.placement.all_nodes)
        limits.append(shared // attempt.submission.ranks)
    return min(limits, default=None)


def _union(of_nodes: Mapping[str, Sequence[T]], nodes: Sequence[str]) -> list[T]:
    """What these nodes have, each once."""
    return list(dict.fromkeys(each for node in nodes for each in of_nodes.get(node, ())))

"""What a keeper is told to start for an attempt: with which environment, and within which bounds of this machine."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from rollmux.protocol.node_means import Means
from rollmux.service.launcher import Attempt, LaunchFailed, each_once, seen_by
from rollmux.service.local.attempt_files import LEAST_LOG_BYTES, AttemptFiles
from rollmux.service.local.kept import own_env
from rollmux.service.local.rank import Plan


def plan_for(attempt: Attempt, means: Mapping[str, Means], log_bytes: int, files: AttemptFiles) -> Plan:
    """The plan. Raises LaunchFailed if it is clear already that no start can succeed. `log_bytes` is for all ranks."""
    submission, key = attempt.submission, attempt.key
    if not Path(submission.folder).is_absolute() or not Path(submission.folder).is_dir():
        remedy = "name an existing folder by its whole path"
        raise LaunchFailed(f"job {key[0]!r}: its folder {submission.folder!r} is not on this machine: {remedy}")
    shares_memory = all(each.memory_bytes is None for each in means.values())
    marker, has = uuid4().hex, [means[node] for node in attempt.placement.all_nodes if node in means]
    return Plan(
        job=key[0],
        attempt=key[1],
        command=list(submission.command),
        folder=submission.folder,
        env=_env(attempt) | {"ROLLMUX_KEEPER": marker},
        processes=submission.processes,
        record=str(files.record(key)),
        log=str(files.log(key)),
        log_bytes=max(LEAST_LOG_BYTES, log_bytes // submission.processes),
        marker=f"ROLLMUX_KEEPER={marker}",
        controller=os.getpid(),
        cores=each_once(each.cores for each in has),
        memory_bytes=None if shares_memory else sum(each.memory_bytes or 0 for each in has) // submission.ranks,
        devices=_devices(attempt, means),
    )


def _env(attempt: Attempt) -> dict[str, str]:
    env = own_env() | attempt.told
    # Jobs look for `python` beside the controller's own, also if the controller was started by its path alone.
    env["PATH"] = os.pathsep.join((env.get("PATH") or os.defpath, str(Path(sys.executable).parent)))
    return env


def _devices(attempt: Attempt, means: Mapping[str, Means]) -> dict[str, list[str]]:
    """The devices that each rank sees; nothing if all ranks share all devices."""
    if all(each.devices is None for each in means.values()):
        return {}
    processes, has = attempt.submission.processes, {node: each.devices for node, each in means.items()}
    return {
        str(rank): each_once(map(has.get, seen_by(rank, processes, attempt.placement))) for rank in range(processes)
    }

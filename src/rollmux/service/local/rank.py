"""One process of an attempt: how it is started below its keeper, and in what words its end is told.

A rank dies with its keeper, whatever ends the keeper: nothing of an attempt goes on without one.
"""

import os
import resource
import signal
import subprocess
from functools import partial
from typing import NamedTuple

from rollmux.service.local.kinship import hear_of_parents_end


class Plan(NamedTuple):
    """What a keeper is told to start. `record` and `log` are beginnings of file names, to which the keeper adds.

    `nodes` are the ranks of this keeper, each with its node; empty if all ranks are its own. `devices` are those that a
    rank sees; a rank that is not in it sees all. A `mortal` keeper ends with the process that started it, and so do all
    processes that it keeps.
    """

    job: str
    attempt: int
    command: list[str]
    folder: str
    env: dict[str, str]
    processes: int
    record: str
    log: str
    log_bytes: int
    marker: str
    controller: int
    cores: list[int]
    memory_bytes: int | None
    nodes: dict[str, str] = {}  # noqa: RUF012  a named tuple's default, and never changed
    mortal: bool = False
    devices: dict[str, list[str]] = {}  # noqa: RUF012  as above

    @property
    def ranks(self) -> list[int]:
        return [int(rank) for rank in self.nodes] or list(range(self.processes))

    def env_of(self, rank: int) -> dict[str, str]:
        env, node, devices = (
            self.env | {"ROLLMUX_RANK": str(rank)},
            self.nodes.get(str(rank)),
            self.devices.get(str(rank)),
        )
        if node is not None:
            env["ROLLMUX_NODE"] = node
        if devices is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        return env


def pin(cores: list[int]) -> None:
    """Binds this process, and all that it starts from now on, to these cores."""
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise OSError(error.errno, "this machine has no such cores", cores) from error


def start_rank(plan: Plan, rank: int, output: int, files: tuple[int, int]) -> int:
    """Starts a rank; returns its number. It prints to `output`, and may open as many files as a process usually may."""
    process = subprocess.Popen(
        plan.command,
        cwd=plan.folder,
        env=plan.env_of(rank),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0,  # a signal that it sends to its group reaches neither the keeper nor other ranks
        preexec_fn=partial(_become_rank, os.getpid(), plan.memory_bytes, files),  # noqa: PLW1509  no threads here
    )
    process.returncode = 0  # the keeper reaps it, like all else that ends
    return process.pid


def why_not(error: Exception, plan: Plan) -> str:
    """Why a rank could not be started."""
    if isinstance(error, OSError) and error.strerror:
        what = str(error.filename or plan.command[0])[:300]
        return f"its command could not be started: {what!r}: {error.strerror}"
    return f"its command could not be started: {error}"


def how_ended(code: int) -> str:
    """An exit code, or minus a signal, for somebody who looks for the reason."""
    if code == -signal.SIGKILL:
        return "was ended by SIGKILL (memory ran out, or it was killed from outside)"
    if code < 0:
        return f"was ended by {_name(-code)}"
    # Shells end with such a code if a signal ended what they ran.
    of_a_shell = f" ({_name(code - 128)} of what it ran)" if 128 < code < 128 + signal.NSIG else ""
    return f"ended with exit code {code}{of_a_shell}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _become_rank(keeper: int, memory_bytes: int | None, files: tuple[int, int]) -> None:
    """Between fork and exec, in the process that will be the rank."""
    hear_of_parents_end(signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    if memory_bytes is not None:
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

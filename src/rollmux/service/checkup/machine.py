"""Checks of this machine, whatever runs on it. They need no more rights than a plain user has."""

import os
import platform
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from rollmux import __version__, system
from rollmux.service.checkup.finding import Finding, fail, ok, warn

GIB = 2**30
# Below these, state that is kept in host memory will not fit for long.
LEAST_MEMORY_BYTES, LEAST_SHM_BYTES = 2 * GIB, GIB
# A parked call, a listening one, one in reserve, and the descriptor by which a job's processes are watched.
FILES_PER_JOB, MANY_JOBS = 4, 1000
# How far apart two clocks may go in a tenth of a second on a busy machine.
STEP_S = 0.05
GPU_ANSWER_S = 20


def machine(host: str, port: int) -> Iterator[Finding]:
    """All checks of the machine. Without a port nobody is to listen here."""
    yield versions()
    yield clock()
    yield processes()
    yield memory()
    if system.IS_LINUX:  # elsewhere shared files lie where all temporary files do
        yield shared_memory(Path("/dev/shm"))
    yield gpus()
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    if port:
        yield listening(host, port)


def versions() -> Finding:
    found = f"rollmux {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    if not system.IS_LINUX:
        return warn("versions", found, "run a controller for others on Linux: one here is for trying things out")
    return ok("versions", found)


def clock() -> Finding:
    """Leases are counted in monotonic time; the wall clock is for people and for tokens that run out."""
    wall, steady = time.time(), time.monotonic()
    readings = [time.monotonic() for _ in range(1000)]
    time.sleep(0.1)
    passed_s, wall_passed_s = time.monotonic() - steady, time.time() - wall
    if readings != sorted(readings) or passed_s <= 0:
        return fail("clock", "monotonic time goes back", "move to a machine, or a hypervisor, with a sound clock")
    if abs(passed_s - wall_passed_s) > STEP_S:
        advice = "let chrony or systemd-timesyncd slew the clock instead of setting it again and again"
        return warn("clock", f"the wall clock went {wall_passed_s:.2f} s in {passed_s:.2f} s", advice)
    return ok("clock", "monotonic, and the wall clock goes along")


def processes() -> Finding:
    """A launched job is watched through a descriptor of its process, which is never of another one."""
    try:
        system.Watched(os.getpid()).close()
    except (AttributeError, OSError) as error:
        return fail("processes", f"can't be watched: {error}", "use Linux 5.3 or newer, or a sandbox with pidfd_open")
    return ok("processes", "can be watched")


def memory() -> Finding:
    try:
        available, of = system.memory_bytes()
    except OSError as error:
        return warn("memory", f"/proc/meminfo can't be read: {error.strerror}", "mount /proc")
    most, used = system.group_bytes() or (of, 0)
    free, whole = min(available, max(0, most - used)), min(of, most)
    found = f"{free / GIB:.1f} GiB free of {whole / GIB:.1f} GiB"
    if free < LEAST_MEMORY_BYTES:
        return warn("memory", found, "free some: jobs that share a node keep their state in its memory between phases")
    return ok("memory", found)


def shared_memory(path: Path) -> Finding:
    name = str(path)
    if not path.is_dir():
        return warn(name, "is not there", "mount a tmpfs there: engines keep weights in it between phases")
    usage = shutil.disk_usage(path)
    found = f"{usage.free / GIB:.1f} GiB free of {usage.total / GIB:.1f} GiB"
    if not os.access(path, os.W_OK | os.X_OK):
        return warn(name, f"{found}, not to be written to", f"chmod 1777 {name}")
    if usage.free < LEAST_SHM_BYTES:
        return warn(name, found, "remove what is left over there, or give containers more: --shm-size=16g")
    return ok(name, found)


def gpus() -> Finding:
    """No GPU is no fault: the controller needs none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        cards = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
        if cards:
            return warn("GPUs", f"{cards}, but no nvidia-smi", "install the driver's tools to see how they are")
        return ok("GPUs", "none here, which a controller does not need")
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=GPU_ANSWER_S, check=True).stdout
    except subprocess.TimeoutExpired:
        return warn("GPUs", f"nvidia-smi is silent for {GPU_ANSWER_S} s", "look at the driver: dmesg | grep -i nvrm")
    except (OSError, subprocess.CalledProcessError) as error:
        return warn("GPUs", f"nvidia-smi fails: {error}", "look at the driver: dmesg | grep -i nvrm")
    return ok("GPUs", "; ".join(said.strip().splitlines()) or "none")


def open_files(soft: int, hard: int) -> Finding:
    jobs = soft // FILES_PER_JOB if soft != resource.RLIM_INFINITY else MANY_JOBS
    found = f"{soft} may be open, enough for about {jobs} jobs" if jobs < MANY_JOBS else "enough for 1000 jobs and more"
    if jobs >= MANY_JOBS:
        return ok("open files", found)
    least = FILES_PER_JOB * MANY_JOBS
    enough = hard == resource.RLIM_INFINITY or hard >= least
    advice = f"ulimit -n {least}" if enough else f"raise the hard limit, {hard}, to {least} (systemd: LimitNOFILE)"
    return warn("open files", found, f"{advice}, before `rollmux serve`")


def listening(host: str, port: int) -> Finding:
    """Whether a controller could listen here."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            tool = "ss -ltnp" if system.IS_LINUX else "lsof -nP -iTCP -sTCP:LISTEN"
            advice = f"choose another with --port, or end what listens there: {tool}"
            return fail("port", f"{host}:{port}: {error.strerror}", advice)
    return ok("port", f"{host}:{port} is free")

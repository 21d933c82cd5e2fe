"""A root folder that has only what a program needs to run, all of it read-only.

Invariant: what is not named here is not there: no home, no other settings of this machine, no socket, no device that
stores.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path

from rollmux.runtime.sandbox import kernel

SCRATCH = "/tmp"
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SETTINGS = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "java*", "ssl/openssl.cnf")
# What is read of `full` is zeros, too, and it can't be mapped: a shared mapping of `zero` is memory that nobody counts.
_DEVICES = {"null": "null", "zero": "full", "full": "full", "random": "random", "urandom": "urandom"}
_LINKS = (
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    (SCRATCH, "/dev/shm"),
)
_OLD = "/.old"
_KEPT = "/.kept"
# Not to be written: where there is no Landlock, a process might undo there that it is killed first (`oom_score_adj`).
_OF_PROC = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


def readable(extra: Sequence[str] = ()) -> list[str]:
    """What a run may read of this machine: programs and settings, libraries, this Python. Outer paths come first."""
    settings = [path for name in _SETTINGS for path in glob(f"/etc/{name}")]
    wanted = [f"/{name}" for name in ("usr", *_TOP)] + [sys.base_prefix, sys.prefix, *settings, *extra]
    return sorted(path for path in wanted if path != "/" and os.path.exists(path))


def enter_fresh_root(extra: Sequence[str] = ()) -> list[str]:
    """Moves this process, in a mount namespace of its own, into the fresh root. Each run brings its scratch folder.

    Returns the readable paths that scratch folders will cover: those folders must show them again.
    """
    shown = readable(extra)
    covered = [path for path in dict.fromkeys(shown) if path.startswith(f"{SCRATCH}/") and os.path.isdir(path)]
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", SCRATCH, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=4m,mode=755")
    os.mkdir(SCRATCH + _OLD)
    kernel.pivot_root(SCRATCH, SCRATCH + _OLD)
    os.chdir("/")
    for path in shown:
        _show(_OLD + path, path)
    for number, path in enumerate(covered):
        _show(_OLD + path, f"{_KEPT}/{number}")
    _make_settings()
    _make_devices()
    os.makedirs(SCRATCH, exist_ok=True)
    os.mkdir("/proc")
    # For a user namespace the kernel mounts a new /proc only if the old one is still seen here; each run covers it.
    kernel.mount(f"{_OLD}/proc", "/proc", None, kernel.MS_BIND | kernel.MS_REC)
    kernel.unmount(_OLD)
    os.rmdir(_OLD)
    kernel.mount("none", "/", None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID)
    return covered


def _show(source: str, path: str) -> None:
    if os.path.lexists(path) or not os.path.lexists(source):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), path)
        return
    if os.path.isdir(source):
        os.mkdir(path)
    else:
        Path(path).touch()
    kernel.mount(source, path, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.make_read_only(path)


def _make_settings() -> None:
    os.makedirs("/etc", exist_ok=True)
    Path("/etc/passwd").write_text(f"nobody:x:65534:65534:nobody:{SCRATCH}:/bin/sh\n", encoding="ascii")
    Path("/etc/group").write_text("nogroup:x:65534:\n", encoding="ascii")


def _make_devices() -> None:
    os.mkdir("/dev")
    for name, device in _DEVICES.items():
        Path(f"/dev/{name}").touch()
        kernel.mount(f"{_OLD}/dev/{device}", f"/dev/{name}", None, kernel.MS_BIND)
    for target, path in _LINKS:
        os.symlink(target, path)


def mount_scratch(uid: int, limit_bytes: int, limit_files: int, covered: Sequence[str] = ()) -> None:
    """Mounts an empty folder in memory, gone with the run. Readable paths that it covers are shown in it again."""
    data = f"size={limit_bytes},nr_inodes={limit_files},mode=700,uid={uid},gid={uid}"
    kernel.mount("tmpfs", SCRATCH, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, data)
    for number, path in enumerate(covered):
        os.makedirs(path, exist_ok=True)
        kernel.mount(f"{_KEPT}/{number}", path, None, kernel.MS_BIND | kernel.MS_REC)


def mount_own_proc() -> None:
    """Mounts a /proc with only this run's processes, or with none if the kernel refuses that."""
    for data in ("subset=pid", None):
        with suppress(OSError):
            return kernel.mount("proc", "/proc", "proc", _OF_PROC, data)
    return cover_proc()


def cover_proc() -> None:
    """Hides all processes, even this one: without a pid namespace a new /proc would show all of the machine's."""
    kernel.mount("tmpfs", "/proc", "tmpfs", _OF_PROC, "size=4k")

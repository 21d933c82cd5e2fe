"""Checks of the controller's folder: who may look into it, how much room is left, and how fast its disk is."""

import os
import pwd
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile

from rollmux.service.checkup.finding import Finding, fail, ok, warn
from rollmux.service.tokens import PRIVATE_FILES

GIB, MIB = 2**30, 2**20
LITTLE_BYTES, LEAST_BYTES = 5 * GIB, 200 * MIB
# Every grant waits for a write to be on the disk.
SLOW_S, WRITES = 0.02, 15
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # how /proc/mounts writes blanks
# What to do about a file that others may have read. The other one has hashes alone.
_AFTERWARDS = {
    "admin.token": ", then `rollmux token revoke admin`, and start the controller again, which makes another one",
    "secret": ", and once no job runs remove it and start the controller again: who has read it can speak for any job",
}
# File systems on which other machines may not see what is locked and written here.
SHARED = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "lustre", "glusterfs", "ceph")


def folder(path: Path) -> Iterator[Finding]:
    """All checks of the folder; if it is not there yet, of the folder in which it would be made."""
    found = path
    while not os.path.exists(found):  # a Path raises if it may not look there
        found = found.parent
    yield rights(path, found)
    yield from _private(path)
    if found.is_dir() and os.access(found, os.W_OK | os.X_OK):
        yield room(found)
        yield speed(found)
    yield file_system(found)


def rights(path: Path, found: Path) -> Finding:
    if not found.is_dir():
        return fail("folder", f"{found} is no folder", "give another --folder")
    may_write = os.access(found, os.R_OK | os.W_OK | os.X_OK)
    if found != path and may_write:
        return ok("folder", f"{path} is not there yet, and can be made")
    if found != path:
        remedy = f"make it as root: install -d -m 700 -o {os.getuid()} {path}; or give another --folder"
        return fail("folder", f"{path} is not there yet, and {found} can't be written to", remedy)
    about = path.stat()
    mode = stat.S_IMODE(about.st_mode)
    if about.st_uid != os.getuid():
        whose = _name(about.st_uid)
        return fail(
            "folder", f"{path} is {whose}'s", f"run this, and the controller, as {whose}; or give another --folder"
        )
    if not may_write:  # its mode or its file system forbids it
        return fail("folder", f"{path} can't be written to", "give another --folder")
    if mode & 0o077:
        return fail("folder", f"{path} is open to others ({mode:04o}): it holds tokens", f"chmod 700 {path}")
    return ok("folder", f"{path} is its owner's alone")


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _private(path: Path) -> Iterator[Finding]:
    """Checks each file that lets callers in."""
    for name in PRIVATE_FILES:
        file = path / name
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
        except OSError:
            continue  # it is made at the first start; `rights` tells of a folder that can't be looked into
        if mode & 0o077:
            yield fail(name, f"{file} is open to others ({mode:04o})", f"chmod 600 {file}{_AFTERWARDS.get(name, '')}")
        else:
            yield ok(name, "is its owner's alone")


def room(path: Path) -> Finding:
    about = os.statvfs(path)
    free = about.f_bavail * about.f_frsize
    found = f"{free / GIB:.1f} GiB free at {path}"
    if free < LEAST_BYTES:
        return fail("disk", found, "free some: a journal that can't be written stops everything")
    if free < LITTLE_BYTES:
        return warn("disk", found, "free some: the journal and the logs of jobs grow")
    return ok("disk", found)


def speed(path: Path) -> Finding:
    """How long a write takes to be safe; the median, for other programs write too."""
    try:
        with TemporaryFile(dir=path) as file:
            seconds = median(_write(file.fileno()) for _ in range(WRITES))
    except OSError as error:
        return fail("fsync", f"{path} can't be written to: {error.strerror}", "mend the disk, or another --folder")
    found = f"a write is safe after {seconds * 1000:.1f} ms"
    if seconds > SLOW_S:
        return warn("fsync", found, "put the folder on a faster local disk: every grant waits for a write")
    return ok("fsync", found)


def _write(descriptor: int) -> float:
    began = time.perf_counter()
    os.write(descriptor, bytes(4096))
    os.fsync(descriptor)
    return time.perf_counter() - began


def file_system(path: Path) -> Finding:
    """SQLite's journal needs locks and memory that all who open it share: files of other machines have neither."""
    kind = kind_of(path, Path("/proc/mounts"))
    if kind.startswith(SHARED):
        return fail("file system", f"{path} is on {kind}", "give a --folder on a local disk: the journal needs locks")
    return ok("file system", kind or "not known")


def kind_of(path: Path, mounts: Path) -> str:
    """The kind of the file system that the path is on; nothing if that can't be told."""
    try:
        lines = mounts.read_bytes().splitlines()
    except OSError:
        return ""
    whole, found, nearest = path.resolve(), "", 0
    for fields in map(bytes.split, lines):
        place = os.fsdecode(_ESCAPED.sub(lambda each: bytes([int(each[1], 8)]), fields[1]))
        if len(place) >= nearest and whole.is_relative_to(place):  # of two at one place the later hides the other
            found, nearest = fields[2].decode(errors="replace"), len(place)
    return found

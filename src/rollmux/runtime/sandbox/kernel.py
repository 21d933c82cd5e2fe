"""The calls of Linux that Python has no function for, by ctypes.

Invariant: a call that fails raises OSError with the kernel's reason; none is passed over in silence.
"""

import ctypes
import os
import platform
import struct
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT = 22, 36, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2
LAST_CAPABILITY = 63

# linux/perf_event.h: a counter in software of a task's time, its children's too; anybody may count their own tasks.
_PERF_BYTES, _PERF_SOFTWARE, _PERF_TASK_CLOCK = 64, 1, 1
_PERF_INHERIT, _PERF_EXCLUDE_KERNEL, _PERF_EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_PERF_CLOSE_ON_EXEC = 8

_MACHINE = platform.machine()
_NUMBERS = {
    "x86_64": {"pivot_root": 155, "capset": 126, "perf_event_open": 298},
    "aarch64": {"pivot_root": 41, "capset": 91, "perf_event_open": 241},
}.get(_MACHINE, {})
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446  # the same on both
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_M_ARENA_MAX = -8  # malloc.h
_CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    checked(libc.unshare(flags), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    coded = [None if each is None else os.fsencode(each) for each in (source, target, kind, data)]
    checked(libc.mount(coded[0], coded[1], coded[2], flags, coded[3]), f"mount {source} on {target}")


def unmount(target: str) -> None:
    checked(libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def pivot_root(root: str, old: str) -> None:
    number = _NUMBERS.get("pivot_root", -1)
    checked(libc.syscall(number, os.fsencode(root), os.fsencode(old)), f"pivot_root to {root}")


def make_read_only(target: str) -> None:
    """Makes a mount read-only and, if the kernel can (5.12), all mounts below it."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, 0, 0, 0)
    path, size = os.fsencode(target), ctypes.c_size_t(len(attributes))
    if libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, path, _AT_RECURSIVE, attributes, size) == 0:
        return
    # In a user namespace the flags of a mount from outside are locked: they must be named again.
    kept = os.statvfs(target).f_flag & (os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME | os.ST_RELATIME)
    kept_flags = kept & os.ST_NOEXEC | kept & (os.ST_NOATIME | os.ST_NODIRATIME) | (kept & os.ST_RELATIME) << 9
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | kept_flags)


def prctl(option: int, value: int = 0, what: str = "prctl") -> int:
    zero = ctypes.c_ulong(0)
    return checked(libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"{what} {option}")


def die_with_parent() -> None:
    """This process is killed when its parent ends. Only if the parent has one thread: a thread's end counts too."""
    prctl(PR_SET_PDEATHSIG, 9, "die with parent")


def hide_from_peers(hidden: bool) -> None:
    """Sets whether other processes of the same user can't look into this one through /proc."""
    prctl(PR_SET_DUMPABLE, 0 if hidden else 1, "dumpable")


def share_arenas() -> None:
    """Has all threads allocate from two areas: glibc would make many, each with 64 MiB of address space."""
    if hasattr(libc, "mallopt"):  # musl has none, and needs none
        libc.mallopt(_M_ARENA_MAX, 2)


def flush_output() -> None:
    """Writes what C's own functions have printed and kept back: `_exit` would lose it."""
    libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))


def adopt_orphans() -> None:
    """Descendants that lose their parent become children of this process."""
    prctl(PR_SET_CHILD_SUBREAPER, 1, "adopt orphans")


def be_killed_first() -> None:
    """Has the kernel kill this process first if the machine runs out of memory."""
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def empty_bounding_set() -> None:
    """After this no exec brings a capability back. It takes capabilities; without any, no_new_privs does the same."""
    for capability in range(LAST_CAPABILITY + 1):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break  # this process may not drop it, or the kernel knows no such capability


def drop_capabilities() -> None:
    """Drops all capabilities of this process, for ever."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, "clear ambient capabilities")
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    checked(libc.syscall(_NUMBERS.get("capset", -1), header, bytes(24)), "drop capabilities")


def forbid_new_privileges() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1, "no_new_privs")


def install_filter(program: bytes) -> None:
    """Installs a seccomp program, which has 8 bytes for each instruction."""
    buffer = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    pointer = ctypes.create_string_buffer(described, len(described))
    result = libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.c_void_p(ctypes.addressof(pointer)))
    checked(result, "install the seccomp filter")


def count_cpu(pid: int, below: bool = True) -> int:
    """A descriptor that tells the CPU time of a process and of all that it starts from now on, however they end."""
    flags = _PERF_EXCLUDE_KERNEL | _PERF_EXCLUDE_HYPERVISOR | (_PERF_INHERIT if below else 0)
    kind = (_PERF_SOFTWARE, _PERF_BYTES, _PERF_TASK_CLOCK)
    attributes = struct.pack("=IIQQQQQIIQ", *kind, 0, 0, 0, flags, 0, 0, 0)
    number, close_on_exec = _NUMBERS.get("perf_event_open", -1), ctypes.c_ulong(_PERF_CLOSE_ON_EXEC)
    return checked(libc.syscall(number, attributes, pid, -1, -1, close_on_exec), "count CPU time")


def counted_cpu_s(counter: int) -> float:
    return int.from_bytes(os.read(counter, 8), sys.byteorder) / 1e9


def landlock_version() -> int:
    """The version of Landlock; 0 if the kernel has none, or has it switched off."""
    return max(0, int(libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))))


def landlock_ruleset(attributes: bytes) -> int:
    return checked(
        libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)),
        "create a Landlock ruleset",
    )


def landlock_allow(ruleset: int, path: str, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", access, descriptor)
        checked(libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, ctypes.c_uint(0)), f"Landlock rule for {path}")
    finally:
        os.close(descriptor)


def landlock_restrict(ruleset: int) -> None:
    checked(libc.syscall(_LANDLOCK_RESTRICT, ruleset, ctypes.c_uint(0)), "enforce Landlock")


def map_ids(inside: int, uid: int, gid: int) -> None:
    """In a new user namespace: maps one user and one group to these outside."""
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{inside} {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{inside} {gid} 1", encoding="ascii")

"""System calls that a run has no use for are refused, by a filter that no process of the run can take off.

Invariant: a call is refused if it is named here, newer than this list, or made through another architecture's table.
Numbers are those of the kernel's asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64), Linux 6.1.
"""

import errno
import platform
import struct
from dataclasses import dataclass
from functools import cache

_X86_64 = {
    "acct": 163, "add_key": 248, "adjtimex": 159, "bpf": 321, "chroot": 161, "clock_adjtime": 305,
    "clock_settime": 227, "delete_module": 176, "fanotify_init": 300, "finit_module": 313, "fsconfig": 431,
    "fsmount": 432, "fsopen": 430, "fspick": 433, "init_module": 175, "io_uring_enter": 426,
    "io_uring_register": 427, "io_uring_setup": 425, "ioperm": 173, "iopl": 172, "kcmp": 312,
    "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250, "lookup_dcookie": 212, "mbind": 237,
    "migrate_pages": 256, "modify_ldt": 154, "mount": 165, "mount_setattr": 442, "move_mount": 429,
    "move_pages": 279, "mq_open": 240, "msgget": 68, "msgrcv": 70, "msgsnd": 69, "name_to_handle_at": 303,
    "nfsservctl": 180, "open_by_handle_at": 304, "open_tree": 428, "perf_event_open": 298, "personality": 135,
    "pidfd_getfd": 438, "pivot_root": 155, "process_madvise": 440, "process_vm_readv": 310,
    "process_vm_writev": 311, "ptrace": 101, "quotactl": 179, "quotactl_fd": 443, "reboot": 169,
    "request_key": 249, "semget": 64, "semop": 65, "semtimedop": 220, "set_mempolicy": 238, "setdomainname": 171,
    "sethostname": 170, "setns": 308, "settimeofday": 164, "shmat": 30, "shmget": 29, "socket": 41, "swapoff": 168,
    "swapon": 167, "syslog": 103, "umount2": 166, "unshare": 272, "uselib": 134, "userfaultfd": 323,
    "vhangup": 153, "vmsplice": 278, "clone3": 435, "memfd_create": 319, "memfd_secret": 447, "setsockopt": 54,
    "socketpair": 53, "clone": 56,
    "ioctl": 16, "inotify_init": 253, "inotify_init1": 294, "io_setup": 206, "mmap": 9, "prctl": 157,
    "setrlimit": 160, "prlimit64": 302,
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446,
    "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "truncate": 76, "open": 2, "openat": 257, "openat2": 437,
}  # fmt: skip
_AARCH64 = {
    "acct": 89, "add_key": 217, "adjtimex": 171, "bpf": 280, "chroot": 51, "clock_adjtime": 266,
    "clock_settime": 112, "delete_module": 106, "fanotify_init": 262, "finit_module": 273, "fsconfig": 431,
    "fsmount": 432, "fsopen": 430, "fspick": 433, "init_module": 105, "io_uring_enter": 426,
    "io_uring_register": 427, "io_uring_setup": 425, "kcmp": 272, "kexec_file_load": 294, "kexec_load": 104,
    "keyctl": 219, "lookup_dcookie": 18, "mbind": 235, "migrate_pages": 238, "mount": 40, "mount_setattr": 442,
    "move_mount": 429, "move_pages": 239, "mq_open": 180, "msgget": 186, "msgrcv": 188, "msgsnd": 189,
    "name_to_handle_at": 264, "nfsservctl": 42, "open_by_handle_at": 265, "open_tree": 428, "perf_event_open": 241,
    "personality": 92, "pidfd_getfd": 438, "pivot_root": 41, "process_madvise": 440, "process_vm_readv": 270,
    "process_vm_writev": 271, "ptrace": 117, "quotactl": 60, "quotactl_fd": 443, "reboot": 142, "request_key": 218,
    "semget": 190, "semop": 193, "semtimedop": 192, "set_mempolicy": 237, "setdomainname": 162, "sethostname": 161,
    "setns": 268, "settimeofday": 170, "shmat": 196, "shmget": 194, "socket": 198, "swapoff": 225, "swapon": 224,
    "syslog": 116, "umount2": 39, "unshare": 97, "userfaultfd": 282, "vhangup": 58, "vmsplice": 75, "clone3": 435,
    "memfd_create": 279, "memfd_secret": 447, "setsockopt": 208, "socketpair": 199, "clone": 220, "ioctl": 29,
    "inotify_init1": 26, "io_setup": 0, "mmap": 222, "prctl": 167,
    "setrlimit": 164, "prlimit64": 261,
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446,
    "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "truncate": 45, "openat": 56, "openat2": 437,
}  # fmt: skip
# Refused as if the kernel had none, so that callers take the older way, which is filtered here or limited elsewhere.
# Landlock is among them, as the run has it on already: rules take the kernel's memory, 70 bytes each, uncounted.
_ABSENT = frozenset(
    {
        *("clone3", "memfd_create", "memfd_secret", "openat2"),
        *("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),
    }
)
# Refused as on a disk that knows no attributes: among them are lists of who may do what with a file (acl(5)), which
# take up to 128 KiB of the kernel's memory for each folder, uncounted.
_UNSUPPORTED = frozenset({"setxattr", "lsetxattr", "fsetxattr"})
_LAST_KNOWN = 451  # newer calls have not been looked at
_X32 = 0x40000000  # the second table of x86_64
_NEW_NAMESPACES = 0x7E020000
_TIOCSTI = 0x5412  # types into a terminal
# The latest options of prctl lie between these. PR_SCHED_CORE (62) keeps others from the rest of a core, and
# PR_FUTEX_HASH (78) takes as much of the kernel's memory as is asked for. Later ones have not been looked at.
_NEW_OPTION, _NAMED_OPTION = 62, 1 << 16
_CORE = 4  # RLIMIT_CORE: so that no crash has the machine run a program of its own
# MAP_HUGETLB: from a stock of the whole machine's, and counted as no process's memory. MAP_SHARED of no file: its pages
# stay as long as one of them is mapped somewhere, and those that are not count as no process's.
_HUGE_PAGES = 0x40000
_SHARED, _ANONYMOUS, _KIND_OF_MAPPING = 0x1, 0x20, 0xF

_OPENING = (("open", 1), ("openat", 2))  # and which of its arguments are the flags
_TRUNCATED, _MODE = 0x200, 0x3  # O_TRUNC; the mode is 1 or 2 to write, and with 3 Landlock asks for no right at all
_UNIX, _STREAM, _PACKETS = 1, 1, 5  # the pairs of sockets that a program may make
_KIND = 0xF  # masks a socket's kind, without the flags beside it

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The calls of one architecture."""

    architecture: int
    numbers: dict[str, int]


TABLES = {"x86_64": Table(0xC000003E, _X86_64), "aarch64": Table(0xC00000B7, _AARCH64)}


def known_here() -> bool:
    return platform.machine() in TABLES


@cache
def filter_program(table: Table | None = None, socket_pairs: bool = True, truncate: bool = True) -> bytes:
    """The filter for this machine's architecture, or the one given. Without `truncate` no file is cut off that is not
    opened to be written.

    Pairs of sockets hold memory that no process is charged for: refused unless `socket_pairs`, when the keeper counts
    them. A socket of a datagram pair is always refused: it could send to any socket that is a file.
    """
    asked = {"socketpair": socket_pairs, "truncate": truncate, "openat2": truncate}
    judged = {"clone", "ioctl", "mmap", "prctl", "setrlimit", "prlimit64", "open", "openat"}
    allowed = judged | {name for name in asked if asked[name]}
    table = table or TABLES[platform.machine()]
    lines = [_line(_LOAD, _ARCHITECTURE_AT), *_unless(table.architecture, _KILL), _line(_LOAD, _NUMBER_AT)]
    lines += [_line(_AT_LEAST, _X32, 0, 1), _line(_RETURN, _KILL)]
    lines += [_line(_AT_LEAST, _LAST_KNOWN, 0, 1), _refuse(errno.ENOSYS)]
    for name, number in table.numbers.items():
        if name not in allowed:
            lines += [_line(_EQUAL, number, 0, 1), _refuse(_reason(name))]
    lines += _refuse_with(table.numbers["clone"], 0, _ANY_BIT, _NEW_NAMESPACES)
    lines += _refuse_with(table.numbers["ioctl"], 1, _EQUAL, _TIOCSTI)
    lines += _memory_that_counts_alone(table.numbers["mmap"])
    lines += _refuse_with(table.numbers["setrlimit"], 0, _EQUAL, _CORE)
    lines += _no_limit_set(table.numbers["prlimit64"], _CORE)
    lines += _no_new_options(table.numbers["prctl"])
    for name, flags in () if truncate else _OPENING:
        lines += _no_cutting_off(table.numbers[name], flags) if name in table.numbers else []
    if socket_pairs:
        lines += _connected_pairs_alone(table.numbers["socketpair"])
    lines.append(_line(_RETURN, _ALLOW))
    return b"".join(lines)


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _unless(value: int, action: int) -> tuple[bytes, bytes]:
    return _line(_EQUAL, value, 1, 0), _line(_RETURN, action)


def _refuse(number: int) -> bytes:
    return _line(_RETURN, _ERRNO | number)


def _reason(name: str) -> int:
    return errno.ENOSYS if name in _ABSENT else errno.ENOTSUP if name in _UNSUPPORTED else errno.EPERM


def _refuse_with(number: int, argument: int, test: int, value: int) -> list[bytes]:
    """Refuses a call if the lower half of its argument passes the test."""
    load = _line(_LOAD, _ARGUMENTS_AT + 8 * argument)
    checked = [load, _line(test, value, 0, 1), _refuse(errno.EPERM), _line(_RETURN, _ALLOW)]
    return [_line(_EQUAL, number, 0, len(checked)), *checked]


def _memory_that_counts_alone(number: int) -> list[bytes]:
    checked = [
        *(_line(_LOAD, _ARGUMENTS_AT + 8 * 3), _line(_ANY_BIT, _HUGE_PAGES, 2, 0)),
        *(_line(_MASK, _KIND_OF_MAPPING | _ANONYMOUS), _line(_EQUAL, _SHARED | _ANONYMOUS, 0, 1)),
        *(_refuse(errno.EPERM), _line(_RETURN, _ALLOW)),
    ]
    return [_line(_EQUAL, number, 0, len(checked)), *checked]


def _no_cutting_off(number: int, flags: int) -> list[bytes]:
    """Refuses to open a file that is not to be written, and cut off all the same."""
    checked = [
        *(_line(_LOAD, _ARGUMENTS_AT + 8 * flags), _line(_MASK, _TRUNCATED | _MODE)),
        *(_line(_EQUAL, _TRUNCATED, 1, 0), _line(_EQUAL, _TRUNCATED | _MODE, 0, 1)),
        *(_refuse(errno.EPERM), _line(_RETURN, _ALLOW)),
    ]
    return [_line(_EQUAL, number, 0, len(checked)), *checked]


def _no_limit_set(number: int, kind: int) -> list[bytes]:
    """Refuses prlimit if it sets a limit: a call that only asks names no new one."""
    kind_at, new_at = _ARGUMENTS_AT + 8, _ARGUMENTS_AT + 16
    checked = [
        *(_line(_LOAD, kind_at), _line(_EQUAL, kind, 0, 5)),
        *(_line(_LOAD, new_at), _line(_EQUAL, 0, 0, 2), _line(_LOAD, new_at + 4), _line(_EQUAL, 0, 1, 0)),
        *(_refuse(errno.EPERM), _line(_RETURN, _ALLOW)),
    ]
    return [_line(_EQUAL, number, 0, len(checked)), *checked]


def _no_new_options(number: int) -> list[bytes]:
    checked = [
        *(_line(_LOAD, _ARGUMENTS_AT), _line(_AT_LEAST, _NEW_OPTION, 0, 2), _line(_AT_LEAST, _NAMED_OPTION, 1, 0)),
        *(_refuse(errno.EINVAL), _line(_RETURN, _ALLOW)),
    ]
    return [_line(_EQUAL, number, 0, len(checked)), *checked]


def _connected_pairs_alone(number: int) -> list[bytes]:
    """Allows only pairs of Unix sockets that are connected for ever: no other family, and none that sends elsewhere."""
    family, kind = _ARGUMENTS_AT, _ARGUMENTS_AT + 8
    checked = [
        *(_line(_LOAD, family), _line(_EQUAL, _UNIX, 0, 5)),
        *(_line(_LOAD, kind), _line(_MASK, _KIND), _line(_EQUAL, _STREAM, 1, 0), _line(_EQUAL, _PACKETS, 0, 1)),
        *(_line(_RETURN, _ALLOW), _refuse(errno.EPERM)),
    ]
    return [_line(_EQUAL, number, 0, len(checked)), *checked]

"""Which protections this machine can give, found by trying each in a child that is thrown away.

Invariant: trying changes nothing for this process, and what is reported as active has worked here a moment ago.
"""

import os
from collections.abc import Callable, Collection
from functools import partial

from rollmux.runtime.sandbox import kernel, landlock, root, seccomp
from rollmux.runtime.sandbox.protections import Mechanism, Protections

# Above the numbers that distributions and containers hand out (systemd's "uids and gids" page), below 2**31.
FIRST_USER = 0x7000_0000
USERS_EACH, USER_BLOCKS = 1024, 1 << 18
NOBODY = 65534

_NAMESPACES = {
    Mechanism.PID_NAMESPACE: kernel.CLONE_NEWPID,
    Mechanism.NETWORK_NAMESPACE: kernel.CLONE_NEWNET,
    Mechanism.IPC_NAMESPACE: kernel.CLONE_NEWIPC,
}


def probe(without: Collection[Mechanism] = ()) -> Protections:
    """The protections that work here. Those in `without` are not used, even if they work."""
    attempts = _attempts(user_namespace=Mechanism.OWN_USER in without or _try(become_somebody) is not None)
    missing: dict[Mechanism, str] = {}
    for mechanism, attempt in attempts.items():
        why = "left out as asked" if mechanism in without else _try(attempt)
        if why is not None:
            missing[mechanism] = why
    active = frozenset(attempts) - frozenset(missing)
    version = kernel.landlock_version() if Mechanism.LANDLOCK in active else 0
    return Protections(active, missing, version)


def _attempts(user_namespace: bool) -> dict[Mechanism, Callable[[], None]]:
    """How to try each mechanism. All need a user namespace, unless this process may change its user."""
    first = kernel.CLONE_NEWUSER if user_namespace else 0
    return {
        Mechanism.OWN_USER: become_somebody,
        Mechanism.USER_NAMESPACE: partial(_enter, kernel.CLONE_NEWUSER) if user_namespace else _not_needed,
        Mechanism.MOUNT_NAMESPACE: partial(_enter_root, first),
        **{each: partial(_enter, first | flag) for each, flag in _NAMESPACES.items()},
        Mechanism.LANDLOCK: _try_landlock,
        Mechanism.SECCOMP: _try_seccomp,
        Mechanism.CPU_COUNTER: _try_counter,
    }


def become_somebody(uid: int = FIRST_USER) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _not_needed() -> None:
    raise OSError("not needed with a user of its own")


def _enter(flags: int) -> None:
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(flags)
    if flags & kernel.CLONE_NEWUSER:
        kernel.map_ids(NOBODY, uid, gid)
    if flags & kernel.CLONE_NEWPID:
        _wait_for(os.fork() or os._exit(0))


def _enter_root(first: int) -> None:
    _enter(first | kernel.CLONE_NEWNS)
    root.enter_fresh_root()
    root.mount_scratch(NOBODY, 1 << 20, 16)
    root.cover_proc()


def _try_landlock() -> None:
    version = kernel.landlock_version()
    if version == 0:
        raise OSError("this kernel has none, or has it switched off")
    kernel.forbid_new_privileges()
    landlock.restrict(version, ["/"], [])


def _try_seccomp() -> None:
    if not seccomp.known_here():
        raise OSError("no table of system calls for this architecture")
    kernel.forbid_new_privileges()
    kernel.install_filter(seccomp.filter_program())


def _try_counter() -> None:
    if kernel.counted_cpu_s(kernel.count_cpu(os.getpid())) <= 0:
        raise OSError("it does not count")


def _try(attempt: Callable[[], None]) -> str | None:
    """Why an attempt did not work; None if it did."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            attempt()
            status = 0
        except Exception as error:  # noqa: BLE001 - an attempt that fails in any way is no protection
            os.write(writing, str(error).encode()[:4096])
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read().decode(errors="replace")
    ended = _wait_for(pid)
    return None if ended == 0 else told or f"the attempt ended with status {ended}"


def _wait_for(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

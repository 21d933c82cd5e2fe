"""What stands between hostile code and this machine, as far as this machine can do it.

Invariant: a concern counts as covered only by a protection that was tried here and worked.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from rollmux.errors import RollmuxError


class Mechanism(Enum):
    """One protection of the kernel's."""

    USER_NAMESPACE = "user namespace"
    MOUNT_NAMESPACE = "mount namespace"
    PID_NAMESPACE = "pid namespace"
    NETWORK_NAMESPACE = "network namespace"
    IPC_NAMESPACE = "ipc namespace"
    OWN_USER = "a user of its own"
    LANDLOCK = "landlock"
    SECCOMP = "seccomp"
    CPU_COUNTER = "counter of CPU time"


class Concern(Enum):
    """What hostile code could do to others."""

    FILES = "read or write files of this machine"
    DISK = "fill a disk of this machine"
    NETWORK = "reach a network or another process's socket"
    PROCESSES = "see, trace or signal other processes"
    TREE = "leave processes behind"
    PRIVILEGE = "act with the rights of whoever started it"
    KERNEL = "make system calls that a program has no use for"


_M = Mechanism
# Each set by itself covers the concern, if all of the set is there.
_COVERS: dict[Concern, tuple[frozenset[Mechanism], ...]] = {
    Concern.FILES: (frozenset({_M.MOUNT_NAMESPACE}), frozenset({_M.LANDLOCK})),
    Concern.DISK: (frozenset({_M.MOUNT_NAMESPACE}),),
    # The network namespace does not hide sockets that are files.
    Concern.NETWORK: (frozenset({_M.NETWORK_NAMESPACE, _M.MOUNT_NAMESPACE}), frozenset({_M.SECCOMP})),
    # The first stops signals by number, the second looks through the machine's own /proc.
    Concern.PROCESSES: tuple(
        frozenset({first, second})
        for first in (_M.PID_NAMESPACE, _M.OWN_USER)
        for second in (_M.MOUNT_NAMESPACE, _M.LANDLOCK)
    ),
    Concern.TREE: (frozenset({_M.PID_NAMESPACE}), frozenset({_M.OWN_USER})),
    Concern.PRIVILEGE: (frozenset({_M.OWN_USER}), frozenset({_M.USER_NAMESPACE, _M.MOUNT_NAMESPACE})),
    Concern.KERNEL: (frozenset({_M.SECCOMP}),),
}


@dataclass(frozen=True, slots=True)
class Protections:
    """The mechanisms that work here, with the kernel's reason for each that does not."""

    active: frozenset[Mechanism]
    missing: dict[Mechanism, str]
    landlock_version: int = 0

    @property
    def uncovered(self) -> frozenset[Concern]:
        return frozenset(concern for concern, ways in _COVERS.items() if not any(way <= self.active for way in ways))

    def lines(self) -> list[str]:
        """What is active, what is missing and why, and what is not prevented, in plain words."""
        told = [f"active: {mechanism.value}" for mechanism in Mechanism if mechanism in self.active]
        told += [f"missing: {mechanism.value} ({why})" for mechanism, why in self.missing.items()]
        told += [f"not prevented: {concern.value}" for concern in Concern if concern in self.uncovered]
        return told

    def require(self, allowed: Collection[Concern]) -> None:
        exposed = self.uncovered - frozenset(allowed)
        if exposed:
            raise Unprotected(frozenset(exposed), self)


class SandboxError(RollmuxError):
    """The sandbox itself failed: nothing is known of a program."""


class Unprotected(SandboxError):
    """This machine can't hold hostile code in the ways that were asked for."""

    def __init__(self, exposed: frozenset[Concern], protections: Protections) -> None:
        self.exposed, self.protections = exposed, protections
        named = "; ".join(f"{concern.name} ({concern.value})" for concern in Concern if concern in exposed)
        why = "; ".join(f"{mechanism.value}: {reason}" for mechanism, reason in protections.missing.items())
        super().__init__(
            f"code could {named}: must be prevented, and nothing here does ({why}); "
            "run where the kernel allows it, or name what may happen in allow=..."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return Unprotected, (self.exposed, self.protections)

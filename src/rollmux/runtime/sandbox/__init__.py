"""A sandbox for hostile code on Linux, without root and without a container engine."""

from rollmux.runtime.sandbox.limits import Program, RunLimits
from rollmux.runtime.sandbox.outcome import Cause, Ended
from rollmux.runtime.sandbox.protections import Concern, Mechanism, Protections, SandboxError, Unprotected
from rollmux.runtime.sandbox.sandbox import Sandbox

__all__ = [
    "Cause",
    "Concern",
    "Ended",
    "Mechanism",
    "Program",
    "Protections",
    "RunLimits",
    "Sandbox",
    "SandboxError",
    "Unprotected",
]

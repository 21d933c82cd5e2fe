"""What a job imports: `rollmux.connect()` and phases. It needs the standard library and httpx, nothing of the service.

Any call may be repeated and any answer may get lost: a phase's work counts once the controller says so.
"""

from rollmux.client.attach import connect
from rollmux.client.errors import AlreadyCommitted, CallRefused, LeaseLost, Stopped, Unreachable
from rollmux.client.mux import Mux
from rollmux.client.phase import Phase

__all__ = [
    "AlreadyCommitted",
    "CallRefused",
    "LeaseLost",
    "Mux",
    "Phase",
    "Stopped",
    "Unreachable",
    "connect",
]

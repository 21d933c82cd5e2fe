"""What a job imports: `rollmux.connect()` and phases. Standard library and httpx only; nothing of the service.

Any call may be repeated and any answer may get lost: what a phase did counts when the controller says that it does.
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

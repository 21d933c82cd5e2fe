"""RollMux: many RL post-training jobs on shared rollout and training machines."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Loads the client only when somebody asks for `connect`: planning needs no HTTP."""
    if name == "connect":
        return import_module("rollmux.client").connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The `vllm` engine: a vLLM or SGLang server behind HTTP (`engine.py`); `vllm` and `sglang` say how each is
spoken to.

It needs no torch: the server has that.
"""

from rollmux.runtime.engine.http.engine import HttpEngine
from rollmux.runtime.engine.http.errors import (
    EngineWorn,
    MemoryHeld,
    ServerFailed,
    ServerMismatch,
    ServerRefused,
    Unsound,
)
from rollmux.runtime.engine.http.memory import Memory, environment_of, nvidia_smi
from rollmux.runtime.engine.http.settings import Settings
from rollmux.runtime.engine.http.sglang import Sglang
from rollmux.runtime.engine.http.vllm import Vllm
from rollmux.runtime.engine.http.wire import Server

__all__ = [
    "EngineWorn",
    "HttpEngine",
    "Memory",
    "MemoryHeld",
    "Server",
    "ServerFailed",
    "ServerMismatch",
    "ServerRefused",
    "Settings",
    "Sglang",
    "Unsound",
    "Vllm",
    "environment_of",
    "nvidia_smi",
]

"""Rollout engines behind one seam (`seam.py`): `slots` computes a model here, `replay` plays lengths without one.

Nothing that this package exports needs torch; `rollmux.runtime.engine.slots` does.
"""

from rollmux.runtime.engine.canary import Canary
from rollmux.runtime.engine.errors import (
    CanaryDied,
    EngineClosed,
    EngineSuspended,
    UnsupportedModel,
    UpdateRefused,
)
from rollmux.runtime.engine.local import Limits, LocalEngine
from rollmux.runtime.engine.requests import (
    Ended,
    Event,
    FinishReason,
    Generated,
    GenerationRequest,
    Grown,
    Unfinished,
)
from rollmux.runtime.engine.seam import Begun, Engine, Gauges, stream

__all__ = [
    "Begun",
    "Canary",
    "CanaryDied",
    "Ended",
    "Engine",
    "EngineClosed",
    "EngineSuspended",
    "Event",
    "FinishReason",
    "Gauges",
    "Generated",
    "GenerationRequest",
    "Grown",
    "Limits",
    "LocalEngine",
    "Unfinished",
    "UnsupportedModel",
    "UpdateRefused",
    "stream",
]

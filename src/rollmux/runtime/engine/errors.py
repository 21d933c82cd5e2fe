"""What an engine refuses, and what can go wrong with it.

RollmuxError
├── EngineClosed       something was asked of an engine that is closed
├── EngineSuspended    something was asked that only a running engine can do
├── UpdateRefused      new weights, or tokens of other weights, would break on-policy; nothing was changed
├── UnsupportedModel   the `slots` engine can't compute this model exactly
├── EngineLost         the process of an engine dies again and again
├── EngineFailed       an engine elsewhere raised something that can't be sent as it is
└── CanaryDied         the engine answers a fixed prompt otherwise than before: its weights or memory are damaged

A request that is described wrongly is an `InvalidSpec`, as everywhere.
"""

from rollmux.errors import RollmuxError


class EngineClosed(RollmuxError):
    """Make a new engine."""


class EngineSuspended(RollmuxError):
    """Call `resume` first."""


class UpdateRefused(RollmuxError):
    """Nothing was changed: the weights and the requests are as they were."""


class UnsupportedModel(RollmuxError):
    """The message says which part of the model is not known."""


class EngineLost(RollmuxError):
    """Its requests are still there: make another engine for them, with more memory, say."""


class EngineFailed(RollmuxError):
    """Raised in place of an error that can't be sent: the message says what that was."""


class CanaryDied(RollmuxError):
    """End the engine and load its weights anew: what it generates can't be trusted."""

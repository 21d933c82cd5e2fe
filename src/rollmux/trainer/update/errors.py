"""The errors of an update, beside `InvalidSpec` (a wrong description) and `IllegalEvent` (a call at the wrong time).

RollmuxError
├── WrongVersion      a token was drawn by other weights than those of this update; nothing was added
├── UntrainableModel  the model can't be scored exactly as it stands
└── NotANumber        a log-probability, a ratio or the whole gradient is not finite; no weight was changed
"""

from rollmux.errors import RollmuxError


class WrongVersion(RollmuxError):
    """End the run: it did not train on the samples that it claims."""


class UntrainableModel(RollmuxError):
    """The message says which part of the model is not known here."""


class NotANumber(RollmuxError):
    """The message names the groups, or the step."""

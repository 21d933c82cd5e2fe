"""What the update refuses beside what is described wrongly (`InvalidSpec`) or comes too late (`IllegalEvent`).

RollmuxError
├── WrongVersion      a token was drawn by other weights than those of this update; nothing was added
├── UntrainableModel  the model can't be scored exactly as it stands
└── NotANumber        a log-probability, a ratio or the whole gradient is not finite; no weight was changed
"""

from rollmux.errors import RollmuxError


class WrongVersion(RollmuxError):
    """End the run: what it has trained on is not what it claims."""


class UntrainableModel(RollmuxError):
    """The message says what about the model is not known."""


class NotANumber(RollmuxError):
    """The message names the groups, or the step."""

"""What can go wrong with an engine behind HTTP, beside what can go wrong with any engine.

RollmuxError
├── ServerFailed     the server can't be reached, refuses, or broke off what was asked of it
│   └── ServerRefused    it answered, and said no
├── ServerMismatch   the server is not what the engine was made for: other weights, half an update, a bad setting
├── MemoryHeld       the server says that it sleeps, yet the bytes are not free (F9)
│   └── MemoryUnknown    nobody can tell whether they are
├── EngineWorn       the server has leaked more than it may: end it and start it anew
└── Unsound          what came for a response contradicts itself; the response ends as failed, the engine goes on
"""

from rollmux.errors import RollmuxError


class ServerFailed(RollmuxError):
    """Look whether the server runs; what was asked may or may not have been done, and may be asked again."""


class ServerRefused(ServerFailed):
    """The server's own words are in the message."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return ServerRefused, (self.status, str(self))


class ServerMismatch(RollmuxError):
    """Start the server as the message says, or bring it to the engine's version."""


class MemoryHeld(RollmuxError):
    """End the server before its memory is given to anybody else."""


class MemoryUnknown(MemoryHeld):
    """Nobody can tell now what the server holds: ask again."""


class EngineWorn(RollmuxError):
    """Export what is unfinished, close the engine, and start the server anew."""


class Unsound(RollmuxError):
    """The message says what contradicts what."""

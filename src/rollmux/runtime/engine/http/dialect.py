"""What differs between servers: how each thing is said, and how what they say is read. Pure; see `vllm`, `sglang`."""

from collections.abc import Mapping
from typing import Any, Protocol

from rollmux.runtime.engine.http.calls import Attempt, Call, Piece, Reply
from rollmux.runtime.engine.requests import GenerationRequest
from rollmux.runtime.engine.seam import Gauges

WEIGHTS, CACHE = "weights", "kv_cache"  # both servers use the same two names


class Dialect(Protocol):
    """How a server is spoken to."""

    @property
    def tells_version_with_tokens(self) -> bool:
        """Whether each piece carries the version; otherwise it is asked before each attempt."""

    @property
    def spare(self) -> int:
        """Tokens of its own limit that the server leaves to no prompt with its response."""

    def check(self, request: GenerationRequest) -> None:
        """`InvalidSpec` for what the server would do otherwise than the seam says."""

    def generate(self, attempt: Attempt) -> Call: ...

    def read(self, data: bytes) -> Piece | None:
        """One event; None if it says nothing. `ValueError` if it can't be read."""

    def abort(self, name: str) -> Call: ...

    def health(self) -> Call: ...

    def pause(self) -> Call:
        """No more tokens; what runs is ended as aborted."""

    def end_all(self) -> Call | None:
        """Ends as aborted what runs, where the pause that does so too would look for its end once a second only."""

    def freeze(self) -> Call:
        """No more tokens; what runs stays, with its keys and values."""

    def proceed(self) -> Call: ...

    def setup(self) -> Call | None:
        """Asks how the server was started, where its sleep hangs on that."""

    def require_sleeper(self, reply: Reply) -> None:
        """`ServerMismatch` where a sleep would lose its weights, or end it."""

    def idle(self) -> Call | None:
        """Refused with 400 as long as anything is computed, where a pause does not wait for its end."""

    def sleep(self) -> Call: ...

    def wake(self, tag: str) -> Call: ...

    def invalidate(self) -> Call:
        """Forgets keys and values of prompts seen before."""

    def update(self, version: int, weights: Mapping[str, Any] | None) -> tuple[Call, ...]:
        """The calls of an update; the last of them says the version."""

    def folder(self) -> Call: ...

    def read_folder(self, reply: Reply) -> str:
        """The folder that the server was started with, or has its weights from now; it may be on its machine alone."""

    def undo(self, weights: Mapping[str, Any] | None) -> tuple[Call, ...]:
        """Make an end of such an update where it did not end itself: nothing of it is left beneath the next one."""

    def announce(self, version: int) -> Call: ...

    def version(self) -> Call: ...

    def read_version(self, reply: Reply) -> str: ...

    def metrics(self) -> Call: ...

    def read_gauges(self, reply: Reply) -> Gauges:
        """As far as the server tells; counts since the server was started."""

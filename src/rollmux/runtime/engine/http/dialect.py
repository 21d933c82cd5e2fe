"""How a server is spoken to: what servers say alike, and what they don't, which is in `vllm` and `sglang`. Pure.

Invariant: the last call of an update says the version, whichever way the weights come.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from rollmux.runtime.engine.http import reading
from rollmux.runtime.engine.http.calls import Attempt, Call, Piece, Reply
from rollmux.runtime.engine.http.weights import FromDisk, InPlace, Transferred, source
from rollmux.runtime.engine.requests import GenerationRequest
from rollmux.runtime.engine.seam import Gauges

WEIGHTS, CACHE = "weights", "kv_cache"  # both servers use the same two names
VERSION_ROUTE = "/update_weight_version"


class Dialect(Protocol):
    """One kind of server. How each thing is said, and how what it says is read."""

    __slots__ = ()

    tells_version_with_tokens: ClassVar[bool]  # with each piece; otherwise it is asked before each attempt
    spare: ClassVar[int]  # tokens of its own limit that the server leaves to no prompt with its response

    def check(self, request: GenerationRequest) -> None:
        """`InvalidSpec` for what the server would do otherwise than the seam says."""

    def generate(self, attempt: Attempt) -> Call: ...

    def read(self, data: bytes) -> Piece | None:
        """One event; None if it says nothing. `ValueError` if it can't be read."""
        if data.strip() == b"[DONE]":
            return None
        event = reading.thing(data)
        return reading.error(event["error"]) if "error" in event else self._read(event)

    def _read(self, event: dict[str, Any]) -> Piece: ...

    def abort(self, name: str) -> Call: ...

    def health(self) -> Call:
        return Call("GET", "/health")

    def pause(self) -> Call:
        """No more tokens; what runs is ended as aborted."""

    def end_all(self) -> Call | None:
        """Ends as aborted what runs, where the pause that does so too would look for its end once a second only."""
        return None

    def freeze(self) -> Call:
        """No more tokens; what runs stays, with its keys and values."""

    def proceed(self) -> Call: ...

    def setup(self) -> Call | None:
        """Asks how the server was started, where its sleep hangs on that."""
        return None

    def require_sleeper(self, reply: Reply) -> None:
        """`ServerMismatch` where a sleep would lose its weights, or end it."""

    def idle(self) -> Call | None:
        """Refused with 400 as long as anything is computed, where a pause does not wait for its end."""
        return None

    def sleep(self) -> Call: ...

    def wake(self, tag: str) -> Call: ...

    def invalidate(self) -> Call:
        """Forgets keys and values of prompts seen before."""

    def update(self, version: int, weights: Mapping[str, Any] | None) -> tuple[Call, ...]:
        """The calls of an update."""
        match source(weights):
            case InPlace():
                return (self.announce(version),)
            case FromDisk(path):
                return self._from_disk(path, version)
            case Transferred(info):
                return self._transferred(dict(info), version)

    def _from_disk(self, path: str, version: int) -> tuple[Call, ...]: ...

    def _transferred(self, info: dict[str, Any], version: int) -> tuple[Call, ...]: ...

    def undo(self, weights: Mapping[str, Any] | None) -> tuple[Call, ...]:
        """Make an end of such an update where it did not end itself: nothing of it is left beneath the next one."""
        match source(weights):
            case InPlace():
                return ()
            case FromDisk():
                return self._undo_from_disk()
            case Transferred():
                return self._undo_transferred()

    def _undo_from_disk(self) -> tuple[Call, ...]: ...

    def _undo_transferred(self) -> tuple[Call, ...]: ...

    def folder(self) -> Call: ...

    def read_folder(self, reply: Reply) -> str:
        """The folder that the server was started with, or has its weights from now; it may be on its machine alone."""

    def announce(self, version: int) -> Call: ...

    def version(self) -> Call: ...

    def read_version(self, reply: Reply) -> str:
        return str(reading.thing(reply.content)["weight_version"])

    def metrics(self) -> Call:
        return Call("GET", "/metrics")

    def read_gauges(self, reply: Reply) -> Gauges:
        """As far as the server tells; counts since the server was started."""

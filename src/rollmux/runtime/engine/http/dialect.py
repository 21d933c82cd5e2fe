"""How a server is spoken to: here what both servers do alike; `vllm` and `sglang` have the rest. Pure.

Invariant: the last call of an update tells the server the version, whichever way the weights come.
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
    """One kind of server: how to ask it for each thing, and how to read what it says."""

    __slots__ = ()

    tells_version_with_tokens: ClassVar[bool]  # with each piece; otherwise it is asked for it before each attempt
    spare: ClassVar[int]  # tokens of the server's own limit that no prompt with its response can use

    def check(self, request: GenerationRequest) -> None:
        """`InvalidSpec` for requests that the server would not do as the seam says."""

    def generate(self, attempt: Attempt) -> Call: ...

    def read(self, data: bytes) -> Piece | None:
        """Reads one event; None if it says nothing. `ValueError` if it can't be read."""
        if data.strip() == b"[DONE]":
            return None
        event = reading.thing(data)
        return reading.error(event["error"]) if "error" in event else self._read(event)

    def _read(self, event: dict[str, Any]) -> Piece: ...

    def abort(self, name: str) -> Call: ...

    def health(self) -> Call:
        return Call("GET", "/health")

    def pause(self) -> Call:
        """Stops all tokens, and ends what runs as aborted."""

    def end_all(self) -> Call | None:
        """Ends what runs as aborted, on servers whose pause would look for its end only once a second."""
        return None

    def freeze(self) -> Call:
        """Stops all tokens; what runs stays, with its keys and values."""

    def proceed(self) -> Call: ...

    def setup(self) -> Call | None:
        """Asks how the server was started, if its sleep depends on that."""
        return None

    def require_sleeper(self, reply: Reply) -> None:
        """`ServerMismatch` if a sleep would lose the server's weights, or end the server."""

    def idle(self) -> Call | None:
        """For servers whose pause does not wait for the last step: refused with 400 as long as anything is computed."""
        return None

    def sleep(self) -> Call: ...

    def wake(self, tag: str) -> Call: ...

    def invalidate(self) -> Call:
        """Has the server forget keys and values of earlier prompts."""

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
        """The calls that end such an update if it broke off, so that nothing of it is left when the next one begins."""
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
        """The folder that the server was started with, or took weights from last; it may be on its machine alone."""

    def announce(self, version: int) -> Call: ...

    def version(self) -> Call: ...

    def read_version(self, reply: Reply) -> str:
        return str(reading.thing(reply.content)["weight_version"])

    def metrics(self) -> Call:
        return Call("GET", "/metrics")

    def read_gauges(self, reply: Reply) -> Gauges:
        """Gauges, as far as the server tells; its counts are since it was started."""

"""What vLLM and SGLang servers say alike; what they don't is in `vllm` and `sglang`. Pure.

Invariant: the last call of an update says the version, whichever way the weights come.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from rollmux.runtime.engine.http import reading
from rollmux.runtime.engine.http.calls import Call, Reply
from rollmux.runtime.engine.http.weights import FromDisk, InPlace, Transferred, source

VERSION_ROUTE = "/update_weight_version"


class Alike(ABC):
    """A part of each `Dialect`."""

    __slots__ = ()

    def health(self) -> Call:
        return Call("GET", "/health")

    def metrics(self) -> Call:
        return Call("GET", "/metrics")

    def read_version(self, reply: Reply) -> str:
        return str(reading.thing(reply.content)["weight_version"])

    def update(self, version: int, weights: Mapping[str, Any] | None) -> tuple[Call, ...]:
        match source(weights):
            case InPlace():
                return (self.announce(version),)
            case FromDisk(path):
                return self._from_disk(path, version)
            case Transferred(info):
                return self._transferred(dict(info), version)

    def undo(self, weights: Mapping[str, Any] | None) -> tuple[Call, ...]:
        match source(weights):
            case InPlace():
                return ()
            case FromDisk():
                return self._undo_from_disk()
            case Transferred():
                return self._undo_transferred()

    @abstractmethod
    def announce(self, version: int) -> Call: ...

    @abstractmethod
    def _from_disk(self, path: str, version: int) -> tuple[Call, ...]: ...

    @abstractmethod
    def _transferred(self, info: dict[str, Any], version: int) -> tuple[Call, ...]: ...

    @abstractmethod
    def _undo_from_disk(self) -> tuple[Call, ...]: ...

    @abstractmethod
    def _undo_transferred(self) -> tuple[Call, ...]: ...

"""An engine on another node: the line to it, over a connection such as weight sync uses.

Calls and answers are MessagePack of known types, and nothing is unpickled. Weights do not go this way: they come by
sync, and whoever serves the engine makes sure that a version's weights are there before the engine is told of it.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from rollmux.errors import InvalidSpec, Problem
from rollmux.runtime.engine import errors
from rollmux.runtime.engine.elsewhere import Answer, Standing, Told, answer
from rollmux.runtime.engine.requests import GenerationRequest, Unfinished
from rollmux.runtime.engine.seam import Begun, Gauges
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import SyncFailed

# The most bytes of a call or answer: unfinished responses with all of their tokens are the longest.
MOST_BYTES = 2**30

_CALLS: dict[str, Any] = {
    "submit": tuple[GenerationRequest],
    "cancel": tuple[list[str]],
    "export": tuple[list[str] | None],
    "adopt": tuple[tuple[Unfinished, ...], bool],
    "update": tuple[int, None, Begun],
    "suspend": tuple[bool],
    "resume": tuple[()],
    "step": tuple[()],
    "probe": tuple[tuple[int, ...], int],
    "gauges": tuple[()],
}
_ANSWERS: dict[str, Any] = {
    "export": tuple[Unfinished, ...],
    "step": list[Told],
    "probe": tuple[int, ...],
    "gauges": Gauges,
}


_Plain = str | int | float | bool | None


class _Call(msgspec.Struct, frozen=True, array_like=True):
    name: str
    told: msgspec.Raw


class _Refused(msgspec.Struct, frozen=True, array_like=True):
    """An error, by the name of its kind. One that no engine raises by itself comes as `EngineFailed`.

    With problems (path, value, limit and remedy of each) `text` is their subject.
    """

    kind: str
    text: str
    problems: tuple[tuple[str, _Plain, str, str], ...] = ()

    @classmethod
    def of(cls, error: Exception) -> "_Refused":
        name = type(error).__name__
        if not isinstance(error, InvalidSpec):
            return cls(name, str(error))
        told = tuple((each.path, _plain(each.value), each.limit, each.remedy) for each in error.problems)
        return cls(name, error.subject, told)

    def raised(self) -> Exception:
        if self.problems:
            return InvalidSpec(self.text, tuple(Problem(*each) for each in self.problems))
        kind = _KINDS.get(self.kind)
        return errors.EngineFailed(f"{self.kind}: {self.text}") if kind is None else kind(self.text)


class _Answered(msgspec.Struct, frozen=True, array_like=True):
    found: msgspec.Raw
    refused: _Refused | None
    standing: Standing


_KINDS: dict[str, Callable[[str], Exception]] = {
    kind.__name__: kind
    for kind in (errors.EngineClosed, errors.EngineSuspended, errors.UpdateRefused, errors.UnsupportedModel)
}
_call = msgspec.msgpack.Decoder(_Call)
_answered = msgspec.msgpack.Decoder(_Answered)
_told = {name: msgspec.msgpack.Decoder(kind) for name, kind in _CALLS.items()}
_found = {name: msgspec.msgpack.Decoder(kind) for name, kind in _ANSWERS.items()}


class Spoken:
    """The owner's end of the line. See `rollmux.runtime.engine.elsewhere.Line`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._asked: list[str] = []  # calls that are yet to be answered

    def send(self, name: str, told: tuple[Any, ...]) -> None:
        if name == "update" and told[1] is not None:
            raise errors.UpdateRefused("weights of an engine on another node come by sync: name their version alone")
        try:
            self._channel.write(msgspec.msgpack.encode(_Call(name, msgspec.Raw(msgspec.msgpack.encode(told)))))
        except SyncFailed as error:
            raise ConnectionError(str(error)) from error
        self._asked.append(name)

    def recv(self) -> Answer:
        try:
            answered = _answered.decode(self._channel.read(MOST_BYTES))
            name = self._asked.pop(0)
            found = None if answered.refused else _found[name].decode(answered.found) if name in _found else None
        except (SyncFailed, msgspec.DecodeError) as error:
            raise EOFError(str(error)) from error
        return found, None if answered.refused is None else answered.refused.raised(), answered.standing

    def close(self) -> None:
        self._channel.close()


def serve(engine: Any, channel: Channel) -> None:
    """Does what is asked of the engine, until its owner hangs up. Raises SyncFailed then, or msgspec.DecodeError."""
    while True:
        call = _call.decode(channel.read(MOST_BYTES))
        if call.name not in _told:
            raise msgspec.DecodeError(f"an engine has no call {call.name[:80]!r}")
        found, refusal, standing = answer(engine, call.name, _told[call.name].decode(call.told))
        refused = None if refusal is None else _Refused.of(refusal)
        channel.write(msgspec.msgpack.encode(_Answered(msgspec.Raw(msgspec.msgpack.encode(found)), refused, standing)))


def _plain(value: object) -> _Plain:
    return value if value is None or isinstance(value, str | int | float) else repr(value)

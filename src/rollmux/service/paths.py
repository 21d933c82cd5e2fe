"""Which call a method and a path mean. Parts in braces stand for any text, the others for themselves."""

from collections.abc import Iterable
from typing import Generic, TypeVar
from urllib.parse import unquote

T = TypeVar("T")


class _Step(Generic[T]):
    """Where the parts read so far have led."""

    __slots__ = ("any", "end", "named", "names")

    def __init__(self) -> None:
        self.named: dict[str, _Step[T]] = {}
        self.any: _Step[T] | None = None
        self.end: T | None = None
        self.names: tuple[str, ...] = ()


class Paths(Generic[T]):
    """A tree of all paths, part by part."""

    def __init__(self, calls: Iterable[tuple[str, str, T]]) -> None:
        self._methods: dict[str, _Step[T]] = {}
        for method, path, call in calls:
            step, names = self._methods.setdefault(method, _Step()), []
            for part in path.split("/")[1:]:
                if part.startswith("{"):
                    names.append(part[1:-1])
                    step.any = step.any or _Step()
                    step = step.any
                else:
                    step = step.named.setdefault(part, _Step())
            step.end, step.names = call, tuple(names)

    def find(self, method: str, path: str) -> tuple[T, dict[str, str]] | None:
        """The call, and what stands for its open parts; None where there is none. The path is as it was sent."""
        step = self._methods.get(method)
        texts = []
        for part in path.split("/")[1:]:
            if step is None:
                return None
            following = step.named.get(part)
            if following is None:
                following = step.any
                texts.append(unquote(part))
            step = following
        if step is None or step.end is None:
            return None
        return step.end, dict(zip(step.names, texts, strict=True))

"""Starts of attempts that are under way: each is made once, and goes on to its end even if the caller waits no more.

Nobody would look after half a start.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator

Key = tuple[str, int]


class Starts:
    """At most one for each attempt."""

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._tasks

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tasks)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._tasks.values())

    async def once(self, key: Key, start: Callable[[], Coroutine[object, object, None]]) -> None:
        """Begins the start, or waits for the one that is under way."""
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(start())
            self._tasks[key].add_done_callback(lambda _: self._tasks.pop(key))
        await asyncio.shield(self._tasks[key])

    async def settled(self, key: Key) -> None:
        """Returns when no start of this attempt is under way, however it has ended."""
        if key in self._tasks:
            await asyncio.wait([self._tasks[key]])

"""Where the wire's thread leaves what it heard for the engine's owner.

Invariant: never more than `capacity` notes. When it is full, streams are read no further until there is room, and the
server, whose socket fills up, waits too.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import Generic, TypeVar

Note = TypeVar("Note")


class Inbox(Generic[Note]):
    """Filled by one event loop, emptied by one other thread."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._notes: deque[Note] = deque()
        self._changed = Condition()
        self._room = asyncio.Event()

    async def put(self, note: Note) -> None:
        while not self._put(note):
            await self._room.wait()

    def _put(self, note: Note) -> bool:
        with self._changed:
            if len(self._notes) >= self._capacity:
                self._room.clear()
                return False
            self._notes.append(note)
            self._changed.notify()
            return True

    def take(self, wait_s: float, on_loop: Callable[[Callable[[], None]], object]) -> list[Note]:
        """All notes there are, or the first to come in time. `on_loop` calls a function in the loop's thread."""
        with self._changed:
            if not self._notes and wait_s > 0:
                self._changed.wait(wait_s)
            was_full = len(self._notes) >= self._capacity
            notes = list(self._notes)
            self._notes.clear()
        if was_full:
            on_loop(self._room.set)
        return notes

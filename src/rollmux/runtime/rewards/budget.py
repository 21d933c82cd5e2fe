"""How many pieces of work of one kind run at once.

Invariant: never more than the budget; whoever waits gets a turn in the order of coming.
"""

import asyncio
from types import TracebackType


class Budget:
    """`async with budget:` is a turn."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self._free = asyncio.Semaphore(turns)
        self._wanting = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def wanting(self) -> int:
        """Who has a turn or waits for one."""
        return self._wanting

    async def idle(self) -> None:
        """Until nobody has a turn or waits for one."""
        await self._idle.wait()

    async def __aenter__(self) -> None:
        self._wanting += 1
        self._idle.clear()
        try:
            await self._free.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._free.release()
        self._leave()

    def _leave(self) -> None:
        self._wanting -= 1
        if not self._wanting:
            self._idle.set()

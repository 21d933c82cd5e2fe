"""How many pieces of work of one kind run at once.

Invariant: never more than the budget; those that wait get turns in the order in which they came.
"""

import asyncio


class Budget:
    """Gives turns: `async with budget:` is one."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self._free = asyncio.Semaphore(turns)
        self.wanting = 0  # how many have a turn or wait for one
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Waits until nobody has a turn or waits for one."""
        await self._idle.wait()

    async def __aenter__(self) -> None:
        self.wanting += 1
        self._idle.clear()
        try:
            await self._free.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._free.release()
        self._leave()

    def _leave(self) -> None:
        self.wanting -= 1
        if not self.wanting:
            self._idle.set()

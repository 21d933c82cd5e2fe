"""How many pieces of work of one kind run at once.

Invariant: never more than the budget; whoever waits gets a turn in the order of coming.
"""

import asyncio


class Budget:
    """`async with budget:` is a turn."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self._free = asyncio.Semaphore(turns)
        self.wanting = 0  # who has a turn or waits for one
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Until nobody has a turn or waits for one."""
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

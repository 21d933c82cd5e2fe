"""Work in a copy of the process: it sees one state, and leaves nothing behind."""

import asyncio
import os

import pytest

from rollmux.service.forked import CopyFailed, Forked


def test_the_work_sees_the_state_of_the_moment_at_which_it_began() -> None:
    state = [1]

    async def main() -> bytes:
        aside = Forked(lambda: bytes(state) * 1_000_000)  # more than a pipe holds
        state[0] = 2
        return await aside.result()

    assert asyncio.run(main()) == bytes([1]) * 1_000_000


def test_work_that_fails_is_told_and_leaves_no_process_behind() -> None:
    def broken() -> bytes:
        raise ValueError("no")

    async def main() -> None:
        for work in (broken, lambda: os._exit(3)):
            aside = Forked(work)
            with pytest.raises(CopyFailed):
                await aside.result()
            with pytest.raises(ChildProcessError):
                os.waitpid(aside._pid, os.WNOHANG)

    asyncio.run(main())

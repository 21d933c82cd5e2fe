"""Work in a copy of the process: it sees one state, and leaves nothing behind."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rollmux.service.forked import CopyFailed, Forked
from tests.waiting import until


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


KILLED = """
import os, signal, socket
from rollmux.service.forked import Forked
listener = socket.create_server(("127.0.0.1", 0))
aside = Forked(lambda: bytes(10_000_000))
print(listener.getsockname()[1], aside._pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_copy_does_not_outlive_a_process_that_is_killed_nor_hold_its_port() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, check=False, timeout=30)
    port, copy = map(int, done.stdout.split())
    until(lambda: not Path(f"/proc/{copy}").exists() or Path(f"/proc/{copy}/stat").read_text().split()[2] == "Z")
    socket.create_server(("127.0.0.1", port)).close()

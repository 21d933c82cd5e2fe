"""An engine in a process of its own on this machine, over the same weights, in memory that both share."""

from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

import torch

from rollmux.runtime.engine.elsewhere import Answer, EngineElsewhere, answer
from rollmux.runtime.engine.seam import Engine
from rollmux.runtime.forks import forks

# Makes the engine, over weights of this version. It goes to another process, with a model in shared memory.
Make = Callable[[int], Engine]


class EngineBeside(EngineElsewhere):
    """See `rollmux.runtime.engine.seam.Engine`. Its process begins with the first call that needs one."""

    def __init__(self, make: Make, version: int = 0, threads: int = 1) -> None:
        self._process = _Process(make, threads)
        super().__init__(self._process, version)

    @property
    def pid(self) -> int | None:
        """Of its process, once there is one."""
        process = self._process.running
        return None if process is None else process.pid


class _Process:
    """A process after the other, each with a pipe."""

    def __init__(self, make: Make, threads: int) -> None:
        self._make, self._threads = make, threads
        self.running: ForkServerProcess | None = None

    def begin(self, version: int) -> "_Pipe":
        here, there = forks().Pipe()
        with closing(there):
            told = (self._make, version, self._threads, there)
            process = forks().Process(target=_serve, args=told, name="engine", daemon=True)
            process.start()
        self.running = process
        return _Pipe(here)

    def end(self, patience_s: float) -> None:
        process, self.running = self.running, None
        if process is not None:
            process.join(patience_s)
            process.kill()
            process.join()


class _Pipe:
    """A line of pickles, between processes of one program."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, name: str, told: tuple[Any, ...]) -> None:
        self._pipe.send((name, told))

    def recv(self) -> Answer:
        found: Answer = self._pipe.recv()
        return found

    def close(self) -> None:
        self._pipe.close()


def _serve(make: Make, version: int, threads: int, pipe: Connection) -> None:
    """The engine, until its pipe is closed: by its owner, or with that process."""
    torch.set_num_threads(threads)
    engine = make(version)
    with suppress(OSError, EOFError):
        while True:
            name, told = pipe.recv()
            pipe.send(answer(engine, name, told))

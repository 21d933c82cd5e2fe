"""An engine in a process of its own on this machine. Both processes share the memory of the weights."""

from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from rollmux.runtime.engine.elsewhere import Answer, EngineElsewhere, Standing, answer
from rollmux.runtime.engine.errors import EngineFailed
from rollmux.runtime.engine.seam import Engine
from rollmux.runtime.forks import Fork, begun

# Makes the engine, over weights of this version. It is sent to the other process, with a model in shared memory.
Make = Callable[[int], Engine]


class EngineBeside(EngineElsewhere):
    """See `rollmux.runtime.engine.seam.Engine`. Its process begins with the first call that needs one."""

    def __init__(self, make: Make, version: int = 0, threads: int = 1) -> None:
        self._process = _Process(make, threads)
        super().__init__(self._process, version)

    @property
    def pid(self) -> int | None:
        """The id of its process, once there is one."""
        process = self._process.running
        return None if process is None else process.pid


class _Process:
    """The engine's processes, one after the other, each with a pipe."""

    def __init__(self, make: Make, threads: int) -> None:
        self._make, self._threads = make, threads
        self.running: Fork | None = None

    def begin(self, version: int) -> "_Pipe":
        self.running = begun(_serve, self._threads, name="engine")
        line = _Pipe(self.running.pipe)
        line.send("make", (self._make, version))
        _, refusal, _ = line.recv()
        if refusal is not None:
            raise refusal
        return line

    def end(self, patience_s: float) -> None:
        fork, self.running = self.running, None
        if fork is not None:
            fork.end(patience_s)


class _Pipe:
    """A line of pickles, between processes of one program."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, name: str, told: tuple[Any, ...]) -> None:
        self._pipe.send((name, told))

    def recv(self) -> Answer:
        try:
            found: Answer = self._pipe.recv()
        except OSError as error:
            if type(error) is OSError:  # the process ended in the middle of an answer
                raise EOFError(str(error)) from error
            raise
        return found

    def close(self) -> None:
        self._pipe.close()


def _serve(threads: int, pipe: Connection) -> None:
    """Serves the engine until its owner closes the pipe, or ends."""
    torch.set_num_threads(threads)
    with suppress(ConnectionError, EOFError):
        engine = _made(pipe)
        while engine is not None:
            name, told = pipe.recv()
            _send(pipe, *answer(engine, name, told))


def _made(pipe: Connection) -> Engine | None:
    """Makes the engine, which is the first thing asked for. None if that fails: then the owner is told why."""
    engine, refusal, version = None, None, 0
    try:
        _, (make, version) = pipe.recv()
        engine = make(version)
    except Exception as error:  # noqa: BLE001  whatever it is, it is its owner's to deal with
        refusal = error
    _send(pipe, None, refusal, Standing(version, is_suspended=False))
    return engine


def _send(pipe: Connection, found: Any, refusal: Exception | None, stands: Standing) -> None:
    """Sends an answer. An error that can't be pickled goes as a text."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(refusal))
    except Exception:  # noqa: BLE001  its own ways to be packed may raise anything
        refusal = EngineFailed(f"{type(refusal).__name__}: {refusal}")
    pipe.send((found, refusal, stands))

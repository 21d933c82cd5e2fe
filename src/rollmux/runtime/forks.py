"""Processes beside this one that begin at once: forks of one that has already imported what they need.

Importing torch and a model's code takes seconds of a core. That is done once for all processes that this one ever
begins, in a process that does nothing else: it has no threads and has touched no device, so it is safe to fork. It is
the fork server of `multiprocessing`. What that leaves open is closed here: a server that dies while a fork begins, and
forks whose server is gone, or stands still, when they are to end.
"""

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from threading import Lock
from time import sleep
from typing import Any

import torch.multiprocessing as mp

from rollmux.system import Watched

# Modules of engines and learners that take long to import.
_HEAVY = ("torch", "torch._dynamo")
_HEAVY_PARTS = ("transformers.models.", "rollmux.runtime.engine.", "rollmux.trainer.")
# The server would look for modules in this process's folder, where a file may have a module's name: this stops it.
_FIRST = "rollmux.runtime.forks_path"
# A server that dies refuses everything for a while before the system says that it is dead.
_TRIES, _DYING_S = 3, 0.5
_LOCK = Lock()  # all threads share one server


class Fork:
    """A process that is told things through a pipe, and ends when the pipe is closed or when it is made to."""

    def __init__(self, process: ForkServerProcess, pipe: Connection) -> None:
        assert process.pid is not None
        self.pid, self.pipe, self._process = process.pid, pipe, process
        try:
            self._watched: Watched | None = Watched(self.pid)
        except ProcessLookupError:
            self._watched = None  # the process is over already

    def end(self, patience_s: float) -> None:
        """Closes the pipe, and kills the process if it does not end by itself within `patience_s`. Then it is over."""
        self.pipe.close()
        watched, self._watched = self._watched, None
        if watched is None:
            return
        try:
            # The process itself is watched: the server may be gone or stand still, and then tells nothing of its end.
            if not watched.wait(patience_s):
                with suppress(ProcessLookupError):
                    watched.send(signal.SIGKILL)
                watched.wait()
        finally:
            watched.close()
        self._process.join(0.0)


def begun(serve: Callable[..., None], *told: Any, name: str) -> Fork:
    """Begins a process that calls `serve` with `told` and its end of a pipe. OSError or EOFError: it died at once.

    All such processes have the heavy modules that this one had when it began the first, and its environment then. Send
    what has many tensors through the pipe: only a limited number of descriptors can go along with `told`.
    """
    with _LOCK:
        context = mp.get_context("forkserver")
        assert isinstance(context, ForkServerContext)
        heavy = [each for each in tuple(sys.modules) if each in _HEAVY or each.startswith(_HEAVY_PARTS)]
        context.set_forkserver_preload([_FIRST, *heavy])
        for left in reversed(range(_TRIES)):
            here, there = context.Pipe()
            process = context.Process(target=_undisturbed, args=(serve, *told, there), name=name, daemon=True)
            try:
                process.start()
                return Fork(process, here)
            except (OSError, EOFError):
                here.close()
                if not left:
                    raise
                sleep(_DYING_S)
            finally:
                there.close()
    raise AssertionError("the last try returns or raises")


def _undisturbed(serve: Callable[..., None], *told: Any) -> None:
    """Ignores Ctrl-C, which a terminal sends to all its processes: the one that began this one closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(*told)

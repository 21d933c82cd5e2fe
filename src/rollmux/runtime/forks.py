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

# What takes long to import of what engines and learners are made of.
_HEAVY = ("torch", "torch._dynamo")
_HEAVY_PARTS = ("transformers.models.", "rollmux.runtime.engine.", "rollmux.trainer.")
# The server begins as if in this process's folder, where a file may be called as a module is: this puts that right.
_FIRST = "rollmux.runtime.forks_path"
# A server that dies refuses everything for a while before the system says that it is dead.
_TRIES, _DYING_S = 3, 0.5
_LOCK = Lock()  # the server is one for all threads


class Fork:
    """A process that is told things through a pipe, and ends when that is closed or when it is made to."""

    def __init__(self, process: ForkServerProcess, pipe: Connection) -> None:
        assert process.pid is not None
        self.pid, self.pipe, self._process = process.pid, pipe, process
        try:
            self._watched: Watched | None = Watched(self.pid)
        except ProcessLookupError:
            self._watched = None  # it is over already

    def end(self, patience_s: float) -> None:
        """Nothing of it is at work once this returns; it has so long to end itself. Closes the pipe."""
        self.pipe.close()
        watched, self._watched = self._watched, None
        if watched is None:
            return
        try:
            # By itself: the server may be gone or stand still, and then tells nothing of it.
            if not watched.wait(patience_s):
                with suppress(ProcessLookupError):
                    watched.send(signal.SIGKILL)
                watched.wait()
        finally:
            watched.close()
        self._process.join(0.0)


def begun(serve: Callable[..., None], *told: Any, name: str) -> Fork:
    """A process that calls this with what it is told and then its end of a pipe. OSError or EOFError: it died at once.

    What this process has imported when it begins the first, all of them have; and so it is with its environment. What
    has many tensors goes through the pipe: only so many descriptors can go along.
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
    """A terminal's Ctrl-C is sent to every process there: who began this one hears it, and closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(*told)

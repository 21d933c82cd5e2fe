"""Processes beside this one that begin at once: forks of one that has already imported what they need.

Importing torch and a model's code takes seconds of a core. That is done once for all processes that this one ever
begins, in a process that does nothing else: it has no threads and has touched no device, so it is safe to fork.
"""

import sys
from multiprocessing.context import ForkServerContext

import torch.multiprocessing as mp

# What takes long to import of what engines and learners are made of.
_HEAVY = ("torch", "torch._dynamo")
_HEAVY_PARTS = ("transformers.models.", "rollmux.runtime.engine.", "rollmux.trainer.")


def forks() -> ForkServerContext:
    """As in `multiprocessing`. What this process has imported when it begins the first, all of them have."""
    context = mp.get_context("forkserver")
    assert isinstance(context, ForkServerContext)
    context.set_forkserver_preload([name for name in sys.modules if name in _HEAVY or name.startswith(_HEAVY_PARTS)])
    return context

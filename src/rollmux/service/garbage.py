"""Collects garbage seldom and on purpose: nearly all objects are freed without a collector, and its runs hold up calls.

The interpreter's own collector runs whenever there are enough new objects, and finds nothing: that is 45 ms every four
seconds at 500 phase changes a second.
"""

import asyncio
import gc

# How often: a run over all objects stops the controller for a tenth of a second with 1,000 jobs.
EVERY_S = 600.0


async def collect_forever() -> None:
    """In place of the interpreter's own collector, which is off from here on."""
    gc.disable()
    while True:
        await asyncio.sleep(EVERY_S)
        gc.collect()

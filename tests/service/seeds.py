"""Many seeds of the simulated world, on all cores: `python -m tests.service.seeds 10000`, or one: `... --only 649`."""

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from rollmux.errors import RollmuxError
from tests.service.world import SAFETY_S, World

BLOCK = 50


def live_through(seed: int) -> World:
    """The safety phase, then the liveness phase; any breach says which seed it is."""
    world = World(seed)
    try:
        world.run(SAFETY_S)
        world.heal()
        world.run(world.now + world.bound_s, world.over)
        assert world.over(), f"L1: {world.bound_s:g} s after the last fault there is still {world.left()}"
    except (AssertionError, RollmuxError) as error:
        raise AssertionError(
            f"seed {seed}, {world.now:.3f} s, life {world.host.life}: {type(error).__name__}: {error}\n"
            f"run it alone: python -m tests.service.seeds --only {seed}"
        ) from error
    return world


def breaches(seeds: range) -> list[str]:
    """What goes wrong in any of these."""
    found = []
    gc.set_threshold(50_000, 20, 50)
    for seed in seeds:
        try:
            live_through(seed)
        except AssertionError as error:
            found.append(str(error))
    return found


def all_of(seeds: range) -> Iterator[tuple[int, list[str]]]:
    """So many seeds done, and all breaches so far, as they come; seed by seed on every core."""
    blocks = [seeds[first : first + BLOCK] for first in range(0, len(seeds), BLOCK)]
    found: list[str] = []
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for number, more in enumerate(pool.map(breaches, blocks), 1):
            found += more
            yield min(number * BLOCK, len(seeds)), found


def summary(count: int, found: list[str]) -> str:
    return f"{count} seeds, violations: {len(found)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    args = parser.parse_args()
    if args.only is not None:
        live_through(args.only)
        return
    began, found, told = time.monotonic(), list[str](), 0
    for done, found in all_of(range(args.first, args.first + args.count)):
        print(*found[told:], f"{summary(done, found)}, {time.monotonic() - began:.0f} s", sep="\n", flush=True)
        told = len(found)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()

"""The real controller in a simulated world: seeds of faults, then healing. A seed is a run, byte for byte.

First everything fails that can: the controller at and between writes, the disk, the network, processes, nodes. Every
promise is checked after every event (`watch.py`). Then nothing fails any more, and every job must end in bounded time.
"""

import pytest

from rollmux.errors import RollmuxError
from rollmux.mux.image import image
from tests.service.world import SAFETY_S, World

BLOCK = 25


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
            f'run it alone: python -c "from tests.service.test_simulation import *; live_through({seed})"'
        ) from error
    return world


@pytest.mark.parametrize("first", range(0, 200, BLOCK))
def test_no_fault_breaks_a_promise_and_every_job_ends(first: int) -> None:
    for seed in range(first, first + BLOCK):
        live_through(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 10_000, 500))
def test_ten_thousand_seeds_break_no_promise(first: int) -> None:
    for seed in range(first, first + 500):
        live_through(seed)


def test_a_seed_is_a_run() -> None:
    """I10: the same seed gives the same records and the same state."""
    one, two = live_through(4), live_through(4)
    for world in (one, two):
        world.follow()
    assert one.played == two.played
    assert image(one.host.controller.machine) == image(two.host.controller.machine)


def test_the_seeds_reach_what_they_are_for() -> None:
    """A simulation in which nothing goes wrong shows nothing."""
    worlds = [live_through(seed) for seed in (2, 4, 8, 14, 19, 28, 37)]
    assert sum(world.host.life for world in worlds) > 3 * len(worlds)
    ends = [end for world in worlds for end in world.host.controller.machine.state.ended.values()]
    assert ends.count("finished") > len(ends) / 2
    assert "cancelled" in ends
    events = {type(record.event).__name__ for world in worlds for record in world.played}
    assert events >= {"PhasePaused", "PhaseShrunk", "PhaseOffloaded", "PhaseFailed", "PhaseProgressed", "Heartbeat"}
    assert events >= {"JobFailed", "JobStopped", "JobCancelled", "NodeLost", "Tick"}

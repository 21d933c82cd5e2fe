"""How much slower than alone a job has been so far: time and work of the same iterations, whatever was done in vain."""

import pytest

from rollmux.mux import events as ev
from tests.mux.world import ROLLOUT, SYNC, TRAIN, World, job


def iteration(world: World, number: int) -> None:
    for kind in (ROLLOUT, TRAIN, SYNC):
        world.do("A", kind, number)


def test_it_is_of_whole_iterations() -> None:
    """As long as a phase counted at once, it fell within each iteration, and at first it was 0."""
    world = World()
    world.run(job("A"))
    seen = [world.record().progress.slowdown]
    for number in range(2):
        for kind in (ROLLOUT, TRAIN, SYNC):
            world.do("A", kind, number)
            world.now += 2.0  # in nobody's phase
            seen.append(world.record().progress.slowdown)
    assert seen[:3] == [None] * 3
    assert seen[3:6] == pytest.approx([7 / 3] * 3)
    assert seen[6] == pytest.approx((7 + 9) / 6)


def test_what_was_done_in_vain_and_the_wait_for_the_next_attempt_make_it_slower() -> None:
    """The more often it crashed, the faster it seemed: the time was forgotten, and the work was not."""
    world = World()
    world.run(job("A"))
    iteration(world, 0)
    assert world.record().progress.slowdown == pytest.approx(1.0)
    for attempt in (1, 2):
        world.do("A", ROLLOUT, 1)
        world.now += 9.0
        world.tell(ev.JobFailed("A", attempt, "it crashed"))
        assert world.record().progress.slowdown == pytest.approx(1.0)
        world.tell(ev.JobStarted("A", attempt + 1), 20.0)
    iteration(world, 1)
    assert world.record().progress.slowdown == pytest.approx((3.0 + 2 * 30.0 + 3.0) / 6.0)
    assert world.record().progress.recent_s == pytest.approx(3.0)  # of this attempt

"""How much slower than alone a job has been so far: time and work of the same iterations, whatever was done in vain."""

import pytest

from rollmux.mux import events as ev
from rollmux.mux.job import PhaseSpec
from rollmux.sim.cast import Cast
from tests.mux.world import ROLLOUT, SYNC, TRAIN, World, job


def slowdown(world: World) -> float | None:
    record = world.record()
    return record.progress.slowdown(record.job)


def iteration(world: World, number: int) -> None:
    for kind in (ROLLOUT, TRAIN, SYNC):
        world.do("A", kind, number)


def test_it_is_of_whole_iterations() -> None:
    """As long as a phase counted at once, it fell within each iteration, and at first it was 0."""
    world = World()
    world.run(job("A"))
    seen = [slowdown(world)]
    for number in range(2):
        for kind in (ROLLOUT, TRAIN, SYNC):
            world.do("A", kind, number)
            world.now += 2.0  # in nobody's phase
            seen.append(slowdown(world))
    assert seen[:3] == [None] * 3
    assert seen[3:6] == pytest.approx([7 / 3] * 3)
    assert seen[6] == pytest.approx((7 + 9) / 6)


def test_what_was_done_in_vain_and_the_wait_for_the_next_attempt_make_it_slower() -> None:
    """The more often it crashed, the faster it seemed: the time was forgotten, and the work was not."""
    world = World()
    world.run(job("A"))
    iteration(world, 0)
    assert slowdown(world) == pytest.approx(1.0)
    for attempt in (1, 2):
        world.do("A", ROLLOUT, 1)
        world.now += 9.0
        world.tell(ev.JobFailed("A", attempt, "it crashed"))
        assert slowdown(world) == pytest.approx(1.0)
        world.tell(ev.JobStarted("A", attempt + 1), 20.0)
    iteration(world, 1)
    assert slowdown(world) == pytest.approx((3.0 + 2 * 30.0 + 3.0) / 6.0)
    assert world.record().progress.recent_s == pytest.approx(3.0)  # of this attempt


@pytest.mark.parametrize("waits", [1.0, 2.0])
def test_of_a_job_whose_rollouts_run_beside_its_training_it_is_by_the_longer_of_the_two(
    waits: float,
) -> None:
    """It was by their sum: half of what the SLO limits, so that one missed twofold seemed kept."""
    spec = job("A", rollout=PhaseSpec(100.0, 1), train=PhaseSpec(100.0, 1), staleness=1, iterations=200)
    world = World()
    cast = Cast(world.machine, takes=lambda job, kind, iteration: 0.0 if kind is SYNC else 100.0)
    cast.submit(0.0, spec)
    cast.run(until=150 * 100.0)
    progress = world.record().progress
    progress.elapsed_s *= waits  # as if others had kept it waiting
    assert progress.slowdown(spec) == pytest.approx(waits, rel=0.02)

"""How much slower than alone a job has been so far: time and work of the same iterations, whatever was done in vain."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.mux import events as ev
from rollmux.mux.image import from_json, image, restore, to_json
from rollmux.mux.job import PhaseSpec
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.sim.cast import Cast
from tests.mux.world import ELASTIC, ROLLOUT, SYNC, TRAIN, World, job


def slowdown(world: World) -> float | None:
    return world.record().progress.slowdown


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
    assert progress.slowdown == pytest.approx(waits, rel=0.02)


def stale(crashes: bool, rollout_s: float, train_s: float, iterations: int = 20) -> World:
    """A job with staleness 1, alone, whose phases take other times than it said; it may crash after each sync."""
    world = World()
    world.run(job("A", rollout=PhaseSpec(100.0, 1), train=PhaseSpec(100.0, 1), staleness=1, max_attempts=99))
    attempt = 1
    for number in range(iterations):
        progress = world.record().progress
        if progress.rolled == number:
            world.tell(ev.PhaseFinished("A", world.begin("A", ROLLOUT, number).epoch), rollout_s)
        ahead, train = world.begin("A", ROLLOUT, number + 1), world.begin("A", TRAIN, number)
        first, last = sorted([(rollout_s, ahead.epoch), (train_s, train.epoch)])
        world.tell(ev.PhaseFinished("A", first[1]), first[0])
        world.tell(ev.PhaseFinished("A", last[1]), last[0] - first[0])
        world.tell(ev.PhaseFinished("A", world.begin("A", SYNC, number).epoch))
        if crashes:
            world.tell(ev.JobFailed("A", attempt, "it crashed"))
            attempt += 1
            world.tell(ev.JobStarted("A", attempt))
    return world


@pytest.mark.parametrize("takes", [(100.0, 100.0), (100.0, 20.0), (30.0, 90.0)])
def test_work_is_what_its_phases_took_and_not_what_it_said(takes: tuple[float, float]) -> None:
    """By what it had said, one whose training took a fifth of its rollouts' time seemed 1.67 times as slow as alone."""
    (rollout_s, train_s), iterations = takes, 20
    took_s = rollout_s + iterations * max(takes)  # each sync waits for the rollout beside it, which alone it would not
    alone_s = max(iterations * rollout_s + train_s, rollout_s + iterations * train_s)
    assert slowdown(stale(False, *takes)) == pytest.approx(took_s / alone_s)


@given(staleness=st.integers(0, 3), seed=st.integers(0, 10**6), iterations=st.integers(1, 30))
def test_alone_a_job_is_never_slower_than_alone(staleness: int, seed: int, iterations: int) -> None:
    """However its phases vary: by the longer of the two in each iteration it seemed faster by a tenth and more."""
    rng = Random(seed)
    spec = job("A", rollout=PhaseSpec(100.0, 1), train=PhaseSpec(100.0, 1), sync_s=3.0, staleness=staleness)
    world = World()
    cast = Cast(world.machine, takes=lambda job, kind, iteration: rng.uniform(10.0, 300.0))
    cast.submit(0.0, replace(spec, iterations=iterations + 1))  # one more: of a job that has ended nothing is told
    while not (record := cast.machine.state.jobs.get("A")) or record.progress.synced < iterations:
        cast.run(until=cast.now + 50.0)
    assert record.progress.slowdown == pytest.approx(1.0)


def test_a_rollout_that_was_ahead_and_is_done_anew_counts_once_as_work() -> None:
    """A job that rolled out twice for each iteration, and took twice as long for it, seemed 1.33 times as slow."""
    iterations, ramp = 20, 1
    assert slowdown(stale(True, 100.0, 100.0)) == pytest.approx(2.0 * iterations / (iterations + ramp))


def test_an_image_that_has_the_time_of_all_phases_in_one_sum_is_understood() -> None:
    world = stale(False, 100.0, 100.0)
    world.tell(ev.PhaseFinished("A", world.begin("A", ROLLOUT, 21).epoch), 50.0)
    known = slowdown(world)
    saved = to_json(image(world.machine))
    progress = saved["jobs"][0]["progress"]
    progress["active_s"] *= 2.0
    progress["pending_s"] = progress.pop("ahead_s")[-1]
    del progress["rolled_at"], progress["synced_at"]
    world.machine = restore(from_json(saved), ELASTIC, RollmuxPolicy())
    assert slowdown(world) == pytest.approx(known)
    for number in (20, 21):
        for kind in (TRAIN, SYNC):
            world.do("A", kind, number)
    progress = world.record().progress
    assert progress.ahead_s == []
    assert progress.active_s == pytest.approx(2100.0 + 50.0 + 2 * (1.0 + 1.0))  # it goes on from there

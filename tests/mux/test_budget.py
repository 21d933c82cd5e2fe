"""A job's SLO is a budget over its life: what it has used up or saved changes how slowly it may go on."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.mux.budget import LOOSEST, MARGIN, STEP, followed, limit_now_s
from rollmux.mux.job import JobSpec, PhaseSpec
from tests.builders import job

JOBS = st.builds(
    lambda rollout, train, slo, iterations: JobSpec(
        "a", PhaseSpec(rollout, 1), PhaseSpec(train, 1), slo, iterations=iterations
    ),
    st.floats(1.0, 500.0),
    st.floats(1.0, 500.0),
    st.floats(1.0, 3.0),
    st.integers(1, 500),
)


@given(job=JOBS, pace=st.floats(1.0, 3.0), data=st.data())
def test_a_job_that_goes_on_at_its_limit_ends_with_its_slo_just_kept(
    job: JobSpec, pace: float, data: st.DataObject
) -> None:
    assert job.iterations is not None
    synced = data.draw(st.integers(0, job.iterations - 1))
    spent_s = synced * pace * job.solo_s
    limit_s = limit_now_s(job, synced, spent_s)
    assert limit_s is not None
    mean_s = (spent_s + (job.iterations - synced) * limit_s) / job.iterations
    assert mean_s == pytest.approx(job.limit_s)


def test_without_a_number_of_iterations_or_after_the_last_there_is_no_such_limit() -> None:
    assert limit_now_s(job("a", 100, 50, slo=1.5), 3, 450.0) is None
    assert limit_now_s(replace(job("a", 100, 50, slo=1.5), iterations=3), 3, 450.0) is None


@given(job=JOBS, old=st.floats(1.0, 3.0), now=st.floats(0.5, 30.0), left=st.integers(1, 500))
def test_a_limit_falls_at_once_and_rises_in_steps_with_something_kept_back(
    job: JobSpec, old: float, now: float, left: int
) -> None:
    old_s, now_s = old * job.solo_s, now * job.solo_s
    limit_s = followed(old_s, now_s, job, left)
    if now_s < old_s and old_s > job.solo_s:
        assert limit_s == max(now_s * (1 - MARGIN), job.solo_s)
    elif limit_s != old_s:
        assert old_s * (1 + STEP) < limit_s < now_s
        assert limit_s <= job.limit_s * LOOSEST


@pytest.mark.parametrize(("left", "kept_back_s"), [(1, 5.0), (10, 50.0), (20, 100.0), (300, 100.0)])
def test_what_is_kept_back_of_all_that_is_left_is_an_iteration_and_less_towards_the_end(
    left: int, kept_back_s: float
) -> None:
    limit_s = followed(110.0, 140.0, job("a", 60, 40, slo=2.0), left)
    assert left * (140.0 - limit_s) == pytest.approx(kept_back_s)


@given(job=JOBS)
def test_a_newcomer_keeps_one_iteration_back_for_its_first(job: JobSpec) -> None:
    assert job.iterations is not None
    assert job.solo_s <= job.opening_limit_s <= max(job.solo_s, job.limit_s)
    if job.opening_limit_s > job.solo_s:
        kept_back_s = job.iterations * (job.limit_s - job.opening_limit_s)
        assert kept_back_s == pytest.approx(job.solo_s)
    assert replace(job, iterations=None).opening_limit_s == job.limit_s

"""Packed jobs in the cluster: what a life of rounds takes, when long ones come, and whose SLO is whose."""

from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.job import JobSpec, PhaseKind, Tail
from rollmux.mux.validation import job_problems
from rollmux.sim.cast import as_planned
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.system import RLHFUSE, ROLLMUX, SYNC
from rollmux.sim.packed import HOLD, ByName, Packing, Rounds, packed_workload, production_setup
from rollmux.sim.production import production_jobs
from rollmux.sim.profile import Profile, RoundPart, recorded
from rollmux.sim.replay import Accounting, Fidelity, Settings, replay
from rollmux.sim.workload import Arrival, Workload
from tests.builders import job
from tests.sim.worlds import workload

ROLLOUT, TRAIN, SYNCED = PhaseKind.ROLLOUT, PhaseKind.TRAIN, PhaseKind.SYNC
FOUR_AND_ONE = Profile("4 + 1", (RoundPart(0.2, 0.7),), (RoundPart(0.8, 1.3),), between=4)
PARTS = st.builds(RoundPart, st.floats(0.1, 1.5), st.floats(0.1, 1.5))
SOME_PARTS = st.lists(PARTS, min_size=1, max_size=5).map(tuple)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Any profile, with long rounds or without."""
    long = draw(st.one_of(st.just(()), SOME_PARTS))
    return Profile("drawn", draw(SOME_PARTS), long, draw(st.integers(HOLD + 1, 7)) if long else 0)


class Neighbours(Rounds):
    """Rounds of a job whose neighbour is in a long round whenever the lots say so."""

    def __init__(self, profile: Profile, lots: list[bool]) -> None:
        super().__init__(lambda _: profile)
        self.lots = lots

    def _meets_long(self, job_id: str) -> bool:
        return bool(self.lots) and self.lots[len(self._lives[job_id].rounds) % len(self.lots)]


def packed_job(profile: Profile, iterations: int) -> JobSpec:
    return replace(profile.packed(job("a", 300.0, 100.0), iterations), iterations=iterations)


def kinds(rounds: Rounds, spec: JobSpec, iterations: int) -> list[bool]:
    """Which rounds of the job's life are long."""
    found = []
    for number in range(iterations):
        rounds.takes(spec, ROLLOUT, number)
        found.append(rounds.is_long(spec.id))
    return found


# -- a life of rounds -------------------------------------------------------------------------------------------


@given(profile=profiles(), iterations=st.integers(1, 60), lots=st.lists(st.booleans(), max_size=7))
def test_a_life_takes_what_was_planned_whatever_is_put_off(profile: Profile, iterations: int, lots: list[bool]) -> None:
    spec, rounds = packed_job(profile, iterations), Neighbours(profile, lots)
    for kind in (ROLLOUT, TRAIN):
        taken_s = fmean(rounds.takes(spec, kind, number) for number in range(iterations))
        assert taken_s == pytest.approx(spec.phase(kind).planned_s, abs=1e-3)


@given(profile=profiles(), lots=st.lists(st.booleans(), max_size=7))
def test_a_long_round_comes_within_a_period_and_what_it_may_be_put_off(profile: Profile, lots: list[bool]) -> None:
    found = kinds(Neighbours(profile, lots), packed_job(profile, 100), 100)
    at = [number for number, long in enumerate(found) if long]
    assert bool(at) == bool(profile.long)
    for count, number in enumerate(at, 1):
        assert 0 <= number - (count * profile.period - 1) <= HOLD


@given(profile=profiles(), iterations=st.integers(1, 60))
def test_no_round_is_longer_than_the_bound_and_one_is_as_long(profile: Profile, iterations: int) -> None:
    spec, rounds = packed_job(profile, iterations), Neighbours(profile, [])
    for kind in (ROLLOUT, TRAIN):
        taken = [rounds.takes(spec, kind, number) for number in range(iterations)]
        assert max(taken) <= spec.phase(kind).duration_s + 1e-3


def test_whole_cycles_take_their_mean() -> None:
    assert FOUR_AND_ONE.mean == pytest.approx(RoundPart(0.32, 0.82))
    assert FOUR_AND_ONE.over(10) == pytest.approx(FOUR_AND_ONE.mean)
    assert FOUR_AND_ONE.over(4) == pytest.approx(FOUR_AND_ONE.usual_short)


def test_a_round_that_is_done_again_takes_as_long_again() -> None:
    spec, rounds = packed_job(FOUR_AND_ONE, 20), Rounds(lambda _: FOUR_AND_ONE)
    once = [rounds.takes(spec, ROLLOUT, number) for number in range(6)]
    assert [rounds.takes(spec, ROLLOUT, number) for number in range(6)] == once


def test_a_rollout_that_runs_ahead_leaves_the_training_before_it_as_it_is() -> None:
    spec, rounds = packed_job(FOUR_AND_ONE, 20), Rounds(lambda _: FOUR_AND_ONE)
    for number in range(5):
        rounds.takes(spec, ROLLOUT, number)  # the last is long
    assert rounds.takes(spec, TRAIN, 3) == pytest.approx(70.0)
    assert rounds.takes(spec, TRAIN, 4) == pytest.approx(130.0)


def test_sync_and_jobs_without_a_profile_take_what_they_plan() -> None:
    rounds, spec = Rounds(lambda _: None), replace(job("a"), sync_s=3.0)
    for kind in PhaseKind:
        assert rounds.takes(spec, kind, 0) == as_planned(spec, kind, 0)
    assert Rounds(lambda _: FOUR_AND_ONE).takes(spec, SYNCED, 0) == 3.0


# -- packed workloads -------------------------------------------------------------------------------------------

PAIR = workload(*[job(name, 300.0, 100.0, slo=1.6) for name in ("a", "b")], iterations=20)


@given(profile=profiles(), iterations=st.integers(1, 500), promised=st.booleans())
def test_packing_leaves_the_iterations_and_keeps_the_spec_sound(
    profile: Profile, iterations: int, promised: bool
) -> None:
    spec = replace(job("a", 300.0, 100.0), tail=Tail(100, 20, 200.0))
    before = workload(spec, iterations=iterations)
    (arrival,) = packed_workload(before, lambda _: profile, promised=promised).arrivals
    assert arrival.iterations == iterations
    if not promised:
        assert arrival.job.slo == spec.slo
        assert not job_problems(arrival.job, PAPER_CLUSTER)


@given(profile=profiles(), iterations=st.integers(1, 500))
def test_a_promised_slo_allows_the_same_iteration_time(profile: Profile, iterations: int) -> None:
    before = workload(job("a", 300.0, 100.0, slo=1.5), iterations=iterations)
    after = packed_workload(before, lambda _: profile, promised=True)
    assert after.arrivals[0].job.limit_s == pytest.approx(before.arrivals[0].job.limit_s)


def test_a_job_without_a_profile_is_untouched() -> None:
    packed = packed_workload(PAIR, lambda spec: FOUR_AND_ONE if spec.id == "a" else None)
    assert packed.arrivals[1] == PAIR.arrivals[1]
    assert packed.arrivals[0] != PAIR.arrivals[0]
    packing = Packing(lambda _: None)
    assert packing.told(PAIR.arrivals[0].job, 20) == PAIR.arrivals[0].job


@pytest.mark.parametrize("stagger", [False, True])
def test_the_cluster_is_told_a_stricter_slo_the_more_so_the_shorter_the_life(stagger: bool) -> None:
    packing = Packing(lambda _: FOUR_AND_ONE, stagger)
    few, many, none = (packing.told(packed_job(FOUR_AND_ONE, n), n).slo for n in (20, 500, 4))
    assert 1.0 <= few < many < none == job("a").slo


# -- replays ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stagger", [False, True])
def test_a_packed_replay_repeats_itself_and_does_all_work_within_the_slo(stagger: bool) -> None:
    jobs = packed_workload(
        workload(*[job(f"j{i}", 300.0 + i, 60.0 + i, slo=1.8) for i in range(5)], iterations=40), lambda _: FOUR_AND_ONE
    )
    settings = Settings(packing=Packing(lambda _: FOUR_AND_ONE, stagger), history=True)
    one, other = (replace(replay(jobs, "rollmux", settings), decision_ms=()) for _ in range(2))
    assert one == other
    assert [each.iterations for each in one.jobs] == [40] * 5
    assert one.slo_attainment == 1.0
    assert [each.slo for each in one.jobs] == [1.8] * 5, "the promise, not what the cluster is told"


def test_alone_a_packed_job_is_not_slowed_by_its_own_long_rounds() -> None:
    jobs = packed_workload(workload(job("a", 300.0, 100.0), iterations=22), lambda _: FOUR_AND_ONE)
    outcome = replay(jobs, "solo", Settings(packing=Packing(lambda _: FOUR_AND_ONE)))
    assert outcome.jobs[0].slowdown == pytest.approx(1.0)
    assert outcome.usd_total == pytest.approx(
        replay(jobs, "solo", Settings(fidelity=Fidelity.PACE)).usd_total, rel=1e-4
    )


def test_a_lifetime_of_packed_rounds_ends_when_it_is_over() -> None:
    jobs = packed_workload(PAIR, lambda _: FOUR_AND_ONE)
    settings = Settings(accounting=Accounting.LIFETIME, packing=Packing(lambda _: FOUR_AND_ONE))
    for each, arrival in zip(replay(jobs, "paper", settings).jobs, jobs.arrivals, strict=True):
        assert each.ended_h * 3600 == pytest.approx(arrival.duration_s)


@pytest.mark.parametrize("stagger", [False, True])
def test_staggered_neighbours_are_in_long_rounds_together_only_when_one_has_waited_long_enough(stagger: bool) -> None:
    jobs = packed_workload(PAIR, lambda _: FOUR_AND_ONE)
    outcome = replay(jobs, "paper", Settings(packing=Packing(lambda _: FOUR_AND_ONE, stagger), history=True))
    assert len({span.node for span in outcome.spans if span.kind == "rollout"}) == 1, "they share the node"
    long = {
        (span.job, span.iteration)
        for span in outcome.spans
        if span.kind == "rollout" and span.end_s - span.start_s > 200
    }
    assert len(long) == 8
    together = {number for name, number in long if name == "a"} & {number for name, number in long if name == "b"}
    assert bool(together) != stagger or together == {19}


# -- recorded profiles ------------------------------------------------------------------------------------------


@cache
def small_profile(system: str) -> Profile:
    """A quarter of the 7B job, for few cycles."""
    setup = SETUPS["7B/8k"]
    domains = tuple(replace(domain, quota=11, size=300) for domain in setup.domains)
    small = replace(setup, name="small", gpus=4, prompts=33, domains=domains)
    return recorded(small, {each.name: each for each in (SYNC, RLHFUSE, ROLLMUX)}[system], cycles=2)


def test_long_rounds_take_longer_than_short_ones_and_the_mean_less_than_before() -> None:
    profile = small_profile(ROLLMUX.name)
    assert len(profile.long) == 2
    assert len(profile.short) >= 2 * profile.between
    short, long = (fmean(part.rollout for part in parts) for parts in (profile.short, profile.long))
    assert short < profile.mean.rollout < min(1.0, long)
    assert profile.usual_short.train < fmean(part.train for part in profile.long)


def test_the_synchronous_job_over_itself_is_itself() -> None:
    profile = small_profile(SYNC.name)
    assert (profile.period, profile.long) == (1, ())
    assert profile.mean == pytest.approx(RoundPart(1.0, 1.0))


def test_without_its_rewards_the_synchronous_job_leaves_less_to_save() -> None:
    setup = SETUPS["7B/8k"]
    with_them, without = (recorded(setup, RLHFUSE, cycles=2, rewards=rewards) for rewards in (True, False))
    assert with_them.mean.rollout < without.mean.rollout
    assert with_them.mean.train == without.mean.train


# -- production jobs --------------------------------------------------------------------------------------------


def test_every_production_job_has_a_shipped_setup() -> None:
    found = {spec.id: production_setup(spec.id) for spec in production_jobs(1.5)}
    assert set(found.values()) == set(SETUPS)
    assert found["8B-32K-multi"] == found["32B-8K-single"] == "32B/32k"
    assert found["14B-8K-single"] == found["4B-16K-multi"] == "14B/16k"
    assert found["7B-4K-single"] == "7B/8k"
    assert production_setup("job-1") is None


def test_profiles_by_name_leave_other_jobs_alone() -> None:
    by_name = ByName({"7B/8k": FOUR_AND_ONE})
    assert by_name(job("7B-8K-single-job-1")) is FOUR_AND_ONE
    assert by_name(job("14B-8K-single-job-2")) is None
    assert by_name(job("a")) is None
    arrival = Arrival(0.0, 1000.0, job("a"))
    assert packed_workload(Workload("w", (arrival,)), by_name).arrivals == (arrival,)

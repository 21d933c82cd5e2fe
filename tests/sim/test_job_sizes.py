"""Rounds and their parallel size: what a resize costs, which sizes are chosen, and that no work goes missing."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.packer.batching import Batching, Race
from rollmux.packer.commands import RoundKind
from rollmux.packer.tail_batcher import TailBatcher
from rollmux.sim.job.job import Job, Step
from rollmux.sim.job.machine import rates
from rollmux.sim.job.rollout import Rollout, RoundPlayer
from rollmux.sim.job.scorer import Scorer
from rollmux.sim.job.setup import Setup, Source
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.sizes import RESIZE_S, SIZES, decode_rates, planner
from rollmux.sim.job.system import ROLLMUX, SYNC, SYSTEMS, TAIL, Sizing, System

pytestmark = pytest.mark.no_cover  # to be traced takes longer than to play

LARGE = SETUPS["14B/16k"]
STEPS = 12  # two long rounds come within them


def steps_of(setup: Setup, system: System, count: int) -> list[Step]:
    job = Job(setup, system, 0)
    return [job.step() for _ in range(count)]


@cache
def predicted() -> list[Step]:
    return steps_of(LARGE, replace(ROLLMUX, sizing=Sizing.PREDICTION), STEPS)


def small(*domains: str) -> Setup:
    setup = SETUPS["7B/8k"]
    return replace(setup, gpus=4, prompts=12).only(*(domains or setup.by_name))


# -- what a resize costs -----------------------------------------------------------------------------------------------


def test_a_resize_is_paid_in_the_round_in_which_the_size_changes_and_in_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = predicted()[:4]
    monkeypatch.setattr("rollmux.sim.job.job.RESIZE_S", 0.0)
    free = steps_of(LARGE, replace(ROLLMUX, sizing=Sizing.PREDICTION), len(steps))
    sizes = [LARGE.tp, *(step.tp for step in steps)]
    assert [step.tp for step in free] == sizes[1:]
    paid = [RESIZE_S if one != other else 0.0 for one, other in pairwise(sizes)]
    assert RESIZE_S > 0
    assert 0 < sum(paid) < RESIZE_S * len(steps)
    took = [one.rollout_s - other.rollout_s for one, other in zip(steps, free, strict=True)]
    assert took == pytest.approx(paid, abs=1e-6)


def test_a_size_that_is_fixed_is_never_paid_for() -> None:
    steps = steps_of(LARGE, SYNC, 2)
    assert {step.tp for step in steps} == {LARGE.tp}
    rollout = played(LARGE, SYNC, LARGE.tp)
    assert steps[0].rollout_s == rollout.generated_s


def played(setup: Setup, system: System, tp: int) -> Rollout:
    """The first round of a job, without the job."""
    source = Source(setup, 0)
    batching = Batching(
        setup.prompts, setup.responses, system.eta_prompts, system.eta_responses, system.race, setup.quotas
    )
    scores = Scorer(setup, source, None, system.judge_batch)
    return RoundPlayer(
        setup, source, TailBatcher(batching), scores, tp, wake_s=setup.wake_s, beside=system.beside
    ).play()


# -- which size is chosen ----------------------------------------------------------------------------------------------


def test_by_prediction_some_round_of_14b_runs_with_another_size_than_the_setups() -> None:
    assert predicted()[0].tp == LARGE.tp, "before the first round nothing is known"
    assert {step.tp for step in predicted()} - {LARGE.tp}
    assert {step.tp for step in predicted()} <= set(SIZES)
    assert {step.kind for step in predicted()} == {RoundKind.SHORT, RoundKind.LONG}


def test_by_prediction_long_tails_get_a_larger_size_and_are_over_sooner() -> None:
    setup = replace(LARGE, cap=32768)
    fixed = steps_of(setup, SYNC, 3)
    chosen = steps_of(setup, replace(SYNC, sizing=Sizing.PREDICTION), 3)
    assert all(step.tp > setup.tp for step in chosen[1:])
    assert sum(step.rollout_s for step in chosen) < sum(step.rollout_s for step in fixed)


def test_by_preemptions_the_size_is_never_below_the_setups_however_quiet_the_rounds_are() -> None:
    steps = steps_of(LARGE, replace(ROLLMUX, sizing=Sizing.PREEMPTIONS), 8)
    assert not any(step.preemptions for step in steps)
    assert {step.tp for step in steps} == {LARGE.tp}
    assert planner(LARGE, smallest=LARGE.tp).settings.smallest == LARGE.tp


@pytest.mark.parametrize("name", SETUPS)
def test_the_smallest_size_to_predict_for_is_the_first_that_holds_the_longest_request(name: str) -> None:
    setup = SETUPS[name]
    longest = setup.cap + setup.prompt_tokens
    sizes = planner(setup).settings.sizes
    assert all(rates(setup.model, setup.device, tp).room_tokens > longest for tp in sizes)
    assert sizes[0] == 1 or rates(setup.model, setup.device, sizes[0] // 2).room_tokens <= longest


@given(st.sampled_from(sorted(SETUPS)), st.sampled_from(SIZES), st.integers(1, 256), st.integers(0, 100_000))
def test_the_planner_is_told_what_a_decode_step_takes(name: str, tp: int, running: int, held: int) -> None:
    setup = SETUPS[name]
    speed, told = rates(setup.model, setup.device, tp), decode_rates(setup, tp)
    assert told.decode_s(1, running, held) == pytest.approx(speed.step_s(running) + speed.kv_token_s * held)
    assert told.kv_room_tokens == speed.room_tokens
    assert told.prefill_tokens_per_s * speed.prefill_token_s == pytest.approx(1.0)


def test_the_planner_is_told_the_truth_where_arithmetic_takes_longer_than_reading_weights() -> None:
    setup = replace(LARGE, device=replace(LARGE.device, flops=5e13))
    speed, told = rates(setup.model, setup.device, 2), decode_rates(setup, 2)
    assert 256 * speed.compute_s > speed.weights_s
    assert told.decode_s(1, 256, 0) == pytest.approx(speed.step_s(256))


# -- no work goes missing ----------------------------------------------------------------------------------------------


def test_responses_that_lost_the_race_cost_scoring_time_where_scores_come_last() -> None:
    setup = small("math")
    raced = played(setup, System("raced", 1.5, 1.5, Race.GENERATED), 1)
    wanted = setup.prompts * setup.responses
    assert raced.ended > wanted, "some that were made lost"
    assert raced.complete_s - raced.generated_s == pytest.approx(raced.ended * setup.scoring.rule_s)
    assert len(raced.scored_s) == wanted
    assert set(raced.scored_s.values()) == {raced.complete_s}


def test_without_a_race_only_the_batch_is_scored() -> None:
    setup = small("math")
    plain = played(setup, SYNC, 1)
    wanted = setup.prompts * setup.responses
    assert plain.ended == plain.launched == wanted
    assert plain.complete_s - plain.generated_s == pytest.approx(wanted * setup.scoring.rule_s)


def test_generation_is_over_when_the_last_response_of_the_batch_is_made() -> None:
    for system in (SYNC, TAIL, replace(TAIL, beside=True, race=Race.REWARDED)):
        rollout = played(small(), system, 1)
        assert rollout.batch is not None
        made = [rollout.made_s[r.request] for prompt in rollout.batch.prompts for r in prompt.responses]
        assert rollout.generated_s == max(made)
        assert rollout.generated_s <= rollout.complete_s


@pytest.mark.parametrize("name", SYSTEMS)
def test_training_hidden_or_open_is_that_of_all_tokens(name: str) -> None:
    setup, system = small(), SYSTEMS[name]
    job = Job(setup, system, 0)
    spared = setup.training.infer_part / 2 if system.one_update else 0.0
    for _ in range(6):
        step = job.step()
        responses = [response for prompt in step.batch.prompts for response in prompt.responses]
        tokens = sum(setup.prompt_tokens + response.tokens for response in responses)
        assert step.trained_tokens == tokens
        whole_s = tokens * job.token_s + setup.training.fixed_s
        assert job.token_s == pytest.approx((1 - spared) * setup.train_token_s)
        assert step.hidden_s + step.train_s == pytest.approx(whole_s)
        assert 0 <= step.hidden_s <= tokens * job.token_s + 1e-9
        assert step.sync_s == setup.sync_s


def test_what_is_inferred_early_is_hidden_in_whole_rounds_too() -> None:
    setup = small()
    early, plain = (steps_of(setup, System("early", infer_early=early), 3) for early in (True, False))
    for one, other in zip(early, plain, strict=True):
        assert 0 < one.hidden_s <= setup.training.infer_part * one.trained_tokens * setup.train_token_s + 1e-9
        assert one.train_s == pytest.approx(other.train_s - one.hidden_s)
        assert other.hidden_s == 0.0

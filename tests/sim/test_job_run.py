"""Whole steps of the shipped setups under every system: the promises that no calibration may break."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from rollmux.packer.batching import Race
from rollmux.packer.commands import RoundKind
from rollmux.sim.job.job import Job
from rollmux.sim.job.played import Played, play
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.summary import as_data, breakdown_s, speedup, step_s_mean, summary
from rollmux.sim.job.system import ROLLPACKER, SYNC, SYSTEMS, System

STEPS = 7  # a long round comes within them
# The largest setup differs from the second in its sizes alone: with all parts on, and with none, is enough of it.
CASES = [
    (setup, system) for setup in SETUPS for system in SYSTEMS if setup != "32B/32k" or system in {SYNC.name, "rollmux"}
]
cases = pytest.mark.parametrize(("setup", "system"), CASES)


@cache
def played(setup: str, system: str) -> Played:
    return play(SETUPS[setup], SYSTEMS[system], STEPS, seed=0)


@cache
def small() -> Setup:
    """A quarter of the 7B job."""
    setup = SETUPS["7B/8k"]
    domains = tuple(replace(domain, quota=11, size=300) for domain in setup.domains)
    return replace(setup, name="small", gpus=4, prompts=33, domains=domains)


@cases
def test_every_batch_meets_its_quotas_with_whole_prompts(setup: str, system: str) -> None:
    asked = SETUPS[setup]
    seen: Counter[object] = Counter()
    for step in played(setup, system).steps:
        assert Counter(prompt.prompt.domain for prompt in step.batch.prompts) == asked.quotas
        assert {len(prompt.responses) for prompt in step.batch.prompts} == {asked.responses}
        assert all(0 < r.tokens <= asked.cap for prompt in step.batch.prompts for r in prompt.responses)
        seen.update(prompt.prompt for prompt in step.batch.prompts)
    assert set(seen.values()) == {1}, "no prompt is trained twice in an epoch"


@cases
def test_no_time_is_negative_and_all_of_them_add_up(setup: str, system: str) -> None:
    steps = played(setup, system).steps
    for step in steps:
        assert min(step.reward_s, step.train_s, step.sync_s, step.hidden_s) >= 0
        assert step.rollout_s > SETUPS[setup].wake_s
        assert step.step_s == pytest.approx(step.rollout_s + step.reward_s + step.train_s + step.sync_s)
    assert sum(breakdown_s(steps).values()) == pytest.approx(step_s_mean(steps))


@cases
def test_training_is_all_there_hidden_or_not(setup: str, system: str) -> None:
    asked = SETUPS[setup]
    for step in played(setup, system).steps:
        tokens = sum(asked.prompt_tokens + r.tokens for prompt in step.batch.prompts for r in prompt.responses)
        whole_s = asked.training.fixed_s + tokens * Job(asked, SYSTEMS[system], 0).token_s
        assert step.train_s + step.hidden_s == pytest.approx(whole_s)
        assert step.train_s >= asked.training.fixed_s - 1e-9


@cases
def test_no_rollout_is_over_before_its_longest_response_can_be(setup: str, system: str) -> None:
    """Nobody decodes faster than alone on the whole group."""
    asked = SETUPS[setup]
    for step in played(setup, system).steps:
        longest = max(r.tokens for prompt in step.batch.prompts for r in prompt.responses)
        weights_s = asked.model.weight_bytes / (asked.device.memory_bytes_per_s * step.tp)
        assert step.rollout_s >= asked.wake_s + longest * weights_s


@cases
def test_only_over_provisioning_wastes_anything_or_shifts_lengths(setup: str, system: str) -> None:
    run, asked = played(setup, system), SETUPS[setup]
    wanted, overall = asked.prompts * asked.responses, run.bias.overall
    assert overall.trained.responses == STEPS * wanted
    if run.system.eta_prompts == run.system.eta_responses == 1:
        assert {(step.launched, step.wasted_tokens, step.kind) for step in run.steps} == {(wanted, 0, RoundKind.SHORT)}
        assert run.waiting_prompts == 0
    else:
        assert {RoundKind.SHORT, RoundKind.LONG} <= {step.kind for step in run.steps}
        assert all((step.launched > wanted) == (step.kind is RoundKind.SHORT) for step in run.steps)
        assert sum(step.wasted_tokens for step in run.steps) > 0
    raced = any(prompt.launched > asked.responses for step in run.steps for prompt in step.batch.prompts)
    assert raced == (overall.mean_shift < 0) == (overall.wasserstein > 0) == (overall.kolmogorov_smirnov > 0)


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_same_seed_gives_the_same_steps_and_another_seed_others(system: str) -> None:
    one, same, other = (play(small(), SYSTEMS[system], 4, seed) for seed in (0, 0, 1))
    assert one == same
    assert [step.rollout_s for step in one.steps] != [step.rollout_s for step in other.steps]


def test_the_first_steps_do_not_depend_on_how_many_are_asked_for() -> None:
    assert play(small(), ROLLPACKER, 2, 0).steps == play(small(), ROLLPACKER, 4, 0).steps[:2]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_with_all_parts_off_is_the_baseline(name: str) -> None:
    assert play(small(), System(name), 3, 0).steps == play(small(), SYNC, 3, 0).steps


@pytest.mark.parametrize("race", Race)
def test_without_over_provisioning_no_race_decides_anything(race: Race) -> None:
    assert play(small(), System("no race", race=race), 3, 0).steps == play(small(), SYNC, 3, 0).steps


@pytest.mark.parametrize("setup", SETUPS)
def test_streaming_changes_no_batch_in_size_and_nothing_but_times(setup: str) -> None:
    systems = (System("streams", beside=True, stream=stream) for stream in (True, False))
    streamed, plain = (play(SETUPS[setup], system, 3, 0).steps for system in systems)
    assert max(step.hidden_s for step in streamed) > 0
    assert {step.hidden_s for step in plain} == {0}
    for one, other in zip(streamed, plain, strict=True):
        assert [prompt.prompt for prompt in one.batch.prompts] == [prompt.prompt for prompt in other.batch.prompts]
        assert one.trained_tokens == other.trained_tokens


def test_scoring_beside_the_rollout_is_never_slower() -> None:
    beside, after = (play(small(), System("scores", beside=beside), 3, 0).steps for beside in (True, False))
    for one, other in zip(beside, after, strict=True):
        assert one.rollout_s == other.rollout_s
        assert one.reward_s < other.reward_s


def test_learnt_timeouts_kill_hardly_anything_that_is_right() -> None:
    kills = play(small(), System("kills", beside=True, adaptive_timeouts=True), 10, 0).false_kills
    assert kills is not None
    assert kills.killed > 0
    assert kills.would_have_passed == 0


def test_of_slower_machines_every_system_takes_longer() -> None:
    slower = replace(small(), device=replace(small().device, memory_bytes_per_s=1e12, flops=3e14))
    for system in SYSTEMS.values():
        one, other = (play(setup, system, 3, 0) for setup in (small(), slower))
        assert (step_s_mean(one.steps) or 0) < (step_s_mean(other.steps) or 0)


@cases
def test_the_summary_says_what_the_steps_do(setup: str, system: str) -> None:
    run, sync = played(setup, system), played(setup, "sync")
    told = summary(run, sync)
    assert told.keys() == summary(sync, sync).keys()
    assert sum(told["rounds"].values()) == len(told["steps"]) == STEPS
    assert sum(told["breakdown_s"].values()) == pytest.approx(told["step_s_mean"])
    assert (
        told["speedup_over_sync"]
        == speedup(run, sync)
        == pytest.approx(summary(sync, sync)["step_s_mean"] / told["step_s_mean"])
    )
    assert told["tokens"]["trained"] == sum(step["trained_tokens"] for step in told["steps"])
    bias = told["length_bias"]
    assert told["tokens"]["trained"] == round(bias["trained"]["responses"] * bias["trained"]["mean"])
    assert told["tokens"]["offered"] == sum(
        round(each["offered"]["responses"] * each["offered"]["mean"]) for each in bias["domains"].values()
    )
    assert bias["domains"].keys() == SETUPS[setup].quotas.keys()
    long = [step["step_s"] for step in told["steps"] if step["kind"] == "long"]
    assert told["long_step_s_mean"] == (pytest.approx(sum(long) / len(long)) if long else None)


def test_all_systems_are_told_beside_their_setup() -> None:
    runs = {name: played("7B/8k", name) for name in SYSTEMS}
    told = as_data(SETUPS["7B/8k"], 0, runs, runs["sync"])
    assert told.keys() == {"setup", "systems"}
    assert told["setup"]["cap_tokens"] == 8192
    assert list(told["systems"]) == list(SYSTEMS)
    assert told["systems"]["sync"]["speedup_over_sync"] == 1.0

"""Scores beside the rollout or after it: what each kind takes, what is called off, and what limits are learnt from."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from rollmux.packer.batching import Batching, Race
from rollmux.packer.prompt import Prompt, Request
from rollmux.packer.tail_batcher import TailBatcher
from rollmux.packer.timeouts import TimeoutPolicy
from rollmux.sim.job.judging import FREE_BYTES, JUDGE, TEXT_TOKENS, part_of_time
from rollmux.sim.job.machine import DEVICES, H800, PREFILL_REACHED, Device
from rollmux.sim.job.rewards import CEILING_S, Program
from rollmux.sim.job.rollout import RoundPlayer
from rollmux.sim.job.scorer import Scorer
from rollmux.sim.job.setup import Reward, Scoring, Setup, Source
from rollmux.sim.job.shipped import SETUPS

# One judge, two sandbox workers, and whole seconds.
SETUP = replace(
    SETUPS["7B/8k"],
    gpus=8,
    scoring=Scoring(rule_s=1.0, sandbox_workers=2, judge_s=4.0, judge_load_s=10.0),
)
PASSES, WRONG, HANGS = Program(0.5, correct=True), Program(0.5, correct=False), Program(600.0, correct=False)
SLOW = Program(5.0, correct=True)  # right, and slower than any prompt's reference allows


def scorer(timeouts: TimeoutPolicy | None = None, judge_batch: int = 1, setup: Setup = SETUP) -> Scorer:
    return Scorer(setup, Source(setup, 0), timeouts, judge_batch)


def asked(domain: str, identity: int = 0, sample: int = 0) -> Request:
    return Request(1, Prompt(0, f"{domain}-{identity}", domain), sample)


def over(rewards: Scorer) -> list[tuple[float, Request, float]]:
    """When each of those submitted has its score, and which."""
    told = []
    while (now := rewards.next_at()) < inf:
        told += [(now, request, score) for request, score in rewards.advance(now)]
    return told


# -- the judge ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_a_text_takes_less_of_the_judge_in_a_larger_batch(device: Device) -> None:
    parts = [part_of_time(device, batch) for batch in range(1, 33)]
    assert parts[0] == 1.0
    assert parts[7] < 1.0
    assert all(later <= sooner + 1e-12 for sooner, later in pairwise(parts))


@pytest.mark.parametrize("batch", [1, 2, 4, 7, 8, 16, 64])
def test_a_text_in_a_batch_takes_its_arithmetic_or_its_part_of_streaming_the_layers(batch: int) -> None:
    """Two layers have room to come and go, the others that fit stay."""
    layer = JUDGE.weight_bytes / JUDGE.layers
    streamed_s = (JUDGE.layers - (FREE_BYTES // layer - 2)) * layer / H800.host_bytes_per_s
    arithmetic_s = 2 * JUDGE.parameters * TEXT_TOKENS / (H800.flops * PREFILL_REACHED)
    least_s = max(streamed_s / batch, arithmetic_s)
    text_s = part_of_time(H800, batch) * streamed_s
    assert least_s * (1 - 1e-9) <= text_s <= 1.1 * least_s


def test_on_a_fast_device_four_texts_take_the_judge_no_longer_than_one() -> None:
    assert part_of_time(SETUP.device, 4) == pytest.approx(0.25)


@pytest.mark.parametrize(("batch", "each_s"), [(1, 4.0), (2, 2.0), (4, 1.0)])
def test_a_server_judges_one_response_after_the_other_each_in_its_part_of_a_batch(batch: int, each_s: float) -> None:
    rewards = scorer(judge_batch=batch)
    for sample in range(3):
        rewards.submit(asked("judge", sample=sample), PASSES, 7.0)
    assert [at for at, _, _ in over(rewards)] == pytest.approx([7.0 + each_s * n for n in (1, 2, 3)])


def test_every_server_judges() -> None:
    rewards = scorer(setup=replace(SETUP, gpus=24))
    for sample in range(6):
        rewards.submit(asked("judge", sample=sample), PASSES, 0.0)
    assert [at for at, _, _ in over(rewards)] == [4.0] * 3 + [8.0] * 3


# -- beside the rollout ------------------------------------------------------------------------------------------------


def test_beside_the_rollout_each_kind_has_its_own_servers_and_the_judge_is_never_loaded() -> None:
    rewards = scorer()
    for domain in ("judge", "code", "math"):
        rewards.submit(asked(domain), PASSES, 10.0)
    assert over(rewards) == [(10.5, asked("code"), 1.0), (11.0, asked("math"), 1.0), (14.0, asked("judge"), 1.0)]


def test_what_is_called_off_frees_its_server_for_the_next() -> None:
    rewards = scorer()
    first, second, third, fourth = (asked("judge", sample=sample) for sample in range(4))
    for request in (first, second, third, fourth):
        rewards.submit(request, PASSES, 0.0)
    assert rewards.cancel(first, 1.0)  # begun
    assert rewards.cancel(third, 1.0)  # waiting
    assert not rewards.cancel(third, 1.0)
    assert not rewards.cancel(asked("judge", 5), 1.0)
    assert over(rewards) == [(5.0, second, 1.0), (9.0, fourth, 1.0)]
    assert not rewards.programs
    assert not rewards.cancel(second, 9.0)


def test_in_a_round_no_response_that_lost_its_race_is_scored_afterwards() -> None:
    setup = replace(
        SETUP.only("judge"),
        prompts=6,
        gpus=8,
        domains=tuple(replace(d, quota=6) for d in SETUP.domains if d.name == "judge"),
        scoring=Scoring(judge_s=1.5),  # so slow that losers wait for it
    )
    source = Source(setup, 0)
    batcher = TailBatcher(Batching(6, 8, 1.5, 1.5, Race.REWARDED, setup.quotas))
    rollout = RoundPlayer(setup, source, batcher, Scorer(setup, source, None), 1, wake_s=0.0, beside=True).play()
    assert rollout.batch is not None
    assert rollout.ended > len(rollout.scored_s), "some were made in vain"
    for each in rollout.batch.prompts:
        won_s = max(rollout.scored_s[response.request] for response in each.responses)
        assert all(at <= won_s for request, at in rollout.scored_s.items() if request.prompt == each.prompt)
    assert rollout.complete_s == max(rollout.scored_s.values())


# -- limits ------------------------------------------------------------------------------------------------------------


def test_without_a_policy_a_program_may_run_to_the_ceiling() -> None:
    rewards = scorer()
    hanging, slow = asked("code"), asked("code", sample=1)
    rewards.submit(hanging, HANGS, 0.0)
    rewards.submit(slow, SLOW, 0.0)
    assert over(rewards) == [(5.0, slow, 1.0), (CEILING_S, hanging, 0.0)]


def test_a_policy_cuts_a_hanging_program_off_where_the_reference_solution_says() -> None:
    policy = TimeoutPolicy()
    rewards = scorer(policy)
    requests = [asked("code", identity) for identity in (0, 1, 300)]
    ends = {}
    for request in requests:
        rewards.submit(request, HANGS, 0.0)
        ((ends[request], _, score),) = over(rewards)
        assert score == 0.0
    limits = {request: max(2.0, 1.5 * rewards.source.reference_s(request.prompt)) for request in requests}
    assert ends == limits
    assert min(limits.values()) == 2.0
    assert 2.5 < max(limits.values()) < 3.0


def test_correct_runs_widen_the_limit_of_their_case_only() -> None:
    policy = TimeoutPolicy()
    policy.learn("code-1", 8.0, 8.0)
    rewards = scorer(policy)
    rewards.submit(asked("code", 1), Program(10.0, correct=True), 0.0)  # below 1.5 times 8 s
    assert over(rewards) == [(10.0, asked("code", 1), 1.0)]
    rewards.submit(asked("code", 1), HANGS, 10.0)
    rewards.submit(asked("code", 2), HANGS, 10.0)
    (other, _, _), (cut, request, _) = over(rewards)
    assert (cut, request) == (25.0, asked("code", 1))
    assert other == 10.0 + max(2.0, 1.5 * rewards.source.reference_s(asked("code", 2).prompt))


def test_wrong_runs_widen_nothing() -> None:
    policy = TimeoutPolicy()
    rewards = scorer(policy)
    rewards.submit(asked("code"), Program(1.99, correct=False), 0.0)
    before = policy.limits("code-0")
    assert over(rewards) == [(1.99, asked("code"), 0.0)]
    assert policy.limits("code-0") == before


def test_a_right_program_that_was_killed_scores_nothing_and_its_audit_widens_the_limit() -> None:
    policy = TimeoutPolicy()
    rewards = scorer(policy)
    rewards.submit(asked("code"), SLOW, 0.0)
    ((end, _, score),) = over(rewards)
    assert end < 3.0
    assert score == 0.0
    assert (policy.false_kills.killed, policy.false_kills.would_have_passed) == (1, 1)
    assert policy.limits("code-0").cpu_s == 1.5 * 5.0


@pytest.mark.parametrize("beside", [True, False])
def test_limits_are_learnt_from_prompts_of_the_sandbox_only(beside: bool) -> None:
    policy = TimeoutPolicy()
    rewards = scorer(policy)
    requests = [asked(domain) for domain in ("math", "code", "judge")]
    if beside:
        for request in requests:
            rewards.submit(request, PASSES, 0.0)
        assert len(over(rewards)) == 3
    else:
        rewards.one_kind_after_the_other([(request, PASSES) for request in requests], 0.0)
    assert [case for case, *_ in policy.state()["cases"]] == ["code-0"]
    assert policy.false_kills.runs == 1


def test_rules_and_judges_ask_how_right_a_program_is_and_not_how_slow() -> None:
    rewards = scorer(TimeoutPolicy())
    rewards.submit(asked("math"), SLOW, 0.0)
    rewards.submit(asked("judge"), SLOW, 0.0)
    rewards.submit(asked("math", 1), WRONG, 0.0)
    rewards.submit(asked("judge", 1), WRONG, 0.0)
    assert [(at, score) for at, _, score in over(rewards)] == [(1.0, 1.0), (2.0, 0.0), (4.0, 1.0), (8.0, 0.0)]


# -- one kind after the other ------------------------------------------------------------------------------------------


def test_one_kind_after_the_other_takes_the_sum_of_all_kinds_and_the_loading_of_the_judge() -> None:
    work = [
        (asked("judge"), PASSES),
        (asked("judge", 1), WRONG),
        (asked("code"), SLOW),
        (asked("code", 1), SLOW),
        (asked("code", 2), Program(7.0, correct=False)),
        (asked("math"), PASSES),
        (asked("math", 1), WRONG),
    ]
    end, scores = scorer().one_kind_after_the_other(work, 100.0)
    rules_s, tests_s, judge_s = 2 * 1.0, 5.0 + 7.0, 10.0 + 2 * 4.0
    assert end == 100.0 + rules_s + tests_s + judge_s
    assert len(scores) == len(work)
    assert dict(scores) == {request: float(program.correct) for request, program in work}
    kinds = [SETUP.by_name[request.prompt.domain].reward for request, _ in scores]
    assert kinds == [Reward.RULE] * 2 + [Reward.SANDBOX] * 3 + [Reward.JUDGE] * 2


def test_the_judge_is_loaded_only_where_it_has_something_to_judge() -> None:
    end, _ = scorer().one_kind_after_the_other([(asked("math"), PASSES), (asked("code"), PASSES)], 3.0)
    assert end == 4.5
    end, _ = scorer().one_kind_after_the_other([(asked("judge"), PASSES)], 3.0)
    assert end == 17.0
    assert scorer().one_kind_after_the_other([], 3.0) == (3.0, [])


def test_one_kind_after_the_other_learns_limits_and_cuts_off_as_beside_the_rollout() -> None:
    policy = TimeoutPolicy()
    policy.learn("code-0", 2.0, 2.0)
    work = [(asked("code"), HANGS), (asked("code", sample=1), SLOW), (asked("code", sample=2), PASSES)]
    end, scores = scorer(policy).one_kind_after_the_other(work, 0.0)
    assert end == 3.5
    assert [score for _, score in scores] == [0.0, 0.0, 1.0]
    assert policy.false_kills.killed == 2
    assert policy.false_kills.runs == 3

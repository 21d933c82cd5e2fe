"""A round of rollout: who runs a response changes nothing of it, and everybody is accounted for."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from time import sleep
from typing import Any

import pytest
import torch

from rollmux.packer import Account, Prompt, Request, RoundKind
from rollmux.runtime.rewards import Status
from rollmux.trainer.errors import RolloutStuck
from rollmux.trainer.metrics import _open
from rollmux.trainer.parts import Parts
from rollmux.trainer.rollout import Rolled, Rollout
from rollmux.trainer.sample import Sample
from rollmux.trainer.scoring import Direct
from rollmux.trainer.settings import JobFile
from rollmux.trainer.update import WrongVersion
from tests.trainer.jobs import tiny

Reward = Callable[[int, str], float]


def unheard(done: int, total: int) -> None:
    """Progress that nobody wants to know."""


def parts(job: JobFile) -> Parts:
    """In double precision: there who stands beside a response does not even change its rounding, for all we can see."""
    made = Parts(job)
    made.model.double()
    made.restore(made.state())
    return made


def rounds(made: Parts, count: int, progress: Callable[[int, int], None] = unheard) -> Iterator[Rolled]:
    """Rounds with the same weights, which get a new version after each as if they were updated."""
    for version in range(1, count + 1):
        yield made.rollout.round(progress)
        made.rollout.update(version)


def drawn(rolled: Rolled) -> list[tuple[object, ...]]:
    return [(each.group, each.tokens, each.reward) for each in rolled.samples]


@pytest.mark.parametrize("mode", ["tail", "sync"])
def test_a_batch_has_the_wanted_prompts_and_responses_and_each_token_its_version(mode: str) -> None:
    made = parts(tiny(batching={"mode": mode}))
    for version, rolled in enumerate(rounds(made, 4)):
        groups = [each.group for each in rolled.samples]
        assert len(groups) == 12
        assert {groups.count(group) for group in groups} == {4}
        assert {number for each in rolled.samples for number in each.versions} == {version}
        assert all(len(each.tokens) == len(each.logprobs) <= 30 for each in rolled.samples)


def test_sync_and_tail_run_to_the_same_tokens_and_any_number_of_workers_and_any_room_do() -> None:
    """The same prompt in the same round has the same responses, however many others run beside it and wherever."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    compared = 0
    for changed in (
        {"batching": {"mode": "sync", "prompts": 4}},
        {"batching": {"prompts": 3}},
        {"batching": {"prompts": 3}, "rollout": {"workers": 3}},
        {"batching": {"prompts": 3}, "rollout": {"running": 2}},
        {"batching": {"prompts": 3}, "rollout": {"room_tokens": 64}},
    ):
        made = parts(tiny(**changed))
        made.rollout.round(unheard)
        for request, response in made.rollout.ended.items():
            name = (str(request.prompt), request.sample)
            compared += name in found
            assert found.setdefault(name, response.tokens) == response.tokens
    assert compared > 20


def test_the_number_of_workers_changes_nothing_where_all_responses_are_awaited() -> None:
    runs = []
    for workers in (1, 3):
        made = parts(tiny(batching={"mode": "sync"}, rollout={"workers": workers}))
        runs.append([drawn(rolled) for rolled in rounds(made, 2)])
    assert runs[0] == runs[1]


def test_prompts_that_lost_their_race_are_trained_later_and_every_epoch_is_accounted_for() -> None:
    made = parts(tiny(batching={"prompts": 4, "eta_prompts": 1.5}, task={"prompts": 20}))
    kinds, trained, deferred = [], list[str](), list[str]()
    for rolled in rounds(made, 12):
        kinds.append(rolled.batch.kind)
        trained += [str(each.prompt) for each in rolled.batch.prompts]
        deferred += [str(prompt) for prompt in rolled.batch.deferred]
        accounts = made.rollout.batcher.accounts()
        assert sum(each.trained for each in accounts.values()) == len(trained)
        assert sum(each.drawn for each in accounts.values()) == made.rollout.data.position
        assert sum(each.waiting for each in accounts.values()) == made.rollout.batcher.queued
    assert {RoundKind.SHORT, RoundKind.LONG} == set(kinds)
    assert len(trained) == len(set(trained)), "a prompt is trained once in an epoch"
    assert set(deferred) & set(trained)
    assert made.rollout.batcher.accounts()[0].trained == 20


def test_what_a_step_tells_of_its_epochs_is_looked_for_once() -> None:
    class Looked(dict[int, Account]):
        times = 0

        def __iter__(self) -> Iterator[int]:
            self.times += 1
            return super().__iter__()

    waits, over = Account(drawn=2, trained=1), Account(drawn=1, trained=1)
    accounts = Looked({0: over, 1: waits, **dict.fromkeys(range(2, 50), over)})
    assert set(_open(accounts)) == {1, 48, 49}
    assert accounts.times <= 2
    assert not _open({})


@pytest.mark.parametrize("race", ["rewarded", "none"])
def test_a_task_that_nobody_can_do_ends_its_rounds_though_prompts_without_differences_are_replaced(race: str) -> None:
    made = parts(tiny(objective={"algorithm": "dapo"}, batching={"race": race}))
    made.rollout.scorer = Direct(lambda number, response: 0.0)
    for rolled in rounds(made, 2):
        assert len(rolled.batch.prompts) == 3
        assert len(rolled.batch.filtered) == 30


@pytest.mark.parametrize("value", [float("nan"), None, "1", 2e9, 10**400], ids=lambda value: repr(value)[:5])
def test_what_is_no_score_is_a_failure_and_no_reward(value: Any) -> None:
    direct = Direct(lambda number, response: value)
    direct.submit(Request(0, Prompt(0, 1), 0), "so")
    (found,) = direct.collect(wait=False)
    assert found.reward.status is Status.ERROR
    assert "no score: return a number from -1e+09 to 1e+09" in found.reward.detail


def test_engines_are_called_by_one_thread_at_a_time_whoever_moves_them_off() -> None:
    """A neighbour may want the nodes of the last rollout while the weights are written."""
    made, inside, met = parts(tiny(rollout={"workers": 2})), Lock(), list[str]()

    def alone(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*told: object) -> None:
            assert inside.acquire(blocking=False), (name, met)
            met.append(name)
            sleep(0.001)
            real(*told)
            inside.release()

        return call

    for engine in made.rollout.engines:
        for name in ("update", "suspend", "resume", "close"):
            setattr(engine, name, alone(name, getattr(engine, name)))
    with ThreadPoolExecutor(1) as other:
        offloads = [other.submit(made.offload) for _ in range(20)]
        for version in range(1, 21):
            made.rollout.update(version)
        for each in offloads:
            each.result()
        made.load()
        late = [other.submit(made.offload) for _ in range(3)]
        made.rollout.close()
        for each in late:
            each.result()
    assert met.count("update") == 40
    assert met.count("suspend") >= 40


def test_engines_of_a_job_that_shares_its_nodes_hold_nothing_before_the_first_phase() -> None:
    made = Parts(tiny(rollout={"workers": 2}), leased=True)
    assert all(engine.is_suspended for engine in made.rollout.engines)
    made.load()
    assert not any(engine.is_suspended for engine in made.rollout.engines)
    made.restore(made.state())
    assert all(engine.is_suspended for engine in made.rollout.engines)


def test_after_a_round_the_engines_are_idle_and_their_aborted_tokens_are_told() -> None:
    made = parts(tiny(batching={"eta_prompts": 2.0}, rollout={"workers": 2}))
    for rolled in rounds(made, 2):
        assert [engine.unfinished for engine in made.rollout.engines] == [0, 0]
        assert all(engine.step() == [] for engine in made.rollout.engines)
        assert (rolled.generated_tokens > sum(rolled.lengths)) == (rolled.batch.aborted > 0)


def test_progress_goes_up_to_all_that_was_launched() -> None:
    told: list[tuple[int, int]] = []
    made = parts(tiny(batching={"mode": "sync"}))
    made.rollout.round(lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (12, 12)
    assert {total for _, total in told} == {12}


@dataclass
class Judge:
    """Rewards by a rule that may raise."""

    rule: Reward
    seen: list[str] = field(default_factory=list)

    def __call__(self, number: int, response: str) -> float:
        self.seen.append(response)
        return self.rule(number, response)


def judged(rule: Reward) -> tuple[Rollout, Judge]:
    made, judge = parts(tiny()), Judge(rule)
    was = made.rollout
    return Rollout(was.engines, was.batcher, was.data, made.task, Direct(judge), tiny().sampling, 48, seed=0), judge


def test_a_response_that_can_t_be_rewarded_is_launched_again_and_never_trained_as_a_zero() -> None:
    def second_time(number: int, response: str) -> float:
        if len(judge.seen) % 3 == 0:
            raise ValueError("the verifier broke")
        return 0.5

    rollout, judge = judged(second_time)
    rolled = rollout.round(unheard)
    assert {each.reward for each in rolled.samples} == {0.5}
    assert rolled.batch.failed > 0
    assert len(rolled.samples) == 12


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_a_failure(score: float) -> None:
    rollout, judge = judged(lambda number, response: score if len(judge.seen) == 1 else 1.0)
    assert rollout.round(unheard).batch.failed == 1


def test_a_reward_that_always_fails_ends_the_run_and_says_why() -> None:
    def broken(number: int, response: str) -> float:
        raise ValueError("no such verifier")

    with pytest.raises(RolloutStuck, match="no such verifier"):
        judged(broken)[0].round(unheard)


def test_a_reward_that_fails_quotes_nothing_that_commands_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    quoted = "no answer in \x1b]0;title\x07\x1b[2J\n\x9b31m"

    def broken(number: int, response: str) -> float:
        raise ValueError(quoted)

    with pytest.raises(RolloutStuck) as stuck:
        judged(broken)[0].round(unheard)
    for told in (str(stuck.value), *caplog.messages):
        assert "no answer in  ]0;title  [2J  31m" in told
        assert told.isprintable()


def test_a_sample_of_another_version_is_refused_and_nothing_is_trained() -> None:
    made = parts(tiny())
    rolled = made.rollout.round(unheard)
    before = {name: weight.clone() for name, weight in made.model.state_dict().items()}
    last = rolled.samples[-1]
    versions = (*last.versions[:-1], 1)
    wrong = Sample(last.prompt, last.tokens, last.logprobs, versions, last.reward, last.group)
    with pytest.raises(WrongVersion, match="end the run"):
        made.learner.update([*rolled.samples[:-1], wrong])
    assert made.learner.version == 0
    assert all(torch.equal(weight, before[name]) for name, weight in made.model.state_dict().items())
    made.learner.update(rolled.samples)
    assert made.learner.version == 1


def test_responses_of_the_last_version_are_refused_by_the_next_update() -> None:
    made = parts(tiny())
    rolled = made.rollout.round(unheard)
    made.learner.update(rolled.samples)
    with pytest.raises(WrongVersion):
        made.learner.update(rolled.samples)

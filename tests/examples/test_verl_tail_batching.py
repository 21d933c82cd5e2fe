"""veRL's rollouts by tail batching: each prompt once an epoch, whole and on-policy, whatever is put off or goes wrong.

Here against a stand-in of veRL, in which a response takes as many turns of the event loop as it has tokens. Against
veRL itself: tests/examples/test_verl.py.
"""

import asyncio
import importlib.util
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.packer import Account, Prompt, Request
from tests.examples import ray_stand_in as beneath
from tests.examples import verl_stand_in as verl
from tests.examples.playing import EXAMPLES
from tests.thorough import examples

PROMPTS, EPOCHS, BATCH, GROUP = 20, 2, 4, 2
STEPS = PROMPTS * EPOCHS // BATCH
SERVERS = ("vllm", "sglang", "trtllm")


@dataclass
class Job:
    """A job that can be started again and again on its folder of checkpoints."""

    example: Any
    config: beneath.DictConfig
    server: verl.Server
    balancer: verl.Balancer

    def start(self) -> Any:
        beneath.stored.clear()
        config = beneath.OmegaConf.create(self.config)  # a trainer writes into it
        mode = config.trainer.v1.trainer_mode
        trainer = verl.TRAINER_REGISTRY[mode](config)
        trainer.init()
        rewards = None if config.reward_model else ["a reward worker"]
        name = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
        assert name == f"{self.example.__name__}.Manager"
        client = verl.LLMServerClient(config, beneath.Actor(self.balancer))
        trainer.agent_loop_manager = self.example.Manager.create(config, client, None, rewards)
        trainer.llm_server_manager = SimpleNamespace(get_replicas=lambda: [verl.Replica(self.server)])
        return trainer

    def step(self, trainer: Any) -> tuple[Counter[int], dict[str, float]]:
        """The prompts that a step trains, with as many responses each, and what is told of it."""
        meta, told = trainer.step()
        beneath.loop.run_until_complete(turns(4))
        assert not self.server.running, "the servers are idle"
        assert self.balancer.busy == 0, "and known to be"
        assert set(beneath.stored["train"]) == set(meta.keys), "nothing else is stored"
        assert {(tag["half"], tag["global_steps"]) for tag in meta.tags} == {(False, trainer.global_steps)}
        responses = {key.rpartition("_")[0]: tag["index"] for key, tag in zip(meta.keys, meta.tags, strict=True)}
        groups = Counter((key.split("_")[0], index) for key, index in responses.items())
        assert set(groups.values()) == {GROUP}
        beneath.kv_clear(meta.keys, "train")
        return Counter(index for _, index in groups), told


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@contextmanager
def a_job(folder: Path, server: str = "vllm", **batching: Any) -> Iterator[Job]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        verl.install(monkeypatch)
        name = "verl_tail_batching"
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / "verl_grpo" / "tail_batching.py")
        assert spec is not None
        assert spec.loader is not None
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        vars(example)["ASK_AGAIN_S"] = 0.0
        it = verl.Server(server)
        try:
            yield Job(example, configuration(folder, server, batching), it, verl.Balancer(beneath.Actor(it)))
        finally:
            while tasks := asyncio.all_tasks(beneath.loop):  # whoever listens for news, and what an error has left
                for task in tasks:
                    task.cancel()
                beneath.loop.run_until_complete(asyncio.wait(tasks))
            beneath.loop.close()


def configuration(folder: Path, server: str, batching: dict[str, Any]) -> beneath.DictConfig:
    return beneath.OmegaConf.create({
        "prompts": PROMPTS,
        "reward_model": False,
        "data": {"train_batch_size": BATCH},
        "algorithm": {"filter_groups": {"enable": False, "metric": "sign"}},
        "actor_rollout_ref": {"rollout": {"name": server, "n": GROUP, "agent": {"agent_loop_manager_class": None}}},
        "trainer": {
            "v1": {"trainer_mode": "tail_batching_sync"},
            "tail_batching": {"eta_prompts": 1.5} | batching,
            "total_epochs": EPOCHS,
            "default_local_dir": str(folder),
            "resume_mode": "auto",
        },
    })  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with a_job(tmp_path) as found:
        yield found


@settings(max_examples=examples(192))
@given(
    seed=st.integers(0, 1000),
    eta_prompts=st.sampled_from([1.0, 1.25, 1.5, 2.0]),
    eta_responses=st.sampled_from([1.0, 1.5]),
    race=st.sampled_from(["rewarded", "generated", "none"]),
    server=st.sampled_from(SERVERS),
    parts=st.integers(1, 2),
    stops=st.sets(st.integers(1, STEPS - 1), max_size=3),
)
def test_each_prompt_is_trained_once_an_epoch_whatever_is_put_off_and_wherever_the_job_is_stopped(
    seed: int, eta_prompts: float, eta_responses: float, race: str, server: str, parts: int, stops: set[int]
) -> None:
    batching = {"eta_prompts": eta_prompts, "eta_responses": eta_responses, "race": race}
    with TemporaryDirectory() as folder, a_job(Path(folder), server, **batching) as job:
        verl.world.length = lambda index, sample: 1 + Random(repr((seed, index, sample))).randrange(40)
        verl.world.reward_turns = lambda index: Random(index).randrange(5)
        verl.world.parts = parts
        trainer, trained = job.start(), Counter[int]()
        for number in range(1, STEPS + 1):
            trained += job.step(trainer)[0]
            trainer._save_checkpoint()
            if number in stops:
                trainer = job.start()
        assert trained == dict.fromkeys(range(PROMPTS), EPOCHS)
        accounts = trainer.prompts.batcher.accounts().values()
        assert [(each.drawn, each.trained) for each in accounts] == [(PROMPTS, PROMPTS)] * EPOCHS
        assert not trainer.prompts.rows


@pytest.mark.parametrize("server", SERVERS)
def test_a_long_prompt_waits_for_a_long_rollout_and_is_then_drawn_whole(tmp_path: Path, server: str) -> None:
    with a_job(tmp_path, server) as job:
        trainer, long = job.start(), first_drawn()
        verl.world.length = lambda index, sample: 200 if index == long else 10
        found = [job.step(trainer) for _ in range(3)]
        assert [told["tail_batching/long"] for _, told in found] == [0, 0, 1]
        assert [trained[long] for trained, _ in found] == [0, 0, 1]
        assert found[0][1]["tail_batching/waiting"] == 2


def first_drawn() -> int:
    """The prompt with which the data begin."""
    (index,) = verl.Dataloader(PROMPTS).draw()["index"]
    return int(index)


@pytest.mark.parametrize("server", SERVERS[:2])
def test_what_loses_its_race_is_drawn_no_further_while_the_rollout_goes_on(tmp_path: Path, server: str) -> None:
    with a_job(tmp_path, server, eta_prompts=1.0, eta_responses=1.5) as job:
        slow = first_drawn()
        verl.world.length = lambda index, sample: 300 if index == slow or sample == GROUP else 10
        trained, told = job.step(job.start())
        spent = verl.world.spent
        assert told["tail_batching/aborted"] == BATCH
        assert spent[slow, 0] == 300
        assert max(spent[index, GROUP] for index in trained if index != slow) < 60


@pytest.mark.parametrize("server", SERVERS[:2])
def test_whenever_a_request_is_given_up_its_server_stops_and_is_known_to_be_free(tmp_path: Path, server: str) -> None:
    with a_job(tmp_path, server) as job:
        client = job.example.Client(job.config, beneath.Actor(job.balancer))
        verl.world.length = lambda index, sample: 100

        async def given_up(after: int) -> None:
            drawing = asyncio.create_task(client.generate("it", prompt_ids=[0, 0]))
            await turns(after)
            drawing.cancel()
            await asyncio.wait([drawing])
            assert drawing.cancelled()
            assert not job.server.running
            await turns(4)
            assert job.balancer.busy == 0

        for after in range(12):
            beneath.loop.run_until_complete(given_up(after))
        assert verl.world.spent[0, 0] < 12 * 20


@pytest.mark.parametrize("server", SERVERS[:2])
def test_whenever_responses_are_given_up_nothing_is_left_of_them_though_it_be_said_twice(
    tmp_path: Path, server: str
) -> None:
    with a_job(tmp_path, server) as job:
        worker = job.start().agent_loop_manager.agent_loop_workers[0]._it
        verl.world.length = lambda index, sample: 10
        requests = [Request(1, Prompt(0, 5), sample) for sample in range(2)]
        row = {"uid": ["u"], "index": [5], "global_steps": [1], "__rollout_n__": [2], "__requests__": [requests]}

        async def given_up(after: int) -> None:
            await worker.generate_sequences(row)
            await turns(after)
            await worker.abort(tuple(requests))
            await turns(1)
            await worker.abort(tuple(requests))
            await worker.settle()
            assert not job.server.running

        for after in range(50):
            beneath.loop.run_until_complete(given_up(after))
            stored = beneath.stored.pop("train")
            assert stored.pop("u")["status"] == "finished"
            assert not any(tag["half"] for tag in stored.values())
            assert stored or after < 40
            assert not stored or after > 10, "it was given up before it was drawn"


def test_a_response_that_a_server_gives_up_is_drawn_again(job: Job) -> None:
    verl.world.stop_reason = lambda index, sample: "abort" if sample == 0 else "completed"
    trained, told = job.step(job.start())
    assert trained.total() == BATCH
    assert told["tail_batching/failed"] >= BATCH


def test_a_prompt_whose_responses_always_fail_is_given_up_and_replaced_though_no_more_was_to_be_drawn(job: Job) -> None:
    hard = first_drawn()
    job.config.trainer.total_training_steps = 1
    verl.world.stop_reason = lambda index, sample: "aborted" if index == hard else "completed"
    trainer = job.start()
    assert hard not in job.step(trainer)[0]
    assert trainer.prompts.batcher.accounts() == {0: Account(drawn=BATCH + 1, trained=BATCH, failed=1)}


def test_a_rollout_in_which_everything_fails_ends(job: Job) -> None:
    verl.world.score = lambda index, sample: float("nan")
    with pytest.raises(RuntimeError, match="10 times as many failures as responses"):
        job.step(job.start())


@pytest.mark.parametrize("word", ["running", "half"])
def test_what_the_storage_does_not_take_is_drawn_again(job: Job, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    put, failures = beneath.kv_put, 3

    def full(key: str, partition_id: str, tag: dict[str, Any]) -> None:
        nonlocal failures
        if failures and (tag.get("status") == word or word in tag):
            failures -= 1
            raise RuntimeError("no room")
        put(key, partition_id, tag)

    monkeypatch.setattr(verl, "kv_put", full)
    trained, told = job.step(job.start())
    assert trained.total() == BATCH
    assert not failures
    assert told["tail_batching/failed"]


def test_a_storage_that_takes_nothing_ends_the_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*put: Any) -> None:
        raise RuntimeError("no room")

    trainer = job.start()
    monkeypatch.setattr(verl.AgentLoopWorker, "_run_prompt", full)
    with pytest.raises(RuntimeError, match=r"the last: RuntimeError.*no room"):
        job.step(trainer)


def test_an_agent_that_gives_no_output_has_failed(job: Job) -> None:
    verl.world.parts = 0
    with pytest.raises(RuntimeError, match="no output"):
        job.step(job.start())


def test_an_agent_loop_that_something_within_it_cancels_has_failed(job: Job) -> None:
    hard, agent = first_drawn(), verl.world.agent

    async def cancelled(client: Any, prompt: dict[str, Any]) -> Any:
        if prompt["index"] == hard and prompt["session_id"] == 0:
            raise asyncio.CancelledError("by a tool")
        return await agent(client, prompt)

    verl.world.agent = cancelled  # type: ignore[method-assign]
    job.config.trainer.total_training_steps = 1
    trained, told = job.step(job.start())
    assert hard in trained
    assert told["tail_batching/failed"] == 1


def test_an_agent_may_give_its_reward_itself(job: Job) -> None:
    async def scored(client: Any, prompt: dict[str, Any]) -> Any:
        return verl.AgentLoopOutput([0], reward_score=0.5)

    verl.world.agent = scored  # type: ignore[method-assign]
    trained, told = job.step(job.start())
    assert trained.total() == BATCH
    assert not told["tail_batching/failed"]


@pytest.mark.parametrize("steps", [1, STEPS])
def test_a_filter_replaces_prompts_whose_responses_all_have_the_same_of_what_it_looks_at(job: Job, steps: int) -> None:
    job.config.algorithm.filter_groups.enable = True
    job.config.trainer.total_training_steps = steps
    verl.world.score = lambda index, sample: float(index * (sample + 1) % 2)  # even ones have zeros
    trainer, trained, filtered = job.start(), Counter[int](), 0.0
    for _ in range(steps):
        found, told = job.step(trainer)
        trained += found
        filtered += told["tail_batching/filtered"]
    assert trained.total() == steps * BATCH
    assert all(index % 2 for index in trained)
    assert filtered
    assert sum(each.waiting for each in trainer.prompts.batcher.accounts().values()) == 0


def test_prompts_that_replace_others_one_by_one_are_shared_among_the_workers(job: Job) -> None:
    job.config.algorithm.filter_groups.enable = True
    verl.world.length = lambda index, sample: 1 + 5 * index
    verl.world.score = lambda index, sample: float(index % 10 == sample)  # most have zeros
    agent, drawn = verl.world.agent, Counter[int]()

    async def counted(client: Any, prompt: dict[str, Any]) -> Any:
        drawn[id(client)] += 1
        return await agent(client, prompt)

    verl.world.agent = counted  # type: ignore[method-assign]
    assert job.step(job.start())[1]["tail_batching/filtered"] > BATCH
    assert len(drawn) == 3
    assert max(drawn.values()) <= 2 * min(drawn.values())


def test_what_a_filter_refuses_is_not_stored_until_the_rollout_is_over(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.config.algorithm.filter_groups.enable = True
    verl.world.score = lambda index, sample: float(index % 10 == sample)  # most have zeros
    put, most = beneath.kv_put, 0

    def counted(key: str, *given: Any) -> None:
        nonlocal most
        put(key, *given)
        most = max(most, sum(key.count("_") == 2 for key in beneath.stored["train"]))  # responses

    monkeypatch.setattr(verl, "kv_put", counted)
    told = job.step(job.start())[1]
    running = 1.5 * BATCH
    assert told["tail_batching/filtered"] > BATCH + running
    assert most <= (running + 2 * BATCH) * GROUP


@pytest.mark.parametrize(("race", "slow_ones"), [("rewarded", 2), ("generated", 4)])
def test_where_generation_decides_a_slow_reward_does_not(job: Job, race: str, slow_ones: int) -> None:
    job.config.trainer.tail_batching["race"] = race
    data = verl.Dataloader(PROMPTS)
    slow = {data.draw()["index"][0] for _ in range(BATCH)}
    verl.world.length = lambda index, sample: 10 if index in slow else 20
    verl.world.reward_turns = lambda index: 100 if index in slow else 0
    assert len(slow & set(job.step(job.start())[0])) == slow_ones


def test_where_a_model_scores_the_batch_later_nobody_waits_for_rewards(job: Job) -> None:
    job.config["reward_model"] = True
    assert job.step(job.start())[0].total() == BATCH


def test_nobody_waits_when_the_last_step_is_over_and_a_job_may_be_ordered_to_run_for_longer(job: Job) -> None:
    trained = Counter[int]()
    for steps in (4, 7):
        job.config.trainer.total_training_steps = steps
        trainer = job.start()
        while trainer.global_steps < steps:
            trained += job.step(trainer)[0]
        trainer._save_checkpoint()
        assert sum(each.waiting for each in trainer.prompts.batcher.accounts().values()) == 0
    assert sorted(trained.values()) == [1] * 12 + [2] * 8


@pytest.mark.parametrize("prompts", [PROMPTS * 2, PROMPTS // 2])
def test_a_job_goes_on_with_more_data_than_it_began_with_or_with_less(job: Job, prompts: int) -> None:
    trainer = job.start()
    for _ in range(PROMPTS // BATCH + 2):
        job.step(trainer)
    trainer._save_checkpoint()
    done, job.config["prompts"], job.config.trainer.total_training_steps = trainer.global_steps, prompts, 4 * STEPS
    job.config.trainer.total_epochs = 4 * STEPS
    trainer = job.start()
    assert trainer.global_steps == done
    while trainer.global_steps < 4 * STEPS:
        job.step(trainer)
    assert not trainer.prompts.rows


def test_validations_are_verls_own_and_change_no_round(job: Job) -> None:
    trainer = job.start()
    job.step(trainer)
    before = trainer.prompts.batcher.state()
    asked = {"global_steps": 1, "partition_id": "val", "batch_size": 3}
    assert trainer.replay_buffer.sample(**asked) == ("veRL's own", asked)
    worker = trainer.agent_loop_manager.agent_loop_workers[0]._it
    prompt = {"uid": "v", "index": 1, "global_steps": 1}
    beneath.loop.run_until_complete(worker._run_agent_loop({}, {"validate": True}, session_id=0, **prompt))
    assert beneath.stored["train"].pop("v_0_0")["index"] == 1
    assert trainer.prompts.batcher.state() == before
    job.step(trainer)


def test_a_checkpoint_without_tail_batching_is_refused(job: Job) -> None:
    trainer = job.start()
    job.step(trainer)
    trainer._save_checkpoint()
    (Path(job.config.trainer.default_local_dir) / "global_step_1" / "tail_batching.pt").unlink()
    with pytest.raises(FileNotFoundError, match="only where it began with it"):
        job.start()


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("actor_rollout_ref.rollout.agent", "agent_loop_manager_class", "mine.Manager"),
        ("trainer.tail_batching", "quotas", {"maths": BATCH}),
        ("trainer.v1", "sync", beneath.DictConfig(parameter_sync_step=2)),
    ],
)
def test_what_does_not_go_with_tail_batching_is_refused(job: Job, section: str, key: str, value: object) -> None:
    beneath.OmegaConf.select(job.config, section)[key] = value
    with pytest.raises(ValueError, match="leave it out"):
        job.start()


def test_settings_that_are_wrong_are_refused(job: Job) -> None:
    job.config.trainer.tail_batching["eta_prompts"] = 0.5
    with pytest.raises(InvalidSpec, match="eta_prompts"):
        job.start()

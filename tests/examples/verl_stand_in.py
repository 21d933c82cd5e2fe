"""What examples/verl_grpo/tail_batching.py needs of veRL, in its names and with its behaviour.

The example runs against veRL itself in tests/examples/test_verl.py, where that is installed.
"""

import asyncio
import json
import pickle
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.examples import ray_stand_in as beneath
from tests.examples.ray_stand_in import Actor, KVBatchMeta, kv_put, remote

# -- veRL's rows: a batch is columns of so many values -----------------------------------------------------------------


def concat_tensordict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    assert all(row.keys() == rows[0].keys() for row in rows)
    return {name: [value for row in rows for value in row[name]] for name in rows[0]}


def assign_non_tensor_stack(rows: dict[str, Any], name: str, values: list[Any]) -> None:
    rows[name] = values


def assign_non_tensor_data(rows: dict[str, Any], name: str, value: Any) -> None:
    rows[name] = [value] * len(rows["uid"])


# -- veRL's servers and agent loops ------------------------------------------------------------------------------------


@dataclass
class TokenOutput:
    token_ids: list[int]
    stop_reason: str = "completed"


@dataclass
class AgentLoopOutput:
    response_ids: list[int]
    reward_score: float | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class LLMServerClient:
    def __init__(self, config: Any, load_balancer_handle: Any) -> None:
        self.config, self._load_balancer = config, load_balancer_handle

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        found: tuple[str, Any] = await self._load_balancer.acquire_server.remote(request_id=request_id)
        return found

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        self._load_balancer.release_server.remote(server_id=server_id)

    async def generate(self, request_id: str, *, prompt_ids: list[int], **more: Any) -> TokenOutput:
        name, server = await self._acquire_server(request_id, prompt_ids=prompt_ids)
        try:
            found: TokenOutput = await server.generate.remote(request_id=uuid.uuid4().hex, prompt_ids=prompt_ids)
            return found
        finally:
            self._release_server(name, request_id=request_id)


class AgentLoopWorker:
    def __init__(self, config: Any, llm_client: Any, teacher_client: Any = None, reward_handles: Any = None) -> None:
        self.config, self.llm_client = config, llm_client
        self.reward_loop_worker_handles = reward_handles
        self.background_tasks: set[asyncio.Task[None]] = set()

    async def generate_sequences(self, batch: dict[str, Any]) -> None:
        for values in zip(*batch.values(), strict=True):
            task = asyncio.create_task(self._run_prompt(dict(zip(batch, values, strict=True))))
            self.background_tasks.add(task)
            task.add_done_callback(self.background_tasks.discard)

    async def _run_prompt(self, prompt: dict[str, Any]) -> None:
        trajectory = {"validate": prompt.pop("validate", False)}
        kv_put(prompt["uid"], "train", {"status": "running"})
        await asyncio.sleep(0)
        count = prompt.pop("__rollout_n__")
        runs = [self._run_agent_loop({}, trajectory, session_id=number, **prompt) for number in range(count)]
        found = await asyncio.gather(*map(asyncio.create_task, runs), return_exceptions=True)
        errors = [each for each in found if isinstance(each, BaseException)]
        given_up = [each for each in errors if isinstance(each, asyncio.CancelledError) and not each.args]
        assert not given_up, "veRL would log each as an error"
        await asyncio.sleep(0)
        kv_put(prompt["uid"], "train", {"status": "failure" if errors else "finished"})

    async def _run_agent_loop(self, sampling_params: Any, trajectory: Any, **prompt: Any) -> None:
        output = await world.agent(self.llm_client, prompt)
        await self._agent_loop_postprocess(output, trajectory["validate"], **prompt)

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **prompt: Any) -> None:
        outputs = output if isinstance(output, list) else [output]
        if outputs[-1].reward_score is None and self.reward_loop_worker_handles is not None:
            outputs[-1].reward_score, extra = await world.reward(prompt)
            outputs[-1].extra_fields["reward_extra_info"] = extra
        await self._compute_teacher_logprobs(outputs[-1])
        for number, _ in enumerate(outputs):
            key = f"{prompt['uid']}_{prompt['session_id']}_{number}"
            kv_put(key, "train", {"half": True})
            await asyncio.sleep(0)
            kv_put(key, "train", {"half": False, "index": prompt["index"], "global_steps": prompt["global_steps"]})

    async def _compute_teacher_logprobs(self, *given: Any, **more: Any) -> None: ...


AgentLoopWorkerTQ = remote(AgentLoopWorker)


class AgentLoopManagerTQ:
    def __init__(self, *given: Any) -> None:
        self.agent_loop_workers_class: Any = None
        self._given = given

    @classmethod
    def create(cls, *given: Any) -> "AgentLoopManagerTQ":
        manager = cls(*given)
        manager.agent_loop_workers = [manager.agent_loop_workers_class.remote(*given) for _ in range(3)]
        return manager

    agent_loop_workers: list[Actor]

    def generate_sequences(self, rows: dict[str, Any]) -> None:
        for number, worker in enumerate(self.agent_loop_workers):
            part = {name: values[number :: len(self.agent_loop_workers)] for name, values in rows.items()}
            beneath.get(worker.generate_sequences.remote(part))


# -- veRL's trainer ----------------------------------------------------------------------------------------------------


class Dataloader:
    """A prompt at a time, each epoch in an order of its own."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.state: dict[str, Any] = {"random": Random(3).getstate(), "left": []}

    def draw(self) -> dict[str, Any]:
        if not self.state["left"]:
            random = Random()
            random.setstate(self.state["random"])
            self.state["left"] = random.sample(range(self._count), self._count)
            self.state["random"] = random.getstate()
        return {"index": [self.state["left"].pop()]}

    def __len__(self) -> int:
        return self._count


class PPOTrainer:
    agent_loop_manager: Any
    llm_server_manager: Any

    def __init__(self, config: Any) -> None:
        self.config = config
        self.replay_buffer = self._build_replay_buffer()

    def init(self) -> None:
        self._init_dataloader()
        self._load_checkpoint()

    def _build_replay_buffer(self) -> Any:
        return SimpleNamespace(sample=lambda **asked: ("veRL's own", asked))

    def _init_dataloader(self) -> None:
        assert self.config.data.gen_batch_size == 1
        self.train_dataloader = Dataloader(self.config.prompts)
        self.steps_per_epoch = self.config.prompts // self.config.data.train_batch_size
        steps = self.steps_per_epoch * self.config.trainer.total_epochs
        self.total_training_steps = self.config.trainer.get("total_training_steps") or steps

    def _fetch_one_gen_batch(self) -> dict[str, Any]:
        return self.train_dataloader.draw() | {"uid": [str(uuid.uuid4())]}

    def _submit_batch_to_rollout(self, rows: dict[str, Any]) -> None:
        for uid in rows["uid"]:
            kv_put(uid, "train", {"is_prompt": True, "status": "pending"})
        self.agent_loop_manager.generate_sequences(rows)

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir)
        (folder / f"global_step_{self.global_steps}" / "data.pt").write_bytes(pickle.dumps(self.train_dataloader.state))
        (folder / "latest").write_text(json.dumps(self.global_steps))

    def _load_checkpoint(self) -> None:
        latest = Path(self.config.trainer.default_local_dir) / "latest"
        self.global_steps = json.loads(latest.read_text()) if latest.exists() else 0
        if self.global_steps:
            data = latest.parent / f"global_step_{self.global_steps}" / "data.pt"
            self.train_dataloader.state = pickle.loads(data.read_bytes())

    def step(self) -> tuple[KVBatchMeta, dict[str, float]]:
        """What `fit` does again and again."""
        self.global_steps += 1
        assert self.prepare_step() == {}
        found: tuple[KVBatchMeta, dict[str, float]] = self.replay_buffer.sample(
            global_steps=self.global_steps, partition_id="train", batch_size=self.config.data.train_batch_size
        )
        return found

    def prepare_step(self) -> dict[str, float]:
        raise AssertionError("veRL would draw a batch")


TRAINER_REGISTRY: dict[str, type] = {}


def register_trainer(name: str) -> Callable[[type], type]:
    return lambda kind: TRAINER_REGISTRY.setdefault(name, kind)


# -- the job -----------------------------------------------------------------------------------------------------------


class Server:
    """One rollout server, which draws a token in each turn of the event loop.

    Of a call that is cancelled vLLM's stop the response, SGLang's are to be told by its name, TensorRT-LLM's go on.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.running: dict[str, asyncio.Task[TokenOutput]] = {}
        servers["it:30000"] = self

    async def generate(self, request_id: str, prompt_ids: list[int]) -> TokenOutput:
        for _ in range(3):  # it reads the prompt, and knows of no request yet
            await asyncio.sleep(0)
        task = self.running[request_id] = asyncio.create_task(self._draw(*prompt_ids))
        task.add_done_callback(lambda _: self.running.pop(request_id))
        try:
            return await (task if self.kind == "vllm" else asyncio.shield(task))
        except asyncio.CancelledError:
            if task.cancelled():  # it was aborted
                return TokenOutput([], "abort")
            raise

    async def _draw(self, index: int, sample: int) -> TokenOutput:
        length = world.length(index, sample)
        for _ in range(length):
            await asyncio.sleep(0)
            world.spent[index, sample] += 1
        return TokenOutput([0] * length, world.stop_reason(index, sample))

    def abort(self, request_id: str) -> None:
        if request_id in self.running:
            self.running[request_id].cancel()


servers: dict[str, Server] = {}


class AsyncClient:
    """As httpx has it, for what an SGLang server hears."""

    def __init__(self, timeout: None, trust_env: bool) -> None: ...

    async def post(self, url: str, json: dict[str, str]) -> None:
        await asyncio.sleep(0)
        name, path = url.removeprefix("http://").split("/")
        assert path == "abort_request"
        servers[name].abort(json["rid"])


class Balancer:
    def __init__(self, server: Actor) -> None:
        self._server, self.busy = server, 0

    async def acquire_server(self, request_id: str) -> tuple[str, Actor]:
        self.busy += 1
        await asyncio.sleep(0)
        return "it:30000", self._server

    def release_server(self, server_id: str) -> None:
        self.busy -= 1


class Replica:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def abort_all_requests(self) -> None:
        for request_id in list(self._server.running):
            self._server.abort(request_id)

    async def resume_generation(self) -> None: ...


@dataclass
class World:
    """What the job's own functions do, and what they have seen."""

    length: Callable[[int, int], int] = lambda index, sample: 1 + Random(repr((index, sample))).randrange(40)
    stop_reason: Callable[[int, int], str] = lambda index, sample: "completed"
    reward_turns: Callable[[int], int] = lambda index: 0
    score: Callable[[int, int], float] = lambda index, sample: float(sample % 3)
    parts: int = 1
    spent: Counter[tuple[int, int]] = field(default_factory=Counter)  # tokens drawn, whatever became of them

    async def agent(self, client: Any, prompt: dict[str, Any]) -> Any:
        drawn = await client.generate(prompt["uid"], prompt_ids=[prompt["index"], prompt["session_id"]])
        outputs = [AgentLoopOutput(drawn.token_ids) for _ in range(self.parts)]
        return outputs if self.parts != 1 else outputs[0]

    async def reward(self, prompt: dict[str, Any]) -> tuple[float, dict[str, float]]:
        for _ in range(self.reward_turns(prompt["index"])):
            await asyncio.sleep(0)
        score = self.score(prompt["index"], prompt["session_id"])
        return score, {"sign": score > 0}


world = World()


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever imports veRL, Ray, OmegaConf, TransferQueue or httpx in this test gets this."""
    monkeypatch.setattr(beneath, "loop", asyncio.new_event_loop())
    monkeypatch.setattr(sys.modules[__name__], "world", World())
    beneath.stored.clear()
    TRAINER_REGISTRY.clear()
    TRAINER_REGISTRY["sync"] = type("PPOTrainerSync", (PPOTrainer,), {})
    names = (
        "httpx", "ray", "omegaconf", "transfer_queue", "verl", "verl.trainer", "verl.trainer.ppo",
        "verl.trainer.ppo.v1", "verl.trainer.ppo.v1.agent_loop_tq", "verl.trainer.ppo.v1.trainer_base", "verl.utils",
        "verl.utils.tensordict_utils", "verl.workers", "verl.workers.rollout", "verl.workers.rollout.llm_server",
        "verl.workers.rollout.replica",
    )  # fmt: skip
    for name in names:
        module = ModuleType(name)
        vars(module).update({key: it for key, it in (vars(beneath) | globals()).items() if not key.startswith("_")})
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)

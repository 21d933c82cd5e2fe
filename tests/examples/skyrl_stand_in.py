"""What examples/skyrl/leased.py needs of SkyRL, in its names and with its behaviour, where SkyRL itself is not there.

Its loop asks the same things in the same order as that of SkyRL 0.3.0, which the example runs against in
tests/examples/test_skyrl_itself.py where it is installed. All processes are one here.
"""

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.examples.gpus import Gpus

NAMES = (
    "ray",
    "skyrl",
    "skyrl.backends",
    "skyrl.backends.skyrl_train",
    "skyrl.backends.skyrl_train.workers",
    "skyrl.backends.skyrl_train.workers.worker_dispatch",
    "skyrl.train",
    "skyrl.train.config",
    "skyrl.train.entrypoints",
    "skyrl.train.entrypoints.main_base",
    "skyrl.train.trainer",
    "skyrl.train.utils",
    "skyrl.train.utils.utils",
)
PARTS = ("weights", "kv_cache")


@dataclass
class Place:
    """Where jobs of these tests run, and what goes wrong there."""

    gpus: Gpus
    folder: Path
    steps: int
    breaks: str = ""  # what raises, when it is done
    draws_a_step: int = 1  # where the batch is sampled dynamically
    began: list[str] = field(default_factory=list)  # the command lines


def made(value: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**{key: made(each) if isinstance(each, dict) else each for key, each in value.items()})


@dataclass
class SkyRLTrainConfig:
    """Of its settings those that are looked at, and the place: whoever has the settings knows it."""

    on: Place | None = None
    trainer: Any = field(
        default_factory=lambda: made(
            {
                "run_name": "a",
                "placement": {"colocate_all": True},
                "fully_async": {"enabled": False},
                "eval_before_train": True,
                "resume": False,
                "ref": True,
                "critic": True,
            }
        )
    )
    generator: Any = field(default_factory=lambda: made({"inference_engine": SimpleNamespace(engine_init_kwargs={})}))

    @classmethod
    def from_cli_overrides(cls, args: list[str]) -> "SkyRLTrainConfig":
        place = vars(sys.modules["skyrl"])["place"]
        place.began = args
        return cls(on=place)


@dataclass
class GPUState:
    model_on_gpu: bool = False
    optimizer_on_gpu: bool = False


class Group:
    """The workers of one model."""

    def __init__(self, cfg: Any, name: str) -> None:
        self.place, self.job, self.name = cfg.on, cfg.trainer.run_name, name
        self.step = 0  # of which update its weights are

    def backload_to_gpu(self, backload_optimizer: bool = True, backload_model: bool = True) -> None:
        for part, comes in ((self.name, backload_model), (f"{self.name} optimizer", backload_optimizer)):
            if comes:
                self.place.gpus.come(self.job, part)

    def offload_to_cpu(self, offload_optimizer: bool = True, offload_model: bool = True) -> None:
        assert {self.name, f"{self.name} optimizer"} & self.place.gpus.on.get(self.job, set()), "what is not there"
        for part, leaves in ((self.name, offload_model), (f"{self.name} optimizer", offload_optimizer)):
            if leaves:
                self.place.gpus.leave(self.job, part)

    def work(self, what: str, *here: str) -> None:
        self.place.gpus.work(self.job, what, self.name, *here)
        if self.place.breaks == what:
            raise ZeroDivisionError(what)


class WorkerDispatch:
    """Its models take turns on the GPUs: whichever is asked for comes, and the others leave."""

    def __init__(
        self, cfg: Any, policy_actor_group: Group, critic_actor_group: Any = None, ref_actor_group: Any = None,
        inference_engine_client: Any = None,
    ) -> None:  # fmt: skip
        self._inference_engine_client = inference_engine_client
        groups = {"policy": policy_actor_group, "critic": critic_actor_group, "ref": ref_actor_group}
        self._actor_groups = {name: group for name, group in groups.items() if group is not None}
        self._gpu_state = {name: GPUState() for name in self._actor_groups}

    def _ensure_on_gpu(self, model: str, need_optimizer: bool = True) -> None:
        for other, there in self._gpu_state.items():
            if other != model and (there.model_on_gpu or there.optimizer_on_gpu):
                self._offload(other)
        there = self._gpu_state[model]
        if not there.model_on_gpu or (need_optimizer and not there.optimizer_on_gpu):
            self._actor_groups[model].backload_to_gpu(need_optimizer)
            self._gpu_state[model] = GPUState(True, need_optimizer or there.optimizer_on_gpu)

    def _offload(self, model: str, offload_optimizer: bool = True, offload_model: bool = True) -> None:
        self._actor_groups[model].offload_to_cpu(offload_optimizer, offload_model)
        there = self._gpu_state[model]
        there.model_on_gpu &= not offload_model
        there.optimizer_on_gpu &= not offload_optimizer

    def mark_all_offloaded(self) -> None:
        self._gpu_state = {name: GPUState() for name in self._actor_groups}

    def forward(self, model: str) -> None:
        self._ensure_on_gpu(model, need_optimizer=False)
        self._actor_groups[model].work(f"{model} forward", model)

    def forward_backward_and_step(self, model: str, step: int) -> None:
        self._ensure_on_gpu(model)
        self._actor_groups[model].work(f"{model} {step}", f"{model} optimizer")
        self._actor_groups[model].step = step

    def save_checkpoint(self, model: str, file: Path, step: int) -> None:
        self._ensure_on_gpu(model)
        self._actor_groups[model].work(f"save {model} {step}", f"{model} optimizer")
        file.write_text(str(step))

    def load_checkpoint(self, model: str, step: int) -> None:
        self._ensure_on_gpu(model)
        self._actor_groups[model].work(f"load {model} {step}")
        self._actor_groups[model].step = step

    async def save_weights_for_sampler(self, model_id: str | None = None) -> None:
        policy, client = self._actor_groups["policy"], self._inference_engine_client
        self._ensure_on_gpu("policy", need_optimizer=False)
        if self._gpu_state["policy"].optimizer_on_gpu:
            self._offload("policy", offload_model=False)
        policy.work("before the update")
        await client.wake_up(tags=["weights"])
        await asyncio.sleep(0.005)  # a broadcast takes a while
        policy.work("update", "weights")
        client.step = policy.step
        self._offload("policy")
        await client.wake_up(tags=["kv_cache"])


class Client:
    """The engines of a job, which forget their weights in their sleep. Those awake in part pass for asleep."""

    def __init__(self, cfg: Any) -> None:
        self.place, self.job = cfg.on, cfg.trainer.run_name
        self.step: int | None = None
        self.asleep: set[str] = set()
        for part in PARTS:
            self.place.gpus.come(self.job, part)

    async def wake_up(self, tags: list[str]) -> None:
        await asyncio.sleep(0)
        for part in self.asleep.intersection(tags):
            self.asleep.remove(part)
            self.place.gpus.come(self.job, part)

    async def sleep(self) -> None:
        await asyncio.sleep(0)
        if not self.asleep:
            self.place.gpus.work(self.job, "sleep", *PARTS)
            self.step, self.asleep = None, set(PARTS)
            for part in PARTS:
                self.place.gpus.leave(self.job, part)

    async def draw(self, what: str, step: int) -> None:
        assert self.step == step, f"{what} with the weights of step {self.step}"
        await asyncio.sleep(0.002)
        self.place.gpus.work(self.job, what, *PARTS)
        if self.place.breaks == what:
            raise ZeroDivisionError(what)


class RayPPOTrainer:
    def __init__(self, cfg: Any, inference_engine_client: Client) -> None:
        self.cfg, self.inference_engine_client = cfg, inference_engine_client
        self.global_step = 0
        self.dispatch: Any = None

    def build_models(self, policy: Any, critic: Any, ref: Any) -> None:
        self.policy_model, self.critic_model, self.ref_model = (
            self._build(name, kind) for name, kind in (("policy", policy), ("critic", critic), ("ref", ref))
        )
        models = self.policy_model, self.critic_model, self.ref_model
        self.dispatch = WorkerDispatch(self.cfg, *models, self.inference_engine_client)
        self.dispatch.mark_all_offloaded()

    def _build(self, name: str, kind: Any) -> Any:
        """On the GPUs, which it leaves at once."""
        if kind is None:
            return None
        made = kind(self.cfg, name)
        made.backload_to_gpu(name != "ref")
        made.offload_to_cpu()
        return made

    @property
    def saved(self) -> Path:
        return Path(self.cfg.on.folder / self.cfg.trainer.run_name)

    async def train(self) -> None:
        place, client = self.cfg.on, self.inference_engine_client
        if self.cfg.trainer.resume and self.saved.exists():
            self.global_step = int(self.saved.read_text())
            for model in self._those_of("policy", "critic"):
                self.dispatch.load_checkpoint(model, self.global_step)
        await self.dispatch.save_weights_for_sampler()
        if self.cfg.trainer.eval_before_train:
            await client.draw(f"eval {self.global_step}", self.global_step)
        self.global_step += 1
        while self.global_step <= place.steps:
            for _ in range(place.draws_a_step):
                await client.draw(f"generate {self.global_step}", self.global_step - 1)
            await client.sleep()
            self.postprocess_generator_output({}, [])
            for model in self._those_of("critic", "ref", "policy"):
                self.dispatch.forward(model)
            for model in self._those_of("critic", "policy"):
                self.dispatch.forward_backward_and_step(model, self.global_step)
            for model in self._those_of("policy", "critic"):
                self.dispatch.save_checkpoint(model, self.saved, self.global_step)
            await self.dispatch.save_weights_for_sampler()
            await client.draw(f"eval {self.global_step}", self.global_step)
            self.global_step += 1
        await client.sleep()
        self.global_step -= 1
        self.dispatch.save_checkpoint("policy", self.saved, self.global_step)  # as if the last step had not been saved

    def _those_of(self, *models: str) -> list[str]:
        return [model for model in models if model in self.dispatch._actor_groups]

    def postprocess_generator_output(self, generator_output: Any, uids: list[str]) -> Any:
        return generator_output, uids


class BasePPOExp:
    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg

    def get_inference_client(self) -> Client:
        client = Client(self.cfg)
        asyncio.run(client.sleep())
        return client

    def get_trainer(self, **given: Any) -> RayPPOTrainer:
        return RayPPOTrainer(**given)

    def _setup_trainer(self) -> RayPPOTrainer:
        client = self.get_inference_client()
        trainer = self.get_trainer(cfg=self.cfg, inference_engine_client=client)
        settings = self.cfg.trainer
        trainer.build_models(Group, Group if settings.critic else None, Group if settings.ref else None)
        return trainer

    def run(self) -> None:
        asyncio.run(self._setup_trainer().train())


def validate_cfg(cfg: Any) -> None: ...


def initialize_ray(cfg: Any) -> None: ...


def remote(**_: object) -> Any:
    return lambda function: SimpleNamespace(remote=lambda *given: lambda: function(*given))


def get(asked: Any) -> Any:
    return asked()


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever imports SkyRL in this test gets this."""
    for name in NAMES:
        module = ModuleType(name)
        vars(module).update({key: value for key, value in globals().items() if not key.startswith("_")})
        monkeypatch.setitem(sys.modules, name, module)
    for name in NAMES[2:]:
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, sys.modules[name])

"""What examples/openrlhf/leased.py needs of OpenRLHF, in its names and with its behaviour, where it is not there.

Its script and its loop ask the same things in the same order as those of OpenRLHF 0.11.2, which the example runs
against in tests/examples/test_openrlhf_itself.py where it is installed. All processes are one here.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.examples.gpus import Gpus

NAMES = (
    "ray",
    "openrlhf",
    "openrlhf.trainer",
    "openrlhf.trainer.ppo_trainer",
    "openrlhf.trainer.ppo_utils",
    "openrlhf.trainer.ppo_utils.samples_generator",
    "openrlhf.trainer.ray",
    "openrlhf.trainer.ray.launcher",
    "openrlhf.trainer.ray.ppo_actor",
    "openrlhf.trainer.ray.ppo_critic",
    "openrlhf.trainer.ray.vllm_engine",
    "openrlhf.utils",
)
PARTS = ("weights", "kv_cache")
MODELS = ("policy", "critic", "reward", "reference")


@dataclass
class Place:
    """Where jobs of these tests run, and what goes wrong there."""

    gpus: Gpus
    folder: Path
    steps: int
    breaks: str = ""  # what raises, when it is done
    filtered: int = 0  # draws of a step of which nothing is left
    pins: bool = False  # whether its loaders pin, for which the process has a place on a GPU

    def work(self, job: str, what: str, *here: str) -> None:
        self.gpus.work(job, what, *here)
        if self.breaks == what:
            raise ZeroDivisionError(what)


def made(value: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**{key: made(each) if isinstance(each, dict) else each for key, each in value.items()})


def settings(place: Place, job: str) -> Any:
    """Those that are looked at, and the place: whoever has the settings knows it."""
    content = {
        "train": {"colocate_all": True, "async_enable": False, "enable_ema": False},
        "vllm": {"enable_sleep": True},
        "ds": {"enable_sleep": True, "zero_stage": 2, "lora": {"rank": 0}},
        "actor": {"freeze_visual_encoder": False},
        "ref": {"offload": False},
        "reward": {"remote_url": None, "offload": False},
        "algo": {"kl": {"init_coef": 0.01}},
    }
    return made({"place": place, "job": job, "resume": False, "evaluates": True, "models": MODELS, **content})


# -- Ray ---------------------------------------------------------------------------------------------------------------


class Actor:
    """Its calls are made at once."""

    def __init__(self, it: Any) -> None:
        self._it = it

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given, **more: put(getattr(self._it, name)(*given, **more)))


def remote(*kinds: type, **_: object) -> Any:
    if not kinds:
        return remote
    (kind,) = kinds
    made = SimpleNamespace(remote=lambda *given, **more: Actor(kind(*given, **more)))
    made.__ray_metadata__ = SimpleNamespace(modified_class=kind)
    return made


def init(address: str) -> str:
    return address


def put(value: Any) -> Callable[[], Any]:
    return lambda: value


def get(asked: Any) -> Any:
    return [each() for each in asked] if isinstance(asked, list) else asked()


# -- workers -----------------------------------------------------------------------------------------------------------


class BaseModelActor:
    def __init__(self, args: Any, name: str) -> None:
        self.strategy, self.name = SimpleNamespace(args=args), name
        self.place, self.job = args.place, args.job
        self.step = 0  # of which update its weights are

    def come(self, part: str) -> None:
        self.place.gpus.come(self.job, part)

    def leave_behind(self, part: str) -> None:
        self.place.gpus.leave(self.job, part)

    def work(self, what: str, *here: str) -> None:
        self.place.work(self.job, what, *here)

    def empty_cache(self) -> None: ...

    def forward(self) -> None:
        self.work(f"{self.name} forward", self.name)


class Trained(BaseModelActor):
    """As OpenRLHF's: once it is made, and after each call, its weights stay on the GPU."""

    def init_model_from_pretrained(self, *_: object) -> None:
        self.engine_of_deepspeed = SimpleNamespace(offload_states=self._offload_all, reload_states=self._reload_all)
        self.come(self.name)
        self.reload_states()
        if self.strategy.args.resume and self.saved.exists():
            self.step = int(self.saved.read_text())
            self.work(f"load {self.name} {self.step}", self.name, f"{self.name} optimizer")
        self.offload_states()

    @property
    def saved(self) -> Path:
        return Path(self.place.folder / f"{self.job}.{self.name}")

    def _offload_all(self) -> None:
        self.leave_behind(self.name)
        self.offload_states()

    def _reload_all(self) -> None:
        self.come(self.name)
        self.reload_states()

    def reload_states(self) -> None:
        self.come(f"{self.name} optimizer")

    def offload_states(self) -> None:
        self.leave_behind(f"{self.name} optimizer")

    def forward(self) -> None:
        assert f"{self.name} optimizer" not in self.place.gpus.on[self.job], "there may be no room for it"
        super().forward()

    def fit(self) -> None:
        self.step += 1
        self.work(f"{self.name} {self.step}", self.name, f"{self.name} optimizer")

    def get_checkpoint_states(self) -> int:
        return self.step

    def save_checkpoint(self, what: str) -> None:
        self.work(f"{what} {self.name} {self.step}", self.name)
        self.saved.write_text(str(self.step))

    def save_model(self) -> None:
        self.work(f"export {self.name} {self.step}", self.name)


@remote
class PolicyModelActor(Trained):
    def init_model_from_pretrained(self, *engines: Any) -> None:
        super().init_model_from_pretrained()
        self.actor, self.engines = SimpleNamespace(model=self.engine_of_deepspeed), engines

    def broadcast_to_vllm(self) -> None:
        self.work(f"sync {self.step}", self.name, "weights")
        for engine in self.engines:
            engine.update_weight.remote(self.step)


@remote
class CriticModelActor(Trained):
    def init_model_from_pretrained(self, *_: object) -> None:
        super().init_model_from_pretrained()
        self.critic = self.engine_of_deepspeed


class AskedOnly(BaseModelActor):
    """With ZeRO 3, and offloaded, it comes as it computes, and what it has gathered stays until that is let go."""

    def init_model_from_pretrained(self) -> None:
        self.module = SimpleNamespace(to=self.to, empty_partition_cache=lambda: self.leave_behind(self.name))
        self.come(self.name)

    def to(self, device: str) -> None:
        assert self.strategy.args.ds.zero_stage < 3, "torch knows nothing of partitions"
        {"cpu": self.leave_behind, "cuda": self.come}[device](self.name)

    def forward(self) -> None:
        if self.strategy.args.ds.zero_stage == 3:
            self.come(self.name)
        super().forward()


@remote
class ReferenceModelActor(AskedOnly):
    def init_model_from_pretrained(self) -> None:
        super().init_model_from_pretrained()
        self.model = SimpleNamespace(model=self.module)


@remote
class RewardModelActor(AskedOnly):
    def init_model_from_pretrained(self) -> None:
        super().init_model_from_pretrained()
        self.model = self.module


class Group:
    """The workers of a model: one."""

    def __init__(self, kind: Any, args: Any, name: str) -> None:
        self.actor = kind.remote(args, name)

    def async_run_method(self, method_name: str, *given: Any) -> list[Any]:
        return [getattr(self.actor, method_name).remote(*given)]


# -- engines -----------------------------------------------------------------------------------------------------------


class Engine:
    """As OpenRLHF's of vLLM: its weights wait on the host while it sleeps. Awake in part it passes for asleep."""

    def __init__(self, args: Any) -> None:
        self.place, self.job, self.step = args.place, args.job, 0
        self.asleep: set[str] = set()
        for part in PARTS:
            self.place.gpus.come(self.job, part)

    def wake_up(self, tags: Any = PARTS) -> None:
        for part in self.asleep.intersection(tags):
            self.asleep.remove(part)
            self.place.gpus.come(self.job, part)

    def sleep(self) -> None:
        if not self.asleep:
            self.asleep = set(PARTS)
            for part in PARTS:
                self.place.gpus.leave(self.job, part)

    def update_weight(self, step: int) -> None:
        assert "weights" not in self.asleep
        self.step = step

    def generate_responses(self, what: str) -> None:
        self.place.work(self.job, f"{what} {self.step}", *PARTS)


def batch_vllm_engine_call(engines: list[Actor], method_name: str, **more: Any) -> Any:
    return get([getattr(engine, method_name).remote(**more) for engine in engines])


# -- the loop ----------------------------------------------------------------------------------------------------------


class Loader(list[int]):
    pin_memory = True


class SamplesGenerator:
    def __init__(self, strategy: Any, prompts_dataloader: Any, eval_dataloader: Any, tokenizer: Any, vllm_engines: Any):
        self.strategy, self.tokenizer, self.vllm_engines = strategy, tokenizer, vllm_engines
        self.prompts_dataloader, self.eval_dataloader = prompts_dataloader, eval_dataloader
        self._left: list[int] | None = None
        self._filtered = strategy.args.place.filtered

    def generate_eval_samples(self, **_: object) -> None:
        batch_vllm_engine_call(self.vllm_engines, "wake_up")
        self._draw("eval")
        batch_vllm_engine_call(self.vllm_engines, "sleep")

    def generate_samples(self, **_: object) -> tuple[list[int], bool]:
        """What was drawn, and whether there is no more: that is seen only where more was wanted."""
        if self._left is None:
            self._left = list(self.prompts_dataloader)
        drawn, is_exhausted = [], not self._left
        batch_vllm_engine_call(self.vllm_engines, "wake_up")
        if self._left and self._filtered:
            self._filtered -= 1
            self._draw("filtered")
        elif self._left:
            self._filtered = self.strategy.args.place.filtered
            drawn = [self._left.pop(0)]
            self._draw("draw")
        batch_vllm_engine_call(self.vllm_engines, "sleep")
        return drawn, is_exhausted

    def _draw(self, what: str) -> None:
        get([engine.generate_responses.remote(what) for engine in self.vllm_engines])


@remote
class PPOTrainer:
    def __init__(self, strategy: Any, actor: Any, critic: Any, reward: Any, reference: Any, engines: Any) -> None:
        self.strategy, self.args, self.vllm_engines = strategy, strategy.args, engines
        self.actor_model_group, self.critic_model_group = actor, critic
        self.reward_model_group, self.reference_model_group = reward, reference
        self.prompts_dataloader = Loader(range(self.args.place.steps))
        self.eval_dataloader = Loader() if self.args.evaluates else None
        loaders = self.prompts_dataloader, self.eval_dataloader
        self.samples_generator = SamplesGenerator(strategy, *loaders, "a tokenizer", engines)

    def get_max_steps(self) -> int:
        return len(self.prompts_dataloader)

    def fit(self) -> None:
        loaders = self.prompts_dataloader, self.eval_dataloader
        self.args.place.pins = any(loader.pin_memory for loader in loaders if loader is not None)
        (step,) = get(self.actor_model_group.async_run_method("get_checkpoint_states"))
        if step:
            self.broadcast_to_vllm()
            del self.prompts_dataloader[:step]
        while True:
            drawn, is_exhausted = self.samples_generator.generate_samples()
            if not drawn:
                if is_exhausted:
                    break
                continue
            step = self.train_step(drawn, step)
            self._save("save")
            if self.eval_dataloader is not None:
                self.samples_generator.generate_eval_samples()
                self._save("save best")

    def train_step(self, drawn: list[int], step: int) -> int:
        asked = self.reward_model_group, self.actor_model_group, self.critic_model_group, self.reference_model_group
        self._have(asked, "forward")
        for group in (self.critic_model_group, self.actor_model_group):
            for method in ("reload_states", "fit", "offload_states"):
                self._have([group], method)
        self.broadcast_to_vllm()
        return step + 1

    def broadcast_to_vllm(self) -> None:
        batch_vllm_engine_call(self.vllm_engines, "wake_up", tags=["weights"])
        self._have([self.actor_model_group], "broadcast_to_vllm")

    def _save(self, what: str) -> None:
        self._have([self.actor_model_group, self.critic_model_group], "save_checkpoint", what)

    def _have(self, groups: Any, method: str, *given: Any) -> None:
        for group in groups:
            if group is not None:
                get(group.async_run_method(method, *given))


def get_strategy(args: Any) -> Any:
    return SimpleNamespace(args=args)


def script(args: Any, found: dict[str, ModuleType]) -> None:
    """What OpenRLHF's does once it has read its arguments, with what it imports then."""
    kinds: dict[str, Any] = {
        "policy": found["openrlhf.trainer.ray.ppo_actor"].PolicyModelActor,
        "critic": found["openrlhf.trainer.ray.ppo_critic"].CriticModelActor,
        "reward": found["openrlhf.trainer.ray.launcher"].RewardModelActor,
        "reference": found["openrlhf.trainer.ray.launcher"].ReferenceModelActor,
    }
    strategy = found["openrlhf.utils"].get_strategy(args)
    engines = [Actor(Engine(args))]
    batch_vllm_engine_call(engines, "sleep")
    policy = Group(kinds["policy"], args, "policy")
    others = [Group(kinds[name], args, name) if name in args.models else None for name in MODELS[1:]]
    trainer = found["openrlhf.trainer.ppo_trainer"].PPOTrainer.remote(strategy, policy, *others, engines)
    assert get(trainer.get_max_steps.remote()) == args.place.steps
    get(policy.async_run_method("init_model_from_pretrained", *engines))
    get([call for group in others if group for call in group.async_run_method("init_model_from_pretrained")])
    get(trainer.fit.remote())
    get(policy.async_run_method("save_model"))


def install(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Whoever imports OpenRLHF now gets this: modules of its own, in which it may replace what it likes."""
    for name in NAMES:
        module = ModuleType(name)
        vars(module).update({key: value for key, value in globals().items() if not key.startswith("_")})
        monkeypatch.setitem(sys.modules, name, module)
    for name in NAMES[2:]:
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, sys.modules[name])
    return {name: sys.modules[name] for name in NAMES}

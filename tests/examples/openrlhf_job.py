"""A job of OpenRLHF itself on a processor: `python openrlhf_job.py NAME FOLDER NODE [BREAKS_AT]`.

Its script and its trainer are OpenRLHF's: the loop, groups of Ray's actors and their placement on a GPU that Ray
believes in, the engines' actors and what they ask, data, rewards, advantages, evaluation, checkpoints. DeepSpeed's
models and vLLM want a real one: in their place are some that only remember of which update their weights are. Whoever
is on the GPU has a file in the folder NODE, where jobs of several Ray clusters meet.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openrlhf_ground
import ray
import torch
from ray import cloudpickle

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "openrlhf"
sys.path.insert(0, str(EXAMPLE))

DIGITS, BATCH, GROUP, EPISODES = 4, 2, 2, 2
PARTS = ("weights", "kv_cache")  # of an engine
REWARD = """
import torch


def reward_func(queries, prompts, labels):
    return {"rewards": torch.tensor([float(labels[0])]), "scores": torch.tensor([1.0]), "extra_logs": {}}
"""


class Gpu:
    """What is on the GPU has a file in its folder. Beside it stands what was done, and what went wrong."""

    def __init__(self) -> None:
        self.node, self.job = Path(os.environ["NODE"]), os.environ["NAME"]  # a job's Ray hands its environment on

    def come(self, what: str) -> None:
        (self.node / f"{self.job}.{what}").touch()
        others = [file.name for file in self.node.iterdir() if not file.name.startswith(f"{self.job}.")]
        if others:
            self._write("met", f"{what} of {self.job} met {others}")

    def leave(self, what: str) -> None:
        (self.node / f"{self.job}.{what}").unlink(missing_ok=True)

    def work(self, what: str, *here: str) -> None:
        missing = [part for part in here if not (self.node / f"{self.job}.{part}").exists()]
        if missing:
            self._write("met", f"{what} of {self.job} without {missing}")
        self._write(f"{self.job}.done", what)

    def _write(self, where: str, line: str) -> None:
        with (self.node.parent / where).open("a") as file:
            file.write(f"{line}\n")


# -- in place of vLLM --------------------------------------------------------------------------------------------------


class Options:
    """Those of an engine, or of how it samples."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


class AsyncLLMEngine:
    """Answers a digit with two. Its weights are the number of an update.

    As with vLLM's, those that are awake in part pass for asleep; and their weights wait on the host.
    """

    def __init__(self) -> None:
        self.gpu, self.step, self.answers = Gpu(), 0, 0
        self.asleep: set[str] = set()
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: 0)
        for part in PARTS:
            self.gpu.come(part)

    @classmethod
    def from_engine_args(cls, options: Options) -> "AsyncLLMEngine":
        assert vars(options)["enable_sleep_mode"]
        assert os.environ["RAY_ADDRESS"] != "local", "where it wants actors of its own, it would have a Ray of its own"
        return cls()

    async def is_sleeping(self) -> bool:
        return bool(self.asleep)

    async def sleep(self, level: int) -> None:
        if not self.asleep:
            self.asleep = set(PARTS)
            for part in PARTS:
                self.gpu.leave(part)

    async def wake_up(self, tags: list[str]) -> None:
        for part in self.asleep.intersection(tags):
            self.asleep.remove(part)
            self.gpu.come(part)

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> None:
        assert method == "update_weight"
        assert "weights" not in self.asleep
        self.step = args[2]

    async def generate(self, prompt: Any, sampling: Any, request_id: str) -> Any:
        await asyncio.sleep(0.02)
        (digit,) = prompt["prompt_token_ids"]
        what = "draw" if sampling.temperature == 1 else "eval"
        if (what, str(self.step + 1)) == ("draw", os.environ["BREAKS_AT"]):
            raise ZeroDivisionError("the engine breaks")
        self.gpu.work(f"{what} {digit} with {self.step}", *PARTS)
        self.answers += 1
        answer = SimpleNamespace(token_ids=[digit, self.answers % DIGITS], finish_reason="stop", logprobs=None)
        yield SimpleNamespace(outputs=[answer])


def bring_stand_in() -> None:
    openrlhf_ground.bring({"AsyncEngineArgs": Options, "AsyncLLMEngine": AsyncLLMEngine, "SamplingParams": Options})


bring_stand_in()

from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic  # noqa: E402

# -- in place of workers with a model ----------------------------------------------------------------------------------


class Worker(launcher.BaseModelActor):
    kind = ""

    def init_model_from_pretrained(self, strategy: Any, *_: object) -> None:
        self.strategy, self.gpu, self.step = strategy, Gpu(), 0
        self.gpu.come(self.kind)

    def empty_cache(self) -> None: ...

    def forward(self, sequences: Any, action_mask: Any, **_: object) -> Any:
        self.gpu.work(f"{self.kind} forward", self.kind)
        return torch.full(action_mask.shape, -1.0)


class Trained(Worker):
    """One that DeepSpeed trains, and an engine of DeepSpeed's: each moves what the real one would."""

    def init_model_from_pretrained(self, strategy: Any, *given: Any) -> None:
        super().init_model_from_pretrained(strategy, *given)
        self.reload_states()
        self.folder = Path(strategy.args.ckpt.path) / {"policy": "_actor"}.get(self.kind, "_critic")
        self.states: Any = {}
        if strategy.args.ckpt.load_enable and self.folder.exists():
            self.step, self.states = torch.load(self.folder / "saved", weights_only=False)
            self.gpu.work(f"{self.kind} load {self.step}", self.kind, f"{self.kind}-optimizer")
        self.offload_states()

    def deepspeed(self) -> Any:
        def offload_states() -> None:
            self.gpu.leave(self.kind)
            self.offload_states()

        def reload_states() -> None:
            self.gpu.come(self.kind)
            self.reload_states()

        return SimpleNamespace(offload_states=offload_states, reload_states=reload_states)

    def reload_states(self) -> None:
        self.gpu.come(f"{self.kind}-optimizer")

    def offload_states(self) -> None:
        self.gpu.leave(f"{self.kind}-optimizer")

    def append(self, experience: Any) -> None:
        assert torch.isfinite(experience.advantages).all()

    def fit(self, **_: object) -> dict[str, float]:
        self.step += 1
        self.gpu.work(f"{self.kind} update {self.step}", self.kind, f"{self.kind}-optimizer")
        return {"kl": 0.0}

    def get_checkpoint_states(self) -> Any:
        return self.states

    def save_checkpoint(self, tag: str, client_states: Any = None, **_: object) -> None:
        self.gpu.work(f"{self.kind} save {self.step}", self.kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        torch.save((self.step, client_states), self.folder / "saved")

    def save_model(self) -> None:
        self.gpu.work(f"{self.kind} export {self.step}", self.kind)


class Policy(Trained):
    kind = "policy"

    def init_model_from_pretrained(self, strategy: Any, *given: Any) -> None:
        super().init_model_from_pretrained(strategy, *given)
        *_, self.engines = given
        self.actor = SimpleNamespace(model=self.deepspeed())

    def broadcast_to_vllm(self) -> None:
        self.gpu.work(f"sync {self.step}", self.kind, "weights")
        ray.get([engine.update_weight.remote("step", dtype=None, shape=self.step) for engine in self.engines])


class Critic(Trained):
    kind = "critic"

    def init_model_from_pretrained(self, strategy: Any, *given: Any) -> None:
        super().init_model_from_pretrained(strategy, *given)
        self.critic = self.deepspeed()


class Reference(Worker):
    """With ZeRO 2: it moves as a module of torch does."""

    kind = "reference"

    def init_model_from_pretrained(self, strategy: Any, *given: Any) -> None:
        super().init_model_from_pretrained(strategy, *given)
        self.model = SimpleNamespace(model=SimpleNamespace(to=self.to))

    def to(self, device: Any) -> None:
        (self.gpu.leave if device == "cpu" else self.gpu.come)(self.kind)


vars(ppo_actor).update(PolicyModelActor=ray.remote(num_gpus=1)(Policy))
vars(ppo_critic).update(CriticModelActor=ray.remote(num_gpus=1)(Critic))
vars(launcher).update(ReferenceModelActor=ray.remote(num_gpus=1)(Reference))

import leased  # noqa: E402


def make_inputs(folder: Path) -> None:
    openrlhf_ground.make_tokenizer(folder, DIGITS)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    rows = [json.dumps({"input": str(digit), "label": str(digit)}) for digit in range(DIGITS)]
    (folder / "digits.jsonl").write_text("\n".join(rows))
    (folder / "reward.py").write_text(REWARD)


def main(name: str, folder: Path, node: str, breaks_at: str = "") -> None:
    inputs = folder / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    make_inputs(inputs)
    phase = "{nodes: 1, duration_s: 1}"
    given = {
        "rollmux": f"{{name: {name}, slo: 3, rollout: {phase}, train: {phase}}}",
        "actor.model_name_or_path": inputs,
        "reward.remote_url": inputs / "reward.py",
        "data.prompt_dataset": inputs / "digits.jsonl",
        "data.label_key": "label",
        "data.max_len": 8,
        "eval.dataset": inputs / "digits.jsonl",
        "eval.steps": 2,
        "eval.n_samples_per_prompt": 1,
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "export",
        "ckpt.save_steps": 1,
        "ckpt.best_metric_key": "none",
        "train.batch_size": BATCH * GROUP,
        "train.num_episodes": EPISODES,
        "rollout.batch_size": BATCH,
        "rollout.n_samples_per_prompt": GROUP,
        "rollout.max_new_tokens": 2,
        "vllm.num_engines": 1,
        "actor.num_gpus_per_node": 1,
        "critic.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
    }
    flags = ["ckpt.load_enable", "train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep"]
    os.environ |= {"NAME": name, "NODE": node, "BREAKS_AT": breaks_at, "HF_DATASETS_CACHE": str(folder / "cache")}
    sys.argv = ["leased.py", *(word for key, value in given.items() for word in (f"--{key}", str(value)))]
    sys.argv += [f"--{flag}" for flag in flags]
    init = ray.init

    def with_stand_in(address: str, runtime_env: dict[str, Any]) -> Any:
        runtime_env["worker_process_setup_hook"] = bring_stand_in
        return init(address, runtime_env=runtime_env, num_cpus=8, num_gpus=1, include_dashboard=False)  # it finds none

    vars(ray).update(init=with_stand_in)
    torch.manual_seed(0)  # OpenRLHF seeds its workers alone: each run would draw in another order
    for module in (leased, openrlhf_ground):  # as if each were the script itself: workers do not find them
        cloudpickle.register_pickle_by_value(module)
    leased.main()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])

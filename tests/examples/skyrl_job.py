"""A job of SkyRL itself on a processor: `python skyrl_job.py NAME FOLDER NODE [BREAKS_AT]`.

Its trainer and all that belongs to it is SkyRL's: the loop, the dispatch to workers in Ray's actors, their placement on
a GPU that Ray believes in, data, advantages, evaluation, checkpoints. Workers and engines want a real one: in their
place are some that only remember of which update their weights are. Whoever is on the GPU has a file in the folder
NODE, where jobs of several Ray clusters meet.
"""

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import ray
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "skyrl"
sys.path.insert(0, str(EXAMPLE))

import leased  # noqa: E402
from skyrl.backends.skyrl_train.distributed.dispatch import MeshRank, WorkerOutput  # noqa: E402
from skyrl.train.generators.base import GeneratorInterface  # noqa: E402

DIGITS, GROUP = 8, 2
PARTS = ("weights", "kv_cache")  # of an engine


class Gpu:
    """What is on the GPU has a file in its folder. Beside it stands what was done, and what went wrong."""

    def __init__(self, node: Path, job: str) -> None:
        self.node, self.job = node, job

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


class Worker:
    """A worker of one model, with the methods that SkyRL's dispatch calls."""

    kind = ""

    def __init__(self, **_: object) -> None:
        self.gpu = here()
        self.step = 0

    def init_worker_process_group(self) -> None: ...

    def get_mesh_rank(self) -> MeshRank:
        return MeshRank(dp=0, sp=0, tp=0, pp=0, world_size=1, dp_size=1, pp_size=1)

    def get_ray_node_id(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def init_model(self, *_: object, **__: object) -> None:
        self.backload_to_gpu(backload_optimizer=self.kind != "ref")

    def _set_pad_token_id(self, token: int) -> None: ...

    def empty_cache(self) -> None: ...

    def save_memory_snapshot(self, tag: str) -> None: ...

    def backload_to_gpu(self, backload_optimizer: bool = True, backload_model: bool = True) -> None:
        if backload_model:
            self.gpu.come(self.kind)
        if backload_optimizer:
            self.gpu.come(f"{self.kind}-optimizer")

    def offload_to_cpu(self, offload_optimizer: bool = True, offload_model: bool = True) -> None:
        if offload_model:
            self.gpu.leave(self.kind)
        if offload_optimizer:
            self.gpu.leave(f"{self.kind}-optimizer")

    def forward(self, data: Any) -> WorkerOutput:
        self.gpu.work(f"{self.kind} forward", self.kind)
        key = "values" if self.kind == "critic" else "logprobs"
        length = data.metadata["response_length"]
        return WorkerOutput(loss_fn_outputs=[{key: [-1.0] * length} for _ in range(len(data["sequences"]))])

    def forward_backward(self, data: Any, **_: object) -> WorkerOutput:
        self.gpu.work(f"{self.kind} backward", self.kind, f"{self.kind}-optimizer")
        assert torch.isfinite(data["advantages"]).all()
        return WorkerOutput(metrics={"policy_loss": 0.0})

    def optim_step(self) -> float:
        self.step += 1
        self.gpu.work(f"{self.kind} update {self.step}", self.kind, f"{self.kind}-optimizer")
        return 1.0

    def save_checkpoint(self, ckpt_dir: str, tokenizer: Any) -> None:
        self.gpu.work(f"{self.kind} save {self.step}", self.kind, f"{self.kind}-optimizer")
        Path(ckpt_dir).mkdir(parents=True, exist_ok=True)
        (Path(ckpt_dir) / "step").write_text(str(self.step))

    def load_checkpoint(self, ckpt_dir: str, **_: object) -> None:
        self.step = int((Path(ckpt_dir) / "step").read_text())
        self.gpu.work(f"{self.kind} load {self.step}", self.kind, f"{self.kind}-optimizer")

    def init_weight_sync_state(self, client: Any, cfg: Any) -> None: ...

    def broadcast_to_inference_engines(self, client: "Engines", cfg: Any, model_id: str | None) -> None:
        self.gpu.work(f"sync {self.step}", self.kind, "weights")
        client.file.write_text(str(self.step))


@ray.remote
class Policy(Worker):
    kind = "policy"


@ray.remote
class Critic(Worker):
    kind = "critic"


@ray.remote
class Ref(Worker):
    kind = "ref"


class Engines:
    """In place of SkyRL's client of its engines. Their weights are the number of an update, in a file.

    As with vLLM's, those that are awake in part pass for asleep.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.file = gpu, gpu.node.parent / f"{gpu.job}.weights"
        self.asleep: set[str] = set()
        for part in PARTS:
            gpu.come(part)

    async def wake_up(self, tags: list[str]) -> None:
        for part in self.asleep.intersection(tags):
            self.asleep.remove(part)
            self.gpu.come(part)

    async def sleep(self) -> None:
        if not self.asleep:
            self.file.unlink(missing_ok=True)
            self.asleep = set(PARTS)
            for part in PARTS:
                self.gpu.leave(part)

    def increment_weight_version(self) -> None: ...


class Digits(GeneratorInterface):
    """Answers each digit with two, and finds every second answer right."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines

    async def generate(self, input_batch: Any) -> Any:
        about = input_batch["batch_metadata"]
        step = int(self.engines.file.read_text())
        await asyncio.sleep(0.02)
        self.engines.gpu.work(f"{about.training_phase} {about.global_step} with {step}", *PARTS)
        if (about.training_phase, str(about.global_step)) == ("train", os.environ["BREAKS_AT"]):
            raise ZeroDivisionError("the generator breaks")
        prompts = [[int(prompt[0]["content"])] for prompt in input_batch["prompts"]]
        return {
            "prompt_token_ids": prompts,
            "response_ids": [[digit, place % DIGITS] for place, (digit,) in enumerate(prompts)],
            "rewards": [float(place % GROUP) for place in range(len(prompts))],
            "loss_masks": [[1, 1]] * len(prompts),
            "stop_reasons": ["stop"] * len(prompts),
            "rollout_metrics": {},
            "rollout_logprobs": None,
            "env_metrics": [{}] * len(prompts),
        }


class Questions(list[Any]):
    """As SkyRL's PromptDataset, without a file."""

    def collate_fn(self, rows: list[Any]) -> list[Any]:
        return rows


class Exp(leased.LeasedExp):
    def get_train_dataset(self) -> Questions:
        return Questions(
            {
                "prompt": [{"role": "user", "content": str(digit)}],
                "env_class": None,
                "env_extras": {},
                "uid": str(digit),
            }
            for digit in range(DIGITS)
        )

    get_eval_dataset = get_train_dataset

    def _get_new_inference_client(self) -> Engines:
        client = Engines(here())
        asyncio.run(client.sleep())
        return client

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Engines) -> Digits:
        return Digits(inference_engine_client)

    def _setup_trainer(self) -> Any:
        workers = ModuleType("those of FSDP, which import flash_attn")
        vars(workers).update(PolicyWorker=Policy, CriticWorker=Critic, RefWorker=Ref)
        sys.modules["skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker"] = workers
        return super()._setup_trainer()


def here() -> Gpu:
    """The GPU of this job. Its Ray hands the environment on."""
    return Gpu(Path(os.environ["NODE"]), os.environ["NAME"])


def make_tokenizer(folder: Path) -> None:
    vocabulary = {str(digit): digit for digit in range(DIGITS)} | {"<end>": DIGITS}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<end>", eos_token="<end>").save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


def work(cfg: Any) -> None:
    Exp(cfg).run()


def main(name: str, folder: Path, node: str, breaks_at: str = "") -> None:
    make_tokenizer(folder / "model")
    phase = "{nodes: 1, duration_s: 1}"
    overrides = {
        "rollmux": f"{{name: {name}, slo: 3, rollout: {phase}, train: {phase}}}",
        "trainer.log_path": folder / "log",
        "trainer.policy.model.path": folder / "model",
        "trainer.ref.model.path": folder / "model",
        "trainer.critic.model.path": folder / "model",
        "trainer.ckpt_path": folder / "checkpoints",
        "trainer.export_path": folder / "exports",
        "trainer.epochs": 1,
        "trainer.train_batch_size": DIGITS // 4,
        "trainer.policy_mini_batch_size": DIGITS // 4,
        "trainer.critic_mini_batch_size": DIGITS // 4,
        "trainer.eval_batch_size": DIGITS,
        "trainer.eval_interval": 2,
        "trainer.ckpt_interval": 1,
        "trainer.resume_mode": "latest",
        "trainer.dump_eval_results": "false",
        "trainer.algorithm.use_kl_loss": "true",
        "trainer.logger": "console",
        "trainer.enable_ray_gpu_monitor": "false",
        "generator.n_samples_per_prompt": GROUP,
        "generator.inference_engine.num_engines": 1,
        "generator.inference_engine.tensor_parallel_size": 1,
        "data.dataloader.num_workers": 0,
    }
    os.environ |= {"NAME": name, "NODE": node, "BREAKS_AT": breaks_at, "RAY_ADDRESS": "local"}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLE), os.environ.get("PYTHONPATH", "")])
    sys.argv = ["leased.py", *(f"{key}={value}" for key, value in overrides.items())]
    vars(ray).update(init=partial(ray.init, num_cpus=8, num_gpus=1, include_dashboard=False))  # it finds no GPU
    vars(leased).update(work=work)
    leased.main()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])

"""OpenRLHF's workers with their models on DeepSpeed, on a processor: `python openrlhf_models.py FOLDER STAGE LEAVES`.

What was computed and trained is printed. With LEAVES a model leaves the GPU between all calls. There is none: what
would be moved stays where it is, but it goes through all that DeepSpeed does to move it. Of DeepSpeed are left out the
parts that would be compiled: Adam is torch's here.
"""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu"}

import torch
from openrlhf_ground import bring, make_tokenizer
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "openrlhf"
sys.path.insert(0, str(EXAMPLE))


class Processor(str):
    """A device to torch, and its number where OpenRLHF writes one."""

    def __format__(self, how: str) -> str:
        return "0"


bring({"SamplingParams": None})
vars(torch.cuda).update(
    current_device=lambda: Processor("cpu"),
    empty_cache=lambda: None,
    set_device=lambda device: None,
    synchronize=lambda: None,
)

import deepspeed.comm.torch  # noqa: E402
import deepspeed.ops.adam.fused_adam  # noqa: E402
import deepspeed.runtime.engine  # noqa: E402
import leased  # noqa: E402
import openrlhf.utils.deepspeed.deepspeed as strategies  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402

DIGITS, STEPS = 8, 3


class FusedAdam(torch.optim.AdamW):
    def __init__(self, params: Any, adam_w_mode: bool, **given: Any) -> None:
        assert adam_w_mode
        super().__init__(params, **given)


class Strategy(strategies.DeepspeedStrategy):
    def get_ds_train_config(self, *given: Any, **more: Any) -> dict[str, Any]:
        return {**super().get_ds_train_config(*given, **more), "zero_allow_untested_optimizer": True}


class Read(Exception):
    """What OpenRLHF's script has read of its command line."""


def read(*words: str) -> Any:
    """Its parser is amid the script: that goes no further than to what comes first."""

    def get_strategy(args: Any) -> Any:
        raise Read(args)

    vars(leased.ray).update(is_initialized=lambda: True)
    vars(leased.openrlhf.utils).update(get_strategy=get_strategy)
    sys.argv = ["train_ppo_ray", *words]
    try:
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    except Read as found:
        return found.args[0]


def settings(folder: Path, stage: str) -> Any:
    given = {
        "actor.model_name_or_path": folder / "policy",
        "actor.num_gpus_per_node": 1,
        "actor.adam.lr": 0.01,
        "critic.adam.lr": 0.01,
        "reward.remote_url": "none",
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "export",
        "train.batch_size": 4,
        "train.micro_batch_size": 2,
        "rollout.batch_size": 4,
        "vllm.num_engines": 1,
        "ds.zero_stage": stage,
        "ds.attn_implementation": "eager",
    }
    flags = ["ckpt.load_enable", "train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep", "ref.offload"]
    words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    return read(*words, *(f"--{flag}" for flag in flags))


def make_models(folder: Path) -> None:
    shape = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_labels=1
    )
    torch.manual_seed(0)
    for name, kind in (("policy", LlamaForCausalLM), ("critic", LlamaForSequenceClassification)):
        kind(shape).to(torch.bfloat16).save_pretrained(folder / name)
        make_tokenizer(folder / name, DIGITS)


def made(kind: Any, *given: Any) -> Any:
    worker = kind(1, 0, "127.0.0.1", None)
    worker.init_model_from_pretrained(*given)
    return worker


def experiences(**computed: Any) -> list[Experience]:
    return [
        Experience(
            sequences=SEQUENCES[i : i + 1],
            attention_mask=torch.ones(1, LENGTH),
            action_mask=ACTIONS[i : i + 1],
            advantages=torch.full((1, LENGTH - 1), 1.0 if i % 2 else -0.5),
            returns=torch.ones(1, LENGTH - 1),
            info={"reward": torch.ones(1)},
            **{name: value[i : i + 1] for name, value in computed.items()},
        )
        for i in range(len(SEQUENCES))
    ]


LENGTH = 8
SEQUENCES = torch.arange(32).reshape(4, LENGTH) % DIGITS
ACTIONS = torch.ones(4, LENGTH - 1, dtype=torch.long)


def main(folder: Path, stage: str, leaves: bool) -> None:
    for module in (deepspeed.ops.adam, deepspeed.ops.adam.fused_adam, deepspeed.runtime.engine):
        vars(module).update(FusedAdam=FusedAdam)
    vars(deepspeed.comm.torch).update(build_shm_op=lambda: None)
    vars(strategies).update(init_device_mesh=lambda device, *given, **more: init_device_mesh("cpu", *given, **more))
    make_models(folder)
    args = settings(folder, stage)
    strategy = Strategy(seed=0, micro_train_batch_size=2, train_batch_size=4, zero_stage=int(stage), args=args)
    policy = made(leased.Policy, strategy, str(folder / "policy"), STEPS, None)
    critic = made(leased.Critic, strategy, str(folder / "critic"), STEPS)
    models = [policy, critic]
    if stage == "3":  # without, it would be moved to a GPU
        models.append(made(leased.Reference, strategy, str(folder / "policy")))

    def rest() -> None:
        for model in models if leaves else []:
            model.leave()
        for model in models[:2] if leaves else []:
            print("away", *sorted(state.value for state in model.engine.optimizer.offloaded_states))

    for step in range(STEPS):
        rest()
        of_policy, values, *_ = [model.forward(SEQUENCES, ACTIONS, torch.ones(4, LENGTH)) for model in models]
        for experience in experiences(action_log_probs=of_policy, values=values):
            policy.append(experience)
            critic.append(experience)
        for model in (critic, policy):
            model.reload_states()
            found = model.fit()
            model.offload_states()
            print(
                f"step {step}", *(f"{name} {value}" for name, value in found.items() if name.endswith(("loss", "norm")))
            )
        rest()
        policy.save_checkpoint(f"step{step}", client_states={"step": step})
        critic.save_checkpoint(f"step{step}")
    rest()
    policy.save_model()
    print(
        "policy",
        sum(part.double().abs().sum().item() for part in load_file(folder / "export" / "model.safetensors").values()),
    )
    again = made(leased.Policy, strategy, str(folder / "policy"), STEPS, None)
    print("loaded", again.get_checkpoint_states()["step"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "leaves")

"""veRL's GRPO with leased phases: `python train.py NAME SEED [OVERRIDE...]`, with or without a controller.

It makes a small Llama and its questions, and starts veRL as `python -m verl.trainer.main_ppo` does.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

STEPS, PROMPTS, GROUP, LENGTH, DIGITS = 8, 10, 16, 2, 10
HERE = Path(__file__).resolve().parent


def counts_on(data_source: str, solution_str: str, ground_truth: str, **_: object) -> float:
    """The share of right digits where each is one more than the one before."""
    return sum(map(str.__eq__, solution_str, ground_truth)) / LENGTH


def make_model(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    vocabulary = {str(digit): digit for digit in range(DIGITS)} | {"<end>": DIGITS}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<end>", eos_token="<end>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=DIGITS, pad_token_id=DIGITS,
        initializer_range=0.1,
    )  # fmt: skip
    for part in (tokenizer, LlamaForCausalLM(config)):
        part.save_pretrained(folder)


def make_questions(file: Path) -> None:
    answers = ["".join(str((digit + place) % DIGITS) for place in range(1, LENGTH + 1)) for digit in range(DIGITS)]
    questions = [
        {
            "data_source": "digits",
            "prompt": [{"role": "user", "content": str(digit)}],
            "reward_model": {"ground_truth": answer},
            "extra_info": {"index": digit},
        }
        for digit, answer in enumerate(answers)
    ]
    file.write_text("".join(json.dumps(question) + "\n" for question in questions))


def tail(found: dict[str, float]) -> str:
    """How many prompts wait after the step, how many responses were aborted, and how old the others' weights are."""
    stale = found["training/off_policy/trajectory_staleness_worst/max"]
    waiting, aborted = (found[f"tail_batching/{name}"] for name in ("waiting", "aborted"))
    return f"  waiting {waiting:.0f}  aborted {aborted:3.0f}  stale {stale:.0f}"


def main(name: str, seed: int, *more: str) -> None:
    folder = Path(tempfile.mkdtemp())
    make_model(folder / "model", seed)
    make_questions(folder / "questions.jsonl")
    phase = "{nodes: 1, duration_s: 3}"
    overrides = {
        "trainer.v1.trainer_mode": "leased",
        "+trainer.rollmux": f"{{name: {name}, slo: 2.5, iterations: {STEPS}, rollout: {phase}, train: {phase}}}",
        "actor_rollout_ref.rollout.checkpoint_engine.backend": "host",
        "+actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.host.folder": folder / "weights",
        "actor_rollout_ref.rollout.nnodes": 1,
        "actor_rollout_ref.rollout.name": "slots",
        "actor_rollout_ref.rollout.n": GROUP,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": GROUP,
        "actor_rollout_ref.model.path": folder / "model",
        "actor_rollout_ref.model.use_remove_padding": False,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision": "{param_dtype: fp32, reduce_dtype: fp32}",
        "actor_rollout_ref.actor.optim.lr": 0.01,
        "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": GROUP,
        "algorithm.adv_estimator": "grpo",
        "data.train_files": folder / "questions.jsonl",
        "data.val_files": folder / "questions.jsonl",
        "data.train_batch_size": PROMPTS,
        "data.max_prompt_length": 1,
        "data.max_response_length": LENGTH,
        "data.dataloader_num_workers": 0,
        "data.seed": seed,
        "reward.custom_reward_function.path": HERE / "train.py",
        "reward.custom_reward_function.name": "counts_on",
        "reward.num_workers": 1,
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": 1,
        "trainer.total_epochs": STEPS,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        "trainer.logger": "[file]",
        "trainer.default_local_dir": folder / "checkpoints",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "+ray_kwargs.ray_init.address": "local",
        "ray_kwargs.ray_init.num_cpus": 16,
        "+ray_kwargs.ray_init.num_gpus": 2,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "hydra.run.dir": folder,
    }
    os.environ |= {
        "VERL_USE_EXTERNAL_MODULES": "cpu,leased,tail_batching",
        "VERL_ENGINE_DEVICE": "cuda",  # its FSDP engine is registered for no other, and asks the platform for the rest
        "VERL_FILE_LOGGER_PATH": str(folder / "log"),
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
    }
    sys.path.insert(0, str(HERE))
    sys.argv = ["main_ppo", *(f"{key}={value}" for key, value in overrides.items()), *more]

    from verl.trainer.main_ppo import main as train  # noqa: PLC0415  it reads the environment

    train()
    for line in (folder / "log").read_text().splitlines():
        step, found = json.loads(line).values()
        if "critic/score/mean" in found:  # no validation before the first step
            said = f"step {step:2}  reward {found['critic/score/mean']:.3f}  gradient {found['actor/grad_norm']:.4f}"
            print(said + (tail(found) if "tail_batching/waiting" in found else ""))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])

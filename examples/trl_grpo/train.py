"""TRL's GRPOTrainer with leased phases: `python train.py NAME SEED`, with or without a controller.

TRL asks `rollout_func` for responses whenever it has trained on all that it had. So that is where one lease ends and
the next begins: the call itself is the rollout, and all between two calls, rewards too, is training.
"""

import copy
import sys
import tempfile
from contextlib import ExitStack
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

import rollmux
from rollmux.runtime.engine import Ended, GenerationRequest, Limits, stream
from rollmux.runtime.engine.slots import slots

STEPS, RESPONSES, GROUP, LENGTH, DIGITS = 12, 128, 16, 2, 10

name, seed = sys.argv[1], int(sys.argv[2])
phase = {"nodes": 1, "duration_s": 0.3}
job = {"name": name, "slo": 2.5, "iterations": STEPS, "rollout": phase, "train": phase}

torch.set_num_threads(1)
torch.manual_seed(seed)
vocabulary = {str(digit): digit for digit in range(DIGITS)} | {"<end>": DIGITS}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<end>", eos_token="<end>")
config = LlamaConfig(
    vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=DIGITS, pad_token_id=DIGITS,
    initializer_range=0.1,
)  # fmt: skip
policy = LlamaForCausalLM(config)
engine = slots(copy.deepcopy(policy), Limits(room_tokens=32 * RESPONSES, max_running=RESPONSES))


def generate(prompts: list[str], step: int) -> dict[str, list[Any]]:
    """One response for each prompt: TRL repeats those that it wants several for."""
    if engine.version < step:
        engine.update(step, dict(policy.named_parameters()))
    prompt_ids = tokenizer(prompts)["input_ids"]
    for place, ids in enumerate(prompt_ids):
        lot = (seed * STEPS + step) * RESPONSES + place
        engine.submit(GenerationRequest(str(place), tuple(ids), LENGTH, seed=lot, stop_tokens=(DIGITS,)))
    ended = {int(event.id): event.response for event in stream(engine) if isinstance(event, Ended)}
    responses = [ended[place] for place in range(len(prompts))]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [list(response.tokens) for response in responses],
        "logprobs": [list(response.logprobs) for response in responses],
    }


def counts_on(prompts: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
    """The share of right digits where each is one more than the one before."""
    right = [[(int(prompt) + place) % DIGITS for place in range(1, LENGTH + 1)] for prompt in prompts]
    return [sum(map(int.__eq__, *pair)) / LENGTH for pair in zip(completion_ids, right, strict=True)]


with rollmux.connect(job=job) as mux, ExitStack() as training:

    def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        training.close()  # there is nothing to close before the first
        with mux.phase("rollout"):
            responses = generate(prompts, trainer.state.global_step)
        training.enter_context(mux.phase("train"))
        return responses

    trainer = GRPOTrainer(
        policy,
        counts_on,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=1,
            per_device_train_batch_size=RESPONSES, num_generations=GROUP, max_completion_length=LENGTH,
            max_steps=STEPS, learning_rate=0.01, lr_scheduler_type="constant", seed=seed,
        ),
        train_dataset=Dataset.from_dict({"prompt": [str(digit) for digit in range(DIGITS)] * 8}),
        processing_class=tokenizer,
        rollout_func=rollout,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()

for log in trainer.state.log_history[:STEPS]:
    print(f"step {log['step']:2}  reward {log['reward']:.3f}  gradient {log['grad_norm']:.4f}")

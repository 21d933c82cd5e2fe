"""TRL's GRPOTrainer with leased phases: `python train.py NAME SEED`, with or without a controller.

TRL calls `rollout_func` for responses whenever it has trained on all that it had. So one lease ends there, and the next
begins: the call itself is the rollout, and all between two calls, rewards too, is training.
"""

import copy
import os
import sys
import tempfile
from contextlib import ExitStack
from typing import Any

import torch
from digits import COUNTED, DIGITS, ROWS, counts_on, new_model, new_tokenizer
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

import rollmux
from rollmux.runtime.engine import Ended, GenerationRequest, Limits, stream
from rollmux.runtime.engine.slots import slots

STEPS, RESPONSES, GROUP = 12, 128, 16

name, seed = sys.argv[1], int(sys.argv[2])
rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # torchrun sets them
phase = {"nodes": 1, "duration_s": 0.3}
job = {"name": name, "slo": 2.5, "iterations": STEPS, "rollout": phase, "train": phase}

torch.set_num_threads(1)
torch.manual_seed(seed)
policy, tokenizer = new_model(), new_tokenizer()
engine = slots(copy.deepcopy(policy), Limits(room_tokens=32 * RESPONSES, max_running=RESPONSES))


def generate(prompts: list[str], step: int) -> dict[str, list[Any]]:
    """Generates one response for each prompt: TRL repeats a prompt for which it wants several."""
    if engine.version < step:
        engine.update(step, dict(policy.named_parameters()))
    prompt_ids = tokenizer(prompts)["input_ids"]
    for place, ids in enumerate(prompt_ids):
        lot = ((seed * STEPS + step) * ranks + rank) * RESPONSES + place
        engine.submit(GenerationRequest(str(place), tuple(ids), COUNTED, seed=lot, stop_tokens=(DIGITS,)))
    ended = {int(event.id): event.response for event in stream(engine) if isinstance(event, Ended)}
    responses = [ended[place] for place in range(len(prompts))]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [list(response.tokens) for response in responses],
        "logprobs": [list(response.logprobs) for response in responses],
    }


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
            per_device_train_batch_size=RESPONSES, num_generations=GROUP, max_completion_length=COUNTED,
            max_steps=STEPS, learning_rate=0.01, lr_scheduler_type="constant", seed=seed,
        ),
        train_dataset=ROWS,
        processing_class=tokenizer,
        rollout_func=rollout,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()

for log in trainer.state.log_history[:STEPS]:
    print(f"step {log['step']:2}  reward {log['reward']:.3f}  gradient {log['grad_norm']:.4f}")

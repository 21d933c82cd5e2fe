"""TRL's GRPOTrainer with tail batching: `python tail.py NAME SEED`, with or without a controller."""

import sys
import tempfile

import torch
from digits import ROWS, counts_on, new_model, new_tokenizer
from tail_batching import TailBatchedTrainer
from transformers import PrinterCallback
from trl import GRPOConfig

import rollmux

STEPS, RESPONSES, GROUP, LONGEST = 15, 128, 8, 56
TAIL = {"eta_prompts": 1.25, "eta_responses": 1.25}

name, seed = sys.argv[1], int(sys.argv[2])
phase = {"nodes": 1, "duration_s": 0.3}
job = {"name": name, "slo": 2.5, "iterations": STEPS, "rollout": phase, "train": phase}

torch.set_num_threads(1)
torch.manual_seed(seed)
settings = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=1,
    per_device_train_batch_size=RESPONSES, num_generations=GROUP, max_completion_length=LONGEST,
    max_steps=STEPS, learning_rate=0.01, lr_scheduler_type="constant", seed=seed,
)  # fmt: skip

with rollmux.connect(job=job) as mux:
    trainer = TailBatchedTrainer(
        new_model(), counts_on, settings, ROWS, processing_class=new_tokenizer(), tail=TAIL, mux=mux
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()

for log in trainer.state.log_history[:STEPS]:
    kind, longest = "long " if log["tail_batching/long"] else "short", log["completions/max_length"]
    print(f"step {log['step']:2}  {kind}  longest {longest:2.0f}  reward {log['reward']:.3f}")

"""A job with a rollout engine of its own, warm between phases: `python job.py NAME SEED [FOLDER]`.

A small Llama learns to count. There are two copies of it: the engine generates with one, the other is trained. While a
phase does not run, its state waits in host memory, and the nodes are free for the phases of other jobs.
"""

import copy
import os
import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import rollmux
from rollmux.runtime.engine import Canary, Ended, Generated, GenerationRequest, Limits, stream
from rollmux.runtime.engine.slots import slots
from rollmux.runtime.residency import Budget, Resident

STEPS, PROMPTS, GROUP, LENGTH, DIGITS = 12, 16, 16, 4, 10
HOST_MEMORY_BYTES = 256 << 20  # of the node, for all jobs on it
QUESTION, ANSWER_TOKENS = (3, 1, 4), 8  # what the canary is asked

name, seed = sys.argv[1], int(sys.argv[2])
folder = Path(sys.argv[3] if len(sys.argv) > 3 else f"/dev/shm/own-engine-{os.getuid()}")
phase = {"nodes": 1, "duration_s": 0.3, "resident_gb": 0.01}
job = {"name": name, "slo": 2.5, "iterations": STEPS, "rollout": phase, "train": phase}

torch.set_num_threads(1)
torch.manual_seed(seed)
config = LlamaConfig(
    vocab_size=DIGITS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, initializer_range=0.1,
)  # fmt: skip
policy = LlamaForCausalLM(config)
actor = copy.deepcopy(policy)
optimizer = torch.optim.AdamW(policy.parameters(), lr=0.01)
engine = slots(actor, Limits(room_tokens=2048, max_running=PROMPTS * GROUP))
canary = Canary.learn(engine, QUESTION, ANSWER_TOKENS)

budget = Budget(folder, HOST_MEMORY_BYTES)
weights = Resident(actor, name=f"{name}-rollout", budget=budget, read_only=True)
trained = Resident([policy, optimizer], name=f"{name}-train", budget=budget)


class Awake:
    """The engine as a part of a phase's state: its keys and values go before its weights, and come after them."""

    times = 0

    def load(self) -> None:
        engine.resume()
        self.times += 1

    def offload(self) -> None:
        engine.suspend()


awake = Awake()
for state in (awake, weights, trained):  # it was built before this job had a lease: the nodes may be another's now
    state.offload()


def sound_answer() -> tuple[int, ...]:
    """What an engine with the weights just trained must answer the canary's question."""
    tokens = torch.tensor([QUESTION])
    with torch.no_grad():
        for _ in range(ANSWER_TOKENS):
            tokens = torch.cat([tokens, policy(tokens).logits[:, -1:].argmax(-1)], 1)
    return tuple(tokens[0, len(QUESTION) :].tolist())


with rollmux.connect(job=job) as mux:

    @mux.phase("rollout", state=[weights, awake])
    def rollout(step: int) -> list[tuple[int, Generated]]:
        weights.load()  # where they stayed on the nodes since the last rollout, they are those of the last step
        if engine.version < step:
            engine.update(step)
        canary.check(engine)
        drawn = torch.randint(DIGITS, (PROMPTS,), generator=torch.Generator().manual_seed(1000 * seed + step))
        prompts = drawn.repeat_interleave(GROUP).tolist()
        for place, prompt in enumerate(prompts):
            lot = (seed * STEPS + step) * len(prompts) + place
            engine.submit(GenerationRequest(str(place), (prompt,), max_tokens=LENGTH, seed=lot))
        ended = {int(event.id): event.response for event in stream(engine) if isinstance(event, Ended)}
        return [(prompt, ended[place]) for place, prompt in enumerate(prompts)]

    @mux.phase("train", state=trained)
    def train(step: int, rollouts: list[tuple[int, Generated]]) -> tuple[str, Canary, dict[str, Tensor]]:
        assert {version for _, response in rollouts for version in response.versions} == {step}, "on-policy"
        tokens = torch.tensor([(prompt, *response.tokens) for prompt, response in rollouts])
        rewards = (tokens[:, 1:] == (tokens[:, :1] + torch.arange(1, LENGTH + 1)) % DIGITS).float().mean(1)
        groups = rewards.view(PROMPTS, GROUP)
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 0.1)
        logprobs = policy(tokens[:, :-1]).logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
        drawn_with = torch.tensor([response.logprobs for _, response in rollouts])
        assert torch.allclose(logprobs, drawn_with, atol=1e-4), "the engine's model is the trainer's"
        loss = -(advantages.view(-1, 1) * logprobs).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()  # gradients need not wait on the host
        fresh = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
        said = f"step {step:2}  reward {rewards.mean():.3f}  loss {loss.item():+.4f}"
        return said, Canary(QUESTION, sound_answer(), step + 1), fresh

    @mux.phase("sync")
    def sync(fresh: dict[str, Tensor]) -> None:
        weights.update(fresh)  # on the host; the next load brings them

    for step in mux.steps(STEPS):
        said, canary, fresh = train(step, rollout(step))
        sync(fresh)
        print(said, flush=True)

print(f"wakes: {awake.times}, each with a sound canary")
for state in (weights, trained):
    state.close()

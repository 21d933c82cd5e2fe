"""The jobs whose switches are timed: SmolLM2-135M and smaller models of its kind, and the first work of their phases.

Weights are random, as their values make no difference to a move.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT = 16
Shape = Mapping[str, Any]
# The model's published configuration.
SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
SMALL = SMOLLM2 | {"num_hidden_layers": 2, "vocab_size": 8192}
TINY = SMOLLM2 | {"num_hidden_layers": 1, "vocab_size": 1024}


def model_of(shape: Shape, device: torch.device) -> LlamaForCausalLM:
    """A model that only answers."""
    model = LlamaForCausalLM(LlamaConfig(**shape))
    nn.Module.to(model, device)
    return model.requires_grad_(False)


def built(shape: Shape, train: bool, device: torch.device) -> tuple[LlamaForCausalLM, torch.optim.Optimizer | None]:
    """A model, with moments and the gradients of a step if it is to be trained."""
    model = model_of(shape, device)
    if not train:
        return model, None
    optimizer = torch.optim.AdamW(model.requires_grad_(True).parameters(), lr=1e-5)
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Tensor:
    """The first thing that a phase does: a prompt's next token, or a training step whose gradients stay."""
    tokens = torch.arange(PROMPT, device=next(model.parameters()).device).reshape(1, -1)
    if optimizer is None:
        with torch.no_grad():
            return torch.as_tensor(model(tokens).logits[0, -1].argmax())
    optimizer.zero_grad(set_to_none=False)
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    return torch.as_tensor(loss.detach())


def written(shape: Shape, folder: Path) -> list[Path]:
    """The files from which a new process takes weights and moments, on the disk and not only on their way to it."""
    model, optimizer = built(shape, train=True, device=torch.device("cpu"))
    assert optimizer is not None
    model.save_pretrained(folder)
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    return [path for path in folder.iterdir() if path.is_file()]


def taken_up(folder: Path, train: bool, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """What was written, all of it in memory."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    nn.Module.to(model, device)
    optimizer = None
    if train:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
    for parameter in model.parameters():
        parameter.detach().view(-1)[::1024].sum()  # a word of each page: a mapped file is not yet in memory
    return model, optimizer

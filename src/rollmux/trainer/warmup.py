"""Supervised steps on a task's own solutions: a model from scratch needs them before a reward can teach it anything.

The warm-up has its own optimiser, and a seed of its own for its prompts: nothing of it goes on into the run after it.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rollmux.runtime.rewards import Told
from rollmux.trainer.masters import Masters
from rollmux.trainer.seeds import derived
from rollmux.trainer.settings import Warmup
from rollmux.trainer.tasks import MadeTask, Task

CHUNK = 8  # solutions of similar length in one forward, so that there is little padding
RAMP = 20  # steps until the learning rate is at its full value
FALL = 0.7  # in this last part of the steps the rate falls to nothing: the model learns most there
IGNORED = -100

Shown = tuple[tuple[int, ...], tuple[int, ...]]  # tokens, and labels: the tokens to imitate, and IGNORED for others


def warm_up(model: Any, task: Task, settings: Warmup, seed: int, told: Callable[[int, float], None]) -> None:
    """Trains the model in place; after each step `told` hears its number and loss."""
    if not isinstance(task, MadeTask):
        return  # it has nothing to imitate, and no job file with such a task has warm-up steps
    random = Random(derived(seed, "warm-up"))
    masters = Masters(model)
    optimiser = torch.optim.AdamW(masters.stepped, lr=settings.rate, weight_decay=0.0)
    for step in range(settings.steps):
        for group in optimiser.param_groups:
            group["lr"] = settings.rate * min(1.0, (step + 1) / RAMP, (settings.steps - step) / (settings.steps * FALL))
        shown = [_shown(task, random) for _ in range(settings.batch)]
        optimiser.zero_grad()
        loss = _backward(model, sorted(shown, key=lambda each: len(each[0])))
        masters.take_gradients()
        torch.nn.utils.clip_grad_norm_(masters.stepped, 1.0)
        optimiser.step()
        masters.write_back()
        told(step, loss)
    optimiser.zero_grad()


def _shown(task: MadeTask, random: Random) -> Shown:
    """A whole response to imitate, with the task's replies."""
    tokenizer, number = task.tokenizer, random.randrange(len(task))
    tokens = tokenizer.encode(task.prompt(number))
    labels = (IGNORED,) * len(tokens)
    said: tuple[Told, ...] = ()
    reply: Told | None = ""
    while reply is not None:
        turn = task.shown(number, random, *said)
        drawn = tokenizer.encode(turn)
        reply = task.reply(number, *said, turn)
        told = () if reply is None else tokenizer.told(reply, drawn[-1])
        tokens, labels = tokens + drawn + told, labels + drawn + (IGNORED,) * len(told)
        said = (*said, turn, reply or "")
    return tokens, labels


def _backward(model: Any, shown: Sequence[Shown]) -> float:
    """Leaves the gradient of the mean loss over all tokens of the solutions; returns that loss."""
    tokens = sum(label != IGNORED for _, labels in shown for label in labels)
    loss = 0.0
    for start in range(0, len(shown), CHUNK):
        ids, labels = (each.to(model.device) for each in _padded(shown[start : start + CHUNK]))
        logits = model(input_ids=ids).logits[:, :-1]
        part = functional.cross_entropy(logits.transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="sum")
        (part / tokens).backward()  # type: ignore[no-untyped-call]
        loss += part.item() / tokens
    return loss


def _padded(shown: Sequence[Shown]) -> tuple[Tensor, Tensor]:
    """Rows of equal length. The padding is at the end, where a causal model does not see it."""
    width = max(len(tokens) for tokens, _ in shown)
    ids = torch.zeros(len(shown), width, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, (tokens, imitated) in enumerate(shown):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, : len(tokens)] = torch.tensor(imitated)
    return ids, labels

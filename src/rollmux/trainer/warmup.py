"""Supervised steps on a task's own solutions: what a model from scratch needs before a reward can tell it anything.

Its optimiser is its own, and its prompts are drawn by its own seed: the run after it starts afresh.
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

CHUNK = 8  # solutions of like lengths in one forward: little is padding
RAMP = 20  # steps until the learning rate is whole
FALL = 0.7  # the last part of the steps, in which it falls to nothing: most of what is learnt is learnt there
IGNORED = -100

Shown = tuple[tuple[int, ...], tuple[int, ...]]  # tokens, and which of them are imitated: the others are IGNORED


def warm_up(model: Any, task: Task, settings: Warmup, seed: int, told: Callable[[int, float], None]) -> None:
    """Trains the model in place; after each step `told` hears its number and loss."""
    if not isinstance(task, MadeTask):
        return  # nothing to imitate: its job files have no such steps
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
    """A whole response, with what the task says to it."""
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
    """The gradient of the mean over all tokens of the solutions."""
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
    """Rows of equal length. What is padded stands behind what is computed, which does not see it."""
    width = max(len(tokens) for tokens, _ in shown)
    ids = torch.zeros(len(shown), width, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, (tokens, imitated) in enumerate(shown):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, : len(tokens)] = torch.tensor(imitated)
    return ids, labels

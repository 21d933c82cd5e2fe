"""Checks all prompts of a task before anything is computed.

Invariant: an engine refuses no prompt that passed, even with the longest response behind it.
"""

from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from rollmux.checks import Checks
from rollmux.runtime.engine.known import require_known
from rollmux.trainer.settings import JobFile
from rollmux.trainer.tasks import Questions, Task


def looked_through(job: JobFile, task: Task, model: Any) -> str:
    """A digest of the prompts' tokens and of the tokens that end a response. InvalidSpec if a prompt can't be asked."""
    require_known(model)
    digest = sha256(repr(task.tokenizer.end_tokens).encode())
    lengths, highest = list[int](), list[int]()  # by prompt
    for number in range(len(task)):
        tokens = task.tokenizer.encode(task.prompt(number))
        lengths.append(len(tokens))
        highest.append(max(tokens, default=0))
        digest.update(array("q", (len(tokens), *tokens)).tobytes())
    checks = Checks("job")
    if not min(lengths):
        remedy = f"{named(task, lengths.index(0))} has none: ask something"
        checks.report("task.name", job.task.name, "a task whose prompts have tokens", remedy)
    _check_length(checks, job, task, lengths, model.config.max_position_embeddings)
    token, known = max(highest), model.config.vocab_size
    own = f"it has {known}: give it the tokenizer that is its own"
    if token >= known:
        limit = f"a model of more than {token} tokens, which {named(task, highest.index(token))} has"
        checks.report("model.path", job.model.path, limit, own)
    elif task.needs.talks and task.tokenizer.vocabulary > known:
        limit = f"a model of the {task.tokenizer.vocabulary} tokens that replies may have"
        checks.report("model.path", job.model.path, limit, own)
    checks.require()
    return digest.hexdigest()


def named(task: Task, number: int) -> str:
    return task.named(number) if isinstance(task, Questions) else f"prompt number {number + 1}"


def _check_length(checks: Checks, job: JobFile, task: Task, lengths: Sequence[int], places: int) -> None:
    longest, most = max(lengths), job.rollout.max_length
    needed = longest + job.sampling.max_tokens
    which = f"the longest, {named(task, lengths.index(longest))}, has {longest} tokens"
    if needed > most:
        limit = f"at least {needed}: {which}, and sampling.max_tokens are beside it"
        checks.report("rollout.max_length", most, limit, "give it more room, or shorten either")
    elif needed > places:
        limit = f"at most {places} with the prompt: the model has no more places, and {which}"
        checks.report("sampling.max_tokens", job.sampling.max_tokens, limit, "shorten either, or take another model")

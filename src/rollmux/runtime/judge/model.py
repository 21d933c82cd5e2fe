"""A model that judges: the log-probability of each given answer after a prompt, by the forward of the `slots` engine.

Invariant: what it says depends on the prompt and the weights alone, not on how many layers stayed on the device nor on
what else was judged at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from rollmux.checks import Checks
from rollmux.errors import RollmuxError
from rollmux.packer.judge import JudgeBudget, JudgeModel, JudgePlan, JudgeRefused
from rollmux.runtime.engine.anatomy import Anatomy, anatomy
from rollmux.runtime.engine.desk import Live
from rollmux.runtime.engine.forward import Forward
from rollmux.runtime.engine.known import require_known
from rollmux.runtime.engine.requests import GenerationRequest, check_tokens
from rollmux.runtime.host import Claim
from rollmux.runtime.judge.streamed import StreamedLayers
from rollmux.runtime.residency.memory import memory_of

Tokens = tuple[int, ...]
PAGE_TOKENS = 32


class JudgeHasNoRoom(RollmuxError):
    """Not even two layers fit beside what must be there: nothing was judged."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and the possible answers; each has at least one token."""

    prompt: Tokens
    answers: tuple[Tokens, ...]

    def __post_init__(self) -> None:
        checks = Checks("question")
        for name, tokens in (("prompt", self.prompt), *(("answers", answer) for answer in self.answers)):
            if check_tokens(checks, name, tokens) and not tokens:
                checks.report(name, tokens, "at least one token", "write more of it")
        checks.require()

    @property
    def texts(self) -> set[Tokens]:
        """The texts that have to be computed. Answers of one token need only the prompt, and share it."""
        return {self.prompt + answer[:-1] for answer in self.answers}


class ModelJudge:
    """Owns the model. `free_bytes` tells, before each pass, what the device has free for the whole judge.

    `claim` asks the node for the host memory that all layers lie in: `functools.partial(budget.claim, "judge")`.
    """

    def __init__(
        self,
        model: Any,
        free_bytes: Callable[[], int],
        host_bytes_per_s: float,
        flops_per_s: float,
        device: torch.device | str = "cpu",
        page_tokens: int = PAGE_TOKENS,
        claim: Callable[[int], Claim] | None = None,
    ) -> None:
        self._device, self._free_bytes, self._page_tokens = torch.device(device), free_bytes, page_tokens
        require_known(model)
        body = model.model
        self.layers = StreamedLayers(body.layers[: model.config.num_hidden_layers], memory_of(self._device), claim)
        try:
            for module in (body.embed_tokens, body.norm, body.rotary_emb, model.lm_head):
                module.to(self._device)
            self.layers.arrange(range(len(self.layers)))
            parts = anatomy(model, packed=False)
        except BaseException:
            self.layers.undo()
            raise
        self.layers.show(tuple(parts.layers))
        self._anatomy = replace(parts, layers=self.layers)
        shape = judge_model(model.config, self._anatomy, self.layers.layer_bytes)
        self._budget = JudgeBudget(shape, host_bytes_per_s, flops_per_s)
        self.plan: JudgePlan | None = None

    @property
    def vocabulary(self) -> int:
        return self._anatomy.vocabulary

    @property
    def max_length(self) -> int:
        return self._anatomy.max_length

    @torch.no_grad()
    def judge(self, questions: Sequence[Question]) -> list[list[float]]:
        """For each question the log-probability of each of its answers. InvalidSpec if the model can't take one."""
        self._require_fitting(questions)
        texts = sorted({text for question in questions for text in question.texts}, key=len)  # in a forward's order
        if not texts:
            return []
        self._make_room(max(map(len, texts)), len(texts))
        said = dict(zip(texts, self._said(questions, texts), strict=True))
        return [[_logprob(said, question.prompt, answer) for answer in question.answers] for question in questions]

    def close(self) -> None:
        """Gives the layers' memory back; the model can't be used any more."""
        self.layers.close()

    def _require_fitting(self, questions: Sequence[Question]) -> None:
        checks = Checks("question")
        for question in questions:
            highest = max(chain(question.prompt, *question.answers))
            if highest >= self.vocabulary:
                checks.report("tokens", highest, f"below {self.vocabulary}", "use the tokenizer of this model")
            longest = max(map(len, question.texts), default=0)
            if longest > self.max_length:
                checks.report("length", longest, f"at most {self.max_length} tokens with the answer", "shorten it")
        checks.require()

    def _make_room(self, tokens: int, batch: int) -> None:
        plan = self._budget.plan(-(-tokens // self._page_tokens) * self._page_tokens, self._free_bytes(), batch)
        if isinstance(plan, JudgeRefused):
            remedy = "judge fewer or shorter texts at once, or leave it more of the device"
            raise JudgeHasNoRoom(
                f"a pass over {batch} texts of {tokens} tokens needs {plan.needed_bytes} bytes of the device: "
                f"{plan.free_bytes} are free; {remedy}"
            )
        self.plan = plan
        self.layers.arrange(plan.streamed)

    def _said(self, questions: Sequence[Question], texts: Sequence[Tokens]) -> list[dict[int, Tensor]]:
        """For each text, by the place of a token in it, the model's output behind that token."""
        wanted = {text: set[int]() for text in texts}
        for question in questions:
            for answer in question.answers:
                first = len(question.prompt) - 1
                wanted[question.prompt + answer[:-1]].update(range(first, first + len(answer)))
        work, pages = self._work(texts)
        forward = Forward(self._anatomy, pages, self._page_tokens, max(map(len, texts)))
        starts = [sum(map(len, texts[:number])) for number in range(len(texts))]
        rows = [start + place for start, text in zip(starts, texts, strict=True) for place in sorted(wanted[text])]
        logits = forward(forward.layout(work, rows, pages))
        logprobs = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1).cpu()
        taken = iter(logprobs)
        return [{place: next(taken) for place in sorted(wanted[text])} for text in texts]

    def _work(self, texts: Sequence[Tokens]) -> tuple[list[tuple[Live, int]], int]:
        work, pages = [], 0
        for number, text in enumerate(texts):
            live = Live(GenerationRequest(f"judge-{number}", text, 1, temperature=0.0))
            count = -(-len(text) // self._page_tokens)
            live.pages = list(range(pages, pages + count))
            pages += count
            work.append((live, len(text)))
        return work, pages


def _logprob(said: dict[Tokens, dict[int, Tensor]], prompt: Tokens, answer: Tokens) -> float:
    places = said[prompt + answer[:-1]]
    return sum(float(places[len(prompt) - 1 + step][token]) for step, token in enumerate(answer))


def judge_model(config: Any, parts: Anatomy, layer_bytes: int) -> JudgeModel:
    """The model's shape, for `JudgeBudget`. For each token a pass holds its keys, values and activations."""
    item = parts.dtype.itemsize
    width = parts.head_width * (parts.heads + 2 * parts.kv_heads)
    cached = 2 * config.num_hidden_layers * parts.kv_heads * parts.head_width
    passing = 6 * parts.hidden + 3 * config.intermediate_size + 3 * width
    head = 0 if config.tie_word_embeddings else parts.vocabulary * parts.hidden
    return JudgeModel(
        layers=config.num_hidden_layers,
        layer_bytes=layer_bytes,
        dense_flops=2.0 * layer_bytes / item,
        attention_flops=2.0 * parts.heads * parts.head_width,
        kv_bytes=item * (cached + passing),
        other_bytes=item * (parts.vocabulary * parts.hidden + head + parts.hidden),
    )

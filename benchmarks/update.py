"""Gradients of an update: `GradientSum.add` against the plain way, one padded batch with logits of all places.

Both are measured in processor seconds of one thread, and in turn, so other work on the machine slows both alike.
Samples have long-tailed lengths. It also measures the cost of whitening's second sum, against deferring; and the gain
of prompts that the samples of a group share, against as many samples with prompts of their own.
"""

import gc
import random
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.figures.goals import Goal, show
from benchmarks.harness import arguments, record, table
from rollmux.trainer.sample import Sample
from rollmux.trainer.update import Baseline, GradientSum, Objective, WholeBatch

GOAL_NAIVE, GOAL_SHARED = 1.5, 1.3
LONGEST, GROUP = 256, 4
KNOWN = Objective(baseline=Baseline.NONE, group_std=False)
WHITENED = Objective(baseline=Baseline.NONE, group_std=False, whiten=True)


@dataclass(frozen=True, slots=True)
class Case:
    """A model's shape and how many samples it gets."""

    name: str
    hidden: int
    layers: int
    vocabulary: int
    samples: int
    prompt: int = 16

    def model(self) -> Any:
        config = LlamaConfig(
            vocab_size=self.vocabulary, hidden_size=self.hidden, intermediate_size=3 * self.hidden,
            num_hidden_layers=self.layers, num_attention_heads=self.hidden // 32, max_position_embeddings=512,
            num_key_value_heads=self.hidden // 32, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        return LlamaForCausalLM(config)

    def batch(self, model: Any, seed: int, in_common: bool = True) -> list[Sample]:
        """Drawn by this very model, as far as its log-probabilities tell. A group has a prompt, or each sample has."""
        source, prompts = random.Random(seed), random.Random(seed)
        found, prompt = [], list[int]()
        for place in range(self.samples):
            if place % GROUP == 0 or not in_common:
                prompt = self._tokens(prompts, self.prompt)
            found.append(self._sample(model, source, prompt, str(place // GROUP)))
        return found

    def _sample(self, model: Any, source: random.Random, prompt: list[int], group: str) -> Sample:
        tokens = self._tokens(source, min(LONGEST, max(8, round(source.lognormvariate(3.5, 0.9)))))
        with torch.no_grad():
            table = torch.log_softmax(model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1], -1)
        drawn = table.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        return Sample(tuple(prompt), tuple(tokens), tuple(drawn), (0,) * len(tokens), source.random(), group)

    def _tokens(self, source: random.Random, count: int) -> list[int]:
        return [source.randrange(self.vocabulary) for _ in range(count)]


CASES = (
    Case("1M", 128, 4, 64, 64),
    Case("16M", 384, 8, 1024, 32),
    Case("22M, large vocabulary", 256, 4, 36_000, 16),
    Case("16M, prompts of 96", 384, 8, 1024, 32, prompt=96),
)
QUICK = (Case("tiny", 32, 2, 64, 8),)


def naive(model: Any, batch: Sequence[Sample]) -> None:
    """One batch, padded to its longest sample, with an attention mask; logits of every place."""
    width = max(sample.length for sample in batch)
    ids, mask = torch.zeros(len(batch), width, dtype=torch.long), torch.zeros(len(batch), width, dtype=torch.long)
    weights, old = torch.zeros(len(batch), width - 1), torch.zeros(len(batch), width - 1)
    for row, sample in enumerate(batch):
        place = slice(len(sample.prompt) - 1, sample.length - 1)
        ids[row, : sample.length] = torch.tensor(sample.prompt + sample.tokens)
        mask[row, : sample.length] = 1
        weights[row, place] = sample.reward / len(sample.tokens)
        old[row, place] = torch.tensor(sample.logprobs)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    now = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0]
    loss = -(weights * torch.where(weights != 0, (now - old).exp(), 0.0)).sum() / len(batch)
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]


def streamed(model: Any, batch: Sequence[Sample], objective: Objective, whole_batch: WholeBatch) -> None:
    """Group by group, as a rollout ends them."""
    gradients = GradientSum(model, objective, whole_batch=whole_batch)
    for start in range(0, len(batch), 4 * GROUP):
        gradients.add(batch[start : start + 4 * GROUP])
    gradients.finish()


def measured(case: Case, args: Namespace) -> dict[str, object]:
    """Medians of processor seconds, in turn."""
    torch.manual_seed(args.seed)
    model = case.model()
    batch, apart = case.batch(model, args.seed), case.batch(model, args.seed, in_common=False)
    calls: dict[str, Callable[[], None]] = {
        "naive": lambda: naive(model, batch),
        "add": lambda: streamed(model, batch, KNOWN, WholeBatch.LINEAR),
        "apart": lambda: streamed(model, apart, KNOWN, WholeBatch.LINEAR),
        "linear": lambda: streamed(model, batch, WHITENED, WholeBatch.LINEAR),
        "defer": lambda: streamed(model, batch, WHITENED, WholeBatch.DEFER),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(args.rounds + 1):
        for name, call in calls.items():
            spent_s = processor_seconds(call)
            if turn:  # the first is to warm up
                taken[name].append(spent_s)
    tokens = sum(sample.length for sample in batch)
    ratios = {
        f"{a} over {b}": median(x / y for x, y in zip(taken[a], taken[b], strict=True))
        for a, b in (("naive", "add"), ("linear", "defer"), ("apart", "add"))
    }
    rates = {f"{name} tokens/cpu s": tokens / median(spent_s) for name, spent_s in taken.items()}
    return {"model": case.name, "tokens": tokens, **rates, **ratios}


def processor_seconds(call: Callable[[], None]) -> float:
    """Of this process's only thread that computes."""
    gc.collect()
    start_s = time.process_time()
    call()
    return time.process_time() - start_s


def main() -> None:
    parser = arguments("update", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)

    def measure() -> dict[str, object]:
        rows = [measured(case, args) for case in (QUICK if args.quick else CASES)]
        table(rows)
        worst, longest = min(float(str(row["naive over add"])) for row in rows), float(str(rows[-1]["apart over add"]))
        goals = [
            Goal("gradients, times a padded batch's", worst, GOAL_NAIVE, False),
            Goal("long prompts in common, times as many of their own", longest, GOAL_SHARED, False),
        ]
        return {"rows": rows, "goals": show(goals)}

    record("update", args, measure)


if __name__ == "__main__":
    main()

"""Useful tokens per second of the `slots` engine, of `generate` and of transformers' own continuous batching.

All three run the same models, greedily, in turn, in one process pinned to as many cores as it has threads. Weights are
random whatever the model's name, as speed does not depend on them: nothing is downloaded. Lengths are skewed:
lognormal, clipped. `generate` pads a batch and runs it to its longest response; tokens beyond a response's own length
are of no use. An engine that takes more than twice as long as the best other one in the first round can't be the best,
and is not run again. The share of equal output is shown, too: logits that differ only by rounding may choose
differently if two tokens are about equally likely. Last come the times that the `slots` engine takes to give up a
response, to fall asleep, and to be back at its next token, with all responses under way.
"""

import gc
import logging
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.utils import logging as transformers_logging

from benchmarks.figures.goals import Goal, show
from benchmarks.harness import arguments, record, table
from rollmux.runtime.engine import Ended, GenerationRequest, Limits, LocalEngine, stream
from rollmux.runtime.engine.slots import slots

GOAL = 1.3
PAGE = 32
# Older versions of transformers call it by the other name.
PAGE_WORD = "page_size" if "page_size" in ContinuousBatchingConfig.__dataclass_fields__ else "block_size"
Tokens = Sequence[Sequence[int]]
GROUP = 8  # responses to a prompt
GROUPS_OF = (64, 256)  # tokens of a prompt


@dataclass(frozen=True, slots=True)
class Size:
    """A model, and how much is asked of it."""

    name: str
    shape: Mapping[str, Any]
    dtype: torch.dtype
    threads: int
    prompts: int = 64
    longest: int = 256

    def model(self, seed: int, device: str) -> Any:
        torch.manual_seed(seed)
        config = LlamaConfig(max_position_embeddings=2048, eos_token_id=None, bos_token_id=None, **self.shape)
        model: Any = LlamaForCausalLM(config)
        return model.to(device, self.dtype).eval()


SIZES = (
    Size(
        "1M",
        {
            "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2,
        },
        torch.float32,
        1,
    ),
    Size(
        "25M",
        {
            "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 7,
            "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": True,
        },
        torch.float32,
        1,
    ),
    # The shape is that of config.json of HuggingFaceTB/SmolLM2-135M; the weights are random, too.
    Size(
        "SmolLM2-135M",
        {
            "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
            "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True,
        },
        torch.bfloat16,
        2,
        prompts=24,
        longest=96,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts and how long the response to each is."""

    prompts: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]

    @classmethod
    def drawn(cls, rng: Random, size: Size, count: int, longest: int) -> "Workload":
        vocabulary = size.shape["vocab_size"]
        lengths = tuple(max(8, min(longest, round(rng.lognormvariate(4.0, 0.8)))) for _ in range(count))
        prompts = tuple(tuple(rng.randrange(vocabulary) for _ in range(rng.randrange(8, 65))) for _ in range(count))
        return cls(prompts, lengths)

    def asked(self, times: int) -> "Workload":
        """The first prompts of it, each so many times, with the lengths that there are."""
        return Workload(tuple(self.prompts[place // times] for place in range(len(self.prompts))), self.lengths)

    @property
    def useful(self) -> int:
        return sum(self.lengths)

    @property
    def room_tokens(self) -> int:
        return sum(-(-(len(p) + n) // PAGE) * PAGE for p, n in zip(self.prompts, self.lengths, strict=True))


@dataclass(frozen=True, slots=True)
class Run:
    """The responses, and the seconds that they took: of the wall clock and of the processor."""

    tokens: Tokens
    wall_s: float
    cpu_s: float


@contextmanager
def timed() -> Iterator[list[float]]:
    """Wall and processor seconds, with the garbage collected before and the collector off meanwhile."""
    gc.collect()
    gc.disable()
    taken: list[float] = []
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    try:
        yield taken
    finally:
        taken += [time.perf_counter() - wall_s, time.process_time() - cpu_s]
        gc.enable()


def with_slots(engine: LocalEngine, work: Workload) -> Run:
    with timed() as taken:
        submit(engine, work)
        ends = {event.id: event.response.tokens for event in stream(engine) if isinstance(event, Ended)}
    return Run([ends[str(place)] for place in range(len(work.prompts))], *taken)


def submit(engine: LocalEngine, work: Workload, longer: int = 0) -> None:
    for place, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True)):
        engine.submit(GenerationRequest(str(place), prompt, length + longer, temperature=0.0))


def with_generate(model: Any, work: Workload, batch: int) -> Run:
    """Batches in the order of the prompts, as nobody knows lengths beforehand."""
    tokens: list[list[int]] = []
    with timed() as taken, torch.inference_mode():
        for start in range(0, len(work.prompts), batch):
            prompts, lengths = work.prompts[start : start + batch], work.lengths[start : start + batch]
            width = max(map(len, prompts))
            ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=model.device)
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
            config = greedy(max_new_tokens=max(lengths))
            made = model.generate(ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
            tokens += [row[:length] for row, length in zip(made, lengths, strict=True)]
    return Run(tokens, *taken)


def greedy(**more: int) -> GenerationConfig:
    return GenerationConfig(do_sample=False, pad_token_id=0, **more)


def with_continuous(model: Any, work: Workload) -> Run:
    """The manager is made and warm before the clock starts."""
    paged: dict[str, Any] = {PAGE_WORD: PAGE}
    batching = ContinuousBatchingConfig(
        **paged,
        num_blocks=work.room_tokens // PAGE + len(work.prompts),
        max_batch_tokens=512,
        max_requests_per_batch=64,
        allow_block_sharing=False,
    )
    manager = model.init_continuous_batching(
        generation_config=greedy(eos_token_id=-1, max_new_tokens=512),
        continuous_batching_config=batching,
    )
    manager.start()
    try:
        _continued(manager, Workload(work.prompts[:1], (2,)))
        with timed() as taken:
            tokens = _continued(manager, work)
    finally:
        manager.stop(block=True)
    return Run(tokens, *taken)


def _continued(manager: Any, work: Workload) -> Tokens:
    for place, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True)):
        manager.add_request(list(prompt), request_id=str(place), max_new_tokens=length, eos_token_id=-1)
    found: dict[str, list[int]] = {}
    while len(found) < len(work.prompts):
        result = manager.get_result(timeout=600)
        if result is None or result.error is not None:
            raise RuntimeError(f"continuous batching gave {result} after {len(found)} of {len(work.prompts)} responses")
        found[result.request_id] = result.generated_tokens
    return [found[str(place)] for place in range(len(work.prompts))]


def compared(size: Size, work: Workload, model: Any, engine: LocalEngine, rounds: int) -> list[dict[str, object]]:
    """Every engine once in each round; the first round, on little work, does not count."""
    contenders: dict[str, Callable[[Workload], Run]] = {
        "slots": lambda some: with_slots(engine, some),
        "continuous batching": lambda some: with_continuous(model, some),
        "generate, 16 at once": lambda some: with_generate(model, some, 16),
    }
    if len(work.prompts) > 16:
        contenders["generate, all at once"] = lambda some: with_generate(model, some, len(some.prompts))
    for run in contenders.values():
        run(Workload(work.prompts[:4], (8,) * 4))
    runs = [{name: _told(size, name, run(work)) for name, run in contenders.items()}]
    hopeful = _hopeful(runs[0])
    for _ in range(rounds - 1):
        runs.append({name: _told(size, name, contenders[name](work)) for name in hopeful})
    return [_row(size, work, name, runs) for name in contenders]


def _told(size: Size, name: str, run: Run) -> Run:
    print(f"{size.name}, {name}: {run.wall_s:.1f} s, {run.cpu_s:.1f} s of the processor", flush=True)
    return run


def _hopeful(first: Mapping[str, Run]) -> list[str]:
    """`slots`, and who may be the best of the others."""
    best_s = min(run.wall_s for name, run in first.items() if name != "slots")
    return [name for name, run in first.items() if name == "slots" or run.wall_s <= 2 * best_s]


def _row(size: Size, work: Workload, name: str, runs: Sequence[Mapping[str, Run]]) -> dict[str, object]:
    runs = [found for found in runs if name in found]
    others = [[other for key, other in found.items() if key != "slots"] for found in runs]
    ratios = [min(x.wall_s for x in best) / found[name].wall_s for found, best in zip(runs, others, strict=True)]
    cpu = [min(x.cpu_s for x in best) / found[name].cpu_s for found, best in zip(runs, others, strict=True)]
    if any(list(map(len, found[name].tokens)) != list(work.lengths) for found in runs):
        raise RuntimeError(f"{name} made responses of other lengths than it was asked for")
    pairs = zip(runs[0][name].tokens, runs[0]["slots"].tokens, strict=True)
    return {
        "model": size.name,
        "engine": name,
        "runs": len(runs),
        "tokens/s": work.useful / median(found[name].wall_s for found in runs),
        "over best other": median(ratios),
        "least": min(ratios),
        "per CPU second": work.useful / median(found[name].cpu_s for found in runs),
        "over best other, CPU": median(cpu),
        "same responses": sum(list(a) == list(b) for a, b in pairs) / len(work.prompts),
    }


def groups(
    size: Size, engine: LocalEngine, seed: int, count: int, longest: int, rounds: int
) -> list[dict[str, object]]:
    """What it gains that some answer the same prompt, against as many that answer others as long."""
    rows: list[dict[str, object]] = []
    for tokens in GROUPS_OF:
        rng = Random(seed)
        drawn = Workload.drawn(rng, size, count, longest)
        vocabulary = size.shape["vocab_size"]
        others = Workload(
            tuple(tuple(rng.randrange(vocabulary) for _ in range(tokens)) for _ in range(count)), drawn.lengths
        )
        work = {"same": others.asked(GROUP), "others": others}
        runs = [{name: with_slots(engine, each).wall_s for name, each in work.items()} for _ in range(rounds)]
        rows.append(
            {
                "model": size.name,
                "prompt": tokens,
                "responses to each": GROUP,
                "tokens/s": others.useful / median(each["same"] for each in runs),
                "over prompts that differ": median(each["others"] / each["same"] for each in runs),
            }
        )
    return rows


def latencies(size: Size, work: Workload, engine: LocalEngine, rounds: int) -> dict[str, object]:
    """Milliseconds, with all responses under way; the median of some rounds."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        submit(engine, work, longer=64)
        while engine.gauges().waiting or engine.gauges().generated_tokens == 0:
            engine.step()
        for _ in range(8):
            engine.step()
        for name, call in _moments(engine).items():
            with timed() as taken:
                call()
            found.setdefault(name, []).append(taken[0] * 1000)
        engine.cancel([str(place) for place in range(len(work.prompts))])
        list(stream(engine))
    return {"model": size.name, **{name: median(values) for name, values in found.items()}}


def _moments(engine: LocalEngine) -> dict[str, Callable[[], object]]:
    def token() -> None:
        before = engine.gauges().generated_tokens
        while engine.gauges().generated_tokens == before:
            engine.step()

    def cancelled() -> None:
        engine.cancel(["1"])
        assert any(isinstance(event, Ended) for event in engine.step())

    def woken() -> None:
        engine.resume()
        token()

    def moved() -> None:
        engine.adopt(engine.export())
        token()

    return {
        "a step ms": token,
        "cancel ms": cancelled,
        "suspend keeping ms": lambda: engine.suspend(keep=True),
        "then resume to token ms": woken,
        "suspend ms": engine.suspend,
        "then resume ms": engine.resume,
        "then all recomputed ms": lambda: recomputed(engine),
        "export, adopt, token ms": moved,
    }


def recomputed(engine: LocalEngine) -> None:
    """Until every response has gained a token again."""
    left = engine.unfinished
    while left > 0:
        left -= len(engine.step())


@contextmanager
def cores(count: int) -> Iterator[None]:
    """So many threads, on so many cores."""
    allowed = os.sched_getaffinity(0)
    threads = torch.get_num_threads()
    os.sched_setaffinity(0, sorted(allowed)[:count])
    torch.set_num_threads(min(count, len(allowed)))
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        torch.set_num_threads(threads)


def measure(args: Namespace) -> dict[str, object]:
    rows: list[dict[str, object]] = []
    delays: list[dict[str, object]] = []
    grouped: list[dict[str, object]] = []
    goals: list[Goal] = []
    for size in SIZES[:1] if args.quick else [size for size in SIZES if size.name in args.sizes.split(",")]:
        count, longest, rounds = (6, 16, 1) if args.quick else (size.prompts, size.longest, args.rounds)
        work = Workload.drawn(Random(args.seed), size, count, longest)
        with cores(size.threads) if args.device == "cpu" else nullcontext():
            model = size.model(args.seed, args.device)
            engine = slots(model, Limits(room_tokens=work.room_tokens + 128 * count, page_tokens=PAGE))
            found = compared(size, work, model, engine, rounds)
            delays.append(latencies(size, work, engine, rounds))
            engine.close()
            engine = slots(model, Limits(count * (GROUPS_OF[-1] + longest + PAGE), page_tokens=PAGE))
            grouped += groups(size, engine, args.seed, count, longest, rounds)
            engine.close()
        rows += found
        ratio = found[0]["over best other"]
        assert isinstance(ratio, float)
        goals.append(Goal(f"{size.name}, useful tokens/s over the best other", ratio, GOAL, at_most=False))
    table(rows)
    table(delays)
    table(grouped)
    print("All weights are random; SmolLM2-135M is a model of its shape.")
    return {
        "rows": rows,
        "latencies": delays,
        "groups": grouped,
        "goals": show(goals),
        "weights": "random",
        "torch": torch.__version__,
    }


def main() -> None:
    parser = arguments("engine", (__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each engine runs")
    parser.add_argument("--device", default="cpu", help="cpu or cuda: where all engines compute")
    parser.add_argument("--sizes", default=",".join(size.name for size in SIZES), help="models, by name")
    args = parser.parse_args()
    transformers_logging.set_verbosity_error()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    record("engine", args, lambda: measure(args))


if __name__ == "__main__":
    main()

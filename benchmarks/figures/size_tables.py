"""Tensor-parallel sizes: how long rollouts take with each, and which size our planner and the paper's take."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import fmean

from benchmarks.figures import rollpacker as paper
from benchmarks.figures.goals import Goal
from benchmarks.figures.job_runs import Cases, Got, Ran, Run, Scale
from benchmarks.figures.parts import Part, beside
from rollmux.packer.commands import RoundKind
from rollmux.packer.round_time import RoundLoad
from rollmux.sim.job.lengths import LengthQuantiles
from rollmux.sim.job.machine import MODELS
from rollmux.sim.job.setup import Setup, Source
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.sizes import SIZES, planner
from rollmux.sim.job.system import SYNC, TAIL, Sizing

K = 1024
QUICK_CAPS = (8, 14, 32)
STEPS = 4
PLANNED_STEPS = 15
KNOWN_BATCHES = 8  # whose lengths the planner is told
# The lengths of Qwen3-8B, which thinks at length, are unsaid: so many times those of Qwen2.5-14B, by which long rounds
# take about as long as the paper's.
STRETCH = 6
QWEN3_SIZES = (1, 2)

GOAL_OVER_BEST = 1.05


def capped(cap_k: int) -> Setup:
    """14B on half of its GPUs."""
    return replace(SETUPS["14B/16k"], gpus=16, cap=cap_k * K)


@cache
def qwen3() -> Setup:
    one = SETUPS["7B/8k"].only("math")
    longer = tuple(replace(domain, lengths=stretched(domain.lengths, STRETCH)) for domain in one.domains)
    return replace(one, name="Qwen3-8B", model=MODELS["Qwen3-8B"], gpus=8, cap=32 * K, domains=longer)


def stretched(lengths: LengthQuantiles, times: int) -> LengthQuantiles:
    """The same shares at so many times the lengths."""
    (knee, above), (cap, at_cap) = lengths.above, lengths.at_cap
    tokens = tuple(times * each for each in lengths.tokens)
    return replace(lengths, tokens=tokens, above=(times * knee, above), at_cap=(times * cap, at_cap))


def cases(scale: Scale) -> Cases:
    caps = QUICK_CAPS if scale.quick else tuple(paper.SIZES)
    fixed: Cases = {
        ("14B", cap, size): scale.each(Run(replace(capped(cap), tp=size), SYNC, scale.cut(STEPS)))
        for cap in caps
        for size in SIZES
    }
    steps = scale.cut(PLANNED_STEPS, 5)
    tail: Cases = {("8B", size): scale.each(Run(replace(qwen3(), tp=size), TAIL, steps)) for size in QWEN3_SIZES}
    planned: Cases = {("8B", "planned"): scale.each(Run(qwen3(), replace(TAIL, sizing=Sizing.PREDICTION), steps))}
    return {**fixed, **tail, **planned}


def parts(got: Got) -> list[Part]:
    return [by_cap(got), by_kind(got)]


def by_cap(got: Got) -> Part:
    """14B on 16 GPUs."""
    caps = sorted({key[1] for key in got if key[0] == "14B" and isinstance(key[1], int)})
    chosen = {cap: chosen_size(capped(cap)) for cap in caps}
    rows: list[dict[str, object]] = []
    over_best = []
    for cap in caps:
        seconds = {size: rollout_s(got["14B", cap, size]) for size in SIZES}
        over_best.append(seconds[chosen[cap]] / min(seconds.values()))
        figure, size = paper.SIZES[cap]
        rows.append(
            {
                "cap k": cap,
                **{f"TP{each} s": each_s for each, each_s in seconds.items()},
                "chosen": chosen[cap],
                "over best": over_best[-1],
                "paper's size": size,
                "its s": figure,
                "ours at it, ratio": seconds[size] / figure,
                "chosen, ratio": seconds[chosen[cap]] / figure,
            }
        )
    preempted = sum(step.preemptions for key, runs in got.items() if key[0] == "14B" for r in runs for step in r.steps)
    alike = sum(chosen[cap] == paper.SIZES[cap][1] for cap in caps)
    goals = [
        Goal("sizes: larger caps that have no smaller one", kept([chosen[cap] for cap in caps]), 1.0, at_most=False),
        Goal("sizes: chosen over the best fixed one, worst", max(over_best), GOAL_OVER_BEST),
    ]
    switches = ", ".join(f"{at_s:g} s at {cap}k with TP{size}" for cap, (at_s, size) in paper.UNSWITCHED_S.items())
    words = (
        "Rounds of 128 x 8 responses that run to the end; which rounds and data the paper's are of is unsaid.",
        f"{alike} of {len(caps)} sizes are the paper's. Its rule goes by preemptions; unswitched it has {switches}.",
        "Ours chooses by time: a larger group decodes the few last responses faster. Of memory there is enough, with",
        f"{preempted} preemptions in all these runs: the published rule would ask for no larger size.",
    )
    return Part("Rollout of 14B on 16 GPUs by cap and tensor-parallel size", rows, words, goals)


def chosen_size(setup: Setup) -> int:
    """What the planner takes, told the lengths of earlier rounds."""
    load = RoundLoad(setup.prompts * setup.responses, known_lengths(setup), setup.prompt_tokens)
    return planner(setup).choose([load]).size


def known_lengths(setup: Setup) -> tuple[int, ...]:
    """Of whole batches that no measured run has."""
    source = Source(setup, -1)
    prompts = [source.draw(d.name) for d in setup.domains for _ in range(KNOWN_BATCHES * d.quota)]
    return tuple(source.response(prompt, sample, 1)[0] for prompt in prompts for sample in range(setup.responses))


def rollout_s(runs: Sequence[Ran], *kinds: RoundKind) -> float:
    return fmean(step.rollout_s for ran in runs for step in ran.steps if not kinds or step.kind in kinds)


def kept(sizes: Sequence[int]) -> float:
    """The share of sizes after the first that are not below the one before."""
    return fmean(after >= before for before, after in pairwise(sizes))


def by_kind(got: Got) -> Part:
    """Qwen3-8B: short and long rounds may want different sizes."""
    rows: list[dict[str, object]] = []
    for (size, kind), (figure, preempted) in paper.QWEN3_8B.items():
        runs, rounds = got["8B", size], RoundKind(kind)
        preemptions = fmean(step.preemptions for ran in runs for step in ran.only(rounds))
        row = {"size": f"TP{size}", "round": kind, **beside(rollout_s(runs, rounds), figure)}
        rows.append(row | {"preemptions": preemptions, "paper's preemptions": preempted})
    picked = {
        kind.value: sorted({ran.only(kind)[-1].tp for ran in got["8B", "planned"]})
        for kind in (RoundKind.SHORT, RoundKind.LONG)
    }
    words = (
        f"Lengths of this model are unsaid: {STRETCH} times those of Qwen2.5-14B with math are assumed, so no goal.",
        f"Told what earlier rounds were like, our planner takes {sizes_told(picked['short'])} for short rounds, and",
        f"{sizes_told(picked['long'])} for long ones; by the paper's figures TP2 and TP1 are faster.",
        "Its short rounds preempt far more than ours, so its lengths are others than those assumed.",
    )
    return Part("Rollout of Qwen3-8B on 8 GPUs at a cap of 32k, s", rows, words)


def sizes_told(sizes: Sequence[int]) -> str:
    """Sizes, as different seeds may differ."""
    return " or ".join(f"TP{size}" for size in sizes)

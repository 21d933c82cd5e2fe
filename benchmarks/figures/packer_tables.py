"""What each part of our job tier gains over the published design, its cost in bias, and the policies that learn."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

from benchmarks.figures import rollpacker as paper
from benchmarks.figures.goals import Goal
from benchmarks.figures.job_runs import Cases, Got, Ran, Run, Scale, plus_minus, speedup
from benchmarks.figures.parts import Part
from rollmux.packer.batching import Race
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.system import ROLLMUX, ROLLPACKER, SYNC, Sizing, System

# Parts of ours, one at a time in the published design.
ONE_AT_A_TIME = {
    f"judge in batches of {ROLLMUX.judge_batch}": replace(ROLLPACKER, judge_batch=ROLLMUX.judge_batch),
    "sizes by prediction": replace(ROLLPACKER, sizing=Sizing.PREDICTION),
    "no streaming in short rounds": replace(ROLLPACKER, stream_short=False),
    "streaming wide": replace(ROLLPACKER, stream_wide=True),
    "one update": replace(ROLLPACKER, one_update=True),
    f"factors of {ROLLMUX.eta_prompts:g} and {ROLLMUX.eta_responses:g}": replace(
        ROLLPACKER, eta_prompts=ROLLMUX.eta_prompts, eta_responses=ROLLMUX.eta_responses
    ),
    "generation decides the race": replace(ROLLPACKER, race=Race.GENERATED),
    "no race of responses": replace(ROLLPACKER, race=Race.NONE),
}
# What has nothing to do with tail batching, for both baselines: a fair reader takes ours over these.
BESIDE = "judge in batches and one update"
WHOLE = (
    SYNC,
    ROLLPACKER,
    ROLLMUX,
    *(
        replace(system, name=f"{system.name}, {BESIDE}", judge_batch=ROLLMUX.judge_batch, one_update=True)
        for system in (SYNC, ROLLPACKER)
    ),
    replace(
        ROLLMUX,
        name="rollmux at the published factors",
        eta_prompts=ROLLPACKER.eta_prompts,
        eta_responses=ROLLPACKER.eta_responses,
    ),
)
FACTORS = tuple(product((1.125, 1.25, 1.5, 2.0), (1.0, 1.125, 1.25, 1.5)))  # of prompts and of responses
QUICK_FACTORS = ((1.25, 1.0), (1.25, 1.25))
# Whole cycles of 9, 5, 3 and 2 rounds.
FRONTIER_STEPS = 45

# Policies that remember prompts need data that come again: an epoch of so many steps.
EPOCH_STEPS = 20
POLICIES: dict[str, tuple[bool, float | None]] = {
    "fixed": (False, None),
    "adaptive eta": (True, None),
    "known long": (False, 0.1),
    "both": (True, 0.1),
}

GOAL_SPEEDUP = {"7B/8k": 2.4, "14B/16k": 2.6, "32B/32k": 3.0}


def cases(scale: Scale) -> Cases:
    half, cycles = scale.cut(scale.steps // 2, scale.steps), scale.cut(FRONTIER_STEPS, scale.steps)
    asked: Cases = {}
    for name, setup in SETUPS.items():
        for system in WHOLE:
            asked["parts", name, system.name] = scale.each(Run(setup, system, scale.steps))
        for part, system in ONE_AT_A_TIME.items():
            if not scale.quick or name == "7B/8k":
                asked["parts", name, part] = scale.each(Run(setup, system, half))
        for factors in QUICK_FACTORS if scale.quick else FACTORS:
            if not scale.quick or name == "7B/8k":
                asked["frontier", name, factors] = [Run(setup, with_factors(*factors), cycles, scale.seeds[0])]
        for policy, (adaptive, share) in POLICIES.items():
            if name in paper.SETUPS and (not scale.quick or name == "7B/8k"):
                asked["policies", name, policy] = scale.each(
                    Run(recurring(setup), ROLLMUX, scale.steps, adaptive_eta=adaptive, known_long=share)
                )
    return asked


def with_factors(prompts: float, responses: float) -> System:
    """Ours with these factors; without more responses than are wanted there is no race between them."""
    race = Race.NONE if responses == 1 else ROLLMUX.race
    return replace(ROLLMUX, eta_prompts=prompts, eta_responses=responses, race=race)


def recurring(setup: Setup) -> Setup:
    """The same job on so few data that they come again soon."""
    return replace(setup, domains=tuple(replace(d, size=EPOCH_STEPS * d.quota) for d in setup.domains))


def parts(got: Got) -> list[Part]:
    return [one_at_a_time(got), frontier(got), policies(got)]


def of_kind(got: Got, kind: str) -> Iterator[tuple[tuple[Any, Any], Sequence[Ran]]]:
    """The runs of one table, by setup and by what is unlike in them."""
    return (((name, what), runs) for (table, name, what), runs in got.items() if table == kind)


def bias_columns(runs: Sequence[Ran]) -> dict[str, object]:
    """How trained lengths differ from those offered, in the mean over the runs."""
    return {
        "wasted %": 100 * fmean(ran.wasted for ran in runs),
        "mean length %": 100 * fmean(ran.bias.mean_shift for ran in runs),
        "wasserstein": fmean(ran.bias.wasserstein for ran in runs),
        "KS": fmean(ran.bias.kolmogorov_smirnov for ran in runs),
    }


def one_at_a_time(got: Got) -> Part:
    """The published design, ours, and the published one with one part of ours."""
    rows: list[dict[str, object]] = []
    goals = []
    for (name, part), runs in of_kind(got, "parts"):
        gain = speedup(runs, got["parts", name, SYNC.name])
        told = f"rollpacker, {part}" if part in ONE_AT_A_TIME else part
        figure = paper.SPEEDUPS[name].get(part, "-")
        row = {"setup": name, "system": told, "speed-up": gain.mean, "±": plus_minus(gain), "paper's": figure}
        rows.append(row | bias_columns(runs))
        if part == ROLLMUX.name:
            goals.append(Goal(f"rollmux over sync, {name}", gain.mean, GOAL_SPEEDUP[name], at_most=False))
    words = (
        "Over the synchronous baseline on the same seeds, in whole cycles. Wasted: of all tokens made, those in no",
        "batch. The bias is of trained lengths against those of every response launched for a trained prompt, aborted",
        "ones at the length that they would have come to. One part alone is measured over half as many steps.",
        f"`{BESIDE}` needs no tail batching: of ours over sync, what is left over a sync that has it too is the job",
        "tier's own. Ours also races harder than the published design, at the price of a larger bias.",
    )
    return Part("Speed-up over sync, and bias of lengths", rows, words, goals)


def frontier(got: Got) -> Part:
    """Speed against bias."""
    rows: list[dict[str, object]] = []
    for name in SETUPS:
        found = {factors: runs for (of, factors), runs in of_kind(got, "frontier") if of == name}
        base = got["parts", name, SYNC.name][:1]
        gains = [speedup(runs, base).mean for runs in found.values()]
        best = undominated([(gain, abs(r[0].bias.mean_shift)) for gain, r in zip(gains, found.values(), strict=True)])
        for ((prompts, responses), runs), gain, is_best in zip(found.items(), gains, best, strict=True):
            row = {"setup": name, "prompts": prompts, "responses": responses, "speed-up": gain}
            rows.append(row | bias_columns(runs) | {"frontier": "yes" if is_best else ""})
    words = (
        "rollmux with other factors, one seed. Responses at 1 have no race between them, and no bias. On the frontier:",
        "none is both faster and less biased in the mean length.",
    )
    return Part("Speed-up against bias by over-provisioning", rows, words)


def undominated(points: Sequence[tuple[float, float]]) -> list[bool]:
    """For each pair of a speed-up and a bias, whether no other has more of the one and no more of the other."""

    def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
        return a[0] >= b[0] and a[1] <= b[1] and a != b

    return [not any(beats(other, point) for other in points) for point in points]


def policies(got: Got) -> Part:
    """Factors that adapt, and prompts known to be long, against fixed factors on data that come again."""
    rows: list[dict[str, object]] = []
    for (name, policy), runs in of_kind(got, "policies"):
        after = EPOCH_STEPS if len(runs[0].steps) > EPOCH_STEPS else 0
        gain = speedup(runs, got["policies", name, "fixed"], after)
        row = {"setup": name, "policy": policy, "over fixed": gain.mean, "±": plus_minus(gain)}
        rows.append(row | bias_columns(runs) | {"waiting": fmean(ran.waiting for ran in runs)})
    words = (
        f"rollmux on data of which an epoch has {EPOCH_STEPS} steps; times from the second epoch on, when prompts are",
        "known. Adaptive factors launch no more responses than the fixed ones. Of a prompt's length its last run tells",
        f"little: the prompt explains {SETUPS['7B/8k'].domains[0].lengths.alike:.0%} of the variance of the logarithm.",
        "Waiting: prompts in the queue at the end, 128 of which are a long round still to come.",
    )
    return Part("Policies that learn: speed-up over fixed factors", rows, words)

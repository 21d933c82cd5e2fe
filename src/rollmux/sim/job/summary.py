"""Played systems as plain data: what `rollmux job-sim --json` writes.

Invariant: every system has the same keys; figures that are not known are None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from rollmux.packer.commands import RoundKind
from rollmux.packer.false_kills import FalseKills
from rollmux.sim.job.job import Step
from rollmux.sim.job.played import Played
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.setup_data import setup_data


def as_data(setup: Setup, seed: int, played: Mapping[str, Played], sync: Played) -> dict[str, Any]:
    """The setup in the keys of its file, and the figures of each system, with speed-ups over `sync`."""
    steps = len(sync.steps)
    return {
        "setup": {**setup_data(setup), "steps": steps, "seed": seed},
        "systems": {name: summary(each, sync) for name, each in played.items()},
    }


def summary(played: Played, sync: Played) -> dict[str, Any]:
    """The figures of one system. The parts of `breakdown_s` add up to `step_s_mean`; means are over whole cycles.

    Training beside the rollout is in no part: `hidden_train_s_mean` tells how much there was. `tokens` are those of
    responses: trained; wasted (generated, but in no batch); and offered (those that trained prompts would have given if
    no response had been aborted).
    """
    steps, system = played.whole, played.system
    return {
        "eta_prompts": system.eta_prompts,
        "eta_responses": system.eta_responses,
        "step_s_mean": step_s_mean(steps),
        "short_step_s_mean": step_s_mean(steps, RoundKind.SHORT),
        "long_step_s_mean": step_s_mean(steps, RoundKind.LONG),
        "rollout_s_mean": fmean(step.rollout_s for step in steps),
        "speedup_over_sync": speedup(played, sync),
        "breakdown_s": breakdown_s(steps),
        "hidden_train_s_mean": fmean(step.hidden_s for step in steps),
        "rounds": {kind.value: sum(step.kind is kind for step in played.steps) for kind in RoundKind},
        "waiting_prompts": played.waiting_prompts,
        "tokens": tokens(played),
        "length_bias": _length_bias(played),
        "false_kills": None if played.false_kills is None else _false_kills(played.false_kills),
        "preemptions": sum(step.preemptions for step in played.steps),
        "steps": [_step(step) for step in played.steps],
    }


def step_s_mean(steps: Sequence[Step], kind: RoundKind | None = None) -> float | None:
    """The mean time of the steps of one kind, or of all; None if there are none."""
    times = [step.step_s for step in steps if kind is None or step.kind is kind]
    return fmean(times) if times else None


def speedup(played: Played, sync: Played) -> float:
    """How many times as fast as `sync` equal batches are trained, in whole cycles."""
    return fmean(step.step_s for step in sync.whole) / fmean(step.step_s for step in played.whole)


def breakdown_s(steps: Sequence[Step]) -> dict[str, float]:
    """The parts of the mean step, in seconds, one after the other."""
    return {
        "rollout": fmean(step.rollout_s for step in steps),
        "reward": fmean(step.reward_s for step in steps),
        "train": fmean(step.train_s for step in steps),
        "sync": fmean(step.sync_s for step in steps),
    }


def tokens(played: Played) -> dict[str, int]:
    offered = played.bias.overall.offered
    return {
        "offered": round(offered.responses * offered.mean),
        "trained": sum(_trained(step) for step in played.steps),
        "wasted": sum(step.wasted_tokens for step in played.steps),
    }


def wasted_share(played: Played) -> float:
    """The share of wasted tokens among those that were wasted or trained."""
    told = tokens(played)
    return told["wasted"] / (told["wasted"] + told["trained"])


def _trained(step: Step) -> int:
    """The trained tokens of responses. `Step.trained_tokens` also counts those of prompts, which training computes."""
    return sum(response.tokens for prompt in step.batch.prompts for response in prompt.responses)


def _length_bias(played: Played) -> dict[str, Any]:
    """The bias over all domains, of each, and as a live run sees it (`seen`): aborted responses stay short there."""
    bias = played.bias
    return {
        **asdict(bias.overall),
        "domains": {name: asdict(each) for name, each in bias.domains.items()},
        "seen": asdict(played.seen_bias.overall),
    }


def _false_kills(kills: FalseKills) -> dict[str, Any]:
    return {**asdict(kills), "of_runs": kills.of_runs, "of_runs_upper": kills.of_runs_upper}


def _step(step: Step) -> dict[str, Any]:
    return {
        "kind": step.kind.value,
        "rollout_s": step.rollout_s,
        "reward_s": step.reward_s,
        "train_s": step.train_s,
        "sync_s": step.sync_s,
        "step_s": step.step_s,
        "hidden_train_s": step.hidden_s,
        "tp": step.tp,
        "launched": step.launched,
        "preemptions": step.preemptions,
        "trained_tokens": _trained(step),
        "wasted_tokens": step.wasted_tokens,
    }

"""A setup as plain data: the keys of setup files, with their meanings, units and limits.

Invariant: the data of `setup_data`, written to a file, are read back as an equal setup.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rollmux.sim.job.lengths import LengthQuantiles
from rollmux.sim.job.machine import Device, Model
from rollmux.sim.job.setup import Domain, Setup


@dataclass(frozen=True, slots=True)
class Number:
    """A key with a number: its field, its limits in the file's unit, and how much 1 in the file is in the field."""

    target: str
    meaning: str
    low: float
    high: float
    whole: bool = False
    unit: float = 1.0


def _count(target: str, meaning: str, high: int = 10**6) -> Number:
    return Number(target, meaning, 1, high, whole=True)


def _seconds(target: str, meaning: str) -> Number:
    return Number(target, meaning, 0.0, 1e6)


def _share(target: str, meaning: str) -> Number:
    return Number(target, meaning, 0.0, 1.0)


SETUP_NUMBERS = {
    "gpus": _count("gpus", "GPUs of the job", 4096),
    "tensor_parallel": _count("tp", "GPUs of one replica of the rollout engine", 8),
    "slots": _count("slots", "requests that one replica runs at once"),
    "cap_tokens": _count("cap", "length at which a response is cut off"),
    "prompts": _count("prompts", "prompts trained in one step", 16_384),
    "responses": _count("responses", "responses trained for each prompt", 256),
    "prompt_tokens": _count("prompt_tokens", "length of a prompt"),
    "rule_s": _seconds("scoring.rule_s", "time that a rule takes for a response"),
    "sandbox_workers": _count("scoring.sandbox_workers", "tests that run at once"),
    "right_share": _share("scoring.right", "share of the programs that end which are right"),
    "judge_s": _seconds("scoring.judge_s", "time that a server's judge takes for a response"),
    "judge_load_s": _seconds("scoring.judge_load_s", "time to put the judge in the place of the actor"),
    "train_reached": Number("training.reached", "share of the peak arithmetic that training reaches", 1e-6, 1.0),
    "train_fixed_s": _seconds("training.fixed_s", "time of an update that no batch makes shorter"),
    "train_infer_share": _share("training.infer_part", "share of an update's arithmetic that is log-probabilities"),
    "wake_s": _seconds("wake_s", "time from the start of a round to its first token"),
    "sync_s": _seconds("sync_s", "time to bring new weights to the rollout engine"),
}
MODEL_NUMBERS = {
    "billion_parameters": Number("parameters", "size of the model", 1e-3, 1e5, unit=1e9),
    "layers": _count("layers", "layers of the model", 10**4),
    "kv_bytes_per_token": Number("kv_bytes_per_token", "bytes of keys and values for a token", 1, 1e9),
}
DEVICE_NUMBERS = {
    "memory_gb": Number("memory_bytes", "memory of one GPU in GB", 1e-3, 1e5, unit=1e9),
    "memory_tb_per_s": Number("memory_bytes_per_s", "memory bandwidth of one GPU in TB/s", 1e-3, 1e3, unit=1e12),
    "tflops": Number("flops", "peak of dense bfloat16 arithmetic in TFLOP/s", 1e-3, 1e6, unit=1e12),
    "gpus_per_server": _count("per_server", "GPUs of one server", 1024),
    "host_gb_per_s": Number("host_bytes_per_s", "bandwidth between host and GPU in GB/s", 1e-3, 1e5, unit=1e9),
}
DOMAIN_NUMBERS = {
    "quota": _count("quota", "prompts of a step that are of this domain"),
    "size": _count("size", "prompts in the data", 10**6),
}
# In `LengthQuantiles` some of these are pairs; here each number has its own key.
LENGTH_NUMBERS = {
    "tail_tokens": _count("tail_tokens", "length beyond the last quantile with a known share of longer ones"),
    "tail_share": Number("tail_share", "share of the responses longer than tail_tokens", 1e-9, 1 - 1e-9),
    "cut_tokens": _count("cut_tokens", "cap at which the lengths were measured"),
    "cut_share": Number("cut_share", "share of the responses that this cap cut off", 1e-9, 1 - 1e-9),
    "alike": _share("alike", "share of the variance that the prompt explains"),
}

NAME, LIKE, MODEL, DEVICE, DOMAINS = "name", "like", "model", "device", "domains"
REWARD, LENGTHS, QUANTILES = "reward", "lengths", "quantiles"
NEEDED_OF_SETUP = (MODEL, DEVICE, *SETUP_NUMBERS, DOMAINS)
SETUP_KEYS = (LIKE, NAME, *NEEDED_OF_SETUP)
DOMAIN_KEYS = (*DOMAIN_NUMBERS, REWARD, LENGTHS)
LENGTH_KEYS = (QUANTILES, *LENGTH_NUMBERS)


def setup_data(setup: Setup) -> dict[str, Any]:
    """All values of the setup, under the keys of a setup file."""
    return {
        NAME: setup.name,
        MODEL: model_data(setup.model),
        DEVICE: device_data(setup.device),
        **_numbers(setup, SETUP_NUMBERS),
        DOMAINS: {domain.name: _domain_data(domain) for domain in setup.domains},
    }


def model_data(model: Model) -> dict[str, Any]:
    return {NAME: model.name, **_numbers(model, MODEL_NUMBERS)}


def device_data(device: Device) -> dict[str, Any]:
    return {NAME: device.name, **_numbers(device, DEVICE_NUMBERS)}


def _domain_data(domain: Domain) -> dict[str, Any]:
    lengths = domain.lengths
    return {
        **_numbers(domain, DOMAIN_NUMBERS),
        REWARD: domain.reward.value,
        LENGTHS: {
            QUANTILES: [[share, tokens] for share, tokens in zip(lengths.shares, lengths.tokens, strict=True)],
            "tail_tokens": lengths.above[0],
            "tail_share": lengths.above[1],
            "cut_tokens": lengths.at_cap[0],
            "cut_share": lengths.at_cap[1],
            "alike": lengths.alike,
        },
    }


def lengths_of(quantiles: list[tuple[float, int]], row: Mapping[str, Any]) -> LengthQuantiles:
    """The lengths from the data of a file: quantiles, and the numbers beside them."""
    return LengthQuantiles(
        tokens=tuple(tokens for _, tokens in quantiles),
        shares=tuple(share for share, _ in quantiles),
        above=(row["tail_tokens"], row["tail_share"]),
        at_cap=(row["cut_tokens"], row["cut_share"]),
        alike=row["alike"],
    )


def _numbers(part: object, keys: Mapping[str, Number]) -> dict[str, Any]:
    found = {name: attrgetter(key.target)(part) for name, key in keys.items()}
    return {name: value / keys[name].unit if keys[name].unit != 1 else value for name, value in found.items()}

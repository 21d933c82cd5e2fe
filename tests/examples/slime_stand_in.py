"""What examples/slime needs of slime, in its names and with its behaviour, where slime itself is not there.

slime's modules want Megatron, SGLang and Ray. Each name here is one of its own, from the module that bears it. The
tests of the example run against slime instead where its modules can be imported.
"""

import asyncio
import copy
import importlib
import json
import random
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

NAMES = (
    "slime",
    "slime.rollout",
    "slime.rollout.base_types",
    "slime.rollout.data_source",
    "slime.rollout.filter_hub",
    "slime.rollout.filter_hub.base_types",
    "slime.rollout.rm_hub",
    "slime.rollout.sglang_rollout",
    "slime.utils",
    "slime.utils.async_utils",
    "slime.utils.misc",
    "slime.utils.types",
)


@dataclass
class Sample:
    """One response to a prompt, from before it is generated."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    prompt: str = ""
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    status: Status = Status.PENDING
    session_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def get_reward_value(self, args: Namespace) -> float:
        value: float = self.reward[args.reward_key] if args.reward_key else self.reward
        return value


@dataclass
class RolloutFnTrainOutput:
    samples: list[Any]
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    data: dict[str, Any]
    metrics: dict[str, Any] | None = None


@dataclass
class DynamicFilterOutput:
    keep: bool
    reason: str | None = None


def call_dynamic_filter(function: Any, *args: Any) -> DynamicFilterOutput:
    found: DynamicFilterOutput = function(*args)
    return found


class MetricGatherer:
    def __init__(self) -> None:
        self._reasons = Counter[str]()

    def on_dynamic_filter_drop(self, reason: str | None) -> None:
        if reason:
            self._reasons[reason] += 1

    def collect(self) -> dict[str, int]:
        return {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in self._reasons.items()}


class Dataset:
    """Prompts in the order of an epoch."""

    def __init__(self, path: str, seed: int) -> None:
        lines = map(json.loads, Path(path).read_text().splitlines())
        self.origin_samples = [Sample(prompt=line["text"], label=line["label"]) for line in lines]
        self.samples, self._seed = self.origin_samples, seed

    def shuffle(self, epoch: int) -> None:
        self.samples = random.Random(self._seed + epoch).sample(self.origin_samples, len(self.origin_samples))

    def __len__(self) -> int:
        return len(self.samples)


class RolloutDataSource:
    """Epoch by epoch, each in an order of its own."""

    saved: ClassVar[dict[tuple[str, int | None], dict[str, Any]]] = {}
    _counts = ("epoch_id", "sample_group_index", "sample_index", "sample_offset", "metadata")

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.epoch_id = self.sample_group_index = self.sample_index = self.sample_offset = 0
        self.metadata: dict[str, Any] = {}
        self.dataset = Dataset(args.prompt_data, args.rollout_seed)
        self.dataset.shuffle(0)

    def get_samples(self, count: int) -> list[list[Sample]]:
        return [self._group() for _ in range(count)]

    def _group(self) -> list[Sample]:
        if self.sample_offset == len(self.dataset):
            self.epoch_id, self.sample_offset = self.epoch_id + 1, 0
            self.dataset.shuffle(self.epoch_id)
        group = [copy.deepcopy(self.dataset.samples[self.sample_offset]) for _ in range(self.args.n_samples_per_prompt)]
        for sample in group:
            sample.group_index, sample.index = self.sample_group_index, self.sample_index
            self.sample_index += 1
        self.sample_group_index += 1
        self.sample_offset += 1
        return group

    def save(self, rollout_id: int | None) -> None:
        state = {name: getattr(self, name) for name in self._counts}
        self.saved[self.args.save, rollout_id] = copy.deepcopy(state)

    def load(self, rollout_id: int | None = None) -> None:
        for name, value in copy.deepcopy(self.saved.get((self.args.load, rollout_id), {})).items():
            setattr(self, name, value)
        self.dataset.shuffle(self.epoch_id)

    def __len__(self) -> int:
        return len(self.dataset)


class GenerateState:
    """One for the process."""

    it: "GenerateState | None" = None

    def __new__(cls, args: Namespace) -> "GenerateState":
        if cls.it is None:
            cls.it = super().__new__(cls)
            cls.it.sampling_params = {"max_new_tokens": args.rollout_max_response_len}
            cls.it.reset()
        return cls.it

    sampling_params: dict[str, Any]

    def reset(self) -> None:
        self.pendings: set[asyncio.Task[Any]] = set()
        self.aborted = False


async def generate_and_rm(
    args: Namespace, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False
) -> Any:
    assert not GenerateState(args).aborted
    sample = await load_function(args.custom_generate_function_path)(args, sample, sampling_params)
    if not args.group_rm and not isinstance(sample, list):
        sample.reward = await async_rm(args, sample)
    return sample


async def abort(args: Namespace, rollout_id: int) -> list[Any]:
    state = GenerateState(args)
    assert not state.aborted
    state.aborted = True
    for task in state.pendings:
        task.cancel()
    await asyncio.gather(*state.pendings, return_exceptions=True)
    state.pendings.clear()
    return []


def generate_rollout(
    args: Namespace, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnEvalOutput:
    assert evaluation
    assert not args.eval_datasets
    return RolloutFnEvalOutput({})


async def async_rm(args: Namespace, sample: Sample) -> Any:
    return await load_function(args.custom_rm_path)(args, sample)


async def batched_async_rm(args: Namespace, samples: list[Sample]) -> list[Any]:
    found: list[Any] = await load_function(args.custom_rm_path)(args, samples)
    return found


def load_function(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """slime's loop outlives the rollout, and so would whatever this leaves behind."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        assert not asyncio.all_tasks(loop)
        loop.close()


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever imports slime in this test gets this."""
    monkeypatch.setattr(GenerateState, "it", None)
    for name in NAMES:
        module = ModuleType(name)
        vars(module).update({key: value for key, value in globals().items() if not key.startswith("_")})
        monkeypatch.setitem(sys.modules, name, module)
    for name in NAMES[1:]:
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, sys.modules[name])

"""One training run of a mode of batching with a seed: the results and times of its steps, and the policy's reward.

The parts are those of `rollmux train`, without checkpoints, and from weights that all modes of a seed share. The
policy's reward is measured between steps, with the same prompts and the same draws, and its time does not count.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from os import truncate
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time
from typing import Any

from benchmarks.harness import git_state, others_cpu_s
from rollmux.runtime.engine import Ended, GenerationRequest
from rollmux.runtime.engine.seam import stream
from rollmux.trainer.parts import Parts
from rollmux.trainer.rollout import Rolled
from rollmux.trainer.seeds import derived
from rollmux.trainer.settings import JobFile
from rollmux.trainer.tasks import MadeTask
from rollmux.trainer.warmup import warm_up

SYNC, PROMPTS, RESPONSES, BOTH = "sync", "tail, prompts race", "tail, responses race", "tail, both race"
# Rewards that are asked for here and now come with the ends of responses: `rewarded` decides like `generated`.
MODES: Mapping[str, Mapping[str, Any]] = {
    SYNC: {"mode": "sync"},
    PROMPTS: {"mode": "tail", "race": "none"},
    RESPONSES: {"mode": "tail", "race": "generated", "eta_prompts": 1.0},
    BOTH: {"mode": "tail", "race": "generated"},
}

Weights = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A run to be made: all that decides what comes out of it."""

    job: JobFile
    mode: str
    asked_every: int
    asked: int

    @property
    def key(self) -> str:
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def of_mode(self) -> JobFile:
        """The job as this mode has it."""
        return replace(self.job, batching=replace(self.job.batching, **MODES[self.mode]))


@dataclass(frozen=True, slots=True)
class Step:
    """What one step came to, and its seconds by the clock and by the processor."""

    kind: str
    reward: float
    responses: int
    trained_tokens: int
    generated_tokens: int
    sweeps: int  # a sweep over the engines makes a token of every response that runs
    rollout_s: float
    train_s: float
    rollout_cpu_s: float
    train_cpu_s: float


@dataclass(frozen=True, slots=True)
class Worth:
    """What the policy's answers are worth after so many steps."""

    steps: int
    reward: float
    right: float
    length: float


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run. `lengths` is the batcher's own report of bias; `times_trained` how many prompts were how often."""

    mode: str
    seed: int
    steps: tuple[Step, ...]
    worth: tuple[Worth, ...]
    lengths: Mapping[str, Any]
    times_trained: Mapping[str, int]
    waiting: int
    wall_s: float
    other_cpu_cores: float
    git: Mapping[str, Any] | None

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> "Run":
        steps = tuple(Step(**each) for each in data.pop("steps"))
        worth = tuple(Worth(**each) for each in data.pop("worth"))
        return cls(steps=steps, worth=worth, **data)


def warmed(job: JobFile) -> Weights:
    """What reinforcement begins with."""
    with closing(Parts(job)) as parts:
        warm_up(parts.model, parts.task, job.warmup, job.seed, lambda step, loss: None)
        return {name: weight.clone() for name, weight in parts.model.state_dict().items()}


def train(case: Case, weights: Weights) -> Run:
    """Makes the run."""
    start_s, others_start_s = perf_counter(), others_cpu_s()
    git = git_state()
    steps, trained = [], Counter[int]()
    with closing(Parts(case.of_mode)) as parts:
        parts.model.load_state_dict(weights)
        parts.restore(parts.state())  # the engines take over the weights
        worth = [asked(parts, case, 0)]
        for number in range(1, case.job.steps + 1):
            step, rolled = _step(parts)
            steps.append(step)
            trained.update(int(each.prompt.id) for each in rolled.batch.prompts)
            if number % case.asked_every == 0 or number == case.job.steps:
                worth.append(asked(parts, case, number))
        batcher, often = parts.rollout.batcher, Counter(trained[number] for number in range(len(parts.task)))
    wall_s = perf_counter() - start_s
    return Run(
        mode=case.mode,
        seed=case.job.seed,
        steps=tuple(steps),
        worth=tuple(worth),
        lengths=asdict(batcher.bias.report().overall),
        times_trained={str(times): often[times] for times in sorted(often)},
        waiting=batcher.queued,
        wall_s=wall_s,
        other_cpu_cores=max(0.0, others_cpu_s() - others_start_s) / wall_s,
        git=git,
    )


def _step(parts: Parts) -> tuple[Step, Rolled]:
    """Rolls out, trains and takes over the weights, as `rollmux train` does."""
    sweeps = 0

    def swept(over: int, launched: int) -> None:
        nonlocal sweeps
        sweeps += 1

    began = perf_counter(), process_time()
    rolled = parts.rollout.round(swept)
    between = perf_counter(), process_time()
    parts.learner.update(rolled.samples)
    parts.rollout.update(parts.learner.version)
    ended = perf_counter(), process_time()
    step = Step(
        kind=rolled.batch.kind.value,
        reward=fmean(sample.reward for sample in rolled.samples),
        responses=len(rolled.samples),
        trained_tokens=sum(len(sample.tokens) for sample in rolled.samples),
        generated_tokens=rolled.generated_tokens,
        sweeps=sweeps,
        rollout_s=between[0] - began[0],
        train_s=ended[0] - between[0],
        rollout_cpu_s=between[1] - began[1],
        train_cpu_s=ended[1] - between[1],
    )
    return step, rolled


def asked(parts: Parts, case: Case, steps: int) -> Worth:
    """The task's first prompts, each answered once by the present policy."""
    task, sampling = parts.task, case.job.sampling
    assert isinstance(task, MadeTask)
    engine, numbers = parts.rollout.engines[0], range(min(case.asked, len(task)))
    for number in numbers:
        prompt, seed = task.tokenizer.encode(task.prompt(number)), derived(case.job.seed, "asked", number)
        engine.submit(
            GenerationRequest(
                str(number), prompt, sampling.max_tokens, sampling.temperature, sampling.top_p, seed,
                task.tokenizer.end_tokens,
            )
        )  # fmt: skip
    answers = {int(event.id): event.response.tokens for event in stream(engine) if isinstance(event, Ended)}
    rewards = [task.reward(number, task.tokenizer.decode(answers[number])) for number in numbers]
    return Worth(steps, fmean(rewards), fmean(reward == 1.0 for reward in rewards), fmean(map(len, answers.values())))


# -- runs that are kept ------------------------------------------------------------------------------------------------


def kept(path: Path) -> dict[str, Run]:
    """The runs of earlier calls, by key. Half a line is a run that was not kept: it goes, or the next would join it."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        truncate(path, len(whole))
    read = [json.loads(line) for line in whole.splitlines()]
    return {each["key"]: Run.from_plain(each["run"]) for each in read}


def keep(path: Path, case: Case, run: Run) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": case.key, "run": asdict(run)}, allow_nan=False) + "\n")


def missing(cases: Sequence[Case], known: Mapping[str, Run]) -> Iterator[tuple[Case, Weights]]:
    """The runs that are still to be made, each with its seed's weights, which are warmed up once."""
    seed, weights = -1, dict[str, Any]()
    for case in cases:
        if case.key not in known:
            if case.job.seed != seed:
                seed, weights = case.job.seed, dict(warmed(case.job))
            yield case, weights

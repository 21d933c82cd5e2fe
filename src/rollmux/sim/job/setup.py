"""A job as the job simulator sees it: model, devices, data, rewards, and the costs of training and syncing."""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from random import Random

from rollmux.packer.prompt import Prompt
from rollmux.sim.job.lengths import LengthQuantiles
from rollmux.sim.job.machine import Device, Model
from rollmux.sim.job.rewards import Program, drawn_program, reference_s


class Reward(Enum):
    """How a response gets its score."""

    RULE = "rule"
    SANDBOX = "sandbox"
    JUDGE = "judge"


@dataclass(frozen=True)
class Domain:
    """Prompts of one kind: how many are in a step, how many there are, how long responses get, and what scores them."""

    name: str
    quota: int
    size: int
    lengths: LengthQuantiles
    reward: Reward


# A response that is cut off at the cap holds no program that could run.
CUT_OFF = Program(0.05, correct=False)


@dataclass(frozen=True, slots=True)
class Scoring:
    """The costs of rewards: rules one by one, tests on a number of workers, a judge on each server."""

    rule_s: float = 0.018
    sandbox_workers: int = 128
    right: float = 0.5  # the share of right programs among those that end
    judge_s: float = 0.1  # a server's time for a response
    judge_load_s: float = 6.0  # to put the judge in the place of the actor, if they take turns


@dataclass(frozen=True, slots=True)
class Training:
    """The costs of an update: arithmetic at a share of the peak, and a time that does not depend on the batch."""

    reached: float
    fixed_s: float
    # A token takes arithmetic worth ten times the parameters: six to learn, two each for the log-probabilities of the
    # old policy and the reference.
    infer_part: float = 0.4


@dataclass(frozen=True)
class Setup:
    """One job on its machines."""

    name: str
    model: Model
    device: Device
    gpus: int
    tp: int
    cap: int
    domains: tuple[Domain, ...]
    scoring: Scoring
    training: Training
    sync_s: float
    wake_s: float  # from the start of a round to its first token: the engine's weights, graphs and caches
    prompts: int = 128
    responses: int = 8
    prompt_tokens: int = 300
    slots: int = 256

    @property
    def servers(self) -> int:
        return max(1, self.gpus // self.device.per_server)

    @property
    def quotas(self) -> dict[str, int]:
        return {domain.name: domain.quota for domain in self.domains}

    @cached_property
    def by_name(self) -> dict[str, Domain]:
        return {domain.name: domain for domain in self.domains}

    @property
    def train_token_s(self) -> float:
        """The time that all devices together take for one token of the batch."""
        return 10 * self.model.parameters / (self.gpus * self.device.flops * self.training.reached)

    def only(self, *names: str) -> "Setup":
        """The same job on some of its domains, with equal quotas."""
        some = [domain for domain in self.domains if domain.name in names]
        share, rest = divmod(self.prompts, len(some))
        return replace(self, domains=tuple(replace(d, quota=share + (i < rest)) for i, d in enumerate(some)))


@dataclass(frozen=True, slots=True)
class Task:
    """The nature of a prompt, as normal numbers: how long its responses are, how long its tests run, and how easily its
    programs hang."""

    hardness: float
    heaviness: float
    looseness: float


class Source:
    """The data: each epoch is a new order of all prompts. The nature of a prompt never changes."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup, self.seed = setup, seed
        self._epoch = {domain.name: -1 for domain in setup.domains}
        self._left: dict[str, list[int]] = {domain.name: [] for domain in setup.domains}
        self._tasks: dict[tuple[str, object], Task] = {}
        self._turn = -1
        self._attempts: dict[Prompt, int] = {}
        self._drawn: dict[Prompt, tuple[Random, list[tuple[int, Program]]]] = {}

    def draw(self, name: str) -> Prompt:
        left = self._left[name]
        if not left:
            self._epoch[name] += 1
            left.extend(range(self.setup.by_name[name].size))
            Random(f"{self.seed}/{name}/{self._epoch[name]}").shuffle(left)
        return Prompt(self._epoch[name], f"{name}-{left.pop()}", name)

    def task(self, prompt: Prompt) -> Task:
        key = prompt.domain, prompt.id
        task = self._tasks.get(key)
        if task is None:
            rng = Random(f"{self.seed}/{prompt.id}")
            task = self._tasks[key] = Task(rng.gauss(0, 1), rng.gauss(0, 1), rng.gauss(0, 1))
        return task

    def reference_s(self, prompt: Prompt) -> float:
        """How long the tests run on the prompt's own solution."""
        return reference_s(self.task(prompt).heaviness)

    def response(self, prompt: Prompt, sample: int, turn: int) -> tuple[int, Program]:
        """The length of one response in the round `turn`, and the program in it.

        Both depend on how often the prompt was run before, and not on the round: every system meets the same ones.
        """
        if turn != self._turn:
            self._turn, self._drawn = turn, {}
        known = self._drawn.get(prompt)
        if known is None:
            attempt = self._attempts[prompt] = self._attempts.get(prompt, -1) + 1
            known = self._drawn[prompt] = (Random(f"{self.seed}/{prompt.epoch}/{prompt.id}/{attempt}"), [])
        rng, responses = known
        while len(responses) <= sample:
            responses.append(self._next(prompt, rng))
        return responses[sample]

    def _next(self, prompt: Prompt, rng: Random) -> tuple[int, Program]:
        setup, task = self.setup, self.task(prompt)
        tokens = setup.by_name[prompt.domain].lengths.drawn(task.hardness, rng, setup.cap)
        program = drawn_program(task.heaviness, task.looseness, rng, setup.scoring.right)
        return tokens, CUT_OFF if tokens == setup.cap else program

"""The settings of a training run that a job file may have, with the limits of each. Plain values: no torch.

Each field carries what the reader of files needs (`Bounds`), so a new setting is one line here and nothing elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollmux import packer
from rollmux.packer import Race
from rollmux.packer.batching import MAX_FACTOR

LEAST_CLIP = 1e-3


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a field accepts: a number from `low` to `high`, one of `choices`; without these a text, or values by name.

    A name or a path must be short and printable. Prose is for a model, and may have several lines and any characters.
    """

    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()
    remedy: str = ""
    is_prose: bool = False


def _number(default: float, low: float, high: float, remedy: str) -> Any:
    """A field with a number, which must be whole if the default is."""
    return field(default=default, metadata={"bounds": Bounds(low, high, (), remedy)})


def _choice(default: str, *choices: str) -> Any:
    return field(default=default, metadata={"bounds": Bounds(choices=choices, remedy="choose one of them")})


def _text(default: str, remedy: str) -> Any:
    return field(default=default, metadata={"bounds": Bounds(remedy=remedy)})


def _prose(default: str, remedy: str) -> Any:
    return field(default=default, metadata={"bounds": Bounds(remedy=remedy, is_prose=True)})


def _values(remedy: str) -> Any:
    """A field with values by name, of any kind that JSON has."""
    return field(default_factory=dict, metadata={"bounds": Bounds(remedy=remedy)})


@dataclass(frozen=True, slots=True)
class Model:
    """A Llama from scratch of this shape; or, if there is a `path`, the model in that folder, as Hugging Face saves it.

    With float64 a run leaves the same bytes however many workers it has and wherever its responses move.
    """

    path: str = _text("", "name a folder that `save_pretrained` wrote, or leave it out for a model from scratch")
    hidden: int = _number(128, 8, 16384, "give the width, a multiple of the heads")
    layers: int = _number(4, 1, 256, "give the layers")
    heads: int = _number(4, 1, 256, "give the attention heads")
    dtype: str = _choice("default", "default", "float32", "bfloat16", "float64")
    device: str = _choice("cpu", "cpu", "cuda")  # where the model computes; beside a controller only in phases


@dataclass(frozen=True, slots=True)
class Task:
    """The task to learn. The numbers shape the operands of `arithmetic`; in `counting` where to begin and how far to
    go; in `guessing` the number is from 1 to `largest` at most.

    `questions` asks those in the file at `path`, behind the text `system` if there is one (docs/questions.md).
    `template` has values for the model's chat template: prompts and replies are written with them.
    """

    name: str = _choice("arithmetic", "arithmetic", "counting", "guessing", "questions")
    path: str = _text("", "name the file with the questions")
    system: str = _prose("", "say what the model is told before each question")
    template: Mapping[str, Any] = _values("give values by name, as in {enable_thinking: false}, and dates in quotes")
    prompts: int = _number(1000, 1, 10**7, "give the prompts of an epoch")
    largest: int = _number(9, 2, 10**6, "give the largest first factor, first number, or number to guess")
    median: float = _number(
        3.0,
        1.0,
        1e4,
        "give the median of the second factor, or of the numbers counted: half of the answers are shorter",
    )
    spread: float = _number(0.8, 0.0, 3.0, "give the spread of its logarithm: 0.8 is a long tail")
    longest: int = _number(24, 1, 10**4, "give the largest second factor, or the most numbers")
    careless: float = _number(
        0.8, 0.0, 1.0, "give the share of the warm-up's answers that stop too early, or guess wildly"
    )


@dataclass(frozen=True, slots=True)
class Warmup:
    """Supervised steps before reinforcement begins: a model from scratch must first learn to answer at all."""

    steps: int = _number(0, 0, 10**6, "0 goes without")
    batch: int = _number(32, 1, 10**5, "give the solutions of a step")
    rate: float = _number(2e-3, 0.0, 10.0, "give the learning rate")


@dataclass(frozen=True, slots=True)
class Batching:
    """A step's batch. `sync` waits for all responses; `tail` launches more prompts and takes the first to be done.

    Without a race of responses prompts are only put off, and no response is left out for being long: training has no
    bias to short ones.
    """

    mode: str = _choice("tail", "tail", "sync")
    prompts: int = _number(16, 1, 10**6, "give the prompts trained in a step")
    responses: int = _number(8, 1, 10**6, "give the responses trained for each prompt")
    eta_prompts: float = _number(1.25, 1.0, MAX_FACTOR, "1 launches no more prompts than are wanted")
    eta_responses: float = _number(1.25, 1.0, MAX_FACTOR, "1 launches no more responses than are wanted")
    race: str = _choice(Race.NONE.value, *(race.value for race in Race))
    max_wait_rounds: int = _number(16, 1, 10**6, "give the rounds that a deferred prompt waits at most")

    @property
    def terms(self) -> packer.Batching:
        """These settings as the batcher has them. `sync` is a race in which nobody can lose."""
        is_sync = self.mode == "sync"
        return packer.Batching(
            prompts=self.prompts,
            responses=self.responses,
            eta_prompts=1.0 if is_sync else self.eta_prompts,
            eta_responses=1.0 if is_sync else self.eta_responses,
            race=Race.NONE if is_sync else Race(self.race),
            max_wait_rounds=self.max_wait_rounds,
        )


@dataclass(frozen=True, slots=True)
class Objective:
    """The objective that an update climbs. `dapo` also replaces prompts whose responses are all worth the same.

    The other settings change parts of the algorithm: by whose `deviation` advantages are divided, over what the `loss`
    is a mean, and how far a token's probability may move. Dr. GRPO is `deviation: none` and `loss: token-mean`.
    """

    algorithm: str = _choice("grpo", "grpo", "dapo", "reinforce")
    deviation: str = _choice("own", "own", "group", "batch", "none")
    loss: str = _choice("own", "own", "sample-mean", "token-mean")
    clip_low: float = _number(0.0, 0.0, 1.0, "0 is the algorithm's own; 0.2 clips ratios below 0.8")
    clip_high: float = _number(0.0, 0.0, 1e3, "0 is the algorithm's own; 0.28 clips ratios above 1.28")


@dataclass(frozen=True, slots=True)
class Rewards:
    """What scores: with `direct` the rollout's own process, between two steps of the engines; with `pool` processes
    beside it.

    `lag` makes a run with a pool repeat itself: a reward is told once responses have drawn that many more tokens, and
    waited for if need be. With 0 rewards count as they come, and speed decides what is put off or replaced.
    """

    scorer: str = _choice("direct", "direct", "pool")
    workers: int = _number(
        0, 0, 100_000, "give the responses that are scored at once; 0 for as many as there are cores"
    )
    lag: int = _number(16, 0, 10**6, "give tokens; 0 tells rewards as they come")
    cap_s: float = _number(30.0, 1e-3, 1e6, "give the processor seconds after which scoring an answer is given up")
    functions: str = _choice("trusted", "trusted", "confined")  # scoring functions may do all, or what code may do
    code_timeout: str = _choice("failure", "failure", "zero")  # a program that was cut off has no reward, or 0
    judge: str = _text("", "name a folder with the model that judges where a question asks for one")
    allow: str = _text("", "name what hostile code may do on a machine that can't prevent it, as in 'disk, network'")

    @property
    def allowed(self) -> tuple[str, ...]:
        """The names in `allow`."""
        return tuple(name.strip() for name in self.allow.split(",") if name.strip())


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are drawn. Log-probabilities are the model's own: only temperature 1 and top_p 1 are on-policy."""

    temperature: float = _number(1.0, 1e-3, 100.0, "1 is the model's own")
    top_p: float = _number(1.0, 1e-6, 1.0, "1 allows all tokens")
    max_tokens: int = _number(200, 1, 10**6, "give the longest response that is let run, all of its turns together")
    max_turns: int = _number(10, 1, 10**4, "give the most turns of a response, where its task answers them")


@dataclass(frozen=True, slots=True)
class Optimiser:
    """The settings of AdamW."""

    rate: float = _number(3e-4, 0.0, 10.0, "give the learning rate")
    beta1: float = _number(0.9, 0.0, 0.9999999, "give a number below 1")
    beta2: float = _number(0.95, 0.0, 0.9999999, "give a number below 1")
    weight_decay: float = _number(0.0, 0.0, 10.0, "0 goes without")
    clip_norm: float = _number(1.0, 1e-9, 1e9, "give the largest norm of a gradient")


@dataclass(frozen=True, slots=True)
class Update:
    """How many processes compute a gradient. With another number of them its sums are rounded otherwise, in the last
    digit.

    `early` is the part of a batch's prompts that replicas may train while others are still drawn. A rollout of several
    workers frees half of them for it, once between 20 % and 50 % of the responses are done and the other workers have
    room. Beside a controller no worker is freed: replicas compute on the job's training nodes, while it keeps them.

    How much is trained early depends on speed, so two runs may differ in the last digit.
    """

    replicas: int = _number(1, 1, 256, "give the processes that share the samples of an update; each wants a core")
    early: float = _number(0.0, 0.0, 1.0, "0 trains nothing before the batch is complete")


@dataclass(frozen=True, slots=True)
class Rollout:
    """The engines, `inside` the job's own process or each in a process `beside` it, and how much each takes on."""

    workers: int = _number(1, 1, 4096, "give the engines that share a round")
    place: str = _choice("inside", "inside", "beside")
    running: int = _number(160, 1, 10**5, "give the responses that an engine runs at once")
    room_tokens: int = _number(32768, 64, 10**12, "give the tokens whose keys and values an engine holds")
    max_length: int = _number(256, 2, 10**7, "give the longest prompt with its response")


@dataclass(frozen=True, slots=True)
class JobFile:
    """All settings of a run. Each `checkpoint_every` steps it leaves a checkpoint to resume from."""

    name: str = _text("train", "give the run a name")
    seed: int = _number(0, 0, 2**63 - 1, "give a whole number")
    steps: int = _number(60, 1, 10**9, "give the updates to be made")
    checkpoint_every: int = _number(1, 1, 10**9, "1 loses nothing")
    model: Model = field(default_factory=Model)
    task: Task = field(default_factory=Task)
    warmup: Warmup = field(default_factory=Warmup)
    batching: Batching = field(default_factory=Batching)
    objective: Objective = field(default_factory=Objective)
    rewards: Rewards = field(default_factory=Rewards)
    sampling: Sampling = field(default_factory=Sampling)
    optimiser: Optimiser = field(default_factory=Optimiser)
    update: Update = field(default_factory=Update)
    rollout: Rollout = field(default_factory=Rollout)

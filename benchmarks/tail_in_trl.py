"""How much a TRL job gains by examples/trl_grpo/tail_batching.py: GRPOTrainer as it is, and with our rounds.

All modes take turns, seed by seed, each from the same warmed-up weights and with the same data. A step's seconds are
TRL's own figure (`step_time`), for the rollout, rewards and the update.
"""

import importlib.util
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from time import perf_counter
from typing import Any

import torch

from benchmarks.figures.goals import Goal, show
from benchmarks.harness import ROOT, arguments, record, table
from rollmux.trainer.job_file import read_job_file
from rollmux.trainer.model import build_model
from rollmux.trainer.settings import JobFile, Model, Sampling, Warmup
from rollmux.trainer.settings import Task as TaskSettings
from rollmux.trainer.tasks import MadeTask, build_task
from rollmux.trainer.tasks.arithmetic import ALPHABET, END
from rollmux.trainer.warmup import warm_up

JOB = ROOT / "examples" / "train" / "long_tail.yaml"
LACKING = "not measured: TRL is not installed (it comes with the extra `trl`)"
GOAL = 1.3  # times as fast as TRL as it is, with nothing but prompts racing


@dataclass(frozen=True, slots=True)
class Mode:
    """`settings` are TRL's; `tail` is what the rounds have, none where TRL draws by itself."""

    settings: Mapping[str, Any]
    tail: Mapping[str, Any] | None = None


# As much as our engine has; by default it takes all memory that there is.
ROOM = {"num_blocks": 1120, "max_batch_tokens": 512, "max_requests_per_batch": 128, "page_size": 32}
ITSELF, CONTINUOUS = "TRL, generate", "TRL, continuous batching"
ENGINE, PROMPTS, RESPONSES = "our engine, no more than wanted", "prompts race", "prompts and responses race"
MODES = {
    ITSELF: Mode({}),
    CONTINUOUS: Mode({"use_transformers_continuous_batching": True, "transformers_continuous_batching_config": ROOM}),
    ENGINE: Mode({}, {"eta_prompts": 1.0}),
    PROMPTS: Mode({}, {"eta_prompts": 1.25}),
    RESPONSES: Mode({}, {"eta_prompts": 1.25, "eta_responses": 1.25}),
}


@dataclass(frozen=True, slots=True)
class Run:
    """Of one mode with one seed, by step."""

    step_s: tuple[float, ...]
    rollout_s: tuple[float, ...]
    lengths: tuple[float, ...]
    rewards: tuple[float, ...]


def run(mode: Mode, job: JobFile, task: MadeTask, weights: Mapping[str, Any], steps: int) -> Run:
    from datasets import Dataset  # noqa: PLC0415  TRL's own take seconds to import
    from transformers import PrinterCallback  # noqa: PLC0415
    from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415

    from examples.trl_grpo.tail_batching import TailBatchedTrainer  # noqa: PLC0415

    torch.manual_seed(job.seed)
    model = new_model(job)
    model.load_state_dict(weights)
    rows = Dataset.from_list([{"prompt": task.prompt(number), "number": number} for number in range(len(task))])

    def reward(completions: list[str], number: list[int], completion_ids: list[list[int]], **_: object) -> list[float]:
        said = ("".join(ALPHABET[token] for token in tokens) for tokens in completion_ids)
        return [task.reward(each, text) for each, text in zip(number, said, strict=True)]

    batching, shared = job.batching, dict(job_settings(job, steps), **mode.settings)
    more: dict[str, Any] = {}
    if mode.tail is not None:
        more = {"tail": mode.tail, "room_tokens": job.rollout.room_tokens}
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=batching.prompts * batching.responses, **shared
        )
        kind = GRPOTrainer if mode.tail is None else TailBatchedTrainer
        trainer = kind(model, reward, args=args, train_dataset=rows, processing_class=tokenizer(), **more)
        rollout_s = timed(trainer, "_generate_single_turn" if mode.tail is None else "roll")
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    told = trainer.state.log_history[:steps]
    found = {name: tuple(each[name] for each in told) for name in ("step_time", "completions/mean_length", "reward")}
    return Run(found["step_time"], tuple(rollout_s), found["completions/mean_length"], found["reward"])


def job_settings(job: JobFile, steps: int) -> dict[str, Any]:
    """Of GRPOConfig, the same for all modes: a round of responses for each optimizer step, on one processor."""
    return {
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "gradient_checkpointing": False,
        "num_generations": job.batching.responses,
        "max_steps": steps,
        "seed": job.seed,
        "max_completion_length": job.sampling.max_tokens,
        "learning_rate": job.optimiser.rate,
        "lr_scheduler_type": "constant",
    }


def new_model(job: JobFile) -> Any:
    """Whose responses end as the task's do."""
    model = build_model(job.model, len(ALPHABET), job.rollout.max_length, job.seed)
    model.config.eos_token_id = model.generation_config.eos_token_id = ALPHABET.index(END)
    model.config.pad_token_id = model.generation_config.pad_token_id = ALPHABET.index(END)
    return model


def tokenizer() -> Any:
    """The task's own, as Transformers has it: each character is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    words = Tokenizer(models.WordLevel({character: token for token, character in enumerate(ALPHABET)}, unk_token=END))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=END, eos_token=END)


def timed(trainer: Any, name: str) -> list[float]:
    """What each call of this method takes, from now on."""
    asked: Callable[..., Any] = getattr(trainer, name)
    took_s = list[float]()

    def call(*args: Any, **more: Any) -> Any:
        began = perf_counter()
        try:
            return asked(*args, **more)
        finally:
            took_s.append(perf_counter() - began)

    setattr(trainer, name, call)
    return took_s


def warmed_up(job: JobFile, task: MadeTask) -> dict[str, Any]:
    model = new_model(job)
    warm_up(model, task, job.warmup, job.seed, lambda step, loss: None)
    return dict(model.state_dict())


def measured(args: Namespace, job: JobFile) -> dict[str, object]:
    names, runs = list(MODES), {name: list[Run]() for name in MODES}
    for place in range(args.seeds):
        seeded = replace(job, seed=args.seed + place)
        task = build_task(seeded.task, seeded.seed)
        assert isinstance(task, MadeTask)
        weights = warmed_up(seeded, task)
        run(MODES[ENGINE], seeded, task, weights, 1)  # what a process does once is nobody's
        turn = place % len(names)
        for name in names[turn:] + names[:turn]:  # who begins changes, for machines get slower and faster
            runs[name].append(run(MODES[name], seeded, task, weights, args.steps))
    rows = [row(name, runs) for name in names]
    table(rows)
    gains = {name: ratio(runs, ITSELF, name) for name in names}
    goals = [Goal("a step of TRL's over one where prompts race", gains[PROMPTS], GOAL, at_most=False)]
    kept = {name: [asdict(each) for each in runs[name]] for name in names}
    return {"rows": rows, "goals": show(goals), "runs": kept}


def ratio(runs: Mapping[str, list[Run]], one: str, other: str) -> float:
    """How many times as long the steps of one mode take as those of another."""
    took_s = {mode: fmean(s for each in runs[mode] for s in each.step_s) for mode in (one, other)}
    return took_s[one] / took_s[other]


def row(name: str, runs: Mapping[str, list[Run]]) -> dict[str, object]:
    mine = runs[name]
    return {
        "mode": name,
        "step s": round(fmean(s for each in mine for s in each.step_s), 3),
        "rollout s": round(fmean(s for each in mine for s in each.rollout_s), 3),
        "times TRL": round(ratio(runs, ITSELF, name), 2),
        "times our engine": round(ratio(runs, ENGINE, name), 2),
        "length": round(fmean(s for each in mine for s in each.lengths), 1),
        "reward": round(fmean(s for each in mine for s in each.rewards), 3),
    }


def main() -> None:
    parser = arguments("tail_in_trl", __doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=20, help="of each run; a cycle of four short rounds and a long one is 5"
    )
    args = parser.parse_args()
    if importlib.util.find_spec("trl") is None:
        print(LACKING)
        return
    torch.set_num_threads(1)
    job = read_job_file(JOB)
    if args.quick:
        args.seeds, args.steps = 1, 5
        job = replace(
            job,
            model=Model(hidden=16, layers=1, heads=2),
            task=TaskSettings(prompts=40, largest=5, median=2, spread=0.5, longest=5),
            warmup=Warmup(steps=5, batch=8, rate=1e-2),
            batching=replace(job.batching, prompts=4, responses=4),
            sampling=Sampling(max_tokens=30),
        )
    record("tail_in_trl", args, lambda: measured(args, job))


if __name__ == "__main__":
    main()

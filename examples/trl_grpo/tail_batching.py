"""TRL's GRPOTrainer with tail batching: more rows are drawn than a step wants, and the first to be done are trained.

TRL's data loader says how many rows are wanted, and the batcher says which. All else is TRL's own: chat templates,
rewards, advantages, losses, logs, checkpoints.
Invariants: each response that a step trains was drawn whole, with the weights of that step; each row is trained once an
epoch, even if the run goes on from a checkpoint, or after a round that broke off; between two rounds the engine is idle
and holds no keys and values.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list, is_peft_model
from datasets import IterableDataset
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from rollmux.client import Mux
from rollmux.packer import Batching, Race, RoundKind, TailBatcher
from rollmux.packer.batching import launches, require_batching
from rollmux.runtime.engine import Engine, Limits, stream
from rollmux.runtime.engine.http import HttpEngine, Server, Settings, Vllm
from rollmux.runtime.engine.slots import slots
from rollmux.runtime.engine.vllm_inside import VllmInside
from rollmux.trainer.data import Data
from rollmux.trainer.rollout import Rolled, Rollout
from rollmux.trainer.sample import Sample
from rollmux.trainer.scoring import Direct
from rollmux.trainer.settings import Sampling
from rollmux.trainer.tasks import Needs

log = logging.getLogger("rollmux")

ROOM_TOKENS = 65_536
RACES = (Race.NONE, Race.GENERATED)  # rewards come when the round is over, too late for a race


class TailBatchedTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL has no types
    """GRPOTrainer with tail batching. `tail` has the arguments of `Batching` other than prompts and responses. Without
    `eta_responses` only rows race, and responses do not.

    `room_tokens` is for our own engine, which draws if TRL has no vLLM. With `mux` a round is a rollout phase, and all
    between two rounds a training phase.
    """

    def __init__(
        self, *args: Any, tail: Mapping[str, Any], room_tokens: int = ROOM_TOKENS, mux: Mux | None = None, **own: Any
    ) -> None:
        race = Race(tail.get("race", Race.GENERATED.value))
        asked = Batching(1, 1, **{"eta_responses": 1.0, **tail, "race": race})
        if race is Race.NONE:
            asked = replace(asked, eta_responses=1.0)  # without a race no response is launched for one
        with _places_for_all(asked):
            super().__init__(*args, **own)
        state = self.accelerator
        self._is_served = bool(self.use_vllm) and self.vllm_mode == "server"  # one process draws for all
        here, of = (0, 1) if self._is_served else (state.process_index, state.num_processes)
        wanted = self.args.generation_batch_size // of
        _require_fitting(self, wanted, asked)
        prompts, responses = wanted // self.num_generations, self.num_generations
        self._batching = require_batching(replace(asked, prompts=prompts, responses=responses))
        self.rows = range(here, len(self.train_dataset), of)  # the rows of this process
        self._seed = self.args.seed + here  # with one seed, equal prompts would get equal responses
        self._drawer = self._new_drawer(room_tokens)
        self.rollout = self._new_rollout()
        self._samples: tuple[Sample, ...] = ()
        self._figures = dict[str, float]()
        # The step under way, its first batch that began a round, and the state before that.
        self._began: tuple[int, int, dict[str, Any]] | None = None
        self._phase: Callable[[str], AbstractContextManager[object]] = nullcontext if mux is None else mux.phase
        self._leased, self._kind = ExitStack(), ""

    @property
    def most(self) -> int:
        """The most responses that are drawn at once."""
        batching = self._batching
        prompts, responses = launches(batching.prompts, batching.eta_prompts), batching.responses
        return prompts * launches(responses, batching.eta_responses)

    @property
    def longest(self) -> int:
        """The most tokens of a prompt and its response together that the engine takes."""
        most = int(self.model.config.get_text_config().max_position_embeddings)
        return (self.args.vllm_max_model_length or most) if self.use_vllm else most

    def _new_drawer(self, room_tokens: int) -> "_Own | _Colocated | _Served":
        if not self.use_vllm:
            return _Own(self, room_tokens)
        return _Served(self) if self._is_served else _Colocated(self)

    def _new_rollout(self) -> Rollout:
        args = self.args
        sampling = Sampling(args.temperature, args.top_p, args.max_completion_length, max_turns=1)
        asked: Any = _Asked(self)
        data, unscored = Data(len(self.rows), self._seed), Direct(lambda *_: 0.0)  # TRL scores what is trained
        batcher = TailBatcher(self._batching)
        return Rollout(self._drawer.engines, batcher, data, asked, unscored, sampling, self.longest, self._seed)

    def row(self, number: int) -> dict[str, Any]:
        return dict(self.train_dataset[self.rows[number]])

    def roll(self) -> Rolled:
        """Plays a round with the model's present weights."""
        self._enter("rollout")
        with self._drawer.awake():
            rolled, self._figures = self._round()
        self._enter("train")
        return rolled

    def _enter(self, kind: str) -> None:
        if kind != self._kind:
            self._kind = ""
            self._leased.close()  # there is nothing to close before the first
            self._leased.enter_context(self._phase(kind))
            self._kind = kind

    def _round(self) -> tuple[Rolled, dict[str, float]]:
        """The result of the round, and its figures for TRL's trackers."""
        found = list[Any]()
        for engine in self.rollout.engines:  # one engine, or none if another process has it
            self.rollout.update(engine.version + 1)
            with _left_idle(engine):
                rolled = self.rollout.round(lambda done, total: None, self._rounds_left)
            found = [rolled, _told(rolled, self.rollout.batcher)]
        if self._is_served:
            found = found or [None, None]
            broadcast_object_list(found)
        rolled, figures = found
        return rolled, figures

    @property
    def _rounds_left(self) -> int | None:
        """The rounds to come, with the next one; None if no run is under way. If steps end amid a round, or early with
        their epoch, it may be too many, but never too few.
        """
        args, steps = self.args, self.state.max_steps - self.state.global_step
        done = 0 if self._began is None else self._step - self._began[1]  # batches of the step under way
        left = steps * args.gradient_accumulation_steps - done
        return ceil(left / (args.steps_per_generation * self.num_iterations)) or None

    def train(self, *args: Any, **more: Any) -> Any:
        self._last_loaded_step = -1  # steps count anew, and vLLM may have an old one's weights
        self._step, self._buffered_inputs = 0, None  # TRL would go on with what an earlier run left of a round
        self._began, self._kind = None, ""
        with self._leased:
            try:
                return super().train(*args, **more)
            except BaseException:  # Ctrl-C, too
                self._put_back()
                raise

    def _put_back(self) -> None:
        """Puts back the rows of which no update was made: if training goes on, they are drawn again."""
        if self._began is not None and self._began[0] == self.state.global_step:
            self._go_on_from(self._began[2])

    # -- where TRL asks ------------------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            if self.is_in_train and not self._kind:  # eval_on_start: it belongs to the rollout that comes after it
                self._enter("rollout")
            return dict(super()._generate_and_score_completions(inputs))
        if self._began is None or self._began[0] != self.state.global_step:
            self._began = self.state.global_step, self._step, self._state()
        rolled = self.roll()
        for name, value in self._figures.items():
            self._log_metric(f"tail_batching/{name}", value)
        trained = sorted(rolled.batch.prompts, key=lambda each: each.prompt.order)
        rows = [self.row(int(each.prompt.id)) for each in trained for _ in each.responses]  # no two share an object
        first = self.accelerator.process_index * len(inputs) if self._is_served else 0
        self._samples = rolled.samples[first : first + len(inputs)]
        return dict(super()._generate_and_score_completions(rows[first : first + len(inputs)]))

    def _generate_single_turn(
        self, prompts: list[list[int]], *asked: Any, **more: Any
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        samples, self._samples = self._samples, ()
        if not samples:  # an evaluation
            completions, logprobs = super()._generate_single_turn(prompts, *asked, **more)
            return completions, logprobs
        if [tuple(prompt) for prompt in prompts] != [sample.prompt for sample in samples]:
            raise ValueError("the prompts are not those that were drawn for: let a row have the same prompt each time")
        drawn_with = [list(sample.logprobs) for sample in samples]
        return [list(sample.tokens) for sample in samples], drawn_with if self.use_vllm else None  # as TRL does it

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        folder.mkdir(parents=True, exist_ok=True)
        self._file(folder).write_text(json.dumps(self._state()), encoding="utf-8")  # first: a whole checkpoint has it
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        if not (file := self._file(Path(checkpoint))).exists():
            log.warning("there is no %s: rows are drawn as if none of them had been trained", file)
            return
        state, own = json.loads(file.read_text(encoding="utf-8")), self._state()
        if any(state[name] != own[name] for name in ("rows", "seed")):
            told = f"{file} is of a process with rows {state['rows']} by seed {state['seed']}"
            remedy = "go on with the same data and seed, and with as many processes"
            raise ValueError(f"{told}, and this one has {self.rows} by seed {self._seed}: {remedy}")
        self._go_on_from(state)

    def _state(self) -> dict[str, Any]:
        """Which rows were drawn, which of them wait, and which come next."""
        batcher, position = self.rollout.batcher.state(), self.rollout.data.position
        return {"rows": str(self.rows), "seed": self._seed, "position": position, "batcher": batcher}

    def _go_on_from(self, state: dict[str, Any]) -> None:
        self._samples = ()
        self.rollout = self._new_rollout()
        self.rollout.batcher = TailBatcher.from_state(self._batching, state["batcher"])
        self.rollout.data.position = state["position"]

    def _file(self, checkpoint: Path) -> Path:
        return checkpoint / f"tail_batching-{self.accelerator.process_index}.json"


@contextmanager
def _places_for_all(batching: Batching) -> Iterator[None]:
    """Gives TRL's vLLM in the process more places. TRL makes them only for the wanted responses: others would wait for
    a place, and the round for them. TRL has no setting for this, so its call that makes the vLLM is changed.
    """
    theirs = grpo_trainer.VLLMGeneration

    def made(*, max_num_seqs: int, **given: Any) -> Any:
        places = launches(max_num_seqs, batching.eta_prompts * batching.eta_responses)
        return theirs(max_num_seqs=places, **given)

    grpo_trainer.VLLMGeneration = made
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = theirs


class _Asked:
    """The task of a rollout: a prompt is the number of a row, and TRL makes the tokens of that row."""

    needs = Needs(())

    def __init__(self, trainer: TailBatchedTrainer) -> None:
        self.tokenizer = self
        self.end_tokens = tuple(trainer.eos_token_ids)
        self.encode = lru_cache(4096)(lambda number: _prompt(trainer, int(number)))

    def prompt(self, number: int) -> str:
        return str(number)

    def decode(self, tokens: tuple[int, ...]) -> str:
        return ""


def _prompt(trainer: TailBatchedTrainer, number: int) -> tuple[int, ...]:
    (tokens,), images, _ = trainer._tokenize_prompts([trainer.row(number)["prompt"]])
    row = f"row {trainer.rows[number]}"
    if images:
        raise ValueError(f"{row} has images, and tail batching goes without them")
    most = trainer.longest - trainer.args.max_completion_length
    if not 0 < len(tokens) <= most:
        told = f"beside max_completion_length it may have 1 to {most}"
        raise ValueError(
            f"the prompt of {row} has {len(tokens)} tokens; {told}: leave such rows out, or shorten either"
        )
    return tuple(tokens)


@contextmanager
def _left_idle(engine: Engine) -> Iterator[None]:
    """If a round breaks off, removes its requests: the next round would meet them, and a vLLM sleep with them."""
    try:
        yield
    except BaseException:
        engine.export()
        for _ in stream(engine):
            pass  # events that were still to be told
        raise


class _Own:
    """Our engine, over the model's own weights. It holds no keys and values while these are trained."""

    def __init__(self, trainer: TailBatchedTrainer, room_tokens: int) -> None:
        limits = Limits(room_tokens, trainer.most, trainer.longest)
        self.engines: list[Engine] = [slots(trainer.model, limits)]
        self.engines[0].suspend()

    @contextmanager
    def awake(self) -> Iterator[None]:
        self.engines[0].resume()
        try:
            yield
        finally:
            self.engines[0].suspend()


class _Colocated:
    """TRL's vLLM in this process. It sleeps, wakes and gets its weights in TRL's way."""

    def __init__(self, trainer: TailBatchedTrainer) -> None:
        self._trainer, self._vllm = trainer, trainer.vllm_generation
        if self._vllm.enable_sleep_mode:
            self._vllm.llm.wake_up()
        sampled = {**_sampled(trainer.args), **(trainer.args.generation_kwargs or {})}
        self.engines: list[Engine] = [VllmInside(self._vllm.llm, sampling=sampled, as_drawn=True)]
        self._sleep()

    @contextmanager
    def awake(self) -> Iterator[None]:
        _sync(self._trainer, self._vllm._llm_weights_sleeping)
        if self._vllm.enable_sleep_mode:
            self._vllm.llm.wake_up(tags=["kv_cache"])
        try:
            yield
        finally:
            self._sleep()

    def _sleep(self) -> None:
        if self._vllm.enable_sleep_mode:
            self._vllm.llm.sleep(level=2)
            self._vllm._llm_weights_sleeping = True


class _Served:
    """The vLLM server that TRL's settings name; only the main process speaks to it."""

    def __init__(self, trainer: TailBatchedTrainer) -> None:
        self._trainer, self.engines = trainer, list[Engine]()
        if trainer.accelerator.is_main_process:
            settings = Settings(trainer.longest)
            url = trainer.vllm_generation.vllm_client.base_url
            self.engines.append(HttpEngine(Server(url), Vllm(), settings))

    @contextmanager
    def awake(self) -> Iterator[None]:
        _sync(self._trainer, has_none=False)
        yield


def _sync(trainer: TailBatchedTrainer, has_none: bool) -> None:
    """Gives vLLM the present weights, unless it has them."""
    if has_none or trainer.state.global_step != trainer._last_loaded_step:
        trainer.vllm_generation.sync_weights()
        trainer._last_loaded_step = trainer.state.global_step


def _sampled(args: GRPOConfig) -> dict[str, Any]:
    """The sampling settings other than temperature and top_p that are not at their defaults."""
    usual = {"top_k": 0, "min_p": None, "repetition_penalty": 1.0}
    return {name: value for name, none in usual.items() if (value := getattr(args, name)) != none}


def _told(rolled: Rolled, batcher: TailBatcher) -> dict[str, float]:
    batch, trained = rolled.batch, sum(sample.drawn for sample in rolled.samples)
    return {
        "long": float(batch.kind is RoundKind.LONG),
        "deferred": float(len(batch.deferred)),
        "waiting": float(batcher.queued),
        "aborted": float(batch.aborted),
        "wasted_share": 1 - trained / rolled.generated_tokens,
    }


def _require_fitting(trainer: TailBatchedTrainer, wanted: int, batching: Batching) -> None:
    """Refuses settings that tail batching would not follow."""
    args, data = trainer.args, trainer.train_dataset
    shards = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    is_colocated, alone = args.use_vllm and args.vllm_mode == "colocate", "without use_vllm in this process"
    tuned, race = is_peft_model(trainer.model) or args.cast_lm_head_to_fp32, batching.race
    refused = {
        "a stream of rows (they are asked for by number)": isinstance(data, IterableDataset),
        "images": any(name in (data.column_names or ()) for name in ("image", "images")),
        "tools, environments and rollout_func": trainer.tools or trainer.environment_factories or trainer.rollout_func,
        "use_transformers_continuous_batching": args.use_transformers_continuous_batching,
        "vllm_structured_outputs_regex": args.vllm_structured_outputs_regex,
        "remove_unused_columns (rewards may want them)": args.remove_unused_columns,
        "shuffle_dataset=False (rows are drawn in an order of its own)": not args.shuffle_dataset,
        "max_completion_length=None": args.max_completion_length is None,
        "quotas (rows are of one kind)": batching.quotas,
        f"race {race.value!r} (it is one of {', '.join(each.value for each in RACES)})": race not in RACES,
        f"top_k, min_p, repetition_penalty and generation_kwargs {alone}": (
            not is_colocated and (_sampled(args) or args.generation_kwargs)
        ),
        "parameters in shards without use_vllm": shards and not args.use_vllm,
        "PEFT and cast_lm_head_to_fp32 without use_vllm": tuned and not args.use_vllm,
        f"groups that lie in two processes ({wanted} responses each)": wanted % trainer.num_generations,
    }
    found = [what for what, is_so in refused.items() if is_so]
    if found:
        raise ValueError(f"tail batching goes without {'; '.join(found)}")

"""The parts of a run, which begin new or from a checkpoint.

Invariant: `state` holds all that the next step depends on: a run that restores it goes on exactly as this one would.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

import torch

from rollmux.checks import Checks
from rollmux.packer import Keep, Response, StreamPolicy, StreamSettings, TailBatcher
from rollmux.runtime.engine import Engine, Limits
from rollmux.runtime.engine.beside import EngineBeside
from rollmux.runtime.engine.slots import slots
from rollmux.trainer import settings as said
from rollmux.trainer.data import Data
from rollmux.trainer.early import Early
from rollmux.trainer.learner import Learner
from rollmux.trainer.model import build_model, share
from rollmux.trainer.pooled import open_pooled
from rollmux.trainer.ranks import Ranks
from rollmux.trainer.rollout import Rollout
from rollmux.trainer.scoring import Direct, Scorer
from rollmux.trainer.tasks import MadeTask, Pretrained, Task, build_task
from rollmux.trainer.update import Baseline, Loss, Objective

PAGE = 32  # tokens: engines hold whole pages, so the room is rounded up to hold a whole request


class Parts:
    """The parts that a job file describes. `seats()` tells for which workers the rollout has nodes now.

    `leased`: the job has its nodes only in phases, so its engines hold nothing before the first `load`. Otherwise it
    always has them, and training that begins early uses nodes of the rollout, which frees some of its workers.
    `ranks` is called with the model and gives the job's other processes, which then have the engines. It reads the
    weights while they are `still`.
    """

    learner: Learner

    def __init__(
        self,
        job: said.JobFile,
        seats: Callable[[], Collection[int]] | None = None,
        leased: bool = False,
        ranks: Callable[..., Ranks] | None = None,
    ) -> None:
        self._job, self._leased = job, leased
        self._seats = seats or (lambda: range(job.rollout.workers))
        self.task = build_task(job.task, job.seed, job.model.path)
        self.model = model_of(job, self.task)
        climbed = objective(job.objective, job.batching.responses)
        self.ranks = ranks(self.model, still=self._still) if ranks is not None else None
        shared = self.ranks.shared(climbed) if self.ranks is not None else None
        self.learner = Learner(
            self.model, climbed, job.optimiser, replicas=job.update.replicas, shared=shared, device=job.model.device
        )
        if not leased:
            self.learner.load()
        self.rollout = self._rollout(TailBatcher(job.batching.terms, _keep(job)), 0, {}, ())

    def _rollout(self, batcher: TailBatcher, position: int, rewards: dict[str, Any], lengths: Sequence[int]) -> Rollout:
        """A rollout with new engines over the present weights."""
        job, task = self._job, self.task
        data = Data(len(task), job.seed, position)
        engines = [self._engine(number) for number in range(job.rollout.workers)]
        scorer = scorer_of(job, task, rewards)
        most = min(job.rollout.max_length, self.model.config.max_position_embeddings)
        made = Rollout(engines, batcher, data, task, scorer, job.sampling, most, job.seed, self._early(), lengths)
        if self._leased:
            made.suspend()
        return made

    def _still(self) -> AbstractContextManager[None]:
        return self.learner.berth.still()

    def _early(self) -> Early | None:
        job, batching = self._job, self._job.batching
        most = ceil(job.update.early * batching.prompts)
        frees = not self._leased and job.rollout.workers > 1
        policy = StreamPolicy(StreamSettings(job.sampling.max_tokens)) if frees else None
        responses = batching.prompts * batching.responses
        return Early(self.learner, most, responses, policy, job.rollout.room_tokens) if most else None

    def _engine(self, number: int) -> Engine:
        version = self.learner.version
        if self.ranks is not None:
            return self.ranks.engine(number, version)
        return engine_of(self._job, self.model, version, self._job.rollout.workers)

    def sync(self) -> None:
        """Gives the learner's weights to the engines."""
        if self.ranks is not None:
            self.ranks.land(self.learner.version)
        self.rollout.update(self.learner.version)

    def state(self) -> dict[str, Any]:
        """The content of a checkpoint."""
        return {
            "learner": self.learner.state(),
            "batcher": self.rollout.batcher.state(),
            "position": self.rollout.data.position,
            "lengths": self.rollout.lengths,
            "rewards": self.rollout.scorer.state(),
            "random": torch.get_rng_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over a checkpoint's state, and drops whatever was under way."""
        self.learner.restore(state["learner"])
        if self.ranks is not None:
            self.ranks.forget()
        self.rollout.close()
        batcher = TailBatcher.from_state(self._job.batching.terms, state["batcher"], _keep(self._job))
        self.rollout = self._rollout(batcher, state["position"], state["rewards"], state.get("lengths", ()))
        torch.set_rng_state(state["random"])

    def following(self, kind: str, step: int) -> AbstractContextManager[Callable[[int], None]]:
        """The job's other processes take part in this phase until its work is over: then call the function it gives."""
        return nullcontext(lambda epoch: None) if self.ranks is None else self.ranks.following(kind, step)

    def done(self) -> None:
        """The job is done: tells the other processes, which need do nothing more."""
        if self.ranks is not None:
            self.ranks.say_bye()

    def close(self) -> None:
        """Ends the processes that were started beside this one. Harmless the second time."""
        with ExitStack() as ends:
            if self.ranks is not None:
                ends.callback(self.ranks.close)
            ends.callback(self.learner.close)
            ends.callback(self.rollout.close)

    # -- the state of the rollout phase: moved onto its nodes and off them ---------------------------------------------

    def load(self) -> None:
        self.rollout.share(self._seats())

    def offload(self) -> None:
        self.rollout.suspend()

    def break_off(self) -> None:
        """The lease is lost: stops waiting for engines in other processes, which may never have heard of this lease."""
        if self.ranks is not None:
            self.ranks.break_off()


def model_of(job: said.JobFile, task: Task) -> Any:
    """The model as it is before the first step. If a task's tokens are its own characters, a model from a folder must
    have exactly these tokens."""
    tokenizer = task.tokenizer
    model = build_model(job.model, tokenizer.vocabulary, job.rollout.max_length, job.seed)
    if not isinstance(tokenizer, Pretrained) and model.config.vocab_size != tokenizer.vocabulary:
        limit = f"a model of the {tokenizer.vocabulary} tokens of {job.task.name}"
        remedy = f"it has {model.config.vocab_size}: leave it out for one from scratch, or name a task put in words"
        raise Checks("job").refusal("model.path", job.model.path, limit, remedy)
    if job.rollout.place == "beside":
        share(model)
    return model


def engine_of(job: said.JobFile, model: Any, version: int, beside: int = 1) -> Engine:
    """An engine over the model, whose weights are of this version; one of `beside` engines on this machine."""
    rollout = job.rollout
    room = ceil(rollout.room_tokens / PAGE) * PAGE
    limits = Limits(room, rollout.running, rollout.max_length, page_tokens=PAGE)
    if rollout.place == "beside":
        threads = max(1, torch.get_num_threads() // beside)
        return EngineBeside(partial(slots, model, limits), version, threads)
    return slots(model, limits, version, packed=None if job.model.device == "cpu" else False)


def scorer_of(job: said.JobFile, task: Task, state: dict[str, Any]) -> Scorer:
    """The scorer of the task's answers, with the state that a checkpoint has of it."""
    if job.rewards.scorer == "direct" and isinstance(task, MadeTask):
        return Direct(task.reward, task.reply)
    return open_pooled(job.rewards, task, state)


def objective(settings: said.Objective, responses: int) -> Objective:
    """The algorithm's objective, with the job file's changes. InvalidSpec if the two contradict each other."""
    match settings.algorithm:
        case "dapo":
            own = Objective.dapo(responses)
        case "reinforce":
            own = Objective.reinforce()
        case _:
            own = Objective.grpo(responses)
    changed: dict[str, Any] = {}
    if settings.deviation != "own":
        changed |= {"group_std": settings.deviation == "group", "whiten": settings.deviation == "batch"}
    if changed.get("whiten") and own.baseline is Baseline.BATCH_MEAN:
        changed["baseline"] = Baseline.NONE  # whitening takes the batch's mean itself
    if settings.loss != "own":
        changed["loss"] = Loss(settings.loss)
    changed |= {name: clip for name in ("clip_low", "clip_high") if (clip := getattr(settings, name))}
    return replace(own, **changed)


def _keep(job: said.JobFile) -> Keep | None:
    """The test of which prompts are worth training: with DAPO those whose rewards differ; None keeps all."""
    return _differ if job.objective.algorithm == "dapo" else None


def _differ(responses: tuple[Response, ...]) -> bool:
    rewards = [each.reward for each in responses]
    return min(rewards) < max(rewards)

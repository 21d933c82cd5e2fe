"""A training job from top to bottom: rollout, train, sync, and a checkpoint after each step.

Invariants: step k is rolled out and trained with version k of the weights; a run that was killed at any moment and is
resumed trains exactly what it would have; without a controller phases wait for nothing.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from safetensors import SafetensorError

from rollmux.checks import Checks
from rollmux.client import LeaseLost, Mux, Phase
from rollmux.runtime.rewards import Kind
from rollmux.system import took_lock
from rollmux.trainer.checkpoints import Checkpoints
from rollmux.trainer.device import berth_of, check_device
from rollmux.trainer.errors import CheckpointRefused, RunExists
from rollmux.trainer.job_file import MODEL, SETTINGS, written_job
from rollmux.trainer.metrics import METRICS, Metrics, Tracker, record, write_anew
from rollmux.trainer.model import export_model
from rollmux.trainer.parts import Parts, engine_of, model_of, objective, scorer_of
from rollmux.trainer.pooled import judge_digest
from rollmux.trainer.prompts import looked_through
from rollmux.trainer.ranks import Ranks, Roles, follow
from rollmux.trainer.rollout import Rolled
from rollmux.trainer.seats import Seats
from rollmux.trainer.settings import JobFile
from rollmux.trainer.summary import SUMMARY, summary, write_summary
from rollmux.trainer.tasks import Pretrained, build_task
from rollmux.trainer.update import Stats
from rollmux.trainer.warmup import warm_up

log = logging.getLogger("rollmux")

# What may change between a run and its continuation: no update depends on it.
FREE = ("name", "steps", "checkpoint_every")
CHECKPOINTS, LOCK = "checkpoints", "lock"
# Beside a controller an attempt may start while the process of the one before, or its node's lock on a shared file
# system, is still there: NFS gives up the locks of a silent node after 90 s.
LOCK_PATIENCE_S, LOCK_POLL_S = 150.0, 0.2

Result = TypeVar("Result")
WarmedUp = Callable[[int, float], None]  # the number of a supervised step, and its loss


def train(
    job: JobFile,
    folder: Path,
    mux: Mux,
    resume: bool = False,
    trackers: Sequence[Tracker] = (),
    warmed_up: WarmedUp = lambda step, loss: None,
) -> dict[str, Any] | None:
    """Runs the job to its last step, and returns its summary; everything that it leaves behind is in the folder.

    With `resume` it goes on with the run in the folder, if there is one; without, it refuses a folder that holds a run.
    In a job that spans nodes one process leads and does this; the others follow it, and return nothing.
    """
    _require_fitting(job, mux)
    roles = Roles.of(job, mux)
    folder.mkdir(parents=True, exist_ok=True)
    if not roles.leads:
        model = model_of(job, build_task(job.task, job.seed, job.model.path))
        berth = berth_of(job.model.device, "model", lambda: model, read_only=True)
        climbed = objective(job.objective, job.batching.responses)
        follow(mux, folder, roles, model, berth, partial(engine_of, job), climbed)
        return None
    with _alone(folder, LOCK_PATIENCE_S if mux.attached else 0.0):
        run = _Run(job, folder, mux, roles, trackers, warmed_up)
        with closing(run.parts):
            first = run.begin(resume)
            write_anew(folder / SETTINGS, written_job(job).encode())
            for step in range(first, job.steps):
                run.step(step)
            run.parts.done()
        return run.leave_behind()


def look_through(job: JobFile) -> None:
    """Refuses what `train` refuses before anything is computed, except for the state of the run's folder."""
    checks = Checks("job")
    check_device(checks, job.model.device, False)
    checks.require()
    task = build_task(job.task, job.seed, job.model.path)
    looked_through(job, task, model_of(job, task))
    scorer_of(job, task, {}).close()
    if Kind.JUDGE in task.needs.kinds:
        judge_digest(Path(job.rewards.judge))


class _Run:
    """The run's parts, and the files that keep their work."""

    def __init__(
        self, job: JobFile, folder: Path, mux: Mux, roles: Roles, trackers: Sequence[Tracker], warmed_up: WarmedUp
    ) -> None:
        self.job, self.mux, self._folder, self._warmed_up = job, mux, folder, warmed_up
        # A job that roams has all of its workers on whichever node it holds.
        self._seats = Seats(job.rollout.workers, () if mux.roams else mux.rollout_nodes)
        self._under_way: Phase | None = None
        self._is_new = True  # nothing has changed the parts yet
        ranks = partial(Ranks, mux.kin, folder, roles.followers, replicas=roles.replicas, lost=self._is_lost)
        self.parts = Parts(job, self._present, leased=mux.attached, ranks=ranks if roles.followers else None)
        if self.parts.ranks is not None:
            mux.runtime_hook("lost")(self.parts.ranks.break_off)
        if mux.attached:
            self.parts.learner.lease(mux.drain_s)
        if self._seats.can_move:
            mux.runtime_hook("shrink")(lambda keep, free: self._share(keep))
            mux.runtime_hook("extend")(lambda nodes, added: self._share(nodes))
        self.metrics = Metrics(folder, trackers)
        self.checkpoints = Checkpoints(folder / CHECKPOINTS)
        self._fixed = {name: value for name, value in asdict(job).items() if name not in FREE}

    def _look_through(self) -> None:
        """Records the digests of files beside the settings: their content decides what is trained, too."""
        task = self.parts.task
        self._fixed["task"]["prompts' content"] = looked_through(self.job, task, self.parts.model)
        if isinstance(task.tokenizer, Pretrained) and (end := task.tokenizer.other_end):
            told = f"the model's chat template ends an answer with {end!r}, which ends no response"
            remedy = "name its token in generation_config.json (`eos_token_id`)"
            log.warning("%s: responses go on behind it; %s", told, remedy)
        if task.digest:
            self._fixed["task"]["path's content"] = task.digest
        if Kind.JUDGE in task.needs.kinds:
            self._fixed["rewards"]["judge's content"] = judge_digest(Path(self.job.rewards.judge))

    def begin(self, resume: bool) -> int:
        """Prepares the run. Returns its first step: the one after the controller's last, or the newest checkpoint's."""
        self._look_through()
        known = self.checkpoints.steps()
        if known and not resume:
            raise RunExists("the folder holds a run: continue it with --resume, or name another --out")
        step = self.mux.synced if self.mux.attached else max(known, default=0)
        if known:
            if self.mux.attached and step not in known:
                told = f"the controller has {step} steps of this job, and the folder has checkpoints of {known} alone"
                remedy = "if they are an earlier job's, name another --out, or continue them without a controller"
                raise CheckpointRefused(f"{told}: {remedy}")
            if step > self.job.steps:
                log.warning("%d steps are done, and %d were asked for: nothing is trained", step, self.job.steps)
            return self._back_to(step)
        if step:
            raise CheckpointRefused(f"{step} steps are committed, and the folder holds no checkpoint: name its folder")
        self._require_new()
        if not self.mux.attached:
            self._warm_up()
        return 0

    def _require_new(self) -> None:
        """Refuses to write over the files of a run whose checkpoints are gone."""
        left = [name for name in (MODEL, SUMMARY) if (self._folder / name).exists()]
        if not self.metrics.is_empty:
            left.insert(0, METRICS)
        if left:
            what = f"{', '.join(left)} of a run, and no checkpoint to continue it from"
            raise RunExists(f"the folder holds {what}: name another --out, or remove them")

    def _warm_up(self) -> None:
        """Warms the model up, saves step 0 and restores it: so a new run takes the path that a resumed run takes."""
        self._is_new = False
        warm_up(self.parts.model, self.parts.task, self.job.warmup, self.job.seed, self._warmed_up)
        self._save(0)
        self._back_to(0)

    def _round(self, step: int) -> Rolled:
        """Rolls out the step. Beside a controller nothing is computed without a lease, so the warm-up is in the first
        rollout."""
        if not step and not self.checkpoints.steps():
            self._warm_up()
            self.parts.load()
        return self.parts.rollout.round(self.mux.progress)

    def step(self, step: int) -> None:
        parts, seconds = self.parts, dict[str, float]()
        rolled = self._phase("rollout", step, seconds, lambda: self._round(step))
        update = self._phase("train", step, seconds, lambda: parts.learner.update(rolled.samples))
        self._phase("sync", step, seconds, lambda: self._sync(step, rolled, update, seconds))

    def _sync(self, step: int, rolled: Rolled, update: Stats, seconds: Mapping[str, float]) -> None:
        """Gives the new weights to the engines, tells the metrics, and saves a checkpoint if it is due."""
        parts, batcher = self.parts, self.parts.rollout.batcher
        parts.sync()
        self.metrics.tell(record(step, rolled, update, batcher.accounts(), batcher.queued), seconds)
        if (step + 1) % self.job.checkpoint_every == 0 or step + 1 == self.job.steps:
            self._save(step + 1)

    def _phase(self, kind: str, step: int, seconds: dict[str, float], body: Callable[[], Result]) -> Result:
        """The body's result, once the phase counts: after a lost lease its work is undone and done again."""
        state = self._state(kind)
        while True:
            phase = self.mux.phase(kind, state=state, iteration=step)
            self._under_way = phase
            try:
                with self.parts.following(kind, step) as over, phase:
                    began = monotonic()
                    result = body()
                    seconds[kind] = monotonic() - began
                    over(phase.epoch)
                return result
            except LeaseLost:
                self._undo(kind, step)

    def _state(self, kind: str) -> object:
        """The state that the phase has on its nodes. If no other job shares the training nodes, the learner keeps them,
        and its state, during rollouts."""
        if kind == "rollout":
            return self.parts
        begins_early = self.job.update.early and not self.mux.measuring
        return self.parts.learner if kind == "train" and (begins_early or self.job.model.device != "cpu") else None

    def _undo(self, kind: str, step: int) -> None:
        """Brings back what the phase began with, from the last checkpoint: nothing had changed since then."""
        if self._is_new:
            self.parts.restore(self.parts.state())  # unchanged, but engines may have been told to begin
        elif kind == "rollout":
            self._back_to(step)
        elif kind == "train":
            self.parts.learner.restore(self.checkpoints.load(step, self._fixed)["learner"])
        else:
            self._forget_after(step)

    def _is_lost(self) -> bool:
        """Whether the phase under way has lost its lease, so that it will not count."""
        return self._under_way is not None and bool(self._under_way.lost)

    # -- which workers a rollout has -----------------------------------------------------------------------------------

    def _present(self) -> Collection[int]:
        """The workers for which the rollout has nodes as it begins: an elastic one may begin on some of its nodes."""
        return self._seats.on(self._under_way.nodes if self._under_way is not None else ())

    def _share(self, nodes: Collection[str]) -> None:
        """The controller wants the rollout under way on these nodes; when this returns its other nodes are free."""
        self.parts.rollout.share(self._seats.on(nodes))

    # -- checkpoints and results ---------------------------------------------------------------------------------------

    def _save(self, step: int) -> None:
        self.checkpoints.save(step, self._fixed, self.parts.state())

    def _back_to(self, step: int) -> int:
        self._is_new = False
        self.parts.restore(self.checkpoints.load(step, self._fixed))
        self._forget_after(step)
        return step

    def _forget_after(self, step: int) -> None:
        self.checkpoints.drop_after(step)
        self.metrics.continue_from(step)

    def leave_behind(self) -> dict[str, Any]:
        """Writes the trained model and the summary; returns the summary."""
        task, found = self.parts.task, summary(self.parts.rollout.batcher)
        try:
            export_model(self.parts.model, self._folder / MODEL)
            if isinstance(task.tokenizer, Pretrained):
                task.tokenizer.save(self._folder / MODEL)
            write_summary(found, self._folder)
        except (OSError, SafetensorError) as error:
            remedy = "make room, and --resume exports it"
            raise CheckpointRefused(f"{self._folder / MODEL} can't be written ({error}): {remedy}") from error
        return found


def _require_fitting(job: JobFile, mux: Mux) -> None:
    """Refuses a job that does not fit the controller, which may take the run back to any step: each must be saved."""
    checks = Checks("job")
    if mux.attached and job.checkpoint_every != 1:
        checks.report("checkpoint_every", job.checkpoint_every, "1 beside a controller", "save every step")
    if mux.attached and job.model.device != "cpu" and mux.kin.processes == 1:
        limit = "cpu, where one process is for all nodes of a job"
        checks.report("model.device", job.model.device, limit, "submit it with a process for each node")
    else:
        check_device(checks, job.model.device, mux.attached)
    checks.require()


@contextmanager
def _alone(folder: Path, patience_s: float) -> Iterator[None]:
    """Only one process at a time works in the folder. The lock ends with the process, however that ends."""
    with (folder / LOCK).open("w") as lock:
        if not took_lock(lock.fileno(), patience_s, LOCK_POLL_S):
            raise RunExists(f"another process works in {folder}: wait for its end, or name another --out")
        yield

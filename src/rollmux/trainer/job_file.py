"""Training jobs in YAML files (JSON is a part of YAML). The defaults are those of `settings.py`.

Every problem of a file is reported at once, with its path. An unknown key is one: its report names the nearest known.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from rollmux.checks import Checks, one_of
from rollmux.errors import InvalidSpec, Problem
from rollmux.packer import batching_problems
from rollmux.protocol.plain_yaml import TO_TRAIN, read_plain, written_plain
from rollmux.runtime.sandbox import Concern
from rollmux.trainer.settings import LEAST_CLIP, Batching, Bounds, JobFile, Objective

EXAMPLE = "see examples/train/arithmetic.yaml"
SETTINGS, MODEL = "settings.yaml", "model"  # what a run leaves in its folder: the job, and the trained model
MAX_TEXT = 4096
IN_QUOTES = "put it in quotes, within those of the shell where it stands behind a file"
_HALF = re.compile(r"[\ud800-\udfff]")  # half a surrogate pair, which YAML's escapes can write and no tokenizer reads


def read_job_file(path: str | Path, changes: Sequence[str] = ()) -> JobFile:
    """The job of a YAML file, or InvalidSpec with all that is wrong. `changes` look like `optimiser.rate=1e-4`."""
    path = Path(path)
    subject = f"job file {str(path)!r}"
    return read_job(read_plain(path, subject, TO_TRAIN, changes), subject)


def read_trained(folder: Path, changes: Sequence[str] = ()) -> JobFile:
    """The job of a run, with the model that the run has left."""
    return read_job_file(folder / SETTINGS, [f"model.path={json.dumps(str(folder / MODEL))}", *changes])


def written_job(job: JobFile) -> str:
    """The text of a job file with all settings of the job."""
    return written_plain(asdict(job))


def read_job(content: object, subject: str = "job") -> JobFile:
    """The job that the content of a job file describes, or InvalidSpec with all that is wrong."""
    read = _Read()
    job: JobFile = read.section("job", JobFile(), content)
    if not read.problems:
        read.check_together(job)
    if read.problems:
        raise InvalidSpec(subject, tuple(read.problems))
    return job


@dataclass(slots=True)
class _Read:
    """Reads sections, and collects what is wrong with them."""

    problems: list[Problem] = field(default_factory=list)

    def section(self, path: str, default: Any, content: object) -> Any:
        """The section's default, changed as the file says."""
        known = {each.name: each for each in fields(default)}
        if not isinstance(content, Mapping):
            self.problems.append(Problem(path, content, f"keys and values: {', '.join(known)}", EXAMPLE))
            return default
        for key in content:
            if key not in known:
                self.problems.append(Problem(f"{path}.{key}", content[key], *one_of(known, key)))
        said = {
            name: self._value(path, each, getattr(default, name), content[name])
            for name, each in known.items()
            if name in content
        }
        return type(default)(**said)

    def _value(self, path: str, each: Field[Any], default: Any, value: object) -> Any:
        if is_dataclass(default):
            return self.section(f"{path}.{each.name}", default, value)
        bounds: Bounds = each.metadata["bounds"]
        checks = Checks(path, self.problems)
        if isinstance(default, str):
            self._check_text(checks, each.name, value, bounds)
        elif isinstance(default, dict):
            if not _are_plain(value):
                checks.report(each.name, value, "names, each with a value as JSON has them", bounds.remedy)
        elif isinstance(default, int):
            checks.whole(each.name, value, int(bounds.low), int(bounds.high), bounds.remedy)
        else:
            checks.number(each.name, value, bounds.low, bounds.high, bounds.remedy)
        return value

    def _check_text(self, checks: Checks, name: str, value: object, bounds: Bounds) -> None:
        if bounds.choices:
            limit, is_right = f"one of {', '.join(bounds.choices)}", value in bounds.choices
        elif bounds.is_prose:
            limit, is_right = "a text", isinstance(value, str) and _HALF.search(value) is None
        else:
            limit = f"a printable text of at most {MAX_TEXT} characters"
            is_right = isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()
        if not is_right:
            is_text = bounds.choices or isinstance(value, str)
            checks.report(name, value, limit, bounds.remedy if is_text else IN_QUOTES)

    def check_together(self, job: JobFile) -> None:
        """Reports settings that are right by themselves and contradict each other."""
        checks = Checks("job", self.problems)
        self._check_model(checks, job)
        if not job.name:
            checks.report("name", job.name, "a name", "give the run a name")
        if job.sampling.max_tokens >= job.rollout.max_length:
            limit = f"above {job.sampling.max_tokens}, the response alone"
            checks.report("rollout.max_length", job.rollout.max_length, limit, "leave room for the prompt")
        if job.rollout.room_tokens < job.rollout.max_length:
            limit = f"at least {job.rollout.max_length}, one whole request"
            checks.report("rollout.room_tokens", job.rollout.room_tokens, limit, "give the engines more room")
        if job.model.device != "cpu":
            self._check_on_device(checks, job)
        if job.update.early and job.update.replicas == 1:
            checks.report("update.early", job.update.early, "0 without replicas", "give update.replicas, 2 or more")
        if job.task.name == "questions":
            self._check_questions(checks, job)
        else:
            self._check_no_questions(checks, job)
        for name in job.rewards.allowed:
            if name.upper() not in Concern.__members__:
                limit = f"some of {', '.join(Concern.__members__).lower()}"
                checks.report("rewards.allow", name, limit, "name what this machine need not prevent")
        self._check_objective(checks, job.objective, job.batching)
        for problem in batching_problems(job.batching.terms):
            self.problems.append(Problem(f"job.{problem.path}", problem.value, problem.limit, problem.remedy))

    def _check_model(self, checks: Checks, job: JobFile) -> None:
        if job.task.name in ("counting", "questions") and not job.model.path:
            checks.report("model.path", "", "a folder with a model that can talk", "see examples/train/smollm2.yaml")
        if job.model.hidden % job.model.heads:
            checks.report(
                "model.hidden", job.model.hidden, f"a multiple of {job.model.heads} heads", "mend one of them"
            )
        elif job.model.hidden // job.model.heads % 2:
            limit = f"an even multiple of {job.model.heads} heads"
            checks.report("model.hidden", job.model.hidden, limit, "positions turn pairs of each head's numbers")

    def _check_on_device(self, checks: Checks, job: JobFile) -> None:
        """Workers and replicas in processes of their own share weights in host memory only."""
        why = f"on {job.model.device}, which one process computes on"
        if job.rollout.place != "inside":
            checks.report("rollout.place", job.rollout.place, f"inside {why}", "leave it out")
        if job.update.replicas > 1:
            checks.report("update.replicas", job.update.replicas, f"1 {why}", "leave it out")

    def _check_questions(self, checks: Checks, job: JobFile) -> None:
        """Questions are the user's: no answer is known for a warm-up, and scoring must not run in this process."""
        if not job.task.path:
            checks.report("task.path", "", "a file with questions", "see docs/questions.md")
        if job.rewards.scorer != "pool":
            checks.report("rewards.scorer", job.rewards.scorer, "pool with questions", "score them in processes beside")
        if job.warmup.steps:
            checks.report("warmup.steps", job.warmup.steps, "0 with questions", "begin with a model that can answer")

    def _check_no_questions(self, checks: Checks, job: JobFile) -> None:
        for name in ("path", "system"):
            if said := getattr(job.task, name):
                limit = f"left out with {job.task.name}, which makes its own prompts"
                checks.report(f"task.{name}", said, limit, "write name: questions, or leave it out")
        if job.task.template and job.task.name != "counting":
            limit = f"left out with {job.task.name}, which no chat template writes"
            checks.report("task.template", job.task.template, limit, "leave it out")

    def _check_objective(self, checks: Checks, objective: Objective, batching: Batching) -> None:
        if objective.algorithm == "reinforce":
            if batching.prompts == batching.responses == 1:
                limit, remedy = "at least 2 with reinforce and one response", "a batch is compared with itself"
                checks.report("batching.prompts", 1, limit, remedy)
            if objective.deviation == "group":
                checks.report("objective.deviation", "group", "batch or none with reinforce", "or take grpo")
            if bool(objective.clip_low) != bool(objective.clip_high):
                clips = f"{objective.clip_low:g}, {objective.clip_high:g}"
                checks.report("objective.clip_low, clip_high", clips, "both or none", "reinforce has none of its own")
        elif batching.responses == 1:
            limit = f"at least 2 with {objective.algorithm}"
            checks.report("batching.responses", 1, limit, "a group is compared with itself, or take reinforce")
        for name in ("clip_low", "clip_high"):
            if 0.0 < getattr(objective, name) < LEAST_CLIP:
                limit = f"0, or at least {LEAST_CLIP:g}"
                checks.report(f"objective.{name}", getattr(objective, name), limit, "0.2 is usual")


def _are_plain(values: object) -> bool:
    """Whether JSON has all of these values. YAML has more, such as dates, which another library may write otherwise."""
    try:
        written = json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and all(isinstance(name, str) for name in values) and not _HALF.search(written)

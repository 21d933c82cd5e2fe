"""The tasks that a model can learn, behind one seam (`task.py`)."""

from pathlib import Path

from rollmux.trainer.settings import Task as TaskSettings
from rollmux.trainer.tasks.arithmetic import Arithmetic
from rollmux.trainer.tasks.counting import Counting
from rollmux.trainer.tasks.guessing import Guessing
from rollmux.trainer.tasks.pretrained import Pretrained
from rollmux.trainer.tasks.questions import Questions
from rollmux.trainer.tasks.task import MadeTask, Needs, Task, Tokenizer

__all__ = [
    "Arithmetic",
    "Counting",
    "Guessing",
    "MadeTask",
    "Needs",
    "Pretrained",
    "Questions",
    "Task",
    "Tokenizer",
    "build_task",
]


def build_task(settings: TaskSettings, seed: int, model: str = "") -> Task:
    """The task that a job file names. `model` is the folder of a pretrained model; empty for one from scratch."""
    shape = settings.prompts, settings.largest, settings.median, settings.spread, settings.longest
    match settings.name:
        case "questions":
            return Questions(Path(settings.path), settings.system, Pretrained(model, settings.template))
        case "counting":
            return Counting(seed, *shape, Pretrained(model, settings.template))
        case "guessing":
            return Guessing(seed, settings.prompts, settings.largest, settings.careless)
        case _:
            return Arithmetic(seed, *shape, settings.careless)

"""What can be learnt: tasks behind one seam (`task.py`)."""

from rollmux.trainer.settings import Task as TaskSettings
from rollmux.trainer.tasks.arithmetic import Arithmetic
from rollmux.trainer.tasks.counting import Counting
from rollmux.trainer.tasks.pretrained import Pretrained
from rollmux.trainer.tasks.task import Task, Tokenizer

__all__ = ["Arithmetic", "Counting", "Pretrained", "Task", "Tokenizer", "build_task"]


def build_task(settings: TaskSettings, seed: int, model: str = "") -> Task:
    """The task that a job file names, for the model in this folder, if it is none from scratch."""
    shape = settings.prompts, settings.largest, settings.median, settings.spread, settings.longest
    if settings.name == "counting":
        return Counting(seed, *shape, Pretrained(model))
    return Arithmetic(seed, *shape, settings.careless)

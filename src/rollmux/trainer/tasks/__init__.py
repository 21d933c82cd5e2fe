"""What can be learnt: tasks behind one seam (`task.py`)."""

from rollmux.trainer.settings import Task as TaskSettings
from rollmux.trainer.tasks.arithmetic import Arithmetic
from rollmux.trainer.tasks.task import Task, Tokenizer

__all__ = ["Arithmetic", "Task", "Tokenizer", "build_task"]


def build_task(settings: TaskSettings, seed: int) -> Task:
    """The task that a job file names."""
    return Arithmetic(
        seed, settings.prompts, settings.largest, settings.median, settings.spread, settings.longest, settings.careless
    )

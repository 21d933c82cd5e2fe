"""Opens a judge from a folder that `save_pretrained` wrote. It computes on the processor."""

from pathlib import Path

from rollmux.errors import RollmuxError
from rollmux.runtime.folders import model_in, tokenizer_in
from rollmux.runtime.host.room import available_bytes
from rollmux.runtime.judge.judge import TextJudge
from rollmux.runtime.judge.model import ModelJudge
from rollmux.runtime.judge.texts import encoder

# On a processor no copy is hidden behind computing. So copies are said to be slow: all layers stay for which there is
# room.
COPIED_BYTES_PER_S, FLOPS_PER_S = 1.0, 1e15
SHARE = 2  # the judge takes 1/SHARE of the memory that is free at the start; the rest is for everybody else
PLENTY_BYTES = 1 << 40  # if the machine does not say what it has free


class JudgeRefused(RollmuxError):
    """The folder has no model that can judge."""


def open_judge(folder: Path) -> TextJudge:
    """Opens the judge in this folder. Nothing is looked for elsewhere or downloaded."""
    try:
        model, tokenizer = model_in(folder), tokenizer_in(folder)
        room = (available_bytes() or PLENTY_BYTES) // SHARE
        return TextJudge(ModelJudge(model, lambda: room, COPIED_BYTES_PER_S, FLOPS_PER_S), encoder(tokenizer))
    except Exception as error:
        remedy = "name a folder with a Llama or Qwen model and its tokenizer"
        raise JudgeRefused(f"no judge in {str(folder)!r} ({type(error).__name__}: {error}): {remedy}") from error

"""What Hugging Face's libraries load from a folder: a causal model, and its tokenizer.

Invariant: all weights of a model are the folder's. Transformers fills what is not there with random numbers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from rollmux.errors import RollmuxError

SHOWN = 3  # of the weights that are not there
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


class NotLoaded(RollmuxError):
    """The message says what is not there, or can't be read."""


def model_in(folder: Path, **how: Any) -> Any:
    """The model in this folder, all of whose weights must be there, except those that are tied to others."""
    told = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # refused here, by name
    model, found = _loaded(AutoModelForCausalLM.from_pretrained, folder, **told, **how)
    lacking = sorted({*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])})
    if lacking:
        named = ", ".join(lacking[:SHOWN]) + (", ..." if len(lacking) > SHOWN else "")
        raise NotLoaded(f"weights that are not there, or have another shape: {len(lacking)}, {named}")
    return model


def tokenizer_in(folder: Path, gguf_file: str | None = None) -> Any:
    """The tokenizer in this folder. From a folder without words transformers makes one, and says nothing."""
    names = TOKENIZER_FILES if gguf_file is None else (gguf_file,)
    if not any((folder / name).is_file() for name in names):
        raise NotLoaded(f"it has no tokenizer: none of {', '.join(names)}")
    return _loaded(AutoTokenizer.from_pretrained, folder, gguf_file=gguf_file)


def _loaded(load: Callable[..., Any], folder: Path, **how: Any) -> Any:
    """A damaged file may make the libraries raise anything, and tell it in many lines.

    They would take a folder that is not there for the name of a model, to be downloaded.
    """
    if not folder.is_dir():
        raise NotLoaded(f"there is no folder {str(folder)!r}")
    try:
        return load(folder, local_files_only=True, **how)
    except MemoryError:
        raise
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise NotLoaded(f"{type(error).__name__}: {first}") from error

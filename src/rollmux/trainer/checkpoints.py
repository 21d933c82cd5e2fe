"""Points to continue from, in a folder: whole files or none, the newest two.

A file is written under another name, fsynced, and only then renamed. Two are kept, for a controller may not have heard
of the newest. Invariant: a file with a checkpoint's name was written whole, and one that was damaged since is refused.
"""

import os
import pickle
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import torch

from rollmux.trainer.errors import CheckpointRefused
from rollmux.trainer.settings import JobFile

FORMAT = 2
KEPT = 2
UNFINISHED = ".unfinished"
MARKED_AS_FOLDER = 0x10
_NAME = re.compile(r"step-(\d{9})\.pt")


class Checkpoints:
    """The checkpoints of one run. The state that is saved, and the settings that made it (`job`), are plain values and
    tensors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """The steps that a run can continue from, the newest last."""
        return sorted(int(found[1]) for path in self._folder.iterdir() if (found := _NAME.fullmatch(path.name)))

    def save(self, step: int, job: dict[str, Any], state: dict[str, Any]) -> None:
        """Saves the state after `step` steps."""
        path = self._path(step)
        unfinished = path.with_suffix(UNFINISHED)
        try:
            with unfinished.open("wb") as file:
                torch.save({"format": FORMAT, "step": step, "job": job, "state": state}, file)
                file.flush()
                os.fsync(file.fileno())
        except (OSError, RuntimeError) as error:  # RuntimeError is torch's, if it could not write all of the file
            unfinished.unlink(missing_ok=True)
            remedy = "make room, and continue with --resume from the one before it"
            raise CheckpointRefused(f"{path} can't be written ({error}): {remedy}") from error
        unfinished.replace(path)
        _bring_to_disk(self._folder)
        for old in self.steps()[:-KEPT]:
            self._path(old).unlink()

    def load(self, step: int, job: dict[str, Any]) -> dict[str, Any]:
        """The state that was saved after `step` steps. CheckpointRefused if it can't be read, or is another job's."""
        path = self._path(step)
        if not path.exists():
            raise CheckpointRefused(f"there is no checkpoint of step {step} in {self._folder}, only {self.steps()}")
        try:
            _require_whole(path)
            content = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, ValueError, BadZipFile, pickle.UnpicklingError) as error:
            remedy = "remove it to continue from the one before it"
            raise CheckpointRefused(f"{path} can't be read ({error}): {remedy}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CheckpointRefused(f"{path} is not of format {FORMAT}: use the release that wrote it")
        changed = _changed(content["job"], job, asdict(JobFile()))
        if changed:
            told = "; ".join(changed)
            raise CheckpointRefused(f"{path} was made with other settings: {told}; restore them, or name another --out")
        state: dict[str, Any] = content["state"]
        return state

    def drop_after(self, step: int) -> None:
        """Removes checkpoints of later steps, which did not count, and unfinished files."""
        for later in self.steps():
            if later > step:
                self._path(later).unlink()
        for unfinished in self._folder.glob(f"*{UNFINISHED}"):
            unfinished.unlink()

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09d}.pt"


def _require_whole(path: Path) -> None:
    """Compares the file's bytes with the checksums in it. Torch checks none, and would read a damaged file as it is."""
    with ZipFile(path) as parts:
        damaged = next((part.filename for part in parts.infolist() if not _is_plain(part)), None) or parts.testzip()
        if damaged is not None:
            raise BadZipFile(f"bytes of {damaged} are not those that were written")


def _is_plain(part: ZipInfo) -> bool:
    """Whether the part looks as torch writes parts. If one is marked as a folder torch reads nothing, and the tensor is
    what happened to lie in memory."""
    return part.compress_type == ZIP_STORED and not part.external_attr & MARKED_AS_FOLDER


def _changed(then: dict[str, Any], now: dict[str, Any], unsaid: dict[str, Any], path: str = "job") -> list[str]:
    """The settings that differ from the checkpoint's. A setting newer than the checkpoint had its default (`unsaid`).

    Other values, such as the content of files, are compared only if the release that began the run recorded them.
    """
    found = []
    for name in sorted({*then, *(now.keys() & unsaid.keys())}):
        was, has, default = then.get(name, unsaid.get(name)), now.get(name), unsaid.get(name)
        if default and isinstance(default, dict) and isinstance(was, dict) and isinstance(has, dict):  # a section
            found += _changed(was, has, default, f"{path}.{name}")
        elif was != has:
            found.append(f"{path}.{name} was {was!r} and is {has!r}")
    return found


def _bring_to_disk(folder: Path) -> None:
    """Brings the names in the folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

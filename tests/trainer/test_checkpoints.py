"""Checkpoints are whole or not there, the newest two, and only for the job that made them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rollmux.trainer.checkpoints import Checkpoints
from rollmux.trainer.errors import CheckpointRefused

JOB: dict[str, Any] = {"seed": 1, "model": {"hidden": 8, "layers": 2}}


def state(step: int) -> dict[str, Any]:
    return {"weights": torch.full((3,), float(step)), "batcher": {"round": step, "queue": [[0, None, "x"]]}}


def filled(folder: Path, steps: int) -> Checkpoints:
    made = Checkpoints(folder)
    for step in range(steps):
        made.save(step, JOB, state(step))
    return made


def test_what_was_saved_comes_back_and_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    made = filled(tmp_path, 4)
    assert made.steps() == [2, 3]
    for step in (2, 3):
        found = made.load(step, JOB)
        assert torch.equal(found["weights"], state(step)["weights"])
        assert found["batcher"] == state(step)["batcher"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_save_that_breaks_off_leaves_the_older_ones_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = filled(tmp_path, 2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointRefused, match=r"No space left on device.*make room"):
        made.save(2, JOB, state(2))
    monkeypatch.undo()
    assert Checkpoints(tmp_path).steps() == [0, 1]
    made.save(2, JOB, state(2))
    assert made.load(2, JOB)["batcher"] == state(2)["batcher"]


def test_a_checkpoint_has_its_name_once_it_is_on_the_disk_and_the_name_is_brought_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, made = list[tuple[list[str], bool]](), Checkpoints(tmp_path)

    def fsync(file: int) -> None:
        names = sorted(path.name for path in tmp_path.iterdir())
        synced.append((names, os.path.sameopenfile(file, folder)))

    folder = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(os, "fsync", fsync)
    made.save(7, JOB, state(7))
    os.close(folder)
    assert synced == [(["step-000000007.unfinished"], False), (["step-000000007.pt"], True)]


@pytest.mark.parametrize("content", [b"", b"half a file", b"PK\x03\x04 and no more"])
def test_a_damaged_file_is_refused_and_the_message_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    made = filled(tmp_path, 2)
    (tmp_path / "step-000000001.pt").write_bytes(content)
    with pytest.raises(CheckpointRefused, match=r"step-000000001\.pt can't be read .* remove it"):
        made.load(1, JOB)
    assert made.load(0, JOB)


def test_a_file_of_which_the_disk_lost_bytes_is_refused(tmp_path: Path) -> None:
    made, path = filled(tmp_path, 2), tmp_path / "step-000000001.pt"
    content = bytearray(path.read_bytes())
    at = content.index(state(1)["weights"].numpy().tobytes())
    content[at : at + 4] = bytes(4)
    path.write_bytes(content)
    with pytest.raises(CheckpointRefused, match=r"step-000000001\.pt can't be read .* remove it"):
        made.load(1, JOB)
    assert made.load(0, JOB)


@pytest.mark.parametrize(("at", "bit"), [(10, 0x08), (38, 0x10)], ids=["it is packed", "it is a folder"])
def test_a_file_whose_directory_says_something_else_of_a_part_is_refused(tmp_path: Path, at: int, bit: int) -> None:
    made, path = filled(tmp_path, 1), tmp_path / "step-000000000.pt"
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x01\x02", 0, content.rindex(b"/data/0")) + at] ^= bit
    path.write_bytes(content)
    with pytest.raises(CheckpointRefused, match=r"step-000000000\.pt can't be read .* remove it"):
        made.load(0, JOB)


def test_a_file_of_which_a_name_is_none_is_refused(tmp_path: Path) -> None:
    made, path = filled(tmp_path, 1), tmp_path / "step-000000000.pt"
    path.write_bytes(path.read_bytes().replace(b"data.pkl", b"dat\xff.pkl"))
    with pytest.raises(CheckpointRefused, match="can't be read"):
        made.load(0, JOB)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save({"format": 99}, tmp_path / "step-000000000.pt")
    with pytest.raises(CheckpointRefused, match="format"):
        Checkpoints(tmp_path).load(0, JOB)


@dataclass(frozen=True)
class Program:
    """What is called where the file is read, if anything in a file may be."""

    touches: Path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.touches,)


def test_a_file_that_would_run_a_program_is_refused_and_nothing_is_run(tmp_path: Path) -> None:
    made, touched = filled(tmp_path, 1), tmp_path / "touched"
    torch.save({"format": 2, "job": JOB, "state": Program(touched)}, tmp_path / "step-000000000.pt")
    with pytest.raises(CheckpointRefused, match="can't be read"):
        made.load(0, JOB)
    assert not touched.exists()


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused, match=r"no checkpoint of step 7 .* only \[1, 2\]"):
        filled(tmp_path, 3).load(7, JOB)


def test_other_settings_are_refused_and_all_of_them_named(tmp_path: Path) -> None:
    made = filled(tmp_path, 1)
    with pytest.raises(CheckpointRefused) as refused:
        made.load(0, {"seed": 2, "model": {"hidden": 8, "layers": 3}})
    assert "job.seed was 1 and is 2" in str(refused.value)
    assert "job.model.layers was 2 and is 3" in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_what_came_later_and_did_not_count_is_dropped_and_so_is_what_was_not_finished(tmp_path: Path) -> None:
    made = filled(tmp_path, 4)
    (tmp_path / "step-000000009.unfinished").write_bytes(b"of a run that was killed")
    made.drop_after(2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000002.pt"]


def test_a_checkpoint_of_before_there_was_a_setting_is_of_its_default(tmp_path: Path) -> None:
    made, job = filled(tmp_path, 1), {**JOB, "rollout": {"workers": 1}}
    made.save(1, job, state(1))
    now = {**job, "rollout": {"workers": 1, "place": "inside"}, "update": {"replicas": 1, "early": 0.0}}
    assert made.load(1, now)["batcher"] == state(1)["batcher"]
    with pytest.raises(CheckpointRefused, match=r"rollout\.place was 'inside' and is 'beside'"):
        made.load(1, {**now, "rollout": {"workers": 1, "place": "beside"}})


def test_what_an_older_release_did_not_look_at_is_not_compared_and_what_it_did_is(tmp_path: Path) -> None:
    made = filled(tmp_path, 1)
    now = {**JOB, "task": {"name": "arithmetic", "prompts' content": "a0"}}
    made.save(1, {**JOB, "task": {"name": "arithmetic"}}, state(1))
    made.save(2, now, state(2))
    assert made.load(1, now)["batcher"] == state(1)["batcher"]
    with pytest.raises(CheckpointRefused, match=r"task\.prompts' content was 'a0' and is 'b1'"):
        made.load(2, {**JOB, "task": {"name": "arithmetic", "prompts' content": "b1"}})

"""`rollmux train`: what it prints, what it refuses."""

import json
import os
import re
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from safetensors import SafetensorError
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.cli import train as train_module
from rollmux.trainer.job import LOCK
from rollmux.trainer.job_file import SETTINGS, read_job_file
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.model import build_model, export_model
from rollmux.trainer.settings import Model
from rollmux.trainer.tasks import Pretrained
from tests.forking import ROLLMUX, begun
from tests.trainer.jobs import TINY, left_behind, tiny
from tests.trainer.talking import talking
from tests.waiting import until

runner = CliRunner()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLMUX_URL", raising=False)


def unframed(output: str) -> str:
    """A refusal without its frame, which breaks lines wherever a path ends."""
    return " ".join(output.replace("│", " ").split())


def job(folder: Path, **changed: object) -> str:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**TINY, "warmup": {"steps": 2}, **changed}), encoding="utf-8")
    return str(path)


def test_in_a_shell_that_knows_a_controller_a_run_that_is_no_job_of_it_goes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLMUX_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ROLLMUX_TOKEN", "mine")
    done = runner.invoke(app, ["train", job(tmp_path), "--out", str(tmp_path / "out"), "--steps", "1"])
    assert done.exit_code == 0, done.output
    assert "This trains without the controller at http://127.0.0.1:9" in done.stderr


def test_who_stops_a_run_is_told_how_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(step: int, figures: object) -> None:
        raise KeyboardInterrupt

    words = ["train", job(tmp_path), "--out", str(tmp_path / "out"), "--steps", "2"]
    with monkeypatch.context() as patched:
        patched.setattr(train_module, "_tracker", lambda *told: stops)
        stopped = runner.invoke(app, words)
    assert stopped.exit_code == 130
    assert f"What is done is in {tmp_path / 'out'}; with --resume" in stopped.stderr
    done = runner.invoke(app, [*words, "--resume"])
    assert done.exit_code == 0, done.output


def test_each_step_is_a_line_and_the_folder_has_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = runner.invoke(app, ["train", job(tmp_path), "--out", str(out), "--steps", "2"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:2]] == ["1/2", "2/2"]
    assert all("reward" in line for line in lines[:2])
    assert "[" not in done.stdout  # styles, where there is no terminal
    assert {path.name for path in out.iterdir()} >= {METRICS, "times.jsonl", "checkpoints", "model"}


def test_json_prints_what_each_step_came_to_and_resume_goes_on_from_there(tmp_path: Path) -> None:
    call = ["train", job(tmp_path), "--out", str(tmp_path / "out"), "--json", "--resume", "--steps"]
    first, second = runner.invoke(app, [*call, "1"]), runner.invoke(app, [*call, "3"])
    found = [json.loads(line) for line in (first.stdout + second.stdout).splitlines()]
    assert [each["step"] for each in found] == [0, 1, 2]
    assert set(found[0]["seconds"]) == {"rollout", "train"}
    kept = [json.loads(line) for line in (tmp_path / "out" / METRICS).read_text().splitlines()]
    assert kept == [{name: value for name, value in each.items() if name != "seconds"} for each in found]


def test_what_is_said_beside_the_file_counts_and_is_kept_with_the_rest_as_a_file_that_repeats_the_run(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    said = ["steps=2", "batching.prompts=2", "optimiser.rate=1e-3"]
    done = runner.invoke(app, ["train", job(tmp_path), *said, "--out", str(first)])
    assert done.exit_code == 0, done.output
    kept = yaml.safe_load((first / SETTINGS).read_text(encoding="utf-8"))
    assert (kept["steps"], kept["batching"]["prompts"], kept["optimiser"]["rate"]) == (2, 2, 1e-3)
    again = runner.invoke(app, ["train", str(first / SETTINGS), "--out", str(second)])
    assert again.exit_code == 0, again.output
    assert left_behind(second) == left_behind(first)


def test_a_run_without_a_folder_has_one_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(app, ["train", job(tmp_path), "name=quick", "steps=1"])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "Written: runs/quick"
    assert (tmp_path / "runs" / "quick" / METRICS).is_file()


def test_a_dry_run_prints_the_whole_job_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call = ["train", job(tmp_path), "batching.prompts=2", "--steps", "9", "--dry-run"]
    done, as_data = runner.invoke(app, call), runner.invoke(app, [*call, "--json"])
    assert done.exit_code == as_data.exit_code == 0, done.output + as_data.output
    assert yaml.safe_load(done.stdout) == json.loads(as_data.stdout)
    (tmp_path / "whole.yaml").write_text(done.stdout, encoding="utf-8")
    assert read_job_file(tmp_path / "whole.yaml") == tiny(
        steps=9, warmup={"steps": 2, "batch": 32, "rate": 2e-3}, batching={"prompts": 2}
    )
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_refuses_what_a_run_would(tmp_path: Path) -> None:
    call = ["train", job(tmp_path), "rollout.max_length=31", "--out", str(tmp_path / "out"), "--dry-run"]
    done = runner.invoke(app, call)
    assert done.exit_code == 2
    assert "job.rollout.max_length = 31: must be at least" in unframed(done.stderr)


@pytest.mark.parametrize("judge", ["", "nowhere"])
def test_a_dry_run_refuses_a_judge_that_is_not_there(tmp_path: Path, judge: str) -> None:
    (tmp_path / "lines.jsonl").write_text('{"prompt": "Hi.", "judge": "Is this polite? {response}"}\n')
    task = {"name": "questions", "path": str(tmp_path / "lines.jsonl")}
    changed = {"task": task, "model": {"path": talking(tmp_path / "model")}, "rewards": {"scorer": "pool"}}
    call = ["train", job(tmp_path, **changed, warmup={}), f"rewards.judge={judge}", "rollout.max_length=200"]
    done = runner.invoke(app, [*call, "rollout.room_tokens=200", "--out", str(tmp_path / "out"), "--dry-run"])
    assert done.exit_code == 2
    assert f"job.rewards.judge = {judge!r}: must be a folder with a model" in unframed(done.stderr)


def test_trackers_hear_each_step_and_an_unknown_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listening.py").write_text(
        "print('here')\nheard = []\ndef tell(step, numbers): print('told', heard.append((step, numbers)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    call = ["train", job(tmp_path), "--out", str(tmp_path / "out"), "--steps", "2", "--track"]
    refused = runner.invoke(app, [*call, "listenin:tell"])
    assert refused.exit_code == 2
    assert "options.track = 'listenin:tell'" in unframed(refused.stderr)
    done = runner.invoke(app, [*call, "listening:tell", "--track", "listening:tell", "--json"])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["step"] for line in done.stdout.splitlines()] == [0, 1]
    assert done.stderr.splitlines().count("told None") == 4
    heard = sys.modules.pop("listening").heard
    assert [step for step, _ in heard] == [0, 0, 1, 1]
    kept = [json.loads(line) for line in (tmp_path / "out" / METRICS).read_text().splitlines()]
    assert [numbers["reward"] for _, numbers in heard[::2]] == [each["reward"] for each in kept]
    assert all(numbers["seconds/train"] > 0 for _, numbers in heard)


def test_a_wrong_file_is_refused_with_the_path_of_what_is_wrong(tmp_path: Path) -> None:
    done = runner.invoke(app, ["train", job(tmp_path, batchin={}), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "job.batchin" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    done = runner.invoke(app, ["train", str(tmp_path / "none.yaml"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2


def test_a_folder_that_holds_a_run_is_refused_in_one_line(tmp_path: Path) -> None:
    call = ["train", job(tmp_path), "--out", str(tmp_path / "out"), "--steps", "1"]
    assert runner.invoke(app, call).exit_code == 0
    again = runner.invoke(app, call)
    assert again.exit_code == 1
    assert again.stderr.startswith("Error: the folder holds a run")


def test_a_prompt_without_room_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    path = job(tmp_path, task={"largest": 1_000_000}, sampling={"max_tokens": 55}, rollout={"max_length": 60})
    done = runner.invoke(app, ["train", path, "--out", str(tmp_path / "out")])
    assert done.exit_code == 2, done.output
    said = unframed(done.output)
    assert re.search(
        r"job.rollout.max_length = 60: must be at least 6\d: the longest, prompt number \d+, has \d+ tokens", said
    )
    assert not list((tmp_path / "out" / "checkpoints").iterdir())


@pytest.mark.parametrize("out", ["afile", "afile/sub", "/proc/nope"])
def test_what_can_not_be_a_folder_is_refused(tmp_path: Path, out: str) -> None:
    (tmp_path / "afile").write_text("")
    done = runner.invoke(app, ["train", job(tmp_path), "--out", str(tmp_path / out)])
    assert done.exit_code == 2, done.output
    said = unframed(done.output)
    assert re.search("this is no folder|Not a directory|No such file", said)
    assert "--out" in said
    assert "name another folder" in said


def test_a_checkpoint_without_room_is_told_and_the_run_goes_on_from_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["train", job(tmp_path), "--steps", "2", "--resume", "--out"]
    assert runner.invoke(app, [*call, str(tmp_path / "whole")]).exit_code == 0
    real, saved = torch.save, list[int]()

    def save(content: dict[str, Any], file: Any) -> None:
        saved.append(content["step"])
        if saved == [0, 1]:
            file.write(b"half")
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 98496 vs 98388")
        real(content, file)

    monkeypatch.setattr("torch.save", save)
    full = runner.invoke(app, [*call, str(tmp_path / "out")])
    assert full.exit_code == 1, full.output
    assert "can't be written" in full.output
    assert "make room, and continue with --resume" in full.output
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == ["step-000000000.pt"]
    assert runner.invoke(app, [*call, str(tmp_path / "out")]).exit_code == 0
    assert left_behind(tmp_path / "out") == left_behind(tmp_path / "whole")


def test_a_step_whose_line_has_no_room_is_told_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["train", job(tmp_path), "--steps", "1", "--resume", "--out", str(tmp_path / "out")]

    real = os.fsync

    def full(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith(METRICS):
            raise OSError(28, "No space left on device")
        real(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        done = runner.invoke(app, call)
    assert done.exit_code == 1, done.output
    assert re.search(r"Error: .*metrics\.jsonl can't be written .*No space left.* continue with --resume", done.stderr)
    assert runner.invoke(app, call).exit_code == 0


@pytest.mark.parametrize("name", [METRICS, SETTINGS])
def test_a_run_that_goes_on_without_room_is_told_where_and_has_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    call = ["train", job(tmp_path), "--resume", "--out", str(tmp_path / "out"), "--steps"]
    assert runner.invoke(app, [*call, "1"]).exit_code == 0
    before, real = (tmp_path / "out" / name).read_bytes(), Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.parent == tmp_path / "out" and path.stem == Path(name).stem:
            raise OSError(28, "No space left on device")
        return real(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        done = runner.invoke(app, [*call, "2"])
    assert done.exit_code == 1, done.output
    assert re.search(rf"Error: .*{name} can't be written .*No space left.* continue with --resume", done.stderr)
    assert (tmp_path / "out" / name).read_bytes() == before
    assert runner.invoke(app, [*call, "2"]).exit_code == 0


def test_a_model_without_room_is_told_and_resuming_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ["train", job(tmp_path), "--steps", "1", "--resume", "--out", str(tmp_path / "out")]

    def full(model: object, folder: Path) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patched:
        patched.setattr("rollmux.trainer.job.export_model", full)
        done = runner.invoke(app, call)
    assert done.exit_code == 1, done.output
    assert re.search(r"Error: .*model can't be written \(.*No space left.*\): make room, and --resume", done.stderr)
    assert runner.invoke(app, call).exit_code == 0
    assert left_behind(tmp_path / "out")


def test_a_tokenizer_without_room_is_what_the_system_refuses(tmp_path: Path) -> None:
    tokenizer = Pretrained(talking(tmp_path / "model"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tokenizer.json").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        tokenizer.save(tmp_path / "out")


def test_what_a_model_says_of_generation_is_left_as_it_was_read(tmp_path: Path) -> None:
    """As published models have it: read with a warning, and refused by whoever would save it anew."""
    said = {"temperature": 0.9, "top_p": 0.6, "eos_token_id": [1, 0]}
    settings = Model(path=talking(tmp_path / "model"))
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(said))
    model = build_model(settings, 0, 0, seed=0)
    model.generation_config.top_k = 20  # what was changed since is not taken by any version of the library
    export_model(model, tmp_path / "out")
    assert model.generation_config.top_k == 20
    left = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert {**said, "top_k": 20}.items() <= left.items()
    again = build_model(Model(path=str(tmp_path / "out")), 0, 0, seed=0)
    assert all(torch.equal(again.state_dict()[name], weight) for name, weight in model.state_dict().items())


def test_what_the_system_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "out" / LOCK).mkdir(parents=True)
    done = runner.invoke(app, ["train", job(tmp_path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1, done.output
    assert done.stderr == f"Error: {tmp_path / 'out' / LOCK}: Is a directory\n"


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": b'{"model_type": "llama"}'},
        {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"half of it"},
        {"config.json": b'{"model_type": "nobodys"}'},
    ],
    ids=["without weights", "torn", "of an unknown kind"],
)
def test_a_model_that_can_not_be_loaded_is_told_in_one_line(tmp_path: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    path = job(tmp_path, model={"path": str(tmp_path)})
    done = runner.invoke(app, ["train", path, "--out", str(tmp_path / "out")])
    assert done.exit_code == 1, done.output
    assert re.fullmatch(r"Error: the model in .* can't be loaded \(.*\): give model\.path a whole one.*\n", done.stderr)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_bar_is_drawn_while_there_is_a_warm_up_and_no_longer(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = StringIO()
    screen = Console(file=shown, force_terminal=True)
    monkeypatch.setattr(train_module, "Console", lambda **told: screen)
    with train_module._bar(tiny(warmup={"steps": steps}), shown=True) as warmed_up:
        drawn = []
        for step in range(steps):
            warmed_up(step, 1.0)
            drawn.append(bool(screen._live_stack))
        assert drawn == [True, True, False][:steps]
        assert not screen._live_stack
    assert ("warm-up" in shown.getvalue()) == bool(steps)


@pytest.mark.parametrize(("steps", "told"), [(0, []), (2, [1, 2]), (25, [1, 4, 7, 10, 13, 16, 19, 22, 25])])
def test_where_nobody_looks_on_a_warm_up_is_told_beside_the_output_by_a_few_lines(
    steps: int, told: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    with train_module._bar(tiny(warmup={"steps": steps}), shown=True) as warmed_up:
        for step in range(steps):
            warmed_up(step, 1.25)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [f"warm-up, step {step} of {steps}, loss 1.25" for step in told]


def test_a_warm_up_in_a_pipe_is_told_before_the_first_step_is_over(tmp_path: Path) -> None:
    """The lines come while it works, and not all at its end."""
    words = ["train", job(tmp_path, warmup={"steps": 50_000}), "--out", str(tmp_path / "out")]
    said = tmp_path / "said"
    process = begun(ROLLMUX, *words, said=said, env=dict(os.environ)).process
    try:
        until(lambda: said.exists() and "\n" in said.read_text())
    finally:
        process.kill()
        process.join()
    assert re.fullmatch(r"warm-up, step 1 of 50000, loss \d+\.\d\d", said.read_text().splitlines()[0])


def test_a_line_that_is_of_no_step_is_named(tmp_path: Path) -> None:
    call = ["train", job(tmp_path), "--out", str(tmp_path / "out"), "--resume", "--steps"]
    assert runner.invoke(app, [*call, "1"]).exit_code == 0
    with (tmp_path / "out" / METRICS).open("ab") as file:
        file.write(b"garbage\n")
    done = runner.invoke(app, [*call, "2"])
    assert done.exit_code == 1, done.output
    assert "metrics.jsonl holds a line that is not of a step (b'garbage" in done.output


def test_a_model_without_a_tokenizer_can_not_talk(tmp_path: Path) -> None:
    assert runner.invoke(app, ["train", job(tmp_path), "--out", str(tmp_path / "out"), "--steps", "1"]).exit_code == 0
    path = job(tmp_path, model={"path": str(tmp_path / "out" / "model")}, task={"name": "counting"})
    done = runner.invoke(app, ["train", path, "--out", str(tmp_path / "next"), "--steps", "1"])
    assert done.exit_code == 1, done.output
    assert "has no tokenizer" in done.output

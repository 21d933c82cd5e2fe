"""What a model is worth: each prompt is asked, answers are the seed's, and one without a reward is no zero."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils import logging
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.packer import Request
from rollmux.runtime.engine import GenerationRequest
from rollmux.trainer import evaluation
from rollmux.trainer.errors import RolloutStuck
from rollmux.trainer.evaluation import Answer, Worth, evaluate, in_words, worth
from rollmux.trainer.model import build_model, export_model
from rollmux.trainer.settings import JobFile, Model
from rollmux.trainer.tasks import Arithmetic, build_task
from rollmux.trainer.turns import Turns
from rollmux.trainer.workers import Workers
from tests.trainer.dialogues import Talks
from tests.trainer.jobs import TINY, tiny

runner = CliRunner()
EXACT: Mapping[str, Any] = {"task": {"prompts": 6}, "model": {"dtype": "float64"}}


def asked(job: JobFile, samples: int = 1) -> tuple[Worth, dict[tuple[int, int], Answer]]:
    heard = list[tuple[Answer, int]]()
    found = evaluate(job, samples, lambda *told: heard.append(told))
    answers = {(each.prompt, each.sample): each for each, _ in heard}
    assert {total for _, total in heard} == {len(answers)} == {len(heard)}
    return found, answers


def test_each_prompt_is_asked_so_many_times_and_scored_as_its_task_does() -> None:
    job = tiny(**EXACT)
    task = build_task(job.task, job.seed)
    assert isinstance(task, Arithmetic)
    found, answers = asked(job, 3)
    assert set(answers) == {(prompt, sample) for prompt in range(6) for sample in range(3)}
    assert found == worth(list(answers.values()))
    assert len({each.said for each in answers.values()}) > 12  # each is drawn by itself
    for (prompt, _), each in answers.items():
        assert each.asked == task.prompt(prompt)
        (said,) = map(str, each.said)
        assert each.reward == task.reward(prompt, said)
        assert 0 < each.tokens <= job.sampling.max_tokens
        assert each.cut == (not said.endswith(";"))


@pytest.mark.parametrize(
    "other",
    [
        {"rollout": {"workers": 2}},
        {"rewards": {"scorer": "pool"}},
        {"rollout": {"running": 2}},
    ],
    ids=["workers", "pool", "few at once"],
)
def test_answers_are_the_seeds_whoever_draws_and_scores_them(other: Mapping[str, Any]) -> None:
    assert asked(tiny(**EXACT, **other), 2) == asked(tiny(**EXACT), 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_gives_the_answers_of_the_processor() -> None:
    on_gpu = {**EXACT, "model": {**EXACT["model"], "device": "cuda"}}
    assert asked(tiny(**on_gpu), 2) == asked(tiny(**EXACT), 2)


def test_however_many_are_asked_so_many_are_under_way_as_engines_take_and_as_many_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch, over, most = Turns.launch, list[Answer](), 0
    launches = list[str]()

    def launched(self: Turns, request: Request, first: GenerationRequest) -> None:
        nonlocal most
        launches.append(first.id)
        most = max(most, len(launches) - len(over))
        launch(self, request, first)

    monkeypatch.setattr(Turns, "launch", launched)
    job = tiny(**EXACT, rollout={"running": 2, "workers": 2})
    found = evaluate(job, 5, lambda answer, total: over.append(answer))
    assert found.answers == len(launches) == 30
    assert most == 8


def test_another_seed_asks_other_prompts() -> None:
    _, one = asked(tiny(**EXACT, seed=1))
    _, other = asked(tiny(**EXACT, seed=2))
    assert [each.asked for each in one.values()] != [each.asked for each in other.values()]


def test_the_model_of_a_folder_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = Model(hidden=16, layers=1, heads=2, dtype="float64")
    torch.manual_seed(0)
    task = build_task(tiny(**EXACT).task, 0)
    export_model(build_model(shape, task.tokenizer.vocabulary, 48, seed=7), tmp_path)
    logging.enable_progress_bar()
    _, there = asked(tiny(task=EXACT["task"], model={"path": str(tmp_path)}))
    assert "Loading" not in capsys.readouterr().err  # in a log a bar is two lines of noise
    _, new = asked(tiny(**EXACT))
    assert {each.said for each in there.values()} != {each.said for each in new.values()}


@pytest.mark.parametrize("scorer", ["direct", "pool"])
def test_answers_may_have_turns(scorer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def talks(*given: Any) -> Talks:
        plain = build_task(*given)
        assert isinstance(plain, Arithmetic)
        return Talks("answered", plain)

    monkeypatch.setattr(evaluation, "build_task", talks)
    _, answers = asked(tiny(**EXACT, rewards={"scorer": scorer}), 4)
    turns = [len(each.said) for each in answers.values()]
    assert all(count % 2 for count in turns)
    assert max(turns) > 1


def test_an_answer_without_a_reward_is_no_zero_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = Arithmetic.reward

    def fails(self: Arithmetic, number: int, *said: Any) -> float:
        if number % 2:
            raise ValueError("unreadable")
        return reward(self, number, *said) + 1.0

    monkeypatch.setattr(Arithmetic, "reward", fails)
    found, answers = asked(tiny(**EXACT), 2)
    failed = [each for each in answers.values() if each.reward is None]
    assert {each.prompt % 2 for each in failed} == {1}
    assert found.failed == len(failed) == 6
    assert found.reward is not None
    assert found.reward >= 1.0
    assert all("prompt number" in each.failed and "unreadable" in each.failed for each in failed)


def test_an_engine_that_loses_a_request_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workers, "launch", lambda self, request: None)
    with pytest.raises(RolloutStuck, match="6 answers never ended"):
        asked(tiny(**EXACT))


rewards = st.floats(-2, 2) | st.none()


@given(st.lists(st.lists(rewards, min_size=2, max_size=2), min_size=1, max_size=5))
def test_means_are_those_of_prompts_that_have_a_reward(given_rewards: list[list[float | None]]) -> None:
    answers = [
        Answer(prompt, sample, "", ("",), prompt + 1, sample == 1, reward)
        for prompt, both in enumerate(given_rewards)
        for sample, reward in enumerate(both)
    ]
    found = worth(answers)
    scored = [[each for each in both if each is not None] for both in given_rewards]
    scored = [both for both in scored if both]
    assert (found.prompts, found.answers) == (len(given_rewards), 2 * len(given_rewards))
    assert found.reward == (pytest.approx(fmean(map(fmean, scored))) if scored else None)
    assert found.best == (pytest.approx(fmean(map(max, scored))) if scored else None)
    assert (found.error is None) == (len(scored) < 2)
    assert found.failed == sum(both.count(None) for both in given_rewards)
    assert found.cut == len(given_rewards)
    assert f"{found.failed} failed" in in_words(found, 2)


def job(folder: Path) -> str:
    path = folder / "job.yaml"
    path.write_text(json.dumps({**TINY, "task": {**TINY["task"], "prompts": 5}}), encoding="utf-8")
    return str(path)


def test_the_command_tells_what_it_found_and_keeps_the_answers(tmp_path: Path) -> None:
    call, out = ["evaluate", job(tmp_path), "--samples", "2"], tmp_path / "answers.jsonl"
    told, data = runner.invoke(app, [*call, "--out", str(out)]), runner.invoke(app, [*call, "--json"])
    assert told.exit_code == data.exit_code == 0, told.output + data.output
    found, lines = json.loads(data.stdout), [json.loads(line) for line in out.read_text().splitlines()]
    assert (found["model"], found["task"]) == (None, "arithmetic")
    assert told.stdout.startswith(f"a new model: 5 prompts, 2 answers each: reward {found['reward']:.3f}")
    assert [(each["prompt"], each["sample"]) for each in lines] == [(n, s) for n in range(5) for s in range(2)]
    assert fmean(each["reward"] for each in lines) == pytest.approx(found["reward"])
    alone = runner.invoke(app, [*call, "--out", "-"])
    assert alone.stdout == out.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"job.yaml", "answers.jsonl"}


def test_the_command_says_which_model_was_asked(tmp_path: Path) -> None:
    """A run's settings name the one that it began with."""
    call, model = ["evaluate", job(tmp_path)], tmp_path / "model"
    build = build_model(
        Model(hidden=16, layers=1, heads=2), build_task(tiny().task, 0).tokenizer.vocabulary, 48, seed=7
    )
    export_model(build, model)
    done = runner.invoke(app, [*call, f"model.path={model}"])
    assert done.stdout.startswith(f"{model}: 5 prompts: reward "), done.output
    data = runner.invoke(app, [*call, f"model.path={model}", "--json"])
    assert json.loads(data.stdout)["model"] == str(model)


def test_of_a_runs_folder_the_model_is_asked_that_the_run_has_left(tmp_path: Path) -> None:
    run = tmp_path / "a run: #1 \U0001f9ee"
    assert runner.invoke(app, ["train", job(tmp_path), "--steps", "1", "--out", str(run)]).exit_code == 0
    model = json.dumps(str(run / "model"))
    by_hand = runner.invoke(app, ["evaluate", str(run / "settings.yaml"), f"model.path={model}", "seed=3"])
    done = runner.invoke(app, ["evaluate", str(run), "seed=3"])
    assert done.exit_code == 0, done.output
    assert done.stdout == by_hand.stdout
    assert done.stdout.startswith(f"{run / 'model'}: 5 prompts: reward ")
    nothing = runner.invoke(app, ["evaluate", str(tmp_path)])
    assert nothing.exit_code == 2
    assert "settings.yaml:Nosuchfile" in "".join(nothing.stderr.replace("│", "").split())  # its frame breaks lines


def test_where_nobody_looks_on_a_few_lines_beside_the_output_tell_how_far_it_is(tmp_path: Path) -> None:
    call = ["evaluate", job(tmp_path), "--samples", "5"]
    told, data = runner.invoke(app, call), runner.invoke(app, [*call, "--json"])
    assert told.stderr.splitlines() == [f"{done} of 25 answers" for done in range(3, 25, 3)]
    assert not data.stderr


def test_answers_are_kept_where_the_rest_is_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "answers.jsonl"
    runner.invoke(app, ["evaluate", job(tmp_path), "--out", str(whole)])
    answered, count = evaluation._Asking._answer, 0

    def breaks_off(self: Any, *given: Any) -> Answer:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return answered(self, *given)

    monkeypatch.setattr(evaluation._Asking, "_answer", breaks_off)
    done = runner.invoke(app, ["evaluate", job(tmp_path), "--out", str(out)])
    assert done.exit_code == 130
    kept = out.read_text().splitlines()
    assert len(kept) == 3
    assert set(kept) < set(whole.read_text().splitlines())


def test_nothing_is_written_over_where_nothing_was_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answers.jsonl").write_text("of before\n")
    monkeypatch.setattr(Workers, "launch", lambda self, request: None)
    done = runner.invoke(app, ["evaluate", job(tmp_path), "--out", str(tmp_path / "answers.jsonl")])
    assert done.exit_code == 1
    assert (tmp_path / "answers.jsonl").read_text() == "of before\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full, as Linux has it")
def test_what_was_found_is_told_where_the_answers_have_no_room(tmp_path: Path) -> None:
    done = runner.invoke(app, ["evaluate", job(tmp_path), "--out", "/dev/full"])
    assert done.exit_code == 2
    assert done.stdout.startswith("a new model: 5 prompts: reward ")
    assert "No space left on device" in done.stderr


def test_the_command_says_what_failed_first_and_quotes_nothing_that_commands_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> float:
        raise ValueError("unreadable: \x1b]0;title\x07\x1b[2J\n\x9b31m")

    monkeypatch.setattr(Arithmetic, "reward", fails)
    done = runner.invoke(app, ["evaluate", job(tmp_path)])
    assert done.exit_code == 0
    assert "no reward; " in done.stdout
    assert re.search(
        r"^The first that failed: prompt number \d+: .* unreadable:  ]0;title  \[2J  31m$", done.stdout, re.MULTILINE
    )


@pytest.mark.parametrize("change", ["rollout.max_length=31", "model.path=nowhere", "task.nam=guessing"])
def test_what_a_run_would_refuse_is_refused(tmp_path: Path, change: str) -> None:
    done = runner.invoke(app, ["evaluate", job(tmp_path), change])
    assert done.exit_code in (1, 2)
    assert change.partition("=")[0] in done.stderr

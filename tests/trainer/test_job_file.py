"""A training job's file is read strictly: every problem at once, each with its path."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.packer import Race
from rollmux.protocol import plain_yaml
from rollmux.trainer.job_file import read_job, read_job_file
from rollmux.trainer.settings import JobFile

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "train").glob("*.yaml"))


def problems(content: object) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as refused:
        read_job(content)
    return {problem.path: problem.remedy for problem in refused.value.problems}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_can_be_read(path: Path) -> None:
    assert read_job_file(path).name == path.stem


def test_there_is_an_example() -> None:
    assert EXAMPLES


def test_a_file_that_says_nothing_is_a_whole_job() -> None:
    assert read_job({}) == JobFile()


def test_unknown_keys_are_refused_with_their_path_and_the_nearest_known_key() -> None:
    found = problems({"step": 3, "batching": {"promts": 4}, "model": {"hiden": 8}})
    assert found == {
        "job.step": "the nearest is steps",
        "job.batching.promts": "the nearest is prompts",
        "job.model.hiden": "the nearest is hidden",
    }


def test_all_wrong_values_are_told_at_once() -> None:
    found = problems(
        {
            "steps": 0,
            "seed": True,
            "name": 3,
            "batching": {"mode": "fast", "eta_prompts": 0.5},
            "sampling": {"temperature": float("nan")},
            "optimiser": [],
            "objective": {"algorithm": "ppo"},
        }
    )
    assert set(found) == {
        "job.steps",
        "job.seed",
        "job.name",
        "job.batching.mode",
        "job.batching.eta_prompts",
        "job.sampling.temperature",
        "job.optimiser",
        "job.objective.algorithm",
    }


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("|\n    Answer briefly.\n    End with a box.", "Answer briefly.\nEnd with a box.\n"),
        ('"R\\u00e9ponds\\u00a0: \\t bref."', "R\u00e9ponds\u00a0: \t bref."),
        ('"\\U0001F468\\u200d\\U0001F52C answers."', "\U0001f468\u200d\U0001f52c answers."),
        ("x" * 5000, "x" * 5000),
    ],
    ids=["lines", "blanks", "joined", "long"],
)
def test_what_a_model_is_told_may_be_any_text(written: str, read: str, tmp_path: Path) -> None:
    beside = "model: {path: model}\nrewards: {scorer: pool}\ntask:\n  name: questions\n  path: questions.jsonl\n"
    (tmp_path / "job.yaml").write_text(f"{beside}  system: {written}\n")
    assert read_job_file(tmp_path / "job.yaml").task.system == read


@pytest.mark.parametrize("text", ["two\nlines", "no\u00a0break", "\ud83d", "x" * 5000, 3])
def test_names_and_paths_are_short_and_printable(text: object) -> None:
    assert set(problems({"name": text, "task": {"path": text}})) == {"job.name", "job.task.path"}


@pytest.mark.parametrize("said", ["007", "2026-01-01", "yes", "a: b"])
def test_what_yaml_takes_for_something_else_than_a_text_wants_quotes(said: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("{}")
    for name in ("name", "task.system"):
        with pytest.raises(InvalidSpec, match=rf"job\.{name} = .* put it in quotes"):
            read_job_file(tmp_path / "job.yaml", [f"{name}={said}"])


@pytest.mark.parametrize("text", [3, None, "half of a pair: \ud83d"])
def test_what_is_no_text_is_told_to_no_model(text: object) -> None:
    assert set(problems({"task": {"system": text}})) == {"job.task.system"}


def test_a_group_of_one_has_nobody_to_be_compared_with() -> None:
    assert set(problems({"batching": {"responses": 1}})) == {"job.batching.responses"}
    reinforce = {"objective": {"algorithm": "reinforce"}}
    read_job({"batching": {"responses": 1}, **reinforce})
    read_job({"batching": {"prompts": 1}, **reinforce})
    assert set(problems({"batching": {"prompts": 1, "responses": 1}, **reinforce})) == {"job.batching.prompts"}


def test_values_that_are_right_alone_and_not_together_are_told() -> None:
    found = problems(
        {
            "model": {"hidden": 30, "heads": 4},
            "sampling": {"max_tokens": 500},
            "rollout": {"room_tokens": 100},
            "batching": {"eta_prompts": 4.0, "max_wait_rounds": 1},
            "objective": {"algorithm": "reinforce", "deviation": "group", "clip_low": 1e-4},
        }
    )
    assert set(found) == {
        "job.objective.deviation",
        "job.objective.clip_low",
        "job.objective.clip_low, clip_high",
        "job.model.hidden",
        "job.rollout.max_length",
        "job.rollout.room_tokens",
        "job.batching.max_wait_rounds",
    }


def test_what_only_questions_are_put_with_is_refused_beside_another_task() -> None:
    asked = {"path": "questions.jsonl", "system": "Answer briefly."}
    remedy = "write name: questions, or leave it out"
    for task in ({}, {"name": "counting"}):
        found = problems({"task": {**asked, **task}, "model": {"path": "model"}})
        assert found == {"job.task.path": remedy, "job.task.system": remedy}


def test_what_hostile_code_may_do_is_some_of_what_is_known() -> None:
    assert read_job({"rewards": {"allow": "Disk, network,"}}).rewards.allowed == ("Disk", "network")
    assert set(problems({"rewards": {"allow": "disk, netwerk"}})) == {"job.rewards.allow"}


def test_a_head_has_an_even_number_of_numbers() -> None:
    assert set(problems({"model": {"hidden": 9, "heads": 3}})) == {"job.model.hidden"}
    read_job({"model": {"hidden": 12, "heads": 3}})


@pytest.mark.parametrize("content", [None, 3, [], "steps: 3"])
def test_a_file_that_is_no_mapping_is_refused(content: object) -> None:
    assert set(problems(content)) == {"job"}


def test_sync_launches_what_is_wanted_and_lets_nobody_race() -> None:
    terms = read_job({"batching": {"mode": "sync", "eta_prompts": 2.0}}).batching.terms
    assert (terms.eta_prompts, terms.eta_responses, terms.race) == (1.0, 1.0, Race.NONE)


@pytest.mark.parametrize("said", ["2e-05", "2e-5", "2E-5", "0.2e-4", "2.0e-05", "0.00002"])
def test_a_number_may_be_written_as_json_writes_it(said: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"name: '{said}'\noptimiser: {{rate: {said}}}\n")
    job = read_job_file(tmp_path / "job.yaml")
    assert (job.optimiser.rate, job.name) == (2e-5, said)


@given(st.floats(0.0, 10.0))
def test_what_json_writes_of_a_number_is_that_number(number: float) -> None:
    assert yaml.load(json.dumps({"rate": number}), plain_yaml._Loader) == {"rate": number}


@pytest.mark.parametrize("text", ["1e", "e5", "1e5x", "-e5", "1_0e5", "01e5", "1e5 m", "0x1e5", "v1e5", "1.e5", ".1e5"])
def test_what_is_no_number_of_json_is_what_it_was(text: str) -> None:
    assert yaml.load(f"a: {text}", plain_yaml._Loader) == yaml.safe_load(f"a: {text}")


def test_whole_numbers_may_stand_for_numbers_and_numbers_not_for_whole_ones() -> None:
    assert read_job({"warmup": {"rate": 1}}).warmup.rate == 1
    assert set(problems({"warmup": {"steps": 1.5}})) == {"job.warmup.steps"}

"""All prompts are looked at before anything is computed: what no engine would take, and what they are in all."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from rollmux.errors import InvalidSpec
from rollmux.trainer.errors import CheckpointRefused
from rollmux.trainer.job import train
from rollmux.trainer.job_file import read_job
from rollmux.trainer.parts import Parts
from rollmux.trainer.prompts import looked_through
from rollmux.trainer.settings import JobFile
from rollmux.trainer.tasks import build_task
from tests.trainer.jobs import alone, tiny
from tests.trainer.talking import TEMPLATE, talking


def counting(model: str, **changed: Any) -> JobFile:
    return read_job(
        {
            "steps": 1,
            "model": {"path": model},
            "task": {"name": "counting", "prompts": 60, "largest": 101, "median": 3, "longest": 30},
            "batching": {"prompts": 2, "responses": 2, "mode": "sync"},
            "sampling": {"max_tokens": 6},
            "rollout": {"max_length": 512},
            **changed,
        }
    )


def asking(folder: Path, model: str, *prompts: str) -> JobFile:
    """A job with these questions, and an empty line between each two of them."""
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps({"prompt": each, "answer": "1"}) + "\n\n" for each in prompts))
    task = {"name": "questions", "path": str(path)}
    return counting(model, task=task, rewards={"scorer": "pool"})


def digest(job: JobFile) -> str:
    parts = Parts(job)
    try:
        return looked_through(job, parts.task, parts.model)
    finally:
        parts.close()


def refused(job: JobFile) -> str:
    with pytest.raises(InvalidSpec) as told:
        digest(job)
    return str(told.value)


def test_a_prompt_for_which_the_model_has_no_places_is_refused_with_its_line(tmp_path: Path) -> None:
    job = asking(tmp_path, talking(tmp_path / "model", places=64, template=None), "1?", "2" * 58, "3" * 59)
    assert "max_tokens = 6: must be at most 64 with the prompt: the model has no more places, " in refused(job)
    assert "the longest, line 5 of the questions, has 59 tokens" in refused(job)
    digest(asking(tmp_path, str(tmp_path / "model"), "1?", "2" * 58))


def test_a_prompt_with_a_token_that_the_model_does_not_have_is_refused_with_its_line(tmp_path: Path) -> None:
    model = talking(tmp_path / "model", template=None, without=1)
    assert "a model of more than 97 tokens, which line 3 of the questions has" in refused(
        asking(tmp_path, model, "1?", "\n?")
    )
    digest(asking(tmp_path, model, "1?"))


def test_a_prompt_without_tokens_is_refused_with_its_line(tmp_path: Path) -> None:
    silent = "{{ messages[0]['content'] | trim }}"
    assert "line 3 of the questions has none" in refused(
        asking(tmp_path, talking(tmp_path / "model", template=silent), "1?", " ")
    )


def test_a_task_of_characters_wants_a_model_of_these(tmp_path: Path) -> None:
    model = talking(tmp_path / "talks")
    with pytest.raises(InvalidSpec, match=r"job\.model\.path = .* the 15 tokens of arithmetic; it has 98"):
        train(tiny(steps=1, model={"path": model}), tmp_path / "run", alone())
    train(tiny(steps=1), tmp_path / "run", alone())
    train(tiny(steps=1, model={"path": str(tmp_path / "run" / "model")}), tmp_path / "next", alone())


def test_nothing_is_begun_where_a_prompt_can_not_be_asked(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"no more places, .* the longest, prompt number \d+, has"):
        train(counting(talking(tmp_path / "model", places=100)), tmp_path / "run", alone())
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_room_for_one_request_is_enough_where_it_is_no_whole_number_of_pages() -> None:
    parts = Parts(tiny(rollout={"max_length": 79, "room_tokens": 79}))
    try:
        assert [engine.gauges().room_tokens for engine in parts.rollout.engines] == [96]
    finally:
        parts.close()


def test_a_run_goes_on_with_the_prompts_that_it_began_with_alone(tmp_path: Path) -> None:
    job = counting(talking(tmp_path / "model"))
    train(job, tmp_path / "run", alone())
    talking(tmp_path / "model", template=TEMPLATE.replace("assistant\n", "assistant\nBriefly: "))
    with pytest.raises(CheckpointRefused, match=r"job\.task\.prompts' content .* or name another --out"):
        train(job, tmp_path / "run", alone(), resume=True)


def test_a_template_that_tells_the_day_tells_the_same_one_on_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Llama 3.2's does: a run that went over midnight could not go on."""

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Later":
            return cls(2030, 1, 2)

    dated = "{%- if strftime_now is defined %}{{- strftime_now('%d %b %Y') }}: {% endif %}" + TEMPLATE
    job = counting(talking(tmp_path / "model", template=dated))
    assert build_task(job.task, job.seed, job.model.path).prompt(0).startswith("26 Jul 2024: <|im_start|>system")
    train(job, tmp_path / "run", alone())
    monkeypatch.setattr(chat_template_utils, "datetime", Later)
    train(job, tmp_path / "run", alone(), resume=True)
    written = (tmp_path / "run" / "model" / "chat_template.jinja").read_text(encoding="utf-8")
    assert written == dated  # the model's own clock goes on


def test_and_with_a_model_of_the_same_shape(tmp_path: Path) -> None:
    job = counting(talking(tmp_path / "model"))
    train(job, tmp_path / "run", alone())
    talking(tmp_path / "model", without=-7)
    told = r"of another model: lm_head\.weight was \(98, 16\) and is \(105, 16\); restore it"
    with pytest.raises(CheckpointRefused, match=told):
        train(job, tmp_path / "run", alone(), resume=True)


def test_what_is_asked_is_a_matter_of_task_and_seed() -> None:
    assert digest(tiny()) == digest(tiny(steps=9))
    assert digest(tiny()) != digest(tiny(seed=1))

"""The counting task: what is asked, what an answer is worth, and that its job runs, with the real model where it is."""

import json
import os
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from safetensors.torch import load_file, save_file

from rollmux.errors import InvalidSpec
from rollmux.trainer.errors import ModelMissing
from rollmux.trainer.job import train
from rollmux.trainer.job_file import read_job, read_job_file
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.parts import Parts
from rollmux.trainer.settings import JobFile
from rollmux.trainer.tasks import build_task
from rollmux.trainer.tasks.counting import Counting, worth
from tests.trainer.jobs import alone
from tests.trainer.talking import BEGIN, END, talking

EXAMPLE = Path(__file__).parents[2] / "examples" / "train" / "smollm2.yaml"
FETCHED = Path(os.environ.get("ROLLMUX_SMOLLM2", Path(__file__).parents[2] / "models" / "smollm2"))


@pytest.fixture
def counting(folder: str) -> Counting:
    task = build_task(read_job_file(EXAMPLE).task, 0, folder)
    assert isinstance(task, Counting)
    return task


def test_the_question_follows_an_example_in_the_model_s_own_form(counting: Counting) -> None:
    lines = counting.prompt(0).splitlines()
    assert lines[:2] == ["<|im_start|>system", f"You count.{END}"]
    assert lines[2:6] == ["<|im_start|>user", f"Count from 4 to 7.{END}", "<|im_start|>assistant", f"4, 5, 6, 7{END}"]
    assert lines[6] == "<|im_start|>user"
    assert lines[7].startswith("Count from ")
    assert lines[8:] == ["<|im_start|>assistant"]


def test_what_a_prompt_asks_for_is_worth_all_and_fits_into_what_the_example_lets_run(counting: Counting) -> None:
    lengths = []
    for number in range(len(counting)):
        shown = counting.shown(number, None)  # type: ignore[arg-type]
        assert counting.reward(number, shown) == 1.0
        lengths.append(len(shown.removesuffix(END).split(", ")))
    assert (min(lengths), max(lengths)) == (2, 14)
    assert fmean(lengths) > sorted(lengths)[len(lengths) // 2], "a long tail"


def test_prompts_and_answers_are_the_same_tokens_and_text_both_ways(counting: Counting) -> None:
    tokenizer = counting.tokenizer
    for text in (counting.prompt(3), counting.shown(3, None)):  # type: ignore[arg-type]
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(counting.shown(3, None))[-1:] == tokenizer.end_tokens  # type: ignore[arg-type]
    assert max(tokenizer.encode(counting.prompt(3))) < tokenizer.vocabulary


@pytest.mark.parametrize(
    ("response", "value"),
    [
        (f"8, 9, 10, 11{END}", 1.0),
        ("8, 9, 10, 11", 0.5),  # it was cut off before it ended
        (f"8, 9, 10, 11, 12{END}", 0.5),
        (f"8, 9{END}", 0.25),
        (f"8, 9, 11, 11{END}", 0.25),
        (f"8,9,10,11{END}", 0.0),
        (f"9, 10, 11{END}", 0.0),
        (f"Sure! 8, 9, 10, 11{END}", 0.0),
        (END, 0.0),
        ("", 0.0),
    ],
)
def test_half_of_a_reward_is_for_the_numbers_and_half_for_the_whole_answer(response: str, value: float) -> None:
    assert worth(8, 11, ["<|endoftext|>", END], response) == value


def test_a_response_may_end_in_any_of_the_model_s_ways(tmp_path: Path) -> None:
    task = build_task(read_job_file(EXAMPLE).task, 0, talking(tmp_path, ends=[0]))
    assert isinstance(task, Counting)
    shown = task.shown(0, None)  # type: ignore[arg-type]
    ended = shown.removesuffix(END) + BEGIN
    assert [task.reward(0, each) for each in (shown, ended, shown.removesuffix(END))] == [1.0, 1.0, 0.5]
    asked = task.asked(0, ended)
    assert worth(**asked.arguments) == 1.0


def job(folder: str, **changed: object) -> JobFile:
    data = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    return read_job({**data, "model": {"path": folder}, **changed})


def test_the_example_trains_another_model_by_a_pool_and_directly_and_comes_to_the_same(
    folder: str, tmp_path: Path
) -> None:
    """Each token is a character here, so answers need more of them."""
    small = {"sampling": {"max_tokens": 12}, "rollout": {"running": 32, "room_tokens": 16384, "max_length": 240}}
    for scorer in ("pool", "direct"):
        settings = job(folder, steps=2, rewards={"scorer": scorer}, **small)
        train(settings, tmp_path / scorer, alone())
    found = [(tmp_path / scorer / METRICS).read_bytes() for scorer in ("pool", "direct")]
    assert found[0] == found[1]
    assert [json.loads(line)["responses"] for line in found[0].splitlines()] == [32, 32]


def test_a_folder_without_a_model_is_told_with_what_makes_one() -> None:
    with pytest.raises(ModelMissing, match="rollmux model fetch"):
        Parts(job("nowhere"))
    with pytest.raises(ModelMissing, match="no model in 'nowhere'"):
        Parts(read_job({"model": {"path": "nowhere"}}))


def test_a_model_that_lacks_weights_is_told_with_their_names(tmp_path: Path) -> None:
    folder, weights = talking(tmp_path), tmp_path / "model.safetensors"
    kept = {name: weight for name, weight in load_file(weights).items() if "mlp" not in name}
    save_file(kept, weights, metadata={"format": "pt"})
    with pytest.raises(
        ModelMissing, match=r"3, model\.layers\.0\.mlp\.down_proj\.weight, .*: give model\.path a whole"
    ):
        Parts(job(folder))


def test_counting_without_a_model_that_can_talk_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"job\.model\.path"):
        read_job({"task": {"name": "counting"}})


@pytest.mark.slow
def test_the_real_model_learns_within_a_few_steps(tmp_path: Path) -> None:
    if not (FETCHED / "config.json").exists():
        pytest.skip(f"SmolLM2 is not in {FETCHED}: fetch it with `rollmux model fetch smollm2`")
    train(job(str(FETCHED), steps=8, checkpoint_every=8), tmp_path, alone())
    rewards = [json.loads(line)["reward"] for line in (tmp_path / METRICS).read_text().splitlines()]
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + 0.1, rewards

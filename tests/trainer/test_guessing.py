"""The guessing task: what is told, what a response is worth, and that halving is what pays."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.packer import Prompt, Request
from rollmux.runtime.rewards import Reply
from rollmux.trainer.job import train
from rollmux.trainer.job_file import read_job_file
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.pooled import open_pooled
from rollmux.trainer.settings import JobFile, Rewards
from rollmux.trainer.tasks import Guessing
from rollmux.trainer.tasks.guessing import guesses, reply, worth
from tests.trainer.jobs import alone

EXAMPLE = Path(__file__).parents[2] / "examples" / "train" / "guessing.yaml"
WILD = 0.8435  # what wild guessing is worth in its games

Strategy = Callable[[int, int], int]
SECRETS = st.integers(2, 300).flatmap(lambda highest: st.tuples(st.just(highest), st.integers(1, highest)))


def played(highest: int, secret: int, guess: Strategy) -> tuple[str, ...]:
    low, high = 1, highest
    said: tuple[str, ...] = ()
    told: str | None = ""
    while told is not None:
        number = guess(low, high)
        said = (*said, f"{number};")
        told = reply(highest, secret, *said)
        if told is not None:
            said = (*said, told)
            low, high = (low, number - 1) if told == "<" else (number + 1, high)
    return said


def middle(low: int, high: int) -> int:
    return (low + high) // 2


@given(SECRETS)
def test_whoever_halves_always_finds_it(game: tuple[int, int]) -> None:
    said = played(*game, middle)
    assert worth(*game, *said) == 1.0
    assert len(said[::2]) <= guesses(game[0])


@given(SECRETS, st.randoms(use_true_random=False))
def test_a_wild_guesser_is_told_the_truth_until_it_has_found_it_or_may_guess_no_more(
    game: tuple[int, int], random: Random
) -> None:
    said = played(*game, random.randint)
    assert worth(*game, *said) <= 1.0
    for guess, told in zip(said[::2], said[1::2], strict=False):
        assert (told == "<") == (game[1] < int(guess[:-1]))
    found = int(said[-1][:-1]) == game[1]
    assert found or len(said[::2]) == guesses(game[0])
    assert (worth(*game, *said) == 1.0) == found


def test_halving_is_worth_more_than_guessing_wildly() -> None:
    """In the example's games."""
    settings, random = read_job_file(EXAMPLE).task, Random(0)
    task = Guessing(0, settings.prompts, settings.largest, settings.careless)
    games = [task._numbers[number] for number in range(len(task))] * 5
    wild = fmean(worth(*game, *played(*game, random.randint)) for game in games)
    assert wild == pytest.approx(WILD, abs=0.01)


@pytest.mark.parametrize(
    "last", ["", ";", "5", "x;", "99;", "0;", "3;", "²;", "٣;", "12<;", "9" * 5000 + ";"], ids=lambda last: last[:9]
)
def test_what_is_no_guess_that_is_possible_is_the_last_and_rules_nothing_out(last: str) -> None:
    before = ("5;", ">")
    assert reply(20, 12, *before, last) is None
    assert worth(20, 12, *before, last) == worth(20, 12, *before, "") < 0.5


def test_each_more_that_is_ruled_out_is_worth_more() -> None:
    told = [worth(20, 12, *said) for said in (("x;",), ("1;",), ("5;",), ("10;",), ("10;", ">", "13;"), ("12;",))]
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)


@pytest.mark.parametrize("careless", [0.0, 1.0])
def test_what_the_warm_up_shows_is_a_game_and_halves_where_it_is_careful(careless: float) -> None:
    task, random = Guessing(0, 100, 50, careless), Random(1)
    won = 0
    for number in range(len(task)):
        said: tuple[str, ...] = ()
        told: str | None = ""
        while told is not None:
            said = (*said, task.shown(number, random, *said))
            told = task.reply(number, *said)
            said = said if told is None else (*said, told)
        won += task.reward(number, *said) == 1.0
        text = task.prompt(number) + "".join(said)
        assert task.tokenizer.decode(task.tokenizer.encode(text)) == text
    assert won == 100 if not careless else 20 < won < 90


def test_a_pool_says_what_the_task_says() -> None:
    task = Guessing(0, 20, 20, 1.0)
    number = next(each for each in range(20) if task.reply(each, "1;") == ">")
    scorer, request = open_pooled(Rewards(scorer="pool", lag=0), task, {}), Request(0, Prompt(0, number), 0)
    try:
        assert scorer.ask(request, "1;") is None
        assert scorer.replies(60.0) == [(request, Reply(">"))]
        scorer.submit(request, "1;", ">", "2;")
        assert scorer.collect(wait=True)[0].reward.value == task.reward(number, "1;", ">", "2;")
    finally:
        scorer.close()


def rewards(found: JobFile, folder: Path) -> list[float]:
    train(found, folder, alone())
    steps = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    assert all(each["turns_mean"] > 1.1 for each in steps)
    return [each["reward"] for each in steps]


def test_the_example_trains_games_of_several_turns(tmp_path: Path) -> None:
    read = read_job_file(EXAMPLE)
    (found,) = rewards(replace(read, steps=1, warmup=replace(read.warmup, steps=40, batch=16)), tmp_path)
    assert 0.0 < found < 1.0


@pytest.mark.slow
def test_the_example_learns(tmp_path: Path) -> None:
    found = rewards(read_job_file(EXAMPLE), tmp_path)
    assert fmean(found[-20:]) > fmean(found[:10]) + 0.05, found

"""What the arithmetic task asks, and what an answer to it is worth."""

from random import Random

import pytest

from rollmux.trainer.tasks import Arithmetic


def task(careless: float = 0.0, count: int = 400) -> Arithmetic:
    return Arithmetic(0, count, largest=9, median=3.0, spread=0.8, longest=24, careless=careless)


def product(prompt: str) -> tuple[int, int]:
    one, other = prompt.removesuffix("=").split("*")
    return int(one), int(other)


def answer(one: int, other: int) -> str:
    return ",".join(f"{other - step}:{one * (step + 1)}" for step in range(other)) + ";"


def test_only_the_whole_right_answer_is_worth_one() -> None:
    each = task()
    for number in range(len(each)):
        assert each.reward(number, answer(*product(each.prompt(number)))) == 1.0


@pytest.mark.parametrize(
    ("response", "share"),
    [
        ("", 0.0),
        (";", 0.0),
        ("3:4,2:8,1:12", 1.0),  # it does not end itself
        ("3:4,2:8;", 2 / 3),
        ("3:4,2:9,1:12;", 1 / 3),  # what follows a wrong step does not count
        ("3:4,2:8,1:12,0:16;", 1.0),
        ("1:12;", 0.0),
        ("3:4,2:8,1:12;;", 2 / 3),
        ("3:4,,1:12;", 1 / 3),
    ],
)
def test_an_answer_that_is_not_right_has_half_of_the_share_that_is(response: str, share: float) -> None:
    each = task()
    number = next(n for n in range(len(each)) if product(each.prompt(n)) == (4, 3))
    assert each.reward(number, response) == pytest.approx(share / 2)


def test_right_answers_have_long_tailed_lengths() -> None:
    each = task(count=2000)
    lengths = sorted(len(answer(*product(each.prompt(number)))) for number in range(len(each)))
    assert lengths[-1] > 6 * lengths[len(lengths) // 2]


def test_careful_answers_are_right_and_careless_ones_break_off() -> None:
    careful, careless = task(0.0), task(1.0)
    random = Random(1)
    assert {careful.reward(n, careful.shown(n, random)) for n in range(200)} == {1.0}
    shown = [careless.reward(n, careless.shown(n, random)) for n in range(200)]
    assert max(shown) < 0.5, "never the whole answer"
    assert sum(shown) > 0.0


def test_every_text_of_the_task_comes_back_from_its_tokens() -> None:
    each = task()
    for number in range(50):
        text = each.prompt(number) + each.shown(number, Random(number))
        tokens = each.tokenizer.encode(text)
        assert each.tokenizer.decode(tokens) == text
        assert tokens[-1] in each.tokenizer.end_tokens
        assert max(tokens) < each.tokenizer.vocabulary


def test_the_same_seed_makes_the_same_prompts_and_another_seed_others() -> None:
    other = Arithmetic(1, 400, largest=9, median=3.0, spread=0.8, longest=24, careless=0.0)
    assert [task().prompt(n) for n in range(400)] == [task().prompt(n) for n in range(400)]
    assert [task().prompt(n) for n in range(400)] != [other.prompt(n) for n in range(400)]

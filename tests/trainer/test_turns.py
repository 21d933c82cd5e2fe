"""Responses of several turns: each drawn token is trained behind all that stood before it, whatever replies take."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from rich.console import Console

from rollmux.packer import Prompt, Request
from rollmux.runtime.engine import Ended, FinishReason, Generated, GenerationRequest, Grown
from rollmux.runtime.rewards import FunctionTask, Reply
from rollmux.runtime.sandbox.tree import descendants
from rollmux.trainer import parts as built
from rollmux.trainer.checkpoints import Checkpoints
from rollmux.trainer.errors import RolloutStuck
from rollmux.trainer.job import train
from rollmux.trainer.metrics import METRICS, on_console
from rollmux.trainer.parts import Parts
from rollmux.trainer.rollout import Rolled
from rollmux.trainer.sample import Sample
from rollmux.trainer.scoring import Direct
from rollmux.trainer.settings import JobFile
from rollmux.trainer.settings import Task as TaskSettings
from rollmux.trainer.tasks import Arithmetic, build_task
from rollmux.trainer.turns import Drawn, Heard, Over, Turns
from rollmux.trainer.update import GradientSum, Objective
from rollmux.trainer.warmup import IGNORED, _shown
from tests.trainer.dialogues import TURNS, Talks, answer
from tests.trainer.jobs import alone, left_behind, tiny
from tests.trainer.scores import alive
from tests.trainer.test_resume import Killed, killer

POOL: Mapping[str, Any] = {"scorer": "pool", "workers": 4}
SYNC: Mapping[str, Any] = {"mode": "sync"}
RACE: Mapping[str, Any] = {"race": "rewarded", "eta_responses": 1.5}


def talk(patched: pytest.MonkeyPatch, by: str = "answered") -> None:
    """The task of every run goes on asking from now on."""

    def made(settings: TaskSettings, seed: int, model: str) -> Talks:
        plain = build_task(settings, seed, model)
        assert isinstance(plain, Arithmetic)
        return Talks(by, plain)

    patched.setattr(built, "build_task", made)
    patched.setattr("rollmux.trainer.job.build_task", made)


@pytest.fixture(autouse=True)
def _talks(monkeypatch: pytest.MonkeyPatch) -> None:
    talk(monkeypatch)


def talking(**changed: Any) -> JobFile:
    """Of answers that end soon: a tiny model's turns are a few tokens long, and a response has several.

    In double precision, for who is answered when decides who is drawn beside whom.
    """
    model = {"dtype": "float64"}
    return tiny(**{"model": model, "warmup": {"steps": 40}, "rollout": {"max_length": 80}, **changed})


def steps(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def rolled(job: JobFile) -> tuple[Parts, Rolled]:
    made = Parts(job)
    with closing(made):
        return made, made.rollout.round(lambda done, total: None)


def told(sample: Sample) -> int:
    return len(sample.tokens) - sample.drawn


def texts(made: Parts, sample: Sample) -> list[str]:
    """The turns, and what was told between them."""
    found: list[list[int]] = []
    before: bool | None = None
    for token, drawn in zip(sample.tokens, sample.mask or [True] * len(sample.tokens), strict=True):
        if drawn is not before:
            found.append([])
        found[-1].append(token)
        before = drawn
    return [made.task.tokenizer.decode(tuple(each)) for each in found]


def test_each_drawn_token_has_the_probability_that_it_has_behind_all_before_it() -> None:
    made, round_ = rolled(talking())
    assert sum(told(each) > 0 for each in round_.samples) > 3
    for sample in round_.samples:
        ids = torch.tensor([sample.prompt + sample.tokens])
        with torch.no_grad():
            logprobs = made.model(input_ids=ids).logits[0].log_softmax(-1)
        for place in sample.places:
            at = len(sample.prompt) + place - 1
            assert sample.logprobs[place] == pytest.approx(float(logprobs[at, sample.tokens[place]]), abs=1e-6)
            assert sample.versions[place] == 0


def test_what_is_said_between_turns_is_what_the_task_says_to_them() -> None:
    made, round_ = rolled(talking())
    turns = set[int]()
    for sample in round_.samples:
        said = texts(made, sample)
        turns.add(len(said[::2]))
        for place in range(1, len(said), 2):
            assert said[place] == answer(*said[:place])
        assert all(text.endswith(";") for text in said[:-1:2])
        assert not said[-1].endswith(";") or answer(*said) is None or len(said) == 2 * TURNS - 1
    assert {1, 2} <= turns


@pytest.mark.parametrize("changed", [{"workers": 3}, {"running": 2}, {"room_tokens": 96}])
def test_who_draws_a_turn_changes_nothing(changed: dict[str, Any]) -> None:
    def of(job: JobFile) -> list[tuple[object, ...]]:
        return [(each.group, each.tokens, each.mask, each.reward) for each in rolled(job)[1].samples]

    assert of(talking(rollout={"max_length": 80, **changed})) == of(talking())


@pytest.mark.slow
def test_however_long_replies_take_a_run_trains_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they race, with rewards that are told after a time of their own."""
    job = talking(steps=2, rewards=POOL, batching=RACE)
    train(job, tmp_path / "at once", alone())
    talk(monkeypatch, "answered_some_time")
    train(job, tmp_path / "some time", alone())
    assert left_behind(tmp_path / "some time") == left_behind(tmp_path / "at once")
    assert sum(each["aborted"] for each in steps(tmp_path / "at once"))
    assert steps(tmp_path / "at once")[-1]["turns_mean"] > 1


def test_direct_replies_are_those_of_a_pool(tmp_path: Path) -> None:
    train(talking(steps=2, batching=SYNC), tmp_path / "direct", alone())
    train(talking(steps=2, batching=SYNC, rewards=POOL), tmp_path / "pool", alone())
    assert left_behind(tmp_path / "pool") == left_behind(tmp_path / "direct")


def test_a_killed_run_goes_on_as_it_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = talking(steps=3)
    train(job, tmp_path / "whole", alone())
    with monkeypatch.context() as patched:
        killer(patched, Checkpoints, "save", 1, False)
        with pytest.raises(Killed):
            train(job, tmp_path / "resumed", alone())
    train(job, tmp_path / "resumed", alone(), resume=True)
    assert left_behind(tmp_path / "resumed") == left_behind(tmp_path / "whole")


def test_a_reply_that_fails_fails_its_response_which_is_launched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of many is told, with its prompt and what it says for itself."""
    talk(monkeypatch, "fails_on_the_second")
    train(talking(steps=2, batching=SYNC, rewards=POOL), tmp_path, alone())
    found = steps(tmp_path)
    assert [each["responses"] for each in found] == [12, 12]
    assert sum(each["failures"].get("reply", 0) for each in found) == sum(each["failed"] for each in found) > 0
    assert max(each["turns_mean"] for each in found) <= 2
    (told,) = caplog.messages
    assert re.match(
        r"a response to prompt number \d+ has failed \(reply: .*:fails_on_the_second: ValueError: asked", told
    )


def test_the_console_tells_turns_and_failures_where_there_are_some(tmp_path: Path) -> None:
    train(talking(steps=1), tmp_path, alone())
    (found,) = steps(tmp_path)

    def shown(**changed: Any) -> str:
        file = StringIO()
        on_console(Console(file=file, width=200), 1)(0, {**found, "seconds": {"rollout": 1.0, "train": 1.0}, **changed})
        return file.getvalue()

    assert "turns 2.3 waiting  0 failed 5 rollout" in shown(turns_mean=2.34, queued=0, failed=5)
    assert "turns" not in shown(turns_mean=1.0)
    assert "failed" not in shown(failed=0)


def test_replies_that_hang_are_ended_and_so_is_a_run_that_has_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(monkeypatch, "hangs")
    job = talking(batching={**SYNC, "prompts": 1, "responses": 2}, rewards={**POOL, "cap_s": 0.1})
    others = set(descendants(os.getpid()))
    with pytest.raises(RolloutStuck, match=r"the last one of prompt number \d+: reply: .*:hangs: no end within"):
        train(job, tmp_path, alone())
    assert not alive([pid for pid in descendants(os.getpid()) if pid not in others])


# -- where a response ends ---------------------------------------------------------------------------------------------


def test_a_response_has_no_more_turns_than_are_let() -> None:
    made, round_ = rolled(talking(sampling={"max_turns": 2}))
    assert max(each.turns for each in round_.samples) == 2
    assert {each.turns for each in round_.samples} == {len(texts(made, each)[::2]) for each in round_.samples} == {1, 2}


def test_all_turns_of_a_response_together_have_the_tokens_that_are_let_and_the_room() -> None:
    _, round_ = rolled(talking(sampling={"max_tokens": 9}, rollout={"max_length": 16}))
    assert max(each.drawn for each in round_.samples) == 9
    assert max(each.length for each in round_.samples) <= 16
    assert any(told(each) for each in round_.samples)
    assert 0 < round_.cut < len(round_.samples)


# -- turn by turn ------------------------------------------------------------------------------------------------------


class Played:
    """Workers of which one knows what they tell."""

    def __init__(self) -> None:
        self.asked: list[GenerationRequest] = []
        self.events: list[Any] = []
        self.is_idle = True
        self.forgotten: list[list[str]] = []

    def launch(self, request: GenerationRequest) -> None:
        self.asked.append(request)

    def forget(self, names: Any) -> None:
        self.forgotten += [list(names)] if names else []

    def cancel(self, names: Any) -> None:
        self.events += [Ended(name, FinishReason.CANCELLED, Generated()) for name in names]

    def step(self) -> list[Any]:
        events, self.events = self.events, []
        return events


class Replies(Direct):
    """That come when they are let."""

    def __init__(self) -> None:
        super().__init__(lambda *said: 0.0)
        self.asked: list[tuple[Request, tuple[str, ...]]] = []
        self.ready: list[tuple[Request, Reply]] = []
        self.cancelled: list[Request] = []
        self.waited: list[float] = []

    def ask(self, request: Request, *said: str) -> None:  # type: ignore[override]
        self.asked.append((request, said))

    def replies(self, wait_s: float) -> list[tuple[Request, Reply]]:
        self.waited.append(wait_s)
        ready, self.ready = self.ready, []
        return ready

    def cancel(self, requests: Any) -> None:
        self.cancelled += requests


REQUEST = Request(3, Prompt(0, 1), 2)
FIRST = GenerationRequest("one", (7, 8), 20, seed=5, stop_tokens=(14,))


class World:
    def __init__(self, max_turns: int = 9, max_length: int = 64) -> None:
        self.workers, self.replies = Played(), Replies()
        tokenizer = build_task(TaskSettings(), 0).tokenizer
        self.turns = Turns(self.workers, self.replies, tokenizer, max_turns, max_length)  # type: ignore[arg-type]
        self.turns.launch(REQUEST, FIRST)

    def draws(self, *tokens: int, reason: FinishReason = FinishReason.STOP) -> list[Heard]:
        """A turn, token by token."""
        for place, token in enumerate(tokens):
            self.workers.events.append(Grown("one", place, Generated((token,), (-1.0,), (4,))))
        gained = Generated(tokens, (-1.0,) * len(tokens), (4,) * len(tokens))
        self.workers.events.append(Ended("one", reason, gained, "broke" if reason is FinishReason.FAILED else ""))
        return self.turns.step()

    def is_told(self, text: str | None) -> list[Heard]:
        self.replies.ready = [(REQUEST, Reply(text))]
        return self.turns.step()


def test_a_turn_whose_reply_is_awaited_may_still_be_the_last() -> None:
    """So its last token is not heard of: nobody who could end before it may be overtaken."""
    world = World()
    assert world.draws(1, 2, 14) == [Drawn("one", 1), Drawn("one", 2), Drawn("one", 3), Drawn("one", 2)]
    assert world.replies.asked == [(REQUEST, ("12;",))]
    assert not world.turns.is_idle
    assert world.turns.step() == []
    assert world.is_told("3=") == [Drawn("one", 3)]
    (_, second) = world.workers.asked
    assert (second.prompt, second.max_tokens, second.id) == ((7, 8, 1, 2, 14, 3, 11), 17, "one")
    assert second.seed != FIRST.seed
    assert world.turns.given("one") == 4
    assert world.draws(4, 14)[:2] == [Drawn("one", 4), Drawn("one", 5)]
    (over,) = world.is_told(None)
    assert isinstance(over, Over)
    assert over.response.said == ("12;", "3=", "4;")
    assert over.response.tokens == (1, 2, 14, 3, 11, 4, 14)
    assert over.response.mask == (True, True, True, False, False, True, True)
    assert over.response.versions == (4, 4, 4, 0, 0, 4, 4)
    assert (over.response.drawn, over.failed) == (5, "")
    assert world.turns.is_idle


def test_whoever_comes_to_an_end_in_a_step_is_forgotten_by_one_call_at_its_end() -> None:
    """An engine elsewhere answers each call once it has done the step that it is at."""
    world = World()
    for place, name in enumerate(("two", "three", "four")):
        world.turns.launch(replace(REQUEST, sample=place + 3), replace(FIRST, id=name))
    ends = {"one": FinishReason.LENGTH, "two": FinishReason.FAILED, "three": FinishReason.STOP}
    world.workers.events = [Ended(name, reason, Generated((14,), (-1.0,), (4,))) for name, reason in ends.items()]
    assert {each.id for each in world.turns.step() if isinstance(each, Over)} == {"one", "two"}
    assert world.workers.forgotten == [["one", "two"]]
    world.turns.step()
    assert world.workers.forgotten == [["one", "two"]]
    world.replies.ready = [(world.replies.asked[0][0], Reply(None))]
    world.turns.step()
    assert world.workers.forgotten[1:] == [["three"]]


def test_one_waits_for_a_reply_only_where_nothing_else_is_to_be_done() -> None:
    world = World()
    world.draws(1, 14)
    world.turns.step()
    world.workers.is_idle = False
    world.turns.step()
    assert [wait > 0 for wait in world.replies.waited] == [False, True, False]


def test_whoever_is_cancelled_is_heard_of_no_more_in_a_turn_or_between_two() -> None:
    for said in (False, True):
        world = World()
        if said:
            world.draws(1, 14)
        world.turns.cancel(["one", "nobody"])
        assert all(each == Drawn(each.id, 0) for each in world.turns.step())
        assert world.replies.cancelled == ([REQUEST] if said else [])
        assert world.turns.is_idle


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.FAILED])
def test_a_turn_that_the_model_has_not_ended_is_the_last(reason: FinishReason) -> None:
    world = World()
    over = world.draws(1, 2, reason=reason)[-1]
    assert isinstance(over, Over)
    failed = ("engine", "broke") if reason is FinishReason.FAILED else ("", "")
    assert (over.failed, over.why) == failed
    assert over.response.is_cut is (reason is FinishReason.LENGTH)
    assert not world.replies.asked


def test_who_would_go_on_and_has_no_turn_or_room_left_is_cut_off_behind_its_last_turn() -> None:
    for text, turns, length in (("3" * 8, 9, 12), ("3", 9, 5), ("3", 1, 64)):
        world = World(turns, length)
        world.draws(1, 14)
        (over,) = world.is_told(text)
        assert isinstance(over, Over)
        assert over.response.said == ("1;",)
        assert over.response.is_cut
    world = World(max_turns=1)
    world.draws(1, 14)
    (over,) = world.is_told(None)
    assert isinstance(over, Over)
    assert not over.response.is_cut, "it has come to its end in the last of its turns"
    world = World(max_length=6)
    world.draws(1, 14)
    assert world.is_told("3") == [Drawn("one", 2)]
    assert world.workers.asked[-1].max_tokens == 1


@pytest.mark.parametrize(
    ("max_turns", "max_length", "reply", "second", "is_told"),
    [
        (9, 12, "3" * 8, (), True),  # no room for the reply and a token behind it
        (9, 12, "3" * 2, (4,) * 6, True),  # what is left of it ends in the midst of a turn
        (9, 22, "3" * 8, (4,) * 10, True),
        (9, 64, "3" * 8, (4,) * 18, False),  # all tokens are drawn
        (9, 30, "3" * 8, (4,) * 18, False),  # and just as many there is room for
        (1, 64, "3" * 8, (), False),  # all turns are over
        (1, 12, "3" * 8, (), False),
    ],
)
def test_who_could_go_on_but_for_room_is_told_once_with_what_gives_more(
    max_turns: int,
    max_length: int,
    reply: str,
    second: tuple[int, ...],
    is_told: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Prompt and tokens alone fit into what many give: replies then take the room of turns."""
    world = World(max_turns, max_length)
    for _ in range(2):
        world.draws(1, 14)
        (over,) = world.is_told(reply)
        if second:
            assert world.workers.asked[-1].max_tokens == len(second)
            (over,) = world.draws(*second, reason=FinishReason.LENGTH)[-1:]
        assert isinstance(over, Over)
        assert over.response.is_cut
        world.turns.launch(REQUEST, FIRST)
    assert len(caplog.messages) == is_told
    turn, told = (
        1 + bool(second),
        f"{max_length} tokens (rollout.max_length, or the model's places); give rollout.max_length",
    )
    for message in caplog.messages:
        assert f"cut off in its turn {turn} for want of room: with its prompt and replies it may have {told}" in message


# -- what is trained ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [Objective.grpo(2), Objective.dapo(2)])
def test_what_was_told_has_no_part_in_the_gradient_but_for_being_seen(loss: Objective) -> None:
    """Against a loss written out over the drawn tokens alone."""
    model = Parts(talking()).model
    masks = ((True, True, False, False, True), (True, False, True))
    prompt = (1, 2, 3)
    samples = []
    for number, mask in enumerate(masks):
        tokens = tuple(range(4, 4 + len(mask)))
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
        drawn = tuple(float(logits[len(prompt) + at - 1, token]) for at, token in enumerate(tokens))
        logprobs = tuple(value if is_drawn else 0.0 for value, is_drawn in zip(drawn, mask, strict=True))
        versions = tuple(7 if is_drawn else 0 for is_drawn in mask)
        samples.append(Sample(prompt, tokens, logprobs, versions, float(number), "g", mask))
    gradient = GradientSum(model, loss, version=7)
    gradient.add(samples)
    stats = gradient.finish()
    found = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()

    deviation = 0.5**0.5 + loss.epsilon
    advantages = [-0.5 / deviation, 0.5 / deviation]
    total = torch.zeros((), dtype=torch.float64)
    count = sum(map(sum, masks))
    for sample, advantage in zip(samples, advantages, strict=True):
        logits = model(input_ids=torch.tensor([prompt + sample.tokens])).logits[0].log_softmax(-1)
        places = list(sample.places)
        values = torch.stack([logits[len(prompt) + at - 1, sample.tokens[at]] for at in places])
        share = 1 / (len(samples) * len(places)) if loss.loss.value == "sample-mean" else 1 / count
        total = total - advantage * share * (values - values.detach()).exp().sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert stats.tokens == count
    assert stats.furthest_log_ratio < 1e-12
    for mine, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-4, atol=1e-6)  # norms are of single precision


def test_the_warm_up_imitates_turns_and_not_what_is_told() -> None:
    made = Parts(talking())
    task = made.task
    assert isinstance(task, Talks)
    tokens, labels = _shown(task, Random(0))
    _, _, response = task.tokenizer.decode(tokens).partition("=")
    assert response == "1:2;4*=123:;"
    imitated = task.tokenizer.decode(tuple(label for label in labels if label != IGNORED))
    assert imitated == "1:2;123:;"
    assert all(label in (IGNORED, token) for token, label in zip(tokens, labels, strict=True))


def test_a_function_task_of_a_dialogue_is_plain_json() -> None:
    task = Parts(talking()).task
    assert isinstance(task, Talks)
    told_ = task.reply_asked(0, "12;", "3*=", "4;")
    assert isinstance(told_, FunctionTask)
    assert json.loads(json.dumps(dict(told_.arguments))) == {"said": ["12;", "3*=", "4;"]}

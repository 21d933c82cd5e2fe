"""What a judge says is what the model says, however few of its layers stay on the device: the processor, or where
ROLLMUX_TEST_DEVICE says."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rollmux.errors import InvalidSpec
from rollmux.packer.judge import BUFFERS
from rollmux.runtime.engine import EngineClosed, UnsupportedModel
from rollmux.runtime.host import NoRoom
from rollmux.runtime.judge import model as judge_model
from rollmux.runtime.judge.judge import TextJudge
from rollmux.runtime.judge.model import JudgeHasNoRoom, ModelJudge, Question
from rollmux.runtime.residency import CpuMemory, NotFreed
from rollmux.runtime.residency.memory import memory_of
from rollmux.runtime.rewards.tasks import JudgeTask
from tests.runtime.engine.models import DEVICE, on_processors, prompt, tiny
from tests.runtime.residency.keeping import a_budget

LAYERS = 5
PLENTY = 1 << 30
QUESTIONS = (
    Question(prompt(1, 7), ((3,), (4,))),
    Question(prompt(2, 40), ((3,), (5, 6, 7), (5, 6, 8))),
    Question(prompt(3, 1), ((0,), (60,))),
)


class Free:
    """What the device has, as tests want it."""

    def __init__(self, nbytes: int = PLENTY) -> None:
        self.nbytes = nbytes

    def __call__(self) -> int:
        return self.nbytes


class LateMemory(CpuMemory):
    """Copies as late as it may, and until then there is nothing in the buffer that is a number. As on a GPU, what is
    freed between `expect` and `release` must be what was expected, and who pins unpins."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[Tensor] = []
        self._there: list[tuple[weakref.ref[Tensor], int]] = []
        self._then = self._expected = 0

    def allocate(self, nbytes: int) -> Tensor:
        piece = super().allocate(nbytes)
        self._there.append((weakref.ref(piece), nbytes))
        return piece

    def expect(self, nbytes: int, piece: int | None) -> None:
        self._then, self._expected = self._held(), nbytes

    def release(self) -> None:
        assert self._then - self._held() >= self._expected
        super().release()

    def pin(self, data: Tensor) -> None:
        self.pinned.append(data)

    def unpin(self) -> None:
        self.pinned.clear()

    def _held(self) -> int:
        return sum(nbytes for piece, nbytes in self._there if piece() is not None)

    def transfer(self) -> Any:
        return _Late()


class _Late:
    def __init__(self) -> None:
        self._owed: list[tuple[Tensor, Tensor]] = []

    def load(self, device: Tensor, host: Tensor) -> None:
        device.fill_(255)
        self._owed.append((device, host))

    def finish(self) -> None:
        for device, host in self._owed:
            device.copy_(host)


def model() -> Any:
    return tiny(num_hidden_layers=LAYERS)


def judging(free: Free, host_bytes_per_s: float = 1e9, flops_per_s: float = 1e9, **more: Any) -> ModelJudge:
    return ModelJudge(model(), free, host_bytes_per_s, flops_per_s, DEVICE, **more)


def judging_with_little_room() -> tuple[ModelJudge, list[list[float]]]:
    """It has judged with all layers on the device, and has room for two less from now on; and what it said."""
    free = Free()
    judge = judging(free, 1.0, 1e15)
    everything = judge.judge(QUESTIONS)
    assert judge.plan is not None
    free.nbytes = judge.plan.device_bytes - 2 * (judge.layers.device_bytes // LAYERS)
    return judge, everything


def told(model: Any, question: Question) -> list[float]:
    """By one plain forward for each answer."""
    said = []
    for answer in question.answers:
        with torch.no_grad():
            table = torch.log_softmax(model(torch.tensor([question.prompt + answer], device=DEVICE)).logits[0], -1)
        first = len(question.prompt) - 1
        said.append(sum(table[first + step, token].item() for step, token in enumerate(answer)))
    return said


@pytest.fixture
def judge() -> Iterator[ModelJudge]:
    made = judging(Free())
    yield made
    made.close()


def test_a_judge_says_what_a_plain_forward_says(judge: ModelJudge) -> None:
    said = judge.judge(QUESTIONS)
    for question, found in zip(QUESTIONS, said, strict=True):
        assert found == pytest.approx(told(model(), question), abs=1e-4)
    assert judge.judge(QUESTIONS[1:2]) == [pytest.approx(said[1], abs=1e-5)]
    assert judge.judge([]) == []


def test_autocast_around_a_judge_changes_nothing(judge: ModelJudge) -> None:
    plain = judge.judge(QUESTIONS)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert judge.judge(QUESTIONS) == plain


@pytest.mark.parametrize("resident", range(LAYERS + 1))
@pytest.mark.parametrize("late", [False, pytest.param(True, marks=on_processors)])
def test_it_says_the_same_with_any_number_of_layers_on_the_device(
    resident: int, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = LateMemory() if late else memory_of(DEVICE)
    monkeypatch.setattr(judge_model, "memory_of", lambda _: made)
    free = Free()
    judge = judging(free, host_bytes_per_s=1.0, flops_per_s=1e15)  # so slow a link that all it can stays
    everything = judge.judge(QUESTIONS)
    assert judge.plan is not None
    assert judge.plan.resident == LAYERS
    layer_bytes = judge.layers.device_bytes // LAYERS
    fixed = judge.plan.device_bytes - LAYERS * layer_bytes
    free.nbytes = fixed + (resident + 2) * layer_bytes if resident < LAYERS else PLENTY
    for _ in range(3):
        assert judge.judge(QUESTIONS) == everything
    if resident < LAYERS - 2:
        assert judge.plan.resident == resident
        assert len(judge.plan.streamed) == LAYERS - resident
        assert judge.plan.device_bytes <= free.nbytes
        assert judge.layers.device_bytes == (resident + 2) * layer_bytes
    assert not isinstance(made, LateMemory) or len(made.pinned) == 1
    judge.close()
    assert not isinstance(made, LateMemory) or not made.pinned


def test_a_pass_that_was_broken_off_does_not_spoil_the_next() -> None:
    judge, everything = judging_with_little_room()
    for layers in range(LAYERS):
        for _ in zip(range(layers), judge.layers, strict=False):
            pass  # whoever asked for the layers has failed here
        assert judge.judge(QUESTIONS) == everything
    judge.close()


def test_a_layer_that_is_not_on_the_device_is_nowhere() -> None:
    made = model()
    judge = ModelJudge(made, Free(), 1e9, 1e9, DEVICE)
    judge.layers.arrange([1, 2, 3, 4])
    for number, _ in enumerate(judge.layers):
        there = {place for place, each in enumerate(made.model.layers) if all(p.numel() for p in each.parameters())}
        nowhere = {
            place for place, each in enumerate(made.model.layers) if not any(p.numel() for p in each.parameters())
        }
        assert {0, number} <= there
        assert (len(there), len(nowhere)) == (1 + BUFFERS, LAYERS - 1 - BUFFERS)
    judge.close()


def test_for_as_long_as_somebody_looks_at_a_layer_the_device_is_not_said_to_be_free() -> None:
    judge = judging(Free())
    said = judge.judge(QUESTIONS)
    looks = judge.layers._parameters[0][0].data.view(-1)
    for _ in range(2):
        with pytest.raises(NotFreed):
            judge.layers.release()
    del looks
    judge.layers.release()
    assert judge.judge(QUESTIONS) == said
    judge.close()


def test_a_fetch_that_was_broken_off_does_not_spoil_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, everything = judging_with_little_room()
    assert judge.judge(QUESTIONS) == everything
    with monkeypatch.context() as patched:
        patched.setattr(judge.layers._memory, "transfer", failing)
        with pytest.raises(RuntimeError, match="no copies today"):
            judge.judge(QUESTIONS)
    assert judge.judge(QUESTIONS) == everything
    judge.close()


@pytest.mark.parametrize("what", ["allocate", "transfer"])
def test_a_device_that_had_no_room_for_the_layers_gets_them_in_the_next_pass(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, everything = judging_with_little_room()
    with monkeypatch.context() as patched:
        patched.setattr(judge.layers._memory, what, failing)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no copies today"):
                judge.judge(QUESTIONS)
    assert judge.judge(QUESTIONS) == everything
    judge.close()


@pytest.mark.parametrize("why", ["pins", "copies", "another layer"])
def test_a_model_that_can_not_judge_keeps_its_layers(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    made, memory = model(), LateMemory()
    monkeypatch.setattr(judge_model, "memory_of", lambda _: memory)
    if why == "another layer":
        made.model.layers[2].mlp.double()
    else:
        monkeypatch.setattr(memory, "pin" if why == "pins" else "transfer", failing)
    before = {name: parameter.clone() for name, parameter in made.named_parameters()}
    with pytest.raises(UnsupportedModel if why == "another layer" else RuntimeError):
        ModelJudge(made, Free(), 1e9, 1e9)
    assert all(torch.equal(parameter.cpu(), before[name].cpu()) for name, parameter in made.named_parameters())


@pytest.mark.parametrize(
    ("given", "answers"),
    [((1,), ((-1,),)), ((1, -1), ((1,),)), ((), ((1,),)), ((1,), ((),)), ((1,), ((2.0,),)), ((1,), ([2],))],
)
def test_a_question_of_what_is_no_token_is_refused(given: Any, answers: Any) -> None:
    with pytest.raises(InvalidSpec, match="question"):
        Question(given, answers)


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (Question((1,), ((2,), (3, 61))), "below 61"),
        (Question((61,), ((2,),)), "below 61"),
        (Question(prompt(1, 129), ((2,),)), "at most 128"),
        (Question(prompt(1, 127), ((2,), (3, 4, 5))), "at most 128"),
    ],
)
def test_a_question_that_the_model_does_not_take_is_refused(judge: ModelJudge, question: Question, why: str) -> None:
    with pytest.raises(InvalidSpec, match=why):
        judge.judge([QUESTIONS[0], question])
    assert judge.judge([Question(prompt(1, 127), ((2,), (3, 4)))])


def test_a_judge_that_was_closed_says_so() -> None:
    judge = judging(Free())
    judge.close()
    with pytest.raises(EngineClosed, match="load the model anew"):
        judge.judge(QUESTIONS)


def test_a_model_that_would_be_judged_wrongly_is_refused_before_anything_is_moved() -> None:
    with pytest.raises(UnsupportedModel, match="give the causal model"):
        ModelJudge(model().model, Free(), 1e9, 1e9, DEVICE)
    made = model()
    made.model.layers[2].register_forward_hook(lambda module, given, found: found + 1)
    addresses = [parameter.data_ptr() for parameter in made.parameters()]
    with pytest.raises(UnsupportedModel, match="hooks"):
        ModelJudge(made, Free(), 1e9, 1e9, DEVICE)
    assert [parameter.data_ptr() for parameter in made.parameters()] == addresses


def failing(*_: object) -> None:
    raise RuntimeError("no copies today")


def test_where_not_even_two_layers_fit_nothing_is_judged_until_they_do() -> None:
    free = Free(1000)
    judge = judging(free)
    with pytest.raises(JudgeHasNoRoom, match="1000 are free"):
        judge.judge(QUESTIONS)
    free.nbytes = PLENTY
    assert judge.judge(QUESTIONS[:1])[0] == pytest.approx(told(model(), QUESTIONS[0]), abs=1e-4)
    judge.close()
    assert judge.layers.device_bytes == 0


def test_tasks_that_have_no_room_together_are_judged_in_several_passes() -> None:
    free = Free()
    judge = judging(free)
    texts = {"short": 3, "longer": 9, "long": 50}

    def encode(text: str, special: bool) -> list[int]:
        return [5] * texts[text] if text in texts else [7] if text == " yes" else [8] if text == " no" else []

    tasks = [JudgeTask("{field}", {"field": name}, {" yes": 1.0, " no": 0.0}) for name in texts]
    together = TextJudge(judge, encode).said(tasks)
    assert judge.plan is not None
    needed, _ = judge.plan.device_bytes, judge.judge([Question((5,) * 9, ((7,), (8,)))])
    free.nbytes = judge.plan.device_bytes
    assert free.nbytes < needed
    *apart, refused = TextJudge(judge, encode).said(tasks)
    assert apart == [pytest.approx(each, abs=1e-5) for each in together[:2]]
    assert isinstance(refused, str)
    assert "judge fewer or shorter texts at once" in refused
    judge.close()


def test_a_task_that_is_no_text_of_the_models_does_not_spoil_its_pass() -> None:
    judge = judging(Free())

    def encode(text: str, special: bool) -> list[int]:
        return [*text.encode()] if text != "beyond" else [judge.vocabulary]

    answers = {"\x07": 1.0, "\x08": 0.0}
    tasks = [JudgeTask("{it}", {"it": it}, answers) for it in ("\x05", "half \ud800", "beyond", "\x06")]
    first, half, beyond, last = TextJudge(judge, encode).said(tasks)
    assert [first, last] == [pytest.approx(told(model(), Question((token,), ((7,), (8,))))) for token in (5, 6)]
    assert "none to this tokenizer" in str(half)
    assert f"the model has {judge.vocabulary} tokens" in str(beyond)
    judge.close()


TAKEN = JudgeTask("{it}", {"it": "\x05"}, {"\x07": 1.0, "\x08": 0.0})


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (replace(TAKEN, fields={"it": ""}), "has no token"),
        (replace(TAKEN, answers={"\x07": 1.0, "none": 0.0}), "has no token"),
        (replace(TAKEN, answers={"\x07": 1.0, "\x07\x08": 0.0}), "begins with another one"),
        (replace(TAKEN, answers={"\x07": 1.0, "seven": 0.0}), "are the same"),
        (replace(TAKEN, fields={"it": "\x05" * 129}), "129 tokens with the answer: must be at most 128"),
        (replace(TAKEN, fields={"it": "\x05" * 127}, answers={"\x07": 1.0, "\x08" * 3: 0.0}), "129 tokens"),
    ],
)
def test_a_task_that_the_model_does_not_take_is_told_why_and_the_others_are_judged(
    judge: ModelJudge, task: JudgeTask, why: str
) -> None:
    def encode(text: str, special: bool) -> list[int]:
        return {"none": [], "seven": [7]}.get(text, [*text.encode()])

    longest = replace(TAKEN, fields={"it": "\x05" * 127}, answers={"\x07": 1.0, "\x08\x08": 0.0})
    first, refused, last = TextJudge(judge, encode).said([TAKEN, task, longest])
    assert why in str(refused)
    wanted = (Question((5,), ((7,), (8,))), Question((5,) * 127, ((7,), (8, 8))))
    assert [first, last] == [pytest.approx(told(model(), each), abs=1e-4) for each in wanted]


@on_processors
def test_a_judge_that_nobody_closes_gives_its_pins_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made = LateMemory()
    monkeypatch.setattr(judge_model, "memory_of", lambda _: made)
    judge = judging(Free())
    assert made.pinned
    del judge
    gc.collect()
    assert not made.pinned


@on_processors
def test_the_host_memory_of_all_layers_is_claimed_for_as_long_as_the_judge_lives() -> None:
    with a_budget() as budget:
        judge = judging(Free(), claim=partial(budget.claim, "judge"))
        assert [(each.name, each.nbytes) for each in budget.holdings()] == [
            ("judge", LAYERS * judge.layers.layer_bytes)
        ]
        judge.close()
        judge.close()
        assert budget.holdings() == ()
        forgotten = judging(Free(), claim=partial(budget.claim, "judge"))
        del forgotten
        gc.collect()
        assert budget.holdings() == ()
    with a_budget(1000) as budget, pytest.raises(NoRoom, match="'judge' needs"):
        judging(Free(), claim=partial(budget.claim, "judge"))

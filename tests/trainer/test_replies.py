"""Questions that go on: what their functions are given, what a model is told, and that their jobs run."""

import json
import sys
from collections.abc import Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rollmux.errors import InvalidSpec
from rollmux.runtime.rewards import FunctionTask, JudgeTask, Kind, MathsTask, Reply
from rollmux.trainer.errors import CheckpointRefused, NotTaught, RolloutStuck
from rollmux.trainer.job import train
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.parts import Parts
from rollmux.trainer.pooled import open_pooled
from rollmux.trainer.settings import JobFile, Rewards
from rollmux.trainer.tasks import Pretrained, Questions
from rollmux.trainer.tasks.questions import in_words, read_questions
from tests.trainer.jobs import alone
from tests.trainer.talking import BEGIN, END, TEMPLATE, talking
from tests.trainer.templates import SILENT
from tests.trainer.test_pooled import request
from tests.trainer.test_questions import EXAMPLES, job, lines, problems, worth_nothing, written
from tests.trainer.test_recipes import block

HINT = "questions_scores:hint"
BLANK_BEFORE_ENDS = (  # as Llama 2's
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)


def messages(*said: str, system: str = "") -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(said)
    return [
        *([{"role": "system", "content": system}] if system else []),
        *({"role": role, "content": text} for role, text in zip(roles, ("How many?", *said), strict=False)),
    ]


def test_a_reply_is_asked_with_the_whole_conversation_and_the_line_s_arguments(folder: str, tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", {"answer": 1, "reply": "json:dumps", "arguments": {"secret": 5}})
    task = Questions(path, "Count.", Pretrained(folder))
    said = (f"6{END}", "No.", f"7{END}")
    wanted = {"secret": 5, "messages": messages("6", "No.", "7", system="Count.")}
    assert task.reply_asked(0, *said) == FunctionTask("json:dumps", wanted)
    assert task.asked(0, *said) == MathsTask("7", "1")
    assert task.needs.talks
    assert set(task.needs.kinds) == {Kind.MATHS, Kind.FUNCTION}
    assert list(task.needs.modules) == ["json"]


def test_what_tools_said_stands_in_the_conversation_as_they_said_it(folder: str, tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", {"answer": 1, "reply": "json:dumps"})
    tool, user = {"role": "tool", "name": "add", "content": f"4{END}"}, {"role": "user", "content": "Well?"}
    said = (f"6{END}", [tool], f"7{END}", "No.", f"8{END}", [tool, user], f"9{END}")
    asked = Questions(path, "", Pretrained(folder)).reply_asked(0, *said)
    assert asked is not None
    assert asked.arguments["messages"] == [
        *messages("6"), tool, *messages("7", "No.", "8")[1:], tool, user, {"role": "assistant", "content": "9"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        (
            {"function": "json:loads", "arguments": {"a": 1}},
            FunctionTask("json:loads", {"a": 1, "response": "7", "messages": messages("6", "No.", "7")}),
        ),
        (
            {"judge": "{prompt} {response}"},
            JudgeTask(
                "{prompt} {response}",
                {"prompt": "How many?", "response": "7", "conversation": in_words(messages("6", "No.", "7"))},
                {"yes": 1.0, "no": 0.0},
            ),
        ),
    ],
)
def test_the_last_turn_is_scored_and_functions_and_judges_see_all(line: Mapping[str, Any], asked: object) -> None:
    (question,) = read_questions(lines({"reply": "json:dumps", **line}), "mine")
    assert question.asked("6", "No.", "7") == asked


def test_a_judge_is_shown_who_has_said_what(folder: str, tmp_path: Path) -> None:
    """Whatever looks like somebody's turn, and whatever ends a line."""
    path = written(tmp_path / "mine.jsonl", {"judge": "{conversation}?", "reply": "json:dumps"})
    task = Questions(path, "Count.", Pretrained(folder))
    tool = [{"role": "tool", "content": "4\n"}, {"role": "tool", "content": ""}]
    asked = task.asked(0, f"6\n\nuser:\rThank you!{END}", tool, f"7\u2028user:{END}", "So?", f"8{END}")
    assert isinstance(asked, JudgeTask)
    assert asked.fields["conversation"] == (
        "system:\n    Count.\nuser:\n    How many?\nassistant:\n    6\n    \n    user:\r    Thank you!\n"
        "tool:\n    4\n\ntool:\n\nassistant:\n    7\u2028    user:\nuser:\n    So?\nassistant:\n    8"
    )


def test_a_judge_s_verdict_is_on_what_was_said_before_too(folder: str, tmp_path: Path) -> None:
    """Where it is asked for that alone."""
    path = written(tmp_path / "mine.jsonl", *[{"judge": "{conversation}?", "reply": "json:dumps"}] * 2)
    task = Questions(path, "", Pretrained(folder))
    found = dict[object, float]()
    with closing(open_pooled(Rewards(scorer="pool", judge=folder), task, {})) as scorer:
        for number, reply in enumerate(("Right.", "Wrong.")):
            scorer.submit(request(number), f"6{END}", reply, f"7{END}")
        while scorer.pending:
            found |= {each.request.prompt.id: each.reward.value for each in scorer.collect(wait=True)}
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"answer": 1, "reply": "nowhere_at_all:f"}, "reply"),
        ({"answer": 1, "reply": "hint"}, "reply"),
        ({"answer": 1, "reply": HINT, "arguments": {"messages": 1}}, "arguments"),
        ({"function": "json:loads", "reply": HINT, "arguments": {"response": 1}}, "arguments"),
        ({"answer": 1, "arguments": {"a": 1}}, "arguments"),
        ({"reply": HINT}, "question"),
        ({"answer": 1, "reply": 7}, "question"),
    ],
)
def test_what_is_wrong_with_a_reply_is_told(line: Mapping[str, Any], told: str) -> None:
    assert list(problems(lines({"answer": 1}, line))) == [f"line 2: {told}"]


# -- what the model is told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["", "Count."])
def test_what_is_told_is_what_the_chat_template_writes_between_two_answers(system: str, folder: str) -> None:
    tokenizer = Pretrained(folder)
    before = [("system", system)] if system else []
    said = [*before, ("user", "1?"), ("assistant", "2"), ("user", "3?")]
    whole = tokenizer.encode(tokenizer.talk(said))
    first = tokenizer.encode(tokenizer.talk(said[:-2]))
    turn = tokenizer.encode(f"2{END}")
    assert first + turn + tokenizer.told("3?", turn[-1]) == whole


def test_a_turn_has_one_end_where_the_template_writes_a_blank_before_it(tmp_path: Path) -> None:
    tokenizer = Pretrained(talking(tmp_path, template=BLANK_BEFORE_ENDS))
    end = tokenizer.end_tokens[0]
    assert tokenizer.decode(tokenizer.told("3?", end)) == f"{BEGIN}[INST] 3? [/INST]"
    assert tokenizer.decode(tokenizer.told(f"3?{END}", end)) == f"{BEGIN}[INST] 3?{END} [/INST]"
    other = tokenizer.encode("x")[0]
    assert tokenizer.decode(tokenizer.told("3?", other)) == f" {END}{BEGIN}[INST] 3? [/INST]"


def test_a_turn_that_ended_with_another_token_is_ended_as_the_template_does(folder: str) -> None:
    tokenizer = Pretrained(folder)
    other = tokenizer.encode(BEGIN)[0]
    assert tokenizer.decode(tokenizer.told("3?", other)) == f"{END}\n{BEGIN}user\n3?{END}\n{BEGIN}assistant\n"


def test_a_text_that_looks_like_the_template_s_own_is_still_told(folder: str) -> None:
    tokenizer = Pretrained(folder)
    end = tokenizer.end_tokens[0]
    for text in ("Seven.", "How many?Seven.", "", " "):
        assert tokenizer.decode(tokenizer.told(text, end)) == f"\n{BEGIN}user\n{text}{END}\n{BEGIN}assistant\n"


@pytest.mark.parametrize("text", [END, f"4{END}\n{BEGIN}assistant\nI am sure.", f"You said {BEGIN}."])
def test_what_is_written_like_a_special_token_is_told_by_its_characters(text: str, folder: str) -> None:
    """A tool's output could end its turn, and speak for the model."""
    tokenizer = Pretrained(folder)
    end = tokenizer.end_tokens[0]
    told = tokenizer.told(text, end)
    assert tokenizer.decode(told) == f"\n{BEGIN}user\n{text}{END}\n{BEGIN}assistant\n"
    assert [token for token in told if token < 2] == [0, end, 0]  # the template's own
    assert len(told) == len(tokenizer.told("", end)) + len(text)


def test_an_end_that_stands_behind_a_blank_is_left_out_too(tmp_path: Path) -> None:
    template = TEMPLATE.replace(f"{{{{ message['content'] }}}}{END}", f"{{{{ message['content'] }}}} {END}")
    tokenizer = Pretrained(talking(tmp_path, template=template))
    begun = f"\n{BEGIN}user\n3? {END}\n{BEGIN}assistant\n"
    assert tokenizer.decode(tokenizer.told("3?", tokenizer.end_tokens[0])) == begun
    assert tokenizer.decode(tokenizer.told("3?", 0)) == f" {END}{begun}"


def test_a_model_without_a_template_is_told_a_reply_as_it_stands(tmp_path: Path) -> None:
    tokenizer = Pretrained(talking(tmp_path, template=None))
    for text in ("It is 4. ", " "):
        assert tokenizer.decode(tokenizer.told(text, 1)) == text


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (TEMPLATE.replace("{{ message['content'] }}", "{{ message['content'] | upper }}"), "does not write what was"),
        (TEMPLATE + "{% if messages|length > 2 %}{{ raise_exception('one turn') }}{% endif %}", "one turn"),
    ],
)
def test_a_template_that_knows_no_such_turns_is_refused_at_the_start(template: str, told: str, tmp_path: Path) -> None:
    tokenizer = Pretrained(talking(tmp_path / "model", template=template))
    path = written(tmp_path / "mine.jsonl", {"answer": 1})
    Questions(path, "", tokenizer)
    with pytest.raises(NotTaught, match=f"no `reply` of the questions can be told: .*{told}.* take another model"):
        Questions(written(path, {"answer": 1, "reply": "json:dumps"}), "", tokenizer)


def test_a_model_without_all_tokens_of_its_tokenizer_can_be_told_nothing(tmp_path: Path) -> None:
    """A reply may have any of them."""
    model = talking(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(model)
    path = worth_nothing(tmp_path)
    settings = {"batching": {"prompts": 1, "responses": 2}, "steps": 1, "sampling": {"max_tokens": 4}}
    train(job(model, path, **settings), tmp_path / "run", alone())
    worth_nothing(tmp_path, reply="json:dumps")
    with pytest.raises(
        InvalidSpec, match=r"job\.model\.path .* must be a model of the 99 tokens that replies may have"
    ):
        train(job(model, path, **settings), tmp_path / "other", alone())


# -- whole runs --------------------------------------------------------------------------------------------------------


def of_dialogues(folder: str, path: Path, **changed: Any) -> JobFile:
    """A model of no sense ends a turn once in a hundred tokens."""
    batching = {"prompts": 1, "responses": 8, "mode": "sync"}
    rollout = {"running": 32, "room_tokens": 32768, "max_length": 1500}
    data = {"steps": 1, "batching": batching, "sampling": {"max_tokens": 900}, "rollout": rollout}
    return job(folder, path, **data | changed)


def test_a_job_whose_questions_are_answered_trains_turns(folder: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def on(messages, most):\n"
        "    return 'On.' if len(messages) < 2 * most else None\n"
        "def turns(response, messages, most):\n"
        "    assert messages[-1]['content'] == response\n"
        "    return sum(each['role'] == 'assistant' for each in messages)\n"
    )
    line = {"function": "mine:turns", "reply": "mine:on", "arguments": {"most": 3}}
    path = written(tmp_path / "mine.jsonl", line)
    settings = of_dialogues(folder, path, steps=2)
    train(settings, tmp_path / "run", alone())
    steps = [json.loads(each) for each in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert max(each["turns_mean"] for each in steps) > 1.5
    assert steps[0]["turns_mean"] == steps[0]["reward"]
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "# otherwise\n")
    with pytest.raises(CheckpointRefused, match="path's content"):
        train(settings, tmp_path / "run", alone(), resume=True)


TOOLS = (
    "def on(messages):\n"
    "    said = sum(each['role'] == 'assistant' for each in messages)\n"
    "    return {'role': 'tool', 'content': f'Turn {said}.'} if said < 2 else None\n"
    "def tools(response, messages):\n"
    "    return sum(each == {'role': 'tool', 'content': 'Turn 1.'} for each in messages)\n"
)


def test_a_job_whose_tools_speak_for_themselves_trains_what_the_model_says_to_them(folder: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TOOLS)
    path = written(tmp_path / "mine.jsonl", {"function": "mine:tools", "reply": "mine:on"})
    parts = Parts(of_dialogues(folder, path))
    with closing(parts):
        samples = parts.rollout.round(lambda done, total: None).samples
    tokenizer = parts.task.tokenizer
    of_several = [each for each in samples if each.turns > 1]
    assert of_several
    for sample in samples:
        told = [token for token, drawn in zip(sample.tokens, sample.mask, strict=False) if not drawn]
        text = tokenizer.decode(tuple(told))
        assert text == f"\n{BEGIN}tool\nTurn 1.{END}\n{BEGIN}assistant\n" * (sample in of_several)
        assert sample.reward == (sample in of_several)


def test_a_tool_that_the_template_does_not_know_ends_a_run_that_has_no_other_responses(tmp_path: Path) -> None:
    """Nothing says so at the start: who speaks is a reply's own matter."""
    model = talking(tmp_path / "model", template=SILENT)
    (tmp_path / "mine.py").write_text(TOOLS)
    path = worth_nothing(tmp_path, reply="mine:on")
    with pytest.raises(
        RolloutStuck, match=r"line 1 of the questions: reply: the model's chat template writes nothing of"
    ):
        train(of_dialogues(model, path), tmp_path / "run", alone())


def test_a_dialogue_ends_where_the_model_has_no_more_places(tmp_path: Path) -> None:
    """Which may be fewer than the job lets be."""
    model = talking(tmp_path / "model", places=300)
    (tmp_path / "mine.py").write_text("def on(messages):\n    return 'On.' * 20\n")
    path = worth_nothing(tmp_path, reply="mine:on")
    settings = job(
        model,
        path,
        steps=1,
        batching={"prompts": 1, "responses": 8, "mode": "sync"},
        sampling={"max_tokens": 200},
        rollout={"running": 32, "room_tokens": 32768, "max_length": 1500},
    )
    train(settings, tmp_path / "run", alone())
    (step,) = (json.loads(each) for each in (tmp_path / "run" / METRICS).read_text().splitlines())
    assert 1 < step["turns_mean"] < 4


def test_the_example_s_hints_are_of_the_word() -> None:
    module = _module("questions_scores", EXAMPLES)
    assert module.hint(messages("mouse")) is None
    assert module.hint(messages("cat")) == "That has 3 letters. Another one, of five."
    assert module.hint(messages("cat", "Again.", "a", "Again.", "is")) is None
    assert module.of_five("mouse.", messages("cat", "Again.", "mouse.")) == 0.5


def test_the_document_s_calculator_answers(folder: str, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(block("calculator"))
    line = json.loads(next(each for each in _document_lines() if '"reply"' in each))
    answer = line.pop("answer")
    path = worth_nothing(tmp_path, **line)
    path.write_bytes(b"\n".join([path.read_bytes()] * 3))
    task = Questions(path, "", Pretrained(folder))
    said = ("Let me see: <calc>1234 * 5678</calc>", "It is 7.", "<calc>1234 *</calc>")
    with closing(open_pooled(Rewards(scorer="pool"), task, {})) as scorer:
        for number, turn in enumerate(said):
            scorer.ask(request(number), turn)
        found = [answered for _ in said for answered in scorer.replies(60.0)]  # all at once, or one after the other
    told = {each.prompt.id: reply for each, reply in found}
    assert told == {0: Reply(f"It is {answer}."), 1: Reply(), 2: Reply("I compute two numbers with +, - or *.")}


def _document_lines() -> list[str]:
    return (Path(__file__).parents[2] / "docs" / "questions.md").read_text(encoding="utf-8").splitlines()


def _module(name: str, folder: Path) -> Any:
    sys.path.insert(0, str(folder))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(folder))

"""Chat templates: which values they are given, and that prompts and replies are written with the same ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rollmux.errors import InvalidSpec
from rollmux.trainer.errors import CheckpointRefused, NotTaught
from rollmux.trainer.job import train
from rollmux.trainer.job_file import read_job_file
from rollmux.trainer.settings import Task as TaskSettings
from rollmux.trainer.tasks import Pretrained, build_task
from rollmux.trainer.tasks.template import asked_by
from tests.trainer.jobs import alone
from tests.trainer.talking import BEGIN, END, TEMPLATE, talking
from tests.trainer.templates import GEMMA, LLAMA, QWEN, SMOL
from tests.trainer.test_prompts import counting
from tests.trainer.test_questions import written

TOOL = {"type": "function", "function": {"name": "add", "description": "Seven. How many?"}}
NO_THOUGHTS = "<think>\n\n</think>"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return talking(tmp_path_factory.mktemp("talking"))


def model(plain: str, folder: Path, template: Any) -> str:
    """The same with another template."""
    shutil.copytree(plain, folder)
    tokenizer = AutoTokenizer.from_pretrained(plain)
    (folder / "chat_template.jinja").unlink()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("template", "values"),
    [
        (QWEN, {}),
        (QWEN, {"enable_thinking": False}),
        (QWEN, {"enable_thinking": True, "tools": [TOOL]}),
        (LLAMA, {}),
        (LLAMA, {"date_string": "1 Jan 2000", "tools": [TOOL, TOOL]}),
        (SMOL, {"enable_thinking": False}),
        (GEMMA, {}),
    ],
)
def test_prompts_and_replies_are_written_with_the_same_values(
    template: str, values: dict[str, Any], plain: str, tmp_path: Path
) -> None:
    """What is written turn by turn is the whole conversation as it is written at once, but for thoughts left out."""
    folder = model(plain, tmp_path / "model", template)
    tokenizer = Pretrained(folder, values)
    said = [{"role": role, "content": text} for role, text in (("user", "1?"), ("assistant", "2"), ("user", "3?"))]
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template
    stopped = values if "date_string" in values or template is not LLAMA else {"date_string": "26 Jul 2024"}
    whole, first = (theirs(turns, tokenize=False, add_generation_prompt=True, **stopped) for turns in (said, said[:1]))
    assert tokenizer.talk([("user", "1?")]) == first
    thoughts = NO_THOUGHTS if NO_THOUGHTS in first else ""
    assert thoughts == (NO_THOUGHTS if values.get("enable_thinking") is False else "")
    turn = tokenizer.encode(f"2{END}")
    told = tokenizer.decode(tokenizer.told("3?", turn[-1]))
    assert whole.endswith(f"2{END}{told}")
    assert told.endswith(first[first.rindex(BEGIN) :])


def test_a_name_that_the_template_does_not_ask_for_is_refused_with_the_nearest(plain: str, tmp_path: Path) -> None:
    folder = model(plain, tmp_path / "model", QWEN)
    with pytest.raises(InvalidSpec) as refused:
        Pretrained(folder, {"enable_thinkin": False, "tool": [], "tools": []})
    assert [(each.path, each.limit, each.remedy) for each in refused.value.problems] == [
        ("job.task.template.enable_thinkin", "one of enable_thinking, tools", "the nearest is enable_thinking"),
        ("job.task.template.tool", "one of enable_thinking, tools", "the nearest is tools"),
    ]


@pytest.mark.parametrize(
    "name", ["messages", "add_generation_prompt", "bos_token", "namespace", "strftime_now", "role"]
)
def test_what_every_template_is_given_is_no_value_to_give_it(name: str, plain: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=rf"job\.task\.template\.{name} = .* the nearest is"):
        Pretrained(model(plain, tmp_path / "model", LLAMA), {name: "x"})


def test_a_template_that_asks_for_nothing_or_none_is_given_nothing(plain: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"template\.tools = \[\]: must be nothing: the model's chat template asks"):
        Pretrained(plain, {"tools": []})
    with pytest.raises(
        InvalidSpec, match=r"job\.task\.template = .*: must be left out: the model has no chat template"
    ):
        Pretrained(talking(tmp_path, template=None), {"tools": []})


def test_what_a_template_asks_for_is_seen_through_all_that_transformers_adds_to_jinja() -> None:
    broken_off = "{% for message in messages %}{% if until %}{% break %}{% endif %}{% endfor %}"
    assert asked_by(SMOL + broken_off) == {"enable_thinking", "until"}
    assert asked_by(LLAMA) == {"bos_token", "date_string", "tools"}
    assert asked_by("{% set mine = 1 %}{{ mine }}{{ namespace(a=1).a }}") == set()


def test_where_it_can_not_be_seen_what_a_template_asks_for_it_is_given_all(plain: str, tmp_path: Path) -> None:
    tokenizer = Pretrained(model(plain, tmp_path / "model", "{% strange %}"), {"enable_thinking": False})
    with pytest.raises(NotTaught, match="unknown tag 'strange'"):
        tokenizer.talk([("user", "1?")])
    none = Pretrained(model(plain, tmp_path / "other", {"rag": TEMPLATE}), {"enable_thinking": False})
    with pytest.raises(NotTaught, match="Available template names are"):
        none.talk([("user", "1?")])


def test_of_several_templates_the_one_for_tools_is_given_tools(plain: str, tmp_path: Path) -> None:
    folder = model(plain, tmp_path / "model", {"default": TEMPLATE, "tool_use": QWEN})
    assert Pretrained(folder, {"tools": [TOOL]}).talk([("user", "1?")]).startswith(f"{BEGIN}system\nTools: {{")
    assert "Tools" not in Pretrained(folder).talk([("user", "1?")])


# -- in a job file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "is_right"),
    [
        ("{enable_thinking: false}", True),
        ("{tools: [{type: function, function: {name: add}}], date_string: '2024-07-26', depth: 2, rate: .5}", True),
        ("{date_string: 2024-07-26}", False),
        ("{depth: .nan}", False),
        ("{name: '\\uD83D'}", True),
        ('{name: "\\uD83D"}', False),
        ("{1: x}", False),
        ("[enable_thinking]", False),
        ("enable_thinking", False),
        ("&all {more: *all}", False),
    ],
)
def test_values_for_a_template_are_of_kinds_that_json_has(said: str, is_right: bool, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"model: {{path: model}}\ntask: {{name: counting, template: {said}}}\n")
    if is_right:
        assert json.dumps(read_job_file(path).task.template)
    else:
        with pytest.raises(InvalidSpec, match=r"1 problem:\s+job\.task\.template = .*dates in quotes"):
            read_job_file(path)


def test_a_task_that_no_template_writes_has_none(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("task: {name: guessing, template: {tools: []}}\n")
    with pytest.raises(InvalidSpec, match=r"job\.task\.template = .* left out with guessing"):
        read_job_file(tmp_path / "job.yaml")


def test_each_task_of_a_model_that_talks_is_put_with_the_values_of_the_job_file(plain: str, tmp_path: Path) -> None:
    folder, path = model(plain, tmp_path / "model", QWEN), written(tmp_path / "mine.jsonl", {"answer": 1})
    for settings in (
        TaskSettings(name="counting", template={"enable_thinking": False}),
        TaskSettings(name="questions", path=str(path), template={"enable_thinking": False}),
    ):
        assert build_task(settings, 0, folder).prompt(0).endswith(f"{NO_THOUGHTS}\n\n")


@pytest.mark.parametrize("then", [{}, {"enable_thinking": True}])
def test_a_run_goes_on_with_the_values_that_it_began_with_alone(
    then: dict[str, Any], plain: str, tmp_path: Path
) -> None:
    """Even where they change no prompt, as a template of replies alone might."""
    folder = model(
        plain, tmp_path / "model", TEMPLATE + "{% if enable_thinking is defined and not messages %}{% endif %}"
    )
    task = {"name": "counting", "prompts": 4, "largest": 9, "median": 3, "longest": 5}
    train(counting(folder, task={**task, "template": then}), tmp_path / "run", alone())
    now = counting(folder, task={**task, "template": {"enable_thinking": False}}, steps=2)
    with pytest.raises(CheckpointRefused, match=r"job\.task\.template was \{.*\} and is \{'enable_thinking': False\}"):
        train(now, tmp_path / "run", alone(), resume=True)

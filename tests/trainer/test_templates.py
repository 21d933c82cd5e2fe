"""Chat templates: which values they are given, and that prompts and replies are written with the same ones."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rollmux.errors import InvalidSpec
from rollmux.runtime.rewards import Message
from rollmux.trainer.errors import CheckpointRefused, NotTaught
from rollmux.trainer.job import train
from rollmux.trainer.job_file import read_job_file
from rollmux.trainer.settings import Task as TaskSettings
from rollmux.trainer.tasks import Pretrained, build_task
from rollmux.trainer.tasks.template import asked_by
from tests.trainer.jobs import alone
from tests.trainer.talking import BEGIN, END, TEMPLATE, talking
from tests.trainer.templates import CALL_END, GEMMA, GLM, LLAMA, LLAMA_CALLS, QWEN, SILENT, SMOL
from tests.trainer.test_prompts import counting
from tests.trainer.test_questions import written

TOOL = {"type": "function", "function": {"name": "add", "description": "Seven. How many?"}}
NO_THOUGHTS = "<think>\n\n</think>"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return talking(tmp_path_factory.mktemp("talking"))


@pytest.fixture(scope="module")
def both(plain: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Models whose templates write a tool's words in two ways."""
    folder = tmp_path_factory.mktemp("both")
    return model(plain, folder / "llama", LLAMA), model(plain, folder / "smol", SMOL)


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
    assert asked_by(SMOL + broken_off) == {"enable_thinking": True, "until": True}
    assert asked_by(LLAMA) == {"bos_token": True, "date_string": True, "tools": True}
    assert asked_by("{% set mine = 1 %}{{ mine }}{{ namespace(a=1).a }}") == {}
    assert asked_by("{% if messages %}{% set mine = 1 %}{% endif %}{{ mine }}") == {"mine": False}
    assert asked_by("{% set date = date | default('today') %}") == {"date": True}


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


# -- who says what is told ---------------------------------------------------------------------------------------------

USER, ONE, TWO = ({"role": role, "content": text} for role, text in (("user", "3?"), ("tool", "4"), ("tool", '5 "or"')))


def theirs(folder: str, said: list[Message], **values: Any) -> str:
    """What Transformers writes of a whole conversation, behind its second turn."""
    turns = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "It is 2"}, *said]
    written = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True, **values
    )
    return str(written).partition("It is 2")[2]


@pytest.mark.parametrize("template", [QWEN, LLAMA, SMOL, TEMPLATE], ids=["Qwen", "Llama", "SmolLM", "ChatML"])
@pytest.mark.parametrize("said", [[ONE], [ONE, TWO], [TWO, USER], [USER, {**ONE, "name": "add", "tool_call_id": "a"}]])
def test_what_tools_say_is_written_as_the_template_writes_it(
    template: str, said: list[Message], plain: str, tmp_path: Path
) -> None:
    folder = model(plain, tmp_path / "model", template)
    tokenizer = Pretrained(folder)
    assert tokenizer.decode(tokenizer.told(said, tokenizer.end_tokens[0])) == theirs(folder, said).removeprefix(END)


def of_two_ends(folder: Path, template: str) -> Pretrained:
    """Of a model whose turns may end by a second token."""
    tokenizer = AutoTokenizer.from_pretrained(talking(folder, template=template))
    tokenizer.add_special_tokens({"additional_special_tokens": [CALL_END]})
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        content["eos_token_id"] = [1, tokenizer.convert_tokens_to_ids(CALL_END)]
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return Pretrained(str(folder))


@pytest.mark.parametrize("said", [[ONE], [USER]], ids=["tool", "user"])
def test_an_end_that_the_template_has_in_place_of_its_other_one_stands_alone(
    said: list[Message], tmp_path: Path
) -> None:
    """Llama 3.1's form of a call is `…<|eom_id|><|start_header_id|>ipython…`."""
    tokenizer = of_two_ends(tmp_path, LLAMA_CALLS)
    end, call_end = tokenizer.end_tokens
    assert tokenizer.decode((call_end,)) == CALL_END
    assert tokenizer.told(said, call_end) == tokenizer.told(said, end)
    assert tokenizer.decode(tokenizer.told(said, end)).startswith(BEGIN)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (LLAMA, [ONE]),  # it knows no such end: the turn ends as it writes it
        (LLAMA_CALLS.replace("Today is", f"Say {CALL_END}."), [ONE]),  # and here that is none of an answer
    ],
)
def test_behind_any_other_end_a_turn_ends_as_the_template_does(
    template: str, said: list[Message], tmp_path: Path
) -> None:
    tokenizer = of_two_ends(tmp_path, template)
    end, other = tokenizer.end_tokens
    assert tokenizer.told(said, other) == (end, *tokenizer.told(said, end))


def test_who_speaks_is_told_though_the_model_has_named_another(tmp_path: Path) -> None:
    tokenizer = of_two_ends(tmp_path, GLM)
    _, tools = tokenizer.end_tokens
    assert tokenizer.decode(tokenizer.told([ONE], tools)) == "\n4<|assistant|>\n"
    assert tokenizer.decode(tokenizer.told([USER], tools)) == "<|user|>\n3?<|assistant|>\n"


def test_what_a_template_raises_commands_no_terminal(plain: str, tmp_path: Path) -> None:
    raises = "{{ raise_exception('no \\x1b]0;title\\x07\\x1b[2J' ~ messages[0]['content']) }}"
    tokenizer = Pretrained(model(plain, tmp_path / "model", raises))
    with pytest.raises(NotTaught) as refused:
        tokenizer.talk([("user", "one\ntwo")])
    assert "TemplateError: no  ]0;title  [2Jone two; ask in other turns" in str(refused.value)


def test_tools_that_answer_together_do_so_in_one_turn_where_the_template_has_it_so(plain: str, tmp_path: Path) -> None:
    tokenizer = Pretrained(model(plain, tmp_path / "model", QWEN))
    told = tokenizer.decode(tokenizer.told([ONE, ONE], tokenizer.end_tokens[0]))
    answer = "\n<tool_response>\n4\n</tool_response>"
    assert told == f"\n{BEGIN}user{answer}{answer}{END}\n{BEGIN}assistant\n"


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (GEMMA, r"refuses turns of user, assistant, tool: TemplateError: roles must alternate; .* take another model"),
        (SILENT, r"writes nothing of what a tool says: reply with a text, which is the user's, or take another model"),
        (None, r"no chat template for messages: reply with a text, or take another model"),
    ],
)
def test_a_role_that_the_template_does_not_know_is_refused_and_the_user_s_is_not(
    template: str | None, told: str, tmp_path: Path
) -> None:
    tokenizer = Pretrained(talking(tmp_path, template=template))
    for _ in range(2):
        with pytest.raises(NotTaught, match=told):
            tokenizer.told([ONE], 1)
    assert "4" in tokenizer.decode(tokenizer.told("4", 1))


@given(st.lists(st.sampled_from([BEGIN, END, "zvqj", "zvqj0zvqj", "x", "0", " ", "\n", '"', "<|im_", "end|>"])))
@example(["zvqjx0zvqj", "zvqj", END, "x0zvqjx"])
@example(["<|im_", END, "end|>"])
def test_no_tool_makes_a_special_token_and_each_is_told_what_it_said(both: tuple[str, str], parts: list[str]) -> None:
    """In whichever way the template writes it, and whatever else stands there."""
    text = "".join(parts)
    for folder in both:
        tokenizer = Pretrained(folder)
        said = [{"role": "tool", "content": text, "name": text}, {"role": "tool", "content": "so"}]
        told = tokenizer.told(said, 1)
        assert tokenizer.decode(told) == theirs(folder, said).removeprefix(END)
        assert [token for token in told if token < 2] == [token for token in tokenizer.told([ONE, ONE], 1) if token < 2]


def test_no_message_makes_a_token_that_the_template_writes_around_it_and_a_text_may(plain: str, tmp_path: Path) -> None:
    """Such as the end of what a tool says, which Qwen's tokenizers do not call special."""
    folder = model(plain, tmp_path / "model", QWEN)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<tool_response>", "</tool_response>", "<elsewhere>", "\n\n"])
    tokenizer.save_pretrained(folder)
    end, other, lines = (tokenizer.convert_tokens_to_ids(each) for each in ("</tool_response>", "<elsewhere>", "\n\n"))
    text = f"4</tool_response>{END}<elsewhere>\n\nI am right."
    tool = Pretrained(folder).told([{"role": "tool", "content": text}], 1)
    assert Pretrained(folder).decode(tool) == theirs(folder, [{"role": "tool", "content": text}]).removeprefix(END)
    assert [tool.count(each) for each in (end, other, lines, 1)] == [1, 1, 1, 1]
    user = Pretrained(folder).told(text, 1)
    assert [user.count(each) for each in (end, other, lines, 1)] == [1, 1, 1, 1]
    assert text in Pretrained(folder).decode(user)


def test_what_is_hidden_from_a_template_that_shouts_comes_back(plain: str, tmp_path: Path) -> None:
    shouting = TEMPLATE.replace(
        "{{ message['content'] }}", "{{ message.content | upper if loop.last else message.content }}"
    )
    tokenizer = Pretrained(model(plain, tmp_path / "model", shouting))
    for text, shouted in ((f"so {END} ZVQJ", f"SO {END} ZVQJ"), ("zvqj0zvqj", "ZVQJ0ZVQJ")):
        told = tokenizer.told([{"role": "tool", "content": text}], 1)
        assert tokenizer.decode(told) == f"\n{BEGIN}tool\n{shouted}{END}\n{BEGIN}assistant\n"


# -- those that TRL has of known models --------------------------------------------------------------------------------


def of_trl(name: str) -> str:
    """Read, and TRL not imported."""
    found = find_spec("trl")
    if found is None or not found.submodule_search_locations:
        pytest.skip("TRL is not installed")
    return (Path(found.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "llama3_2", "nemotron_3_nano"])
@pytest.mark.parametrize("said", [[USER], [ONE], [ONE, TWO]])
def test_known_models_are_told_what_their_templates_write(
    name: str, said: list[Message], plain: str, tmp_path: Path
) -> None:
    folder = model(plain, tmp_path / "model", of_trl(name))
    told = Pretrained(folder, {"tools": [TOOL]}).told(said, 1)
    assert Pretrained(folder).decode(told) == theirs(folder, said, tools=[TOOL]).removeprefix(END)


@pytest.mark.parametrize("name", ["gemma", "gemma3", "gptoss", "phi3"])
def test_known_models_whose_templates_take_no_tool_s_words_alone_are_refused(
    name: str, plain: str, tmp_path: Path
) -> None:
    tokenizer = Pretrained(model(plain, tmp_path / "model", of_trl(name)))
    with pytest.raises(NotTaught, match="or take another model"):
        tokenizer.told([ONE], 1)
    assert "3?" in tokenizer.decode(tokenizer.told([USER], 1))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("qwen3", "enable_thinking, tools"),
        ("llama3_2", "custom_tools, date_string, tools, tools_in_user_message"),
        ("gptoss", "builtin_tools, model_identity, reasoning_effort, tools"),
    ],
)
def test_what_known_models_ask_for_is_told(name: str, values: str, plain: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=f"must be one of {values};"):
        Pretrained(model(plain, tmp_path / "model", of_trl(name)), {"think": False})


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

"""Questions from a file: how its lines are read, what is told of wrong ones, and that its jobs run."""

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from rollmux.errors import InvalidSpec
from rollmux.packer import Prompt, Request
from rollmux.runtime.judge.opening import JudgeRefused
from rollmux.runtime.rewards import CodeTask, FunctionTask, JudgeTask, MathsTask, Reward, Status
from rollmux.runtime.sandbox import Concern
from rollmux.trainer.errors import CheckpointRefused, ModelMissing, NotTaught
from rollmux.trainer.job import _Run, train
from rollmux.trainer.job_file import read_job
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.pooled import open_pooled
from rollmux.trainer.ranks import Roles
from rollmux.trainer.settings import JobFile, Rewards
from rollmux.trainer.tasks import MadeTask, Pretrained, Questions
from rollmux.trainer.tasks.questions import MOST_PROBLEMS, in_words, program_in, read_questions
from tests.trainer.jobs import alone
from tests.trainer.talking import BEGIN, END, TEMPLATE, talking

EXAMPLES = Path(__file__).parents[2] / "examples" / "train"
ALLOW = ", ".join(Concern.__members__)  # whatever this machine can't prevent
FENCED = "Here it is:\n```python\ndef double(x):\n    return 2 * x\n```\nDone."
TALK = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": FENCED}]
JUDGED = "<|im_start|>user\n{prompt} {response} {tone}?<|im_end|>\n<|im_start|>assistant\n"
ONE_OF_EACH: Mapping[str, Mapping[str, Any]] = {
    "answer": {"answer": "\\frac{1}{2}"},
    "cases": {"cases": [{"stdin": "3", "expected": "9"}], "group": "squares"},
    "asserts": {"asserts": "assert double(2) == 4"},
    "function": {"function": "questions_scores:listed", "arguments": {"items": 3}},
    "judge": {"judge": JUDGED, "fields": {"tone": "Polite"}, "answers": {"y": 2, "n": -1}},
}


def lines(*found: Mapping[str, Any]) -> bytes:
    return "\n".join(json.dumps({"prompt": "How many?", **each}) for each in found).encode()


def written(path: Path, *found: Mapping[str, Any]) -> Path:
    path.write_bytes(lines(*found))
    return path


def worth_nothing(folder: Path, **more: Any) -> Path:
    """A question of no answer. Where one is compared, its pool begins with two seconds of a core."""
    (folder / "worthless.py").write_text("def score(response, messages=()):\n    return 0.0\n")
    return written(folder / "mine.jsonl", {"function": "worthless:score", **more})


def problems(content: bytes) -> dict[str, tuple[str, str]]:
    with pytest.raises(InvalidSpec) as refused:
        read_questions(content, "mine.jsonl", str(EXAMPLES))
    return {each.path: (each.limit, each.remedy) for each in refused.value.problems}


def test_each_sort_of_line_becomes_what_a_pool_is_asked() -> None:
    maths, cases, asserts, function, judge = (
        each.asked(FENCED) for each in read_questions(lines(*ONE_OF_EACH.values()), "mine", str(EXAMPLES))
    )
    assert maths == MathsTask(FENCED, "\\frac{1}{2}")
    assert isinstance(cases, CodeTask)
    assert (cases.problem, cases.group, cases.program.source) == ("line 2", "squares", program_in(FENCED))
    assert isinstance(asserts, CodeTask)
    assert (asserts.problem, asserts.asserts) == ("line 3", "assert double(2) == 4")
    assert function == FunctionTask("questions_scores:listed", {"items": 3, "response": FENCED})
    fields = {"prompt": "How many?", "tone": "Polite", "response": FENCED, "conversation": in_words(TALK)}
    assert judge == JudgeTask(JUDGED, fields, {"y": 2.0, "n": -1.0})


def test_a_judge_says_yes_or_no_where_nothing_else_is_said() -> None:
    (question,) = read_questions(lines({"judge": "{response}?"}), "mine")
    asked = question.asked("so")
    assert isinstance(asked, JudgeTask)
    assert asked.answers == {"yes": 1.0, "no": 0.0}


@given(st.text(), st.sampled_from(sorted(ONE_OF_EACH)))
def test_no_response_keeps_itself_from_being_scored(response: str, sort: str) -> None:
    (question,) = read_questions(lines(ONE_OF_EACH[sort]), "mine", str(EXAMPLES))
    question.asked(response)


@pytest.mark.parametrize(
    ("response", "source"),
    [
        (FENCED, "def double(x):\n    return 2 * x\n"),
        ("```\none()\n```\nBetter:\n```py\ntwo()\n```", "two()\n"),
        ("It is\n```python\ncut_off(", "cut_off("),
        ("plain()", "plain()"),
        ("`inline()` is no block", "`inline()` is no block"),
        ("1. So:\n   ```python\n   if x:\n       y()\n   ```\n", "if x:\n    y()\n"),
        ("~~~\ntilde()\n~~~\n", "tilde()\n"),
        ("````python\ntext = '\\\n```\n'\n````\n", "text = '\\\n```\n'\n"),
        ("", "pass"),
        ("```python\n\n```", "pass"),
    ],
)
def test_the_program_is_the_last_block_or_all_of_it(response: str, source: str) -> None:
    assert program_in(response) == source


@pytest.mark.parametrize(
    "response",
    [
        "class Solution:\n    def first(self, of: List[int]) -> int:\n        return of[0]",
        '"""Mine."""\nfrom __future__ import annotations\nfrom __future__ import division\nof: List[int] = 3',
    ],
)
def test_a_prelude_is_what_a_program_may_take_for_granted(response: str) -> None:
    line = {"asserts": "assert Solution().first([3]) == 3", "prelude": "from typing import List\nList[int]"}
    (question,) = read_questions(lines(line), "mine")
    asked = question.asked(response)
    assert isinstance(asked, CodeTask)
    exec(asked.program.source, {})
    with pytest.raises(NameError, match="List"):
        exec(response.replace("from __future__ import annotations", ""), {})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({}, "question"),
        ({"answer": "1", "function": "a:b"}, "question"),
        ({"anser": "1"}, "question"),
        ({"answer": True}, "question"),
        ({"answer": "1", "prompt": ""}, "prompt"),
        ({"answer": "1", "prompt": []}, "prompt"),
        ({"answer": "1", "prompt": [{"role": "assistant", "content": "Hello."}]}, "prompt"),
        ({"answer": "1", "prompt": [{"role": "robot", "content": "Hello."}]}, "question"),
        ({"answer": "1", "group": "easy"}, "group"),
        ({"answer": "1", "prelude": "import re"}, "prelude"),
        ({"asserts": "assert f()", "prelude": "from typing import"}, "prelude"),
        ({"asserts": "assert f()", "prelude": "return"}, "prelude"),
        ({"answer": " "}, "answer"),
        ({"asserts": "assert f()", "fields": {}}, "fields"),
        ({"cases": []}, "code_task.cases"),
        ({"asserts": ""}, "code_task.cases"),
        ({"function": "scores"}, "function"),
        ({"function": "scores:listed", "arguments": {"response": 1}}, "arguments"),
        ({"function": "nowhere_at_all:f"}, "function"),
        ({"function": "json.nowhere_at_all:f"}, "function"),
        ({"function": "json.decoder.JSONDecoder:f"}, "function"),
        ({"function": ".scores:f"}, "function"),
        ({"function": "my scores:f"}, "function"),
        ({"asserts": "assert (("}, "asserts"),
        ({"asserts": "# nothing"}, "asserts"),
        ({"asserts": "assert f(x=2, x=2) == 4"}, "asserts"),
        ({"asserts": "x = f(2)\nreturn x == 4"}, "asserts"),
        ({"asserts": "assert await f(2) == 4"}, "asserts"),
        ({"asserts": f"assert f(2) == {'1 + ' * 2000}1"}, "asserts"),
        ({"judge": "{response} {tone}"}, "judge_task.fields"),
        ({"judge": "{response}", "fields": {"prompt": "another"}}, "fields"),
        ({"judge": "{response}", "fields": {"conversation": "another"}}, "fields"),
        ({"judge": "{response}", "answers": {}}, "judge_task.answers"),
        ({"judge": "{response}", "answers": {"yes": 1e10, "no": 0}}, "judge_task.answers"),
        ({"judge": "Is it?"}, "judge"),
        ({"judge": ""}, "judge"),
        ({"judge": "{response", "answers": {"yes": 1}}, "judge_task.template"),
        ({"judge": "{response!x}"}, "judge_task.template"),
        ({"judge": "{response!r}"}, "judge_task.template"),
        ({"judge": "{response:.2f}?"}, "judge_task.template"),
        ({"judge": "{response} in {tone: kind or not}", "fields": {"tone": "x"}}, "judge_task.template"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_with_its_number(line: Mapping[str, Any], told: str) -> None:
    found = problems(lines({"answer": "1"}, line, {"answer": "2"}))
    assert f"line 2: {told}" in found
    assert all(path.startswith("line 2: ") for path in found)


def test_what_python_warns_of_in_asserts_is_taken_without_a_word() -> None:
    assert len(read_questions(lines({"asserts": "assert (f(2) is 4, '\\d')"}), "mine")) == 1


def test_modules_of_packages_are_found_and_none_is_imported(tmp_path: Path) -> None:
    for place in ("mine_pack/deep", "mine_bare/bare"):
        (tmp_path / place).mkdir(parents=True)
    for file in ("mine_pack/__init__.py", "mine_pack/deep/__init__.py", "mine_pack/deep/f.py", "mine_bare/bare/f.py"):
        (tmp_path / file).write_text("raise SystemExit")
    functions = ("mine_pack:f", "mine_pack.deep.f:f", "mine_bare.bare.f:f", "os.path:join")
    found = [{"function": each} for each in functions]
    assert len(read_questions(lines(*found), "mine", str(tmp_path))) == 4
    with pytest.raises(InvalidSpec, match=r"line 5: function = 'mine_pack\.f:f'.*put mine_pack/f\.py beside the file"):
        read_questions(lines(*found, {"function": "mine_pack.f:f"}), "mine", str(tmp_path))


def test_of_a_file_that_is_wrong_throughout_the_first_lines_are_told() -> None:
    assert list(problems(b"{\n" * 50)) == [f"line {number}: question" for number in range(1, MOST_PROBLEMS + 1)]


@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt": "\xff", "answer": "1"}',
        b'{"prompt": "1?", "prompt": "2?", "answer": "1"}',
        b'{"prompt": "1?", "function": "questions_scores:listed", "arguments": ' + b"[" * 100_000,
        b'{"prompt": "1?", "answer": 1e400}',
    ],
)
def test_what_is_no_object_of_its_own_is_told(content: bytes) -> None:
    assert list(problems(content)) == ["line 1: question"]


@pytest.mark.parametrize(
    ("content", "form"),
    [(b"PAR1\x15\n\x04", "a Parquet file"), (b'[\n{"prompt": "1?"}\n]', "one list"), (b"\x1f\x8b\n", "a packed file")],
)
def test_a_file_without_lines_is_told_once_and_how_to_make_some(content: bytes, form: str) -> None:
    with pytest.raises(InvalidSpec, match=rf"1 problem:\n  lines = '{form}'.*docs/questions\.md makes lines"):
        read_questions(content, "mine")


@pytest.mark.parametrize("row", [{"question": "1?", "answer": "1"}, {"prompt": "1?", "answer": {"target": 1}}])
def test_a_row_of_another_data_set_is_told_how_to_become_a_line(row: Mapping[str, Any]) -> None:
    ((_, remedy),) = problems(json.dumps(row).encode()).values()
    assert "docs/questions.md makes lines of other data sets' rows" in remedy


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("0.5", "0.5"), ("0.00001", "0.00001"), ("1e-7", "0.0000001"), ("1e22", "1" + "0" * 22), ("7", "7"), ('"x"', "x")],
)
def test_an_answer_is_compared_as_people_write_it(answer: str, gold: str) -> None:
    (question,) = read_questions(b'{"prompt": "1?", "answer": %s}' % answer.encode(), "mine")
    assert question.asked("so") == MathsTask("so", gold)


@pytest.mark.parametrize("content", [b"", b"\n  \n"])
def test_a_file_without_a_question_is_refused(content: bytes) -> None:
    assert list(problems(content)) == ["lines"]


# -- behind a model ----------------------------------------------------------------------------------------------------


def test_a_prompt_is_put_in_the_model_s_own_form_below_the_system_text(folder: str, tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3?"},
    ]
    own = [{"role": "system", "content": "Sing."}, {"role": "user", "content": "4?"}]
    prompts: list[object] = ["5?", turns, own]
    path = written(tmp_path / "mine.jsonl", *({"answer": 1, "prompt": each} for each in prompts))
    task = Questions(path, "Count.", Pretrained(folder))

    def form(*said: tuple[str, str]) -> str:
        return "".join(f"<|im_start|>{role}\n{text}{END}\n" for role, text in said) + "<|im_start|>assistant\n"

    system = ("system", "Count.")
    assert task.prompt(0) == form(system, ("user", "5?"))
    assert task.prompt(1) == form(system, ("user", "1?"), ("assistant", "2"), ("user", "3?"))
    assert task.prompt(2) == form(("system", "Sing."), ("user", "4?"))
    assert Questions(path, "", Pretrained(folder)).prompt(0) == form(("user", "5?"))
    assert not isinstance(task, MadeTask)
    assert task.asked(0, f"6{END}") == MathsTask("6", "1")


def test_a_model_that_was_not_taught_to_talk_reads_a_prompt_as_it_stands(folder: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    (tmp_path / "config.json").write_bytes((Path(folder) / "config.json").read_bytes())
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b"\n" + lines({"answer": 1, "prompt": "5? "}))
    plain = Pretrained(str(tmp_path))
    assert Questions(path, "", plain).prompt(0) == "5? "
    with pytest.raises(NotTaught, match="no chat template"):
        Questions(path, "Count.", plain).prompt(0)
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(
        NotTaught, match=r"line 2 of the questions: .* turns of system, user: TemplateError: no system role"
    ):
        Questions(path, "Count.", Pretrained(str(tmp_path))).prompt(0)


@pytest.mark.parametrize("adds", [f"{BEGIN} $A", f"{BEGIN} $A {END}", "$A", f"$A {END}"])
@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_where_no_template_begins_a_prompt_the_tokenizer_does_if_it_would(
    template: str | None, adds: str, tmp_path: Path
) -> None:
    """As those of base models of Llama, Gemma and Mistral do: without its first token one talks nonsense."""
    model = talking(tmp_path / "model", template=template)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(adds, special_tokens=[(BEGIN, 0), (END, 1)])
    tokenizer.save_pretrained(model)
    reads = Pretrained(model)
    begun = [0] if template is None and BEGIN in adds else []
    assert reads.encode("5?") == (*begun, *tokenizer.encode("5?", add_special_tokens=False))
    assert reads.encode(f"{BEGIN}5?") == tuple(tokenizer.encode(f"{BEGIN}5?", add_special_tokens=False))


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ messages[0]['content'] + 1 }}", "TypeError: can only concatenate str"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ({"rag": TEMPLATE}, "ValueError: .* Available template names are"),
    ],
    ids=["adds to a text", "divides", "of names"],
)
def test_a_template_may_fail_in_any_way(template: Any, told: str, folder: str, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    (tmp_path / "model" / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(tmp_path / "model")
    task = Questions(written(tmp_path / "mine.jsonl", {"answer": 1}), "", Pretrained(str(tmp_path / "model")))
    with pytest.raises(NotTaught, match=f"line 1 of the questions: .* turns of user: {told}"):
        task.prompt(0)


def test_a_model_whose_responses_would_never_end_is_refused(folder: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((Path(folder) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    with pytest.raises(NotTaught, match="no end token"):
        Pretrained(str(tmp_path))


@pytest.mark.parametrize("named", ["generation_config.json", "config.json"])
def test_a_response_ends_as_the_model_says_too_and_that_is_not_scored(named: str, tmp_path: Path) -> None:
    """As a turn of Phi's or Gemma's does. What stands for a text ends nothing, whoever names it: 50 is an O."""
    model = tmp_path / "model"
    talking(model, ends=[0, 1, 50, 1000])
    for path in {model / "config.json", model / "generation_config.json"} - {model / named}:
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": None}))
    task = Questions(written(tmp_path / "mine.jsonl", {"answer": 1}), "", Pretrained(str(model)))
    assert task.tokenizer.end_tokens == (1, 0)
    for response in ("6", f"6{END}", f"6{BEGIN}"):
        assert task.asked(0, response) == MathsTask("6", "1")


@pytest.mark.parametrize("ends", [0, [0, 1]])
def test_an_answer_that_the_template_ends_otherwise_than_responses_end_is_warned_of(
    ends: int | list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As base models of Qwen's: their template ends a turn, and their configuration names the end of a text alone."""
    model = talking(tmp_path / "model", ends=ends)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.eos_token = BEGIN
    tokenizer.save_pretrained(model)
    path = worth_nothing(tmp_path)
    batching = {"prompts": 1, "responses": 2}
    train(job(model, path, steps=1, batching=batching, sampling={"max_tokens": 4}), tmp_path / "run", alone())
    told = f"the model's chat template ends an answer with '{END}', which ends no response: responses go on behind it"
    assert (told in caplog.text) is (ends == 0)


def test_a_configuration_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    model = talking(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelMissing, match=r"generation_config\.json can't be read"):
        Pretrained(model)


def test_a_tokenizer_that_can_not_be_loaded_is_told(tmp_path: Path) -> None:
    model = talking(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelMissing, match=r"the tokenizer in .* can't be loaded \(.*\)"):
        Pretrained(model)


def test_a_file_as_windows_writes_it_is_the_same(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + lines({"answer": 1}, {"answer": 2}).replace(b"\n", b"\r\n"))
    assert len(Questions(path, "", Pretrained(folder))) == 2


def test_another_function_beside_the_file_is_another_task(folder: str, tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", {"function": "beside_mine:f"})
    digests = []
    for value in (1, 2):
        (tmp_path / "beside_mine.py").write_text(f"def f(response):\n    return {value}\n")
        digests.append(Questions(path, "", Pretrained(folder)).digest)
    assert digests[0] != digests[1]


@pytest.mark.parametrize("file", ["beside_pack/__init__.py", "beside_pack/scores.py"])
def test_and_so_is_another_package_of_functions(file: str, folder: str, tmp_path: Path) -> None:
    (tmp_path / "beside_pack").mkdir()
    path, digests = written(tmp_path / "mine.jsonl", {"function": "beside_pack.scores:f"}), set[str]()
    for name in ("beside_pack/__init__.py", "beside_pack/scores.py"):
        (tmp_path / name).write_text("def f(response):\n    return 1\n")
    for value in (1, 2):
        (tmp_path / file).write_text(f"def f(response):\n    return {value}\n")
        digests.add(Questions(path, "", Pretrained(folder)).digest)
    assert len(digests) == 2


def scored(task: Questions, responses: Sequence[str], **rewards: Any) -> list[Reward]:
    """By a pool as a job has it, each question with its response."""
    found: dict[Request, Reward] = {}
    with closing(open_pooled(Rewards(scorer="pool", allow=ALLOW, **rewards), task, {})) as pool:
        for number, response in enumerate(responses):
            pool.submit(Request(1, Prompt(0, number), 0), response)
        while pool.pending:
            found |= {each.request: each.reward for each in pool.collect(wait=True)}
    return [found[Request(1, Prompt(0, number), 0)] for number in range(len(responses))]


def test_right_and_wrong_responses_to_questions_of_each_sort(folder: str, tmp_path: Path) -> None:
    (tmp_path / "mine_scores.py").write_text("def length(response, most):\n    return min(most, len(response))\n")
    sorts: list[Mapping[str, Any]] = [
        {"answer": "0.5"},
        {"cases": [{"stdin": "3\n", "expected": "9"}]},
        {"asserts": "assert double(2) == 4"},
        {"function": "mine_scores:length", "arguments": {"most": 4}},
    ]
    task = Questions(written(tmp_path / "mine.jsonl", *sorts, *sorts), "", Pretrained(folder))
    right = ["It is \\boxed{\\frac{1}{2}}.", "```python\nprint(int(input()) ** 2)\n```", FENCED, "much more"]
    wrong = ["It is 2.", "```python\nprint(8)\n```", "I can't.", "no"]
    rewards = scored(task, [f"{each}{END}" for each in (*right, *wrong)])
    assert [each.value for each in rewards] == [1, 1, 1, 4, 0, 0, 0, 2]


@pytest.mark.parametrize("functions", ["trusted", "confined"])
def test_a_job_may_confine_the_functions_that_score_its_questions(functions: str, folder: str, tmp_path: Path) -> None:
    """What one may do is told by the environment: confined, it is not that of whoever trains."""
    (tmp_path / "mine_held.py").write_text(
        "import os\n\ndef f(response):\n    return 'PYTEST_CURRENT_TEST' in os.environ\n"
    )
    task = Questions(written(tmp_path / "mine.jsonl", {"function": "mine_held:f"}), "", Pretrained(folder))
    (reward,) = scored(task, ["so"], functions=functions)
    assert reward.value == (functions == "trusted")


def test_a_judge_from_a_folder_says_how_likely_it_gives_each_answer(folder: str, tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", ONE_OF_EACH["judge"], {"judge": JUDGED, "fields": {"tone": "x" * 4000}})
    task = Questions(path, "", Pretrained(folder))
    judged, refused = scored(task, ["Please.", "Please."], judge=folder)
    assert judged.status is Status.SCORE
    assert -1 < judged.value < 2
    assert refused.status is Status.ERROR
    assert "tokens with the answer" in refused.detail
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    with pytest.raises(JudgeRefused, match=r"Llama or Qwen model"):
        scored(task, ["Please."], judge=str(empty))
    for nowhere in ("", str(tmp_path / "nowhere")):
        with pytest.raises(InvalidSpec, match=r"job\.rewards\.judge"):
            scored(task, [], judge=nowhere)


def job(folder: str, path: Path, **changed: Any) -> JobFile:
    """The example with a model whose tokens are characters."""
    data = yaml.safe_load((EXAMPLES / "questions.yaml").read_text(encoding="utf-8"))
    data["task"]["path"], data["model"] = str(path), {"path": folder}
    data["rollout"] = {"running": 32, "room_tokens": 32768, "max_length": 512}
    data |= {"rewards": {"scorer": "pool", "allow": ALLOW}, "checkpoint_every": 1}
    return read_job(data | changed)


def test_the_example_runs_and_goes_on_with_no_other_questions(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_bytes((EXAMPLES / "questions.jsonl").read_bytes())
    (tmp_path / "questions_scores.py").write_bytes((EXAMPLES / "questions_scores.py").read_bytes())
    batching = {"mode": "sync", "prompts": 8, "responses": 2}
    settings = job(folder, path, steps=2, batching=batching, sampling={"max_tokens": 12})
    train(settings, tmp_path / "run", alone())
    steps = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert [(each["prompts"], each["responses"], each["failures"]) for each in steps] == [(8, 16, {})] * 2
    path.write_bytes(path.read_bytes() + lines({"answer": 1}))
    with pytest.raises(CheckpointRefused, match=r"job\.task\.path's content .* or name another --out"):
        train(settings, tmp_path / "run", alone(), resume=True)


def test_a_run_goes_on_with_the_judge_that_it_began_with_alone(folder: str, tmp_path: Path) -> None:
    judge = talking(tmp_path / "judge")
    (tmp_path / "judge" / "README.md").write_text("mine")
    path = written(tmp_path / "mine.jsonl", ONE_OF_EACH["judge"])
    rewards = {"scorer": "pool", "allow": ALLOW, "judge": judge}
    settings = job(folder, path, steps=1, sampling={"max_tokens": 1}, rewards=rewards)
    found = _Run(settings, tmp_path / "run", alone(), Roles.of(settings, alone()), (), lambda step, loss: None)
    found.begin(resume=False)
    found.parts.close()
    (tmp_path / "judge" / "README.md").write_text("mine, and good")
    assert found.begin(resume=True) == 0
    (tmp_path / "judge" / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(CheckpointRefused, match=r"job\.rewards\.judge's content .* or name another --out"):
        found.begin(resume=True)
    found.parts.close()


def test_a_job_with_questions_needs_a_file_a_model_that_talks_and_a_pool() -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_job({"task": {"name": "questions"}, "warmup": {"steps": 5}})
    assert {each.path for each in refused.value.problems} == {
        "job.model.path", "job.task.path", "job.rewards.scorer", "job.warmup.steps",
    }  # fmt: skip


def test_a_file_that_is_not_there_is_told(folder: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="No such file"):
        Questions(tmp_path / "nowhere.jsonl", "", Pretrained(folder))

"""What docs/questions.md makes of data sets and of other libraries: right answers score, and wrong ones do not."""

import asyncio
import json
import pickle
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rollmux.runtime.rewards import Kind, PoolSettings, Reply, RewardPool
from rollmux.trainer.tasks.questions import Question, read_questions
from tests.runtime.rewards.world import Pooled

DOCUMENT = (Path(__file__).parents[2] / "docs" / "questions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.M | re.S)
LINES = re.findall(r"^\| ([^|]+) \| `(\{.+\})` \|$", DOCUMENT, re.M)
DOUBLE, NONE = "```python\ndef double(x):\n    return 2 * x\n```", "```python\ndef double(x):\n    return x\n```"
SQUARE, SAME = "```python\nprint(int(input()) ** 2)\n```", "```python\nprint(input())\n```"
CHECK = "def check(candidate):\n    assert candidate(of(3)) == 6"
OF = "def of(x): return x\n"
PYTEST = "import pytest\nfrom solution import double\n\ndef test_it():\n    assert double(3) == 6"
GSM8K = {"question": "48/2 + 48?", "answer": "48/2 = <<48/2=24>>24 clips.\n24 + 48 = <<24+48=72>>72.\n#### 1,072"}
# By what its line in the table begins with: a row, an answer that is right, and one that is not.
OF_TABLE: Mapping[str, tuple[Mapping[str, Any], str, str]] = {
    "MATH:": (
        {"problem": "a + b?", "level": "Level 5", "solution": "As $a=\\boxed{3}$, we get $a+b=\\boxed{\\frac{1}{2}}$."},
        "\\boxed{0.5}",
        "\\boxed{3}",
    ),
    "Big-Math": ({"problem": "a?", "answer": "(3, \\pi)", "domain": ["Algebra"]}, "\\boxed{(3,\\pi)}", "\\boxed{3}"),
    "maths in verl": (
        {
            "data_source": "math_dapo",
            "prompt": [{"content": "a? The last line is Answer: $Answer", "role": "user"}],
            "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": "9a9b6eb4"},
        },
        "12 + 22 = 34\nAnswer: 34",
        "12 + 22 = 34\nAnswer: 22",
    ),
    "HumanEval": ({"prompt": OF, "entry_point": "double", "test": CHECK}, DOUBLE, NONE),
    "KodCode": ({"question": "Double.", "test": PYTEST, "style": "instruct"}, DOUBLE, NONE),
    "Open R1's": (
        {
            "problem_statement": "Square.",
            "verification_info": {
                "language": "python",
                "test_cases": [{"fn_name": None, "input": "3\n", "output": "9\n", "type": "stdin_stdout"}],
            },
        },
        SQUARE,
        SAME,
    ),
}
APPS: list[tuple[Mapping[str, Any], str, str, str]] = [
    ({"inputs": ["3\n", ["4", "5"]], "outputs": ["9\n", ["16"]]}, "", SQUARE, SAME),
    ({"fn_name": None, "inputs": ["3\n"], "outputs": ["9"]}, "", SQUARE, SAME),
    ({"fn_name": "double", "inputs": ["3", '"a"'], "outputs": ["6", '["aa"]']}, "", DOUBLE, NONE),
    ({"fn_name": "double", "inputs": [[3], ["a"]], "outputs": [[6], ["aa"]]}, "", DOUBLE, NONE),
    (
        {"fn_name": "double", "inputs": [[[1, 2]]], "outputs": [[1, 2, 1, 2]]},
        "class Solution:\n    def double(self, x: List[int]) -> List[int]:\n        ",
        "```python\nclass Solution:\n    def double(self, x: List[int]) -> List[int]:\n        return 2 * x\n```",
        "```python\nclass Solution:\n    def double(self, x: List[int]) -> List[int]:\n        return x\n```",
    ),
]


@pytest.fixture(scope="module")
def pooled() -> Iterator[Pooled]:
    with Pooled() as made:
        yield made


def block(*words: str) -> str:
    (found,) = [each for each in BLOCKS if all(word in each for word in words)]
    return str(found)


def of_line(line: Mapping[str, Any]) -> Question:
    (question,) = read_questions(json.dumps(line).encode(), "made")
    return question


def values(pooled: Pooled, question: Question, *responses: str) -> list[float]:
    return [pooled.score(question.asked(response)).value for response in responses]


@pytest.mark.parametrize(("named", "made"), LINES, ids=[named[:20] for named, _ in LINES])
def test_a_row_becomes_a_line_as_the_table_says(named: str, made: str, pooled: Pooled) -> None:
    ((row, right, wrong),) = [known for begins, known in OF_TABLE.items() if named.startswith(begins)]
    assert values(pooled, of_line(eval(made, {"row": row})), right, wrong) == [1, 0]


def test_the_table_has_a_line_for_each_row_that_is_tried() -> None:
    assert len(LINES) == len(OF_TABLE)


def test_a_parquet_file_becomes_a_file_of_questions(
    pooled: Pooled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist([GSM8K, GSM8K]), "train.parquet")
    exec(compile(block("pyarrow"), "lines.py", "exec"), {})
    question, _ = read_questions(Path("questions.jsonl").read_bytes(), "made")
    assert values(pooled, question, "So it is\n#### 1072", "48 + 1024 = 1,072", "#### 72") == [1, 1, 0]


@pytest.mark.parametrize(
    ("tests", "starter", "right", "wrong"),
    APPS,
    ids=["reads", "names no function", "in verl's form", "a function", "a class"],
)
def test_tests_in_a_text_become_cases_or_asserts(
    tests: Mapping[str, Any], starter: str, right: str, wrong: str, pooled: Pooled
) -> None:
    row = {"question": "Do it.", "input_output": json.dumps(tests), "starter_code": starter}
    names: dict[str, Any] = {"json": json, "row": row}
    exec(compile(block("fn_name"), "lines.py", "exec"), names)
    assert values(pooled, of_line(names["line"]), right, wrong) == [1, 0]


def by_function(folder: Path, line: Mapping[str, Any], *responses: str) -> list[float]:
    """By the functions in that folder, as a job has them."""
    (question,) = read_questions(
        json.dumps({"prompt": "a?", "function": "scores:score", **line}).encode(), "made", str(folder)
    )

    async def scored() -> list[float]:
        settings = PoolSettings({Kind.FUNCTION: 1}, function_modules=["scores"], function_folders=[str(folder)])
        async with RewardPool(settings) as pool:
            return [(await pool.score(question.asked(each))).value for each in responses]

    return asyncio.run(scored())


def test_scores_of_trl_s_functions(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    (tmp_path / "scores.py").write_text(block("trl.rewards"))
    thought = "<think>\n70 + 2\n</think>\n"
    responses = [f"{thought}\\boxed{{72}}", "\\boxed{72}", f"{thought}\\boxed{{70}}", "70"]
    assert by_function(tmp_path, {"arguments": {"solution": "$72$"}}, *responses) == [2, 1, 1, 0]


@pytest.mark.parametrize("score", ["{'score': 1.0 if right else -1.0, 'acc': right}", "right"])
def test_scores_of_a_function_in_verl_s_form(score: str, tmp_path: Path) -> None:
    (tmp_path / "scores.py").write_text(block("compute_score"))
    (tmp_path / "my_rewards.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        f"    right = solution_str == ground_truth\n    return {score}\n"
    )
    arguments = {"data_source": "mine", "ground_truth": "5", "extra_info": {"index": 0}}
    one, other = by_function(tmp_path, {"arguments": arguments}, "5", "6")
    assert (one, other) in ((1, -1), (1, 0))


TASKSET = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class Sum(vf.Task[Data]):
    @vf.reward(weight=2.0)
    async def right(self, trace) -> float:
        return float(vf.extract_boxed_answer(trace.last_reply) == self.data.answer)

    @vf.reward
    async def short(self, task, trace) -> float:
        return float(len(trace.last_reply) < 10)

class MyTaskset(vf.Taskset[Sum]):
    def load(self):
        for number in (2, 3):
            yield Sum(Data(prompt=f"What is {number} + {number}?", answer=str(2 * number)), self.config.task)
"""


def test_scores_of_a_taskset_of_verifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verifiers")
    (tmp_path / "scores.py").write_text(block("verifiers"))
    (tmp_path / "my_tasks.py").write_text(TASKSET)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(block("verifiers"), "scores.py", "exec"), names)
    line, _ = names["LINES"]
    assert line["prompt"] == "What is 2 + 2?"
    assert by_function(tmp_path, line, "\\boxed{4}", "It is \\boxed{4}.", "\\boxed{5}") == [3, 2, 1]


ENVIRONMENT = """
class MyEnv:
    def __init__(self, env_config, extras):
        self.secret, self.turns = extras["secret"], 0

    def step(self, action):
        self.turns += 1
        done = action == self.secret or self.turns == 3
        told = [] if done else [{"role": "user", "content": f"That was turn {self.turns}."}]
        return {"observations": told, "reward": float(action == self.secret) / self.turns, "done": done, "metadata": {}}
"""


def test_replies_and_scores_of_an_environment_in_skyrl_s_form(tmp_path: Path) -> None:
    (tmp_path / "scores.py").write_text(block("my_envs"))
    (tmp_path / "my_envs.py").write_text(ENVIRONMENT)
    line = {"prompt": "a?", "function": "scores:score", "reply": "scores:reply", "arguments": {"row": {"secret": "5"}}}
    (question,) = read_questions(json.dumps(line).encode(), "made", str(tmp_path))
    told = [question.reply_asked("4"), question.reply_asked("4", "That was turn 1.", "5")]

    async def story() -> tuple[list[Reply], float]:
        settings = PoolSettings({Kind.FUNCTION: 1}, function_modules=["scores"], function_folders=[str(tmp_path)])
        async with RewardPool(settings) as pool:
            replies = [await pool.reply(each) for each in told if each is not None]
            return replies, (await pool.score(question.asked("4", "That was turn 1.", "5"))).value

    assert asyncio.run(story()) == ([Reply("That was turn 1."), Reply()], 0.5)


def test_scores_of_reasoning_gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scores.py").write_text(block("extract_answer"))
    exec(compile(block("lines.py").replace("500", "2"), "lines.py", "exec"), {})
    _, line = map(json.loads, Path("questions.jsonl").read_text().splitlines())
    entry, _ = pickle.loads(bytes.fromhex(line["arguments"]["known"]))
    right = entry["answer"]
    responses = [f"<answer>{right}</answer>", f"<answer>{int(right) + 1}</answer>", right]
    assert by_function(tmp_path, line, *responses) == [1, 0, 0]

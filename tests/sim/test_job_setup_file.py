"""Setups in files: what they mean, and that everything wrong with them is said at once."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollmux.errors import InvalidSpec
from rollmux.sim.job.machine import DEVICES, MODELS, Device, Model
from rollmux.sim.job.played import play
from rollmux.sim.job.setup import Domain, Reward, Scoring, Setup, Training
from rollmux.sim.job.setup_data import (
    DEVICE_NUMBERS,
    DOMAIN_NUMBERS,
    LENGTH_KEYS,
    MODEL_NUMBERS,
    SETUP_NUMBERS,
    setup_data,
)
from rollmux.sim.job.setup_file import read_setup
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.system import SYNC

EXAMPLE = Path(__file__).parents[2] / "examples" / "job-setup.yaml"
BASE = SETUPS["7B/8k"]
PARTS = (("scoring", Scoring), ("training", Training))


def read(tmp_path: Path, content: Any) -> Setup:
    """JSON is YAML too; a text is taken as it is."""
    path = tmp_path / "setup.yaml"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_setup(path)


def problems(tmp_path: Path, content: Any) -> dict[str, str]:
    """What is wrong with this content, by path."""
    with pytest.raises(InvalidSpec) as refused:
        read(tmp_path, content)
    return {problem.path: str(problem) for problem in refused.value.problems}


def test_the_example_is_a_job_that_runs() -> None:
    setup = read_setup(EXAMPLE)
    assert (setup.name, setup.gpus, setup.model.name, setup.device.name) == (
        "8B/4k on one server",
        8,
        "Qwen3-8B",
        "H20",
    )
    assert {domain.name: domain.reward for domain in setup.domains} == {"math": Reward.RULE, "proofs": Reward.JUDGE}
    assert setup.domains[0].lengths == BASE.domains[0].lengths
    assert play(setup, SYNC, 1, 0).steps[0].step_s > 0


@pytest.mark.parametrize("name", SETUPS)
def test_what_is_written_of_a_shipped_setup_is_read_back_as_it(name: str, tmp_path: Path) -> None:
    data = setup_data(SETUPS[name])
    assert read(tmp_path, data) == read(tmp_path, yaml.safe_dump(data, sort_keys=False)) == SETUPS[name]
    assert read(tmp_path, {"like": name, "name": name}) == SETUPS[name]


def test_every_field_has_a_key() -> None:
    scoring, training = ({f"{part}.{f.name}" for f in fields(kind)} for part, kind in PARTS)
    plain = {f.name for f in fields(Setup)} - {"name", "model", "device", "domains", "scoring", "training"}
    assert {key.target for key in SETUP_NUMBERS.values()} == plain | scoring | training
    assert {key.target for key in MODEL_NUMBERS.values()} == {f.name for f in fields(Model)} - {"name"}
    assert {key.target for key in DEVICE_NUMBERS.values()} == {f.name for f in fields(Device)} - {"name"}
    assert {key.target for key in DOMAIN_NUMBERS.values()} == {f.name for f in fields(Domain)} - {
        "name",
        "lengths",
        "reward",
    }


def test_a_file_without_a_name_gives_its_own(tmp_path: Path) -> None:
    assert read(tmp_path, {"like": "7B/8k"}) == replace(BASE, name="setup")


def test_what_the_file_says_stands_in_the_place_of_what_it_begins_with(tmp_path: Path) -> None:
    changes = {
        "gpus": 32,
        "sandbox_workers": 7,
        "train_fixed_s": 1.5,
        "model": {"layers": 30, "billion_parameters": 8},
        "device": "H20",
        "domains": {"math": {"quota": 100}, "code": {"quota": 28, "lengths": {"alike": 0.5}}},
    }
    found = read(tmp_path, {"like": "7B/8k", **changes})
    math, code, _ = BASE.domains
    assert found == replace(
        BASE,
        name="setup",
        gpus=32,
        scoring=replace(BASE.scoring, sandbox_workers=7),
        training=replace(BASE.training, fixed_s=1.5),
        model=replace(BASE.model, layers=30, parameters=8e9),
        device=DEVICES["H20"],
        domains=(replace(math, quota=100), replace(code, quota=28, lengths=replace(code.lengths, alike=0.5))),
    )


def test_a_model_may_be_named_or_described(tmp_path: Path) -> None:
    assert read(tmp_path, {"like": "7B/8k", "model": "Qwen3-8B"}).model == MODELS["Qwen3-8B"]
    mine = {"name": "mine", "billion_parameters": 3.1, "layers": 36, "kv_bytes_per_token": 36864}
    assert read(tmp_path, {"like": "7B/8k", "model": mine}).model == Model("mine", 3.1e9, 36, 36864)


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        {
            "like": "14B/8k",
            "gpu": 16,
            "model": {"layer": 3},
            "device": {"memory": 80},
            "domains": {"math": {"qota": 3, "lengths": {"quantile": []}}},
        },
    )
    assert "the nearest is gpus" in found["gpu"]
    assert "the nearest is layers" in found["model.layer"]
    assert "the nearest is memory_gb" in found["device.memory"]
    assert "the nearest is quota" in found["domains.math.qota"]
    assert "the nearest is quantiles" in found["domains.math.lengths.quantile"]
    assert "the nearest is 14B/16k" in found["like"]


def test_what_is_missing_is_said_part_by_part(tmp_path: Path) -> None:
    found = problems(tmp_path, {"gpus": 8, "model": {"layers": 3}, "domains": {"x": {"lengths": {}}}})
    assert found.keys() == {"the file", "model", "domains.x", "domains.x.lengths"}
    assert "device, tensor_parallel" in found["the file"]
    assert "begin with `like: 7B/8k`" in found["the file"]
    assert "with billion_parameters, kv_bytes_per_token; add" in found["model"]
    assert "with quota, size, reward; add" in found["domains.x"]
    assert f"with {', '.join(LENGTH_KEYS)}; add" in found["domains.x.lengths"]


def test_a_part_without_content_is_missing_or_as_in_what_the_file_begins_with(tmp_path: Path) -> None:
    proofs = "{quota: 6, size: 200, reward: judge, lengths: }"
    found = problems(tmp_path, f"like: 7B/8k\nprompts: 16\ndomains: {{math: {{quota: 10}}, proofs: {proofs}}}")
    assert found.keys() == {"domains.proofs"}
    assert "with lengths; add" in found["domains.proofs"]
    found = problems(tmp_path, {**setup_data(BASE), "model": None, "device": None})
    assert found.keys() == {"the file"}
    assert "with model, device; add" in found["the file"]
    empty = {"like": "7B/8k", "name": BASE.name, "model": None, "device": None}
    rest = {domain.name: {"lengths": None} for domain in BASE.domains}
    assert read(tmp_path, {**empty, "domains": rest}) == BASE


def test_every_problem_is_reported_at_once_in_the_words_of_the_file(tmp_path: Path) -> None:
    lengths = {"quantiles": [[0.9, 100], [0.5, 50]], "tail_share": 2, "alike": "0.1"}
    found = problems(
        tmp_path,
        {
            "like": "7B/8k",
            "name": "",
            "gpus": 0,
            "cap_tokens": 1e9,
            "responses": 2.5,
            "judge_s": True,
            "train_reached": "40 %",
            "model": "Qwen2.5-8B",
            "device": 3,
            "domains": {"math": {"quota": None, "reward": "judged", "lengths": lengths}, "code": 5},
        },
    )
    assert found.keys() == {
        "name",
        "gpus",
        "cap_tokens",
        "responses",
        "judge_s",
        "train_reached",
        "model",
        "device",
        "domains.math.quota",
        "domains.math.reward",
        "domains.math.lengths.quantiles",
        "domains.math.lengths.tail_share",
        "domains.math.lengths.alike",
        "domains.code",
    }
    assert "a whole number from 1 to 256" in found["responses"]
    assert "the nearest is judge" in found["domains.math.reward"]
    assert "share of the peak arithmetic" in found["train_reached"]
    assert "in ascending order" in found["domains.math.lengths.quantiles"]


@pytest.mark.parametrize(
    ("changes", "path", "hint"),
    [
        ({"tensor_parallel": 3}, "tensor_parallel", "1, 2, 4, 8, and a divisor of 16 GPUs"),
        ({"gpus": 6, "tensor_parallel": 4}, "tensor_parallel", "a divisor of 6 GPUs"),
        ({"model": "Qwen2.5-32B", "cap_tokens": 16384}, "tensor_parallel", "enough for the weights and 16684 tokens"),
        ({"prompts": 100}, "domains (quotas)", "100 in sum"),
        ({"domains": {}}, "domains", "domains by their names"),
        ({"domains": [1]}, "domains", "domains by their names"),
        ({"domains": {7: {"quota": 128}}}, "domains.7", "a printable name"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], path: str, hint: str, tmp_path: Path) -> None:
    found = problems(tmp_path, yaml.safe_dump({"like": "7B/8k", **changes}))
    assert hint in found[path]


@pytest.mark.parametrize(
    ("lengths", "name"),
    [
        ({"tail_tokens": 3000}, "tail_tokens"),
        ({"tail_share": 0.5}, "tail_share"),
        ({"cut_tokens": 4096}, "cut_tokens"),
        ({"cut_share": 0.05}, "cut_share"),
    ],
)
def test_a_tail_must_thin_out(lengths: dict[str, float], name: str, tmp_path: Path) -> None:
    domains: dict[str, Any] = {domain.name: {} for domain in BASE.domains} | {"math": {"lengths": lengths}}
    found = problems(tmp_path, {"like": "7B/8k", "domains": domains})
    assert found.keys() == {f"domains.math.lengths.{name}"}


@pytest.mark.parametrize(
    "quantiles", ["x", [], [0.5], [[0.5]], [[0, 5]], [[1.0, 5]], [[0.5, 0]], [[0.5, 1.5]], [[True, 3]]]
)
def test_what_is_no_list_of_quantiles_is_refused_with_an_example_of_one(quantiles: Any, tmp_path: Path) -> None:
    domains: dict[str, Any] = {domain.name: {} for domain in BASE.domains} | {
        "math": {"lengths": {"quantiles": quantiles}}
    }
    found = problems(tmp_path, {"like": "7B/8k", "domains": domains})
    assert "[[0.5, 600], [0.9, 2000]]" in found["domains.math.lengths.quantiles"]


@pytest.mark.parametrize("content", ["", "- 1\n", "7\n", "a: b: c\n", "gpus: 1\ngpus: 2\n", "\x00"])
def test_what_is_no_setup_at_all_is_refused(content: str, tmp_path: Path) -> None:
    assert problems(tmp_path, content).keys() <= {"the file", "content"}

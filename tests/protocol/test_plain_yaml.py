"""What is said beside a file counts as if it stood there; what is written is read as the same data."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.protocol.plain_yaml import read_plain, written_plain

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.text(st.characters(categories=["L", "Nd"], include_characters="-_ "), min_size=1, max_size=6)
leaves = texts | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none()
parts = st.lists(leaves, max_size=2) | st.dictionaries(names, leaves, max_size=2)
data = st.dictionaries(names, leaves | parts, max_size=4)


def read(folder: Path, text: str, *changes: str) -> Any:
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    return read_plain(folder / "job.yaml", "job file", changes=changes)


def refusal(folder: Path, text: str, *changes: str) -> str:
    with pytest.raises(InvalidSpec) as refused:
        read(folder, text, *changes)
    (problem,) = refused.value.problems
    return str(problem)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("slo=1.5", {"slo": 1.5, "rollout": {"nodes": 1, "duration_s": 3}}),
        ("rollout.nodes=2", {"slo": 2, "rollout": {"nodes": 2, "duration_s": 3}}),
        ("rollout.gpus=8", {"slo": 2, "rollout": {"nodes": 1, "duration_s": 3, "gpus": 8}}),
        ("tail.requests=64", {"slo": 2, "rollout": {"nodes": 1, "duration_s": 3}, "tail": {"requests": 64}}),
        ("rollout={nodes: 4}", {"slo": 2, "rollout": {"nodes": 4}}),
        ("slo=1e-3", {"slo": 0.001, "rollout": {"nodes": 1, "duration_s": 3}}),
        ("slo='1.5'", {"slo": "1.5", "rollout": {"nodes": 1, "duration_s": 3}}),
        ("slo=", {"slo": "", "rollout": {"nodes": 1, "duration_s": 3}}),
        ("slo=a=b", {"slo": "a=b", "rollout": {"nodes": 1, "duration_s": 3}}),
        ("rollout=", {"slo": 2, "rollout": ""}),
    ],
)
def test_a_change_counts_as_if_it_stood_in_the_file(tmp_path: Path, change: str, found: dict[str, Any]) -> None:
    assert read(tmp_path, "slo: 2\nrollout: {nodes: 1, duration_s: 3}\n", change) == found


def test_a_character_that_json_writes_in_two_halves_is_one(tmp_path: Path) -> None:
    text, half = "10 \U0001f9ee", "\ud83e"
    said = {"name": text, text: [half, f"{half}{text}"]}
    assert read(tmp_path, json.dumps(said), f"slo={json.dumps(text)}") == {**said, "slo": text}


def test_changes_count_in_their_order_and_the_last_of_a_key_stands(tmp_path: Path) -> None:
    assert read(tmp_path, "slo: 2\n", "slo=3", "env={A: 1}", "env.B=2", "slo=4") == {"slo": 4, "env": {"A": 1, "B": 2}}


@pytest.mark.parametrize("text", ["", "rollout:\n"])
def test_what_is_left_empty_can_be_filled(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text, "rollout.nodes=2") == {"rollout": {"nodes": 2}}


def test_a_part_that_stands_at_two_places_is_changed_at_one(tmp_path: Path) -> None:
    found = read(tmp_path, "rollout: &phase {nodes: 1}\ntrain: *phase\n", "train.nodes=2")
    assert found == {"rollout": {"nodes": 1}, "train": {"nodes": 2}}


def test_what_has_merged_keys_and_changes_some_can_be_merged_in_turn(tmp_path: Path) -> None:
    text = "rollout: {node: &node {<<: {gpus: 8, name: H20}, name: H800}}\ntrain: {<<: *node, gpus: 4}\n"
    assert read(tmp_path, text) == {
        "rollout": {"node": {"gpus": 8, "name": "H800"}},
        "train": {"gpus": 4, "name": "H800"},
    }
    assert "'gpus' is there twice" in refusal(tmp_path, text.replace("gpus: 4", "gpus: 4, gpus: 5"))


@pytest.mark.parametrize("change", ["slo", "", "=3", ".slo=3", "rollout.=3", "rollout..nodes=3"])
def test_what_is_no_change_is_refused_with_how_one_looks(tmp_path: Path, change: str) -> None:
    assert "must be KEY=VALUE" in refusal(tmp_path, "slo: 2\n", change)


@pytest.mark.parametrize(("change", "named"), [("slo.x=3", "keys in slo"), ("rollout.nodes.x=3", "keys in nodes")])
def test_a_value_has_no_parts(tmp_path: Path, change: str, named: str) -> None:
    assert named in refusal(tmp_path, "slo: 2\nrollout: {nodes: 1}\n", change)


def test_a_file_of_other_than_keys_has_no_parts(tmp_path: Path) -> None:
    assert "keys in the file" in refusal(tmp_path, "- 1\n", "slo=3")


@pytest.mark.parametrize("value", ["{a: 1, a: 2}", "[", "*a", "!!python/name:os.system"])
def test_a_value_is_held_to_what_a_file_is_and_named_by_its_key(tmp_path: Path, value: str) -> None:
    assert refusal(tmp_path, "slo: 2\n", f"rollout.nodes={value}").startswith("rollout.nodes = ")


@pytest.mark.parametrize("value", ["Answer. # Then stop.", "a#b # c", "'a' # b"])
def test_no_part_of_a_text_is_left_out_as_a_comment(tmp_path: Path, value: str) -> None:
    assert "put the text in quotes" in refusal(tmp_path, "system: A.\n", f"system={value}")


@pytest.mark.parametrize("value", ["a#b", "'a # b'", '"a # b"', "|\n  a # b"])
def test_a_text_may_have_a_hash_where_yaml_takes_it_for_one(tmp_path: Path, value: str) -> None:
    assert read(tmp_path, "system: A.\n", f"system={value}") == {"system": value.strip("|'\"\n ")}


@given(data)
@example(
    {"a": "1e5", "b": "1e-05", "c": 1e-05, "d": 2e300, "e": "2e-05x", "f": "-1E+5", "g": "yes", "h": "\x85 \u2028"}
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_as_the_same_data(tmp_path: Path, content: dict[str, Any]) -> None:
    assert read(tmp_path, written_plain(content)) == content


@given(leaves)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_that_is_written_can_be_said(tmp_path: Path, value: object) -> None:
    said = written_plain({"a": value}).removeprefix("a:").strip()
    assert read(tmp_path, "other: 1\n", f"a={said}") == {"other": 1, "a": value}

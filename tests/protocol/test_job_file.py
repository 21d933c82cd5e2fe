"""Jobs in files: what they mean comes back, and what can't be is refused with all that is wrong with it (F7)."""

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.mux.job import JobSpec, PhaseSpec, Tail
from rollmux.protocol.job_file import (
    JOB_KEYS,
    MAX_ENTRIES,
    MAX_NAMED,
    MAX_PROCESSES,
    MAX_TEXT,
    PHASE_KEYS,
    TAIL_KEYS,
    Submission,
    job_data,
    read_job,
    read_job_file,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
PHASE: dict[str, Any] = {"nodes": 1, "duration_s": 3}
JOB: dict[str, Any] = {"name": "A", "rollout": PHASE, "train": PHASE, "slo": 1.5}

seconds = st.floats(1e-3, 1e6)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
env_names = texts.filter(lambda name: name and "=" not in name)


def problems(data: Any) -> dict[str, str]:
    """What is wrong with it, by path."""
    with pytest.raises(InvalidSpec) as refused:
        read_job(data)
    return {problem.path: str(problem) for problem in refused.value.problems}


@st.composite
def phases(draw: st.DrawFn) -> PhaseSpec:
    in_nodes = draw(st.booleans())
    return PhaseSpec(
        duration_s=draw(seconds),
        nodes=draw(st.integers(1, 4096)) if in_nodes else 0,
        gpus=0 if in_nodes else draw(st.integers(1, 4096)),
        tensor_parallel=draw(st.integers(1, 1024)),
        resident_bytes=draw(st.integers(0, 10**15)),
        transient_bytes=draw(st.integers(0, 10**15)),
        load_s=draw(seconds),
        offload_s=draw(seconds),
        measured_s=draw(st.none() | seconds),
        pause_s=draw(st.none() | st.just(0.0) | seconds),
    )


@st.composite
def submissions(draw: st.DrawFn) -> Submission:
    rollout = draw(phases())
    tail = st.builds(
        Tail, st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0.0, rollout.duration_s), st.floats(0.01, 1.0)
    )
    job = JobSpec(
        id=draw(st.text("abcü-_0", min_size=1, max_size=20)),
        rollout=rollout,
        train=draw(phases()),
        slo=draw(st.floats(1.0, 1000.0)),
        sync_s=draw(seconds),
        priority=draw(st.integers(-1000, 1000)),
        staleness=draw(st.integers(0, 64)),
        iterations=draw(st.none() | st.integers(1, 10**15)),
        tail=draw(st.none() | tail),
        elastic_rollout=draw(st.booleans()),
        rollout_spares=(spares := draw(st.sampled_from((0, 0, 1, 64)))),
        cold_start_s=draw(seconds),
        max_attempts=draw(st.integers(1, 1000)),
    )
    env = draw(st.dictionaries(env_names, texts, max_size=3))
    command = tuple(draw(st.lists(texts, max_size=3)))
    processes = 1 if spares else draw(st.integers(1, MAX_PROCESSES))
    each = 1 if spares else draw(st.just(1) | st.integers(1, MAX_PROCESSES // processes))
    return Submission(job, command, tuple(sorted(env.items())), draw(texts), processes, each)


@given(submissions())
def test_a_submission_comes_back_from_its_data_through_json(submission: Submission) -> None:
    assert read_job(json.loads(json.dumps(job_data(submission), allow_nan=False))) == submission


@given(st.integers(0, 10**15))
def test_no_byte_of_memory_is_lost_in_gigabytes(count: int) -> None:
    job = JobSpec("A", PhaseSpec(1.0, 1, resident_bytes=count), PhaseSpec(1.0, 1), 2.0)
    assert read_job(json.loads(json.dumps(job_data(Submission(job))))).job == job


def test_what_is_as_it_would_be_anyway_is_left_out() -> None:
    assert read_job(JOB) == Submission(JobSpec("A", PhaseSpec(3, 1), PhaseSpec(3, 1), 1.5))
    assert set(job_data(read_job(JOB))) == {*JOB, "command", "env", "folder", "processes"}


def test_the_example_is_read() -> None:
    submission = read_job_file(EXAMPLES / "job.yaml")
    assert (submission.job.id, submission.job.slo, submission.job.iterations) == ("arithmetic", 2.5, 5)
    assert submission.job.rollout == PhaseSpec(0.3, 1, resident_bytes=10**9)
    assert submission.command == ("python", "attach/job.py", "arithmetic")
    assert submission.folder == str(EXAMPLES.resolve())
    assert read_job(job_data(submission)) == submission


@pytest.mark.parametrize(("said", "meant"), [("", "."), ("sub", "sub"), ("/abs", "/abs")])
def test_a_folder_is_that_of_the_file_or_seen_from_there(tmp_path: Path, said: str, meant: str) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "folder": said}), encoding="utf-8")
    assert Path(read_job_file(tmp_path / "job.yaml").folder) == tmp_path / meant


def test_the_folder_of_what_a_pipe_brings_is_the_present_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours, theirs = os.pipe()
    with open(theirs, "w", encoding="utf-8") as pipe:
        json.dump({**JOB, "folder": "sub"}, pipe)
    try:
        assert Path(read_job_file(f"/dev/fd/{ours}").folder) == tmp_path / "sub"
    finally:
        os.close(ours)


def test_the_folder_of_an_open_file_is_the_present_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `rollmux submit /dev/stdin < job.yaml`, or with a text in the script, for which many shells open a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "folder": "sub"}), encoding="utf-8")
    with (tmp_path / "job.yaml").open(encoding="utf-8") as file:
        assert Path(read_job_file(f"/dev/fd/{file.fileno()}").folder) == tmp_path / "sub"


def test_what_is_said_beside_a_file_counts_as_if_it_stood_there(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps(JOB), encoding="utf-8")
    found = read_job_file(tmp_path / "job.yaml", ["name=B", "rollout.nodes=2", "env.SEED='3'", "folder=sub"])
    assert (found.job.id, found.job.rollout.nodes, found.job.train.nodes) == ("B", 2, 1)
    assert (found.env, Path(found.folder)) == ((("SEED", "3"),), tmp_path / "sub")
    with pytest.raises(InvalidSpec, match=r"rollout\.node'?.* nearest is nodes"):
        read_job_file(tmp_path / "job.yaml", ["rollout.node=2"])
    with pytest.raises(InvalidSpec, match=r"""behind a file env\.NAME="'value'\""""):
        read_job_file(tmp_path / "job.yaml", ["env.SEED=3"])


def test_a_folder_may_be_an_address(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "folder": "s3://jobs/a.zip"}), encoding="utf-8")
    assert read_job_file(tmp_path / "job.yaml").folder == "s3://jobs/a.zip"


@pytest.mark.parametrize("text", ["[1, 2", "a: 1\na: 2", "\x00", "!!python/object:os.system {}", "{}", "7", ""])
def test_a_file_that_holds_no_job_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidSpec, match=r"job\.yaml"):
        read_job_file(tmp_path / "job.yaml")


@pytest.mark.parametrize(
    ("part", "keys", "wrong"),
    [("", JOB_KEYS, "{}x"), ("rollout", PHASE_KEYS, "{}x"), ("train", PHASE_KEYS, "_{}"), ("tail", TAIL_KEYS, "{}s_")],
)
def test_every_unknown_key_is_named_with_the_nearest(part: str, keys: tuple[str, ...], wrong: str) -> None:
    for key in keys:
        name = wrong.format(key)
        data = {**JOB, "tail": {"requests": 10, "requests_per_node": 1, "bulk_s": 1}}
        data = {**data, part: {**data[part], name: 1}} if part else {**data, name: 1}
        path = f"job.{part}.{name}" if part else f"job.{name}"
        found = problems(data)
        assert list(found) == [path]
        assert found[path].endswith(f"the nearest is {key}")


def test_a_key_that_is_like_nothing_is_named_too() -> None:
    assert "job.7" in problems({**JOB, 7: 1})
    assert "job.None" in problems({**JOB, None: 1})
    assert len(problems({**JOB, **{f"unknown{i}": i for i in range(20)}})) == 20


def test_a_flood_of_unknown_keys_is_refused_at_once() -> None:
    found = problems({**JOB, **{f"unknown{i}" * 100: i for i in range(20_000)}})
    assert len(found) <= MAX_NAMED + 1
    assert "20000" in found["job"]


@pytest.mark.parametrize("folder", ["null", "7", "[]"])
def test_a_folder_in_a_file_is_a_text(tmp_path: Path, folder: str) -> None:
    text = json.dumps(JOB)[:-1] + f', "folder": {folder}}}'
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidSpec, match="folder"):
        read_job_file(tmp_path / "job.yaml")


def test_a_name_is_part_of_addresses() -> None:
    assert list(problems({**JOB, "name": "a/b"})) == ["job.name"]


def test_all_problems_of_a_file_are_said_at_once() -> None:
    wrong = {**PHASE, "resident_gb": -1, "transient_gb": "much"}
    found = problems({"name": "A", "rollout": wrong, "train": 3, "env": {"A": 1}, "command": "python", "processes": 0})
    assert found.keys() == {
        "job",
        "job.rollout.resident_gb",
        "job.rollout.transient_gb",
        "job.train",
        "job.env",
        "job.command",
        "job.processes",
    }
    assert "slo" in found["job"]


def test_what_is_missing_or_unknown_hides_no_wrong_value_and_makes_none_up() -> None:
    wrong = {"nodes": -1, "duration": 3}
    found = problems({"name": "A", "slo": float("nan"), "itrations": 3, "rollout": wrong, "tail": {"bulk_s": 7.0}})
    assert found.keys() == {
        "job",
        "job.slo",
        "job.itrations",
        "job.rollout",
        "job.rollout.nodes",
        "job.rollout.duration",
        "job.tail",
    }


@pytest.mark.parametrize("phase", [None, 3, []])
def test_a_phase_must_be_there(phase: Any) -> None:
    assert problems(
        {**JOB, "rollout": phase, "tail": {"requests": 8, "requests_per_node": 8, "bulk_s": 7.0}}
    ).keys() == {"job.rollout"}


def test_all_problems_of_a_job_are_said_at_once_in_the_words_of_the_file() -> None:
    phase = {"nodes": 0, "gpus": 0, "duration_s": -1, "load_s": float("nan"), "tensor_parallel": 1.5}
    found = problems({**JOB, "name": " ", "slo": 0.5, "iterations": 0, "rollout": phase, "staleness": True})
    assert found.keys() == {
        "job.name",
        "job.slo",
        "job.iterations",
        "job.staleness",
        *(f"job.rollout.{name}" for name in ("nodes", "duration_s", "load_s", "tensor_parallel")),
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("command", ["a"] * (MAX_ENTRIES + 1)),
        ("command", ["a" * (MAX_TEXT + 1)]),
        ("command", ["a\0b"]),
        ("command", [1]),
        ("command", {"a": 1}),
        ("env", {"A=B": "1"}),
        ("env", {"": "1"}),
        ("env", {1: "1"}),
        ("env", {"A": None}),
        ("env", ["A"]),
        ("env", {str(i): "" for i in range(MAX_ENTRIES + 1)}),
        ("folder", 7),
        ("folder", "a\0"),
        ("processes", MAX_PROCESSES + 1),
        ("processes", 1.0),
        ("processes", True),
        ("ranks_per_process", 0),
        ("ranks_per_process", MAX_PROCESSES + 1),
    ],
)
def test_nothing_is_taken_that_no_process_can_be_given(key: str, value: Any) -> None:
    assert list(problems({**JOB, key: value})) == [f"job.{key}"]


@pytest.mark.parametrize(("key", "value"), [("name", 7), ("name", date(2026, 1, 2)), ("command", ["train", 7])])
def test_who_writes_a_number_for_a_text_hears_how_a_text_is_written(key: str, value: Any) -> None:
    assert "'7'" in problems({**JOB, key: value})[f"job.{key}"]


def test_all_ranks_together_are_no_more_than_a_job_may_have() -> None:
    most = read_job({**JOB, "processes": 2, "ranks_per_process": MAX_PROCESSES // 2})
    assert most.ranks == MAX_PROCESSES
    found = problems({**JOB, "processes": 3, "ranks_per_process": MAX_PROCESSES // 2})
    assert list(found) == ["job.ranks_per_process"]
    assert "a whole number from 1 to 1365" in found["job.ranks_per_process"]


def test_no_rank_is_started_for_a_spare_node() -> None:
    spare = {**JOB, "rollout_spares": 1}
    assert read_job(spare).job.rollout_spares == 1
    for several in ("processes", "ranks_per_process"):
        assert list(problems({**spare, several: 2})) == ["job.rollout_spares"]


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), 2**63, -1, 0, 1e308, -1e308, "x" * 10_000, "\ud800", "\0", "1"]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=20),
)
keys = st.sampled_from([*JOB_KEYS, *PHASE_KEYS, *TAIL_KEYS]) | st.text(max_size=5)
nested = st.recursive(
    odd, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys | odd, inner, max_size=5), max_leaves=15
)
nearly = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("A") | nested,
        "rollout": st.just(PHASE) | st.dictionaries(st.sampled_from(PHASE_KEYS), odd) | nested,
        "train": st.just(PHASE) | st.dictionaries(st.sampled_from(PHASE_KEYS), odd) | nested,
        "tail": st.none() | st.dictionaries(st.sampled_from(TAIL_KEYS), odd) | nested,
        **{key: nested for key in JOB_KEYS if key not in ("name", "rollout", "train", "tail")},
    },
)
changed = st.dictionaries(st.sampled_from(JOB_KEYS), nested, max_size=3).map(lambda change: {**JOB, **change})


@pytest.mark.parametrize(
    "examples", [pytest.param(250, id="250"), pytest.param(20_000, id="20000", marks=pytest.mark.slow)]
)
def test_whatever_is_sent_is_a_job_or_refused_with_reasons(examples: int) -> None:
    settings(max_examples=examples, suppress_health_check=list(HealthCheck))(taken_or_refused)()


@given(nested | nearly | changed)
@example({**JOB, "slo": 10**400})
@example({**JOB, 10**5000: 1})
@example({**JOB, "name": 10**5000})
@example({**JOB, "command": ["\ud800"]})
@example({**JOB, "env": {"\udfff": ""}})
@example({**JOB, "folder": "\udc80"})
@example({**JOB, "rollout": {**PHASE, "resident_gb": 10**400}})
@example({**JOB, "name": ["A"]})
def taken_or_refused(data: Any) -> None:
    """F7: no other error, and what is taken can be written down, read again, and given to a process."""
    try:
        submission = read_job(data)
    except InvalidSpec as error:
        refused = error
    else:
        check_taken(submission)
        return
    assert refused.problems
    assert len(str(refused)) < 50_000


def check_taken(submission: Submission) -> None:
    assert read_job(json.loads(json.dumps(job_data(submission), allow_nan=False))) == submission
    for text in (*submission.command, submission.folder, *(part for pair in submission.env for part in pair)):
        text.encode()


def test_who_has_several_processes_has_no_spare_nodes() -> None:
    assert problems({**JOB, "rollout_spares": 1, "processes": 2}).keys() == {"job.rollout_spares"}
    assert read_job({**JOB, "rollout_spares": 1}).job.rollout_spares == 1


@pytest.mark.parametrize(("key", "value"), [("command", ["python", "-c", "a" * 10**6]), ("env", {"A": "a" * 10**6})])
def test_a_word_that_is_too_long_is_told_how_long_it_may_be(key: str, value: object) -> None:
    with pytest.raises(InvalidSpec, match=f"job.{key} = .* of up to {MAX_TEXT} characters; .* longer into a file"):
        read_job({**JOB, key: value})

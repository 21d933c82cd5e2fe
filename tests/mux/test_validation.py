"""Descriptions are read critically: every problem at once, and never any other exception than InvalidSpec."""

from dataclasses import fields, replace
from math import ceil, inf, isnan, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec, Problem, RollmuxError
from rollmux.mux.hardware import GB, PAPER_CLUSTER, PAPER_ROLLOUT, PAPER_TRAIN, Cluster, NodeType, Pool, elastic
from rollmux.mux.job import JobSpec, PhaseSpec, Tail
from rollmux.mux.validation import MAX_NODES, cluster_problems, job_problems, require_cluster
from tests.builders import SHARED_CLUSTER, any_jobs, job
from tests.thorough import examples

FULL = replace(job(), tail=Tail(100, 10, 50.0), iterations=7)
FULL = replace(FULL, rollout=replace(FULL.rollout, measured_s=90.0), train=replace(FULL.train, measured_s=90.0))
PARTS = {"": JobSpec, "rollout": PhaseSpec, "train": PhaseSpec, "tail": Tail}
PATHS = [
    f"{part}.{field.name}".lstrip(".")
    for part, kind in PARTS.items()
    for field in fields(kind)
    if field.name not in PARTS
]
# What is wrong wherever it stands: of another type, not finite, or far beyond any limit.
WRONG: list[object] = [nan, inf, -inf, -1, -0.5, 10**30, 1e300, "12", "", "a\nb", b"12", (), [1], {}, 1j, object]
ANYTHING = st.one_of(
    st.sampled_from(WRONG),
    st.sampled_from([None, True, False, 0, 0.0, 1, 1.0, 2**63, 10**400]),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers(), max_size=2),
)


def changed(value: Any, path: str, new: object) -> Any:
    """The value with another one at the path."""
    head, _, rest = path.partition(".")
    return replace(value, **{head: changed(getattr(value, head), rest, new) if rest else new})


def by_path(problems: tuple[Problem, ...]) -> dict[str, Problem]:
    return {problem.path: problem for problem in problems}


def only(problems: tuple[Problem, ...]) -> Problem:
    (problem,) = problems
    return problem


@given(job=any_jobs(most_nodes=(4, 4), most_gb=500))
def test_a_well_formed_job_has_no_problems_on_any_roomy_cluster(job: JobSpec) -> None:
    for cluster in (None, PAPER_CLUSTER, SHARED_CLUSTER):
        assert job_problems(job, cluster) == ()
    assert job.resolve(PAPER_CLUSTER) == job


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_value_is_reported_with_its_path_value_limit_and_remedy(path: str) -> None:
    for wrong in (*WRONG, True, None):
        if _may_be(path, wrong):
            continue
        found = by_path(job_problems(changed(FULL, path, wrong), PAPER_CLUSTER))
        problem = found[f"job.{path}"]
        assert problem.value is wrong
        assert problem.limit
        assert problem.remedy
        assert str(problem) == f"job.{path} = {wrong!r}: must be {problem.limit}; {problem.remedy}"


def _may_be(path: str, value: object) -> bool:
    """Whether this one of the values above is right after all at this place."""
    name = path.rpartition(".")[2]
    if value is None:
        return name in ("measured_s", "pause_s", "iterations")
    if value is True:
        return name == "elastic_rollout"
    return (name == "id" and value == "12") or (name == "priority" and value == -1)


@settings(max_examples=examples(600))
@given(changes=st.dictionaries(st.sampled_from(PATHS), ANYTHING, min_size=1, max_size=6))
def test_whatever_stands_in_a_job_is_said_to_be_wrong_or_can_be_placed(changes: dict[str, object]) -> None:
    spec = FULL
    for path, value in changes.items():
        spec = changed(spec, path, value)
    problems = job_problems(spec)
    assert all(problem.path.removeprefix("job.") in PATHS for problem in problems)
    found = job_problems(spec, PAPER_CLUSTER)
    if found:
        assert [str(problem) for problem in problems] in ([], [str(problem) for problem in found])
        assert str(InvalidSpec("job", found))
    else:
        assert problems == ()
        resolved = spec.resolve(PAPER_CLUSTER)
        assert resolved.rollout.nodes > 0
        assert resolved.train.nodes > 0


@settings(max_examples=examples(200))
@given(paths=st.sets(st.sampled_from(PATHS), min_size=1), value=st.sampled_from([-inf, nan, b"", ()]))
def test_all_problems_are_reported_at_once(paths: set[str], value: object) -> None:
    spec = FULL
    for path in sorted(paths):
        spec = changed(spec, path, value)
    assert {f"job.{path}" for path in paths} <= by_path(job_problems(spec, PAPER_CLUSTER)).keys()


@pytest.mark.parametrize("holds", [{"tail": Tail(100, 50, 50.0)}, {"elastic_rollout": True}], ids=["tail", "elastic"])
@pytest.mark.parametrize("wants", [{"nodes": 2}, {"nodes": 0, "gpus": 16}], ids=["nodes", "gpus"])
def test_a_rollout_that_may_hold_a_part_of_its_nodes_has_no_spare_ones(
    holds: dict[str, Any], wants: dict[str, Any]
) -> None:
    spec = replace(JobSpec("a", PhaseSpec(100.0, 1), PhaseSpec(50.0, 1), 2.0), rollout_spares=1, **holds)
    assert job_problems(spec, PAPER_CLUSTER) == ()  # of one node there is no part
    spec = replace(spec, rollout=replace(spec.rollout, **wants))
    assert [problem.path for problem in job_problems(spec, PAPER_CLUSTER)] == ["job.rollout_spares"]
    assert job_problems(replace(spec, rollout_spares=0), PAPER_CLUSTER) == ()


@pytest.mark.parametrize("part", ["rollout", "train", "tail"])
@pytest.mark.parametrize("wrong", [None, "100", PAPER_TRAIN], ids=lambda wrong: type(wrong).__name__)
def test_a_part_that_is_something_else_altogether_is_a_problem_like_any_other(part: str, wrong: object) -> None:
    if part == "tail" and wrong is None:
        assert job_problems(replace(FULL, tail=None), PAPER_CLUSTER) == ()
        return
    assert f"job.{part}" in by_path(job_problems(changed(FULL, part, wrong), PAPER_CLUSTER))


@pytest.mark.parametrize("duration_s", [None, "100", [100.0]], ids=str)
def test_a_tail_of_a_rollout_without_a_duration_is_no_reason_to_crash(duration_s: object) -> None:
    spec = changed(FULL, "rollout.duration_s", duration_s)
    assert "job.rollout.duration_s" in by_path(job_problems(spec))


@pytest.mark.parametrize("huge", [10**400, -(10**400)], ids=["high", "low"])
def test_a_whole_number_that_no_float_can_hold_is_out_of_range(huge: int) -> None:
    assert only(job_problems(replace(job(), slo=huge))).path == "job.slo"


def test_a_number_too_long_to_print_is_refused_in_words() -> None:
    assert "job.priority = " in str(only(job_problems(replace(job(), priority=10**5000))))


@pytest.mark.parametrize(
    ("path", "low", "high"),
    [
        ("slo", 1.0, 1000.0),
        ("rollout.duration_s", 0.001, 30 * 24 * 3600.0),
        ("sync_s", 0.0, 30 * 24 * 3600.0),
        ("priority", -1000, 1000),
        ("staleness", 0, 64),
        ("max_attempts", 1, 1000),
        ("iterations", 1, 10**15),
        ("tail.trigger", 0.01, 1.0),
        ("rollout.resident_bytes", 0, 10**15),
        ("rollout.tensor_parallel", 1, 1024),
    ],
)
def test_limits_belong_to_what_is_allowed(path: str, low: float, high: float) -> None:
    # Without a tail, whose bulk would have to fit the rollout's duration.
    base = FULL if path.startswith("tail") else replace(FULL, tail=None)
    for value in (low, high):
        assert job_problems(changed(base, path, value)) == ()
    for value in (low - 1, high + 1):
        assert only(job_problems(changed(base, path, value))).path == f"job.{path}"


def test_a_phase_wants_either_nodes_or_gpus() -> None:
    for nodes, gpus in ((0, 0), (1, 8)):
        spec = changed(changed(job(), "train.nodes", nodes), "train.gpus", gpus)
        problem = only(job_problems(spec))
        assert (problem.path, problem.value) == ("job.train.nodes", nodes)
    assert job_problems(changed(changed(job(), "train.nodes", 0), "train.gpus", 8)) == ()


def test_a_tail_begins_before_its_rollout_ends() -> None:
    problem = only(job_problems(changed(FULL, "tail.bulk_s", 100.5)))
    assert (problem.path, problem.value) == ("job.tail.bulk_s", 100.5)
    assert "100 s" in problem.limit
    assert job_problems(changed(FULL, "tail.bulk_s", 100.0)) == ()


@pytest.mark.parametrize("name", ["", " a", "a ", "a" * 129, "a\tb", "\x00", 7, None], ids=repr)
def test_a_job_s_id_is_short_and_printable(name: object) -> None:
    assert only(job_problems(changed(job(), "id", name))).path == "job.id"


@pytest.mark.parametrize("name", ["a", "a" * 128, "train 7B, seed 3", "größer-漢字"])
def test_any_short_printable_id_will_do(name: str) -> None:
    assert job_problems(job(name)) == ()


@given(degree=st.integers(1, 64), nodes=st.integers(1, 4))
def test_tensor_parallelism_divides_a_node_or_spans_whole_nodes_that_divide_the_phase(degree: int, nodes: int) -> None:
    spec = changed(job(nodes=(nodes, 1)), "rollout.tensor_parallel", degree)
    fits = (8 % degree == 0 or degree % 8 == 0) and (nodes * 8) % degree == 0
    found = by_path(job_problems(spec, PAPER_CLUSTER))
    assert found.keys() == (set() if fits else {"job.rollout.tensor_parallel"})


@pytest.mark.parametrize("part", ["rollout", "train"])
def test_state_and_its_transient_copy_fit_the_memory_that_a_node_has_free(part: str) -> None:
    kind = replace(PAPER_ROLLOUT, host_memory_bytes=100 * GB, host_reserve_bytes=10 * GB)
    cluster = elastic(kind, kind)
    full = changed(changed(job(), f"{part}.resident_bytes", 60 * GB), f"{part}.transient_bytes", 30 * GB)
    assert job_problems(full, cluster) == ()
    over = changed(full, f"{part}.transient_bytes", 30 * GB + 1)
    problem = only(job_problems(over, cluster))
    assert (problem.path, problem.value) == (f"job.{part}.resident_bytes", 90 * GB + 1)
    assert str(90 * GB) in problem.limit


def test_a_job_that_wants_more_nodes_than_a_pool_may_have_is_refused() -> None:
    cluster = Cluster(PAPER_CLUSTER.rollout, replace(PAPER_CLUSTER.train, max_nodes=2))
    assert job_problems(job(nodes=(3, 2)), cluster) == ()
    problem = only(job_problems(job(nodes=(3, 3)), cluster))
    assert (problem.path, problem.value) == ("job.train.nodes", 3)
    assert "2 nodes of pool 'train'" in problem.limit


@given(gpus=st.integers(1, 100), most=st.integers(1, 12))
def test_gpus_are_counted_in_whole_nodes_before_they_are_compared(gpus: int, most: int) -> None:
    cluster = Cluster(replace(PAPER_CLUSTER.rollout, max_nodes=most), PAPER_CLUSTER.train)
    spec = replace(job(), rollout=PhaseSpec(100.0, gpus=gpus))
    if ceil(gpus / 8) <= most:
        assert job_problems(spec, cluster) == ()
        assert spec.resolve(cluster).rollout == PhaseSpec(100.0, nodes=ceil(gpus / 8))
    else:
        assert only(job_problems(spec, cluster)).path == "job.rollout.nodes"


@pytest.mark.parametrize("part", ["rollout", "train"])
def test_gpus_that_come_to_more_nodes_than_a_phase_may_have_are_refused(part: str) -> None:
    small = elastic(replace(PAPER_ROLLOUT, gpus=1), replace(PAPER_ROLLOUT, gpus=1))
    most = changed(job(), part, PhaseSpec(100.0, gpus=MAX_NODES))
    assert job_problems(most, small) == job_problems(most.resolve(small), small) == ()
    more = changed(job(), part, PhaseSpec(100.0, gpus=MAX_NODES + 1))
    assert only(job_problems(more, small)).path == f"job.{part}.nodes"


def test_what_a_cluster_can_not_give_is_looked_at_only_in_a_well_formed_job() -> None:
    spec = replace(job(resident_gb=(5000, 0)), slo=0.5)
    assert only(job_problems(spec, PAPER_CLUSTER)).path == "job.slo"


def test_a_refusal_carries_every_problem_and_says_them_all() -> None:
    problems = job_problems(replace(job(), slo=0.5, priority=7000))
    refused = InvalidSpec("job 'web'", problems)
    assert isinstance(refused, RollmuxError)
    assert [problem.path for problem in refused.problems] == ["job.slo", "job.priority"]
    assert str(refused).splitlines() == [
        "job 'web' has 2 problems:",
        "  job.slo = 0.5: must be a number from 1 to 1000; 1 tolerates no slowing, 2 twice the time alone",
        "  job.priority = 7000: must be a whole number from -1000 to 1000; 0 is ordinary, higher goes first",
    ]


def test_one_problem_is_one_problem() -> None:
    refused = InvalidSpec("job 'a'", job_problems(replace(job(), slo=0.5)))
    assert str(refused).startswith("job 'a' has 1 problem:")


CLUSTER_PATHS = [
    f"{role}.{path}"
    for role in ("rollout", "train")
    for path in ["name", "on_demand", "max_nodes", *(f"node_type.{field.name}" for field in fields(NodeType))]
]


def test_the_paper_s_cluster_and_a_shared_pool_are_well_formed() -> None:
    for cluster in (PAPER_CLUSTER, SHARED_CLUSTER, elastic(PAPER_TRAIN, PAPER_ROLLOUT)):
        assert cluster_problems(cluster) == ()
        assert require_cluster(cluster) is cluster


@settings(max_examples=examples(300))
@given(changes=st.dictionaries(st.sampled_from(CLUSTER_PATHS), ANYTHING, min_size=1, max_size=6))
def test_whatever_stands_in_a_cluster_nothing_but_invalid_spec_is_raised(changes: dict[str, object]) -> None:
    cluster = PAPER_CLUSTER
    for path, value in changes.items():
        cluster = changed(cluster, path, value)
    if cluster_problems(cluster):
        with pytest.raises(InvalidSpec):
            require_cluster(cluster)
    else:
        assert require_cluster(cluster) is cluster


@pytest.mark.parametrize("path", CLUSTER_PATHS)
def test_a_wrong_value_in_a_cluster_is_reported_at_its_path(path: str) -> None:
    for wrong in (nan, -1, "\n", ()):
        problem = by_path(cluster_problems(changed(PAPER_CLUSTER, path, wrong)))[f"cluster.{path}"]
        assert problem.value is wrong
        assert problem.limit
        assert problem.remedy


@pytest.mark.parametrize("path", ["rollout", "train", "rollout.node_type"])
def test_a_cluster_with_a_part_missing_is_a_problem_like_any_other(path: str) -> None:
    assert f"cluster.{path}" in by_path(cluster_problems(changed(PAPER_CLUSTER, path, None)))


def test_two_different_pools_need_two_names() -> None:
    same = Cluster(Pool("gpu", PAPER_ROLLOUT), Pool("gpu", PAPER_TRAIN))
    problem = only(cluster_problems(same))
    assert (problem.path, problem.value) == ("cluster.train", "gpu")
    with pytest.raises(InvalidSpec, match="two different pools need two names"):
        require_cluster(same)
    assert cluster_problems(Cluster(Pool("gpu", PAPER_TRAIN), Pool("gpu", PAPER_TRAIN))) == ()


def test_a_reserve_leaves_some_memory() -> None:
    cluster = changed(PAPER_CLUSTER, "train.node_type.host_reserve_bytes", PAPER_TRAIN.host_memory_bytes)
    assert only(cluster_problems(cluster)).path == "cluster.train.node_type.host_reserve_bytes"


def test_nan_is_no_number_anywhere() -> None:
    problem = only(job_problems(replace(job(), slo=nan)))
    assert isinstance(problem.value, float)
    assert isnan(problem.value)

"""Decisions in words: where, how, for how much, and for whatever was not taken the two numbers that decided."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux.explain import explain, why_queued
from rollmux.mux.group import Group
from rollmux.mux.hardware import GB, PAPER_ROLLOUT, PAPER_TRAIN, finite
from rollmux.mux.job import JobSpec
from rollmux.mux.plan import TRAIL_LIMIT, Candidate, Decision, Strategy, Trail, Verdict
from rollmux.mux.policies import Policy
from rollmux.mux.policies.paper import PaperPolicy
from rollmux.mux.policies.rollmux import RollmuxPolicy
from tests.builders import any_jobs, group, groups_of, job, pinned, snapshot

FINITE = finite(PAPER_ROLLOUT, PAPER_TRAIN)
POLICIES: tuple[Policy, ...] = (PaperPolicy(), RollmuxPolicy())


def told(verdict: Verdict, value: float = 0.0, limit: float = 0.0, subject: str = "it") -> str:
    """The line on one thing that was tried."""
    candidate = Candidate("group-7", Strategy.ROLLOUT_SCALING, 14.8, verdict, subject, value, limit)
    head, line = explain(Decision("new", "rollmux", None, (candidate,))).splitlines()
    assert head.startswith("Job new, policy rollmux: ")
    return line


def numbers(text: str) -> set[float]:
    return {float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)}


@pytest.mark.parametrize("verdict", Verdict, ids=lambda verdict: verdict.name)
def test_every_verdict_has_words_and_a_group_a_strategy_and_a_price(verdict: Verdict) -> None:
    line = told(verdict)
    what, reason = line.split(": ", 1)
    assert what == "  group-7, rollout scaling (+$14.80/h)"
    assert reason.endswith(".")
    assert "None" not in reason
    assert len({told(each) for each in Verdict}) == len(Verdict)


@pytest.mark.parametrize(
    ("verdict", "value", "limit", "said"),
    [
        (Verdict.DEARER, 57.04, 14.8, (57.04, 14.8)),
        (Verdict.SATURATED, 262.0, 233.0, (262, 233)),
        (Verdict.FULL, 5, 4, (5, 4)),
        (Verdict.MEMORY, 1100 * GB, 1000 * GB, (1100, 1000)),
        (Verdict.MEMORY, 4.4 * GB, 4 * GB, (4.4, 4.0)),
        (Verdict.MEMORY, 4 * GB + 1, 4 * GB, (4.000000001, 4.0)),
        (Verdict.SLO, 306.04, 256.3, (306.0, 256.3)),
        (Verdict.SLO, 5.004, 5.0, (5.004, 5.0)),
        (Verdict.NO_NODES, 3, 1, (3, 1)),
    ],
    ids=lambda part: part.name if isinstance(part, Verdict) else None,
)
def test_a_refusal_says_both_numbers(verdict: Verdict, value: float, limit: float, said: tuple[float, ...]) -> None:
    assert set(said) <= numbers(told(verdict, value, limit).split(": ", 1)[1])


@pytest.mark.parametrize("verdict", [Verdict.MEMORY, Verdict.SLO, Verdict.NO_NODES], ids=lambda verdict: verdict.name)
def test_what_decided_is_named(verdict: Verdict) -> None:
    assert "r12-left" in told(verdict, subject="r12-left")


def test_a_plan_is_told_with_its_group_strategy_nodes_and_price() -> None:
    roomy = group("g0", pinned(job("a", 10, 10, slo=9.0), "r0", "t0"))
    direct = explain(RollmuxPolicy().place(job("n", 10, 10, slo=9.0), snapshot(roomy))).splitlines()[0]
    assert direct == "Job n, policy rollmux: g0 by direct packing on r0, t0, at no added cost."
    tight = group("g0", pinned(job("a", 131, 102, slo=1.0), "r0", "t0"))
    wider = explain(PaperPolicy().place(job("n", 131, 102, slo=1.0), snapshot(tight))).splitlines()[0]
    assert wider == "Job n, policy paper: g0 by rollout scaling on rollout-2, t0, for $14.80 more per hour."
    alone = explain(RollmuxPolicy().place(job("n"), snapshot())).splitlines()[0]
    assert alone == "Job n, policy rollmux: group-0, a new group on rollout-0, train-0, for $57.04 more per hour."


def test_a_job_without_a_place_is_told_which_nodes_are_missing() -> None:
    there = snapshot(cluster=FINITE, idle={"rollout": ("m0",)})
    for policy in POLICIES:
        decision = policy.place(job("n", nodes=(3, 2)), there)
        reason = why_queued(decision)
        assert "1 of the 3 nodes it needs in pool rollout" in reason
        assert "0 of the 2 nodes it needs in pool train" in reason
        assert explain(decision).splitlines()[0] == f"Job n, policy {policy.name}: no place now, {reason}."


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_group_that_can_not_be_had_is_told_with_the_price_of_all_its_nodes(policy: Policy) -> None:
    wanted = job("n", nodes=(3, 2))
    decision = policy.place(wanted, snapshot(cluster=FINITE, idle={"rollout": ("m0",), "train": ("x0",)}))
    prices = [c.added_usd_per_hour for c in decision.candidates if c.verdict is Verdict.NO_NODES]
    assert prices == pytest.approx([wanted.usd_per_hour(FINITE)] * 2)


def test_only_the_pools_that_lack_nodes_are_named() -> None:
    there = snapshot(cluster=FINITE, idle={"rollout": ("m0", "m1", "m2")})
    reason = why_queued(RollmuxPolicy().place(job("n", nodes=(3, 2)), there))
    assert "pool train" in reason
    assert "pool rollout" not in reason


def test_a_job_that_nothing_more_can_be_said_of_still_has_a_reason() -> None:
    assert why_queued(Decision("n", "rollmux", None, ()))


@settings(max_examples=60)
@given(
    group=groups_of(any_jobs(most_nodes=(3, 2), most_gb=400), most=4),
    job=any_jobs("new", most_nodes=(3, 2), most_gb=400),
    idle=st.sampled_from([{}, {"rollout": ("m0", "m1", "m2"), "train": ("x0", "x1")}]),
)
def test_whatever_is_decided_can_be_told_line_by_line(
    group: Group, job: JobSpec, idle: dict[str, tuple[str, ...]]
) -> None:
    for policy in POLICIES:
        decision = policy.place(job, snapshot(group, cluster=FINITE, idle=idle))
        head, *lines = explain(decision).splitlines()
        assert head.startswith(f"Job new, policy {policy.name}: ")
        assert len(lines) == len(decision.candidates) + len(decision.more)
        for line, candidate in zip(lines, decision.candidates, strict=False):
            assert line.startswith(
                f"  {candidate.group_id}, {candidate.strategy.value} (+${candidate.added_usd_per_hour:.2f}/h)"
            )
        taken = [c for c in decision.candidates if c.verdict is Verdict.TAKEN]
        if decision.plan is None:
            assert not taken
            assert why_queued(decision) in head
        else:
            assert [c.group_id for c in taken] == [decision.plan.group.id]
            assert all(node in head for node in decision.plan.placement.all_nodes)


# -- many groups -------------------------------------------------------------------------------------------------


def full(number: int) -> Group:
    """A group of five that is not saturated."""
    long = pinned(job(f"long{number}", 100, 100, slo=9.0), f"r{number}", f"t{number}")
    short = (pinned(job(f"short{number}-{i}", 5, 5, slo=60.0), f"r{number}", f"t{number}") for i in range(4))
    return group(f"g{number}", long, *short)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("count", [TRAIL_LIMIT, TRAIL_LIMIT + 1, 3 * TRAIL_LIMIT])
def test_however_many_groups_there_are_a_trail_stays_short_and_counts_them_all(policy: Policy, count: int) -> None:
    decision = policy.place(job("n", 10, 10, slo=9.0), snapshot(*(full(i) for i in range(count))))
    assert len(decision.candidates) <= TRAIL_LIMIT + 1
    assert decision.candidates[-1].verdict is Verdict.TAKEN
    refused = sum(c.verdict is Verdict.FULL for c in decision.candidates)
    counted = sum(n for n, nearest in decision.more if nearest.verdict is Verdict.FULL)
    assert refused + counted == count
    lines = explain(decision).splitlines()
    assert len(lines) == 1 + len(decision.candidates) + len(decision.more)
    if counted:
        assert f" {counted} more " in lines[-1]
        assert "full: it has 5 jobs, the limit is 5" in lines[-1]


def test_each_kind_of_refusal_is_counted_on_its_own() -> None:
    trail = Trail()
    for i in range(TRAIL_LIMIT):
        trail.add(Candidate(f"g{i}", Strategy.DIRECT, 0.0, Verdict.FROZEN))
    for i in range(3):
        trail.add(Candidate(f"s{i}", Strategy.DIRECT, 0.0, Verdict.SLO, "a", 300.0 + i, 200.0))
    for i in range(5):
        trail.add(Candidate(f"f{i}", Strategy.DIRECT, 0.0, Verdict.FULL, "", 9.0 - i, 4.0))
    decision = Decision.of(job("n"), "rollmux", None, trail)
    assert [(count, nearest.group_id) for count, nearest in decision.more] == [(3, "s0"), (5, "f4")]


def test_of_many_groups_without_enough_time_the_one_that_came_nearest_is_told() -> None:
    groups = [
        group(f"g{i}", pinned(job(f"a{i}", 100, 100, slo=1.0 + (i % 97) / 1000), f"r{i}", f"t{i}"))
        for i in range(2 * TRAIL_LIMIT)
    ]
    decision = RollmuxPolicy().place(job("n", 150, 150, slo=1.0), snapshot(*groups))
    ((count, nearest),) = [more for more in decision.more if more[1].verdict is Verdict.SHARE]
    assert count == len(groups)
    free = {each.id: max(each.free_shares) for each in groups}
    assert free[nearest.group_id] == pytest.approx(max(free.values()))

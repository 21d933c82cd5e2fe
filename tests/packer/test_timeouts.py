"""Limits that follow the slowest correct run, audits that measure what they cost, and a memory that stays bounded."""

import json
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.packer.timeouts import End, Limits, Run, TimeoutPolicy, TimeoutSettings, Verdict, replay

CASES = ("a", "b", "c", "d")
SECONDS = st.floats(0.0, 100.0)
TRIALS = st.lists(st.tuples(st.sampled_from(CASES), SECONDS | st.just(inf), st.booleans()), max_size=60)
SETTINGS = st.builds(
    TimeoutSettings,
    floor_s=st.floats(0.5, 5.0),
    slack=st.floats(1.0, 3.0),
    ceiling_s=st.floats(5.0, 40.0),
    wall_factor=st.floats(1.0, 4.0),
    prior_after=st.integers(0, 3),
    audit_every=st.integers(1, 5),
    most_cases=st.integers(1, 4),
)
RUNS = st.lists(
    st.tuples(
        st.sampled_from(CASES), st.sampled_from(End), SECONDS, SECONDS, st.sampled_from((None, "g", "h")), st.booleans()
    ),
    max_size=40,
)
Told = list[tuple[str, End, float, float, str | None, bool]]


def tell(policy: TimeoutPolicy, runs: Told) -> None:
    for case, end, cpu_s, wall_s, group, audit in runs:
        run = Run(case, end, cpu_s, wall_s, policy.limits(case, group), group)
        if audit:
            policy.audited(run)
        else:
            policy.judge(run)


def killed(policy: TimeoutPolicy, case: str) -> Run:
    limits = policy.limits(case)
    return Run(case, End.KILLED, limits.cpu_s, limits.cpu_s, limits)


@given(settings=SETTINGS, runs=RUNS, case=st.sampled_from(CASES), group=st.sampled_from((None, "g", "h")))
def test_limits_lie_between_floor_and_ceiling_and_the_wall_gives_more(
    settings: TimeoutSettings, runs: Told, case: str, group: str | None
) -> None:
    policy = TimeoutPolicy(settings)
    tell(policy, runs)
    limits = policy.limits(case, group)
    assert settings.floor_s <= limits.cpu_s <= settings.ceiling_s
    assert settings.wall_factor * limits.cpu_s <= limits.wall_s <= settings.widest.wall_s


@given(settings=SETTINGS, runs=RUNS)
def test_a_case_that_is_remembered_has_the_slack_over_its_slowest_correct_run(
    settings: TimeoutSettings, runs: Told
) -> None:
    policy = TimeoutPolicy(settings)
    tell(policy, runs)
    remembered = {case for case, *_ in policy.state()["cases"]}
    for case in remembered:
        since = _runs_since_forgotten(runs, case, settings.most_cases)
        slowest_s = max(cpu_s for cpu_s, _ in since)
        assert policy.limits(case).cpu_s == min(max(settings.floor_s, settings.slack * slowest_s), settings.ceiling_s)


def _runs_since_forgotten(runs: Told, case: str, most: int) -> list[tuple[float, float]]:
    """Its correct runs since it was last pushed out, by a plain model of what is remembered."""
    order: list[str] = []
    seen: dict[str, list[tuple[float, float]]] = {}
    for name, end, cpu_s, wall_s, _, audit in runs:
        if end is End.CORRECT:
            seen.setdefault(name, []).append((cpu_s, wall_s))
        elif name not in seen or audit or end is End.BROKEN:
            continue
        order = [*(each for each in order if each != name), name]
        for gone in order[:-most]:
            del seen[gone]
        order = order[-most:]
    return seen[case]


@given(settings=SETTINGS, runs=RUNS)
def test_no_more_cases_or_groups_are_remembered_than_allowed(settings: TimeoutSettings, runs: Told) -> None:
    policy = TimeoutPolicy(settings)
    tell(policy, runs)
    state = policy.state()
    assert len(state["cases"]) <= settings.most_cases
    assert len(state["groups"]) <= settings.most_cases


@given(settings=SETTINGS, before=RUNS, after=RUNS)
def test_a_policy_restored_from_json_goes_on_as_if_it_had_never_stopped(
    settings: TimeoutSettings, before: Told, after: Told
) -> None:
    policy = TimeoutPolicy(settings)
    tell(policy, before)
    twin = TimeoutPolicy.from_state(settings, json.loads(json.dumps(policy.state())))
    for each in (policy, twin):
        tell(each, after)
    assert twin.state() == policy.state()
    assert twin.false_kills == policy.false_kills
    assert [twin.limits(case, "g") for case in CASES] == [policy.limits(case, "g") for case in CASES]


@given(settings=SETTINGS, trials=TRIALS, at_once=st.integers(1, 8))
def test_a_replay_accounts_for_every_second_and_every_false_kill(
    settings: TimeoutSettings, trials: list[tuple[str, float, bool]], at_once: int
) -> None:
    found = replay(TimeoutPolicy(settings), trials, at_once)
    assert found.fixed_s == pytest.approx(sum(min(seconds, settings.ceiling_s) for _, seconds, _ in trials))
    assert found.adaptive_s <= found.fixed_s + 1e-6
    killable = sum(correct and settings.floor_s < seconds <= settings.ceiling_s for _, seconds, correct in trials)
    assert found.falsely_killed <= min(killable, found.false_kills.killed)
    assert found.false_kills.runs == found.trials == len(trials)
    assert found.false_kills.audited == -(-found.false_kills.killed // settings.audit_every)
    assert found.false_kills.would_have_passed <= found.falsely_killed


@given(settings=SETTINGS, trials=TRIALS)
def test_with_every_kill_audited_the_estimate_is_the_truth(
    settings: TimeoutSettings, trials: list[tuple[str, float, bool]]
) -> None:
    everything = TimeoutSettings(settings.floor_s, settings.slack, settings.ceiling_s, audit_every=1)
    found = replay(TimeoutPolicy(everything), trials)
    assert found.false_kills.would_have_passed == found.falsely_killed
    if found.false_kills.killed:
        assert found.false_kills.of_runs == pytest.approx(found.falsely_killed / found.trials)


@given(trials=TRIALS)
def test_trials_that_start_together_learn_nothing_from_one_another(trials: list[tuple[str, float, bool]]) -> None:
    found = replay(TimeoutPolicy(), trials, at_once=max(1, len(trials)))
    assert found.adaptive_s == pytest.approx(found.fixed_s)
    assert found.falsely_killed == 0


def test_a_new_case_has_the_ceiling_and_then_follows_its_correct_runs_alone() -> None:
    policy = TimeoutPolicy()
    assert policy.limits("a") == Limits(30.0, 60.0)
    policy.judge(Run("a", End.INCORRECT, 9.0, 9.0, policy.limits("a")))
    assert policy.limits("a") == Limits(30.0, 60.0)
    policy.judge(Run("a", End.CORRECT, 0.5, 0.5, policy.limits("a")))
    assert policy.limits("a") == Limits(2.0, 4.0)
    policy.learn("a", 4.0, 4.0)
    assert policy.limits("a") == Limits(6.0, 12.0)
    assert policy.limits("b") == Limits(30.0, 60.0)


def test_a_correct_run_that_waits_much_raises_the_wall_limit_only() -> None:
    policy = TimeoutPolicy()
    policy.learn("a", cpu_s=0.5, wall_s=8.0)
    assert policy.limits("a") == Limits(2.0, 24.0)


def test_a_group_gives_a_new_case_its_prior_once_enough_was_seen() -> None:
    policy = TimeoutPolicy(TimeoutSettings(prior_after=2))
    policy.learn("a", 4.0, 4.0, "loops")
    assert policy.limits("b", "loops") == Limits(30.0, 60.0)
    policy.learn("b", 2.0, 2.0, "loops")
    assert policy.limits("c", "loops") == Limits(6.0, 12.0)
    assert policy.limits("b", "loops") == Limits(3.0, 6.0), "its own runs go before the group's"
    assert policy.limits("c", "others") == policy.limits("c") == Limits(30.0, 60.0)
    without = TimeoutPolicy(TimeoutSettings(prior_after=0))
    without.learn("a", 4.0, 4.0, "loops")
    assert without.limits("c", "loops") == Limits(30.0, 60.0)


@pytest.mark.parametrize(
    ("end", "verdict", "runs"),
    [
        (End.CORRECT, Verdict.PASSED, 1),
        (End.INCORRECT, Verdict.WRONG, 1),
        (End.KILLED, Verdict.TIMEOUT, 1),
        (End.BROKEN, Verdict.ERROR, 0),
    ],
)
def test_a_broken_sandbox_says_nothing_of_the_program(end: End, verdict: Verdict, runs: int) -> None:
    policy = TimeoutPolicy()
    assert policy.judge(Run("a", end, 1.0, 1.0, policy.limits("a"))).verdict is verdict
    assert policy.false_kills.runs == runs


def test_every_so_many_kills_one_is_audited_and_none_at_the_ceiling() -> None:
    policy = TimeoutPolicy(TimeoutSettings(audit_every=3))
    assert policy.judge(killed(policy, "a")).audit is None, "at the ceiling no kill is false"
    assert policy.false_kills.killed == 0
    policy.learn("a", 0.1, 0.1)
    audits = [policy.judge(killed(policy, "a")).audit for _ in range(7)]
    assert audits == [Limits(30.0, 60.0), None, None] * 2 + [Limits(30.0, 60.0)]
    assert policy.false_kills.killed == 7


def test_an_audit_that_passes_is_counted_and_raises_the_limit() -> None:
    policy = TimeoutPolicy(TimeoutSettings(audit_every=1))
    policy.learn("a", 0.1, 0.1)
    for end, cpu_s in ((End.INCORRECT, 5.0), (End.BROKEN, 1.0), (End.CORRECT, 10.0), (End.KILLED, 30.0)):
        audit = policy.judge(killed(policy, "a")).audit
        assert audit is not None
        policy.audited(Run("a", end, cpu_s, cpu_s, audit))
    counts = policy.false_kills
    assert (counts.killed, counts.audited, counts.would_have_passed) == (4, 3, 1)
    assert policy.limits("a") == Limits(15.0, 30.0)


def test_the_case_that_came_up_longest_ago_is_forgotten_and_has_the_ceiling_again() -> None:
    policy = TimeoutPolicy(TimeoutSettings(most_cases=2))
    for case in ("a", "b"):
        policy.learn(case, 1.0, 1.0)
    policy.judge(killed(policy, "a"))
    policy.learn("c", 1.0, 1.0)
    assert [policy.limits(case).cpu_s for case in ("a", "b", "c")] == [2.0, 30.0, 2.0]


def test_a_restored_policy_with_less_room_keeps_the_latest_cases() -> None:
    policy = TimeoutPolicy()
    for case in CASES:
        policy.learn(case, 1.0, 1.0)
    small = TimeoutPolicy.from_state(TimeoutSettings(most_cases=1), policy.state())
    assert [case for case, *_ in small.state()["cases"]] == ["d"]


def test_settings_runs_and_states_report_all_that_is_wrong_with_them() -> None:
    with pytest.raises(InvalidSpec) as settings:
        TimeoutSettings(2.0, 0.5, 1.0, 0.5, -1, 0, 0)
    assert len(settings.value.problems) == 6
    with pytest.raises(InvalidSpec, match="floor_s") as floor:
        TimeoutSettings(floor_s=0.0)
    assert len(floor.value.problems) == 1
    with pytest.raises(InvalidSpec) as run:
        Run("a", End.CORRECT, float("nan"), -1.0, Limits(1.0, 1.0))
    assert len(run.value.problems) == 2
    with pytest.raises(InvalidSpec, match="did you mean 'cases'"):
        TimeoutPolicy.from_state(TimeoutSettings(), {"case": [], "groups": [], "counts": [0, 0, 0, 0]})
    with pytest.raises(InvalidSpec) as state:
        TimeoutPolicy.from_state(
            TimeoutSettings(),
            {"cases": [["a", 1.0, -1.0, 1], [3, 1.0, 1.0]], "groups": [["g", 1.0, 1.0, 1]], "counts": [0, 0, 0]},
        )
    assert [problem.path for problem in state.value.problems] == [
        "timeouts_state.cases[0]",
        "timeouts_state.cases[1]",
        "timeouts_state.cases[1]",
        "timeouts_state.counts",
    ]


# Run times of code test cases with a fixed limit of 30 s, each for a twentieth of them (RollPacker, arXiv 2509.21009,
# figure 7a): what is stopped at 30 s does not end.
SANDBOX_S = (
    *(0.143, 0.165, 0.187, 0.206, 0.225, 0.244, 0.26, 0.273, 0.286, 0.305, 0.326, 0.348, 0.381, 0.431, 0.489, 0.62),
    *(0.709, 0.806, 1.05, inf),
)


def test_at_the_published_run_times_most_of_the_time_is_saved_and_nothing_falsely_killed() -> None:
    trials = [(f"case {n % 25}", seconds * (1 + n % 7 / 10), seconds < inf) for n, seconds in enumerate(SANDBOX_S * 50)]
    found = replay(TimeoutPolicy(), trials, at_once=25)
    assert found.fixed_s > 3 * found.adaptive_s
    assert found.falsely_killed == 0
    assert found.false_kills.of_runs_upper < 0.05
    assert found.false_kills.audited == 3

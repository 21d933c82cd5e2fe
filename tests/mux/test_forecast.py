"""The forecast tells each job's steady iteration time, by whichever way is quickest; all ways agree."""

from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rollmux.mux import forecast as forecast_module
from rollmux.mux import play as play_module
from rollmux.mux import quick_play as quick_module
from rollmux.mux import urgent_play as urgent_module
from rollmux.mux.forecast import TOLERANCE, Forecaster, Taken, Trial, closed_form, likely_s
from rollmux.mux.group import Group
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.mux.order import Order, Pause
from rollmux.mux.placed import Member, Placement
from rollmux.mux.play import JobPlay, TailPlay, play
from rollmux.mux.quick_play import is_plain, quick_play
from rollmux.mux.urgent_play import urgent_play
from tests.thorough import examples, some

ORDERS = st.sampled_from(Order)
BY_TURNS = st.sampled_from((Order.FIFO, Order.ROUND_ROBIN))
PAUSES = st.sampled_from((None, None, Pause(0, 0), Pause(0, 7), Pause(2, 3)))
# Small numbers make many things happen at the same instant, large ones make groups that drift for ever.
SCALES = st.sampled_from((4, 60, 100_000))


def plain(rollout_ms: int, train_ms: int, rollout: str = "r", train: str = "t", sync_ms: int = 0) -> JobPlay:
    return JobPlay(rollout_ms, train_ms, sync_ms, (rollout,), (train,), aim_ms=2 * (rollout_ms + train_ms + sync_ms))


@st.composite
def plain_jobs(draw: st.DrawFn, rollout: str = "ab", train: str = "xy", most: int = 5) -> tuple[JobPlay, ...]:
    """Strict jobs that hold one node a phase."""
    top = draw(SCALES)
    some_ms = st.integers(1, top)
    job = st.builds(
        plain, some_ms, some_ms, st.sampled_from(rollout), st.sampled_from(train), st.one_of(st.just(0), some_ms)
    )
    return tuple(draw(st.lists(job, min_size=1, max_size=most)))


@st.composite
def urgent_jobs(draw: st.DrawFn) -> tuple[JobPlay, ...]:
    """Strict jobs that hold one node a phase, in a hurry or not, some of which can pause, or roam."""
    some = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True).map(tuple)
    return tuple(
        job._replace(
            rollout_nodes=draw(st.one_of(st.just(job.rollout_nodes), some)),
            rollout_wants=1,
            aim_ms=1 + int(job.aim_ms / 2 * draw(st.sampled_from((0.9, 1.1, 1.3, 2.0, 3.0)))),
            rollout_pause=draw(PAUSES),
            train_pause=draw(PAUSES),
        )
        for job in draw(plain_jobs("abc", "axy"))
    )


@st.composite
def any_plays(draw: st.DrawFn, count: int | None = None, syncs: bool = True) -> tuple[JobPlay, ...]:
    """Jobs that hold several nodes a phase, sync, run ahead, start on a part of their nodes or move their tails."""
    some_ms = st.integers(1, draw(SCALES))
    gangs = {pool: st.lists(st.sampled_from(pool), min_size=1, max_size=3, unique=True) for pool in ("abc", "axy")}
    jobs = []
    for _ in range(count or draw(st.integers(1, 4))):
        rollout_ms, rollout = draw(some_ms), tuple(draw(gangs["abc"]))
        tail = TailPlay(draw(st.integers(0, rollout_ms)), draw(st.integers(0, 3)), 1)
        jobs.append(
            JobPlay(
                rollout_ms,
                draw(some_ms),
                draw(some_ms) if syncs and draw(st.booleans()) else 0,
                rollout,
                tuple(draw(gangs["axy"])),
                draw(st.integers(0, 2)),
                draw(st.booleans()) and len(rollout) > 1,
                tail if draw(st.booleans()) and len(rollout) > 1 else None,
                1,
                draw(PAUSES),
                draw(PAUSES),
            )
        )
        if not jobs[-1].elastic and jobs[-1].tail is None:
            jobs[-1] = jobs[-1]._replace(rollout_wants=draw(st.integers(1, len(rollout))))
    hurry = st.sampled_from((0.5, 1.0, 1.5, 3.0))
    alone = [job.rollout_ms + job.train_ms + job.sync_ms for job in jobs]
    return tuple(job._replace(aim_ms=1 + int(ms * draw(hurry))) for job, ms in zip(jobs, alone, strict=True))


def spec(name: str, job: JobPlay, slo: float = 1000.0) -> JobSpec:
    pinned = len(job.rollout_nodes)
    rollout = PhaseSpec(job.rollout_ms / 1000, nodes=job.rollout_wants or pinned)
    train = PhaseSpec(job.train_ms / 1000, nodes=len(job.train_nodes))
    return JobSpec(
        name,
        rollout,
        train,
        slo,
        sync_s=job.sync_ms / 1000,
        staleness=job.staleness,
        elastic_rollout=job.elastic,
        rollout_spares=pinned - rollout.nodes,
    )


def group_of(jobs: tuple[JobPlay, ...], order: Order = Order.FIFO, slos: tuple[float, ...] = ()) -> Group:
    """A group whose members are played like these jobs."""
    members = []
    for i, job in enumerate(jobs):
        owner = spec(f"j{i}", job, slos[i] if slos else 1000.0)
        members.append(Member.of(owner, Placement(job.rollout_nodes, job.train_nodes)))
    return Group("g", tuple(members), order)


# -- the figures of the paper ---------------------------------------------------------------------------------


def test_two_equal_jobs_weave_into_two_rollouts() -> None:
    group = group_of((plain(131_000, 102_000), plain(131_000, 102_000)))
    assert Forecaster().forecast(group).iteration_s == (262, 262)


SHORT_AND_LONG = (plain(316_000, 120_000, "a"), plain(316_000, 120_000, "b"), plain(756_000, 125_000, "c"))


def test_first_come_first_served_lets_two_short_jobs_go_round_twice_for_each_long_one() -> None:
    found = Forecaster().forecast(group_of(SHORT_AND_LONG))
    assert found.exact
    assert found.iteration_s == (440.5, 440.5, 881)


def test_strict_rounds_slow_short_jobs_to_the_pace_of_the_long_one() -> None:
    found = Forecaster().forecast(group_of(SHORT_AND_LONG, Order.ROUND_ROBIN))
    assert found.exact
    assert found.iteration_s == (881, 881, 881)


# -- three ways to one answer ---------------------------------------------------------------------------------


@settings(max_examples=examples(300))
@given(job=any_plays(count=1), order=ORDERS)
def test_a_job_alone_is_as_fast_as_the_formula_says(job: tuple[JobPlay, ...], order: Order) -> None:
    known = closed_form(job, order)
    assume(known is not None)
    assert known is not None
    played = play(job, order)
    assert played.iteration_s == (known.iteration_s if played.exact else pytest.approx(known.iteration_s))


@settings(max_examples=examples(300))
@given(jobs=plain_jobs("a", "x"), order=BY_TURNS)
def test_jobs_on_the_same_nodes_are_as_fast_as_the_formula_says(jobs: tuple[JobPlay, ...], order: Order) -> None:
    jobs = tuple(job._replace(sync_ms=0) for job in jobs)
    known, played = closed_form(jobs, order), play(jobs, order)
    assert known is not None
    if played.exact:
        assert known == played
    else:  # it took more turns to come round than are played
        assert played.iteration_s == pytest.approx(known.iteration_s, rel=0.05)


def test_where_syncs_take_time_no_formula_is_used_for_company() -> None:
    jobs = (plain(10, 14, sync_ms=5), plain(10, 14, sync_ms=5), plain(10, 2, sync_ms=5))
    assert closed_form(jobs, Order.FIFO) is None
    assert play(jobs, Order.FIFO).iteration_s[0] > 0.030  # all rollouts, or all trainings, in a row


def test_first_come_first_served_rollouts_that_roam_over_the_same_nodes_do_not_wait_for_each_other() -> None:
    roaming = plain(100_000, 10_000)._replace(rollout_nodes=("a", "b"), rollout_wants=1)
    found = Forecaster().forecast(group_of((roaming, roaming)))
    assert found.exact
    assert found.iteration_s == (110, 110)


@settings(max_examples=examples(300))
@given(jobs=plain_jobs("abc", "xy"))
def test_the_quick_play_gives_what_the_play_gives_to_the_millisecond(jobs: tuple[JobPlay, ...]) -> None:
    assert is_plain(jobs, Order.FIFO)
    assert quick_play(jobs) == play(jobs, Order.FIFO)


@pytest.mark.no_cover
@settings(max_examples=examples(300))
@given(jobs=urgent_jobs())
def test_the_urgent_play_gives_what_the_play_gives_to_the_millisecond(jobs: tuple[JobPlay, ...]) -> None:
    assert is_plain(jobs, Order.URGENCY)
    assert urgent_play(jobs) == play(jobs, Order.URGENCY)


@pytest.mark.parametrize("seed", range(4))
def test_the_quick_play_gives_what_the_play_gives_where_nothing_repeats(seed: int) -> None:
    for jobs in drifting(seed, 10):
        assert quick_play(jobs) == play(jobs, Order.FIFO)


@pytest.fixture
def few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (play_module, quick_module, urgent_module):
        monkeypatch.setattr(module, "MOST_ITERATIONS", 300)


@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize("share", [("r", "other"), ("other", "t")])
@pytest.mark.parametrize("limits_ms", [None, (300.0, 1.5e9)])
def test_a_job_next_to_which_another_is_too_short_to_be_played_is_taken_to_be_late(
    share: tuple[str, str], limits_ms: tuple[float, float] | None
) -> None:
    jobs = (plain(10, 10, *share), plain(500_000_000, 500_000_000))
    pausing = tuple(job._replace(rollout_pause=Pause(0, 1), train_pause=Pause(0, 1)) for job in jobs)
    for found in (
        quick_play(jobs, limits_ms=limits_ms),
        urgent_play(pausing, limits_ms=limits_ms),
        play(jobs, Order.FIFO, limits_ms=limits_ms),
    ):
        assert not found.exact
        assert found.iteration_s[1] >= (1_000_000 if limits_ms is None else 2 * 1_500_000)


@pytest.mark.parametrize("order", [Order.FIFO, Order.URGENCY])
def test_fewer_iterations_are_played_where_the_general_play_has_to_be_asked(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To place a trial run of seconds beside jobs of hours whose rollouts run ahead took a core 2.6 s."""
    synced, play_sync = list[int](), play_module._Play._synced

    def counted(self: play_module._Play, job: int) -> None:
        synced.append(job)
        play_sync(self, job)

    monkeypatch.setattr(forecast_module, "MOST_IN_GENERAL", 500)
    monkeypatch.setattr(play_module._Play, "_synced", counted)
    jobs = (plain(200, 100, "a"), plain(1_800_000, 900_000, "b")._replace(staleness=1))
    late = forecast_module._quickest(jobs, order, (5_000.0, 4e6))
    assert late.iteration_s[1] >= 8_000
    assert not late.exact
    assert len(synced) == 500 - len(jobs)


@pytest.mark.usefixtures("few_iterations")
@settings(max_examples=examples(100))
@given(jobs=plain_jobs("ab", "xy"))
def test_plays_that_are_cut_short_agree_to_the_millisecond(jobs: tuple[JobPlay, ...]) -> None:
    assert quick_play(jobs) == play(jobs, Order.FIFO)
    assert urgent_play(jobs) == play(jobs, Order.URGENCY)


@given(jobs=any_plays(), order=ORDERS)
def test_the_quick_play_stands_in_only_for_what_it_can_play(jobs: tuple[JobPlay, ...], order: Order) -> None:
    strict = all(not job.staleness and not job.elastic and job.tail is None for job in jobs)
    single = all(len(job.rollout_nodes) == len(job.train_nodes) == 1 for job in jobs)
    held_at_once = all((job.rollout_wants or len(job.rollout_nodes)) == len(job.train_nodes) == 1 for job in jobs)
    able = single or (held_at_once and order is Order.URGENCY)
    assert is_plain(jobs, order) == (strict and able and order is not Order.ROUND_ROBIN)


# -- what any play keeps to -----------------------------------------------------------------------------------


@settings(max_examples=examples(200))
@given(jobs=any_plays(), order=ORDERS)
def test_no_job_is_faster_in_company_than_alone(jobs: tuple[JobPlay, ...], order: Order) -> None:
    iteration_s = play(jobs, order).iteration_s
    for job, seconds in zip(jobs, iteration_s, strict=True):
        rest_ms = job.train_ms + job.sync_ms
        alone_ms = max(job.rollout_ms, rest_ms) if job.staleness else job.rollout_ms + rest_ms
        assert seconds * 1000 >= alone_ms - 1e-6


@pytest.mark.no_cover
@settings(max_examples=examples(200))
@given(jobs=any_plays(), order=ORDERS)
def test_no_node_works_longer_than_there_is_time(jobs: tuple[JobPlay, ...], order: Order) -> None:
    jobs = tuple(job._replace(elastic=False, tail=None) for job in jobs)
    played = play(jobs, order)
    assume(played.exact)
    nodes = {node for job in jobs for node in job.rollout_nodes + job.train_nodes}
    for node in nodes:
        busy = 0.0
        for job, seconds in zip(jobs, played.iteration_s, strict=True):
            rolls_here = node in job.rollout_nodes and job.rollout_wants in (0, len(job.rollout_nodes))
            held_ms = job.rollout_ms * rolls_here + job.train_ms * (node in job.train_nodes)
            busy += held_ms / 1000 / seconds
        assert busy <= 1 + 1e-9
    busy = 0.0
    for job, seconds in zip(jobs, played.iteration_s, strict=True):
        wants = job.rollout_wants or len(job.rollout_nodes)
        busy += (job.rollout_ms * wants + job.train_ms * len(job.train_nodes)) / 1000 / seconds
    assert busy <= len(nodes) + 1e-9


@given(
    jobs=st.lists(st.builds(plain, st.integers(5, 20), st.integers(5, 20)), min_size=1, max_size=3).map(tuple),
    sync_ms=st.sampled_from((200, 700, 2_000)),
    order=ORDERS,
)
def test_a_job_whose_sync_outlasts_many_turns_of_the_others_has_a_forecast(
    jobs: tuple[JobPlay, ...], sync_ms: int, order: Order
) -> None:
    unlike = (*jobs, plain(5, 5, sync_ms=sync_ms))
    played = play(unlike, order)
    assert played.iteration_s[-1] >= (5 + 5 + sync_ms) / 1000
    if order is Order.FIFO:
        assert quick_play(unlike) == played


@settings(max_examples=examples(100))
@given(jobs=plain_jobs())
def test_linked_jobs_in_strict_rounds_all_have_the_same_pace(jobs: tuple[JobPlay, ...]) -> None:
    linked = tuple(job._replace(train_nodes=("x",)) for job in jobs)
    played = play(linked, Order.ROUND_ROBIN)
    assume(played.exact)
    assert len(set(played.iteration_s)) == 1


@given(rollout_ms=st.integers(1, 1000), train_ms=st.integers(1, 1000), sync_ms=st.integers(0, 1000))
def test_alone_a_job_one_step_off_takes_the_longer_of_its_rollout_and_the_rest(
    rollout_ms: int, train_ms: int, sync_ms: int
) -> None:
    job = plain(rollout_ms, train_ms, sync_ms=sync_ms)._replace(staleness=1)
    expected_s = max(rollout_ms, train_ms + sync_ms) / 1000
    assert play((job,), Order.FIFO).iteration_s == (expected_s,)
    assert Forecaster().forecast(group_of((job,))).iteration_s == (expected_s,)


def drifting(seed: int, count: int) -> list[tuple[JobPlay, ...]]:
    """Groups of strict jobs that find no cycle within the turns that are played."""
    random, found = Random(seed), list[tuple[JobPlay, ...]]()
    while len(found) < count:
        jobs = tuple(
            plain(
                random.randint(1_000, 300_000),
                random.randint(1_000, 300_000),
                random.choice("abc"),
                random.choice("xy"),
                random.choice((0, random.randint(0, 100_000))),
            )
            for _ in range(random.randint(2, 5))
        )
        if not play(jobs, Order.FIFO).exact:
            found.append(jobs)
    return found


@pytest.mark.no_cover
def test_where_nothing_repeats_nearly_every_mean_is_within_five_percent_of_a_long_play() -> None:
    off = []
    for jobs in drifting(seed=1, count=len(some(range(60), every=3))):
        soon, late = play(jobs, Order.FIFO), play(jobs, Order.FIFO, max_turns=1000)
        assert not soon.exact
        off += [abs(a / b - 1) for a, b in zip(soon.iteration_s, late.iteration_s, strict=True)]
    within = sum(each <= 0.05 for each in off)
    assert within / len(off) >= 0.97


# -- the forecaster -------------------------------------------------------------------------------------------


@settings(max_examples=examples(150))
@given(jobs=any_plays(syncs=False), order=BY_TURNS)
def test_a_forecast_is_the_slower_of_two_opposite_starts(jobs: tuple[JobPlay, ...], order: Order) -> None:
    linked = tuple(job._replace(train_nodes=("x",), tail=None) for job in jobs)
    forward, backward = play(linked, order), play(linked[::-1], order)
    found = Forecaster().forecast(group_of(linked, order))
    assert found.iteration_s == tuple(map(max, forward.iteration_s, backward.iteration_s[::-1]))
    assert found.exact == (forward.exact and backward.exact)


@settings(max_examples=examples(150))
@given(left=plain_jobs("ab", "xy", most=3), right=plain_jobs("cd", "zw", most=3), order=ORDERS, data=st.data())
def test_jobs_that_share_no_nodes_do_not_slow_each_other(
    left: tuple[JobPlay, ...], right: tuple[JobPlay, ...], order: Order, data: st.DataObject
) -> None:
    apart = [*Forecaster().forecast(group_of(left, order)).iteration_s]
    apart += Forecaster().forecast(group_of(right, order)).iteration_s
    sides = data.draw(st.permutations([0] * len(left) + [1] * len(right)))
    places = [[*range(len(left))], [*range(len(left), len(left) + len(right))]]
    mixed = [places[side].pop(0) for side in sides]
    both = group_of(tuple((left + right)[i] for i in mixed), order)
    assert Forecaster().forecast(both).iteration_s == tuple(apart[i] for i in mixed)


@st.composite
def limited_groups(draw: st.DrawFn) -> Group:
    """Groups with SLOs that some meet."""
    jobs = draw(st.one_of(plain_jobs(), plain_jobs(), any_plays()))
    slo = st.floats(1, 4, allow_nan=False)
    return group_of(jobs, draw(ORDERS), tuple(draw(st.lists(slo, min_size=len(jobs), max_size=len(jobs)))))


def was_cut_short(group: Group) -> bool:
    """Whether a play that knows the limits may have ended before its time."""
    for part in group.parts:
        for jobs, indexes in ((part.jobs, part.indexes), (part.jobs[::-1], part.indexes[::-1])):
            limits_ms = tuple(group.members[i].limit_s * 1000 for i in indexes)
            if is_plain(jobs, group.order) and quick_play(jobs, limits_ms=limits_ms) != quick_play(jobs):
                return True
            if group.order is Order.URGENCY and len(jobs) > 1:
                return True  # ends as soon as it is clear
    return False


@settings(max_examples=examples(300))
@given(group=limited_groups())
def test_a_group_has_a_late_job_just_where_the_forecast_is_over_a_limit(group: Group) -> None:
    assume(not was_cut_short(group))
    forecast = Forecaster().forecast(group)
    limits = [member.limit_s * (1 + TOLERANCE) for member in group.members]
    over = [member for member, s, limit in zip(group.members, forecast.iteration_s, limits, strict=True) if s > limit]
    late = Forecaster().late(group)
    if late is None:
        assert not over
    else:
        assert late[0] in over
        assert late[1] > late[0].limit_s


@settings(max_examples=examples(300))
@given(group=limited_groups())
def test_the_time_of_a_late_job_is_over_its_limit(group: Group) -> None:
    late = Forecaster().late(group)
    assume(late is not None)
    assert late is not None
    member, iteration_s = late
    assert member in group.members
    assert iteration_s > member.limit_s


@settings(max_examples=examples(150))
@given(groups=st.lists(limited_groups(), min_size=1, max_size=4), data=st.data())
def test_memory_never_changes_an_answer(groups: list[Group], data: st.DataObject) -> None:
    used = Forecaster()
    for group in data.draw(st.lists(st.sampled_from(groups), min_size=2, max_size=10)):
        if data.draw(st.booleans()):
            assert used.forecast(group) == Forecaster().forecast(group)
        else:
            assert used.late(group) == Forecaster().late(group)


def test_each_forecaster_tries_a_group_once_and_for_itself() -> None:
    class Doubtful(Forecaster):
        def _tried(self, group: Group) -> Trial:
            return Trial((group.members[0], 1000.0), (1000.0,))

    group, forecaster = group_of(SHORT_AND_LONG), Forecaster()
    first = forecaster.trial(group)
    assert forecaster.trial(group) is first
    assert Doubtful().late(group) == (group.members[0], 1000.0)
    assert forecaster.trial(group) == first == Forecaster().trial(group)


def test_memory_is_bounded_and_loses_first_what_was_not_asked_for_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast_module, "MEMO_LIMIT", 6)
    played: list[tuple[JobPlay, ...]] = []

    def counted(jobs: tuple[JobPlay, ...], order: Order, **more: Any) -> object:
        played.append(jobs)
        return play(jobs, order, **more)

    monkeypatch.setattr(forecast_module, "play", counted)
    forecaster = Forecaster()
    groups = [group_of((plain(9, 4 + i, "a"), plain(7, 5, "b")), Order.ROUND_ROBIN) for i in range(20)]
    for group in groups:
        forecaster.forecast(groups[0])
        forecaster.forecast(group)
    assert len(played) == 2 * len(groups)
    assert len(forecaster._memo) == 6


# -- what a job's description becomes -------------------------------------------------------------------------


def switching(name: str, load_s: float, offload_s: float) -> JobSpec:
    phase = PhaseSpec(10.0, nodes=1, load_s=load_s, offload_s=offload_s)
    return JobSpec(name, phase, phase, 1000.0)


SWITCHES = st.integers(0, 5).map(float)


@given(load_s=SWITCHES, offload_s=SWITCHES)
def test_switching_costs_nothing_where_no_other_phase_is_pinned(load_s: float, offload_s: float) -> None:
    first = Member.of(switching("a", load_s, offload_s), Placement(("r0",), ("t0",)))
    alone = Group("g", (first,))
    apart = alone.joined_by(Member.of(switching("b", load_s, offload_s), Placement(("r1",), ("t1",))))
    assert Forecaster().forecast(alone).iteration_s == (20,)
    assert Forecaster().forecast(apart).iteration_s == (20, 20)


@given(load_s=SWITCHES, offload_s=SWITCHES, neighbours=st.integers(1, 3))
def test_switching_is_paid_for_where_other_phases_are_pinned(load_s: float, offload_s: float, neighbours: int) -> None:
    group = Group("g", (Member.of(switching("a", load_s, offload_s), Placement(("r0",), ("t0",))),))
    for i in range(neighbours):
        group = group.joined_by(Member.of(switching(f"b{i}", load_s, offload_s), Placement(("r0",), (f"t{i + 1}",))))
    held_s = 10 + load_s + offload_s
    assert Forecaster().forecast(group).iteration_s == (max(held_s * (neighbours + 1), held_s + 10),) * len(
        group.members
    )


@given(load_s=SWITCHES, offload_s=SWITCHES)
def test_a_newcomer_without_switch_times_makes_its_neighbour_switch(load_s: float, offload_s: float) -> None:
    group = Group("g", (Member.of(switching("a", load_s, offload_s), Placement(("r0",), ("t0",))),))
    assert group.parts
    group = group.joined_by(Member.of(switching("b", 0.0, 0.0), Placement(("r0",), ("t1",))))
    assert Forecaster().forecast(group).iteration_s == (20 + load_s + offload_s,) * 2


@given(load_s=SWITCHES, offload_s=SWITCHES)
def test_a_job_that_trains_where_it_rolls_out_switches_twice_an_iteration(load_s: float, offload_s: float) -> None:
    group = Group("g", (Member.of(switching("a", load_s, offload_s), Placement(("n0",), ("n0",))),))
    assert Forecaster().forecast(group).iteration_s == (20 + 2 * (load_s + offload_s),)


# -- what stops early, and what starts early -------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(jobs=plain_jobs(), slos=st.lists(st.floats(1.0, 3.0), min_size=5, max_size=5))
def test_what_a_hurried_verdict_lets_pass_meets_every_limit(jobs: tuple[JobPlay, ...], slos: list[float]) -> None:
    limits_ms = tuple((job.rollout_ms + job.train_ms + job.sync_ms) * slo for job, slo in zip(jobs, slos, strict=False))
    hurried = quick_play(jobs, limits_ms=limits_ms)
    if all(s * 1000 <= limit for s, limit in zip(hurried.iteration_s, limits_ms, strict=True)):
        full = play(jobs, Order.FIFO, max_turns=400)
        assert all(s * 1000 <= limit * 1.03 for s, limit in zip(full.iteration_s, limits_ms, strict=True))


@pytest.mark.parametrize(("cold_start_s", "is_late"), [(0.0, True), (5.0, False)])
def test_who_could_not_afford_to_leave_is_judged_by_the_whole_rhythm(cold_start_s: float, is_late: bool) -> None:
    def job(name: str, rollout_s: float, train_s: float, slo: float, iterations: int) -> JobSpec:
        rollout, train = (PhaseSpec(seconds, nodes=1, pause_s=10.0) for seconds in (rollout_s, train_s))
        return JobSpec(name, rollout, train, slo=slo, iterations=iterations, cold_start_s=cold_start_s)

    first, other = job("first", 58.255, 50.020, 1.0615, 37), job("other", 70.299, 61.883, 1.0584, 72)
    places = Placement(("r0",), ("t0",)), Placement(("r1",), ("t0",))
    members = Member.of(first, places[0]), Member.of(other, places[1])
    group = Group("group", members, Order.URGENCY)
    assert max(Forecaster().forecast(group).iteration_s) > members[0].limit_s
    assert (Forecaster().late(group) is not None) == is_late, "one that can go is let try, and watched"


def test_a_burst_of_what_ran_ahead_makes_no_job_faster_than_alone() -> None:
    """Nothing repeats here while it is played, and a job whose rollouts run ahead may end two iterations at once."""
    members = [
        Member.of(
            JobSpec(name, PhaseSpec(rollout_s, 1), PhaseSpec(train_s, 1), 10.0, staleness=staleness),
            Placement((node,), ("t",)),
        )
        for name, rollout_s, train_s, staleness, node in (
            ("a", 120.0, 3600.0, 0, "r"),
            ("b", 600.0, 20.0, 1, "r"),
            ("c", 3600.0, 20.0, 1, "q"),
        )
    ]
    forecast = Forecaster().forecast(Group("g", tuple(members), Order.FIFO))
    assert not forecast.exact
    for pace_s, member in zip(forecast.iteration_s, members, strict=True):
        assert pace_s >= member.job.solo_s


def test_a_tail_moved_aside_lets_the_next_job_start_early() -> None:
    """Two jobs on two rollout nodes: the tail, half of the time, keeps one node, and the next starts on the other."""
    job = JobPlay(100_000, 10_000, 0, ("a", "b"), ("x",), elastic=True)
    assert play((job, job), Order.FIFO).iteration_s == (200, 200)
    with_tail = job._replace(tail=TailPlay(50_000, 0, 1))
    assert max(play((with_tail, with_tail), Order.FIFO).iteration_s) < 0.9 * 200


# -- phases that vary ------------------------------------------------------------------------------------------------


def test_jobs_in_nobodys_way_are_likely_to_take_the_mean_of_what_they_took() -> None:
    group = group_of((plain(20, 10, "a", "x"), plain(7, 9, "b", "y", sync_ms=4)), Order.URGENCY)
    taken = {
        "j0": [Taken(0.040, 0.020, 0.0), Taken(0.010, 0.030, 0.0)],
        "j1": [Taken(0.003, 0.005, 0.001), Taken(0.005, 0.007, 0.003), Taken(0.004, 0.006, 0.002)],
    }
    assert likely_s(group, taken) == pytest.approx((0.050, 0.012), rel=0.02)


def test_jobs_that_meet_at_changing_moments_are_slower_than_if_they_always_took_their_means() -> None:
    """One that always takes its mean never waits: the other is done just then."""
    group = group_of((plain(100, 100), plain(100, 100)), Order.FIFO)
    assert Forecaster().forecast(group).iteration_s == (0.2, 0.2)
    taken = {"j0": [Taken(0.1, 0.1, 0.0)], "j1": [Taken(0.15, 0.05, 0.0), Taken(0.05, 0.15, 0.0)]}
    assert min(likely_s(group, taken)) > 0.22


@pytest.mark.parametrize("slow_s", [1000, 1100, 10_000])
def test_a_job_that_hardly_comes_round_beside_one_a_thousand_times_as_fast_is_not_likely_to_be_fast(
    slow_s: int,
) -> None:
    halves = {"fast": PhaseSpec(0.5, nodes=1, pause_s=0.0), "slow": PhaseSpec(slow_s / 2, nodes=1, pause_s=0.0)}
    members = [Member.of(JobSpec(name, of, of, slo=3.0), Placement(("r",), ("t",))) for name, of in halves.items()]
    group = Group("g", tuple(members), Order.URGENCY)
    _, likely = likely_s(group, {name: [Taken(of.duration_s, of.duration_s, 0.0)] for name, of in halves.items()})
    _, forecast = Forecaster().forecast(group).iteration_s
    assert slow_s <= likely <= 1.001 * forecast


def test_what_is_likely_is_played_once_until_phases_take_other_times() -> None:
    group = group_of((plain(100, 100), plain(100, 100)), Order.FIFO)
    taken = {"j0": (Taken(0.1, 0.1, 0.0),), "j1": (Taken(0.15, 0.05, 0.0), Taken(0.05, 0.15, 0.0))}
    found = likely_s(group, taken)
    assert likely_s(group, dict(taken)) is found
    taken = {**taken, "j0": (Taken(0.2, 0.2, 0.0), *taken["j0"])}
    assert min(likely_s(group, taken)) > max(found)
    assert likely_s(group, taken) == likely_s(group_of((plain(100, 100), plain(100, 100)), Order.FIFO), taken)

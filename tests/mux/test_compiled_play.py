"""The play in C and the one in Python give the same to the last bit; and without the first all goes on."""

import shutil
import sys
from importlib import reload
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux import compiled
from rollmux.mux import urgent_play as urgent_module
from rollmux.mux.compiled import RULES, fastest, found_in_c
from rollmux.mux.order import Pause
from rollmux.mux.play import MAX_TURNS, JobPlay, Played
from rollmux.mux.urgent_play import TRIAL_TURNS, urgent_play
from tests.thorough import examples

in_c = found_in_c()
if_compiled = pytest.mark.skipif(in_c is None, reason="no compiler was there when this was installed")

SLOS = (1.0, 1.01, 1.2, 1.5, 2.0, 5.0, 9.0)


def some_jobs(random: Random, most: int = 9) -> tuple[JobPlay, ...]:
    """Jobs of all kinds that a play by urgency takes, from a few that meet at every instant to many that drift."""
    top, roaming = random.choice((4, 60, 100_000, 10**7)), random.random() < 0.7

    def pause() -> Pause | None:
        return random.choice((None, Pause(0, 0), Pause(0, 7), Pause(2, 3), Pause(top // 100, 0), Pause(0, top // 100)))

    jobs = []
    for _ in range(random.randint(1, most)):
        rollout_ms, train_ms, sync_ms = (random.randint(1, top) for _ in range(3))
        sync_ms *= random.random() < 0.3
        nodes = random.sample("abcd", random.randint(1, 4) if roaming and random.random() < 0.7 else 1)
        solo_ms = rollout_ms + train_ms + sync_ms
        aim_ms = 1 + int(solo_ms * random.choice((0.9, 1.1, 1.3, 2.0, 3.0)))
        job = JobPlay(rollout_ms, train_ms, sync_ms, tuple(nodes), (random.choice("axyz"),), aim_ms=aim_ms)
        jobs.append(job._replace(rollout_pause=pause(), train_pause=pause(), rollout_wants=1))
    return tuple(jobs)


def some_limits(random: Random, jobs: tuple[JobPlay, ...]) -> tuple[float, ...]:
    return tuple((job.rollout_ms + job.train_ms + job.sync_ms) * random.choice(SLOS) for job in jobs)


def require_the_same(seed: int) -> None:
    assert in_c is not None
    random = Random(seed)
    jobs = some_jobs(random)
    limits_ms = some_limits(random, jobs)
    for turns, limits in ((MAX_TURNS, None), (7, None), (TRIAL_TURNS, limits_ms)):
        found = in_c(jobs, turns, limits, RULES)
        assert found is not None
        assert Played(*found) == urgent_play(jobs, turns, limits)


@if_compiled
@pytest.mark.no_cover
@settings(max_examples=examples(1_000))
@given(seed=st.integers(0, 2**32))
def test_both_give_the_same_to_the_last_bit(seed: int) -> None:
    require_the_same(seed)


@if_compiled
@pytest.mark.parametrize("most", [2, 20, 300])
def test_both_are_cut_short_alike(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(urgent_module, "MOST_ITERATIONS", most)
    monkeypatch.setattr(sys.modules[__name__], "RULES", (*RULES[:-1], most))
    for seed in range(40):
        require_the_same(seed)


@if_compiled
def test_the_same_holds_where_lines_are_counted() -> None:
    for seed in range(200):
        require_the_same(seed)


def test_where_there_is_a_compiler_the_play_is_compiled() -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no compiler here")
    assert compiled.IS_COMPILED


def test_without_a_compiler_plays_are_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rollmux.mux._urgent_play", None)
    try:
        bare = reload(compiled)
        assert not bare.IS_COMPILED
        assert bare.fastest_play is urgent_play
    finally:
        monkeypatch.undo()
        reload(compiled)


JOB = JobPlay(300, 200, 10, ("0",), ("1",), aim_ms=600)


@if_compiled
@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param((), id="nobody"),
        pytest.param((JOB._replace(rollout_ms=2**40),), id="longer than two years"),
        pytest.param((JOB._replace(train_ms=2**70),), id="more than any register holds"),
        pytest.param((JOB._replace(aim_ms=0),), id="never due"),
        pytest.param((JOB._replace(rollout_pause=Pause(-1, 0)),), id="a pause that gives time back"),
    ],
)
def test_what_is_not_for_it_is_left_to_python(jobs: tuple[JobPlay, ...]) -> None:
    assert in_c is not None
    assert in_c(jobs, MAX_TURNS, None, RULES) is None


@if_compiled
def test_a_play_longer_than_quotients_are_exact_for_is_left_to_python() -> None:
    assert in_c is not None
    slow = JOB._replace(rollout_ms=2**36, aim_ms=2**36)
    assert in_c((slow, slow), 10_000, (1e12, 1e12), (*RULES[:3], 1e9, 2, -1.0, 10_000, 10_000, 100_000)) is None


def test_who_asks_for_the_fastest_gets_an_answer_from_one_of_them() -> None:
    jobs = (JOB, JOB._replace(rollout_ms=2**40))
    assert fastest(in_c)(jobs, MAX_TURNS, None) == urgent_play(jobs)
    assert fastest(in_c)((JOB, JOB), MAX_TURNS, None) == urgent_play((JOB, JOB))
    assert fastest(None) is urgent_play


@if_compiled
@pytest.mark.parametrize(
    ("jobs", "limits_ms", "error"),
    [
        pytest.param((JOB,), (1.0, 2.0), ValueError, id="a limit too many"),
        pytest.param((JOB,), ("1",), TypeError, id="a limit that is no number"),
        pytest.param((JOB[:5],), None, TypeError, id="a job cut short"),
        pytest.param((JOB._replace(train_nodes=("0", "1")),), None, TypeError, id="a gang"),
        pytest.param((JOB._replace(rollout_nodes=()),), None, TypeError, id="no nodes"),
        pytest.param((JOB._replace(sync_ms="1"),), None, TypeError, id="a time that is no number"),  # type: ignore[arg-type]
        pytest.param((JOB._replace(train_pause=(1,)),), None, TypeError, id="half a pause"),  # type: ignore[arg-type]
        pytest.param([JOB], None, TypeError, id="no tuple"),
    ],
)
def test_what_is_no_play_is_refused(jobs: object, limits_ms: object, error: type[Exception]) -> None:
    assert in_c is not None
    with pytest.raises(error):
        in_c(jobs, MAX_TURNS, limits_ms, RULES)  # type: ignore[arg-type]


@if_compiled
@pytest.mark.no_cover
def test_it_keeps_no_memory() -> None:
    assert in_c is not None
    random = Random(0)
    plays = [some_jobs(random) for _ in range(200)]

    def play_all(times: int) -> int:
        assert in_c is not None
        for _ in range(times):
            for jobs in plays:
                in_c(jobs, MAX_TURNS, None, RULES)
                in_c(jobs, TRIAL_TURNS, some_limits(random, jobs), RULES)
        return int(Path("/proc/self/statm").read_text().split()[1])

    before_pages = play_all(5)
    assert play_all(40) < before_pages + 1_000  # 16,000 plays that kept a kilobyte each would take four times as much

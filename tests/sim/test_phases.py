"""Phases played in C and in Python come to the same outcome to the last bit; and without the first all goes on."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec, Tail
from rollmux.sim import compiled, replay
from rollmux.sim.cast import Act, Actor, Cast
from rollmux.sim.faults import Faults
from rollmux.sim.generate import GENERATORS
from rollmux.sim.outcome import Outcome
from rollmux.sim.realised import durations
from rollmux.sim.replay import Accounting, Settings
from rollmux.sim.workload import Arrival, Workload
from tests.sim.worlds import PHASED, fixed

if_compiled = pytest.mark.skipif(not compiled.IS_COMPILED, reason="no compiler was there when this was installed")


def some_jobs(random: Random) -> Workload:
    """Jobs of all kinds, from a few that meet at every instant to many that drift; half of the time plain ones only."""
    plain, ragged = random.random() < 0.5, random.random() < 0.5
    most, hours = random.choice(((6, 0.2), (12, 2.0), (40, 20.0)))
    switching, gangs, apart = random.random() < 0.5, random.random() < 0.4, random.random() < 0.3

    def seconds(top: float) -> float:
        return random.uniform(1, top) if ragged else float(random.randint(1, 5) * top / 5)

    def phase() -> PhaseSpec:
        nodes = random.randint(1, 3) if gangs else 1
        found = PhaseSpec(seconds(200), nodes=nodes, resident_bytes=random.choice((0, 10**9, 10**11)))
        if switching:
            found = replace(found, load_s=seconds(5), offload_s=random.choice((0.0, seconds(3))))
        return replace(found, pause_s=random.choice((None, None, 0.0, 7.0)))

    def one(name: str) -> JobSpec:
        job = JobSpec(name, phase(), phase(), random.choice((1.0, 1.05, 1.2, 1.5, 2.0, 4.0)))
        job = replace(job, sync_s=seconds(20) if apart else 0.0, cold_start_s=random.choice((0.0, 0.0, 30.0)))
        if not plain and random.random() < 0.3:
            job = replace(job, staleness=1)
        elif not plain and random.random() < 0.3:
            job = replace(job, elastic_rollout=True)
        if not plain and random.random() < 0.2:
            job = replace(job, tail=Tail(100, 40, job.rollout.duration_s / 2, move_s=1.0))
        return job

    arrivals = []
    for i in range(random.randint(1, most)):
        job = one(f"job-{i}")
        at_s = random.uniform(0, hours * 3600) if ragged else 100.0 * random.randint(0, int(hours * 36))
        arrivals.append(Arrival(at_s, random.randint(1, 30) * job.solo_s, job))
    return Workload("some", tuple(sorted(arrivals, key=lambda arrival: arrival.at_s)))


def some_settings(random: Random) -> Settings:
    return Settings(
        cluster=fixed(random.randint(3, 8), random.randint(3, 8)) if random.random() < 0.2 else PAPER_CLUSTER,
        accounting=Accounting.LIFETIME if random.random() < 0.2 else Accounting.WORK,
        seed=random.randint(0, 99),
        provision_s=random.choice((0.0, 60.0)),
        launch_s=random.choice((0.0, 10.0)),
        move_s=random.choice((0.0, 300.0)),
        pause_s=random.choice((-1.0, 0.0, 10.0)),
        spares=random.choice((0, 2, 4)),
        takes=durations(random.choice(("bound", "bound", "tail", "drift")), random.randint(0, 9)),
        faults=Faults(20.0, 5.0) if random.random() < 0.2 else None,
        history=random.random() < 0.2,
    )


@contextmanager
def in_python() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "hasten", lambda cast, books: None)
        yield


def played(jobs: Workload, policy: str, how: Settings) -> Outcome:
    """All but how long decisions took."""
    return replace(replay.replay(jobs, policy, how), decision_ms=())


def require_the_same(seed: int) -> None:
    random = Random(seed)
    jobs, how, policy = some_jobs(random), some_settings(random), random.choice(("rollmux", "rollmux", *PHASED))
    found = played(jobs, policy, how)
    with in_python():
        assert found == played(jobs, policy, how)


@if_compiled
@pytest.mark.no_cover
@settings(max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_both_come_to_the_same_to_the_last_bit(seed: int) -> None:
    require_the_same(seed)


@if_compiled
def test_the_same_holds_where_lines_are_counted() -> None:
    for seed in range(40):
        require_the_same(seed)


@if_compiled
@pytest.mark.parametrize("policy", ["rollmux", "paper"])
def test_a_long_and_crowded_replay_comes_to_the_same(policy: str) -> None:
    jobs = GENERATORS["mixed"](3, 60, 60.0)
    found = played(jobs, policy, Settings())
    with in_python():
        assert found == played(jobs, policy, Settings())


@if_compiled
def test_nearly_all_phases_are_played_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it is not what makes replays quick."""
    told, ends = [0], [0]
    tell, end = Cast.tell, Cast._end

    def telling(cast: Cast, event: object) -> None:
        told[0] += 1
        tell(cast, event)  # type: ignore[arg-type]

    def ending(cast: Cast, actor: Actor, act: Act) -> None:
        ends[0] += act.lease.kind is PhaseKind.ROLLOUT
        end(cast, actor, act)

    monkeypatch.setattr(Cast, "tell", telling)
    monkeypatch.setattr(Cast, "_end", ending)
    played(GENERATORS["mixed"](0, 40, 60.0), "rollmux", Settings())
    assert ends[0] > 5_000  # each of them three events in Python, and as many for its training
    assert told[0] < ends[0] / 4


def test_where_there_is_a_compiler_phases_are_compiled() -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no compiler here")
    assert compiled.IS_COMPILED


def test_without_a_compiler_phases_are_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rollmux.sim._phases", None)
    assert compiled.found_in_c() is None


@if_compiled
def test_what_is_no_cast_is_refused() -> None:
    module = compiled.found_in_c()
    assert module is not None
    with pytest.raises(TypeError, match="cast is missing"):
        module.Phases()
    with pytest.raises(TypeError, match=r"Act\.lease is no slot"):
        module.bind({"Act": type("Act", (), {"lease": 1})}, 0.3, 2)
    assert compiled.found_in_c() is not None  # and all is as it was

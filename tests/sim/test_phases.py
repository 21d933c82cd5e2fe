"""Phases played in C and in Python come to the same outcome to the last bit; and without the first all goes on."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.errors import IllegalEvent
from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec, Tail
from rollmux.sim import compiled, replay
from rollmux.sim.books import Books
from rollmux.sim.cast import Act, Actor, Cast, as_planned
from rollmux.sim.faults import Faults
from rollmux.sim.generate import GENERATORS
from rollmux.sim.outcome import Outcome
from rollmux.sim.realised import durations
from rollmux.sim.replay import Accounting, Settings
from rollmux.sim.workload import Arrival, Workload
from tests.builders import job
from tests.sim.worlds import PHASED, fixed, machine, workload
from tests.thorough import examples, first, some

# Where a tie, a gang that roams and leaves nodes to others, or pauses of several at once decide what happens; the last
# take as long as all others.
TELLING = (13, 89, 164, 399, 49, 314)

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


def some_gangs(random: Random) -> tuple[Workload, Settings]:
    """A crowd with much time to lose on few nodes, whose rollouts roam in gangs and pause, at times that meet."""
    grid, off_s = random.choice((1.0, 10.0, 50.0)), random.choice((0.0, 0.0, 3.0))

    def seconds(low: float, high: float) -> float:
        return max(grid, round(random.uniform(low, high) / grid) * grid)

    def one(name: str) -> JobSpec:
        rollout_s = seconds(100, 500) if random.random() < 0.5 else seconds(10, 60)
        pause_s = random.choice((0.0, 1.0))
        rollout = PhaseSpec(rollout_s, random.choice((1, 1, 2, 2, 3)), load_s=off_s, offload_s=off_s, pause_s=pause_s)
        train = PhaseSpec(seconds(5, 40), 1, load_s=off_s, offload_s=random.choice((0.0, off_s)), pause_s=0.0)
        job = JobSpec(name, rollout, train, random.choice((1.3, 2.0, 4.0, 8.0)), sync_s=random.choice((0.0, 0.0, 2.0)))
        return replace(job, rollout_spares=random.choice((0, 2, 5)), staleness=int(random.random() < 0.15))

    def other(job: JobSpec, kind: PhaseKind, iteration: int) -> float:
        return as_planned(job, kind, iteration) * (1, 0.5, 1.5, 2, 3)[(iteration + len(job.id)) % 5]

    most_late = random.choice((0, 0, 50))
    arrivals, shapes = [], [one("shape") for _ in range(random.choice((1, 2, 9)))]
    for i in range(random.randint(5, 9)):
        job = replace(random.choice(shapes), id="j" * (1 + i % 3) + str(i))
        arrivals.append(Arrival(grid * random.randint(0, most_late), random.randint(3, 12) * job.solo_s, job))
    few = fixed(random.randint(3, 7), random.randint(1, 5))
    how = Settings(
        cluster=few if random.random() < 0.6 else PAPER_CLUSTER,
        max_group=random.choice((8, 12)),
        move_s=random.choice((0.0, 20.0)),
        spares=random.choice((0, 4)),
        takes=random.choice((as_planned, other, other)),
    )
    return Workload("gangs", tuple(sorted(arrivals, key=lambda arrival: arrival.at_s))), how


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
    if random.random() < 0.3:
        policy, (jobs, how) = "rollmux", some_gangs(random)
    else:
        policy = random.choice(("rollmux", "rollmux", "colocated", *PHASED))
        jobs, how = some_jobs(random), some_settings(random)
    found = played(jobs, policy, how)
    with in_python():
        assert found == played(jobs, policy, how)


@if_compiled
@pytest.mark.no_cover
@settings(max_examples=examples(60))
@given(seed=st.integers(0, 2**32))
def test_both_come_to_the_same_to_the_last_bit(seed: int) -> None:
    require_the_same(seed)


@if_compiled
def test_the_same_holds_where_little_decides_what_happens() -> None:
    for seed in (*some(range(20), every=20), *first(TELLING, 4)):
        require_the_same(seed)


@if_compiled
@pytest.mark.parametrize("policy", [pytest.param("rollmux", marks=pytest.mark.slow), "paper"])
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


@pytest.mark.parametrize(("takes_s", "error"), [(-1.0, IllegalEvent), (inf, OverflowError), (None, TypeError)])
def test_phases_that_take_no_time_at_all_are_refused_in_both(takes_s: object, error: type[Exception]) -> None:
    def takes(job: JobSpec, kind: PhaseKind, iteration: int) -> float:
        wrong = job.id == "j2" and iteration == 3 and kind is not PhaseKind.SYNC
        return takes_s if wrong else as_planned(job, kind, iteration)  # type: ignore[return-value]

    jobs = workload(*(replace(job(f"j{i}", 100.0, 60.0), slo=3.0) for i in range(3)), iterations=6)
    with pytest.raises(error):
        played(jobs, "rollmux", Settings(takes=takes))
    with in_python(), pytest.raises(error):
        played(jobs, "rollmux", Settings(takes=takes))


def test_only_a_cast_to_which_nobody_else_listens_is_hastened() -> None:
    of = machine("rollmux")
    with pytest.raises(ValueError, match="somebody would miss"):
        compiled.hasten(Cast(of), Books(of, history=False))


@if_compiled
def test_what_is_no_cast_is_refused() -> None:
    module = compiled.found_in_c()
    assert module is not None
    with pytest.raises(TypeError, match="cast is missing"):
        module.Phases()
    with pytest.raises(RuntimeError, match="of no cast"):
        module.Phases.__new__(module.Phases).end(0.0, None, None)
    parts = "cast state ledger jobs weaves actors completed active_s heap numbers takes mover books"
    parts += " rollout_book train_book rollout_wanted train_wanted history"
    with pytest.raises(TypeError, match="no parts of a cast"):
        module.Phases(**dict.fromkeys(parts.split()))
    with pytest.raises(TypeError, match=r"Act\.lease is no slot"):
        module.bind({"Act": type("Act", (), {"lease": 1})}, 0.3, 2)
    assert compiled.found_in_c() is not None  # and all is as it was

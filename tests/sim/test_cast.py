"""What happens at one instant happens in the order of submission, then of phases, then of planning.

And whatever becomes of a job, its nodes are booked for as long as its leases hold them.
"""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux import events as ev
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.mux.transitions import Job, Phase
from rollmux.sim.books import Books
from rollmux.sim.cast import Cast, Delays
from tests.builders import job
from tests.sim.worlds import machine

PLANS = st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 3), st.integers(-1, 4)), max_size=12)


@given(plans=PLANS)
def test_at_one_instant_submission_goes_before_phase_and_phase_before_planning(
    plans: list[tuple[int, int, int]],
) -> None:
    cast, seen = Cast(machine("solo")), []
    for number, (at, rank, step) in enumerate(plans):

        def happen(what: tuple[int, int, int, int] = (at, rank, step, number)) -> None:
            seen.append(what)

        cast._later(float(at), rank, step, happen)
    cast.run()
    assert seen == sorted(seen)
    assert len(seen) == len(plans)


def test_of_phases_that_end_together_the_first_jobs_end_first() -> None:
    cast = Cast(machine("solo"))
    cast.keep_history = True
    for name in ("z", "m", "a"):
        cast.submit(0.0, job(name, 50.0, 50.0))
    cast.run(until=100.0)
    ended = [event.job_id for at, event, _ in cast.history if at == 100.0 and isinstance(event, ev.PhaseFinished)]
    assert ended == ["z", "z", "m", "m", "a", "a"]  # each a training, and its sync that takes no time


def test_time_stands_where_it_was_told_to_stop() -> None:
    cast = Cast(machine("solo"))
    cast.submit(0.0, job("a", 50.0, 50.0))
    cast.run(until=70.0)
    assert (cast.now, cast.done("a"), cast.over) == (70.0, 0, False)
    cast.run(happenings=1)
    assert (cast.now, cast.done("a")) == (100.0, 1)


def test_nodes_and_processes_take_their_time_to_come() -> None:
    cast = Cast(machine("solo"), Delays(provision_s=30.0, launch_s=5.0))
    cast.submit(10.0, job("a", 50.0, 50.0))
    cast.run(until=200.0)
    assert cast.started == {"a": 45.0}
    assert cast.completed["a"] == [145.0]


class Holding(Cast):
    """Counts, by pool, for how long nodes are held, state that rests on them after its phase aside."""

    counted_to = 0.0
    held_s: dict[str, float]

    def tell(self, event: ev.Event) -> None:
        state = self.machine.state
        for weave in state.weaves.values():
            for lane in weave.leases.values():
                for node in lane.held if lane.state is not Phase.PARKED else ():
                    self.held_s[state.book.nodes[node].pool] += self.now - self.counted_to
        self.counted_to = self.now
        super().tell(event)

    def fail_if_it_runs(self, job_id: str) -> None:
        record = self.machine.state.jobs.get(job_id)
        if record is not None and record.state is Job.RUNNING:
            self.fail(job_id, "struck down")


SWITCHING = st.builds(
    PhaseSpec,
    duration_s=st.integers(20, 200).map(float),
    nodes=st.just(1),
    load_s=st.sampled_from((0.0, 5.0)),
    offload_s=st.sampled_from((0.0, 60.0, 150.0)),
    pause_s=st.sampled_from((None, 5.0)),
)
JOBS = st.builds(
    JobSpec,
    id=st.just(""),
    rollout=SWITCHING,
    train=SWITCHING,
    slo=st.just(5.0),
    sync_s=st.sampled_from((0.0, 30.0)),
    iterations=st.integers(2, 6),
)


@settings(max_examples=100)
@given(
    policy=st.sampled_from(("paper", "rollmux")),
    jobs=st.lists(st.tuples(st.integers(0, 300), JOBS), min_size=3, max_size=4),
    failures=st.lists(st.tuples(st.integers(100, 1000), st.integers(0, 3)), max_size=8),
)
def test_nodes_work_or_switch_for_as_long_as_leases_hold_them(
    policy: str, jobs: list[tuple[int, JobSpec]], failures: list[tuple[int, int]]
) -> None:
    of = machine(policy)
    books = Books(of, history=False)
    cast = Holding(of, observer=books)
    cast.held_s = dict.fromkeys(books.pools, 0.0)
    for number, (at, each) in enumerate(jobs):
        cast.submit(float(at), replace(each, id=f"job-{number}"))
    for at, number in failures:
        cast.at(float(at), partial(cast.fail_if_it_runs, f"job-{number}"))
    cast.run()
    assert {name: book.busy_s + book.switch_s for name, book in books.pools.items()} == pytest.approx(cast.held_s)

"""What happens at one instant happens in the order of submission, then of phases, then of planning."""

from hypothesis import given
from hypothesis import strategies as st

from rollmux.mux import events as ev
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

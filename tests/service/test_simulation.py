"""The real controller in a simulated world: seeds of faults, then healing. A seed is a run, byte for byte.

First everything fails that can: the controller at and between writes, the disk, the network, processes, nodes. Every
promise is checked after every event (`watch.py`). Then nothing fails any more, and every job must end in bounded time.
"""

from collections.abc import Sequence

import pytest

from rollmux.mux.image import image
from tests.service.seeds import all_of, live_through, summary
from tests.service.world import World

BLOCK = 15


def require_full_of_events(worlds: Sequence[World]) -> None:
    """A simulation in which nothing goes wrong shows nothing."""
    assert sum(world.host.life for world in worlds) > 2 * len(worlds)
    ends = [end for world in worlds for end in world.host.controller.machine.state.ended.values()]
    assert ends.count("finished") > len(ends) / 2
    assert "cancelled" in ends
    events = {type(record.event).__name__ for world in worlds for record in world.played}
    assert events >= {"PhasePaused", "PhaseShrunk", "PhaseOffloaded", "PhaseFailed", "PhaseProgressed", "Heartbeats"}
    assert events >= {"JobFailed", "JobStopped", "JobCancelled", "JobAbandoned", "NodeLost", "ClusterChanged", "Tick"}


@pytest.mark.parametrize("first", range(0, 30, BLOCK))
def test_no_fault_breaks_a_promise_and_every_job_ends(first: int) -> None:
    require_full_of_events([live_through(seed) for seed in range(first, first + BLOCK)])


@pytest.mark.slow
def test_ten_thousand_seeds_break_no_promise(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[str] = []
    for done, found in all_of(range(10_000)):
        if done % 1000 == 0:
            with capsys.disabled():
                print(f"\n{summary(done, found)}", end="")
    assert not found, "\n\n".join(found)


def test_a_seed_is_a_run() -> None:
    """I10: the same seed gives the same records and the same state."""
    one, two = live_through(4), live_through(4)
    for world in (one, two):
        world.follow()
    assert one.played == two.played
    assert image(one.host.controller.machine) == image(two.host.controller.machine)

"""A run with a controller trains what it trains alone; what a lost lease took along is done again."""

from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from rollmux.client import Mux
from rollmux.errors import InvalidSpec
from rollmux.protocol.messages import Said
from rollmux.trainer.checkpoints import Checkpoints
from rollmux.trainer.errors import CheckpointRefused
from rollmux.trainer.job import CHECKPOINTS, train
from rollmux.trainer.learner import Learner
from rollmux.trainer.metrics import METRICS, Metrics
from rollmux.trainer.rollout import Rollout
from tests.client.world import Crowd, Floor, World, job_data
from tests.trainer.jobs import alone, left_behind, tiny

STEPS = 3
JOB = tiny(steps=STEPS)


def test_a_job_that_shares_its_nodes_trains_what_it_trains_alone(whole: tuple[bytes, ...], tmp_path: Path) -> None:
    world, crowd, floor = World(), Crowd(), Floor()

    def neighbour() -> None:
        with world.connect(job_data("b")) as mux:
            floor.walk(mux, "b", 10)

    with world.connect(job_data("a")) as mux:
        crowd.start(neighbour)
        train(JOB, tmp_path, mux)
    crowd.join(120.0)
    assert left_behind(tmp_path) == whole
    assert world.ended("a") == world.ended("b") == "finished"
    assert len(world.said("a", Said.FINISHED)) == 3 * STEPS


def silent(
    world: World, owner: type, method: str, at: int, monkeypatch: pytest.MonkeyPatch, for_s: float = 0.5
) -> None:
    """At this call of a method nothing gets through to the controller until the lease has run out."""
    calls = iter(range(10**6))
    real: Callable[..., object] = getattr(owner, method)

    def call(*arguments: Any) -> object:
        if next(calls) == at:
            world.fate = lambda verb, message: "lost"
            sleep(for_s)
            world.fate = lambda verb, message: ""
        return real(*arguments)

    monkeypatch.setattr(owner, method, call)


@pytest.mark.parametrize(
    ("owner", "method", "at"), [(Rollout, "round", 1), (Learner, "update", 1), (Metrics, "tell", 1)]
)
def test_a_phase_that_lost_its_lease_is_done_again_as_if_it_had_not_been_done(
    owner: type, method: str, at: int, whole: tuple[bytes, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(lease_s=0.3, drain_s=5.0)
    silent(world, owner, method, at, monkeypatch)
    with world.connect(job_data("a")) as mux:
        train(JOB, tmp_path, mux)
    assert left_behind(tmp_path) == whole
    assert world.ended("a") == "finished"


def test_nothing_is_computed_before_there_is_a_lease(tmp_path: Path) -> None:
    world, computed = World(), list[bool]()

    def warmed_up(step: int, loss: float) -> None:
        assert mux._link is not None
        computed.append(any(stint.lease is not None for stint in mux._link.stints.values()))

    with world.connect(job_data("a")) as mux:
        train(JOB, tmp_path, mux, warmed_up=warmed_up)
    assert computed == [True] * JOB.warmup.steps


def test_the_controller_says_which_checkpoint_counts(whole: tuple[bytes, ...], tmp_path: Path) -> None:
    """The job has saved a step that the controller has not heard of: it is done again."""
    train(JOB, tmp_path, alone())
    assert Checkpoints(tmp_path / CHECKPOINTS).steps() == [2, 3]
    mux = alone()
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Mux, "attached", True)
        patched.setattr(Mux, "synced", 2)
        train(JOB, tmp_path, mux, resume=True, trackers=[lambda step, found: seen.append(step)])
    assert seen == [2]
    assert left_behind(tmp_path) == whole


def test_a_controller_that_is_further_than_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Mux, "attached", True)
        patched.setattr(Mux, "synced", 2)
        with pytest.raises(CheckpointRefused, match="2 steps are committed"):
            train(JOB, tmp_path, alone(), resume=True)
    assert not (tmp_path / METRICS).exists()


def test_a_job_that_is_submitted_anew_is_told_what_becomes_of_the_run_of_the_one_before(tmp_path: Path) -> None:
    train(JOB, tmp_path, alone())
    done = left_behind(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Mux, "attached", True)
        with pytest.raises(CheckpointRefused, match=r"0 steps .* \[2, 3\] alone: .* name another --out, or continue"):
            train(JOB, tmp_path, alone(), resume=True)
    assert left_behind(tmp_path) == done
    assert Checkpoints(tmp_path / CHECKPOINTS).steps() == [2, 3]


def test_beside_a_controller_every_step_must_be_a_point_to_go_back_to(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Mux, "attached", True)
        with pytest.raises(InvalidSpec, match="checkpoint_every = 2"):
            train(tiny(checkpoint_every=2), tmp_path, alone())

"""SkyRL's loop under leases: colocated jobs take turns on the same GPUs, and leave nothing there in between.

Here against a stand-in of SkyRL. Against SkyRL itself: tests/examples/test_skyrl_itself.py.
"""

import importlib.util
import runpy
import sys
from contextlib import ExitStack
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

import rollmux
from rollmux.client import LeaseLost
from rollmux.protocol.messages import Ask, Said
from tests.client.world import Crowd, World, job_data
from tests.examples import skyrl_stand_in as skyrl
from tests.examples.gpus import Emptied, Gpus, held_by
from tests.examples.playing import EXAMPLES
from tests.examples.skyrl_stand_in import Place

STEPS = 4
SCRIPT = EXAMPLES / "skyrl" / "leased.py"


@pytest.fixture(autouse=True)
def leased(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example, which finds SkyRL's stand-in."""
    monkeypatch.delenv("ROLLMUX_URL", raising=False)
    skyrl.install(monkeypatch)
    spec = importlib.util.spec_from_file_location("leased", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_place(world: Emptied | None, folder: Path, **more: Any) -> Place:
    return Place(world.gpus if world is not None else Gpus(), folder, **{"steps": STEPS, **more})


def run(leased: Any, place: Place, name: str = "a", **settings: Any) -> None:
    """One job from its beginning to its end, under the leases of its place's world."""
    world = place.gpus.world
    connect = rollmux.connect if world is None else world.connect
    leased.rollmux = SimpleNamespace(connect=lambda job: connect(job=job))
    cfg = leased.Config(on=place, rollmux=job_data(name, iterations=STEPS))
    vars(cfg.trainer).update(run_name=name, **settings)
    leased.LeasedExp(cfg).run()


def done(place: Place, name: str = "a") -> list[str]:
    """What says of which step it is."""
    return [what for job, what in place.gpus.done if job == name and what[-1].isdigit()]


def step(number: int) -> list[str]:
    trained = [f"{model} {number}" for model in ("critic", "policy")]
    return [f"generate {number}", *trained, f"save policy {number}", f"save critic {number}", f"eval {number}"]


def asked(world: World, name: str = "a") -> set[tuple[str, int]]:
    """The phases that a job has asked for."""
    return {(ask.kind.value, ask.iteration) for job, _, ask in world.heard if job == name and isinstance(ask, Ask)}


def whole(first: int = 0) -> set[tuple[str, int]]:
    """Those of a job from this iteration on. The update after the last training is one more rollout."""
    phases = {(kind, number) for kind in ("rollout", "train", "sync") for number in range(first, STEPS)}
    return phases | {("rollout", STEPS)}


ALL = ["eval 0", *(what for number in range(1, STEPS + 1) for what in step(number)), f"save policy {STEPS}"]


@pytest.mark.parametrize("names", ["a", "ab"])
def test_jobs_take_turns_on_the_same_gpus_and_each_leaves_them_empty(leased: Any, names: str, tmp_path: Path) -> None:
    world, crowd = Emptied(), Crowd()
    place = a_place(world, tmp_path)
    for name in names:
        crowd.start(lambda name=name: run(leased, place, name))  # type: ignore[misc]
    crowd.join()
    assert not place.gpus.on
    assert not world.left_behind
    for name in names:
        assert done(place, name) == ALL
        assert place.gpus.done.count((name, "sleep")) == 1 + STEPS + 1, "once built, in each step, and at the end"
        assert world.ended(name) == "finished"
        assert asked(world, name) == whole()


@pytest.mark.parametrize("settings", [{"critic": False}, {"ref": False}, {"eval_before_train": False}])
def test_what_a_job_has_not_is_not_missed(leased: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    world = Emptied()
    place = a_place(world, tmp_path)
    run(leased, place, **settings)
    assert world.ended("a") == "finished"
    assert not place.gpus.on
    assert not world.left_behind


def test_a_batch_that_is_drawn_in_several_goes_is_one_rollout(leased: Any, tmp_path: Path) -> None:
    world = Emptied()
    place = a_place(world, tmp_path, draws_a_step=3)
    run(leased, place)
    assert done(place).count("generate 1") == 3
    assert asked(world) == whole()


BROKEN = ["generate 2", "eval 1", "before the update", "update", "ref forward", "policy 2", "save policy 2"]


@pytest.mark.parametrize("where", BROKEN)
def test_an_error_in_skyrl_leaves_the_gpus_empty_and_gives_them_back(leased: Any, where: str, tmp_path: Path) -> None:
    world = Emptied()
    with pytest.raises(ZeroDivisionError, match=where):
        run(leased, a_place(world, tmp_path, breaks=where))
    assert len(world.said("a", Said.FAILED)) == 1
    assert not world.gpus.on
    assert not world.left_behind
    place = a_place(world, tmp_path)
    run(leased, place, "b")
    assert done(place, "b") == ALL


def test_gpus_that_the_engines_could_not_leave_are_not_given_back(
    leased: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Emptied()
    place = a_place(world, tmp_path, breaks="generate 1")
    sleeps = skyrl.Client.sleep

    async def sleep(self: skyrl.Client) -> None:
        if ("a", "generate 1") in place.gpus.done:
            raise ConnectionError("a server is gone")
        await sleeps(self)

    monkeypatch.setattr(skyrl.Client, "sleep", sleep)
    with pytest.raises(ConnectionError, match="a server is gone"):
        run(leased, place)
    assert world.gpus.on
    assert not world.said("a", Said.FAILED)
    assert not world.left_behind


def test_a_job_that_has_lost_its_lease_ends_and_leaves_nothing(
    leased: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Emptied(lease_s=0.2, drain_s=5.0)
    forward = skyrl.WorkerDispatch.forward

    def hangs(self: skyrl.WorkerDispatch, model: str) -> None:
        forward(self, model)
        world.fate = lambda verb, message: "lost"
        sleep(0.4)
        world.fate = lambda verb, message: ""

    monkeypatch.setattr(skyrl.WorkerDispatch, "forward", hangs)
    with pytest.raises(LeaseLost, match=r"train\(0\) of job a"):
        run(leased, a_place(world, tmp_path), ref=False, critic=False)
    assert not world.gpus.on
    assert not world.left_behind


def test_whoever_hears_that_a_lease_was_lost_has_none_and_may_ask_anew(leased: Any) -> None:
    world = Emptied(lease_s=0.2, drain_s=5.0)
    with world.connect(job_data("a")) as mux, ExitStack() as held:
        turns = leased.Turns(mux, held)
        turns.take("rollout")
        world.fate = lambda verb, message: "lost"
        sleep(0.4)
        world.fate = lambda verb, message: ""
        with pytest.raises(LeaseLost, match=r"rollout\(0\) of job a"):
            turns.take("train")
        turns.take("rollout")
        assert held_by(world, "a") == ("rollout",)
        turns.take("train")
        assert held_by(world, "a") == ("train",)


def test_a_job_that_goes_on_from_a_checkpoint_goes_on_with_what_the_controller_has_counted(
    leased: Any, tmp_path: Path
) -> None:
    world = Emptied()
    with pytest.raises(ZeroDivisionError):
        run(leased, a_place(world, tmp_path, breaks="generate 3"))
    world.heard.clear()
    world.gpus.done.clear()
    place = a_place(world, tmp_path)
    run(leased, place, resume=True)
    before = ["load policy 2", "load critic 2", "eval 2"]
    assert done(place) == [*before, *step(3), *step(4), f"save policy {STEPS}"]
    assert world.ended("a") == "finished"
    assert asked(world) == whole(2)


def test_a_job_on_nodes_apart_is_refused(leased: Any, tmp_path: Path) -> None:
    place = Place(Gpus(World()), tmp_path, STEPS)
    with pytest.raises(ValueError, match="one `shared` pool"):
        run(leased, place)
    assert not place.gpus.done


@pytest.mark.parametrize("setting", ["colocate_all=false", "fully_async.enabled=true", "enable_sleep_mode=false"])
def test_settings_by_which_skyrl_would_not_leave_its_gpus_are_refused(
    leased: Any, setting: str, tmp_path: Path
) -> None:
    place = a_place(None, tmp_path)
    cfg = leased.Config(on=place)
    cfg.trainer.placement.colocate_all = not setting.startswith("colocate")
    cfg.trainer.fully_async.enabled = setting.startswith("fully")
    cfg.generator.inference_engine.engine_init_kwargs = {"enable_sleep_mode": not setting.startswith("enable")}
    with pytest.raises(ValueError, match=setting):
        leased.LeasedExp(cfg).run()
    assert not place.gpus.done


def test_without_a_controller_the_script_runs_skyrls_loop_straight_through_and_moves_no_more_than_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, place = a_place(None, tmp_path / "plain"), a_place(None, tmp_path / "leased")
    for each in (plain, place):
        each.folder.mkdir()
    skyrl.BasePPOExp(skyrl.SkyRLTrainConfig(on=plain)).run()
    monkeypatch.setattr(sys.modules["skyrl"], "place", place, raising=False)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "trainer.epochs=1"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert place.began == ["trainer.epochs=1"]
    assert place.gpus.done == plain.gpus.done
    assert place.gpus.on == plain.gpus.on
    assert place.gpus.moves == plain.gpus.moves

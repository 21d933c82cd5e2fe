"""OpenRLHF's loop under leases: colocated jobs take turns on the same GPUs, and leave nothing there in between.

Here against a stand-in of OpenRLHF. Against OpenRLHF itself: tests/examples/test_openrlhf_itself.py.
"""

import importlib.util
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from threading import Lock
from time import sleep
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import rollmux
from rollmux.client import LeaseLost
from rollmux.protocol.messages import Ask, Said
from tests.client.world import Crowd, World, job_data
from tests.examples import openrlhf_stand_in as openrlhf
from tests.examples.gpus import Emptied, Gpus, held_by
from tests.examples.openrlhf_stand_in import Place
from tests.examples.playing import EXAMPLES

STEPS = 4
SCRIPT = EXAMPLES / "openrlhf" / "leased.py"


@dataclass
class Copy:
    """The example with an OpenRLHF of its own: each job has a process of its own, and replaces what is in it."""

    leased: Any
    openrlhf: dict[str, ModuleType]


LOADING = Lock()


def a_copy() -> Copy:
    with LOADING, pytest.MonkeyPatch.context() as here:
        found = openrlhf.install(here)
        spec = importlib.util.spec_from_file_location("leased", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return Copy(module, found)


def a_place(world: Emptied | None, folder: Path, **more: Any) -> Place:
    return Place(world.gpus if world is not None else Gpus(), folder, **{"steps": STEPS, **more})


def play(args: Any) -> None:
    """One job from its beginning to its end, under the leases of its place's world."""
    world, copy = args.place.gpus.world, a_copy()
    connect = rollmux.connect if world is None else world.connect
    vars(copy.leased).update(
        rollmux=SimpleNamespace(connect=lambda job: connect(job=job_data(args.job, iterations=STEPS))),
        runpy=SimpleNamespace(run_module=lambda name, run_name: openrlhf.script(args, copy.openrlhf)),
    )
    copy.leased.main()


def run(place: Place, name: str = "a", **settings: Any) -> None:
    args = openrlhf.settings(place, name)
    vars(args).update(settings)
    play(args)


def done(place: Place, name: str = "a") -> list[str]:
    """What says of which step it is."""
    return [what for job, what in place.gpus.done if job == name and what[-1].isdigit()]


def step(number: int) -> list[str]:
    trained = [f"{model} {number}" for model in ("critic", "policy")]
    save, best = ([f"{what} {model} {number}" for model in ("policy", "critic")] for what in ("save", "save best"))
    return [f"draw {number - 1}", *trained, f"sync {number}", *save, f"eval {number}", *best]


def asked(world: World, name: str = "a") -> set[tuple[str, int]]:
    """The phases that a job has asked for."""
    return {(ask.kind.value, ask.iteration) for job, _, ask in world.heard if job == name and isinstance(ask, Ask)}


def whole(first: int = 0) -> set[tuple[str, int]]:
    """Those of a job from this iteration on. To see that there is no more to draw is one more rollout."""
    phases = {(kind, number) for kind in ("rollout", "train", "sync") for number in range(first, STEPS)}
    return phases | {("rollout", STEPS)}


ALL = [*(what for number in range(1, STEPS + 1) for what in step(number)), f"export policy {STEPS}"]


@pytest.fixture(autouse=True)
def _command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROLLMUX_URL", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])


@pytest.mark.parametrize("names", ["a", "ab"])
def test_jobs_take_turns_on_the_same_gpus_and_each_leaves_them_empty(names: str, tmp_path: Path) -> None:
    world, crowd = Emptied(), Crowd()
    place = a_place(world, tmp_path)
    for name in names:
        crowd.start(lambda name=name: run(place, name))  # type: ignore[misc]
    crowd.join()
    assert not place.gpus.on
    assert not world.left_behind
    for name in names:
        assert done(place, name) == ALL
        assert world.ended(name) == "finished"
        assert asked(world, name) == whole()


@pytest.mark.parametrize("without", ["critic", "reward", "reference", "evaluation"])
def test_what_a_job_has_not_is_not_missed(without: str, tmp_path: Path) -> None:
    world = Emptied()
    models = tuple(model for model in openrlhf.MODELS if model != without)
    run(a_place(world, tmp_path), models=models, evaluates=without != "evaluation")
    assert world.ended("a") == "finished"
    assert asked(world) == whole()
    assert not world.gpus.on
    assert not world.left_behind


def test_models_that_are_only_asked_leave_with_zero_3_what_they_have_gathered(tmp_path: Path) -> None:
    world = Emptied()
    args = openrlhf.settings(a_place(world, tmp_path), "a")
    args.ds.zero_stage, args.ref.offload, args.reward.offload = 3, True, True
    play(args)
    assert done(args.place) == ALL
    assert not world.left_behind


def test_draws_of_which_nothing_is_left_are_of_one_rollout(tmp_path: Path) -> None:
    world = Emptied()
    place = a_place(world, tmp_path, filtered=2)
    run(place)
    assert done(place).count("filtered 1") == 2
    assert asked(world) == whole()


BROKEN = [
    "draw 1",
    "eval 1",
    "sync 1",
    "reference forward",
    "critic 2",
    "policy 2",
    "save policy 2",
    "save best critic 2",
]


@pytest.mark.parametrize("where", [*BROKEN, "export policy 4"])
def test_an_error_in_openrlhf_leaves_the_gpus_empty_and_gives_them_back(where: str, tmp_path: Path) -> None:
    world = Emptied()
    with pytest.raises(ZeroDivisionError, match=where):
        run(a_place(world, tmp_path, breaks=where))
    assert len(world.said("a", Said.FAILED)) == 1
    assert not world.gpus.on
    assert not world.left_behind
    place = a_place(world, tmp_path)
    run(place, "b")
    assert done(place, "b") == ALL


def test_an_error_while_openrlhf_builds_is_told_as_it_is(tmp_path: Path) -> None:
    world = Emptied()
    for where, resume in (("draw 2", False), ("load policy 2", True)):
        with pytest.raises(ZeroDivisionError, match=where):
            run(a_place(world, tmp_path, breaks=where), resume=resume)
    assert [failed.reason for failed in world.said("a", Said.FAILED)] == [
        "ZeroDivisionError: draw 2",
        "ZeroDivisionError: load policy 2",
    ]


def test_gpus_that_the_engines_could_not_leave_are_not_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Emptied()
    place = a_place(world, tmp_path, breaks="draw 0")
    sleeps = openrlhf.Engine.sleep

    def sleep(self: openrlhf.Engine) -> None:
        if ("a", "draw 0") in place.gpus.done:
            raise ConnectionError("an engine is gone")
        sleeps(self)

    monkeypatch.setattr(openrlhf.Engine, "sleep", sleep)
    with pytest.raises(ConnectionError, match="an engine is gone"):
        run(place)
    assert world.gpus.on
    assert not world.said("a", Said.FAILED)
    assert not world.left_behind


def test_a_job_that_has_lost_its_lease_ends_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Emptied(lease_s=0.2, drain_s=5.0)
    fit = openrlhf.Trained.fit

    def hangs(self: openrlhf.Trained) -> None:
        fit(self)
        world.fate = lambda verb, message: "lost"
        sleep(0.4)
        world.fate = lambda verb, message: ""

    monkeypatch.setattr(openrlhf.Trained, "fit", hangs)
    with pytest.raises(LeaseLost, match=r"train\(0\) of job a"):
        run(a_place(world, tmp_path), models=["policy"])
    assert not world.gpus.on
    assert not world.left_behind


def test_whoever_hears_that_a_lease_was_lost_has_none_and_may_ask_anew() -> None:
    world = Emptied(lease_s=0.2, drain_s=5.0)
    with world.connect(job_data("a")) as mux, ExitStack() as held:
        turns = a_copy().leased.Turns(mux, held)
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


def test_a_job_that_goes_on_from_a_checkpoint_goes_on_with_what_the_controller_has_counted(tmp_path: Path) -> None:
    world = Emptied()
    with pytest.raises(ZeroDivisionError):
        run(a_place(world, tmp_path, breaks="draw 2"))
    world.heard.clear()
    world.gpus.done.clear()
    place = a_place(world, tmp_path)
    run(place, resume=True)
    before = ["load policy 2", "load critic 2", "sync 2"]
    assert done(place) == [*before, *step(3), *step(4), f"export policy {STEPS}"]
    assert world.ended("a") == "finished"
    assert asked(world) == whole(2)


def test_a_job_on_nodes_apart_is_refused(tmp_path: Path) -> None:
    place = Place(Gpus(World()), tmp_path, STEPS)
    with pytest.raises(ValueError, match="one `shared` pool"):
        run(place)
    assert not place.gpus.done


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("train.colocate_all", False, "without --train.colocate_all"),
        ("vllm.enable_sleep", False, "without --vllm.enable_sleep"),
        ("ds.enable_sleep", False, "without --ds.enable_sleep"),
        ("train.async_enable", True, "with --train.async_enable"),
        ("train.enable_ema", True, "with --train.enable_ema"),
        ("ds.lora.rank", 8, "with --ds.lora.rank"),
        ("actor.freeze_visual_encoder", True, "with --actor.freeze_visual_encoder"),
        ("ref.offload", False, "without --ref.offload at --ds.zero_stage 3"),
        ("reward.offload", False, "without --reward.offload at --ds.zero_stage 3"),
    ],
)
def test_settings_by_which_openrlhf_would_not_leave_its_gpus_are_refused(
    setting: str, value: Any, named: str, tmp_path: Path
) -> None:
    args = openrlhf.settings(a_place(Emptied(), tmp_path), "a")
    args.ds.zero_stage, args.ref.offload, args.reward.offload = 3, True, True
    *parents, last = setting.split(".")
    setattr(reduce(getattr, parents, args), last, value)
    with pytest.raises(ValueError, match=named):
        play(args)
    assert not args.place.gpus.done


def test_openrlhfs_script_is_run_with_its_arguments_and_the_job_is_not_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, ran, leased = World(shared=1), list[Any](), a_copy().leased
    words = ["--vllm.num_engines", "1", "--rollmux", json.dumps(job_data("a")), "--ds.enable_sleep"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
    vars(leased).update(
        rollmux=SimpleNamespace(connect=world.connect),
        runpy=SimpleNamespace(run_module=lambda name, run_name: ran.append((name, run_name, sys.argv[1:]))),
    )
    leased.main()
    assert world.ended("a") == "finished"
    assert ran == [("openrlhf.cli.train_ppo_ray", "__main__", ["--vllm.num_engines", "1", "--ds.enable_sleep"])]


@pytest.mark.parametrize(("named", "joined"), [(None, "local"), ("10.0.0.1:6379", "10.0.0.1:6379")])
def test_a_job_has_a_ray_of_its_own_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, named: str | None, joined: str
) -> None:
    if named is not None:
        monkeypatch.setenv("RAY_ADDRESS", named)
    copy = a_copy()
    vars(copy.leased).update(runpy=SimpleNamespace(run_module=lambda name, run_name: None))
    copy.leased.main()
    assert copy.openrlhf["ray"].init() == joined
    assert "RAY_ADDRESS" not in os.environ


def test_without_a_controller_openrlhf_runs_straight_through_and_moves_no_more_than_it(tmp_path: Path) -> None:
    plain, place = a_place(None, tmp_path / "plain"), a_place(None, tmp_path / "leased")
    for each in (plain, place):
        each.folder.mkdir()
    openrlhf.script(openrlhf.settings(plain, "a"), a_copy().openrlhf)
    run(place)
    assert place.gpus.done == plain.gpus.done
    assert place.gpus.on == plain.gpus.on
    assert place.gpus.moves == plain.gpus.moves
    assert (plain.pins, place.pins) == (True, False), "here the loaders are in the process that holds the leases"

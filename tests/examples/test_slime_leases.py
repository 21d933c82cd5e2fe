"""slime's loop under leases: colocated jobs take turns on the same GPUs, and none touches them without a lease."""

import importlib.util
import runpy
import sys
from argparse import Namespace
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest

from rollmux.client import Mux, connect
from rollmux.mux import ClusterMachine, JobSubmitted, Placement, RollmuxPolicy
from rollmux.mux.commands import Admit
from rollmux.mux.events import NodeJoined
from rollmux.protocol.cluster_file import read_cluster
from rollmux.protocol.job_file import read_job_file
from rollmux.protocol.messages import Ask, Said
from tests.client.world import Crowd, World, job_data
from tests.examples.gpus import Gpus
from tests.examples.playing import EXAMPLES

STEPS = 4


def example() -> Any:
    spec = importlib.util.spec_from_file_location("leases", EXAMPLES / "slime" / "leases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Remote:
    """A method of an actor of Ray's."""

    def __init__(self, call: Any) -> None:
        self.remote = call


@dataclass
class Manager:
    """As slime's: its engines come in two parts, and lose their weights on their way off."""

    job: str
    gpus: Gpus

    def __post_init__(self) -> None:
        self.gpus.come(self.job, "engines")
        self.gpus.leave(self.job, "engines")  # slime moves them off once they are made

    @property
    def onload_weights(self) -> Remote:
        return Remote(lambda: self.gpus.come(self.job, "engines"))

    @property
    def onload_kv(self) -> Remote:
        return Remote(lambda: self.gpus.work(self.job, "kv", "engines"))

    @property
    def generate(self) -> Remote:
        return Remote(lambda step: self.gpus.work(self.job, f"generate {step}", "engines"))

    @property
    def eval(self) -> Remote:
        return Remote(lambda step: self.gpus.work(self.job, f"eval {step}", "engines"))

    @property
    def offload(self) -> Remote:
        return Remote(lambda: self.gpus.leave(self.job, "engines"))

    @property
    def dispose(self) -> Remote:
        return Remote(lambda: self.gpus.leave(self.job, "engines"))


@dataclass
class Trainers:
    """As slime's: they are asleep but for their work."""

    job: str
    gpus: Gpus
    breaks: bool = False

    def __post_init__(self) -> None:
        self._do("init")

    def _do(self, what: str, *here: str) -> None:
        self.gpus.come(self.job, "trainers")
        self.gpus.work(self.job, what, "trainers", *here)
        self.gpus.leave(self.job, "trainers")

    def update_weights(self) -> None:
        self._do("update", "engines")

    def async_train(self, step: int) -> None:
        if self.breaks:
            raise ZeroDivisionError
        self._do(f"train {step}")


def loop(gpus: Gpus, job: str, breaks: bool = False) -> Any:
    """A train.py of this job, which asks the same things in the same order as slime's."""
    it: Any = ModuleType("train")
    it.create_rollout_manager = lambda args, group: (Manager(job, gpus), None)

    def create_training_models(args: Namespace, groups: object, manager: object) -> tuple[Trainers, None]:
        assert isinstance(manager, Manager), "what slime made is what it gets"
        return Trainers(job, gpus, breaks), None

    it.create_training_models = create_training_models

    def train(args: Namespace) -> None:
        manager, _ = it.create_rollout_manager(args, "rollout")
        actor, critic = it.create_training_models(args, {}, manager)
        assert critic is None
        manager.onload_weights.remote()
        actor.update_weights()
        manager.onload_kv.remote()
        for step in range(args.num_rollout):
            if step == 0:
                manager.eval.remote(step)
            manager.generate.remote(step)
            manager.offload.remote()
            actor.async_train(step)
            manager.onload_weights.remote()
            actor.update_weights()
            manager.onload_kv.remote()
            manager.eval.remote(step)
        manager.dispose.remote()

    it.train = train
    return it


def run(mux: Mux, made: Any) -> None:
    leases = example()
    with mux, leases.Turns(mux) as turns:
        leases.require_same_nodes(mux)
        leases.watch(made, turns)
        made.train(Namespace(num_rollout=STEPS))


@pytest.mark.parametrize("names", ["a", "ab"])
def test_colocated_jobs_take_turns_on_the_same_gpus(names: str) -> None:
    world, crowd = World(shared=1), Crowd()
    gpus = Gpus(world)

    def work(name: str) -> None:
        run(world.connect(job_data(name, iterations=STEPS)), loop(gpus, name))

    for name in names:
        crowd.start(lambda name=name: work(name))  # type: ignore[misc]
    crowd.join()
    assert not gpus.on
    for name in names:
        steps = [what for job, what in gpus.done if job == name and what[:3] in {"gen", "tra", "upd"}]
        turns = [each for step in range(STEPS) for each in (f"generate {step}", f"train {step}", "update")]
        assert steps == ["update", *turns]
        assert world.ended(name) == "finished"
        asked = {(ask.kind.value, ask.iteration) for job, _, ask in world.heard if job == name and isinstance(ask, Ask)}
        phases = {(kind, step) for kind in ("rollout", "train", "sync") for step in range(STEPS)}
        assert asked == phases | {("rollout", STEPS)}, "with the update after the last training"


def test_an_error_in_slime_gives_the_nodes_back() -> None:
    world = World(shared=1)
    gpus = Gpus(world)
    with pytest.raises(ZeroDivisionError):
        run(world.connect(job_data("a")), loop(gpus, "a", breaks=True))
    assert len(world.said("a", Said.FAILED)) == 1
    run(world.connect(job_data("b")), loop(gpus, "b"))
    assert world.ended("b") == "finished"


def test_a_job_on_nodes_apart_is_refused() -> None:
    world, gpus = World(), Gpus()
    with pytest.raises(ValueError, match="one `shared` pool"):
        run(world.connect(job_data("a")), loop(gpus, "a"))
    assert not gpus.done


def test_two_copies_of_the_shipped_job_fit_on_the_shipped_cluster() -> None:
    folder = EXAMPLES / "slime"
    job = read_job_file(folder / "job.yaml").job
    machine = ClusterMachine(read_cluster(folder / "cluster.yaml"), RollmuxPolicy())
    machine.handle(0.0, NodeJoined("shared-0", "shared"))
    said = [command for name in "ab" for command in machine.handle(1.0, JobSubmitted(replace(job, id=name)))]
    places = [command.placement for command in said if isinstance(command, Admit)]
    assert places == [Placement(("shared-0",), ("shared-0",))] * 2


def test_the_script_runs_slimes_loop_if_it_is_colocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLMUX_URL", raising=False)
    gpus = Gpus()
    made = loop(gpus, "a")
    args = Namespace(colocate=True, offload_rollout=True, offload_train=True, num_rollout=STEPS)
    made.parse_args = lambda: args
    monkeypatch.setitem(sys.modules, "train", made)
    script = str(EXAMPLES / "slime" / "leases.py")
    runpy.run_path(script, run_name="__main__")
    assert gpus.done[-1] == ("a", f"eval {STEPS - 1}")
    for name in ("colocate", "offload_rollout", "offload_train"):
        args = Namespace(
            **{**vars(args), "colocate": True, "offload_rollout": True, "offload_train": True, name: False}
        )
        with pytest.raises(ValueError, match="give --colocate"):
            runpy.run_path(script, run_name="__main__")


def test_without_a_controller_slimes_loop_runs_straight_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLMUX_URL", raising=False)
    gpus = Gpus()
    run(connect(), loop(gpus, "a"))
    assert gpus.done[-2:] == [("a", "kv"), ("a", f"eval {STEPS - 1}")]

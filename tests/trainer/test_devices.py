"""A job whose parts visit a device trains what it trains on the processor, and is nowhere while nodes are others'."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
from threading import Event, Thread, local
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rollmux.client.kin import Kin
from rollmux.errors import InvalidSpec
from rollmux.protocol.messages import Said
from rollmux.runtime.engine import slots as slots_module
from rollmux.runtime.engine.local import Limits, LocalEngine
from rollmux.runtime.residency import CpuMemory, Visitor
from rollmux.runtime.residency.transfer import Transfer
from rollmux.runtime.sync import Sender
from rollmux.trainer import device as device_module
from rollmux.trainer import job as job_module
from rollmux.trainer import learner as learner_module
from rollmux.trainer import parts as parts_module
from rollmux.trainer.device import AtHome, berth_of, moments
from rollmux.trainer.job import train
from rollmux.trainer.job_file import read_job
from rollmux.trainer.learner import Learner
from rollmux.trainer.metrics import Metrics
from rollmux.trainer.parts import engine_of, model_of, objective
from rollmux.trainer.ranks import Ranks
from rollmux.trainer.ranks.served import EngineHere, Post, _Driven
from rollmux.trainer.rollout import Rollout
from rollmux.trainer.settings import JobFile
from rollmux.trainer.tasks import build_task
from rollmux.trainer.update.passes import Passes
from tests.client.world import Crowd, Floor, World, job_data, soon
from tests.forking import forks
from tests.trainer.far import Apart, far, near, there_is_a_device
from tests.trainer.jobs import alone, left_behind, require_equal_but_for_rounding, tiny
from tests.trainer.test_migration import TAIL, WIDE, elastic_neighbour, moves, slow
from tests.trainer.test_migration import job as elastic
from tests.trainer.test_ranks import NODES, SHARED, SPANNING, built_one_after_the_other
from tests.trainer.test_woven import silent

STEPS = 3
SAID: dict[str, Any] = {"steps": STEPS, "rollout": {"workers": NODES}}
JOB = tiny(**SAID, model={"dtype": "float64"})
THERE = tiny(**SAID, model={"dtype": "float64", "device": "cuda"})


# -- a part of this process's memory is the device ---------------------------------------------------------------------


class Node(CpuMemory):
    """One node's device. `held` are the nodes on whose devices something is."""

    def __init__(self, node: str, held: dict[str, int]) -> None:
        super().__init__()
        self.node, self.held = node, held
        self.visits = self.saved = self.nbytes = 0
        self.pinned = False

    def allocate(self, nbytes: int) -> torch.Tensor:
        self.held[self.node], self.nbytes, self.visits = nbytes, nbytes, self.visits + 1
        return super().allocate(nbytes)

    def release(self) -> None:
        super().release()
        self.held.pop(self.node, None)

    def pin(self, data: torch.Tensor) -> None:
        self.pinned = True

    def unpin(self) -> None:
        self.pinned = False

    def transfer(self) -> Transfer:
        assert self.pinned
        return Counted(self, super().transfer())


class Counted:
    """Of the bytes that come home."""

    def __init__(self, node: Node, real: Transfer) -> None:
        self._node, self._real = node, real
        self.load, self.finish = real.load, real.finish

    def save(self, host: torch.Tensor, device: torch.Tensor) -> None:
        self._node.saved += host.numel()
        self._real.save(host, device)


class Nodes:
    """A job on devices, a process for each node of its place, each in a thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, trains: int = 1, job: JobFile = THERE) -> None:
        self._job = job
        self.memories: dict[str, Node] = {}
        self.held: dict[str, int] = {}
        self._trains, self._here = trains, local()
        monkeypatch.setattr(device_module, "memory_for", self._memory)
        monkeypatch.setattr(job_module, "check_device", lambda *told: None)
        built_one_after_the_other(monkeypatch)

    def _memory(self, device: str) -> Node | None:
        if device == "cpu":
            return None
        node = getattr(self._here, "node", "alone")
        return self.memories.setdefault(node, Node(node, self.held))

    def start(self, crowd: Crowd, world: World, folder: Path, **more: Any) -> None:
        data = job_data("a", **{**SPANNING, **more})
        for rank in range(NODES + self._trains):
            crowd.start(partial(self._process, world, folder, data, rank))

    def _process(self, world: World, folder: Path, data: dict[str, Any], rank: int) -> None:
        with world.connect(data, rank=rank, processes=NODES + self._trains) as mux:
            self._here.node = (*mux.rollout_nodes, *mux.train_nodes)[rank]
            try:
                train(self._job, folder, mux, resume=True)
            finally:
                self.held.pop(self._here.node, None)  # a process that ends has nothing anywhere


def test_without_a_controller_all_of_it_is_on_the_device_from_the_beginning(
    whole: tuple[bytes, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(monkeypatch)
    seen: list[int] = []
    train(THERE, tmp_path, alone(), warmed_up=lambda step, loss: seen.append(len(nodes.held)))
    assert seen == [1] * THERE.warmup.steps
    assert nodes.memories["alone"].visits == 2  # the step back to before the first one is at home
    assert left_behind(tmp_path) == whole


@pytest.mark.usefixtures("_a_device")
def test_an_error_in_the_middle_of_an_update_is_what_is_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its traceback holds the graph, and that views of the weights."""

    def backward(passes: Passes, surrogate: Any, *told: Any, **more: Any) -> Any:
        assert surrogate.scored.now.grad_fn is not None
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(job_module, "check_device", lambda *told: None)
    monkeypatch.setattr(Passes, "_backward", backward)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        train(THERE, tmp_path, alone())
    assert "others still hold" in caplog.text


@pytest.mark.parametrize("trains", [1, 2])
def test_nothing_is_on_a_device_while_its_node_is_somebody_elses(
    trains: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[bytes, ...]
) -> None:
    nodes, more = Nodes(monkeypatch, trains), SHARED if trains == 2 else {}
    world, crowd, floor = World(rollout=NODES, train=trains), Crowd(), Floor()
    met: list[str] = []

    class Watching(Floor):
        def on(self, on: tuple[str, ...], job: str) -> Any:
            met.extend(node for node in on if node in nodes.held)
            return floor.on(on, job)

    def neighbour() -> None:
        with world.connect(job_data("b", **{**SPANNING, **more})) as mux:
            Watching().walk(mux, "b", 30, body_s=0.02)

    nodes.start(crowd, world, tmp_path, **more)
    crowd.start(neighbour)
    crowd.join(120.0)
    assert not met
    assert len(nodes.memories) == NODES + trains
    assert all(memory.visits >= STEPS for memory in nodes.memories.values())
    leader = nodes.memories.pop(f"train-{trains - 1}")
    assert leader.saved >= (leader.visits - 1) * leader.nbytes  # what the last visit made may have stayed
    for memory in nodes.memories.values():  # who follows only reads
        assert memory.saved <= (memory.visits - 2) * memory.nbytes
    if trains == 1:
        assert left_behind(tmp_path) == whole
    assert world.ended("a") == world.ended("b") == "finished"


@pytest.mark.parametrize(
    ("owner", "method", "at"), [(Rollout, "round", 1), (Learner, "update", 1), (Metrics, "tell", 1), (Ranks, "land", 2)]
)
def test_a_phase_that_lost_its_lease_leaves_nothing_there_and_is_done_again(
    owner: type,
    method: str,
    at: int,
    whole: tuple[bytes, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes(monkeypatch)
    world, crowd = World(rollout=NODES, lease_s=1.0, drain_s=10.0), Crowd()
    silent(world, owner, method, at, monkeypatch, for_s=1.5)
    nodes.start(crowd, world, tmp_path)
    crowd.join(120.0)
    assert left_behind(tmp_path) == whole
    assert world.ended("a") == "finished"


def test_all_that_the_optimiser_knows_visits_with_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, seen = Nodes(monkeypatch), list[tuple[int, int]]()
    real = Learner.update

    def update(learner: Learner, samples: Any) -> Any:
        visitor = learner.berth
        assert isinstance(visitor, Visitor)
        flat = visitor._device.flat
        assert flat is not None
        there = range(flat.data_ptr(), flat.data_ptr() + flat.numel())
        known = moments(learner._optimiser)
        assert all(each.data_ptr() in there for each in (*learner.model.parameters(), *known.values()))
        seen.append((len(known), sum(1 for _ in learner.model.parameters())))
        return real(learner, samples)

    monkeypatch.setattr(Learner, "update", update)
    world, crowd = World(rollout=NODES), Crowd()
    floor = Floor()

    def neighbour() -> None:
        with world.connect(job_data("b", **SPANNING)) as mux:
            floor.walk(mux, "b", 30, body_s=0.02)

    nodes.start(crowd, world, tmp_path)
    crowd.start(neighbour)
    crowd.join(120.0)
    weights = seen[0][1]
    assert seen == [(0, weights), *[(2 * weights, weights)] * (STEPS - 1)]


@pytest.mark.parametrize("what", ["land", "state"])
def test_an_order_to_leave_waits_while_weights_are_read(
    what: str, whole: tuple[bytes, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else is there, so that they stay on the device after the update, until the order comes."""
    nodes, seen = Nodes(monkeypatch), list[tuple[bool, bool]]()
    owner, name = (Sender, "publish") if what == "land" else (learner_module, "copied")
    real, berths = getattr(owner, name), list[Visitor]()
    made = device_module.berth_of

    def noted(*told: Any, **more: Any) -> Any:
        berths.append(made(*told, **more))  # type: ignore[arg-type]
        return berths[-1]

    def read(*told: Any) -> Any:
        visitor = next(each for each in berths if each._device.name == "learner")
        leaves, was = Thread(target=visitor.offload), visitor.is_here
        leaves.start()
        leaves.join(0.05)
        seen.append((was, visitor.is_here))
        return real(*told)

    monkeypatch.setattr(learner_module, "berth_of", noted)
    monkeypatch.setattr(owner, name, read)
    world, crowd = World(rollout=NODES), Crowd()
    nodes.start(crowd, world, tmp_path)
    crowd.join(120.0)
    assert (True, True) in seen
    assert all(still == was for was, still in seen)
    assert left_behind(tmp_path) == whole


@pytest.fixture
def _a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "memory_for", lambda device: CpuMemory())


@pytest.mark.usefixtures("_a_device")
def test_an_engine_goes_on_once_its_own_process_has_the_lease() -> None:
    """Whoever says that it may is not held up until then."""
    job = tiny()
    model, line = model_of(job, build_task(job.task, 0, "")), SimpleNamespace(is_over=False)
    engine, berth = engine_of(job, model, 0), berth_of("cuda", "model", lambda: model)
    served = EngineHere(Post(Path(), Kin(), None, None, model, berth), partial(engine_of, job))  # type: ignore[arg-type]
    driven = _Driven(engine, berth, partial(served._on_nodes, line), served._update)  # type: ignore[arg-type]
    driven.suspend(keep=False)
    driven.resume()
    assert not driven.is_suspended
    goes_on = Thread(target=driven.probe, args=((1, 2), 1))
    goes_on.start()
    goes_on.join(0.05)
    assert (engine.is_suspended, berth.is_here) == (True, False)
    served.load()
    goes_on.join()
    assert (engine.is_suspended, berth.is_here) == (False, True)
    driven.suspend(keep=False)
    driven.resume()
    driven.suspend(keep=False)  # it has never gone on
    assert (driven.is_suspended, berth.is_here) == (True, False)
    engine.close()


def test_an_engine_asks_the_device_on_which_its_keys_and_values_are_for_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def memory_of(device: torch.device) -> CpuMemory:
        asked.append(device.type)
        memory = CpuMemory()
        memory.device = device
        return memory

    monkeypatch.setattr(slots_module, "memory_of", memory_of)
    job = tiny()
    engine = engine_of(job, model_of(job, build_task(job.task, 0, "")), 0)
    assert isinstance(engine, LocalEngine)
    for _ in range(2):
        engine.suspend()
        engine.resume()
    compute: Any = engine._compute
    compute._forward = SimpleNamespace(keys=torch.empty(1, device="meta"), nbytes=0)
    engine.suspend()
    assert asked == ["cpu", "meta"]


@pytest.mark.usefixtures("_a_device")
@pytest.mark.parametrize(("dtype", "bytes_each"), [("float32", 4 + 8), ("bfloat16", 2 + 4 + 8)])
def test_a_learner_that_takes_steps_back_stays_as_large_as_it_was(dtype: str, bytes_each: int, tmp_path: Path) -> None:
    job = tiny(model={"dtype": dtype})
    model = model_of(job, build_task(job.task, 0, ""))
    learner = Learner(model, objective(job.objective, 4), job.optimiser, device="cuda")
    sizes = []
    for step in range(4):
        learner.load()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        learner._masters.take_gradients()
        learner._optimiser.step()
        learner._masters.write_back()
        learner._optimiser.zero_grad()
        learner.offload()
        torch.save(learner.state(), tmp_path / "state")
        known = moments(learner._optimiser)
        restored = torch.load(tmp_path / "state")
        if step % 2:
            learner.load()
        learner.restore(restored)
        assert learner.berth.is_here == step % 2
        assert all(torch.equal(value, known[name]) for name, value in moments(learner._optimiser).items())
        learner.load()
        assert isinstance(learner.berth, Visitor)
        sizes.append((learner.berth.nbytes, (tmp_path / "state").stat().st_size // 100))
        learner.offload()
    assert len(set(sizes)) == 1
    assert sum(each.numel() for each in model.parameters()) * bytes_each <= sizes[0][0]
    learner.close()


@pytest.mark.slow
def test_a_tail_leaves_nothing_on_the_nodes_that_it_frees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = elastic(0)
    train(tiny(**job), tmp_path / "alone", alone())
    there = tiny(**{**job, "model": {**job["model"], "device": "cuda"}})
    nodes, moved = Nodes(monkeypatch, job=there), moves(monkeypatch)
    slow(monkeypatch, moved)
    world, crowd, over = World(rollout=NODES, lease_s=5.0), Crowd(), Event()
    wants = {"rollout": WIDE, "tail": TAIL, "elastic_rollout": True}
    other, met, given = world.connect(job_data("other", **wants)), list[str](), set[tuple[str, ...]]()

    def begun(on: tuple[str, ...]) -> None:
        given.add(on)
        met.extend(node for node in on if node in nodes.held)

    crowd.start(partial(elastic_neighbour, other, over, begun))
    try:
        nodes.start(crowd, world, tmp_path / "spanning", **wants)
        soon(lambda: world.ended("a") == "finished" or crowd.errors, 120.0)
    finally:
        over.set()
    crowd.join()
    assert {("in the middle", 1), ("in the middle", 2)} <= set(moved)
    assert not met
    assert min(map(len, given)) == 1, "it never began on what the other's tail had freed"
    assert left_behind(tmp_path / "spanning") == left_behind(tmp_path / "alone")


# -- a device that refuses what a GPU refuses --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Pool]:
    """A process of its own: torch takes a new device only before its first gradient."""
    with forks().Pool(1, initializer=far) as pool:
        yield pool


def test_a_device_refuses_what_lies_elsewhere(elsewhere: Pool) -> None:
    elsewhere.apply(_mixed)


def _mixed() -> None:
    with there_is_a_device() as device:
        one = torch.ones(3, device=device)
        assert near(one + torch.tensor(2.0)).tolist() == [3.0] * 3
        with pytest.raises(Apart, match=r"cpu.*far:0"):
            one + torch.ones(3)


@pytest.mark.parametrize("objective", ["grpo", "reinforce"])
def test_a_job_computes_on_its_device_all_that_it_computes(elsewhere: Pool, tmp_path: Path, objective: str) -> None:
    """Warm-up, rollouts, updates, steps of the optimiser, checkpoints and a resumed run."""
    job = tiny(**SAID, model={"dtype": "float64"}, objective={"algorithm": objective})
    for name, run in (("processor", _run), ("device", _run_there)):
        (tmp_path / name).mkdir()
        elsewhere.apply(run, (job, tmp_path / name))
    require_equal_but_for_rounding(left_behind(tmp_path / "processor"), left_behind(tmp_path / "device"))


def _run(job: JobFile, folder: Path) -> None:
    """In two goes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parts_module, "slots", _unpacked)
        patched.setattr(job_module, "export_model", _exported)
        train(replace(job, steps=STEPS - 1), folder, alone())
        train(job, folder, alone(), resume=True)


def _unpacked(model: Any, limits: Limits, version: int, packed: bool | None) -> LocalEngine:
    return slots_module.slots(model, limits, version, packed=False)


def _exported(model: Any, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    save_file({name: near(each.detach()) for name, each in model.named_parameters()}, folder / "model.safetensors")


class There(AtHome):
    """It is on the device to stay."""

    is_here = True


def _run_there(job: JobFile, folder: Path) -> None:
    with there_is_a_device() as device, pytest.MonkeyPatch.context() as patched:

        def built(*told: Any) -> Any:
            model = model_of(*told).to(device)
            model.tie_weights()  # of a tensor that is none of torch's own, each place has got one of its own
            return model

        patched.setattr(parts_module, "model_of", built)
        patched.setattr(learner_module, "berth_of", lambda *told: There())
        patched.setattr(slots_module, "memory_of", lambda device: CpuMemory())
        _run(job, folder)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_comes_to_what_the_processor_comes_to(whole: tuple[bytes, ...], tmp_path: Path) -> None:
    """Responses and prompts are the same; a model's rotary positions are in single precision, and round otherwise."""
    train(THERE, tmp_path, alone())
    require_equal_but_for_rounding(whole, left_behind(tmp_path), rel=1e-4)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_processes_beside_one_another_do_not_share_a_gpu() -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_job({"model": {"device": "cuda"}, "rollout": {"place": "beside"}, "update": {"replicas": 2}})
    assert {problem.path for problem in refused.value.problems} == {"job.rollout.place", "job.update.replicas"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_machine_without_a_gpu_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"model\.device = 'cuda'.*sees 0"):
        train(THERE, tmp_path, alone())


def test_beside_a_controller_a_process_computes_on_its_own_nodes_device(tmp_path: Path) -> None:
    world = World()
    with world.connect(job_data("a")) as mux, pytest.raises(InvalidSpec, match="a process for each node"):
        train(tiny(model={"device": "cuda"}), tmp_path, mux)
    assert not world.said("a", Said.FINISHED)

"""A job that spans nodes trains what it trains in one process, whoever comes, goes or is lost."""

import os
import select
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import Condition, Event, Lock
from time import sleep
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from rollmux.client.kin import Kin
from rollmux.errors import InvalidSpec
from rollmux.protocol.messages import Report, Said
from rollmux.runtime.engine import GenerationRequest
from rollmux.runtime.engine.afar import Spoken
from rollmux.runtime.engine.errors import EngineLost
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken, Refused
from rollmux.trainer.device import AtHome
from rollmux.trainer.errors import RanksApart
from rollmux.trainer.job import train
from rollmux.trainer.learner import Learner
from rollmux.trainer.metrics import METRICS, Metrics
from rollmux.trainer.model import build_model
from rollmux.trainer.parts import engine_of, model_of, objective
from rollmux.trainer.ranks import Ranks, Roles, lead, meeting, share
from rollmux.trainer.ranks import served as served_module
from rollmux.trainer.ranks.follow import _take_part, _Told
from rollmux.trainer.ranks.orders import Bye, Enter, Joined, Over, hear, say
from rollmux.trainer.ranks.served import EngineHere
from rollmux.trainer.rollout import Rollout
from rollmux.trainer.sample import Sample
from rollmux.trainer.settings import JobFile
from rollmux.trainer.tasks import build_task
from rollmux.trainer.update import GradientSum
from tests.client.world import Crowd, Floor, World, job_data, soon
from tests.service.commanded import commanded
from tests.trainer.jobs import alone, left_behind, require_equal_but_for_rounding, tiny
from tests.trainer.killing import pid_of
from tests.trainer.test_kills import BIGGER, Job, require_accounted
from tests.trainer.test_migration import (
    TAIL,
    WIDE,
    elastic_neighbour,
    moves,
    slow,
    until_a_round_begins_without,
)
from tests.trainer.test_migration import job as elastic
from tests.trainer.test_woven import silent

STEPS, NODES = 3, 2
PHASE = {"nodes": 1, "duration_s": 50.0}
SPANNING: dict[str, Any] = {"rollout": {**PHASE, "nodes": NODES}, "train": PHASE}
JOB = tiny(steps=STEPS, model={"dtype": "float64"}, rollout={"workers": NODES})


@pytest.fixture(autouse=True)
def _built_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    built_one_after_the_other(monkeypatch)


def built_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of one process share torch's random state."""
    lock = Lock()

    def built(*told: Any) -> Any:
        with lock:
            return build_model(*told)

    monkeypatch.setattr("rollmux.trainer.parts.build_model", built)


def one_process(world: World, job: JobFile, folder: Path, data: dict[str, Any], rank: int) -> None:
    with world.connect(data, rank=rank, processes=NODES + data["train"]["nodes"]) as mux:
        train(job, folder, mux, resume=True)


def spanning(crowd: Crowd, world: World, job: JobFile, folder: Path, **more: Any) -> None:
    """The processes of a job, each in a thread."""
    data = job_data("a", **{**SPANNING, **more})
    for rank in range(NODES + data["train"]["nodes"]):
        crowd.start(partial(one_process, world, job, folder, data, rank))


def test_a_job_that_spans_nodes_trains_what_it_trains_in_one_process(whole: tuple[bytes, ...], tmp_path: Path) -> None:
    world, crowd, floor = World(rollout=NODES), Crowd(), Floor()

    def neighbour() -> None:
        with world.connect(job_data("b", **SPANNING)) as mux:
            floor.walk(mux, "b", 10)

    spanning(crowd, world, JOB, tmp_path)
    crowd.start(neighbour)
    crowd.join(120.0)
    assert left_behind(tmp_path) == whole
    assert world.ended("a") == world.ended("b") == "finished"


@pytest.mark.slow
def test_the_workers_may_be_processes_beside_those_on_their_nodes(whole: tuple[bytes, ...], tmp_path: Path) -> None:
    world, crowd = World(rollout=NODES), Crowd()
    rollout = {"workers": NODES, "place": "beside"}
    spanning(crowd, world, tiny(steps=STEPS, model={"dtype": "float64"}, rollout=rollout), tmp_path)
    crowd.join(120.0)
    assert left_behind(tmp_path) == whole


@pytest.mark.parametrize(
    ("owner", "method", "at"), [(Rollout, "round", 1), (Learner, "update", 1), (Metrics, "tell", 1), (Ranks, "land", 2)]
)
def test_a_phase_that_lost_its_lease_is_done_again_by_all_processes(
    owner: type, method: str, at: int, whole: tuple[bytes, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, crowd = World(rollout=NODES, lease_s=1.0, drain_s=10.0), Crowd()
    silent(world, owner, method, at, monkeypatch, for_s=1.5)
    spanning(crowd, world, JOB, tmp_path)
    crowd.join(120.0)
    assert left_behind(tmp_path) == whole
    assert world.ended("a") == "finished"


@pytest.mark.parametrize("call", ["update", "suspend", "submit"])
def test_a_line_that_is_cut_as_an_engine_is_told_something_costs_nothing_else(
    call: str, whole: tuple[bytes, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, crowd, cut = World(rollout=NODES), Crowd(), list[str]()
    real: Callable[..., Any] = Spoken.send

    def send(spoken: Spoken, name: str, told: tuple[Any, ...]) -> None:
        real(spoken, name, told)
        if name == call and len(cut) < 2:
            cut.append(name)
            spoken._channel.hang_up()

    monkeypatch.setattr(Spoken, "send", send)
    spanning(crowd, world, JOB, tmp_path)
    crowd.join(60.0)
    assert cut == [call] * 2
    assert left_behind(tmp_path) == whole


def test_a_node_whose_line_is_gone_ends_its_engine_before_its_process_says_that_it_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader can't tell it to rest, and says that it is done with the phase."""
    monkeypatch.setattr(served_module, "REST_S", 0.2)
    served: Any = object.__new__(EngineHere)
    engine = engine_of(tiny(), model_of(tiny(), build_task(tiny().task, 0, "")), 0)

    class Line:
        @staticmethod
        def hang_up() -> None:
            served._busy = False

    vars(served).update(
        _engine=engine, _line=Line(), _changed=Condition(), _busy=True, _post=SimpleNamespace(berth=AtHome())
    )
    served.load()
    assert served._here
    engine.suspend()
    served.offload()
    assert served._busy
    engine.resume()
    served.offload()
    assert not served._busy
    assert not served._here


@pytest.mark.parametrize("step", [0, 1], ids=["its engine is yet to begin", "it rests"])
def test_a_process_that_does_not_hear_of_its_lease_does_not_keep_the_leader_from_hearing_that_it_is_lost(
    step: int, whole: tuple[bytes, ...], tmp_path: Path
) -> None:
    """A neighbour takes its turns, so that the engine rests when the leader tells it to go on."""
    world, crowd, floor, since = World(rollout=NODES, lease_s=1.0, drain_s=4.0), Crowd(), Floor(), list[float]()
    answer = world._answer

    def unheard(job: str, verb: str, message: Any) -> Any:
        """The grant of this rollout; and nothing gets through in the seconds after it."""
        is_it = job == "a" and getattr(message, "rank", None) == 0
        if is_it and since and world.now - since[0] < 2.5:
            raise httpx.ConnectError("lost")
        answered = answer(job, verb, message)
        if is_it and not since and verb == "ask" and (message.kind.value, message.iteration) == ("rollout", step):
            since.extend([world.now] if b'"epoch"' in answered.content else [])
        if is_it and since and world.now - since[0] < 2.5:
            raise httpx.ReadTimeout("unheard")
        return answered

    def neighbour() -> None:
        with world.connect(job_data("b", **SPANNING)) as mux:
            floor.walk(mux, "b", 60, body_s=0.03)

    world._answer = unheard  # type: ignore[method-assign,assignment]
    crowd.start(neighbour)
    spanning(crowd, world, JOB, tmp_path)
    crowd.join(45.0)
    assert since
    assert left_behind(tmp_path) == whole
    assert world.ended("a") == "finished"


@pytest.mark.parametrize("deaf", [0, NODES], ids=["who follows", "who leads"])
def test_a_process_that_is_cut_off_as_it_takes_its_lease_holds_up_the_others_and_no_more(
    deaf: int, whole: tuple[bytes, ...], tmp_path: Path
) -> None:
    world, crowd, begun = World(rollout=NODES, lease_s=1.0, drain_s=10.0), Crowd(), list[float]()

    def fate(verb: str, message: Any) -> str:
        if getattr(message, "rank", None) != deaf:
            return ""
        if isinstance(message, Report) and message.said is Said.STARTED and message.epoch >= 4:
            begun.append(world.now)
        return "lost" if begun and world.now - begun[0] < 2.5 else ""

    world.fate = fate
    spanning(crowd, world, JOB, tmp_path)
    crowd.join(60.0)
    assert begun
    assert left_behind(tmp_path) == whole
    assert world.ended("a") == "finished"


def test_an_engine_whose_line_is_cut_is_begun_anew_on_its_node(
    whole: tuple[bytes, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, crowd, cut = World(rollout=NODES), Crowd(), list[int]()
    real: Callable[..., Any] = Ranks.line

    def line(ranks: Ranks, number: int, version: int) -> Any:
        spoken = real(ranks, number, version)
        heard, recv = iter(range(10**6)), spoken.recv

        def cut_off() -> Any:
            if len(cut) < 4 and next(heard) == 6:
                cut.append(number)
                spoken._channel.hang_up()
            return recv()

        monkeypatch.setattr(spoken, "recv", cut_off)
        return spoken

    monkeypatch.setattr(Ranks, "line", line)
    spanning(crowd, world, JOB, tmp_path)
    crowd.join(120.0)
    assert len(cut) == 4
    assert left_behind(tmp_path) == whole


def test_a_tail_moves_together_onto_one_node_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny(**elastic(0)), tmp_path / "alone", alone())
    world, crowd, over, moved = World(rollout=NODES, lease_s=5.0), Crowd(), Event(), moves(monkeypatch)
    slow(monkeypatch, moved)
    wants = {"rollout": WIDE, "tail": TAIL, "elastic_rollout": True}
    other, neighbours = world.connect(job_data("other", **wants)), Crowd()
    neighbours.start(partial(elastic_neighbour, other, over, work=until_a_round_begins_without(moved, over)))
    spanning(crowd, world, tiny(**elastic(0)), tmp_path / "spanning", **wants)
    crowd.join(120.0)
    over.set()
    neighbours.join()
    assert {("at the beginning", 1), ("in the middle", 2), ("in the middle", 1)} <= set(moved)
    assert {report.rank for report in world.said("a", Said.SHRUNK)} == {0, 1, 2}
    assert left_behind(tmp_path / "spanning") == left_behind(tmp_path / "alone")


# -- several training nodes ------------------------------------------------------------------------------------------

TRAINS = 2
SHARED: dict[str, Any] = {"train": {**PHASE, "nodes": TRAINS}}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By two training nodes, undisturbed."""
    world, crowd, folder = World(rollout=NODES, train=TRAINS), Crowd(), tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patched:
        built_one_after_the_other(patched)
        spanning(crowd, world, JOB, folder, **SHARED)
        crowd.join(120.0)
    assert world.ended("a") == "finished"
    return folder


def test_training_nodes_share_a_gradient_that_is_the_leaders_alone_but_for_rounding(
    whole: tuple[bytes, ...], shared: Path
) -> None:
    """The same responses are drawn, so that all that may differ is the order in which gradients are added."""
    require_equal_but_for_rounding(whole, left_behind(shared))


@pytest.mark.parametrize("at", [1, 2])
def test_a_shared_gradient_that_lost_its_lease_is_computed_again(
    at: int, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, crowd = World(rollout=NODES, train=TRAINS, lease_s=1.0, drain_s=10.0), Crowd()
    silent(world, Learner, "update", at, monkeypatch, for_s=1.5)
    spanning(crowd, world, JOB, tmp_path, **SHARED)
    crowd.join(120.0)
    assert left_behind(tmp_path) == left_behind(shared)
    assert world.ended("a") == "finished"


@pytest.mark.parametrize(("side", "call"), [("_Leading", "gather"), ("_Following", "add_up")])
def test_a_line_that_is_cut_in_the_middle_of_a_gradient_costs_that_gradient_alone(
    side: str, call: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, crowd, cut = World(rollout=NODES, train=TRAINS), Crowd(), list[str]()
    real = getattr(getattr(share, side), call)

    def cut_off(exchange: Any, *told: Any) -> Any:
        if len(cut) < 2:
            cut.append(call)
            for line in vars(exchange).values():
                for channel in line if isinstance(line, list) else [line]:
                    channel.hang_up()
        return real(exchange, *told)

    monkeypatch.setattr(getattr(share, side), call, cut_off)
    spanning(crowd, world, JOB, tmp_path, **SHARED)
    crowd.join(120.0)
    assert len(cut) == 2
    assert left_behind(tmp_path) == left_behind(shared)


def test_a_replica_computes_nothing_while_the_nodes_are_somebody_elses(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbour takes its turns on both training nodes between the job's own."""
    world, crowd, floor, met = World(rollout=NODES, train=TRAINS), Crowd(), Floor(), list[str]()
    real = GradientSum.add

    def add(gradient: GradientSum, samples: Any) -> None:
        met.extend(job for node, job in dict(floor.holders).items() if node.startswith("train"))
        real(gradient, samples)

    def neighbour() -> None:
        with world.connect(job_data("b", **{**SPANNING, **SHARED})) as mux:
            floor.walk(mux, "b", 10)

    monkeypatch.setattr(GradientSum, "add", add)
    spanning(crowd, world, JOB, tmp_path, **SHARED)
    crowd.start(neighbour)
    crowd.join(120.0)
    assert not met
    assert left_behind(tmp_path) == left_behind(shared)
    assert world.ended("a") == world.ended("b") == "finished"


class Uncarried:
    """The frames carry their own payload."""

    def close(self) -> None: ...


def test_a_replica_writes_when_it_is_its_turn_and_knows_when_nobody_listens() -> None:
    """Who stands in front of somebody that does not read is taken for gone after a while."""
    here, there = socket.socketpair()
    carrier: Any = Uncarried()
    leader, replica = Channel(here, carrier, 10.0), Channel(there, carrier, 10.0)
    told, sums = list[list[int]](), torch.ones(3, dtype=torch.float64)

    def follows() -> None:
        exchange = share._Following(replica)
        told.append(exchange.gather(2, int))
        exchange.add_up([torch.full((3,), 2.0, dtype=torch.float64), torch.zeros(0)])

    crowd = Crowd()
    crowd.start(follows)
    sleep(0.2)
    over = [leader.is_over]
    assert select.select([here], [], [], 0)[0] == []
    leads = share._Leading([leader])
    assert leads.gather(1, int) == [1, 2]
    leads.add_up([sums, torch.zeros(0)])
    crowd.join()
    assert told == [[1, 2]]
    assert sums.tolist() == [3.0, 3.0, 3.0]
    leader.close()
    over += [replica.is_over, leader.is_over]
    assert over == [False, True, True]
    replica.close()


def test_a_replica_stops_between_two_groups_where_its_nodes_are_gone() -> None:
    settings = tiny()
    model = model_of(settings, build_task(settings.task, 0, ""))
    samples = tuple(Sample((1,), (2, 3), (-1.0, -1.0), (0, 0), float(n % 2), f"g{n // 4}") for n in range(8))
    asked = list[int]()

    def gone() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise Broken("the nodes are somebody else's")

    line: Any = None
    with pytest.raises(Broken, match="somebody else's"):
        share.take_part(model, objective(settings.objective, 4), share.Part(0, samples), line, gone)
    assert len(asked) == 2


# -- processes of their own, on nodes of their own ---------------------------------------------------------------------

NODE = "{name: n, gpus: 1, usd_per_gpu_hour: 1, hbm_gb: 1, host_memory_gb: 100}"
CLUSTER = f"""
rollout: {{on_demand: false, max_nodes: 2, node: {NODE}}}
train: {{on_demand: false, max_nodes: {TRAINS}, node: {NODE}}}
"""


def steps_of(job: Job) -> int:
    metrics = job.out / METRICS
    return len(metrics.read_bytes().splitlines()) if metrics.exists() else 0


def submission(job: Job, attempts: int, trains: int = 1) -> dict[str, Any]:
    phases = {"rollout": {"nodes": NODES, "duration_s": 1.0}, "train": {"nodes": trains, "duration_s": 1.0}}
    return {**job.submission(attempts), **phases, "processes": NODES + trains, "slo": 8.0}


def kill_one_after_the_other(
    job: Job, ranks: Sequence[int], every: int, folder: Path, random: Random, trains: int = 1
) -> None:
    """One process at a time, so many steps later each, at a random moment of one."""
    with commanded(folder / "controller", CLUSTER) as there:
        there.post("/v1/jobs", submission(job, 1 + len(ranks), trains))
        for attempt, rank in enumerate(ranks, 1):
            due = steps_of(job) + every
            there.until(lambda: steps_of(job) >= due)  # noqa: B023
            sleep(random.uniform(0.0, 0.3))
            pid = pid_of(job.name, attempt, rank)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            there.until(lambda: there.view(job.name)["attempt"] > attempt)  # noqa: B023
        assert there.until_ended(job.name) == "finished", there.printed(job.name)
    require_accounted(job)


@pytest.mark.slow
def test_a_job_whose_processes_are_killed_twenty_times_trains_what_it_would_have(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**BIGGER, "model": {**BIGGER["model"], "dtype": "float64"}, "steps": 80}
    job = Job(tiny(name="a", rollout={"workers": NODES}, **settings), tmp_path)
    random = Random(0)
    kill_one_after_the_other(job, [random.randrange(NODES + 1) for _ in range(20)], 2, tmp_path, random)
    assert left_behind(job.out) == job.alone()


@pytest.mark.slow
def test_a_job_with_two_training_nodes_whose_processes_are_killed_trains_what_it_would_have(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**BIGGER, "model": {**BIGGER["model"], "dtype": "float64"}, "steps": 32}
    job = Job(tiny(name="a", rollout={"workers": NODES}, **settings), tmp_path)
    random = Random(0)
    kill_one_after_the_other(job, [3, 2, 0, 2, 3, 2], 3, tmp_path, random, TRAINS)
    require_equal_but_for_rounding(job.alone(), left_behind(job.out))


# -- what is refused, and who is gone ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "nodes", "processes", "why"),
    [
        ({}, 2, 2, "processes = 2: must be 1, or one for each node"),
        ({"rollout": {"workers": 3}}, 2, 3, "rollout.workers = 3: must be 2, one for each rollout node"),
        ({"update": {"early": 0.5, "replicas": 2}, "rollout": {"workers": 2}}, 2, 3, "update.early = 0.5"),
    ],
)
def test_processes_nodes_and_workers_must_go_together(
    changed: dict[str, Any], nodes: int, processes: int, why: str
) -> None:
    world = World(rollout=nodes)
    data = job_data("a", rollout={**PHASE, "nodes": nodes}, train=PHASE)
    muxes = [world.connect(data, rank=rank, processes=processes) for rank in range(processes)]
    with pytest.raises(InvalidSpec, match=why):
        Roles.of(tiny(**changed), muxes[0])
    for mux in muxes:
        mux.close()


def test_each_training_node_wants_a_process_and_has_one_replica() -> None:
    world = World(rollout=1, train=2)
    data = job_data("a", rollout=PHASE, train={**PHASE, "nodes": 2})
    muxes = [world.connect(data, rank=rank, processes=2) for rank in range(2)]
    with pytest.raises(InvalidSpec, match="1 rollout and 2 training nodes"):
        Roles.of(tiny(), muxes[0])
    for mux in muxes:
        mux.close()
    data = job_data("b", rollout=PHASE, train={**PHASE, "nodes": 2})
    muxes = [world.connect(data, rank=rank, processes=3) for rank in range(3)]
    assert [Roles.of(tiny(), mux) for mux in muxes] == [Roles(rank, 1, 1) for rank in range(3)]
    with pytest.raises(InvalidSpec, match=r"update\.replicas = 2: must be 1 where there are several training nodes"):
        Roles.of(tiny(update={"replicas": 2}), muxes[0])
    for mux in muxes:
        mux.close()


KIN = Kin(1, 2, attempt=3, job="a", token="secret")


class Follower:
    """Somebody who follows by the word, or breaks it."""

    def __init__(self, folder: Path, kin: Kin = KIN, rank: int = 0) -> None:
        who = Kin(rank, 2, kin.attempt, kin.host, kin.job, kin.token)
        self.channel = meeting.reach(folder, who, "follow", 10.0, Event())
        say(self.channel, Joined(("tcp://127.0.0.1:1",)))


@contextmanager
def leading(folder: Path, crowd: Crowd) -> Any:
    """A leader, as somebody has joined it."""
    found: list[Ranks] = []
    job = tiny()
    model = model_of(job, build_task(job.task, 0, ""))
    crowd.start(lambda: found.append(Ranks(KIN, folder, 1, model)))
    follower = Follower(folder)
    soon(lambda: found, 20.0)
    try:
        yield found[0], follower
    finally:
        found[0].close()
        follower.channel.close()


def test_who_does_not_join_is_named(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(RanksApart, match=r"process 0, 1 of the job has not joined within 0\.1 s"):
        Ranks(KIN, tmp_path, 2, model, join_s=0.1)


def test_a_leader_that_is_not_found_is_told_by_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(RanksApart, match=r"leader.json within 0.3 s: is the folder shared"):
        meeting.reach(tmp_path, KIN, "follow", 0.3, Event())
    meeting.announce(tmp_path, Kin(1, 2, attempt=2, job="a", token="secret"), "tcp://127.0.0.1:1")
    with pytest.raises(RanksApart, match="there is one of another attempt"):
        meeting.reach(tmp_path, KIN, "follow", 0.3, Event())


def test_a_leaders_address_that_can_not_be_read_is_read_again_until_patience_is_over(tmp_path: Path) -> None:
    """As where another client of a shared file system replaces the file meanwhile."""
    (tmp_path / meeting.LEADER).mkdir()
    with pytest.raises(RanksApart, match=r"within 0\.1 s: is the folder shared.* Is a directory"):
        meeting.reach(tmp_path, KIN, "follow", 0.1, Event())


def test_who_has_not_the_jobs_token_or_no_place_is_turned_away(tmp_path: Path) -> None:
    crowd = Crowd()
    with leading(tmp_path, crowd) as (ranks, _):
        stranger = Kin(1, 2, attempt=3, job="a", token="another")
        meeting.announce(tmp_path, stranger, ranks._listener.address)
        with pytest.raises(Refused, match="the caller has another token"):
            Follower(tmp_path, stranger)
        meeting.announce(tmp_path, KIN, ranks._listener.address)
        with pytest.raises(Refused, match="process 7 for 'follow'"):
            Follower(tmp_path, rank=7)
        assert len(ranks._joined) == 1
    crowd.join()


def test_strangers_whose_bytes_come_one_by_one_hold_the_door_no_longer_than_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead, "GREETING_S", 0.5)
    crowd = Crowd()
    with leading(tmp_path, crowd) as (ranks, _):
        host, _, port = ranks._listener.address.removeprefix("tcp://").rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            sent = 0
            with suppress(OSError):
                while sent < 100:
                    stranger.sendall(b"\0")
                    sent += 1
                    sleep(0.05)
            assert sent < 50
    crowd.join()


def test_a_phase_is_followed_to_its_end_also_where_it_fails(tmp_path: Path) -> None:
    crowd = Crowd()
    with leading(tmp_path, crowd) as (ranks, follower):
        with ranks.following("rollout", 7) as over:
            over(3)
        with suppress(KeyError), ranks.following("train", 7):
            raise KeyError
        ranks.say_bye()
        orders = [hear(follower.channel, Enter, Over, Bye) for _ in range(5)]
        assert orders == [Enter("rollout", 7), Over(3), Enter("train", 7), Over(0), Bye()]
        follower.channel.write(b"{}")
    crowd.join()


def test_late_word_that_a_lease_was_lost_ends_nothing_under_the_next_one() -> None:
    world = World()
    here, there = socket.socketpair()
    carrier: Any = Uncarried()
    leader, follower = Channel(here, carrier, 10.0), Channel(there, carrier, 10.0)
    told, served = _Told(follower), SimpleNamespace(kind="train", works=Event())
    with world.connect(job_data("a")) as mux:
        told.lose("the lease before")
        for order in (Over(0), Over(1_000_000), Bye()):
            say(leader, order)
        _take_part(mux, Enter("rollout", 0), told, served)  # type: ignore[arg-type]
        assert told.order() == Bye(), "it has left before the leader's work under its lease was over"
    leader.close()
    follower.close()


def test_a_follower_that_is_gone_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lead, "LINE_S", 0.1)
    crowd = Crowd()
    with leading(tmp_path, crowd) as (ranks, follower):
        ranks._landed = 4
        with pytest.raises(EngineLost, match="process 0 of the job does not offer its work"):
            ranks.engine(0, 4).submit(GenerationRequest("one", (1,), 3))
        with pytest.raises(RanksApart, match="version 5 of the weights did not come across"):
            ranks.land(5)
        ranks._landed, ranks._lost = 4, lambda: True
        with pytest.raises(EngineLost, match="the lease is lost"):
            ranks.engine(0, 4).submit(GenerationRequest("one", (1,), 3))
        follower.channel.close()

        def tell() -> bool:
            try:
                with ranks.following("sync", 1):
                    return False
            except RanksApart as gone:
                return "process 0 of the job is gone" in str(gone)

        soon(tell)
    crowd.join()


def test_orders_that_are_none_end_the_line(tmp_path: Path) -> None:
    crowd = Crowd()
    with leading(tmp_path, crowd) as (ranks, follower):
        ranks.say_bye()
        with pytest.raises(Broken, match="Bye where Enter or Over was due"):
            hear(follower.channel, Enter, Over)
        (channel, _) = ranks._joined[0]
        channel.write(b'{"type": "Sing"}')
        with pytest.raises(Broken, match="an order can't be read"):
            hear(follower.channel, Enter)
    crowd.join()

"""Gradients by real processes over shared weights: what one process computes, also where some of them are killed."""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from rollmux.errors import InvariantViolated
from rollmux.runtime.forks import begun
from rollmux.service.local.process_tree import Process, look
from rollmux.trainer import replicas as module
from rollmux.trainer.errors import NotShared, ReplicasLost
from rollmux.trainer.job import train
from rollmux.trainer.learner import Learner
from rollmux.trainer.parts import model_of
from rollmux.trainer.replicas import Replicated, dealt
from rollmux.trainer.sample import Sample
from rollmux.trainer.settings import Optimiser
from rollmux.trainer.tasks import build_task
from rollmux.trainer.update import Objective, WrongVersion
from tests.trainer.jobs import alone, left_behind, tiny
from tests.trainer.update.naive import VERSION, Drawn, samples
from tests.trainer.update.naive import tiny as tiny_model
from tests.waiting import until

OBJECTIVE = Objective.grpo(group_size=3)
DRAWN = [
    Drawn(group, float((place * group) % 3 == 1), 1 + group, 1 + place + group)
    for group in range(4)
    for place in range(3)
]


def sample(group: int, length: int) -> Sample:
    return Sample((1,), (2,) * length, (-1.0,) * length, (VERSION,) * length, 0.0, str(group))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9))), st.integers(1, 4))
def test_each_sample_goes_to_one_replica_with_all_of_its_group_and_none_has_much_more(
    drawn: list[tuple[int, int]], replicas: int
) -> None:
    batch = [sample(group, length) for group, length in drawn]
    parts = dealt(batch, replicas)
    assert len(parts) == replicas
    assert sorted(map(id, batch)) == sorted(id(each) for part in parts for each in part)
    groups = [{each.group for each in part} for part in parts]
    assert sum(map(len, groups)) == len({each.group for each in batch})
    loads = [sum(each.length for each in part) for part in parts]
    largest = max((sum(e.length for e in batch if e.group == group) for group in {e.group for e in batch}), default=0)
    assert max(loads) - min(loads) <= largest


def replicas_of_this() -> list[Process]:
    mine = [look(each.pid) for each in active_children() if each.name.startswith("replica") and each.pid is not None]
    return [each for each in mine if each is not None and each.alive]


@contextmanager
def learner(replicas: int) -> Iterator[Learner]:
    with closing(Learner(tiny_model(), OBJECTIVE, Optimiser(rate=0.01), VERSION, replicas)) as made:
        yield made


def weights(of: Learner) -> torch.Tensor:
    found: torch.Tensor = torch.cat([each.detach().flatten() for each in of.model.parameters()])
    return found


def of_version(batch: list[Sample], version: int) -> list[Sample]:
    return [replace(each, versions=(version,) * len(each.tokens)) for each in batch]


def test_replicas_train_what_one_process_trains_though_one_is_killed_between_updates() -> None:
    batch = samples(DRAWN, 0.15)
    before = {each.pid for each in replicas_of_this()}
    with learner(1) as one, learner(2) as two:
        for step in range(3):
            now = of_version(batch, VERSION + step)
            stats = [each.update(now) for each in (one, two)]
            assert torch.allclose(weights(one), weights(two), atol=1e-12, rtol=0)
            assert stats[0].samples == stats[1].samples == len(batch)
            assert stats[0].loss == pytest.approx(stats[1].loss, abs=1e-12)
            (other,) = [each for each in replicas_of_this() if each.pid not in before]
            if step == 1:
                os.kill(other.pid, signal.SIGKILL)
            before |= {other.pid} if step == 1 else set()
    assert [each for each in replicas_of_this() if each.pid not in before and each.alive] == []


@pytest.mark.parametrize("has_the_model", [False, True])
def test_a_replica_ends_with_its_pipe_though_nobody_ever_ends_it(has_the_model: bool, tmp_path: Path) -> None:
    fork = begun(module._replicate, 1, 2, tmp_path / "store", 1, name="replica 1")
    if has_the_model:
        fork.pipe.send((tiny_model(), OBJECTIVE))
        fork.pipe.recv()
    fork.pipe.close()
    until(lambda: (left := look(fork.pid)) is None or not left.alive, 120.0)


def test_a_model_of_more_tensors_than_descriptors_go_along_with_a_process() -> None:
    config = LlamaConfig(vocab_size=64, hidden_size=8, intermediate_size=8, num_hidden_layers=34, num_attention_heads=2)
    model = LlamaForCausalLM(config)
    assert len(list(model.parameters())) > 300
    replicated = Replicated(model, OBJECTIVE, 2)
    with closing(replicated):
        assert replicated.gradient(VERSION, samples(DRAWN)).samples == len(DRAWN)


def built(place: str) -> None:
    job = tiny(rollout={"place": place})
    model_of(job, build_task(job.task, job.seed, job.model.path))


def replicated() -> None:
    Replicated(tiny_model(), OBJECTIVE, 2)


@pytest.mark.parametrize("shares", [partial(built, "beside"), replicated], ids=["engine", "replicas"])
def test_a_model_that_finds_no_place_in_shared_memory_is_told_in_a_line(shares: Callable[[], object]) -> None:
    built("inside")  # what that imports opens files
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(
            NotShared, match=r"^the weights .* shared memory \(.* open files .*\): make /dev/shm larger"
        ):
            shares()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_a_replica_refuses_is_told_as_if_it_had_come_here() -> None:
    batch = samples(DRAWN, 0.15)
    _, theirs = dealt(batch, 2)
    wrong = [replace(each, versions=(VERSION + 1,) * len(each.tokens)) if each in theirs else each for each in batch]
    with learner(2) as two:
        before = weights(two).clone()
        with pytest.raises(WrongVersion, match="was drawn by weights"):
            two.update(wrong)
        assert torch.equal(weights(two), before)
        assert two.update(batch).samples == len(batch)


def groups(batch: list[Sample]) -> list[list[Sample]]:
    return [[each for each in batch if each.group == name] for name in dict.fromkeys(each.group for each in batch)]


@pytest.mark.parametrize("killed", ["nobody", "before any came", "in between", "before the rest"])
def test_what_comes_early_is_trained_once_whoever_is_killed(killed: str) -> None:
    batch = samples(DRAWN, 0.15)
    first, second, third, _ = groups(batch)
    with learner(1) as one, learner(3) as early:
        one.update(batch)
        before = {each.pid for each in replicas_of_this()}

        def kills(when: str) -> None:
            if when == killed:
                pid = next(each.pid for each in replicas_of_this() if each.pid not in before)
                os.kill(pid, signal.SIGKILL)

        early.begin_early()
        kills("before any came")
        early.train_early(third)
        early.train_early(second)
        kills("in between")
        early.train_early(first)
        kills("before the rest")
        early.go_on()
        assert early.update(batch).samples == len(batch)
        assert torch.allclose(weights(one), weights(early), atol=1e-12, rtol=0)


def test_what_came_early_for_a_round_that_came_to_nothing_is_forgotten_and_the_next_is_whole() -> None:
    batch = samples(DRAWN, 0.15)
    first, second, *_ = groups(batch)
    with learner(1) as one, learner(2) as two:
        for step in range(2):
            now = of_version(batch, VERSION + step)
            one.update(now)
            two.begin_early()
            if step == 0:
                two.train_early(second)
                two.begin_early()
            two.train_early(of_version(first, VERSION + step))
            assert two.update(now).samples == len(batch)
        assert torch.allclose(weights(one), weights(two), atol=1e-12, rtol=0)


def test_a_replica_has_so_many_groups_at_once_and_gets_more_when_it_has_done_them() -> None:
    batch = samples(DRAWN, 0.15)
    with learner(2) as two:
        two.begin_early()
        for group in groups(batch):
            two.train_early(group)
        handed = two._replicated._handed
        assert len(handed) >= module._AHEAD
        end = time.monotonic() + 60
        while len(handed) < 4 or any(two._replicated._given):
            assert time.monotonic() < end
            two.go_on()
        assert two.update(batch).samples == len(batch)
        assert not handed


@pytest.mark.parametrize("hindrance", ["none", "too slow", "killed", "refuses"])
def test_nobody_computes_on_nodes_that_were_given_back_and_nothing_is_trained_twice(hindrance: str) -> None:
    batch = samples(DRAWN, 0.15)
    first, second, third, _ = groups(batch)
    with learner(1) as one, learner(2) as two:
        one.update(batch)
        before = {each.pid for each in replicas_of_this()}
        two.begin_early()
        (pid,) = {each.pid for each in replicas_of_this()} - before
        two.lease(0.1 if hindrance == "too slow" else 30.0)
        two.load()
        if hindrance in ("too slow", "killed"):
            os.kill(pid, signal.SIGSTOP)  # it computes for as long as this takes
        two.train_early(of_version(first, VERSION + 1) if hindrance == "refuses" else first)
        two.train_early(second)
        if hindrance == "killed":
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        two.offload()
        assert time.monotonic() - began < 3
        assert not any(two._replicated._given)
        assert len(two._replicated._handed) == (2 if hindrance == "none" else 0)
        assert (pid in {each.pid for each in replicas_of_this()}) == (hindrance == "none")
        two.train_early(third)
        two.go_on()
        assert not any(two._replicated._given), "it has no nodes"
        two.load()
        assert two.update(batch).samples == len(batch)
        assert torch.allclose(weights(one), weights(two), atol=1e-12, rtol=0)


def test_under_a_lease_the_others_begin_with_a_gradient_and_what_came_early_is_forgotten_all_the_same() -> None:
    batch = samples(DRAWN, 0.15)
    before = {each.pid for each in replicas_of_this()}
    with learner(2) as two:
        two.lease(10.0)
        two.load()
        two.begin_early()
        assert {each.pid for each in replicas_of_this()} == before
        two.train_early(groups(batch)[0])
        assert not two._replicated._handed
        assert two.update(batch).samples == len(batch)
        two.begin_early()
        two.train_early(of_version(groups(batch)[0], VERSION + 1))
        two.offload()
        assert two._replicated._handed
        two.begin_early()
        assert not two._replicated._handed
        two.load()
        assert two.update(of_version(batch, VERSION + 1)).samples == len(batch)


def test_what_a_replica_refuses_early_is_told_by_whoever_looks_after_it() -> None:
    batch = samples(DRAWN, 0.15)
    wrong = of_version(groups(batch)[0], VERSION + 1)
    with learner(2) as two:
        two.begin_early()
        two.train_early(wrong)
        end = time.monotonic() + 60
        with pytest.raises(WrongVersion, match="was drawn by weights"):  # noqa: PT012
            while time.monotonic() < end:
                two.go_on()
        assert two.update(batch).samples == len(batch)


def test_what_a_replica_refuses_is_found_behind_words_that_nobody_has_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of what came early and was done while the rest was dealt out."""
    batch = samples(DRAWN, 0.15)
    first, *others = groups(batch)
    rest = [each for group in others for each in group]
    _, theirs = dealt(rest, 2, [0, module._tokens(first)])
    wrong = [of_version([each], VERSION + 1)[0] if each in theirs else each for each in rest]
    monkeypatch.setattr(module, "_TRIES", 1)
    monkeypatch.setattr(Replicated, "_hear", lambda self: None)
    with learner(2) as two:
        two.begin_early()
        two.train_early(first)
        with pytest.raises(WrongVersion, match="was drawn by weights"):
            two.update([*first, *wrong])


def test_what_came_early_and_is_not_in_the_batch_is_refused() -> None:
    batch = samples(DRAWN, 0.15)
    first, *rest = groups(batch)
    with learner(2) as two:
        two.begin_early()
        two.train_early(first)
        with pytest.raises(InvariantViolated, match="came early"):
            two.update([each for group in rest for each in group])


def test_one_process_trains_nothing_early() -> None:
    batch = samples(DRAWN, 0.15)
    with learner(1) as one:
        one.begin_early()
        one.train_early(groups(batch)[0])
        one.go_on()
        assert one.update(batch).samples == len(batch)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9))), st.lists(st.integers(0, 50), min_size=1, max_size=4))
def test_whoever_has_much_to_do_already_is_dealt_less(drawn: list[tuple[int, int]], had: list[int]) -> None:
    batch = [sample(group, length) for group, length in drawn]
    parts = dealt(batch, len(had), had)
    assert sorted(map(id, batch)) == sorted(id(each) for part in parts for each in part)
    loads = [before + sum(each.length for each in part) for before, part in zip(had, parts, strict=True)]
    largest = max((sum(e.length for e in batch if e.group == group) for group in {e.group for e in batch}), default=0)
    assert all(load <= before or load - min(loads) <= largest for load, before in zip(loads, had, strict=True))


def test_what_fails_each_time_is_told_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fails(*_: Any) -> None:
        tried.append(1)
        raise RuntimeError("no memory\nis left")

    replicated = Replicated(tiny_model(), OBJECTIVE, 2)
    monkeypatch.setattr(replicated, "_together", fails)
    with (
        closing(replicated),
        pytest.raises(ReplicasLost, match=r"3 times in a row.*\(RuntimeError\(.*no memory.*\)\)$"),
    ):
        replicated.gradient(VERSION, samples(DRAWN))
    assert len(tried) == module._TRIES


def dies(*_: Any) -> NoReturn:
    """As one that the kernel kills for its memory while it begins."""
    os._exit(1)


def test_a_replica_that_dies_while_it_starts_is_heard_of_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = list[str]()

    def counted(*told: Any, name: str) -> Any:
        tries.append(name)
        return begun(*told, name=name)

    replicated = Replicated(tiny_model(), OBJECTIVE, 2)
    monkeypatch.setattr(module, "_replicate", dies)
    monkeypatch.setattr(module, "begun", counted)
    began = time.monotonic()
    with closing(replicated), pytest.raises(ReplicasLost, match=r"log may say why \(\w+Error"):
        replicated.gradient(VERSION, samples(DRAWN))
    assert tries == ["replica 1"] * module._TRIES
    assert time.monotonic() - began < module.START_S


def test_a_replica_that_dies_while_the_next_one_starts_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begins = list[Any]()

    def counted(*told: Any, name: str) -> Any:
        if len(begins) == 1:
            os.kill(begins[0].pid, signal.SIGKILL)
        begins.append(begun(*told, name=name))
        return begins[-1]

    monkeypatch.setattr(module, "PATIENCE_S", 60.0)
    monkeypatch.setattr(module, "begun", counted)
    began = time.monotonic()
    with closing(Replicated(tiny_model(), OBJECTIVE, 3)) as replicated:
        replicated.gradient(VERSION, samples(DRAWN))
    assert len(begins) == 4
    assert time.monotonic() - began < module.PATIENCE_S


def test_a_run_with_replicas_that_are_killed_in_the_middle_of_gradients_leaves_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny(steps=4, update={"replicas": 3})
    train(job, tmp_path / "whole", alone())
    dealt_out, killed = module.dealt, list[int]()

    def kills(batch: list[Sample], replicas: int, had: list[int]) -> list[list[Sample]]:
        """As the samples of every second update go out."""
        if len(killed) < 2 and (running := replicas_of_this()):
            killed.append(running[-1].pid)
            os.kill(killed[-1], signal.SIGKILL)
        return dealt_out(batch, replicas, had)

    monkeypatch.setattr(module, "dealt", kills)
    train(job, tmp_path / "killed", alone())
    assert len(killed) == 2
    assert left_behind(tmp_path / "killed") == left_behind(tmp_path / "whole")
    assert replicas_of_this() == []

"""Training that begins before a round's end: what goes out is in the batch, and changes nothing of it."""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial, partialmethod
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import pytest

from rollmux.client import Mux
from rollmux.errors import InvalidSpec
from rollmux.packer import StreamPolicy, StreamSettings
from rollmux.protocol.messages import Said
from rollmux.trainer.early import Early
from rollmux.trainer.job import train
from rollmux.trainer.learner import Learner
from rollmux.trainer.parts import Parts
from rollmux.trainer.replicas import Replicated
from rollmux.trainer.rollout import Rolled, Rollout
from rollmux.trainer.sample import Sample
from rollmux.trainer.update import Stats
from tests.client.world import Crowd, World, job_data
from tests.trainer.jobs import alone, metrics, tiny
from tests.trainer.test_migration import moves, slow
from tests.trainer.test_rollout import parts, rounds, unheard

WORKERS = 4
BATCHING = {"prompts": 6, "responses": 4, "eta_prompts": 1.34}


class Listens:
    """Somebody who trains early, and only notes what comes, and who is there then."""

    def __init__(self) -> None:
        self.rounds: list[list[Sequence[Sample]]] = []
        self.there: list[int] = []
        self.rollout: Rollout | None = None
        self.has_nodes = True

    def begin_early(self) -> None:
        self.rounds.append([])

    def train_early(self, samples: Sequence[Sample]) -> None:
        assert self.rollout is not None
        self.rounds[-1].append(samples)
        self.there.append(len(self.rollout._workers.there))

    def go_on(self) -> None:
        """Nothing needs to be looked after."""


def listening(most: int, workers: int = WORKERS, room: int = 4096, **batching: Any) -> tuple[Parts, Listens]:
    made = parts(tiny(batching={**BATCHING, **batching}, rollout={"workers": workers}))
    listens = Listens()
    policy = StreamPolicy(StreamSettings(30)) if workers > 1 else None
    made.rollout._early, listens.rollout = Early(listens, most, 24, policy, room), made.rollout
    return made, listens


def told(rolled: Rolled) -> list[tuple[object, ...]]:
    return [(each.group, each.tokens, each.logprobs, each.reward) for each in rolled.samples]


@pytest.mark.parametrize("race", ["none", "generated", "rewarded"])
def test_what_goes_out_is_in_the_batch_and_the_batch_is_what_it_is_anyway(race: str) -> None:
    made, listens = listening(4, race=race)
    plain = list(rounds(parts(tiny(batching={**BATCHING, "race": race})), 4))
    for number, rolled in enumerate(rounds(made, 4)):
        assert told(rolled) == told(plain[number])
        early = listens.rounds[number]
        assert len(early) <= 4
        assert all(sample in rolled.samples for group in early for sample in group)
        assert all(len(group) == 4 and len({sample.group for sample in group}) == 1 for group in early)
        assert len({group[0].group for group in early}) == len(early)
        assert made.rollout._workers.there == frozenset(range(WORKERS)), "all are back at the end"
    assert sum(map(len, listens.rounds)) > 4
    assert set(listens.there) == {WORKERS // 2}


def test_what_goes_out_is_the_same_however_many_workers_there_are() -> None:
    found = []
    for workers in (2, 4):
        made, listens = listening(6, workers)
        list(rounds(made, 3))
        found.append([[sample.group for group in early for sample in group] for early in listens.rounds])
    assert found[0] == found[1]
    assert any(found[0])


def test_one_worker_frees_nobody_and_others_train_from_the_first_prompt_on() -> None:
    made, listens = listening(6, 1)
    (rolled,) = rounds(made, 1)
    assert len(listens.rounds[0]) == 5, "the last prompt completes the batch"
    assert len(rolled.batch.prompts) == 6
    assert set(listens.there) == {1}


def test_nobody_is_freed_where_the_others_have_no_room_and_the_same_goes_out() -> None:
    found = []
    for room in (8, 4096):
        made, listens = listening(6, room=room)
        list(rounds(made, 2))
        found.append([[sample.group for group in early for sample in group] for early in listens.rounds])
        assert set(listens.there) == {WORKERS if room == 8 else WORKERS // 2}
    assert found[0] == found[1]


def test_responses_that_end_while_workers_are_freed_are_no_lost_ones() -> None:
    """A worker beside has their ends, and nothing is unfinished: as where all are as long as is let run."""
    settings = {"workers": 2, "place": "beside"}
    job = tiny(batching=BATCHING, rollout=settings, sampling={"max_tokens": 3}, update={"replicas": 2, "early": 1.0})
    with closing(Parts(job)) as made:
        for version in range(1, 7):
            assert len(made.rollout.round(unheard).samples) == 24
            made.rollout.update(version)
            made.learner.version = version


def test_early_training_wants_replicas() -> None:
    with pytest.raises(InvalidSpec, match=r"update\.replicas"):
        tiny(update={"early": 0.5})


def test_who_has_no_nodes_for_training_sends_nothing_out_and_frees_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made, listens = listening(4)
    plain = list(rounds(parts(tiny(batching=BATCHING)), 2))
    listens.has_nodes, moved = False, moves(monkeypatch)
    for number, rolled in enumerate(rounds(made, 2)):
        assert told(rolled) == told(plain[number])
    assert listens.rounds == [[], []]
    assert not {when for when, _ in moved} & {"in the middle"}


def _hand_on(of: object, does: Callable[..., object], *args: object) -> object:
    """A method that is somebody else's."""
    return does(of, *args)


class Interrupted:
    """Early training of a job that a neighbour comes to, while a replica of it computes: until it is to make room."""

    def __init__(self, world: World, version: int, patched: pytest.MonkeyPatch) -> None:
        self.handed, self.rested, self.shared = list[int](), list[bool](), list[bool]()
        self.crowd, self.over = Crowd(), Event()
        self._world, self._version, self._resting = world, version, Event()
        self._replicated: Replicated | None = None
        self._gradient, self._rest, self._early = Replicated.gradient, Replicated.rest, Learner.train_early
        for owner, name, does in (
            (Replicated, "gradient", self.gradient),
            (Replicated, "rest", self.rest),
            (Learner, "train_early", self.early),
        ):
            patched.setattr(owner, name, partialmethod(_hand_on, does))

    def gradient(self, of: Replicated, version: int, batch: Sequence[Sample]) -> Stats:
        self.handed.append(len(of._handed))
        return self._gradient(of, version, batch)

    def early(self, of: Learner, batch: Sequence[Sample]) -> None:
        if of.version != self._version or self._replicated is not None:
            self._early(of, batch)
            return
        self._replicated = of._replicated
        self._tell(signal.SIGSTOP)
        self._early(of, batch)
        phase = {"nodes": 1, "duration_s": 1.0}
        wants = job_data("other", slo=9.0, rollout=phase, train=phase)
        self.crowd.start(partial(self.neighbour, self._world.connect(wants)))
        assert self._resting.wait(60)

    def rest(self, of: Replicated, within_s: float) -> None:
        self.rested.append(any(of._given))
        self._tell(signal.SIGCONT)
        self._rest(of, within_s)
        self._resting.set()

    def _tell(self, told: signal.Signals) -> None:
        for fork in self._replicated._others if self._replicated is not None else ():
            os.kill(fork.pid, told)

    def neighbour(self, mux: Mux) -> None:
        assert self._replicated is not None
        with mux:
            for _ in mux.steps(1000):
                with mux.phase("rollout"):
                    sleep(0.01)
                with mux.phase("train"):
                    self.shared.append(any(self._replicated._given))
                    sleep(0.05)
                    self.shared.append(any(self._replicated._given))
                if self.over.is_set():
                    return


def test_beside_a_controller_training_begins_early_on_its_own_nodes_until_somebody_else_wants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before the job is measured, and not before there is a lease that stays."""
    settings: dict[str, Any] = {"steps": 9, "model": {"dtype": "float64"}, "batching": BATCHING}
    job = tiny(**settings, rollout={"workers": 2}, update={"replicas": 2, "early": 1.0})
    train(tiny(**settings), tmp_path / "plain", alone())
    world, moved = World(lease_s=20.0, drain_s=10.0), moves(monkeypatch)
    slow(monkeypatch, moved, 0.005)
    seen = Interrupted(world, 5, monkeypatch)
    with world.connect(job_data("job", slo=9.0), profile=1) as mux:
        train(job, tmp_path / "woven", mux)
    seen.over.set()
    seen.crowd.join()
    assert [world.ended(name) for name in ("job", "other")] == ["finished"] * 2
    assert seen.handed[:3] == [0, 0, 0], "measured for two steps, and the lease of the third stays"
    assert all(seen.handed[3:5])
    assert seen.handed[-1] == 0
    assert any(seen.rested), "there was something under way"
    assert world.said("job", Said.OFFLOADED)
    assert seen.shared
    assert not any(seen.shared)
    assert not {when for when, _ in moved} & {"in the middle"}, "no worker is freed: training has nodes of its own"
    plain, woven = metrics(tmp_path / "plain"), metrics(tmp_path / "woven")
    for name in ("reward", "length_mean", "generated_tokens"):
        assert [line[name] for line in plain] == [line[name] for line in woven]
    assert [line["update"]["gradient_norm"] for line in woven] == pytest.approx(
        [line["update"]["gradient_norm"] for line in plain], rel=1e-9
    )


def test_a_run_that_trains_early_learns_what_one_without_learns_though_replicas_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job: dict[str, Any] = {"steps": 6, "model": {"dtype": "float64"}, "batching": BATCHING}
    handed, real = list[int](), Replicated.gradient

    def gradient(of: Replicated, version: int, samples: Sequence[Sample]) -> Stats:
        handed.append(len(of._handed))
        if version in (1, 4):
            os.kill(of._others[0].pid, signal.SIGKILL)
        return real(of, version, samples)

    train(tiny(**job), tmp_path / "plain", alone())
    monkeypatch.setattr(Replicated, "gradient", gradient)
    together = tiny(**job, update={"replicas": 2, "early": 0.7}, rollout={"workers": 2, "place": "beside"})
    train(together, tmp_path / "early", alone())
    assert len(handed) == 6
    assert sum(handed) > 2
    plain, early = metrics(tmp_path / "plain"), metrics(tmp_path / "early")
    for name in ("reward", "length_mean", "generated_tokens"):
        assert [line[name] for line in plain] == [line[name] for line in early]

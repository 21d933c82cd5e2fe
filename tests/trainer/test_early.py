"""Training that begins before a round's end: what goes out is in the batch, and changes nothing of it."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rollmux.client import Mux
from rollmux.errors import InvalidSpec
from rollmux.packer import StreamPolicy, StreamSettings
from rollmux.trainer.early import Early
from rollmux.trainer.job import train
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.parts import Parts
from rollmux.trainer.replicas import Replicated
from rollmux.trainer.rollout import Rolled, Rollout
from rollmux.trainer.sample import Sample
from rollmux.trainer.update import Stats
from tests.trainer.jobs import alone, tiny
from tests.trainer.test_rollout import parts, rounds, unheard

WORKERS = 4
BATCHING = {"prompts": 6, "responses": 4, "eta_prompts": 1.34}


class Listens:
    """Somebody who trains early, and only notes what comes, and who is there then."""

    def __init__(self) -> None:
        self.rounds: list[list[Sequence[Sample]]] = []
        self.there: list[int] = []
        self.rollout: Rollout | None = None
        self.looked_after = False

    def begin_early(self) -> None:
        self.rounds.append([])

    def train_early(self, samples: Sequence[Sample]) -> None:
        assert self.rollout is not None
        self.rounds[-1].append(samples)
        self.there.append(len(self.rollout._workers.there))

    def go_on(self) -> None:
        self.looked_after = True


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


def test_early_training_wants_replicas_and_no_controller(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"update\.replicas"):
        tiny(update={"early": 0.5})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Mux, "attached", True)
        with pytest.raises(InvalidSpec, match="a lease is of one phase"):
            train(tiny(update={"early": 0.5, "replicas": 2}), tmp_path, alone())


@pytest.mark.slow
def test_a_run_that_trains_early_learns_what_one_without_learns_though_replicas_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job: dict[str, Any] = {"steps": 6, "model": {"dtype": "float64"}, "batching": BATCHING}
    handed, real = list[int](), Replicated.gradient

    def gradient(of: Replicated, version: int, samples: Sequence[Sample]) -> Stats:
        handed.append(len(of._handed))
        if version in (1, 4):
            process, _ = of._others[0]
            process.kill()
        return real(of, version, samples)

    train(tiny(**job), tmp_path / "plain", alone())
    monkeypatch.setattr(Replicated, "gradient", gradient)
    together = tiny(**job, update={"replicas": 2, "early": 0.7}, rollout={"workers": 2, "place": "beside"})
    train(together, tmp_path / "early", alone())
    assert len(handed) == 6
    assert sum(handed) > 2
    plain, early = (
        [json.loads(line) for line in (tmp_path / name / METRICS).read_text().splitlines()]
        for name in ("plain", "early")
    )
    for name in ("reward", "length_mean", "generated_tokens"):
        assert [line[name] for line in plain] == [line[name] for line in early]

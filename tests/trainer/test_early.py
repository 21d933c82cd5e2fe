"""Training that begins before a round's end: what goes out is in the batch, and changes nothing of it."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollmux.errors import InvalidSpec
from rollmux.packer import StreamPolicy, StreamSettings
from rollmux.trainer import replicas
from rollmux.trainer.early import Early
from rollmux.trainer.job import train
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.parts import Parts
from rollmux.trainer.replicas import Replicated
from rollmux.trainer.rollout import Rolled, Rollout
from rollmux.trainer.sample import Sample
from rollmux.trainer.update import Stats
from rollmux.trainer.workers import Workers
from tests.trainer.jobs import alone, left_behind, tiny
from tests.trainer.test_rollout import parts, rounds, unheard

WORKERS = 4
BATCHING = {"prompts": 6, "responses": 4, "eta_prompts": 1.34}


class Listens:
    """Somebody who trains early, and only notes what comes, and who is there then."""

    def __init__(self) -> None:
        self.rounds: list[list[Sequence[Sample]]] = []
        self.there: list[int] = []
        self.rollout: Rollout | None = None

    def begin_early(self) -> None:
        self.rounds.append([])

    def train_early(self, samples: Sequence[Sample]) -> None:
        assert self.rollout is not None
        self.rounds[-1].append(samples)
        self.there.append(len(self.rollout._workers.there))


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


def test_nobody_is_freed_where_the_others_have_no_room() -> None:
    made, listens = listening(6, room=8)
    list(rounds(made, 2))
    assert listens.rounds == [[], []]


def test_whoever_training_has_stays_away_though_the_controller_gives_them_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, listens = listening(6)
    plain, shared, real = listening(6), list[frozenset[int]](), Workers.step

    def step(workers: Workers) -> Any:
        if listens.there:
            made.rollout._share(frozenset(range(WORKERS)))  # at a safe point, as a hook would
            shared.append(workers.there)
        return real(workers)

    monkeypatch.setattr(Workers, "step", step)
    (rolled,) = rounds(made, 1)
    monkeypatch.undo()
    assert {len(there) for there in shared} == {WORKERS // 2}
    assert made.rollout._workers.there == frozenset(range(WORKERS))
    assert told(rolled) == told(plain[0].rollout.round(unheard))


def test_where_nobody_else_is_left_those_that_training_had_go_on_with_the_rollout() -> None:
    made, _ = listening(6)
    made.rollout._freed = frozenset({0, 1})
    made.rollout.share({0, 1})
    assert made.rollout._workers.there == {0, 1}


def test_early_training_wants_replicas() -> None:
    with pytest.raises(InvalidSpec, match=r"update\.replicas"):
        tiny(update={"early": 0.5})


@pytest.mark.slow
def test_a_run_that_trains_early_learns_what_one_without_learns_and_leaves_the_same_bytes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, real = list[int](), Replicated.gradient
    job: dict[str, Any] = {"steps": 4, "model": {"dtype": "float64"}, "batching": BATCHING}

    def gradient(of: Replicated, version: int, samples: Collection[Sample]) -> Stats:
        early.append(len(of._early))
        return real(of, version, list(samples))

    monkeypatch.setattr(replicas.Replicated, "gradient", gradient)
    together = tiny(**job, update={"replicas": 2, "early": 0.7}, rollout={"workers": 2, "place": "beside"})
    train(tiny(**job), tmp_path / "plain", alone())
    assert early == [0] * 4
    for name in ("once", "again"):
        train(together, tmp_path / name, alone())
    assert sum(early[4:8]) > 2
    assert early[4:8] == early[8:]
    assert left_behind(tmp_path / "once") == left_behind(tmp_path / "again")
    plain, once = (
        [json.loads(line) for line in (tmp_path / name / METRICS).read_text().splitlines()]
        for name in ("plain", "once")
    )
    for name in ("reward", "length_mean", "generated_tokens"):
        assert [line[name] for line in plain] == [line[name] for line in once]

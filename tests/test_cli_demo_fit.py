"""The demo's jobs, fitted to a machine: what is chosen of what was measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollmux.cli.woven.fit import (
    LEAST_PROMPTS,
    MOST_PROMPTS,
    ROLLOUT_PART,
    UPDATE_S,
    Fit,
    NotFitted,
    fit,
    fitted,
    fitted_prompts,
    middle,
)
from rollmux.cli.woven.jobs import Engine, jobs
from rollmux.trainer.settings import Model
from tests.service.local.launching import nothing_left

WANTED = ROLLOUT_PART


def goes(part: float, update_s: float = 0.5, disturbed_s: float = 9.0) -> list[float]:
    """At a rollout that takes this part of an update; something disturbs one of them."""
    return [disturbed_s, part * update_s, part * update_s]


def test_prompts_are_as_many_as_make_an_update_of_the_wanted_length_within_bounds() -> None:
    assert fitted_prompts(16, [UPDATE_S / 2] * 3) == 32
    assert fitted_prompts(16, [UPDATE_S / 100] * 3) == MOST_PROMPTS
    assert fitted_prompts(16, [UPDATE_S * 100] * 3) == LEAST_PROMPTS
    assert fitted_prompts(16, [UPDATE_S, 9.0, UPDATE_S]) == 16, "one slow moment changes nothing"


def test_fewer_responses_at_once_make_a_rollout_as_long_as_it_is_to_be() -> None:
    rollouts = {256: goes(WANTED - 0.2), 64: goes(WANTED - 0.1), 16: goes(WANTED + 0.1)}
    found = fitted(32, rollouts, [0.5, 0.4, 7.0])
    assert found.running == 32, "half-way between 64 and 16, in logarithms"
    assert (found.prompts, found.update_s) == (32, 0.5)
    assert found.rollout_s == pytest.approx(WANTED * 0.5)
    assert fitted(32, {256: goes(WANTED - 0.2), 64: goes(WANTED)}, [0.5]).running == 64


def test_what_no_number_reaches_gets_the_outermost_with_the_part_that_is_expected() -> None:
    assert fitted(8, {256: goes(1.5), 64: goes(1.8)}, [0.5]) == Fit(8, 256, 0.75, 0.5)
    assert fitted(8, {256: goes(0.5), 64: goes(0.6)}, [0.5]) == Fit(8, 64, 0.3, 0.5)


def test_a_rollout_that_seems_shorter_with_fewer_at_once_misleads_nobody() -> None:
    falling = {256: goes(WANTED - 0.1), 64: goes(WANTED - 0.2), 16: goes(WANTED + 0.1)}
    assert 16 <= fitted(32, falling, [0.5]).running <= 64


def test_all_jobs_get_the_size_in_the_middle() -> None:
    found = middle([Fit(20, 16, 0.5, 0.6), Fit(30, 64, 0.7, 0.8)])
    assert (found.prompts, found.running) == (25, 32)
    assert found.rollout_s == pytest.approx(0.6)
    assert found.update_s == pytest.approx(0.7)


def test_a_fitted_job_begins_with_the_model_that_is_there_and_is_the_same_but_for_its_size() -> None:
    job = jobs(Engine.SLOTS, 5)[0].settings
    found = Fit(24, 50, 0.5, 0.5).of(job, Path("there"))
    assert (found.batching.prompts, found.rollout.running) == (24, 50)
    assert (found.model.path, found.warmup.steps) == ("there", 0)
    assert (found.seed, found.steps, found.task) == (job.seed, 5, job.task)


@pytest.mark.slow  # rehearsals take seconds to import torch
def test_a_rehearsal_that_fails_says_where_its_log_is_and_the_others_end(tmp_path: Path) -> None:
    job = jobs(Engine.SLOTS, 5)[0].settings
    broken = replace(job, name="broken", model=Model(path=str(tmp_path / "nothing")))
    with nothing_left(), pytest.raises(NotFitted, match=r"broken.rehearsal\.log"):
        fit(tmp_path / "fit", [broken, job])

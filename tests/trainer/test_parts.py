"""What a job file says of its objective is what the update climbs."""

from typing import Any

import pytest

from rollmux.trainer.job_file import read_job
from rollmux.trainer.parts import objective
from rollmux.trainer.update import Baseline, Loss, Objective


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({}, Objective.grpo(4)),
        ({"algorithm": "dapo"}, Objective.dapo(4)),
        ({"algorithm": "reinforce"}, Objective.reinforce()),
        ({"deviation": "none", "loss": "token-mean"}, Objective(group_std=False, loss=Loss.TOKEN_MEAN, group_size=4)),
        (
            {"deviation": "batch", "clip_high": 0.3},
            Objective(group_std=False, whiten=True, clip_high=0.3, group_size=4),
        ),
        (
            {"algorithm": "reinforce", "deviation": "batch"},
            Objective.reinforce(Baseline.NONE, whiten=True),
        ),
        (
            {"algorithm": "dapo", "loss": "sample-mean", "clip_low": 0.1},
            Objective(clip_low=0.1, clip_high=0.28, drop_equal_groups=True, group_size=4),
        ),
    ],
    ids=str,
)
def test_a_job_file_names_an_algorithm_and_what_it_changes_of_it(said: dict[str, Any], meant: Objective) -> None:
    job = read_job({"objective": said, "batching": {"responses": 4}})
    assert objective(job.objective, job.batching.responses) == meant

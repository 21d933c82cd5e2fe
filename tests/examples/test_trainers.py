"""Other people's trainers under leases: two copies that share nodes learn what one learns alone."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.playing import EXAMPLES, alone, command, controller, gain
from tests.forking import begun

NAMES = ("a", "b")
TRL = "TRL is not installed: it comes with the extra `trl`"


@pytest.mark.slow  # an import of TRL takes six seconds of a core; a copy of veRL is a Ray cluster of its own
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, marks=pytest.mark.skipif(find_spec(package) is None, reason=reason))
        for package, script, reason in (
            ("trl", "trl_grpo/train.py", TRL),
            ("trl", "trl_grpo/tail.py", TRL),
            ("verl", "verl_grpo/train.py", "veRL is not installed: see examples/verl_grpo/README.md"),
        )
    ],
)
def test_two_trainers_that_share_nodes_learn_what_one_learns_alone(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = EXAMPLES / script
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    expected = steps(alone(path, "a", "1", said=tmp_path / "alone"))
    assert gain(expected) > 1.5
    with controller(tmp_path / "controller", monkeypatch) as board:
        command("drain", "rollout-0")  # so that neither is done before the other has begun
        copies = {name: begun(path, name, "1", said=tmp_path / name, env=dict(os.environ)) for name in NAMES}
        board.wait(lambda jobs: len(jobs) == len(NAMES))
        command("undrain", "rollout-0")
        learnt = {name: steps(copy.printed()) for name, copy in copies.items()}
        assert {(view["reason"], view["synced"]) for view in board.jobs()} == {("finished", len(expected))}
    assert learnt == dict.fromkeys(NAMES, expected)


def steps(said: list[str]) -> list[str]:
    """What the script says, without what its framework does."""
    return [line for line in said if line.startswith("step ")]

"""OpenRLHF itself under leases, on a processor: two jobs on one node, each with a Ray cluster of its own; and what its
workers do that have a model, and leave."""

from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pytest

from tests.examples.playing import EXAMPLES
from tests.forking import LIMIT_S, Play, begun
from tests.service.running import clean_env, running

JOB, MODELS = (Path(__file__).with_name(f"openrlhf_{name}.py") for name in ("job", "models"))
STEPS, BREAKS_AT = 4, 4

pytestmark = [
    pytest.mark.slow,  # a copy of OpenRLHF is a Ray cluster of its own
    pytest.mark.skipif(find_spec("openrlhf") is None, reason="OpenRLHF is not installed: see its page in examples"),
]


def job(folder: Path, name: str, attempt: str, env: dict[str, str], *breaks_at: str) -> Play:
    (folder / "jobs" / name).mkdir(parents=True, exist_ok=True)
    node = folder / "node"
    node.mkdir(exist_ok=True)
    said = folder / "jobs" / f"{name}.{attempt}"
    return begun(JOB, name, str(folder / "jobs" / name), str(node), *breaks_at, said=said, env=env)


def done(folder: Path, name: str) -> list[str]:
    """In order; what several requests of one step do at once has none."""
    lines = (folder / f"{name}.done").read_text().splitlines()
    return [line for _, group in groupby(lines, at_once) for line in sorted(group)]


def at_once(line: str) -> str:
    return next((word for word in line.split() if word in {"draw", "eval", "save"}), line)


def test_two_jobs_of_openrlhf_take_turns_on_one_node_and_one_that_fails_goes_on_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    apart, meeting = tmp_path / "apart", tmp_path / "meeting"
    apart.mkdir()
    meeting.mkdir()
    job(apart, "a", "only", clean_env(HF_HUB_OFFLINE="1")).printed()
    alone = done(apart, "a")
    for number in range(1, STEPS + 1):
        (train,) = (at for at, line in enumerate(alone) if line == f"policy update {number}")
        drawn = [line for line in alone[:train] if line.startswith("draw")][-4:]
        assert {line.split(" with ")[1] for line in drawn} == {str(number - 1)}, "on-policy"
    assert len([line for line in alone if line.startswith("draw")]) == STEPS * 4
    with running(tmp_path / "controller", "--cluster", str(EXAMPLES / "slime" / "cluster.yaml")) as there:
        env = clean_env(ROLLMUX_URL=there.url, ROLLMUX_TOKEN=there.token, HF_HUB_OFFLINE="1")
        sound, broken = job(meeting, "a", "only", env), job(meeting, "b", "first", env, str(BREAKS_AT))
        broken.process.join(LIMIT_S)
        assert broken.process.exitcode
        assert "the engine breaks" in broken.said.read_text()
        assert not list((meeting / "node").glob("b.*"))
        again = job(meeting, "b", "second", env)
        sound.printed()
        again.printed()
        ended = {view["job"]: view["reason"] for view in there.call("GET", "/v1/cluster").json()["jobs"]}
    assert ended == {"a": "finished", "b": "finished"}
    assert not (meeting / "met").exists(), (meeting / "met").read_text()
    assert not list((meeting / "node").iterdir())
    assert done(meeting, "a") == alone
    saved = BREAKS_AT - 1
    cut = next(at for at, line in enumerate(alone) if line.startswith("draw") and line.endswith(f"with {saved}"))
    loaded = [f"policy load {saved}", f"critic load {saved}", f"sync {saved}"]
    assert done(meeting, "b") == [*alone[:cut], *loaded, *alone[cut:]]


@pytest.mark.parametrize(
    ("stage", "states"),
    [
        ("2", "hp_params lp_grads lp_params optim_states"),
        ("3", "contiguous_grad_buffer hp_params lp_grads lp_params optim_states"),
    ],
)
def test_models_that_leave_between_all_calls_are_trained_and_saved_as_those_that_stay(
    stage: str, states: str, tmp_path: Path
) -> None:
    env, lines = clean_env(HF_HUB_OFFLINE="1"), {}
    for how in ("stays", "leaves"):
        said = begun(MODELS, str(tmp_path / how), stage, how, said=tmp_path / f"{how}.said", env=env).printed()
        lines[how] = [line for line in said if line.split(" ", 1)[0] in {"away", "step", "policy", "loaded"}]
    assert {line for line in lines["leaves"] if line.startswith("away")} == {f"away {states}"}
    assert [line for line in lines["leaves"] if not line.startswith("away")] == lines["stays"]
    assert len(set(lines["stays"])) == 8, "each step is another, and that of a critic too"

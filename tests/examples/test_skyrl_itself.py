"""SkyRL itself under leases, on a processor: two jobs on one node, each with a Ray cluster of its own."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.playing import EXAMPLES
from tests.forking import LIMIT_S, Play, begun
from tests.service.running import clean_env, running

SCRIPT = Path(__file__).with_name("skyrl_job.py")
STEPS, EVALUATED, BREAKS_AT = 4, (0, 2, 4), 3

pytestmark = [
    pytest.mark.slow,  # a copy of SkyRL is a Ray cluster of its own
    pytest.mark.skipif(find_spec("skyrl") is None, reason="SkyRL is not installed: see examples/skyrl/README.md"),
]


def step(number: int) -> list[str]:
    return [
        f"train {number} with {number - 1}",
        *(f"{model} forward" for model in ("critic", "ref", "policy")),
        *(f"{model} {what}" for model in ("critic", "policy") for what in ("backward", f"update {number}")),
        *(f"{model} save {number}" for model in ("policy", "critic")),
        *after(number),
    ]


def after(number: int) -> list[str]:
    return [f"sync {number}", *([f"eval {number} with {number}"] if number in EVALUATED else [])]


def test_two_jobs_of_skyrl_take_turns_on_one_node_and_one_that_fails_goes_on_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    meeting, jobs = tmp_path / "meeting", tmp_path / "jobs"
    node = meeting / "node"
    node.mkdir(parents=True)
    with running(tmp_path / "controller", "--cluster", str(EXAMPLES / "slime" / "cluster.yaml")) as there:
        env = clean_env(ROLLMUX_URL=there.url, ROLLMUX_TOKEN=there.token, HF_HUB_OFFLINE="1")

        def job(name: str, attempt: str, *breaks_at: str) -> Play:
            (jobs / name).mkdir(parents=True, exist_ok=True)
            said = jobs / f"{name}.{attempt}"
            return begun(SCRIPT, name, str(jobs / name), str(node), *breaks_at, said=said, env=env)

        sound, broken = job("a", "only"), job("b", "first", str(BREAKS_AT))
        broken.process.join(LIMIT_S)
        assert broken.process.exitcode
        assert "the generator breaks" in broken.said.read_text()
        assert not list(node.glob("b.*"))
        again = job("b", "second")
        sound.printed()
        again.printed()
        ended = {view["job"]: view["reason"] for view in there.call("GET", "/v1/cluster").json()["jobs"]}
    assert ended == {"a": "finished", "b": "finished"}
    assert not (meeting / "met").exists(), (meeting / "met").read_text()
    assert not list(node.iterdir())
    whole = [*after(0), *(line for number in range(1, STEPS + 1) for line in step(number))]
    assert (meeting / "a.done").read_text().splitlines() == whole
    done = BREAKS_AT - 1
    cut = whole.index(f"train {BREAKS_AT} with {done}")
    loaded = [f"{model} load {done}" for model in ("policy", "critic")]
    first, second = [*whole[: cut + 1]], [*loaded, *after(done), *whole[cut:]]
    assert (meeting / "b.done").read_text().splitlines() == first + second

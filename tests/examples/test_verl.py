"""Tail batching with veRL itself, on a processor: its trainer, agent loops, TransferQueue and checkpoints."""

import json
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.examples.playing import EXAMPLES
from tests.forking import LIMIT_S, Play, begun
from tests.service.running import clean_env

SCRIPT = EXAMPLES / "verl_grpo" / "train.py"
DIGITS, EPOCHS, BATCH, GROUP, LENGTH, STOPPED_AFTER = 10, 4, 5, 16, 24, 3

pytestmark = [
    pytest.mark.slow,  # a copy of veRL is a Ray cluster of its own
    pytest.mark.skipif(find_spec("verl") is None, reason="veRL is not installed: see examples/verl_grpo/README.md"),
]


def job(folder: Path, attempt: str) -> Play:
    overrides = {
        "trainer.v1.trainer_mode": "tail_batching_leased",
        "+trainer.tail_batching": "{eta_prompts: 1.4, eta_responses: 1.25}",
        "data.train_batch_size": BATCH,
        "data.max_response_length": LENGTH,
        "actor_rollout_ref.actor.ppo_mini_batch_size": BATCH,
        "+actor_rollout_ref.rollout.engine_kwargs.slots.token_s": 0.2,
        "trainer.total_epochs": EPOCHS,
        "trainer.save_freq": 1,
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": folder / "checkpoints",
        "trainer.rollout_data_dir": folder / attempt,
    }
    more = [f"{key}={value}" for key, value in overrides.items()]
    return begun(SCRIPT, "a", "1", *more, said=folder / f"{attempt}.log", env=clean_env() | {"HF_HUB_OFFLINE": "1"})


def stopped_after(play: Play, dump: Path) -> None:
    """The last thing that a step does is to write what it has trained."""
    end = time.monotonic() + LIMIT_S
    while not dump.exists() or dump.read_text().count("\n") < BATCH * GROUP:
        assert time.monotonic() < end
        assert play.process.is_alive(), play.said.read_text()
        time.sleep(0.2)
    play.process.terminate()
    play.process.join(LIMIT_S)


def trained(file: Path) -> Counter[str]:
    """The prompts of a step, of each of which there are whole groups."""
    responses = map(json.loads, file.read_text().splitlines())
    groups = Counter((response["uid"].split("_")[0], response["input"]) for response in responses)
    assert set(groups.values()) == {GROUP}
    assert len(groups) == BATCH
    return Counter(prompt for _, prompt in groups)


def test_a_job_that_is_stopped_and_goes_on_trains_each_prompt_once_an_epoch_with_the_newest_weights(
    tmp_path: Path,
) -> None:
    stopped_after(job(tmp_path, "first"), tmp_path / "first" / f"{STOPPED_AFTER}.jsonl")
    done = int((tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())
    saved = tmp_path / "checkpoints" / f"global_step_{STOPPED_AFTER}" / "tail_batching.pt"
    assert len(torch.load(saved, weights_only=False)["rows"]) == 2 * STOPPED_AFTER, "who waits is not forgotten"
    said = job(tmp_path, "second").printed()
    steps = range(1, DIGITS * EPOCHS // BATCH + 1)
    files = [tmp_path / ("first" if step <= done else "second") / f"{step}.jsonl" for step in steps]
    assert sum(map(trained, files), Counter[str]()) == dict.fromkeys(map(str, range(DIGITS)), EPOCHS)
    tails = [line.split()[-5:] for line in said if line.startswith("step ")]
    assert [stale for *_, stale in tails] == ["0"] * (len(steps) - done)
    assert sum(int(aborted) for _, _, aborted, *_ in tails)
    assert any("responses were given up after" in line for line in said), "servers hear of it while they draw"

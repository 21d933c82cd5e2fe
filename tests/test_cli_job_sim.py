"""`rollmux job-sim` from the command line: figures as data, a table, and refusals that say what to do."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollmux.cli import app
from tests.calling import printed, told

EXAMPLE = Path(__file__).parents[1] / "examples" / "job-setup.yaml"

job_sim, text = partial(told, app, "job-sim"), partial(printed, app, "job-sim", "--setup", EXAMPLE)

FIGURES = {
    "eta_prompts",
    "eta_responses",
    "step_s_mean",
    "short_step_s_mean",
    "long_step_s_mean",
    "rollout_s_mean",
    "speedup_over_sync",
    "breakdown_s",
    "hidden_train_s_mean",
    "rounds",
    "waiting_prompts",
    "tokens",
    "length_bias",
    "false_kills",
    "preemptions",
    "steps",
}
PARTS = {
    "breakdown_s": {"rollout", "reward", "train", "sync"},
    "rounds": {"short", "long", "mixed"},
    "tokens": {"offered", "trained", "wasted"},
    "length_bias": {
        "offered",
        "trained",
        "kolmogorov_smirnov",
        "wasserstein",
        "mean_shift",
        "domains",
        "seen",
    },
}
OF_A_STEP = {
    "kind",
    "rollout_s",
    "reward_s",
    "train_s",
    "sync_s",
    "step_s",
    "hidden_train_s",
    "tp",
    "launched",
    "preemptions",
    "trained_tokens",
    "wasted_tokens",
}


def figures(*words: object) -> Any:
    return json.loads(text(*words))


def test_the_figures_are_those_of_the_contract() -> None:
    found = figures("--steps", 7)
    assert found.keys() == {"setup", "systems"}
    assert (found["setup"]["gpus"], found["setup"]["steps"], found["setup"]["seed"]) == (8, 7, 0)
    assert list(found["systems"]) == ["sync", "rlhfuse", "rollpacker", "rollmux"]
    for of in found["systems"].values():
        assert of.keys() == FIGURES
        for name, keys in PARTS.items():
            assert of[name].keys() == keys
        assert sum(of["rounds"].values()) == len(of["steps"]) == 7
        assert all(step.keys() == OF_A_STEP for step in of["steps"])
        assert sum(of["breakdown_s"].values()) == pytest.approx(of["step_s_mean"])
        assert of["length_bias"]["domains"].keys() == {"math", "proofs"}
    sync, packed = found["systems"]["sync"], found["systems"]["rollpacker"]
    assert (sync["speedup_over_sync"], sync["long_step_s_mean"], sync["false_kills"]) == (1.0, None, None)
    assert packed["speedup_over_sync"] == pytest.approx(sync["step_s_mean"] / packed["step_s_mean"])
    assert packed["speedup_over_sync"] > 1
    assert packed["long_step_s_mean"] > packed["short_step_s_mean"]
    assert packed["false_kills"].keys() >= {"runs", "killed", "audited", "would_have_passed", "of_runs"}


def test_the_setup_of_the_figures_is_a_setup_file(tmp_path: Path) -> None:
    setup = figures("--steps", 1)["setup"]
    words = ("--steps", setup.pop("steps"), "--seed", setup.pop("seed"))
    path = tmp_path / "again.yaml"
    path.write_text(json.dumps(setup), encoding="utf-8")
    assert json.loads(printed(app, "job-sim", "--setup", path, *words)) == figures(*words)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    assert text("--steps", 3, "--seed", 4) == text("--steps", 3, "--seed", 4) != text("--steps", 3, "--seed", 5)


def test_the_bytes_do_not_depend_on_how_a_process_hashes_names() -> None:
    words = ("--setup", str(EXAMPLE), "--steps", "6", "--json", "-")
    command = [sys.executable, "-c", "from rollmux.cli import app; app()", "job-sim", *words]
    one, other = (
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True).stdout
        for seed in ("1", "2")
    )
    assert one == other
    assert one.startswith(b"{")


def test_the_baseline_is_always_run_and_nobody_twice() -> None:
    assert list(figures("--steps", 1, "--system", "rollmux, rlhfuse,rollmux")["systems"]) == [
        "sync",
        "rollmux",
        "rlhfuse",
    ]
    assert list(figures("--steps", 1, "--system", "sync")["systems"]) == ["sync"]


def test_a_system_is_the_same_beside_whichever_others() -> None:
    alone, beside = (
        figures("--steps", 2, "--system", s)["systems"]["rollpacker"] for s in ("rollpacker", "rollmux,rollpacker")
    )
    assert alone == beside


def test_factors_are_for_those_who_over_provision() -> None:
    plain = figures("--steps", 2, "--system", "rlhfuse,rollpacker")["systems"]
    wide = figures("--steps", 2, "--system", "rlhfuse,rollpacker", "--eta-prompts", 2, "--eta-responses", 1.5)[
        "systems"
    ]
    assert wide["rlhfuse"] == plain["rlhfuse"]
    assert [(of["eta_prompts"], of["eta_responses"]) for of in wide.values()] == [(1, 1), (1, 1), (2, 1.5)]
    assert wide["rollpacker"]["steps"][0]["launched"] == 32 * 6
    only = figures("--steps", 1, "--system", "rollpacker", "--eta-responses", 1)["systems"]["rollpacker"]
    assert (only["eta_prompts"], only["eta_responses"]) == (plain["rollpacker"]["eta_prompts"], 1)


def test_the_table_has_a_line_for_each_system() -> None:
    code, output = job_sim("--setup", EXAMPLE, "--steps", 8)
    assert code == 0, output
    assert "8B/4k on one server: 8 steps of 16 × 4 responses" in output
    for column in ("step s", "short", "long", "rollout", "reward", "train", "speed-up", "wasted", "mean length"):
        assert column in output
    found = figures("--steps", 8)["systems"]
    for name, of in found.items():
        shift, told = of["length_bias"]["mean_shift"], of["tokens"]
        long = "–" if of["long_step_s_mean"] is None else f"{of['long_step_s_mean']:.1f}"
        shown = [
            *(f"{of['step_s_mean']:.1f}", f"{of['short_step_s_mean']:.1f}", long),
            *(f"{of['breakdown_s'][part]:.1f}" for part in ("rollout", "reward", "train")),
            f"{of['speedup_over_sync']:.2f}×",
            f"{told['wasted'] / (told['wasted'] + told['trained']):.1%}",
            f"{shift:+.1%}",
        ]
        assert " ".join([name, *shown]) in output
    assert "still wait" not in output


def test_a_run_too_short_for_a_long_round_says_that_it_flatters() -> None:
    output = job_sim("--setup", EXAMPLE, "--steps", 2, "--system", "rollpacker")[1]
    waiting = figures("--steps", 2, "--system", "rollpacker")["systems"]["rollpacker"]["waiting_prompts"]
    assert f"rollpacker: {waiting} prompts still wait for the first long round, so it looks faster than it is" in output
    assert "sync:" not in output


def test_a_file_is_written_and_named(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    code, output = job_sim("--setup", EXAMPLE, "--steps", 2, "--json", path)
    assert code == 0, output
    assert output.rstrip().endswith(f"Written: {path}")
    assert path.read_text(encoding="utf-8") == text("--steps", 2)


@pytest.mark.parametrize("name", ["7B/8k", "14B/16k", "32B/32k"])
def test_the_shipped_setups_go_by_their_names(name: str) -> None:
    code, output = job_sim("--setup", name, "--system", "sync", "--steps", 1)
    assert code == 0, output
    assert f"{name}: 1 steps of 128 × 8 responses" in output


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (("--system", "rolpacker"), "there is no system 'rolpacker'; the nearest is rollpacker; choose from sync, "),
        (("--system", ","), "--system names nothing; choose from sync, rlhfuse"),
        (("--setup", "7B"), "there is no setup or file '7B'; choose 7B/8k, 14B/16k, 32B/32k, or a file"),
        (("--setup", EXAMPLE.parent / "cluster.yaml"), "the nearest is"),
        (("--steps", "0"), "greater than or equal to 1"),
        (("--eta-prompts", "0.9"), "--eta-prompts 0.9: give a number from 1 to 16"),
        (("--eta-responses", "17"), "--eta-responses 17: give a number from 1 to 16"),
        (("--eta-responses", "nan"), "--eta-responses nan: give a number from 1 to 16"),
        (
            ("--eta-prompts", "1.2", "--system", "rlhfuse"),
            "none of sync, rlhfuse over-provisions; add one of rollpacker",
        ),
        (("--json", "nowhere/out.json"), "--json nowhere/out.json: must be in a folder that is there"),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_do(wrong: tuple[object, ...], hint: str) -> None:
    code, output = job_sim("--steps", "1", "--system", "sync,rollpacker", *wrong)
    assert code == 2, output
    assert hint in output


def test_a_bad_setup_file_is_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("like: 7B/8k\ngpu: 8\nsync_s: -1\n", encoding="utf-8")
    code, output = job_sim("--setup", path)
    assert code == 2
    assert "has 2 problems" in output
    assert "the nearest is gpus" in output
    assert "sync_s = -1: must be a number from 0" in output

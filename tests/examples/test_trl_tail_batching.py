"""TRL's trainer with tail batching: rows once an epoch, groups whole and on-policy, and a run that goes on exactly.

Responses are as long as chance has them: the model is new, and ends one at any token.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from rollmux.errors import RollmuxError
from rollmux.packer import Account
from rollmux.runtime.engine import Ended, Event, GenerationRequest, stream
from rollmux.trainer.rollout import Rolled
from tests.runtime.engine_http.fake_machine import VOCABULARY, greedy
from tests.runtime.engine_inside.fake_llm import FakeLLM

pytestmark = [
    pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed: it comes with the extra `trl`"),
    pytest.mark.filterwarnings("ignore"),  # what Transformers says of TRL's own settings
]

ROWS, PROMPTS, GROUP, LONGEST = 20, 4, 2, 12
STEPS = 12  # of four prompts: two epochs, and a part of a third


@dataclass
class Seen:
    """What TRL has scored: the rows of each call, with the lengths of their responses."""

    rounds: list[list[tuple[int, int]]] = field(default_factory=list)

    def reward(self, completion_ids: list[list[int]], number: list[int], **_: Any) -> list[float]:
        self.rounds.append([(row, len(tokens)) for row, tokens in zip(number, completion_ids, strict=True)])
        return [float(tokens[0] % 2) for tokens in completion_ids]


Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A trainer of a new model: `settings` are TRL's, or the trainer's own."""
    import torch  # noqa: PLC0415
    from datasets import Dataset  # noqa: PLC0415
    from transformers import PrinterCallback, set_seed  # noqa: PLC0415
    from trl import GRPOConfig  # noqa: PLC0415

    from examples.trl_grpo import digits  # noqa: PLC0415
    from examples.trl_grpo.tail_batching import TailBatchedTrainer  # noqa: PLC0415

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rows = Dataset.from_list([{"prompt": str(row % 10), "number": row} for row in range(ROWS)])
    torch.set_num_threads(1)

    def made(seen: Seen | None = None, own: dict[str, Any] | None = None, **settings: Any) -> Any:
        set_seed(3)
        shared = {
            "output_dir": str(tmp_path),
            **dict.fromkeys(("use_cpu", "disable_tqdm"), True),
            "bf16": False,
            "report_to": [],
            "save_strategy": "no",
            "logging_steps": 1,
            "max_steps": STEPS,
            "per_device_train_batch_size": PROMPTS * GROUP,
            "num_generations": GROUP,
            "max_completion_length": LONGEST,
            "learning_rate": 1e-3,
        }
        given = {
            "reward_funcs": (seen or Seen()).reward,
            "model": digits.new_model(),
            "train_dataset": rows,
            "processing_class": digits.new_tokenizer(),
            "tail": {"eta_prompts": 1.5, "eta_responses": 1.5},
        }
        args = GRPOConfig(**{**shared, **settings})
        made = TailBatchedTrainer(args=args, **{**given, **(own or {})})
        made.remove_callback(PrinterCallback)
        return made

    return made


def test_each_row_is_trained_once_an_epoch_in_whole_groups_and_long_ones_in_long_rounds(make: Make) -> None:
    seen = Seen()
    trainer = make(seen)
    trainer.train()
    trained = Counter[int]()
    for scored in seen.rounds:
        groups = [scored[first : first + GROUP] for first in range(0, PROMPTS * GROUP, GROUP)]
        assert [len({row for row, _ in group}) for group in groups] == [1] * PROMPTS
        trained.update(group[0][0] for group in groups)
    accounts: dict[int, Account] = trainer.rollout.batcher.accounts()
    assert sum(trained.values()) == PROMPTS * STEPS == sum(account.trained for account in accounts.values())
    assert accounts[0] == Account(drawn=ROWS, trained=ROWS)
    assert not any(account.waiting for account in accounts.values())
    assert set(trained) == set(range(ROWS))
    assert max(trained.values()) <= len(accounts)
    kinds = [log["tail_batching/long"] for log in trainer.state.log_history[:STEPS]]
    assert set(kinds) == {0.0, 1.0}
    lengths = {
        kind: [n for each, scored in zip(kinds, seen.rounds, strict=True) if each == kind for _, n in scored]
        for kind in (0.0, 1.0)
    }
    assert fmean(lengths[0.0]) < fmean(lengths[1.0])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_iterations": 2},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": PROMPTS * GROUP // 2},
        {"steps_per_generation": 2, "per_device_train_batch_size": PROMPTS * GROUP // 2},
        {"steps_per_generation": 1, "gradient_accumulation_steps": 5},
    ],
    ids=lambda settings: "-".join(settings) or "one step a round",
)
def test_who_is_put_off_in_the_last_rounds_of_an_epoch_is_trained_too(make: Make, settings: dict[str, Any]) -> None:
    trainer = make(max_steps=-1, num_train_epochs=1, **settings)
    trainer.train()
    assert trainer.rollout.batcher.accounts() == {0: Account(drawn=ROWS, trained=ROWS)}


def test_what_is_trained_was_drawn_with_the_weights_that_are_trained(make: Make) -> None:
    import torch  # noqa: PLC0415

    trainer, rounds, differences = make(max_steps=6), list[Rolled](), list[float]()
    roll, scored = trainer.roll, trainer._generate_and_score_completions

    def rolled() -> Rolled:
        rounds.append(roll())
        return rounds[-1]

    def compared(inputs: list[dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = scored(inputs)
        ids, mask = (torch.cat([found[f"prompt_{what}"], found[f"completion_{what}"]], 1) for what in ("ids", "mask"))
        longest = found["completion_ids"].shape[1]
        with torch.no_grad():
            theirs = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, longest)[0]
        for sample, prompt, tokens, logprobs in zip(
            rounds[-1].samples, found["prompt_ids"], found["completion_ids"], theirs, strict=True
        ):
            length = len(sample.tokens)
            assert (list(sample.prompt), list(sample.tokens)) == (prompt.tolist(), tokens[:length].tolist())
            assert set(sample.versions) == {len(rounds)}
            differences.append(float((logprobs[:length] - torch.tensor(sample.logprobs)).abs().max()))
        return found

    trainer.roll, trainer._generate_and_score_completions = rolled, compared
    trainer.train()
    assert len(differences) == 6 * PROMPTS * GROUP
    assert max(differences) < 1e-5


def test_a_run_that_goes_on_from_a_checkpoint_trains_what_it_would_have(make: Make, tmp_path: Path) -> None:
    import torch  # noqa: PLC0415

    whole, rest = Seen(), Seen()
    first = make(whole, save_strategy="steps", save_steps=5)
    first.train()
    second = make(rest)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert rest.rounds == whole.rounds[5:]
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_checkpoint_of_other_rows_or_another_order_is_refused(make: Make, tmp_path: Path) -> None:
    make(max_steps=1, save_strategy="steps", save_steps=1).train()
    fewer = make(own={"train_dataset": make().train_dataset.select(range(ROWS - 1))})
    with pytest.raises(ValueError, match=r"rows range\(0, 20\).*range\(0, 19\).*: go on with the same data"):
        fewer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    with pytest.raises(ValueError, match=r"by seed 42.*by seed 7"):
        make(seed=7).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_a_checkpoint_that_does_not_say_who_waits_is_gone_on_from_with_a_warning(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(max_steps=1, save_strategy="steps", save_steps=1).train()
    (tmp_path / "checkpoint-1" / "tail_batching-0.json").unlink()
    with caplog.at_level("WARNING", "rollmux"):
        make(max_steps=2).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert "as if none of them had been trained" in caplog.text


class Broken(Exception):
    """What a reward raises."""


def test_the_rows_of_a_round_that_could_not_be_scored_are_drawn_anew(make: Make) -> None:
    seen, broken = Seen(), Seen()

    def reward(completion_ids: list[list[int]], number: list[int], **_: Any) -> list[float]:
        if len(seen.rounds) == 2 and not broken.rounds:
            broken.reward(completion_ids, number)
            raise Broken
        return seen.reward(completion_ids, number)

    trainer = make(own={"reward_funcs": reward}, max_steps=3)
    with pytest.raises(Broken):
        trainer.train()
    trainer.train()
    assert broken.rounds == seen.rounds[2:3]
    assert sum(account.trained for account in trainer.rollout.batcher.accounts().values()) == 5 * PROMPTS


@pytest.mark.parametrize(("updates", "rounds"), [(1, 1), (1, 2), (2, 1)])
def test_rows_of_which_no_update_was_made_are_drawn_anew(
    make: Make, monkeypatch: pytest.MonkeyPatch, updates: int, rounds: int
) -> None:
    """Ctrl-C as the last loss of the second step is computed, or as that step's update is done."""
    trainer = make(max_steps=2, gradient_accumulation_steps=rounds, steps_per_generation=1)
    stopped = {1: "compute_loss", 2: "_maybe_log_save_evaluate"}[updates]
    whole = getattr(trainer, stopped)

    def broken(*given: Any, **more: Any) -> Any:
        if trainer.state.global_step == updates and (trainer._step + 1) % rounds == 0:
            raise KeyboardInterrupt
        return whole(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, stopped, broken)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    a_step = rounds * PROMPTS
    assert sum(account.trained for account in trainer.rollout.batcher.accounts().values()) == updates * a_step
    trainer.train()
    assert trainer.state.global_step == 2
    assert sum(account.trained for account in trainer.rollout.batcher.accounts().values()) == (updates + 2) * a_step


@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        ({"gradient_accumulation_steps": 2, "per_device_train_batch_size": PROMPTS * GROUP // 2}, 2),
        ({"num_iterations": 2}, 1),
    ],
    ids=["Ctrl-C amid a step", "steps that end amid a round"],
)
def test_what_one_run_left_of_a_round_is_not_trained_by_the_next(
    make: Make, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], batches: int
) -> None:
    trainer, done = make(max_steps=1, **settings), list[str]()
    roll, loss = trainer.roll, trainer.compute_loss

    def begun() -> Rolled:
        done.append("round")
        rolled: Rolled = roll()
        return rolled

    def trained(*given: Any, **more: Any) -> Any:
        done.append("batch")
        if done == ["round", "batch", "batch"]:
            raise KeyboardInterrupt
        return loss(*given, **more)

    monkeypatch.setattr(trainer, "roll", begun)
    monkeypatch.setattr(trainer, "compute_loss", trained)
    with suppress(KeyboardInterrupt):
        trainer.train()
    assert done == ["round", *["batch"] * batches]
    trainer.train()
    assert done == 2 * ["round", *["batch"] * batches]


def test_after_ctrl_c_amid_a_round_the_engine_is_idle_and_the_next_train_draws_it_anew(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, seen = Seen(), Seen()
    make(whole, max_steps=1).train()
    trainer = make(seen, max_steps=1)
    (engine,) = trainer.rollout.engines
    step, steps = engine.step, iter(range(LONGEST))

    def interrupted() -> list[Event]:
        if next(steps) == 3:
            raise KeyboardInterrupt
        return list(step())

    with monkeypatch.context() as patch:
        patch.setattr(engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    assert engine.unfinished == 0
    trainer.train()
    assert seen.rounds == whole.rounds


def test_a_reward_that_changes_what_a_row_has_changes_nothing_of_another_response(make: Make) -> None:
    found = list[int]()

    def reward(completion_ids: list[list[int]], answers: list[list[str]], **_: Any) -> list[float]:
        for each in answers:
            found.append(len(each))
            each.clear()
        return [0.0] * len(completion_ids)

    rows = make().train_dataset.map(lambda row: {"answers": ["one", "two"]})
    make(own={"reward_funcs": reward, "train_dataset": rows}, max_steps=1).train()
    assert found == [2] * PROMPTS * GROUP


@pytest.mark.parametrize(("letters", "says"), [(0, "has 0 tokens"), (60, "has 60 tokens; .* it may have 1 to 52")])
def test_a_prompt_that_leaves_no_room_is_told_with_its_row(make: Make, letters: int, says: str) -> None:
    rows = make().train_dataset.map(lambda row: {"prompt": "1" * letters} if row["number"] == 13 else row)
    with pytest.raises(ValueError, match=f"the prompt of row 13 {says}"):
        make(own={"train_dataset": rows}).train()


def test_two_processes_draw_different_responses_to_like_prompts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make().train_dataset.map(lambda row: {"prompt": "1"})
    monkeypatch.setattr("accelerate.Accelerator.num_processes", 2)
    drawn = list[list[tuple[int, ...]]]()
    for process in range(2):
        monkeypatch.setattr("accelerate.Accelerator.process_index", process)
        trainer = make(own={"train_dataset": rows})
        assert trainer.rows == range(process, ROWS, 2)
        drawn.append([sample.tokens for sample in trainer.roll().samples])
    assert drawn[0] != drawn[1]


def test_a_row_with_an_image_in_its_messages_is_refused(make: Make) -> None:
    template = "{% for message in messages %}{{ message['content'][0]['text'] }}{% endfor %}"
    content = [{"type": "text", "text": "1"}, {"type": "image", "image": "of a 1"}]
    trainer = make()
    trainer.processing_class.chat_template = template
    rows = trainer.train_dataset.map(lambda row: {"prompt": [{"role": "user", "content": content}]})
    trained = make(own={"train_dataset": rows, "processing_class": trainer.processing_class})
    with pytest.raises(ValueError, match="has images"):
        trained.train()


def test_rows_whose_prompt_is_another_each_time_are_refused(make: Make) -> None:
    asked = count()

    def changing(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {**rows, "prompt": [str(next(asked) % 10) for _ in rows["prompt"]]}

    rows = make().train_dataset.with_transform(changing)
    with pytest.raises(ValueError, match="the same prompt each time"):
        make(own={"train_dataset": rows}).train()


def test_an_evaluation_is_trl_s_own_and_touches_no_round(make: Make) -> None:
    seen, asked = Seen(), Seen()
    make(seen, max_steps=4).train()
    rows = make().train_dataset.select(range(3))
    evaluation = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": GROUP}
    trainer = make(asked, own={"eval_dataset": rows}, max_steps=4, **evaluation)
    trainer.train()
    sizes = [len(scored) for scored in asked.rounds]
    assert sizes == [8, 8, 2, 2, 2, 8, 8, 2, 2, 2]
    assert [scored for scored in asked.rounds if len(scored) == PROMPTS * GROUP] == seen.rounds


def test_all_that_is_drawn_is_drawn_in_a_rollout_phase_and_what_follows_a_round_is_training(make: Make) -> None:
    phases = list[str]()

    @contextmanager
    def phase(kind: str) -> Iterator[None]:
        phases.append(kind)
        yield
        phases.append(f"end of {kind}")

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        phases.append(f"{len(completion_ids)} scored")
        return [0.0] * len(completion_ids)

    own = {
        "reward_funcs": reward,
        "eval_dataset": make().train_dataset.select(range(1)),
        "mux": SimpleNamespace(phase=phase),
    }
    evaluation = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": GROUP}
    trainer = make(own=own, max_steps=1, **evaluation)
    trainer.train()
    assert phases == ["rollout", "2 scored", "end of rollout", "train", "8 scored", "2 scored", "end of train"]


def test_between_rounds_the_engine_holds_nothing(make: Make) -> None:
    trainer = make(max_steps=2)
    trainer.train()
    (engine,) = trainer.rollout.engines
    assert engine.is_suspended
    assert engine.unfinished == engine.gauges().held_tokens == 0


@pytest.mark.parametrize(
    ("wrong", "settings"),
    [
        ("top_k", {"top_k": 5}),
        ("top_k", {"generation_kwargs": {"no_repeat_ngram_size": 2}}),
        ("remove_unused_columns", {"remove_unused_columns": True}),
        ("use_transformers_continuous_batching", {"use_transformers_continuous_batching": True}),
        ("rollout_func", {"own": {"rollout_func": lambda prompts, trainer: {}}}),
        ("shuffle_dataset", {"shuffle_dataset": False}),
        ("max_completion_length", {"max_completion_length": None}),
        ("cast_lm_head_to_fp32", {"cast_lm_head_to_fp32": True}),
        ("race 'rewarded'", {"own": {"tail": {"race": "rewarded"}}}),
        ("quotas", {"own": {"tail": {"quotas": {"sums": PROMPTS}}}}),
        ("Race", {"own": {"tail": {"race": "longest"}}}),
        ("eta_prompts", {"own": {"tail": {"eta_prompts": 0.5}}}),
        ("eta_prompts = '1.25'", {"own": {"tail": {"eta_prompts": "1.25"}}}),
        ("eta", {"own": {"tail": {"eta": 1.5}}}),
    ],
)
def test_what_would_be_done_otherwise_than_asked_is_refused(make: Make, wrong: str, settings: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, RollmuxError), match=wrong):
        make(**settings)


class Vllm:
    """TRL's `VLLMGeneration` in its colocate mode, as far as it moves weights and lets its `LLM` sleep."""

    def __init__(self, sleeps: bool) -> None:
        self.llm = FakeLLM(enable_sleep_mode=sleeps, logprobs_mode="processed_logprobs")
        self.enable_sleep_mode = self._llm_weights_sleeping = sleeps
        self.syncs = 0
        if sleeps:
            self.llm.sleep(level=2)

    def sync_weights(self) -> None:
        if self.enable_sleep_mode:
            self.llm.wake_up(tags=["weights"])
            self._llm_weights_sleeping = False
        self.syncs += 1
        self.llm.weights = f"those of sync {self.syncs}"
        self.llm.llm_engine.reset_prefix_cache()


@pytest.mark.parametrize(("race", "places"), [("none", 12), ("generated", 18)])
def test_a_colocated_vllm_has_a_place_for_each_response_that_is_launched(
    make: Make, monkeypatch: pytest.MonkeyPatch, race: str, places: int
) -> None:
    from trl.trainer import grpo_trainer  # noqa: PLC0415

    asked = list[int]()

    def made(*, max_num_seqs: int, **_: Any) -> Vllm:
        asked.append(max_num_seqs)
        return Vllm(sleeps=False)

    monkeypatch.setattr(grpo_trainer, "VLLMGeneration", made)
    tail = {"eta_prompts": 1.5, "eta_responses": 1.5, "race": race}
    trainer = make(own={"tail": tail}, use_vllm=True, vllm_mode="colocate")
    assert asked == [places] == [trainer.most]
    assert grpo_trainer.VLLMGeneration is made


def test_a_second_train_gives_a_colocated_vllm_the_weights_of_the_first(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM  # noqa: PLC0415
    from trl.trainer import grpo_trainer  # noqa: PLC0415

    config = make().model.config
    config.vocab_size = VOCABULARY
    vllm = Vllm(sleeps=False)
    monkeypatch.setattr(grpo_trainer, "VLLMGeneration", lambda **_: vllm)
    model = LlamaForCausalLM(config)
    trainer = make(own={"model": model}, max_steps=1, use_vllm=True, vllm_mode="colocate")
    for trained in range(2):
        trainer.train()
        assert vllm.syncs == trained + 1


@pytest.mark.parametrize(("sleeps", "syncs"), [(False, [1, 1, 2]), (True, [1, 2, 3])])
def test_a_colocated_vllm_has_the_weights_and_sleeps_when_trl_has_it_do_so(sleeps: bool, syncs: list[int]) -> None:
    from examples.trl_grpo.tail_batching import _Colocated  # noqa: PLC0415

    vllm = Vllm(sleeps)
    args = SimpleNamespace(top_k=5, min_p=None, repetition_penalty=1.0, generation_kwargs=None)
    trainer: Any = SimpleNamespace(args=args, vllm_generation=vllm, state=SimpleNamespace(global_step=0))
    trainer._last_loaded_step = -1
    drawer = _Colocated(trainer)
    (engine,) = drawer.engines
    for number, step in enumerate((0, 0, 1)):
        trainer.state.global_step = step
        assert vllm.llm.llm_engine.is_sleeping() == sleeps
        with drawer.awake():
            engine.update(number + 1)
            engine.submit(GenerationRequest("r", (1, 2, 3), 4, temperature=0.0))
            (tokens,) = (event.response.tokens for event in stream(engine) if isinstance(event, Ended))
        assert vllm.syncs == syncs[number]
        assert tokens == greedy(f"those of sync {syncs[number]}", (1, 2, 3), 4)
    assert vllm.llm.llm_engine.is_sleeping() == sleeps

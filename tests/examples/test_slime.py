"""slime's rollouts by tail batching: each prompt once an epoch, whole and on-policy, whatever is put off or goes wrong.

A response takes as many turns of the event loop as it has tokens. Where slime's own modules can be imported it is they
that call the example, else their stand-in.
"""

import asyncio
import importlib.util
import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from rollmux.packer import Account
from tests.examples import slime_stand_in
from tests.examples.playing import EXAMPLES
from tests.runtime.engine_http.fake_server import FakeServer

SLIME = importlib.util.find_spec("slime") is not None
PROMPTS, EPOCHS = 20, 2


@dataclass
class World:
    """What the job's own functions do, and what they have seen."""

    example: Any
    args: Namespace
    server: FakeServer
    lengths: Callable[[Any], int] = lambda sample: 1 + Random(repr((sample.label, sample.index))).randrange(40)
    status: Callable[[Any], str] = lambda sample: "completed"
    reward_turns: Callable[[Any], int] = lambda sample: 0
    pieces: int = 0  # into which a response is split
    empty: set[str] = field(default_factory=set)  # whose first response is split into none
    running: int = 0
    spent: Counter[str] = field(default_factory=Counter)  # tokens drawn for a prompt, whatever became of them
    unscored: set[str] = field(default_factory=set)  # whose first reward is none
    without: int = 2  # how many of a group have none then
    settings: list[dict[str, Any]] = field(default_factory=list)
    scored: list[Any] = field(default_factory=list)
    filtered: list[list[Any]] = field(default_factory=list)

    async def generate(self, args: Namespace, sample: Any, settings: dict[str, Any]) -> Any:
        assert not sample.response_length
        assert sample.reward is None
        self.settings.append(settings)
        self.running += 1
        try:
            for _ in range(self.lengths(sample)):
                await turns(1)
                self.spent[sample.label] += 1
        finally:
            self.running -= 1
        sample.response_length, sample.response = self.lengths(sample), "said"
        sample.status = type(sample.status)(self.status(sample))
        if sample.label in self.empty:
            self.empty.discard(sample.label)
            return []
        return [sample] * self.pieces if self.pieces else sample

    async def reward(self, args: Namespace, asked: Any) -> Any:
        self.scored.append(asked)
        await turns(self.reward_turns(asked))
        label, several = first(asked).label, isinstance(asked, list)
        if label in self.unscored:
            self.unscored.discard(label)
            return [None if place < self.without else 1.0 for place in range(len(asked))] if several else None
        return [float(place) for place, _ in enumerate(asked)] if several else float(asked.index % 3)

    def source(self) -> Any:
        return self.example.Source(self.args)

    def rollout(self, source: Any, number: int = 0) -> Any:
        found = self.example.generate_rollout(self.args, number, source)
        assert self.running == 0, "nothing is left running"
        return found


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with closing(FakeServer()) as server:
        args = arguments(tmp_path, server)
        if SLIME:
            begin_anew(args, monkeypatch)
        else:
            slime_stand_in.install(monkeypatch)
        name = "tail_batching"
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / "slime" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        there = World(example, args, server)
        module = ModuleType("scripted")
        vars(module).update(there=there, generate=there.generate, reward=there.reward)
        monkeypatch.setitem(sys.modules, "scripted", module)
        yield there
        assert not server.machine.running


class Letters:
    """A tokenizer."""

    def encode(self, text: str, **more: Any) -> list[int]:
        return list(map(ord, text))


def begin_anew(args: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """slime keeps one state for the process, and one client."""
    importlib.import_module("slime.utils.misc").SingletonMeta._instances.clear()
    importlib.import_module("slime.utils.http_utils").init_http_client(args)
    for name in ("data_source", "sglang_rollout"):
        module = importlib.import_module(f"slime.rollout.{name}")
        monkeypatch.setattr(module, "load_tokenizer", lambda *given, **more: Letters())
        monkeypatch.setattr(module, "load_processor", lambda *given, **more: None)


def arguments(folder: Path, server: FakeServer) -> Namespace:
    """Those of slime's that are looked at."""
    data = folder / "data.jsonl"
    data.write_text(
        "".join(json.dumps({"text": f"p{number}", "label": f"p{number}"}) + "\n" for number in range(PROMPTS))
    )
    host, port = server.url.removeprefix("http://").split(":")
    unused = (
        *("apply_chat_template", "apply_chat_template_kwargs", "buffer_filter_path", "ci_test", "dump_details"),
        *(
            "dynamic_sampling_filter_path",
            "eval_datasets",
            "group_rm",
            "hf_checkpoint",
            "mask_offpolicy_in_partial_rollout",
        ),
        *("multimodal_keys", "num_rollout", "partial_rollout", "reward_key", "rollout_all_samples_process_path"),
        *("rollout_max_prompt_len", "rollout_sample_filter_path", "rollout_skip_special_tokens", "rollout_stop"),
        *("rollout_stop_token_ids", "sglang_dp_size", "tool_key", "use_rollout_routing_replay"),
    )
    return Namespace(
        **dict.fromkeys(unused),
        custom_generate_function_path="scripted.generate",
        custom_rm_path="scripted.reward",
        input_key="text",
        label_key="label",
        load=str(folder),
        metadata_key="metadata",
        n_samples_per_prompt=2,
        num_epoch=EPOCHS,
        over_sampling_batch_size=6,
        prompt_data=str(data),
        rollout_batch_size=4,
        rollout_global_dataset=True,
        rollout_max_response_len=64,
        rollout_num_engines=1,
        rollout_seed=7,
        rollout_shuffle=True,
        rollout_temperature=1.0,
        rollout_top_k=-1,
        rollout_top_p=1.0,
        save=str(folder),
        sglang_router_ip=host,
        sglang_router_port=int(port),
        sglang_server_concurrency=64,
        tail_batching={"eta_responses": 1.5},
    )


def labels(found: Any) -> list[str]:
    return [first(group[0]).label for group in found.samples]


def first(drawn: Any) -> Any:
    return drawn[0] if isinstance(drawn, list) else drawn


def of(found: Any, name: str) -> float:
    value: float = found.metrics[f"rollout/tail_batching/{name}"]
    return value


@pytest.mark.parametrize("race", ["rewarded", "generated", "none"])
@pytest.mark.parametrize("pieces", [0, 2])
def test_every_prompt_is_trained_once_an_epoch_in_whole_groups(world: World, race: str, pieces: int) -> None:
    world.args.tail_batching["race"] = race
    world.pieces = pieces
    source, trained = world.source(), Counter[str]()
    for number in range(PROMPTS * EPOCHS // 4):
        found = world.rollout(source, number)
        samples = [first(drawn) for group in found.samples for drawn in group]
        assert len(samples) == len({sample.index for sample in samples}) == 8
        assert len({sample.group_index for sample in samples}) == 4
        assert {(sample.status.value, sample.response) for sample in samples} == {("completed", "said")}
        trained.update(labels(found))
    assert set(trained.values()) == {EPOCHS}
    assert [(each.drawn, each.trained) for each in source.batcher.accounts().values()] == [(PROMPTS, PROMPTS)] * EPOCHS


def test_a_long_prompt_waits_for_a_long_rollout_and_is_then_drawn_whole(world: World) -> None:
    source = world.source()
    long = source.dataset.samples[1].label
    world.lengths = lambda sample: 200 if sample.label == long else 10
    found = [world.rollout(source, number) for number in range(3)]
    assert [of(each, "long") for each in found] == [0, 0, 1]
    assert [long in labels(each) for each in found] == [False, False, True]
    assert of(found[0], "waiting") == 2
    whole = [drawn.response_length for group in found[2].samples for drawn in group if drawn.label == long]
    assert whole == [200, 200]


def test_a_response_that_loses_its_race_is_drawn_no_further_while_the_rollout_goes_on(world: World) -> None:
    world.args.over_sampling_batch_size = 4
    source = world.source()
    slow, *others = [sample.label for sample in source.dataset.samples[:4]]
    seen: dict[str, list[int]] = {}

    def length(sample: Any) -> int:
        known = seen.setdefault(sample.label, [])
        if sample.index not in known:
            known.append(sample.index)
        return 10 if sample.label != slow and sample.index in known[:2] else 300

    world.lengths = length
    assert of(world.rollout(source), "aborted") == 4
    assert world.spent[slow] >= 600
    assert max(world.spent[label] for label in others) < 40


def test_a_job_that_goes_on_from_a_checkpoint_trains_what_it_would_have_trained(world: World) -> None:
    world.lengths = lambda sample: 1 + Random(repr((sample.label, sample.index % 2))).randrange(40)
    whole = world.source()
    expected = [labels(world.rollout(whole, number)) for number in range(9)]
    source = world.source()
    for number in range(9):
        assert labels(world.rollout(source, number)) == expected[number]
        source.save(number)
        source = world.source()
        source.load(number)


def test_nobody_waits_when_the_last_rollout_is_over_and_a_job_may_be_ordered_to_run_for_longer(world: World) -> None:
    args = world.args
    args.num_epoch, args.num_rollout = None, 4
    source, trained = world.source(), Counter[str]()
    for number in range(7):
        if number == 4:
            assert source.batcher.accounts()[0] == Account(drawn=16, trained=16)
            with pytest.raises(ValueError, match="after the last one that was ordered"):
                world.rollout(source, number)
            args.num_rollout = 7
            source = world.source()
            source.load(3)
        trained.update(labels(world.rollout(source, number)))
        source.save(number)
    assert sorted(trained.values()) == [1] * 12 + [2] * 8
    assert [each.waiting for each in source.batcher.accounts().values()] == [0, 0]


@pytest.mark.parametrize("rollouts", [1, 2, 4])
def test_a_prompt_that_is_given_up_is_replaced_though_no_more_was_to_be_drawn(world: World, rollouts: int) -> None:
    source = world.source()
    hard = source.dataset.samples[0].label
    world.lengths = lambda sample: 300 if sample.label == hard else 10
    world.status = lambda sample: "failed" if sample.label == hard else "completed"
    world.args.num_rollout = rollouts
    source = world.source()
    assert [len(world.rollout(source, number).samples) for number in range(rollouts)] == [4] * rollouts
    with pytest.raises(ValueError, match=f"rollout {rollouts} comes after the last"):
        world.rollout(source, rollouts)
    assert source.batcher.accounts() == {0: Account(drawn=4 * rollouts + 1, trained=4 * rollouts, failed=1)}


def test_a_filter_is_shown_the_samples_and_what_it_refuses_is_replaced(world: World) -> None:
    def keep(args: Namespace, group: list[Any]) -> Any:
        world.filtered.append(group)
        found = importlib.import_module("slime.rollout.filter_hub.base_types")
        return found.DynamicFilterOutput(group[0].label not in {"p3", "p5"}, "hated")

    shown: list[Any] = []
    vars(sys.modules["scripted"]).update(keep=keep, process=lambda args, groups, source: shown.extend(groups))
    world.args.dynamic_sampling_filter_path = "scripted.keep"
    world.args.rollout_all_samples_process_path = "scripted.process"
    source, trained, dropped = world.source(), Counter[str](), 0
    for number in range(6):
        found = world.rollout(source, number)
        trained.update(labels(found))
        assert len(found.samples) == 4
        dropped += found.metrics.get("rollout/dynamic_filter/drop_hated", 0)
        assert of(found, "filtered") == found.metrics.get("rollout/dynamic_filter/drop_hated", 0)
    assert dropped >= 2
    assert not {"p3", "p5"} & set(trained)
    assert all(sample.reward is not None for group in world.filtered for sample in group)
    assert {group[0].label for group in shown} >= {"p3", "p5"}


@pytest.mark.parametrize("status", ["aborted", "failed"])
def test_a_response_that_breaks_off_is_drawn_again_and_never_trained(world: World, status: str) -> None:
    broken = set[str]()

    def once(sample: Any) -> str:
        if sample.label in broken:
            return "completed"
        broken.add(sample.label)
        return status

    world.status = once
    source = world.source()
    found = world.rollout(source)
    assert len(found.samples) == 4
    assert of(found, "failed") >= 4
    assert {sample.status.value for group in found.samples for sample in group} == {"completed"}


def test_a_rollout_in_which_everything_fails_ends(world: World) -> None:
    world.status = lambda sample: "failed"
    source = world.source()
    with pytest.raises(RuntimeError, match="10 times as many failures as responses"):
        world.rollout(source)
    assert world.running == 0


@pytest.mark.parametrize("race", ["rewarded", "generated", "none"])
@pytest.mark.parametrize("length", [10, 0])
def test_a_group_is_scored_at_once_where_slime_is_told_so(world: World, race: str, length: int) -> None:
    world.args.group_rm, world.args.tail_batching["race"] = True, race
    if length:  # all end at the same time
        world.lengths = lambda sample: length
    source = world.source()
    world.unscored = {source.dataset.samples[0].label}
    found = world.rollout(source)
    assert [{sample.reward for sample in group} for group in found.samples] == [{0.0, 1.0}] * 4
    assert {len(group) for group in world.scored} == {2}


@pytest.mark.parametrize("length", [10, 0])
@pytest.mark.parametrize("without", [1, 2])
@pytest.mark.parametrize("eta", [1.0, 1.5, 2.0])
def test_a_group_of_which_one_has_no_reward_is_scored_anew_with_others(
    world: World, eta: float, without: int, length: int
) -> None:
    """They may have been generated, all or some, while the group was scored."""
    world.args.group_rm, world.args.tail_batching["eta_responses"] = True, eta
    world.reward_turns, world.without = lambda asked: 5, without
    if length:
        world.lengths = lambda sample: length
    source = world.source()
    world.unscored = {sample.label for sample in source.dataset.samples}
    found = world.rollout(source)
    assert of(found, "failed") >= 8
    assert [{sample.reward for sample in group} for group in found.samples] == [{0.0, 1.0}] * 4
    assert {len(group) for group in world.scored} == {2}


def test_an_agent_that_gives_no_sample_has_failed(world: World) -> None:
    source = world.source()
    world.pieces, world.empty = 2, {sample.label for sample in source.dataset.samples}
    found = world.rollout(source)
    assert of(found, "failed") >= 4
    assert [[len(response) for response in group] for group in found.samples] == [[2, 2]] * 4


def test_a_response_without_a_reward_is_drawn_again(world: World) -> None:
    source = world.source()
    world.unscored = {sample.label for sample in source.dataset.samples}
    found = world.rollout(source)
    assert of(found, "failed") >= 4
    assert all(sample.reward is not None for group in found.samples for sample in group)


@pytest.mark.parametrize("is_on", [False, True])
def test_each_response_has_a_seed_of_its_own_where_slime_is_to_repeat_itself(world: World, is_on: bool) -> None:
    world.args.sglang_enable_deterministic_inference = is_on
    world.rollout(world.source())
    seeds = Counter(each.get("sampling_seed") for each in world.settings)
    assert seeds == ({7: 6, 8: 6, 9: 6} if is_on else {None: 18})


@pytest.mark.parametrize(("race", "slow_ones"), [("rewarded", 2), ("generated", 4)])
def test_where_generation_decides_a_slow_reward_does_not(world: World, race: str, slow_ones: int) -> None:
    world.args.tail_batching["race"] = race
    source = world.source()
    slow = {sample.label for sample in source.dataset.samples[:4]}
    world.lengths = lambda sample: 10 if sample.label in slow else 20
    world.reward_turns = lambda sample: 100 if sample.label in slow else 0
    assert len(slow & set(labels(world.rollout(source)))) == slow_ones


def test_an_evaluation_is_slimes_own_and_changes_no_round(world: World) -> None:
    source = world.source()
    world.rollout(source)
    before = source.batcher.state()
    assert world.example.generate_rollout(world.args, 0, source, evaluation=True).data == {}
    assert source.batcher.state() == before


def test_an_error_in_the_jobs_own_code_ends_the_rollout_and_leaves_nothing_behind(world: World) -> None:
    def broken(sample: Any) -> int:
        raise ZeroDivisionError

    world.lengths = lambda sample: 30 if sample.index else broken(sample)
    source = world.source()
    with pytest.raises(ZeroDivisionError):
        world.rollout(source)
    assert world.running == 0


def test_what_would_train_older_weights_is_refused(world: World) -> None:
    world.args.partial_rollout = True
    with pytest.raises(ValueError, match="leave it out"):
        world.source()


def test_a_data_source_that_would_forget_who_waits_is_refused(world: World) -> None:
    with pytest.raises(TypeError, match=r"--data-source-path tail_batching\.Source"):
        world.rollout([])


@pytest.mark.skipif(not SLIME, reason="slime is not installed: what it asks of servers has no stand-in")
def test_what_slime_draws_from_a_server_is_of_this_rollouts_weights_and_the_server_is_idle_after_it(
    world: World,
) -> None:
    args, machine = world.args, world.server.machine
    args.custom_generate_function_path, args.rollout_stop_token_ids = None, list(range(1, 60))
    source = world.source()
    for number in range(6):
        machine.version = str(number)
        found = world.rollout(source, number)
        assert not machine.running
        for sample in (sample for group in found.samples for sample in group):
            assert sample.weight_versions == [str(number)]
            assert len(sample.rollout_log_probs) == sample.response_length == len(sample.tokens) - len(sample.prompt)
    assert sum(call.startswith("POST /generate") for call in world.server.calls) > 6 * 8

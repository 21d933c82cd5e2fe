"""Who wins and what becomes of the others, event by event: aborted, failed and scored are three different things."""

import json
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rollmux.errors import IllegalEvent
from rollmux.packer import (
    Abort,
    Account,
    Batch,
    Batching,
    Command,
    DataEnded,
    Draw,
    Event,
    Keep,
    Launch,
    Prompt,
    PromptDrawn,
    Race,
    Request,
    Response,
    ResponseAborted,
    ResponseFailed,
    ResponseGenerated,
    ResponseRewarded,
    RoundComplete,
    RoundKind,
    RoundStarted,
    TailBatcher,
)

TWO_OF_THREE = Batching(2, 2, 1.5, 1.5, retries=1)


def some_reward(responses: tuple[Response, ...]) -> bool:
    return any(each.reward for each in responses)


def prompt(identity: int, epoch: int = 0) -> Prompt:
    return Prompt(epoch, identity)


def request(identity: int, sample: int = 0, number: int = 1) -> Request:
    return Request(number, prompt(identity), sample)


def started(batching: Batching = TWO_OF_THREE, keep: Keep | None = None) -> TailBatcher:
    """The first round is under way, with the prompts 0, 1 and 2."""
    batcher = TailBatcher(batching, keep)
    (draw,) = batcher.handle(RoundStarted())
    assert isinstance(draw, Draw)
    launched = batcher.handle(*(PromptDrawn(prompt(identity)) for identity in range(draw.count)))
    assert all(isinstance(command, Launch) for command in launched)
    return batcher


def generate(batcher: TailBatcher, identity: int, *samples: int, tokens: int = 10) -> list[Command]:
    return [c for s in samples for c in batcher.handle(ResponseGenerated(request(identity, s), tokens))]


def reward(batcher: TailBatcher, identity: int, *samples: int, of: float = 1.0) -> list[Command]:
    return [c for s in samples for c in batcher.handle(ResponseRewarded(request(identity, s), of))]


def finish(batcher: TailBatcher, identity: int, *samples: int, of: float = 1.0) -> list[Command]:
    return [*generate(batcher, identity, *samples), *reward(batcher, identity, *samples, of=of)]


def aborted(commands: Iterable[Command]) -> list[Request]:
    return [each for command in commands if isinstance(command, Abort) for each in command.requests]


def batch_of(commands: Iterable[Command]) -> Batch:
    (batch,) = [command.batch for command in commands if isinstance(command, RoundComplete)]
    return batch


def test_a_prompt_is_done_at_its_first_rewarded_responses_and_the_round_at_its_first_prompts() -> None:
    batcher = started()
    assert generate(batcher, 0, 0, 1, 2) == []
    assert reward(batcher, 0, 2) == []
    assert aborted(reward(batcher, 0, 0)) == [request(0, 1)]
    commands = finish(batcher, 2, 1, 2)
    assert aborted(commands) == [request(2, 0), request(1, 0), request(1, 1), request(1, 2)]
    batch = batch_of(commands)
    assert (batch.round, batch.kind) == (1, RoundKind.SHORT)
    assert [each.prompt for each in batch.prompts] == [prompt(0), prompt(2)]
    assert [r.request.sample for each in batch.prompts for r in each.responses] == [0, 2, 1, 2]
    assert batch.deferred == (prompt(1),)
    assert (batch.aborted, batch.failed, batch.wasted_tokens) == (5, 0, 10)
    assert batcher.accounts() == {0: Account(drawn=3, trained=2)}


def test_where_generation_decides_a_slow_reward_does_not() -> None:
    batcher = started(replace(TWO_OF_THREE, race=Race.GENERATED))
    assert aborted(generate(batcher, 0, 0, 1)) == [request(0, 2)]
    assert generate(batcher, 1, 2) == []
    seated = generate(batcher, 1, 0)
    assert aborted(seated) == [request(1, 1), request(2, 0), request(2, 1), request(2, 2)]
    assert reward(batcher, 1, 0, 2) == []
    batch = batch_of(reward(batcher, 0, 0, 1))
    assert [each.prompt for each in batch.prompts] == [prompt(0), prompt(1)]
    assert batch.deferred == (prompt(2),)


def test_where_rewards_decide_the_same_events_have_other_winners() -> None:
    batcher = started()
    for identity in (0, 1, 2):
        assert generate(batcher, identity, 0, 1) == []
    reward(batcher, 1, 0, 1)
    assert [each.prompt for each in batch_of(reward(batcher, 2, 0, 1)).prompts] == [prompt(1), prompt(2)]


def test_where_generation_decides_a_filter_lets_the_others_run_until_the_places_are_sure() -> None:
    batcher = started(replace(TWO_OF_THREE, race=Race.GENERATED), some_reward)
    generate(batcher, 0, 0, 1)
    assert aborted(generate(batcher, 1, 0, 1)) == [request(1, 2)]
    generate(batcher, 2, 0, 1)
    assert reward(batcher, 2, 0, 1) == []
    assert reward(batcher, 1, 0, 1) == []
    batch = batch_of(reward(batcher, 0, 0, 1, of=0.0))
    assert [each.prompt for each in batch.prompts] == [prompt(1), prompt(2)]
    assert batch.filtered == (prompt(0),)
    assert batch.deferred == ()


def test_where_generation_decides_a_failed_reward_gives_the_place_back_to_the_race() -> None:
    batcher = started(replace(TWO_OF_THREE, race=Race.GENERATED), some_reward)
    generate(batcher, 0, 0, 1)
    generate(batcher, 1, 0, 1)
    (relaunched,) = batcher.handle(ResponseFailed(request(0, 1), "sandbox"))
    assert relaunched == Launch(request(0, 4))
    reward(batcher, 1, 0, 1)
    batch = batch_of(finish(batcher, 2, 0, 1))
    assert [each.prompt for each in batch.prompts] == [prompt(1), prompt(2)]
    assert batch.deferred == (prompt(0),)


def test_where_generation_decides_a_response_without_a_reward_is_generated_no_more() -> None:
    batcher = started(replace(TWO_OF_THREE, race=Race.GENERATED))
    assert generate(batcher, 0, 0) == []
    assert batcher.handle(ResponseFailed(request(0, 0), "sandbox")) == ()  # the two that still run are enough
    assert generate(batcher, 0, 1) == []
    assert generate(batcher, 0, 2) == []
    generate(batcher, 1, 0, 1)
    reward(batcher, 1, 0, 1)
    (trained, _) = batch_of(reward(batcher, 0, 1, 2)).prompts
    assert [each.request.sample for each in trained.responses] == [1, 2]


def test_a_reserve_takes_the_place_of_a_failed_reward_at_once() -> None:
    batcher = started(Batching(1, 1, 2.0, 1.0, Race.GENERATED), some_reward)
    generate(batcher, 0, 0)
    assert finish(batcher, 1, 0) == []
    commands = batcher.handle(ResponseFailed(request(0), "sandbox"))
    assert not any(isinstance(command, Launch) for command in commands)
    batch = batch_of(commands)
    assert [each.prompt for each in batch.prompts] == [prompt(1)]
    assert batch.deferred == (prompt(0),)


def test_simultaneous_ends_are_told_apart_by_epoch_and_id_and_sample() -> None:
    batcher = started()
    events: list[Event] = [ResponseGenerated(request(i, s), 5) for i in (2, 1, 0) for s in (2, 1, 0)]
    events += [ResponseRewarded(request(i, s), 1.0) for i in (2, 1, 0) for s in (2, 1, 0)]
    batch = batch_of(batcher.handle(*events))
    assert [r.request for each in batch.prompts for r in each.responses] == [
        request(0, 0),
        request(0, 1),
        request(1, 0),
        request(1, 1),
    ]
    assert batch.deferred == (prompt(2),)


def test_a_reward_of_zero_is_trained_a_failure_is_launched_again_and_what_was_aborted_is_neither() -> None:
    batcher = started()
    assert batcher.handle(ResponseFailed(request(0, 0), "engine", 7)) == ()  # two of three are enough
    generate(batcher, 0, 1, tokens=3)
    assert batcher.handle(ResponseFailed(request(0, 1), "sandbox", 3)) == (Launch(request(0, 4)),)
    commands = finish(batcher, 0, 2, 4, of=0.0)
    assert aborted(commands) == []
    batch = batch_of(finish(batcher, 1, 0, 1))
    assert [response.reward for response in batch.prompts[0].responses] == [0.0, 0.0]
    assert (batch.failed, batch.aborted) == (2, 1 + 3)
    assert batch.failed_prompts == ()
    assert batch.wasted_tokens == 7 + 3
    assert batch.deferred == (prompt(2),)


def test_a_prompt_that_fails_too_often_is_given_up_and_replaced_only_where_it_is_missed() -> None:
    batcher = started()
    fail = [request(0, 0), request(0, 1), request(0, 4)]
    commands = [command for each in fail for command in batcher.handle(ResponseFailed(each, f"lost {each.sample}"))]
    assert aborted(commands) == [request(0, 2)]
    assert not any(isinstance(command, Draw) for command in commands)  # two still race for two places
    fail = [request(1, 0), request(1, 1), request(1, 4)]
    commands = [command for each in fail for command in batcher.handle(ResponseFailed(each, "lost"))]
    assert commands[-1] == Draw(1, "")
    launched = batcher.handle(PromptDrawn(prompt(3)))
    assert launched == tuple(Launch(request(3, sample)) for sample in range(3))
    finish(batcher, 2, 0, 1)
    batch = batch_of(finish(batcher, 3, 0, 1))
    assert [(each.prompt, each.why) for each in batch.failed_prompts] == [(prompt(0), "lost 4"), (prompt(1), "lost")]
    assert batcher.accounts() == {0: Account(drawn=4, trained=2, failed=2)}


def test_a_refused_prompt_is_neither_trained_nor_queued() -> None:
    batcher = started(keep=some_reward)
    assert not any(isinstance(command, Draw) for command in finish(batcher, 0, 0, 1, of=0.0))
    assert finish(batcher, 1, 0, 1, of=0.0)[-1] == Draw(1, "")
    batcher.handle(PromptDrawn(prompt(3)))
    finish(batcher, 2, 0, 1)
    batch = batch_of(finish(batcher, 3, 0, 1))
    assert batch.filtered == (prompt(0), prompt(1))
    assert batcher.queued == 0
    assert batcher.accounts() == {0: Account(drawn=4, trained=2, filtered=2)}


def test_a_filter_is_given_the_very_responses_that_would_be_trained() -> None:
    asked: list[tuple[Response, ...]] = []

    def keep(responses: tuple[Response, ...]) -> bool:
        asked.append(responses)
        return all(each.tokens < 50 for each in responses)

    batcher = started(keep=keep)
    generate(batcher, 0, 2, tokens=60)
    assert aborted(reward(batcher, 0, 2)) == []
    finish(batcher, 0, 0)
    assert asked == [(Response(request(0, 0), 10, 1.0), Response(request(0, 2), 60, 1.0))]
    assert batcher.state()["round"]["runs"][0]["outcome"] == "filtered"


@pytest.mark.parametrize("most", [0, 1, 3])
def test_where_nothing_is_worth_training_a_round_filters_so_many_and_then_takes_what_comes(most: int) -> None:
    batcher = started(replace(TWO_OF_THREE, most_filtered=most), keep=some_reward)
    drawn, batch = 3, None
    for identity in range(2 * most + 2):
        for command in finish(batcher, identity, 0, 1, of=0.0):
            if isinstance(command, Draw):
                batcher.handle(*(PromptDrawn(prompt(drawn + place)) for place in range(command.count)))
                drawn += command.count
            elif isinstance(command, RoundComplete):
                batch = command.batch
        batcher = TailBatcher.from_state(replace(TWO_OF_THREE, most_filtered=most), batcher.state(), some_reward)
        assert (batch is not None) == (identity == 2 * most + 1)
    assert batch is not None
    assert len(batch.filtered) == 2 * most
    assert [each.prompt for each in batch.prompts] == [prompt(2 * most), prompt(2 * most + 1)]


def test_prompts_that_come_after_the_round_are_the_first_of_the_next() -> None:
    batcher = TailBatcher(TWO_OF_THREE)
    assert batcher.handle(RoundStarted()) == (Draw(3, ""),)
    batcher.handle(PromptDrawn(prompt(0)), PromptDrawn(prompt(1)))
    finish(batcher, 0, 0, 1)
    batch_of(finish(batcher, 1, 0, 1))
    assert batcher.handle(PromptDrawn(prompt(2))) == ()
    *launched, draw = batcher.handle(RoundStarted())
    assert launched == [Launch(request(2, sample, 2)) for sample in range(3)]
    assert draw == Draw(2, "")


def test_what_the_next_round_lacks_is_not_asked_for_twice() -> None:
    batcher = TailBatcher(TWO_OF_THREE)
    batcher.handle(RoundStarted())
    batcher.handle(PromptDrawn(prompt(0)), PromptDrawn(prompt(1)))
    finish(batcher, 0, 0, 1)
    batch_of(finish(batcher, 1, 0, 1))
    assert batcher.handle(RoundStarted()) == (Draw(2, ""),)  # one is on its way


def test_late_words_decide_nothing_but_their_tokens_are_waste() -> None:
    batcher = started()
    finish(batcher, 0, 0, 1)
    first = batch_of(finish(batcher, 1, 0, 1))
    assert first.wasted_tokens == 0
    assert batcher.handle(ResponseAborted(request(2, 0), 100)) == ()
    assert batcher.handle(ResponseAborted(request(2, 0), 100)) == ()
    assert batcher.handle(ResponseGenerated(request(2, 1), 20)) == ()
    assert batcher.handle(ResponseRewarded(request(2, 1), 1.0)) == ()
    assert batcher.handle(ResponseFailed(request(2, 2), "late", 3)) == ()
    batcher.handle(RoundStarted())
    batcher.handle(*(PromptDrawn(prompt(identity)) for identity in (3, 4, 5)))
    for identity in (3, 4):
        for sample in (0, 1):
            batcher.handle(ResponseGenerated(request(identity, sample, 2), 1))
            commands = batcher.handle(ResponseRewarded(request(identity, sample, 2), 1.0))
    assert batch_of(commands).wasted_tokens == 123


def test_a_domain_that_has_ended_makes_its_share_smaller_and_not_the_others() -> None:
    batcher = TailBatcher(Batching(3, 1, 1.0, 1.0, quotas={"code": 2, "math": 1}))
    assert batcher.handle(RoundStarted()) == (Draw(2, "code"), Draw(1, "math"))
    batcher.handle(PromptDrawn(Prompt(0, 0, "code")), DataEnded("code"), PromptDrawn(Prompt(0, "x", "math")))
    for each in (Request(1, Prompt(0, 0, "code"), 0), Request(1, Prompt(0, "x", "math"), 0)):
        batcher.handle(ResponseGenerated(each, 1))
        commands = batcher.handle(ResponseRewarded(each, 1.0))
    batch = batch_of(commands)
    assert [each.prompt.domain for each in batch.prompts] == ["code", "math"]
    assert not batch.is_last
    assert batcher.handle(RoundStarted()) == (Draw(1, "math"),)
    assert batch_of(batcher.handle(DataEnded("math"))).is_last


def test_a_prompt_that_came_too_late_for_its_round_is_trained_though_the_data_have_ended() -> None:
    batcher = TailBatcher(Batching(2, 1, 2.0, 1.0, quotas={"code": 1, "math": 1}))
    assert batcher.handle(RoundStarted()) == (Draw(2, "code"), Draw(2, "math"))

    def play(request: Request) -> tuple[Command, ...]:
        batcher.handle(ResponseGenerated(request, 1))
        return batcher.handle(ResponseRewarded(request, 1.0))

    first, late, other = Prompt(0, 0, "code"), Prompt(0, 1, "code"), Prompt(0, 0, "math")
    batcher.handle(PromptDrawn(first), PromptDrawn(other))
    assert play(Request(1, first, 0)) == ()
    assert batcher.handle(PromptDrawn(late), DataEnded("code"), DataEnded("math")) == ()
    assert not batch_of(play(Request(1, other, 0))).is_last
    assert batcher.handle(RoundStarted()) == (Launch(Request(2, late, 0)),)
    last = batch_of(play(Request(2, late, 0)))
    assert last.is_last
    assert [each.prompt for each in last.prompts] == [late]


# -- what is illegal changes nothing -----------------------------------------------------------------------------------


def halfway() -> TailBatcher:
    """Prompt 0 has one response rewarded, one failed and one generated; prompt 1 is running, prompt 2 on its way."""
    batcher = TailBatcher(replace(TWO_OF_THREE, responses=3, eta_responses=1.0))
    batcher.handle(RoundStarted())
    batcher.handle(PromptDrawn(prompt(0)), PromptDrawn(prompt(1)))
    finish(batcher, 0, 0)
    batcher.handle(ResponseFailed(request(0, 1), "engine"))
    generate(batcher, 0, 2)
    return batcher


ILLEGAL: dict[str, list[Event]] = {
    "is not complete": [RoundStarted()],
    "was drawn before": [PromptDrawn(prompt(1))],
    "no more prompts were asked for": [PromptDrawn(prompt(2)), PromptDrawn(prompt(3))],
    "a whole number or a string": [PromptDrawn(Prompt(0, 1.5))],  # type: ignore[arg-type]
    "whole number from 0": [PromptDrawn(prompt(2, -1))],
    "there is no domain 'code'": [DataEnded("code")],
    "sample 9 of prompt 0 in epoch 0, round 1 was never launched": [ResponseGenerated(request(0, 9), 1)],
    "prompt 5 in epoch 0, round 1 was never launched": [ResponseGenerated(request(5), 1)],
    "round 2 was never launched": [ResponseGenerated(request(0, 0, 2), 1)],
    "round 0 was never launched": [ResponseGenerated(request(0, 0, 0), 1)],
    "ResponseGenerated: sample 0 of prompt 0 in epoch 0, round 1 is over": [ResponseGenerated(request(0, 0), 1)],
    "ResponseGenerated: sample 2 of prompt 0 in epoch 0, round 1 is generated": [ResponseGenerated(request(0, 2), 1)],
    "ResponseRewarded: sample 0 of prompt 1 in epoch 0, round 1 is generating": [ResponseRewarded(request(1), 1.0)],
    "ResponseRewarded: sample 1 of prompt 0": [ResponseRewarded(request(0, 1), 1.0)],
    "ResponseFailed: sample 1 of prompt 0": [ResponseFailed(request(0, 1), "again")],
    "ResponseAborted: sample 0 of prompt 1": [ResponseAborted(request(1), 1)],
    "a length of -1 tokens": [ResponseGenerated(request(1), -1)],
    "a length of nan tokens": [ResponseGenerated(request(1), float("nan"))],  # type: ignore[arg-type]
    "a length of 7.0 tokens": [ResponseGenerated(request(1), 7.0)],  # type: ignore[arg-type]
    "a length of 0.5 tokens": [ResponseFailed(request(1), "engine", 0.5)],  # type: ignore[arg-type]
    "a reward of nan": [ResponseRewarded(request(0, 2), float("nan"))],
    "a reward of None": [ResponseRewarded(request(0, 2), None)],  # type: ignore[arg-type]
    "a reward of '1'": [ResponseRewarded(request(0, 2), "1")],  # type: ignore[arg-type]
    "a reward of array(1.)": [ResponseRewarded(request(0, 2), np.array(1.0))],  # type: ignore[arg-type]
    "larger than any float": [ResponseRewarded(request(0, 2), 10**5000)],
    "is told twice": [DataEnded(), DataEnded()],
    "is generated": [ResponseGenerated(request(1), 1), ResponseGenerated(request(1), 2)],
    "ResponseFailed: sample 2": [ResponseRewarded(request(0, 2), 1.0), ResponseFailed(request(0, 2), "both")],
    "'tick' is not an event": ["tick"],  # type: ignore[list-item]
}


@pytest.mark.parametrize(("why", "events"), ILLEGAL.items(), ids=ILLEGAL)
@pytest.mark.parametrize("beside", [(), (ResponseGenerated(request(1, 1), 5), ResponseGenerated(request(1, 2), 5))])
def test_an_illegal_event_raises_and_nothing_of_its_call_is_done(
    why: str, events: list[Event], beside: tuple[Event, ...]
) -> None:
    batcher = halfway()
    before = batcher.state()
    with pytest.raises(IllegalEvent) as refusal:
        batcher.handle(*beside, *events)
    assert why in str(refusal.value)
    assert batcher.state() == before


@pytest.mark.parametrize("one", [1, True, np.float32(1), np.int64(1), Fraction(1)], ids=repr)
def test_a_reward_is_any_real_number_and_is_kept_as_a_float(one: float) -> None:
    batcher = started()
    generate(batcher, 0, 0)
    reward(batcher, 0, 0, of=one)
    kept = batcher.state()
    twin = TailBatcher.from_state(TWO_OF_THREE, json.loads(json.dumps(kept)))
    assert twin.state() == kept
    told = batch_of(finish(batcher, 0, 1) + finish(batcher, 1, 0, 1)).prompts[0].responses
    assert [repr(each.reward) for each in told] == ["1.0", "1.0"]


def test_data_end_once_and_epochs_do_not_come_back() -> None:
    batcher = TailBatcher(Batching(5, 1, 1.0, 1.0))
    batcher.handle(RoundStarted())
    for epoch in (5, 4, 6):
        batcher.handle(PromptDrawn(prompt(0, epoch)))
    with pytest.raises(IllegalEvent, match="drawn before"):
        batcher.handle(PromptDrawn(prompt(0, epoch=5)))
    with pytest.raises(IllegalEvent, match="epoch 6 has begun"):
        batcher.handle(PromptDrawn(prompt(1, epoch=4)))
    batcher.handle(DataEnded())
    with pytest.raises(IllegalEvent, match="had ended before"):
        batcher.handle(DataEnded())
    with pytest.raises(IllegalEvent, match="no more prompts"):
        batcher.handle(PromptDrawn(prompt(1, epoch=6)))


def test_an_id_that_is_drawn_again_in_the_next_epoch_while_it_waits_is_another_prompt() -> None:
    batcher = started()
    finish(batcher, 0, 0, 1)
    batch_of(finish(batcher, 1, 0, 1))
    assert batcher.queued == 1
    batcher.handle(RoundStarted())
    launched = batcher.handle(*(PromptDrawn(prompt(identity, epoch=1)) for identity in (0, 1, 2)))
    assert Launch(Request(2, prompt(2, epoch=1), 0)) in launched
    assert batcher.accounts() == {0: Account(drawn=3, trained=2), 1: Account(drawn=3)}


def test_data_that_end_between_rounds_are_not_asked_for_again() -> None:
    batcher = started()
    finish(batcher, 0, 0, 1)
    batch_of(finish(batcher, 1, 0, 1))
    assert batcher.handle(DataEnded()) == ()
    assert batcher.handle(RoundStarted()) == (Launch(request(2, 0, 2)), Launch(request(2, 1, 2)))
    for sample in (0, 1):
        batcher.handle(ResponseGenerated(request(2, sample, 2), 1))
        commands = batcher.handle(ResponseRewarded(request(2, sample, 2), 1.0))
    batch = batch_of(commands)
    assert (batch.kind, len(batch.prompts), batch.is_last) == (RoundKind.LONG, 1, True)


@pytest.mark.parametrize("left", [0, -1, True, 1.0, "2"])
def test_rounds_that_are_left_are_a_whole_number_with_the_one_that_starts(left: Any) -> None:
    batcher = TailBatcher(TWO_OF_THREE)
    with pytest.raises(IllegalEvent, match="rounds_left is"):
        batcher.handle(RoundStarted(left))
    assert batcher.handle(RoundStarted(1)) == (Draw(2, ""),)


def test_a_round_is_started_once_however_long_the_job_is_said_to_be() -> None:
    batcher = TailBatcher(TWO_OF_THREE)
    with pytest.raises(IllegalEvent, match="a round is started twice"):
        batcher.handle(RoundStarted(2), RoundStarted(3))


def test_requests_and_prompts_have_an_order_whatever_their_ids_are() -> None:
    ids: list[int | str] = ["b", 2, "a", 10]
    ordered = [2, 10, "a", "b"]
    assert [each.id for each in sorted(Prompt(0, identity) for identity in ids)] == ordered
    assert [each.prompt.id for each in sorted(Request(1, Prompt(0, identity), 0) for identity in ids)] == ordered


def test_nothing_at_all_is_nothing() -> None:
    assert started().handle() == ()

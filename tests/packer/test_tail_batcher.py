"""Whatever lengths, failures and rewards come: every round ends with the batch wanted, and every prompt ends once."""

import json
from collections import Counter
from dataclasses import replace
from itertools import chain, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.packer import (
    Account,
    AdaptiveEta,
    Batch,
    Batching,
    Command,
    DataEnded,
    Draw,
    FixedEta,
    KnownLong,
    Launch,
    Prompt,
    PromptDrawn,
    Race,
    Request,
    ResponseAborted,
    ResponseFailed,
    ResponseGenerated,
    ResponseRewarded,
    RoundComplete,
    RoundKind,
    RoundStarted,
    TailBatcher,
    TrainedPrompt,
)
from rollmux.packer.long_queue import Deferred, LongQueue
from tests.packer.playing import Player, Setting, batchings, settings_of_jobs
from tests.thorough import examples

PLAYS = settings(max_examples=examples(60))


def quotas_met(batch: Batch, batching: Batching) -> bool:
    found = Counter(each.prompt.domain for each in batch.prompts)
    return dict(found) == dict(batching.lanes)


def drawn(player: Player) -> list[Prompt]:
    events = chain.from_iterable(events for events, _ in player.told)
    return [event.prompt for event in events if isinstance(event, PromptDrawn)]


@PLAYS
@given(settings_of_jobs(ends=None))
def test_to_the_end_of_the_data_every_prompt_is_trained_filtered_or_failed_exactly_once(setting: Setting) -> None:
    player = Player(setting).play()
    ends = Counter(
        prompt
        for batch in player.batches
        for prompt in (
            *(each.prompt for each in batch.prompts),
            *batch.filtered,
            *(each.prompt for each in batch.failed_prompts),
        )
    )
    assert ends == Counter(drawn(player))
    assert len(ends) == setting.data * setting.epochs * len(setting.domains)
    assert player.batcher.queued == 0


@PLAYS
@given(settings_of_jobs())
def test_the_accounts_of_each_epoch_say_what_the_batches_say(setting: Setting) -> None:
    player = Player(setting)
    booked: dict[str, Counter[int]] = {name: Counter() for name in ("trained", "filtered", "failed")}
    for rounds in range(1, 6):
        player.rounds = rounds
        player.play()
        if len(player.batches) < rounds:
            break
        batch = player.batches[-1]
        booked["trained"].update(each.prompt.epoch for each in batch.prompts)
        booked["filtered"].update(prompt.epoch for prompt in batch.filtered)
        booked["failed"].update(each.prompt.epoch for each in batch.failed_prompts)
        epochs = Counter(prompt.epoch for prompt in drawn(player))
        expected = {e: Account(n, *(booked[name][e] for name in booked)) for e, n in epochs.items()}
        assert player.batcher.accounts() == expected
        open_prompts = sum(account.waiting for account in expected.values())
        assert open_prompts >= player.batcher.queued


def waiting(batcher: TailBatcher) -> int:
    """Prompts that are not at their end, or are still to come."""
    to_come: int = sum(batcher.state()["drawing"].values())
    return to_come + sum(account.waiting for account in batcher.accounts().values())


@settings(max_examples=examples(600))
@given(
    settings_of_jobs(
        data=10**6, epochs=1, ends=st.integers(1, 12), slow_source=st.sampled_from((0, 3, 12)), adapts=st.booleans()
    ),
    st.integers(-4, 4),
)
def test_a_job_that_says_how_long_it_is_draws_no_more_than_it_trains(setting: Setting, longer: int) -> None:
    """Also if it is told in between that it is longer. If shorter, its batches are whole all the same."""

    def listen(player: Player) -> None:
        _, commands = player.told[-1] if player.told else ((), ())
        if longer >= 0 and player.setting.ends is not None and any(isinstance(each, Draw) for each in commands):
            assert waiting(player.batcher) <= setting.batching.prompts * (player.setting.ends - len(player.batches))

    player = Player(setting, between=listen)
    assert setting.ends is not None
    for ends in (setting.ends, max(1, setting.ends + longer)):
        player.setting = replace(setting, ends=ends)
        player.rounds = max(1, ends // 2)
        player.play()
    player.rounds = 100
    player.play()
    assert all(quotas_met(batch, setting.batching) for batch in player.batches)
    assert longer < 0 or waiting(player.batcher) == 0


@settings(max_examples=examples(200))
@given(settings_of_jobs(ends=st.integers(1, 12), slow_source=st.sampled_from((0, 3, 12)), adapts=st.booleans()))
def test_a_job_that_says_how_long_it_is_trains_all_that_its_rounds_have_places_for_and_its_data_give(
    setting: Setting,
) -> None:
    player = Player(setting).play()
    assert setting.ends is not None
    trained = Counter(each.prompt.domain for batch in player.batches for each in batch.prompts)
    gone = [p for batch in player.batches for p in (*batch.filtered, *(each.prompt for each in batch.failed_prompts))]
    for domain, quota in setting.batching.lanes:
        left = setting.data * setting.epochs - sum(prompt.domain == domain for prompt in gone)
        assert trained[domain] == min(quota * setting.ends, left)
    assert waiting(player.batcher) == 0


def test_a_job_of_one_round_launches_nobody_beyond_its_want_and_one_of_two_has_a_surplus_that_it_trains() -> None:
    batching = Batching(4, 1, 1.5, 1.0)
    one, two, three = (Player(Setting(batching, data=100, ends=ends)).play() for ends in (1, 2, 3))
    kinds = [[batch.kind for batch in player.batches] for player in (one, two, three)]
    short, mixed = RoundKind.SHORT, RoundKind.MIXED
    assert kinds == [[short], [short, mixed], [short, short, RoundKind.LONG]]
    assert [len(drawn(player)) for player in (one, two, three)] == [4, 8, 12]
    assert [len(player.batches[0].deferred) for player in (one, two, three)] == [0, 2, 2]


def test_a_round_of_a_job_that_is_shortened_draws_on_where_only_those_are_left_that_it_has_put_off_itself() -> None:
    batcher = TailBatcher(Batching(2, 1, 3.0, 1.0, Race.GENERATED, retries=0))
    prompts = [Prompt(0, number) for number in range(9)]
    batcher.handle(RoundStarted(rounds_left=9))
    batcher.handle(*map(PromptDrawn, prompts[:2]))
    batcher.handle(*(ResponseGenerated(Request(1, prompt, 0), 5) for prompt in prompts[:2]))
    batcher.handle(*(ResponseRewarded(Request(1, prompt, 0), 1.0) for prompt in prompts[:2]))
    batcher.handle(*map(PromptDrawn, prompts[2:6]))
    batcher.handle(RoundStarted(rounds_left=1))
    batcher.handle(*(ResponseGenerated(Request(2, prompt, 0), 5) for prompt in prompts[2:4]))
    assert batcher.queued == 2
    failed = [ResponseFailed(Request(2, prompt, 0), "reward") for prompt in prompts[2:4]]
    assert batcher.handle(*failed) == (Draw(1, ""), Draw(1, ""))
    first, *others = (Request(2, prompt, 0) for prompt in prompts[6:])
    assert batcher.handle(PromptDrawn(first.prompt)) == (Launch(first),)
    assert batcher.handle(ResponseFailed(first, "engine")) == (Draw(1, ""),), "and on"
    for each in others:
        assert batcher.handle(PromptDrawn(each.prompt)) == (Launch(each),)


def test_a_job_that_is_ordered_to_run_for_longer_draws_on() -> None:
    player = Player(Setting(Batching(4, 1, 1.5, 1.0), data=100, ends=2)).play()
    player.setting = replace(player.setting, ends=4)
    player.play()
    assert [len(batch.prompts) for batch in player.batches] == [4] * 4
    assert len(drawn(player)) == 16


@PLAYS
@given(settings_of_jobs(data=60, epochs=1))
def test_while_there_are_data_every_batch_meets_its_quotas_with_exactly_the_responses_wanted(setting: Setting) -> None:
    player = Player(setting, rounds=12)
    player.play()
    for batch in player.batches:
        if not player.ended:
            assert quotas_met(batch, setting.batching)
        for each in batch.prompts:
            assert len({r.request for r in each.responses}) == setting.batching.responses
            for response in each.responses:
                assert (response.request.round, response.request.prompt) == (batch.round, each.prompt)
                assert response.request in player.rewarded_at
                assert response.tokens == setting.length(response.request)


@settings(max_examples=examples(200))
@given(settings_of_jobs())
def test_what_is_sure_while_a_round_runs_is_in_its_batch_and_stays_as_it_is(setting: Setting) -> None:
    said: dict[int, list[tuple[TrainedPrompt, ...]]] = {}

    def listen(player: Player) -> None:
        said.setdefault(len(player.batches), []).append(player.batcher.sure())

    player = Player(setting, between=listen).play()
    for place, batch in enumerate(player.batches):
        for before, after in pairwise([*said[place], batch.prompts]):
            assert set(before) <= set(after)
    assert player.batcher.sure() == ()


def test_a_prompt_with_a_place_and_its_rewards_is_sure_before_the_others_are_done() -> None:
    batcher = TailBatcher(Batching(2, 1, eta_prompts=1.5, race=Race.NONE))
    first, second, third = (Prompt(0, number) for number in range(3))
    batcher.handle(RoundStarted())
    batcher.handle(*map(PromptDrawn, (first, second, third)))
    batcher.handle(ResponseGenerated(Request(1, second, 0), 5))
    assert not batcher.sure()
    batcher.handle(ResponseRewarded(Request(1, second, 0), 1.0))
    assert [each.prompt for each in batcher.sure()] == [second]
    assert not batcher.sure([second])
    batcher.handle(ResponseGenerated(Request(1, third, 0), 7))
    (complete,) = batcher.handle(ResponseRewarded(Request(1, third, 0), 0.0))[-1:]
    assert isinstance(complete, RoundComplete)
    assert [each.prompt for each in complete.batch.prompts] == [second, third]
    assert not batcher.sure()


@PLAYS
@given(settings_of_jobs(data=100, epochs=1))
def test_nobody_is_deferred_longer_than_the_bound_however_many_each_round_defers(setting: Setting) -> None:
    since: dict[Prompt, int] = {}
    for batch in Player(setting, rounds=15).play().batches:
        assert all(batch.round - number <= setting.batching.max_wait_rounds for number in since.values())
        for prompt, waited in [(each.prompt, each.waited) for each in batch.prompts]:
            assert batch.round - since.pop(prompt, batch.round) == waited
        for prompt in (*batch.filtered, *(each.prompt for each in batch.failed_prompts)):
            since.pop(prompt, None)
        assert not since.keys() & {*batch.deferred, *batch.diverted}
        assert batch.kind is not RoundKind.LONG or not batch.deferred, "no more run than are wanted"
        since.update(dict.fromkeys((*batch.deferred, *batch.diverted), batch.round))


@PLAYS
@given(settings_of_jobs(data=40))
def test_between_rounds_it_is_known_how_the_next_one_starts(setting: Setting) -> None:
    player = Player(setting)
    for rounds in range(1, 10):
        expected = player.batcher.next_kind
        player.rounds = rounds
        batch = player.play().batches[-1]
        if batch.is_last or len(player.batches) == setting.ends:
            break
        assert batch.kind in {expected, RoundKind.MIXED if expected is RoundKind.SHORT else expected}


@PLAYS
@given(settings_of_jobs(batchings(races=(Race.NONE,)), fails=0.0, refused=0.0, ends=None))
def test_without_a_race_of_responses_what_is_trained_is_the_data(setting: Setting) -> None:
    player = Player(setting).play()
    trained = [each for batch in player.batches for each in batch.prompts]
    assert sorted(each.prompt for each in trained) == [
        Prompt(epoch, identity, domain)
        for epoch in range(setting.epochs)
        for domain in setting.domains
        for identity in range(setting.data)
    ]
    samples = list(range(setting.batching.responses))
    assert all([response.request.sample for response in each.responses] == samples for each in trained)
    report = player.batcher.bias.report()
    assert report.overall.offered == report.overall.trained
    assert report.overall.wasserstein == report.overall.kolmogorov_smirnov == 0.0


# -- who wins ----------------------------------------------------------------------------------------------------------


def done_at(player: Player, batching: Batching, batch: Batch, prompt: Prompt) -> int:
    """When this prompt's race was won, from what the world knows: without failures, and whoever was aborted."""
    width = int(batching.responses * batching.eta_responses) if batching.race is not Race.NONE else batching.responses
    times = []
    for request in player.launched:
        if (request.round, request.prompt) == (batch.round, prompt):
            assert request.sample < width
            ended = player.generated_at[request]
            if batching.race is not Race.GENERATED:
                ended += player.setting.random("reward", request).choice((0, 1, 1, 6))
            times.append(ended)
    assert len(times) == width
    return sorted(times)[batching.responses - 1]


@PLAYS
@given(settings_of_jobs(data=100, epochs=1, fails=0.0, refused=0.0, slow_source=0, knows_long=False))
def test_a_short_round_trains_the_prompts_that_are_done_first(setting: Setting) -> None:
    player = Player(setting, rounds=8).play()
    for batch in player.batches:
        if batch.kind is RoundKind.SHORT:
            for domain, _ in setting.batching.lanes:
                of_domain = {each.prompt for each in batch.prompts if each.prompt.domain == domain}
                lost = {prompt for prompt in batch.deferred if prompt.domain == domain}
                times = {p: done_at(player, setting.batching, batch, p) for p in of_domain | lost}
                last = max(times[prompt] for prompt in of_domain)
                assert all(times[prompt] >= last for prompt in lost)


@PLAYS
@given(settings_of_jobs(batchings(races=(Race.REWARDED, Race.GENERATED)), fails=0.0, refused=0.0, data=40))
def test_the_responses_that_are_done_first_win(setting: Setting) -> None:
    player = Player(setting, rounds=8).play()
    by_generation = setting.batching.race is Race.GENERATED
    times = player.generated_at if by_generation else player.rewarded_at
    for batch in player.batches:
        for each in batch.prompts:
            winners = {response.request for response in each.responses}
            last = max(times[request] for request in winners)
            others = [r for r in player.launched if (r.round, r.prompt) == (batch.round, each.prompt)]
            assert all(times.get(request, last) >= last for request in others if request not in winners)


@pytest.mark.parametrize("quotas", [{}, {"a": 42, "b": 42, "c": 44}])
def test_at_a_factor_of_five_quarters_four_short_rounds_lead_to_a_long_one(quotas: dict[str, int]) -> None:
    batching = Batching(128, 2, 1.25, 1.0, quotas=quotas, max_wait_rounds=8)
    batches = Player(Setting(batching, data=4000), rounds=12).play().batches
    longs = [batch.round for batch in batches if batch.kind is RoundKind.LONG]
    assert longs == [5, 10]
    if quotas:
        assert all(quotas_met(batch, batching) for batch in batches)


@pytest.mark.parametrize(
    "quotas", [{"a": 42, "b": 42, "c": 44}, {"a": 10, "b": 6}, {"a": 3, "b": 3, "c": 2}, dict.fromkeys("abcdefgh", 1)]
)
def test_however_the_surplus_divides_no_domain_is_ahead_of_its_quota_for_long(quotas: dict[str, int]) -> None:
    batching = Batching(sum(quotas.values()), 1, 1.25, 1.0, quotas=quotas)
    batches = Player(Setting(batching, data=100 * batching.prompts), rounds=40).play().batches
    longs = [batch for batch in batches if batch.kind is RoundKind.LONG]
    assert [batch.round for batch in longs] == list(range(5, 41, 5))
    assert all(prompt.waited for batch in longs for prompt in batch.prompts)


def test_where_the_data_of_a_large_domain_have_ended_a_small_one_gets_none_of_its_surplus() -> None:
    batcher = TailBatcher(Batching(10, 1, 1.1, 1.0, quotas={"a": 1, "b": 9}))
    batcher.handle(DataEnded("b"))
    drawn = [command for command in batcher.handle(RoundStarted()) if isinstance(command, Draw)]
    assert [(command.domain, command.count) for command in drawn] == [("a", 1)]


def test_domains_without_data_take_nothing_of_the_surplus_from_the_others() -> None:
    quotas = dict.fromkeys("abcdefgh", 1)
    batcher = TailBatcher(Batching(8, 1, 1.25, 1.0, quotas=quotas))
    batcher.handle(DataEnded("a"), DataEnded("b"))
    drawn = {command.domain: command.count for command in batcher.handle(RoundStarted()) if isinstance(command, Draw)}
    assert drawn == {"c": 2, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1}  # three quarters of two, without a half


def test_however_many_a_round_defers_long_rounds_bring_the_queue_below_a_batch_first() -> None:
    player = Player(Setting(Batching(6, 2, 3.0, 1.0, max_wait_rounds=2), data=500), rounds=30)
    queued = 0
    for rounds in range(1, 31):
        player.rounds = rounds
        kind = player.play().batches[-1].kind
        assert kind is (RoundKind.LONG if queued >= 6 else RoundKind.SHORT)
        queued = player.batcher.queued
    assert {batch.kind for batch in player.batches} == {RoundKind.SHORT, RoundKind.LONG}


@pytest.mark.parametrize(("surplus", "is_long"), [(10, False), (11, True)])
def test_a_short_round_is_run_as_long_as_those_that_wait_then_fit_into_the_long_rounds_of_their_time(
    surplus: int, is_long: bool
) -> None:
    queue = LongQueue([("", 4)], max_wait=3)
    for number in range(2):
        queue.defer("", Deferred(3, Prompt(0, number)))
    assert queue.must_run(4, {"": surplus}) is is_long  # three rounds of four


def test_a_long_round_that_is_due_is_filled_up_with_fresh_prompts_that_do_not_race() -> None:
    player = Player(Setting(Batching(10, 2, 1.1, 2.0, max_wait_rounds=3), data=500), rounds=4).play()
    *shorts, long = player.batches
    assert [batch.kind for batch in shorts] == [RoundKind.SHORT] * 3
    assert long.kind is RoundKind.LONG
    assert sorted(each.waited for each in long.prompts) == [0] * 7 + [1, 2, 3]
    assert not long.aborted
    assert not long.deferred
    assert all(each.launched == 2 for each in long.prompts)


@pytest.mark.parametrize("race", Race)
def test_factors_too_small_for_one_more_launch_nobody_in_vain(race: Race) -> None:
    batches = Player(Setting(Batching(3, 3, 1.3, 1.3, race), data=30, epochs=1)).play().batches
    assert [len(batch.prompts) for batch in batches] == [3] * 10 + [
        0
    ]  # that there are no more data shows when more are asked for
    assert not any(batch.aborted or batch.wasted_tokens for batch in batches)


def test_the_last_batches_take_the_queue_and_then_what_there_is() -> None:
    player = Player(Setting(Batching(4, 1, 1.5, 1.0), data=13, epochs=1)).play()
    assert [(batch.kind.value, len(batch.prompts), len(batch.deferred)) for batch in player.batches] == [
        ("short", 4, 2),
        ("short", 4, 2),
        ("long", 4, 0),
        ("short", 1, 0),
    ]


def test_a_short_round_whose_data_end_is_filled_from_the_queue() -> None:
    player = Player(Setting(Batching(4, 1, 1.5, 1.0), data=8, epochs=1)).play()
    assert [(batch.kind.value, len(batch.prompts)) for batch in player.batches] == [
        ("short", 4),
        ("mixed", 4),
    ]
    assert sorted(each.waited for each in player.batches[1].prompts) == [0, 0, 1, 1]


# -- simultaneous events, checkpoints ----------------------------------------------------------------------------------


@PLAYS
@given(settings_of_jobs(), st.integers(0, 100))
def test_the_order_of_simultaneous_events_changes_nothing(setting: Setting, seed: int) -> None:
    rng = Random(seed)
    plain = Player(setting, rounds=6).play()
    shuffled = Player(setting, rounds=6, shuffle=lambda events: rng.sample(events, len(events))).play()
    assert [commands for _, commands in shuffled.told] == [commands for _, commands in plain.told]
    assert shuffled.batcher.state() == plain.batcher.state()


@PLAYS
@given(settings_of_jobs(), st.data(), st.booleans(), st.booleans())
def test_a_batcher_restored_at_any_point_goes_on_as_if_nothing_had_been(
    setting: Setting, data: st.DataObject, at_once: bool, adapts: bool
) -> None:
    setting = replace(setting, adapts=adapts)
    plain = Player(setting, rounds=6, at_once=at_once).play()
    restarts = data.draw(st.sets(st.integers(0, len(plain.told) - 1), max_size=4))

    def restart(player: Player) -> None:
        if len(player.told) in restarts:
            text = json.dumps(player.batcher.state())
            player.batcher = setting.batcher(json.loads(text))
            assert json.dumps(player.batcher.state()) == text

    restarted = Player(setting, rounds=6, at_once=at_once, between=restart).play()
    assert restarted.told == plain.told
    assert restarted.batcher.state() == plain.batcher.state()


def test_what_a_batcher_remembers_does_not_grow_with_the_epochs() -> None:
    few, many = (Player(Setting(Batching(4, 1, 1.5, 1.0), data=100, epochs=epochs)).play() for epochs in (3, 9))
    few_bytes, many_bytes = (len(json.dumps(player.batcher.state())) for player in (few, many))
    assert many_bytes < 2 * few_bytes  # a few counts of each epoch are kept


# -- tokens and policies -----------------------------------------------------------------------------------------------


def lengths_told(player: Player, until_the_last_batch: bool = True) -> dict[Request, int]:
    """Every first word of a response's length, not later than one round after its own."""
    told: dict[Request, int] = {}
    number, is_running = 0, False
    ends = (ResponseGenerated, ResponseAborted, ResponseFailed)
    last = max(place for place, (_, commands) in enumerate(player.told) if has_batch(commands))
    for (event,), commands in player.told[: last + 1] if until_the_last_batch else player.told:
        if isinstance(event, RoundStarted):
            number, is_running = number + 1, True
        elif isinstance(event, ends) and event.tokens and event.request.round >= number - is_running:
            told.setdefault(event.request, event.tokens)
        is_running &= not has_batch(commands)
    return told


def has_batch(commands: tuple[Command, ...]) -> bool:
    return any(isinstance(command, RoundComplete) for command in commands)


@PLAYS
@given(settings_of_jobs())
def test_every_token_told_is_trained_or_wasted(setting: Setting) -> None:
    player = Player(setting, at_once=False).play()
    trained = [r for batch in player.batches for each in batch.prompts for r in each.responses]
    wasted = sum(batch.wasted_tokens for batch in player.batches)
    assert wasted == sum(lengths_told(player).values()) - sum(response.tokens for response in trained)


@PLAYS
@given(settings_of_jobs(batchings(races=(Race.REWARDED, Race.GENERATED)), fails=0.0, refused=0.0))
def test_every_known_length_is_offered_once_but_those_of_prompts_that_run_again(setting: Setting) -> None:
    player = Player(setting, at_once=False).play()
    trained_in = {each.prompt: batch.round for batch in player.batches for each in batch.prompts}
    told = lengths_told(player, until_the_last_batch=False)
    offered = [tokens for request, tokens in told.items() if trained_in[request.prompt] == request.round]
    overall = player.batcher.bias.report().overall
    assert overall.trained.responses == len(trained_in) * setting.batching.responses
    assert overall.offered.responses == len(offered)
    assert overall.offered.mean == (sum(offered) / len(offered) if offered else 0.0)


def test_prompts_known_to_be_long_wait_in_the_queue_without_a_race() -> None:
    batching = Batching(4, 1, 1.5, 1.0)
    player = Player(Setting(batching, data=20, epochs=3, knows_long=True, seed=3)).play()
    diverted = [prompt for batch in player.batches for prompt in batch.diverted]
    assert diverted
    assert all(prompt.epoch > 0 for prompt in diverted)
    launched = {(request.round, request.prompt) for request in player.launched}
    for batch in player.batches:
        assert not launched & {(batch.round, prompt) for prompt in batch.diverted}
        assert len(batch.diverted) + len(batch.deferred) <= 2


def test_a_policy_that_asks_for_more_than_the_wait_allows_gets_what_it_allows() -> None:
    batcher = TailBatcher(Batching(2, 1, max_wait_rounds=1), eta=FixedEta(16.0, 1.0), known_long=KnownLong())
    (draw,) = batcher.handle(RoundStarted())
    assert draw.count == 4  # type: ignore[union-attr]


def test_factors_that_adapt_need_no_data() -> None:
    """The batch of a round without data shows nothing, and the next round is asked for nevertheless."""
    batcher = TailBatcher(Batching(2, 1), eta=AdaptiveEta())
    batcher.handle(RoundStarted())
    assert has_batch(batcher.handle(DataEnded()))
    assert batcher.next_kind is RoundKind.LONG
    assert has_batch(batcher.handle(RoundStarted()))
    assert batcher.next_kind is RoundKind.LONG

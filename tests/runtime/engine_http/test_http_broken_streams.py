"""Streams that break, repeat, leave out, miscount and lie: either the response is exact, or it has failed and says why.

Nothing in between: no token twice, none missing, none without its log-probability, none under a wrong version.
"""

from dataclasses import replace
from time import monotonic

import pytest

from rollmux.runtime.engine.http import engine
from rollmux.runtime.engine.http.counter import Counter
from rollmux.runtime.engine.http.wire import Heard
from rollmux.runtime.engine.requests import FinishReason
from tests.runtime.engine_http.fake_machine import greedy
from tests.runtime.engine_http.fake_server import FakeServer
from tests.runtime.engine_http.rigs import BOTH, PATIENT, PROMPT, all_ended, grown, request, rig, run

ANSWER = greedy("base", PROMPT, 12)


@BOTH
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("fault", ["resets", "truncations", "drops", "unavailable"])
def test_a_greedy_response_that_is_cut_goes_on_as_if_nothing_had_been(dialect: str, fault: str, delta: bool) -> None:
    with rig(dialect, cumulative=not delta) as it:
        setattr(it.server.faults, fault, 3)
        ended = run(it.engine, request())
        assert getattr(it.server.faults, fault) <= 0 or fault == "drops"
    assert (ended.reason, ended.response.tokens, len(ended.response.logprobs)) == (FinishReason.LENGTH, ANSWER, 12)


@pytest.mark.parametrize("cuts", [2, 1])
def test_a_request_for_which_the_queue_has_no_room_waits_and_fails_in_the_servers_words(cuts: int) -> None:
    with rig("sglang", replace(PATIENT, cuts=cuts)) as it:
        it.server.faults.counts_no_prompt, it.server.faults.turns_away = True, 2
        ended = run(it.engine, request())
    if cuts == 2:
        assert (ended.reason, ended.response.tokens) == (FinishReason.LENGTH, ANSWER)
    else:
        assert ended.reason is FinishReason.FAILED
        assert "The request queue is full." in ended.why


@BOTH
def test_a_response_that_has_all_its_tokens_is_over_however_often_it_was_cut(dialect: str) -> None:
    with rig(dialect, replace(PATIENT, stall_s=0.3, cuts=0)) as it:
        it.server.faults.ends_apart = True
        ended = run(it.engine, request())
    assert (ended.reason, ended.response.tokens) == (FinishReason.LENGTH, ANSWER)


@BOTH
def test_a_stream_that_falls_silent_is_given_up_and_goes_on(dialect: str) -> None:
    with rig(dialect, replace(PATIENT, stall_s=0.3)) as it:
        it.server.faults.stalls = 1
        ended = run(it.engine, request())
        assert it.server.faults.stalls == 0
    assert (ended.reason, ended.response.tokens) == (FinishReason.LENGTH, ANSWER)


@BOTH
def test_an_owner_who_was_away_finds_nothing_cut(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    away_s = 0.0
    monkeypatch.setattr(engine, "monotonic", lambda: monotonic() + away_s)
    with rig(dialect, replace(PATIENT, inbox=1, wait_s=10.0, cuts=0)) as it:
        for n in range(3):
            it.engine.submit(request(f"r{n}"))
        it.engine.step()
        away_s = 1000.0
        ended = all_ended(it.engine)
    assert {each.reason for each in ended.values()} == {FinishReason.LENGTH}


def test_an_owner_who_is_interrupted_loses_nothing_of_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    hear = Counter.hear

    def interrupted(counter: Counter, heard: Heard, version: int, parking: bool = False) -> None:
        if counter.live["r"].tokens:
            monkeypatch.setattr(Counter, "hear", hear)
            raise KeyboardInterrupt
        hear(counter, heard, version, parking)

    with rig("vllm") as it:
        it.engine.submit(request())
        monkeypatch.setattr(Counter, "hear", interrupted)
        with pytest.raises(KeyboardInterrupt):
            grown(it.engine, 12)
        assert all_ended(it.engine)["r"].response.tokens == greedy("base", PROMPT, 12)
        assert it.engine.gauges().recomputed_tokens == 0


@BOTH
def test_events_that_come_twice_count_once(dialect: str) -> None:
    with rig(dialect) as it:
        it.server.faults.duplicates = True
        ended = run(it.engine, request())
    assert (ended.reason, ended.response.tokens) == (FinishReason.LENGTH, ANSWER)


def test_sampling_that_is_cut_is_exact_with_sglang_and_another_draw_with_vllm() -> None:
    """vLLM counts draws from where a request begins, so with the same seed the first ones would come again."""
    drawn = {}
    for dialect in ("vllm", "sglang"):
        for resets in (0, 1):
            with rig(dialect) as it:
                it.server.faults.resets = resets
                drawn[dialect, resets] = run(it.engine, request(temperature=1.0, seed=7)).response.tokens
                seeds = [body["seed"] for body in it.server.bodies if "seed" in body]
                assert len(set(seeds)) == len(seeds)
    assert drawn["sglang", 0] == drawn["sglang", 1]
    whole, cut = drawn["vllm", 0], drawn["vllm", 1]
    assert whole[:3] == cut[:3]
    assert whole[3:] != cut[3:]
    assert len(cut) == 12


@BOTH
@pytest.mark.parametrize(
    ("fault", "value", "why"),
    [
        ("miscount", -1, "tokens came"),
        ("miscount", 2, "are missing"),
        ("logprobs", "none", "with 0 log-probabilities"),
        ("logprobs", "null", "not all numbers"),
        ("logprobs", "nan", "not all numbers"),
        ("foreign_stop_at", 4, "name it among"),
        ("short_limit", 5, "own limit came after 5 of 12"),
        ("truncates_prompt", True, "a prompt of 2 tokens"),
        ("aborts", 1, "abort"),
        ("errors", 1, "EngineCore died"),
        ("refused", "prompt too long", "prompt too long"),
        ("garbage", True, "can't be read"),
        ("resets", 99, "cut 6 times"),
        ("unavailable", 99, "503"),
    ],
)
def test_what_can_not_be_trusted_fails_and_says_why(dialect: str, fault: str, value: object, why: str) -> None:
    with rig(dialect) as it:
        it.server.faults.at = 3 if fault != "resets" else 0
        setattr(it.server.faults, fault, value)
        ended = run(it.engine, request())
        setattr(it.server.faults, fault, type(value)())
        it.server.faults.foreign_stop_at = it.server.faults.short_limit = None
        assert run(it.engine, request("next")).response.tokens == ANSWER  # the engine goes on
    assert ended.reason is FinishReason.FAILED
    assert why in ended.why
    had = len(ended.response.tokens)
    assert had == len(ended.response.logprobs) < 12
    assert fault == "foreign_stop_at" or ended.response.tokens == ANSWER[:had] or fault == "truncates_prompt"


def test_tokens_of_other_weights_in_the_middle_of_a_response_fail_it() -> None:
    with rig("sglang") as it:
        it.server.faults.other_version_at = 4
        ended = run(it.engine, request())
    assert (ended.reason, ended.response.tokens) == (FinishReason.FAILED, ANSWER[:4])
    assert "draws with version 'other'" in ended.why


def test_a_stop_token_that_stands_for_what_is_no_number_is_no_stop() -> None:
    with rig("sglang") as it:
        it.server.faults.not_a_number_at = 4
        ended = run(it.engine, request(stop_tokens=(3,)))
    assert ended.reason is FinishReason.FAILED
    assert "NaN happened" in ended.why


@BOTH
def test_a_server_that_was_started_anew_does_not_go_on_with_its_first_weights(dialect: str) -> None:
    with rig(dialect) as it:
        it.engine.update(3, {"path": "/weights/3"})
        it.server.faults.resets, it.server.faults.forgets = 1, True
        cut = run(it.engine, request("cut"))
        later = run(it.engine, request("later"))
        assert cut.response.tokens == greedy("/weights/3", PROMPT, 3)
        assert cut.response.versions == (3,) * 3
        assert later.response.tokens == ()
        for ended in (cut, later):
            assert ended.reason is FinishReason.FAILED
            assert "version 'default'" in ended.why
            assert ended.why.endswith(": update it")
        it.engine.update(4, {"path": "/weights/4"})
        assert run(it.engine, request("new")).response.tokens == greedy("/weights/4", PROMPT, 12)


def test_an_older_server_that_can_not_say_its_version_does_not_go_on_after_a_cut() -> None:
    def older(server: FakeServer) -> None:
        server.faults.knows_no_version = True

    with rig("vllm", prepare=older) as it:
        assert run(it.engine, request("whole")).response.tokens == ANSWER
        it.server.faults.resets = 1
        ended = run(it.engine, request("cut"))
    assert (ended.reason, ended.response.tokens) == (FinishReason.FAILED, ANSWER[:3])
    assert "can't say whether it still has the same weights" in ended.why


@BOTH
def test_many_faults_at_once_leave_each_response_exact(dialect: str) -> None:
    with rig(dialect, replace(PATIENT, max_open=8, cuts=30)) as it:
        faults = it.server.faults
        faults.resets, faults.truncations, faults.drops, faults.unavailable, faults.duplicates = 8, 8, 8, 8, True
        for n in range(30):
            it.engine.submit(request(f"r{n}", 10, prompt=(n + 1,)))
        ended = all_ended(it.engine)
    assert {name: e.response.tokens for name, e in ended.items()} == {
        f"r{n}": greedy("base", (n + 1,), 10) for n in range(30)
    }

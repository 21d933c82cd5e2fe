"""A server that behaves: everything that the seam promises, over a real socket, in the words of both servers."""

import json
import math
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rollmux.errors import InvalidSpec
from rollmux.runtime.engine.errors import EngineClosed, UpdateRefused
from rollmux.runtime.engine.http import HttpEngine, Server, ServerFailed, ServerMismatch, ServerRefused, Sglang, Vllm
from rollmux.runtime.engine.http.calls import Attempt, Call, Reply
from rollmux.runtime.engine.http.wire import Opening, Wire
from rollmux.runtime.engine.requests import Ended, FinishReason, Generated, Grown, Unfinished
from tests.runtime.engine_http import fake_server
from tests.runtime.engine_http.fake_machine import VOCABULARY, draw, greedy
from tests.runtime.engine_http.fake_server import FakeServer
from tests.runtime.engine_http.rigs import (
    BOTH,
    DIALECTS,
    PATIENT,
    PROMPT,
    all_ended,
    eventually,
    grown,
    request,
    rig,
    run,
    until,
)


@BOTH
def test_a_response_is_what_the_model_says_with_its_log_probabilities(dialect: str) -> None:
    with rig(dialect) as it:
        ended = run(it.engine, request())
    assert (ended.reason, ended.response.tokens) == (FinishReason.LENGTH, greedy("base", PROMPT, 12))
    texts = [PROMPT + ended.response.tokens[:place] for place in range(12)]
    assert ended.response.logprobs == tuple(draw("base", text, None)[1] for text in texts)
    assert ended.response.versions == (0,) * 12


@BOTH
def test_pieces_follow_each_other_and_make_up_the_whole(dialect: str) -> None:
    with rig(dialect) as it:
        it.engine.submit(request())
        events = until(it.engine, lambda events: bool(events) and isinstance(events[-1], Ended))
    *pieces, ended = events
    assert isinstance(ended, Ended)
    place = 0
    for piece in pieces:
        assert isinstance(piece, Grown)
        assert piece.first == place
        place += len(piece.gained.tokens)
    assert tuple(t for p in pieces if isinstance(p, Grown) for t in p.gained.tokens) == ended.response.tokens


def test_a_server_that_sends_only_what_is_new_is_read_as_one_that_sends_all() -> None:
    with rig("sglang", cumulative=False) as it:
        assert run(it.engine, request()).response.tokens == greedy("base", PROMPT, 12)


@BOTH
def test_a_stop_token_ends_a_response_and_is_its_last(dialect: str) -> None:
    answer = greedy("base", PROMPT, 12)
    with rig(dialect) as it:
        ended = run(it.engine, request(stop_tokens=(answer[5],)))
    assert (ended.reason, ended.response.tokens) == (FinishReason.STOP, answer[:6])


@BOTH
def test_the_seed_decides_what_is_drawn(dialect: str) -> None:
    seeds = {"a": 5, "b": 5, "c": 2**64 - 1, "d": 2**64 - 1, "e": 0}
    with rig(dialect) as it:
        for name, seed in seeds.items():
            it.engine.submit(request(name, temperature=1.0, seed=seed))
        drawn = {name: ended.response.tokens for name, ended in all_ended(it.engine).items()}
    assert drawn["a"] == drawn["b"]
    assert drawn["c"] == drawn["d"]
    assert len({drawn["a"], drawn["c"], drawn["e"]}) == 3


@BOTH
def test_more_requests_than_streams_and_more_news_than_room_lose_nothing(dialect: str) -> None:
    with rig(dialect, replace(PATIENT, max_open=4, inbox=2)) as it:
        asked = [request(f"r{n}", 1 + n % 9, prompt=(n + 1, 2)) for n in range(40)]
        for each in asked:
            it.engine.submit(each)
        ended = all_ended(it.engine)
        assert eventually(lambda: not it.server.machine.running)
    assert {name: e.response.tokens for name, e in ended.items()} == {
        each.id: greedy("base", each.prompt, each.max_tokens) for each in asked
    }


@BOTH
def test_a_cancelled_request_ends_with_what_it_has_and_the_server_stops(dialect: str) -> None:
    with rig(dialect, token_s=0.003) as it:
        it.engine.submit(request(count=400))
        grown(it.engine, 3)
        it.engine.cancel(["r", "unknown"])
        it.engine.cancel(["r"])
        ended = [event for event in it.engine.step() if isinstance(event, Ended)]
        assert [event.reason for event in ended] == [FinishReason.CANCELLED]
        had = ended[0].response.tokens
        assert len(had) >= 3
        assert had == greedy("base", PROMPT, len(had))
        assert eventually(lambda: not it.server.machine.running)
        assert it.engine.step() == []


@BOTH
def test_who_cancels_a_request_cancels_none_whose_name_begins_like_it(dialect: str) -> None:
    with rig(dialect, token_s=0.02) as it:
        for name in ("a", "a-1", "a-1-2"):
            it.engine.submit(request(name, 20))
        grown(it.engine, 6)
        it.engine.cancel(["a"])
        ended = all_ended(it.engine)
    assert {name: each.reason for name, each in ended.items()} == {
        "a": FinishReason.CANCELLED,
        "a-1": FinishReason.LENGTH,
        "a-1-2": FinishReason.LENGTH,
    }


@BOTH
def test_ids_that_are_one_text_are_refused(dialect: str) -> None:
    with rig(dialect) as it:
        it.engine.submit(request("r1"))
        for take in (it.engine.cancel, it.engine.export):
            with pytest.raises(InvalidSpec, match="give them in a list"):
                take("r1")
        assert it.engine.unfinished == 1


@BOTH
def test_an_exported_request_goes_on_in_another_engine(dialect: str) -> None:
    with rig(dialect, token_s=0.003) as here, rig(dialect) as there:
        here.engine.submit(request(count=60))
        here.engine.submit(request("untouched", count=2, prompt=(9,)))
        grown(here.engine, 5)  # two of them are of the other one
        taken = here.engine.export()
        assert here.engine.unfinished == 0
        there.engine.adopt(taken)
        ended = all_ended(there.engine)
        assert ended["r"].response.tokens == greedy("base", PROMPT, 60)
        assert ended["r"].response.versions == (0,) * 60
        assert there.engine.gauges().recomputed_tokens >= 3
        assert not [event for event in here.engine.step() if isinstance(event, Ended)]
        there.engine.update(4)
        with pytest.raises(UpdateRefused, match="versions"):
            there.engine.adopt([each for each in taken if each.response.tokens])


@BOTH
def test_a_response_that_has_all_its_tokens_is_over_and_not_exported(dialect: str) -> None:
    with rig(dialect) as here, rig(dialect) as there:
        here.server.faults.ends_apart = True
        here.engine.submit(request())
        grown(here.engine, 12)
        there.engine.adopt(here.engine.export())
        (ended,) = here.engine.step()
        assert isinstance(ended, Ended)
        assert (ended.reason, ended.response.tokens) == (FinishReason.LENGTH, greedy("base", PROMPT, 12))
        assert here.engine.unfinished == there.engine.unfinished == 0


@BOTH
def test_what_can_never_run_is_refused_and_changes_nothing(dialect: str) -> None:
    with rig(dialect) as it:
        it.engine.submit(request())
        with pytest.raises(InvalidSpec, match="no other unfinished request"):
            it.engine.submit(request())
        spare = DIALECTS[dialect].spare
        with pytest.raises(InvalidSpec, match=rf"at most {512 - spare} with .* or serve with a limit of {513 + spare}"):
            it.engine.submit(request("long", 510))
        assert it.engine.unfinished == 1


@BOTH
@pytest.mark.parametrize("told", [False, True])
def test_a_token_that_the_model_does_not_have_is_refused_before_a_server_ends_of_it(
    dialect: str, told: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 5, "text_config": {"vocab_size": VOCABULARY}}))
    settings, folder = (replace(PATIENT, vocabulary=VOCABULARY), "") if told else (PATIENT, str(tmp_path))
    unknown = Unfinished(request(), Generated((VOCABULARY,), (-1.0,), (0,)))
    with rig(dialect, settings, folder=folder) as it:
        for ask in (
            lambda: it.engine.submit(request(prompt=(1, VOCABULARY, 2))),
            lambda: it.engine.adopt([unknown]),
            lambda: it.engine.probe((VOCABULARY,), 1),
        ):
            with pytest.raises(InvalidSpec, match=f"tokens below {VOCABULARY}"):
                ask()
        assert run(it.engine, request(prompt=(VOCABULARY - 1,))).reason is FinishReason.LENGTH


@BOTH
@pytest.mark.parametrize("anew", [False, True])
def test_what_is_accepted_has_room_for_all_its_tokens_also_begun_anew_at_the_last(dialect: str, anew: bool) -> None:
    context = 64
    with rig(dialect, replace(PATIENT, max_length=context), context=context) as it:
        for count in range(context - len(PROMPT), 0, -1):
            answer = greedy("base", PROMPT, count)
            had = answer[:-1] if anew else ()
            with suppress(InvalidSpec):
                begun = Generated(had, (-1.0,) * len(had), (0,) * len(had))
                it.engine.adopt([Unfinished(request(count=count), begun)])
                break
        ended = all_ended(it.engine)["r"]
    assert (ended.reason, ended.response.tokens) == (FinishReason.LENGTH, answer)
    assert len(PROMPT + answer) >= context - 6


def test_a_prompt_that_is_too_long_for_the_server_fails_in_its_own_words() -> None:
    with rig("sglang", context=64) as it:
        ended = run(it.engine, request(prompt=tuple(range(1, 60))))
    assert (ended.reason, ended.response.tokens) == (FinishReason.FAILED, ())
    assert "Input length exceeds the maximum" in ended.why


def test_what_sglang_would_answer_with_other_log_probabilities_is_refused() -> None:
    plain = Sglang()
    plain.check(request(temperature=1.0))
    plain.check(request(temperature=0.0, top_p=0.5))
    for warm in (request(temperature=0.7), request(temperature=1.0, top_p=0.9)):
        with pytest.raises(InvalidSpec, match="SGLANG_RETURN_ORIGINAL_LOGPROB"):
            plain.check(warm)
        Sglang(raw_logprobs=True).check(warm)


def test_what_vllm_would_draw_less_cold_than_asked_is_refused() -> None:
    for temperature in (1e-7, 0.0099):
        with pytest.raises(InvalidSpec, match=r"temperature = .* 0, or at least 0\.01"):
            Vllm().check(request(temperature=temperature))
    for temperature in (0.0, 0.01):
        Vllm().check(request(temperature=temperature))


def test_one_answer_about_the_version_is_for_all_who_wait_for_it() -> None:
    def slow(server: FakeServer) -> None:
        server.faults.slow_s = 0.05

    with rig("vllm", prepare=slow) as it:
        before = it.server.calls.count("GET /weight_info")
        for n in range(40):
            it.engine.submit(request(f"r{n}", 1))
        assert {each.reason for each in all_ended(it.engine).values()} == {FinishReason.LENGTH}
        assert 1 <= it.server.calls.count("GET /weight_info") - before < 10


def test_a_late_answer_about_the_version_before_an_update_fails_nobody_after_it() -> None:
    late = threading.Event()
    with rig("vllm") as it:
        it.server.faults.late_answers["/weight_info"] = late
        it.engine.submit(request())
        it.engine.step()
        assert eventually(lambda: not it.server.faults.late_answers)
        it.engine.update(1, {"path": "/weights/1"})
        it.engine.step()
        late.set()
        assert all_ended(it.engine)["r"].response.tokens == greedy("/weights/1", PROMPT, 12)


@BOTH
def test_a_connection_whose_response_is_over_takes_the_next_one(dialect: str) -> None:
    with rig(dialect) as it:
        for n in range(60):
            it.engine.submit(request(f"r{n}", 1))
            until(it.engine, lambda events: not it.engine.unfinished)
        assert len(it.server.connections) < 10


@BOTH
def test_close_leaves_no_thread_and_no_connection(dialect: str) -> None:
    before = threading.active_count()
    with rig(dialect, token_s=0.003) as it:
        for n in range(5):
            it.engine.submit(request(f"r{n}", 400))
        grown(it.engine, 5)
        assert it.server.connections
        events = it.engine.close()
        assert {event.reason for event in events if isinstance(event, Ended)} == {FinishReason.CANCELLED}
        assert not [each for each in threading.enumerate() if each.name == "rollmux-engine-http"]
        assert eventually(lambda: not it.server.connections)
        assert eventually(lambda: not it.server.machine.running)
        assert it.engine.close() == []
        with pytest.raises(EngineClosed):
            it.engine.step()
        with pytest.raises(EngineClosed):
            it.engine.submit(request())
    assert eventually(lambda: threading.active_count() <= before)


def test_a_server_that_can_not_be_told_of_a_cancelled_request_stops_as_nobody_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(fake_server.ROUTES, "/abort_requests")
    with rig("vllm", token_s=0.05) as it:
        it.engine.submit(request(count=400))
        grown(it.engine, 1)
        it.engine.cancel(["r"])
        assert eventually(lambda: not it.server.machine.running)


@BOTH
def test_a_proxy_that_the_environment_names_is_not_asked(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with rig(dialect, replace(PATIENT, ready_s=1.0)) as it:
        assert run(it.engine, request()).reason is FinishReason.LENGTH


def test_a_stream_for_whose_end_the_inbox_has_no_room_keeps_no_close_waiting() -> None:
    server = FakeServer()
    wire = Wire(Server(server.url, connect_s=30.0), capacity=1)
    closing = threading.Thread(target=wire.close)
    try:
        for name in ("first", "second"):
            call = Vllm().generate(Attempt(name, request(count=2), ()))
            wire.open(Opening((name, 1), call, lambda event: None))
        assert eventually(lambda: len(wire._streams) == 1)  # the end of the other one takes all the room
        assert eventually(lambda: not server.machine.running)
        closing.start()
        closing.join(10.0)
        assert not closing.is_alive()
    finally:
        wire.close()
        server.close()


@BOTH
def test_close_tells_the_server_what_it_need_not_go_on_with(dialect: str) -> None:
    with rig(dialect, token_s=0.003) as it:
        for n in range(3):
            it.engine.submit(request(f"r{n}", 400))
        grown(it.engine, 3)
        it.engine.close()
        assert sum(call.startswith("POST /abort_request") for call in it.server.calls) == 3


def test_no_server_is_an_error_and_leaves_no_thread() -> None:
    with pytest.raises(ServerFailed, match="not ready after"):
        HttpEngine(Server("http://127.0.0.1:9"), Vllm(), replace(PATIENT, ready_s=0.0))
    assert not [each for each in threading.enumerate() if each.name == "rollmux-engine-http"]


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:9",
        "htp://a",
        "http://",
        "http://a:99999",
        "http://a\n",
        "http://[::1",
        None,
        "http://a:8000/v1",
        "http://a/v1/",
    ],
)
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidSpec, match=r"server\.url"):
        Server(url)
    Server("http://gateway/v1/models-of-mine")


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, None, "9"])
def test_a_time_in_which_nothing_can_be_answered_is_refused_at_once(seconds: float) -> None:
    with pytest.raises(InvalidSpec, match=r"server\.connect_s .*\n.*server\.call_s "):
        Server("http://a", connect_s=seconds, call_s=seconds)


@pytest.mark.parametrize("value", [None, 3, "a\n", " a", "\u00fc"])
def test_a_header_that_can_not_be_sent_is_refused_and_not_told(value: str) -> None:
    with pytest.raises(InvalidSpec, match="'Authorization'"):
        Server("http://a", {"Authorization": value})
    Server("http://a", {"Authorization": "Bearer a-b_c", "X-Team_1": ""})


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\n", "\u00fc", 3])
def test_a_header_of_which_the_name_can_not_be_sent_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match=r"server\.headers"):
        Server("http://a", {name: "value"})


@BOTH
@pytest.mark.parametrize("status", [401, 403])
def test_who_is_not_let_in_does_not_wait_until_the_server_is_ready(
    dialect: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def shut(wire: Wire, call: Call, within_s: float | None = None) -> Reply:
        asked.append(call)
        raise ServerRefused(status, "no")

    monkeypatch.setattr(Wire, "ask", shut)
    with pytest.raises(ServerRefused):
        HttpEngine(Server("http://127.0.0.1:9"), DIALECTS[dialect], replace(PATIENT, ready_s=1.0))
    assert len(asked) == 1


@BOTH
@pytest.mark.parametrize("content", [b"{}", b"<html>", b"[1]"])
def test_a_server_that_says_no_version_is_another_than_was_meant(
    dialect: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wire, "ask", lambda *_: Reply(200, content))
    with pytest.raises(ServerMismatch, match="does not say the version"):
        HttpEngine(Server("http://127.0.0.1:9"), DIALECTS[dialect], PATIENT)


@BOTH
def test_an_id_that_no_wire_can_carry_is_as_good_as_any(dialect: str) -> None:
    with rig(dialect) as it:
        assert run(it.engine, request("half \ud800")).response.tokens == greedy("base", PROMPT, 12)


@BOTH
def test_a_close_that_is_interrupted_can_be_asked_again(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "rollmux-engine-http":
            monkeypatch.setattr(threading.Thread, "join", join)
            raise KeyboardInterrupt
        join(thread, timeout)

    with rig(dialect, token_s=0.003) as it:
        it.engine.submit(request(count=400))
        grown(it.engine, 2)
        monkeypatch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            it.engine.close()
        assert [event.reason for event in it.engine.close() if isinstance(event, Ended)] == [FinishReason.CANCELLED]
        assert not [each for each in threading.enumerate() if each.name == "rollmux-engine-http"]
        assert it.engine.close() == []


@BOTH
def test_a_server_that_loads_and_answers_slowly_is_waited_for(dialect: str) -> None:
    def slow(server: FakeServer) -> None:
        server.faults.loading, server.faults.slow_s = 3, 0.03

    with rig(dialect, prepare=slow) as it:
        assert it.engine.is_healthy()
        assert run(it.engine, request(count=3)).reason is FinishReason.LENGTH
        it.server.faults.loading = 1
        assert not it.engine.is_healthy()


@BOTH
def test_a_server_that_answers_and_is_not_ready_may_have_been_left_paused(dialect: str) -> None:
    def paused(server: FakeServer) -> None:
        server.faults.loading = 1_000_000  # a real SGLang draws no token then, and says so after 20 s

    left = r"not ready after 0\.2 s: .*503.*; it answers other calls, so an engine before may have left it paused"
    with pytest.raises(ServerFailed, match=left), rig(dialect, replace(PATIENT, ready_s=0.2), prepare=paused):
        raise AssertionError("there is no engine")


@BOTH
def test_the_gauges_are_what_the_server_tells_of_all_its_engines(dialect: str) -> None:
    with rig(dialect, token_s=0.01) as it:
        it.engine.submit(request(count=200))
        grown(it.engine, 1)
        gauges = it.engine.gauges()
        assert gauges.running == (2 if dialect == "vllm" else 1)
        assert gauges.room_tokens == (1600 if dialect == "vllm" else 1601)
        assert gauges.preemptions == 7
        assert gauges.held_tokens == 400
        assert gauges.nbytes == it.server.machine.held()

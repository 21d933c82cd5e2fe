"""Sleep, wake, new weights: in the one order that works, each step as often as asked, and no success without the bytes.

The fake server dies of what would crash or damage a real one; at the end of each test it must be alive.
"""

import os
import stat
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from rollmux.errors import InvalidSpec
from rollmux.runtime.engine.canary import Canary
from rollmux.runtime.engine.errors import CanaryDied, EngineSuspended, UpdateRefused
from rollmux.runtime.engine.http import (
    EngineWorn,
    HttpEngine,
    Memory,
    MemoryHeld,
    Server,
    ServerFailed,
    ServerMismatch,
    ServerRefused,
    environment_of,
    nvidia_smi,
)
from rollmux.runtime.engine.http import life as life_module
from rollmux.runtime.engine.http import wire as wire_module
from rollmux.runtime.engine.http.calls import Call, Reply
from rollmux.runtime.engine.http.errors import MemoryUnknown
from rollmux.runtime.engine.http.wire import Wire
from rollmux.runtime.engine.requests import Ended, FinishReason, Grown
from rollmux.runtime.engine.seam import Begun
from tests.runtime.engine_http.fake_machine import BASE_BYTES, CACHE_BYTES, WEIGHTS_BYTES, greedy
from tests.runtime.engine_http.fake_server import FakeServer
from tests.runtime.engine_http.rigs import (
    BOTH,
    DIALECTS,
    PATIENT,
    PROMPT,
    Rig,
    all_ended,
    eventually,
    grown,
    request,
    rig,
    run,
    until,
)

ORDER = {
    "vllm": [
        "POST /pause?mode=abort",
        "POST /sleep?level=1",
        "POST /wake_up?tags=weights",
        "POST /collective_rpc",
        "POST /update_weight_version",
        "POST /wake_up?tags=kv_cache",
        "POST /reset_prefix_cache",
        "POST /resume",
    ],
    "sglang": [
        "POST /flush_cache",  # until it has ended what ran: a pause would look only once a second
        "POST /pause_generation",
        "POST /flush_cache",  # refused while anything is computed
        "POST /release_memory_occupation",
        "POST /resume_memory_occupation",
        "POST /update_weights_from_disk",
        "POST /resume_memory_occupation",
        "POST /flush_cache",
        "POST /continue_generation",
    ],
}


@BOTH
def test_sleep_update_and_wake_come_in_the_one_order_that_works(dialect: str) -> None:
    with rig(dialect, token_s=0.003) as it:
        it.engine.submit(request(count=40))
        grown(it.engine, 3)
        started = len(it.server.control_calls())
        it.engine.suspend()
        assert it.server.machine.held() == BASE_BYTES
        assert it.engine.is_suspended
        had = [e.response.tokens for e in it.engine.export(["r"])]
        it.engine.update(1, {"path": "/weights/1"})
        assert it.server.machine.held() == BASE_BYTES + WEIGHTS_BYTES
        it.engine.resume()
        assert it.server.machine.held() == BASE_BYTES + WEIGHTS_BYTES + CACHE_BYTES
        asked = it.server.control_calls()[started:]
        again = [n for n in range(1, len(asked)) if asked[n - 1] == asked[n] == "POST /flush_cache"]  # until it is idle
        assert [call for n, call in enumerate(asked) if n not in again] == ORDER[dialect]
        assert not it.server.machine.late_pauses or dialect == "vllm"
        assert had[0] == greedy("base", PROMPT, len(had[0]))
        ended = run(it.engine, request("new"))
    assert ended.response.tokens == greedy("/weights/1", PROMPT, 12)
    assert ended.response.versions == (1,) * 12


@BOTH
def test_a_greedy_response_sleeps_and_goes_on_as_if_it_had_not(dialect: str) -> None:
    with rig(dialect, token_s=0.003) as it:
        it.engine.submit(request(count=40))
        grown(it.engine, 3)
        for _ in range(2):
            it.engine.suspend()
        it.engine.step()
        assert it.engine.step() == []
        assert it.engine.unfinished == 1
        for _ in range(2):
            it.engine.resume()
        assert all_ended(it.engine)["r"].response.tokens == greedy("base", PROMPT, 40)
        assert it.server.machine.sleeps == 1


@BOTH
def test_what_the_server_has_sent_by_the_time_of_its_pause_is_not_lost(dialect: str) -> None:
    with rig(dialect) as it:
        it.engine.submit(request())
        told = it.engine.step()
        assert eventually(lambda: PROMPT in it.server.machine.cache and not it.server.machine.running)
        it.engine.suspend()
        assert it.engine.unfinished == 0
        (ended,) = [event for event in (*told, *it.engine.step()) if isinstance(event, Ended)]
    assert ended.response.tokens == greedy("base", PROMPT, 12)


@BOTH
def test_what_came_as_it_fell_asleep_is_told_by_whoever_goes_on_with_it(dialect: str) -> None:
    with rig(dialect, token_s=0.005) as it, rig(dialect) as other:
        it.engine.submit(request(count=60))
        told = grown(it.engine, 2)
        time.sleep(0.05)  # more has come, and nobody has looked
        it.engine.suspend()
        other.engine.adopt(it.engine.export())
        told += until(other.engine, lambda events: not other.engine.unfinished)
        assert it.engine.step() == []
        tokens: list[int] = []
        for event in told:
            if isinstance(event, Grown):
                assert event.first == len(tokens)
                tokens += event.gained.tokens
        assert tuple(tokens) == greedy("base", PROMPT, 60)


@BOTH
def test_a_frozen_response_goes_on_in_its_stream_even_when_it_is_sampled(dialect: str) -> None:
    drawn = []
    for pauses in (0, 1):
        with rig(dialect, replace(PATIENT, stall_s=0.4), token_s=0.003) as it:
            it.engine.submit(request(count=40, temperature=1.0, seed=9))
            grown(it.engine, 3)
            for _ in range(pauses):
                it.engine.suspend(keep=True)
                with pytest.raises(EngineSuspended):
                    it.engine.probe(PROMPT, 2)
                assert not eventually(lambda: it.engine.step() == [] and False, within_s=0.6)  # longer than a stall
                it.engine.resume()
            drawn.append(all_ended(it.engine)["r"].response.tokens)
            assert it.engine.gauges().recomputed_tokens == 0
    assert drawn[0] == drawn[1]


@BOTH
@pytest.mark.parametrize("lost", [False, True])
def test_a_frozen_response_sleeps_and_goes_on(dialect: str, lost: bool) -> None:
    with rig(dialect, token_s=0.003) as it:
        it.engine.submit(request(count=60))
        grown(it.engine, 3)
        if lost:
            it.server.faults.lost_answers.add("/pause" if dialect == "vllm" else "/pause_generation")
            with pytest.raises(ServerFailed):
                it.engine.suspend(keep=True)
        else:
            it.engine.suspend(keep=True)
        it.engine.suspend()
        assert it.server.machine.held() == BASE_BYTES
        it.engine.resume()
        ended = all_ended(it.engine)["r"]
    assert (ended.reason, ended.response.tokens) == (FinishReason.LENGTH, greedy("base", PROMPT, 60))


@BOTH
@pytest.mark.parametrize("before", ["", "freeze", "export", "cancel"])
@pytest.mark.parametrize("asleep", [True, False])
def test_a_server_sleeps_or_is_updated_once_the_last_step_of_what_was_hung_up_is_done(
    dialect: str, before: str, asleep: bool
) -> None:
    with rig(dialect, token_s=0.03) as it:
        it.engine.submit(request(count=40))
        grown(it.engine, 3)
        if before == "freeze":
            it.engine.suspend(keep=True)
        elif before == "export":
            assert len(it.engine.export()) == 1
        elif before == "cancel":
            it.engine.cancel(["r"])
        if asleep:
            it.engine.suspend()
            assert it.server.machine.held() == BASE_BYTES
        else:
            it.engine.update(1, {"path": "/weights/1"}, Begun.RECOMPUTE)
            it.engine.resume()
            assert it.engine.version == 1
        assert not it.server.machine.dead


def test_a_server_that_never_comes_to_rest_is_not_put_to_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_module, "IDLE_S", 0.05)
    with rig("sglang", token_s=0.003) as it:
        it.server.machine.running["another's"] = "runs"
        with pytest.raises(ServerRefused, match="running requests"):
            it.engine.suspend()
        del it.server.machine.running["another's"]
        it.engine.suspend()
        assert it.server.machine.held() == BASE_BYTES


@pytest.mark.parametrize("asleep", [False, True])
def test_what_an_older_server_aborts_instead_of_freezing_it_goes_on_all_the_same(asleep: bool) -> None:
    with rig("vllm", token_s=0.003) as it:
        it.server.faults.knows_no_modes = True
        for n in range(3):
            it.engine.submit(request(f"r{n}", 60, prompt=(n + 1,)))
        grown(it.engine, 9)
        it.engine.suspend(keep=True)
        assert eventually(lambda: not it.server.machine.running)
        if asleep:
            it.engine.suspend()
        it.engine.resume()
        ended = all_ended(it.engine)
    assert {name: e.response.tokens for name, e in ended.items()} == {
        f"r{n}": greedy("base", (n + 1,), 60) for n in range(3)
    }


def test_what_a_server_aborts_by_itself_after_a_freeze_fails() -> None:
    with rig("vllm", token_s=0.003) as it:
        it.engine.suspend(keep=True)
        it.engine.resume()
        it.server.faults.aborts = 1
        assert run(it.engine, request()).reason is FinishReason.FAILED


@BOTH
def test_what_comes_while_a_frozen_server_is_emptied_counts_for_no_version(dialect: str) -> None:
    with rig(dialect, token_s=0.003) as it:
        it.engine.submit(request(count=60))
        grown(it.engine, 3)
        it.engine.suspend(keep=True)
        it.server.machine.load("mine")
        it.engine.update(5, None, Begun.RECOMPUTE)
        it.engine.resume()
        response = all_ended(it.engine)["r"].response
    split = response.versions.index(5)
    assert response.tokens[:split] == greedy("base", PROMPT, split)
    assert response.tokens[split:] == greedy("mine", PROMPT + response.tokens[:split], 60 - split)


@BOTH
def test_f9_a_sleeper_that_holds_its_memory_has_not_slept(dialect: str) -> None:
    with rig(dialect) as it:
        it.server.faults.holds_bytes = 51
        for _ in range(2):
            with pytest.raises(MemoryHeld, match="holds 151 bytes"):
                it.engine.suspend()
            assert it.engine.is_suspended
        it.server.faults.holds_bytes = 50
        it.engine.suspend()
        it.engine.resume()
        assert run(it.engine, request()).reason is FinishReason.LENGTH


@BOTH
def test_memory_that_is_freed_after_the_answer_is_waited_for(dialect: str) -> None:
    with rig(dialect) as it:
        it.server.faults.frees_after_s = 0.1
        it.engine.suspend()
        assert it.server.machine.held() == BASE_BYTES
        assert it.engine.is_healthy()


@BOTH
def test_without_anybody_who_tells_the_bytes_there_is_no_sleep(dialect: str) -> None:
    server = FakeServer()
    try:
        engine = HttpEngine(Server(server.url), DIALECTS[dialect], PATIENT)
        with pytest.raises(MemoryHeld, match="nobody tells"):
            engine.suspend()
        assert not engine.is_suspended
        engine.suspend(keep=True)
        engine.resume()
        engine.close()
    finally:
        server.close()


@BOTH
def test_an_engine_that_leaks_is_used_until_its_budget_is_spent(dialect: str) -> None:
    with rig(dialect, leak_bytes=20) as it:
        it.server.faults.leak_bytes = 8
        for cycle in range(3):
            it.engine.suspend()
            it.engine.resume()
            assert it.engine.leaked_bytes == 8 * cycle
        it.engine.submit(request())
        it.engine.suspend()  # the bytes are free: that must not be refused
        for _ in range(2):
            with pytest.raises(EngineWorn, match="gained 24 bytes, 20 are allowed"):
                it.engine.resume()
        assert [each.request.id for each in it.engine.export()] == ["r"]


@BOTH
def test_gibberish_after_a_sleep_is_heard_before_any_response_goes_on(dialect: str) -> None:
    with rig(dialect, canary=(5, 6), token_s=0.003) as it:
        it.engine.suspend()
        it.engine.resume()
        it.engine.submit(request(count=40))
        grown(it.engine, 2)
        it.server.faults.gibberish = True
        it.engine.suspend()
        for _ in range(2):
            with pytest.raises(CanaryDied, match="before it was"):
                it.engine.resume()
            assert it.engine.is_suspended
        (taken,) = it.engine.export()
    had = taken.response.tokens
    assert had == greedy("base", PROMPT, len(had))


@BOTH
def test_a_canary_is_learned_anew_with_new_weights(dialect: str) -> None:
    with rig(dialect, canary=(5, 6)) as it:
        known = Canary.learn(it.engine, (5, 6), 4)
        assert known.answer == greedy("base", (5, 6), 4)
        for version in (1, 2):
            it.engine.suspend()
            it.engine.update(version, {"path": f"/weights/{version}"})
            it.engine.resume()
        it.server.faults.logprobs = "nan"
        with pytest.raises(CanaryDied, match="not a number"):
            it.engine.suspend()
        assert not it.engine.is_suspended
        it.server.faults.logprobs = ""


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments_are_refused(name: str) -> None:
    with pytest.raises(ServerMismatch, match="frees nothing"):
        Memory(lambda: 0, {name: "max_split_size_mb:64, expandable_segments: True"}, 0, 0)
    Memory(lambda: 0, {name: "expandable_segments:False"}, 0, 0)


def _copies_nothing(server: FakeServer) -> None:
    server.faults.no_copy = True


def _tells_no_setup(server: FakeServer) -> None:
    server.faults.no_copy = server.faults.knows_no_setup = True


def test_a_server_that_would_lose_its_weights_is_no_sleeper() -> None:
    words = "would lose the weights: start the server with --enable-weights-cpu-backup$"
    with pytest.raises(ServerMismatch, match=words), rig("sglang", prepare=_copies_nothing):
        raise AssertionError("there is no engine")


def _knows_older_names(server: FakeServer) -> None:
    server.faults.no_copy = server.faults.knows_older_names = True


def test_an_older_server_is_asked_by_the_names_that_it_knows_and_a_newer_one_by_no_others() -> None:
    with pytest.raises(ServerMismatch, match="would lose the weights"), rig("sglang", prepare=_knows_older_names):
        raise AssertionError("there is no engine")
    with rig("sglang") as it:
        it.server.faults.knows_older_names = True
        it.engine.suspend()
        assert it.engine.is_healthy()
        it.server.faults.knows_older_names = False
        started = len(it.server.calls)
        assert it.engine.is_healthy()
        it.engine.resume()
        assert not [call for call in it.server.calls[started:] if "/get_" in call]


def _shares_its_weights(server: FakeServer) -> None:
    server.faults.shares_weights = True


def test_a_server_whose_weights_others_use_is_no_sleeper() -> None:
    words = "would end it: start the server without --weight-cache-mode host$"
    with pytest.raises(ServerMismatch, match=words), rig("sglang", prepare=_shares_its_weights) as it:
        it.engine.suspend()


def test_a_server_that_is_to_sleep_never_may_be_without_a_copy_of_its_weights() -> None:
    server = FakeServer()
    try:
        _copies_nothing(server)
        with closing(HttpEngine(Server(server.url), DIALECTS["sglang"], PATIENT)) as engine:
            assert run(engine, request()).reason is FinishReason.LENGTH
    finally:
        server.close()


def test_a_server_that_does_not_tell_how_it_was_started_is_taken_as_it_is() -> None:
    with rig("sglang", prepare=_tells_no_setup) as it:
        it.engine.suspend()
        it.engine.resume()
        assert run(it.engine, request()).reason is FinishReason.LENGTH


def _tells_nonsense(server: FakeServer) -> None:
    server.faults.setup_page = "[]"


def test_a_server_that_tells_something_else_of_how_it_was_started_is_no_sleeper() -> None:
    words = "does not tell how it was started"
    with pytest.raises(ServerMismatch, match=words), rig("sglang", prepare=_tells_nonsense):
        raise AssertionError("there is no engine")


@BOTH
def test_what_came_of_a_sleep_is_not_guessed_where_nobody_can_tell(dialect: str) -> None:
    server = FakeServer()
    away = list[bool]()

    def held() -> int:
        if away and away.pop():
            raise MemoryUnknown("the driver has not answered")
        return server.machine.held()

    mine = Memory(held, {}, asleep_bytes=BASE_BYTES + 50, leak_bytes=0, settle_s=0.2)
    try:
        with closing(HttpEngine(Server(server.url), DIALECTS[dialect], PATIENT, memory=mine)) as engine:
            server.faults.lost_answers.add("/sleep" if dialect == "vllm" else "/release_memory_occupation")
            with pytest.raises(ServerFailed):
                engine.suspend()
            if dialect == "sglang":
                away.append(True)
                with pytest.raises(MemoryUnknown):
                    engine.resume()
            engine.resume()
            assert run(engine, request()).reason is FinishReason.LENGTH
        assert not server.machine.dead
    finally:
        server.close()


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_cache_is_taken_back_once_though_the_answer_to_that_was_lost(done: bool, again: bool) -> None:
    with rig("sglang", leak_bytes=20) as it:
        it.server.faults.leak_bytes = 8
        if again:
            it.engine.suspend()
            it.engine.resume()
        it.engine.suspend()
        it.server.faults.keeps_bytes = 100
        it.engine.update(1, {"path": "/weights/1"})
        it.server.faults.lost_answers.add("/resume_memory_occupation")
        with pytest.raises(ServerFailed):
            it.engine.resume()
        if not done:
            it.server.machine.asleep.add("kv_cache")
        it.engine.resume()
        assert it.server.machine.held() > CACHE_BYTES
        assert run(it.engine, request()).response.tokens == greedy("/weights/1", PROMPT, 12)


LOST = {
    "vllm": [
        "/pause", "/sleep", "/wake_up", "/collective_rpc", "/update_weight_version", "/reset_prefix_cache", "/resume",
    ],
    "sglang": [
        "/pause_generation", "/release_memory_occupation", "/resume_memory_occupation", "/update_weights_from_disk",
        "/flush_cache", "/continue_generation",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("dialect", "path"), [(dialect, path) for dialect, paths in LOST.items() for path in paths])
def test_each_step_may_be_asked_again_after_its_answer_was_lost(dialect: str, path: str) -> None:
    count = 200  # in far longer than all steps take, on a busy machine too
    with rig(dialect, token_s=0.01) as it:
        it.engine.submit(request(count=count))
        grown(it.engine, 2)
        it.server.faults.lost_answers.add(path)
        failed = 0
        steps: list[Callable[[], None]] = [
            it.engine.suspend,
            lambda: it.engine.update(1, {"path": "/weights/1"}, Begun.RECOMPUTE),
            it.engine.resume,
        ]
        for step in steps:
            try:
                step()
            except ServerFailed:
                failed += 1
                step()
        assert failed == 1
        assert not it.server.faults.lost_answers
        assert it.server.machine.sleeps == 1
        ended = all_ended(it.engine)["r"]
    split = ended.response.versions.index(1)
    assert ended.response.versions == (0,) * split + (1,) * (count - split)
    before = ended.response.tokens[:split]
    assert before == greedy("base", PROMPT, split)
    assert ended.response.tokens[split:] == greedy("/weights/1", PROMPT + before, count - split)


@BOTH
@pytest.mark.parametrize(
    "weights", [None, {"path": "/weights/5"}, {"update_info": {"weights": "g", "group_name": "g"}}]
)
def test_new_weights_take_over_between_two_tokens_and_each_says_whose_it_is(
    dialect: str, weights: dict[str, object] | None
) -> None:
    count = 200  # in far longer than all of it takes, on a busy machine too
    with rig(dialect, token_s=0.01) as it:
        for n in range(4):
            it.engine.submit(request(f"r{n}", count, prompt=(n + 1,)))
        grown(it.engine, 12)
        if weights is None:
            it.server.machine.pause(keep=True)
            it.server.machine.load("mine")
            it.server.machine.proceed()
        it.engine.update(5, weights, Begun.RECOMPUTE)
        assert it.engine.version == 5
        ended = all_ended(it.engine)
    name = "mine" if weights is None else str(weights.get("path", "g"))
    for n in range(4):
        response = ended[f"r{n}"].response
        split = response.versions.index(5)
        assert response.tokens[split:] == greedy(name, (n + 1, *response.tokens[:split]), count - split)
        assert set(response.versions[:split]) <= {0}
        if weights is not None:
            assert response.tokens[:split] == greedy("base", (n + 1,), split)


@BOTH
def test_an_update_that_would_break_on_policy_is_refused_and_changes_nothing(dialect: str) -> None:
    with rig(dialect, token_s=0.01) as it:
        it.engine.submit(request(count=40))
        grown(it.engine, 3)
        started = len(it.server.control_calls())
        for version, begun, why in (
            (0, Begun.RECOMPUTE, "not above"),
            (1, Begun.REFUSE, "have begun"),
            (1, Begun.KEEP, "say RECOMPUTE"),
        ):
            with pytest.raises(UpdateRefused, match=why):
                it.engine.update(version, None, begun)
        with pytest.raises(InvalidSpec, match="tensors can't go over HTTP"):
            it.engine.update(1, {"layer.0": object()}, Begun.RECOMPUTE)
        assert it.server.control_calls()[started:] == []
        assert all_ended(it.engine)["r"].response.tokens == greedy("base", PROMPT, 40)


@BOTH
def test_a_request_of_which_nothing_was_heard_begins_anew_under_the_new_weights(dialect: str) -> None:
    with rig(dialect, token_s=0.02) as it:
        it.engine.submit(request(temperature=1.0, seed=3))
        it.engine.submit(request("other", temperature=1.0, seed=3))
        events = it.engine.step()
        asked = ("POST /generate", "POST /v1/completions")
        assert eventually(lambda: len([call for call in it.server.calls if call.startswith(asked)]) == 2)
        it.engine.cancel(["other"])
        events += it.engine.step()
        if all(
            event.id != "r" for event in events
        ):  # on a busy machine a token may have come: then it is refused, as it must be
            it.engine.update(1, {"path": "/weights/1"})
            ended = all_ended(it.engine)["r"]
            assert set(ended.response.versions) == {1}
            assert ended.response.tokens == run(it.engine, request("again", temperature=1.0, seed=3)).response.tokens


@BOTH
@pytest.mark.parametrize("softly", [False, True])
def test_weights_that_are_half_new_are_never_served(dialect: str, softly: bool) -> None:
    with rig(dialect, token_s=0.02) as it:
        it.engine.submit(request(count=40))
        grown(it.engine, 3)
        it.server.faults.update_fails, it.server.faults.fails_softly = 1, softly
        with pytest.raises(ServerFailed, match="out of memory in the middle"):
            it.engine.update(2, {"path": "/weights/2"}, Begun.RECOMPUTE)
        assert it.engine.version == 0
        with pytest.raises(ServerMismatch, match="update to version 2 did not end"):
            it.engine.resume()
        assert it.engine.is_suspended
        it.engine.update(2, {"path": "/weights/2"}, Begun.RECOMPUTE)
        it.engine.resume()
        response = all_ended(it.engine)["r"].response
    split = response.versions.index(2)
    assert response.tokens[split:] == greedy("/weights/2", PROMPT + response.tokens[:split], 40 - split)


def test_a_cache_that_vllm_says_it_has_not_reset_is_reset_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig("vllm") as it:
        run(it.engine, request())
        it.server.faults.holds_blocks = 2
        it.engine.update(1, {"path": "/weights/1"})
        assert run(it.engine, request("again")).response.tokens == greedy("/weights/1", PROMPT, 12)
        it.server.faults.holds_blocks = 1000
        monkeypatch.setattr(life_module, "IDLE_S", 0.05)
        with pytest.raises(ServerFailed, match=r"/reset_prefix_cache failed: .*False"):
            it.engine.update(2, {"path": "/weights/2"})
        it.server.faults.holds_blocks = 0
        it.engine.resume()
        assert run(it.engine, request("last")).response.tokens == greedy("/weights/2", PROMPT, 12)


SESSION = {
    "vllm": ["/start_weight_update", "/update_weights", "/finish_weight_update"],
    "sglang": ["/begin_weight_update", "/update_weights_from_distributed", "/end_weight_update"],
}
KINDS = {"vllm": ["", "keeps_session"], "sglang": ["", "knows_no_session", "asserts_session"]}


def over_a_group(name: str) -> dict[str, object]:
    return {"update_info": {"weights": name, "group_name": name}}


@pytest.mark.parametrize(
    ("dialect", "kind", "lost"),
    [
        (dialect, kind, lost)
        for dialect, paths in SESSION.items()
        for kind in KINDS[dialect]
        for lost in ["", *paths]
        if (kind, lost) != ("asserts_session", "/begin_weight_update")  # what was done twice has ended it
    ],
)
def test_weights_that_come_over_a_group_begin_anew_where_those_before_did_not_all_come(
    dialect: str, kind: str, lost: str
) -> None:
    with rig(dialect) as it:
        if kind:
            setattr(it.server.faults, kind, True)
        if lost:
            it.server.faults.lost_answers.add(lost)
        else:
            it.server.faults.update_fails = 1
        with pytest.raises(ServerFailed):
            it.engine.update(1, over_a_group("g1"))
        assert it.engine.is_suspended
        it.engine.update(2, over_a_group("g2"))
        it.engine.resume()
        assert not it.server.machine.updating
        assert run(it.engine, request()).response.tokens == greedy("g2", PROMPT, 12)
        it.engine.update(3, over_a_group("g3"))
        assert run(it.engine, request()).response.tokens == greedy("g3", PROMPT, 12)


@BOTH
@pytest.mark.parametrize("left", [False, True])
def test_a_server_that_was_left_or_started_anew_amid_an_update_takes_the_next(dialect: str, left: bool) -> None:
    with rig(dialect) as it:
        it.server.machine.updating = left  # by an engine that is gone
        it.server.faults.update_fails = 1
        with pytest.raises(ServerFailed):
            it.engine.update(1, over_a_group("g1"))
        if not left:
            it.server.machine.restart()
        it.server.faults.update_fails = 0
        it.engine.update(2, over_a_group("g2"))
        it.engine.resume()
        assert run(it.engine, request()).response.tokens == greedy("g2", PROMPT, 12)


@pytest.mark.parametrize(("dialect", "silent"), [("vllm", False), ("sglang", False), ("sglang", True)])
def test_requests_that_wait_in_the_servers_queue_outlive_a_sleep(dialect: str, silent: bool) -> None:
    with rig(dialect, replace(PATIENT, cuts=0), token_s=0.01) as it:
        it.server.faults.room, it.server.faults.counts_no_prompt = 1, silent
        for n in range(3):
            it.engine.submit(request(f"r{n}", 20))
        grown(it.engine, 3)
        assert eventually(lambda: len(it.server.machine.queue) == 2)
        it.engine.suspend()
        it.engine.resume()
        ended = all_ended(it.engine)
    assert [ended[f"r{n}"].response.tokens for n in range(3)] == [greedy("base", PROMPT, 20)] * 3


def test_what_is_unfinished_outlives_a_server_that_ended_of_a_folder_that_can_not_be_read() -> None:
    with rig("sglang", token_s=0.01) as it:
        it.engine.submit(request(count=40))
        grown(it.engine, 3)
        it.server.faults.ends_of_failing = True
        for _ in range(2):
            with pytest.raises(ServerFailed):
                it.engine.update(1, {"path": "/weights/1"}, Begun.RECOMPUTE)
        assert it.engine.is_suspended
        assert not it.engine.is_healthy()
        (unfinished,) = it.engine.export()
        it.server.machine.dead = ""
    had = unfinished.response
    assert (had.tokens, had.versions) == (greedy("base", PROMPT, len(had.tokens)), (0,) * len(had.tokens))
    assert len(had.tokens) >= 3


def test_a_server_to_which_no_weights_come_over_a_group_takes_them_from_a_folder() -> None:
    with rig("vllm") as it:
        it.server.faults.transfers_nothing = True
        for _ in range(2):
            with pytest.raises(ServerFailed, match="not configured"):
                it.engine.update(1, over_a_group("g1"))
        it.engine.update(1, {"path": "/weights/1"})
        it.engine.resume()
        assert run(it.engine, request()).response.tokens == greedy("/weights/1", PROMPT, 12)


@pytest.mark.parametrize(("dialect", "kind"), [(dialect, kind) for dialect, kinds in KINDS.items() for kind in kinds])
def test_weights_that_began_to_come_over_a_group_may_come_from_a_folder_but_are_not_in_place(
    dialect: str, kind: str
) -> None:
    with rig(dialect) as it:
        if kind:
            setattr(it.server.faults, kind, True)
        it.server.faults.update_fails = 1
        with pytest.raises(ServerFailed, match="in the middle"):
            it.engine.update(1, over_a_group("g1"))
        older = kind == "knows_no_session"
        with nullcontext() if older else pytest.raises(ServerMismatch, match="let them come from a folder"):
            it.engine.update(1)
        it.engine.update(2, {"path": "/weights/2"})
        it.engine.resume()
        assert run(it.engine, request()).response.tokens == greedy("/weights/2", PROMPT, 12)
        it.engine.update(3, over_a_group("g3"))
        assert run(it.engine, request()).response.tokens == greedy("g3", PROMPT, 12)
        assert not it.server.machine.updating


def test_a_connection_is_not_used_when_its_server_may_be_about_to_close_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wire_module.KEPT_S < 5
    monkeypatch.setattr(wire_module, "KEPT_S", 0.05)
    with rig("vllm") as it:
        assert it.engine.is_healthy()
        before = set(it.server.connections)
        time.sleep(0.1)
        assert it.engine.is_healthy()
        assert it.server.connections - before


@BOTH
def test_a_request_that_reached_a_paused_server_does_not_hold_up_the_sleep(dialect: str) -> None:
    with rig(dialect, replace(PATIENT, drain_s=0.1)) as it:
        it.server.machine.pause(keep=True)
        it.engine.submit(request())
        it.engine.step()
        assert eventually(
            lambda: any(call.split(" ")[1] in ("/v1/completions", "/generate") for call in it.server.calls)
        )
        it.engine.suspend()
        assert it.server.machine.held() == BASE_BYTES
        it.engine.resume()
        assert all_ended(it.engine)["r"].response.tokens == greedy("base", PROMPT, 12)


@BOTH
def test_a_server_that_paused_without_saying_so_is_woken(dialect: str) -> None:
    with rig(dialect) as it:
        it.server.faults.lost_answers.add("/pause" if dialect == "vllm" else "/pause_generation")
        with pytest.raises(ServerFailed):
            it.engine.suspend()
        assert it.server.machine.paused
        it.engine.resume()  # the sleep is given up
        assert run(it.engine, request()).response.tokens == greedy("base", PROMPT, 12)


@BOTH
def test_a_pause_without_an_answer_fails_no_response_when_the_sleep_is_given_up(dialect: str) -> None:
    with rig(dialect, token_s=0.01) as it:
        it.engine.submit(request(count=60))
        grown(it.engine, 3)
        it.server.faults.lost_answers.add("/pause" if dialect == "vllm" else "/pause_generation")
        with pytest.raises(ServerFailed):
            it.engine.suspend()
        it.engine.resume()
        ended = all_ended(it.engine)["r"]
    assert (ended.reason, ended.response.tokens) == (FinishReason.LENGTH, greedy("base", PROMPT, 60))


@BOTH
@pytest.mark.parametrize("then", ["resume", "update", "update asleep", "suspend"])
@pytest.mark.parametrize("fault", ["504", "interrupted", "lost on the way"])
def test_a_server_that_may_sleep_is_woken_before_anything_else(
    dialect: str, fault: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = {"vllm": "/sleep", "sglang": "/release_memory_occupation"}[dialect]
    with rig(dialect, canary=(5, 6)) as it:
        run(it.engine, request("before"))
        break_answer(it, path, fault, monkeypatch)
        with pytest.raises(KeyboardInterrupt if fault == "interrupted" else ServerFailed):
            it.engine.suspend()
        assert bool(it.server.machine.asleep) is (fault != "lost on the way")
        if then == "suspend":
            it.engine.suspend()
            assert it.server.machine.held() == BASE_BYTES
        elif then.startswith("update"):
            it.engine.update(1, {"path": "/weights/1"})
            if then == "update asleep":
                it.engine.suspend()
                assert it.server.machine.held() == BASE_BYTES
        it.engine.resume()
        ended = run(it.engine, request("after"))
    assert ended.response.tokens == greedy("/weights/1" if "update" in then else "base", PROMPT, 12)


@BOTH
def test_a_sleep_that_the_server_refuses_leaves_it_awake(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = {"vllm": "/sleep", "sglang": "/release_memory_occupation"}[dialect]
    with rig(dialect) as it:
        break_answer(it, path, "404", monkeypatch)
        for _ in range(2):
            with pytest.raises(ServerFailed, match="404"):
                it.engine.suspend()
        it.engine.resume()
        assert not [call for call in it.server.control_calls() if "wake" in call or "resume_memory" in call]
        assert run(it.engine, request()).response.tokens == greedy("base", PROMPT, 12)


def break_answer(it: Rig, path: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of this path are answered otherwise: the next one only, but for 404."""
    ask = Wire.ask

    def broken(wire: Wire, call: Call, within_s: float | None = None) -> Reply:
        if call.path != path:
            return ask(wire, call, within_s)
        if fault == "404":
            raise ServerRefused(404, "404")
        monkeypatch.setattr(Wire, "ask", ask)
        if fault == "lost on the way":
            raise ServerFailed("reset")
        ask(wire, call, within_s)
        raise KeyboardInterrupt if fault == "interrupted" else ServerRefused(504, "a proxy says so")

    monkeypatch.setattr(Wire, "ask", broken)


@BOTH
def test_a_server_that_runs_without_saying_so_is_frozen_again(dialect: str) -> None:
    with rig(dialect) as it:
        it.engine.suspend(keep=True)
        it.server.faults.lost_answers.add("/resume" if dialect == "vllm" else "/continue_generation")
        with pytest.raises(ServerFailed):
            it.engine.resume()
        it.engine.suspend(keep=True)
        assert it.server.machine.paused
        it.engine.resume()


@BOTH
def test_an_engine_does_not_take_a_server_of_another_version_for_its_own(dialect: str) -> None:
    with rig(dialect) as it:
        it.engine.update(3, {"path": "/weights/3"})
        with pytest.raises(ServerMismatch, match=r"version '3' .* the engine has 0: make the engine with version=3"):
            HttpEngine(Server(it.server.url), DIALECTS[dialect], PATIENT)
        again = HttpEngine(Server(it.server.url), DIALECTS[dialect], PATIENT, version=3)
        assert run(again, request()).response.versions == (3,) * 12
        again.close()


def test_memory_that_still_falls_is_not_yet_what_is_held_asleep() -> None:
    falling = iter([900, 90, 60, 40, 40, 40])
    assert Memory(lambda: next(falling), {}, asleep_bytes=100, leak_bytes=0).settle() == 40
    assert Memory(lambda: id(object()) % 7, {}, asleep_bytes=100, leak_bytes=0, settle_s=0.05).settle() < 7


def test_the_driver_tells_what_processes_hold(tmp_path: Path) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho '12, 100'\necho '13, 7'\necho '12, 5'\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    assert nvidia_smi([12], str(command))() == 105 * 2**20
    command.write_text("#!/bin/sh\necho '12, [N/A]'\n")
    with pytest.raises(MemoryHeld, match="does not tell"):
        nvidia_smi([12], str(command))()
    with pytest.raises(MemoryHeld, match="does not tell"):
        nvidia_smi([12], str(tmp_path / "missing"))()
    command.write_text("#!/bin/sh\necho '4242, 70000'\n")
    with pytest.raises(MemoryHeld, match=r"lists none of \[12\]"):
        nvidia_smi([12], str(command))()


def test_the_environment_of_a_process_can_be_read() -> None:
    assert environment_of(os.getpid()).get("PATH") == os.environ.get("PATH")


@BOTH
def test_a_sleep_after_a_freeze_is_followed_by_the_canary_too(dialect: str) -> None:
    with rig(dialect, canary=(11, 12, 13)) as it:
        it.server.faults.gibberish = True
        it.engine.suspend(keep=True)
        it.engine.suspend()
        with pytest.raises(CanaryDied):
            it.engine.resume()


def run_to_the_end(engine: HttpEngine) -> list[Ended]:
    ended: list[Ended] = []
    while engine.unfinished:
        ended += [event for event in engine.step() if isinstance(event, Ended)]
    return ended


@BOTH
def test_a_name_that_comes_again_is_not_given_what_came_for_the_one_before(dialect: str) -> None:
    with rig(dialect, token_s=0.005) as it:
        it.engine.submit(request("same", 60, prompt=(11, 12, 13)))
        grown(it.engine, 2)
        time.sleep(0.1)  # more has come, and nobody has looked
        it.engine.cancel(["same"])
        it.engine.submit(request("same", 20, prompt=(7, 8, 9)))
        assert run_to_the_end(it.engine)[-1].response.tokens == greedy("base", (7, 8, 9), 20)
        it.engine.submit(request("same", 60))
        grown(it.engine, 2)
        time.sleep(0.1)
        it.engine.adopt(it.engine.export())
        assert run_to_the_end(it.engine)[-1].response.tokens == greedy("base", PROMPT, 60)

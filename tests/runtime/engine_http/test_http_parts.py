"""The pure parts: bytes into events, events into tokens, pages into numbers, descriptions into calls."""

import asyncio
import json
import pickle
from dataclasses import replace
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.runtime.engine.http import ServerRefused, Settings, Unsound, Vllm, reading
from rollmux.runtime.engine.http.calls import Attempt, Piece
from rollmux.runtime.engine.http.counter import Counter
from rollmux.runtime.engine.http.live import Live
from rollmux.runtime.engine.http.metrics import Metrics
from rollmux.runtime.engine.http.sse import Events
from rollmux.runtime.engine.http.wire import Cut, Heard, Refused, Stream
from rollmux.runtime.engine.requests import FinishReason, Generated, GenerationRequest, Grown, Unfinished

TEXTS = st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), min_size=1), max_size=6)


@given(texts=TEXTS, end=st.sampled_from([b"\n", b"\r\n"]), data=st.data())
def test_events_are_the_same_wherever_the_bytes_are_cut(texts: list[str], end: bytes, data: st.DataObject) -> None:
    whole = b"".join(b"data: " + text.encode() + end + end for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    events = Events()
    found = [event for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True) for event in events.feed(whole[a:b])]
    assert found == [text.encode() for text in texts]


@given(left_out=st.integers(1, 20))
def test_an_event_that_did_not_come_whole_is_not_given(left_out: int) -> None:
    whole = b'data: {"a": 1}\n\ndata: {"b": "a longer one"}\n\n'
    assert list(Events().feed(whole[:-left_out])) == [b'{"a": 1}']


def asked(count: int = 20, stops: tuple[int, ...] = ()) -> GenerationRequest:
    return GenerationRequest("r", (1, 2), count, temperature=0.0, stop_tokens=stops)


@given(steps=st.lists(st.tuples(st.integers(-5, 4), st.integers(0, 20)), max_size=12))
def test_pieces_that_overlap_repeat_or_come_late_make_one_response(steps: list[tuple[int, int]]) -> None:
    live = Live(asked())
    assert live.next_attempt("x").max_tokens == 20
    for ahead, back in [*steps, (20, 20)]:
        had = len(live.tokens)
        total = min(20, max(0, had + ahead))
        places = range(max(0, min(had, total) - back), total)
        gained = live.take(Piece(tuple(100 + n for n in places), tuple(-float(n) for n in places), total), 4)
        assert gained is not None
        assert gained.tokens == tuple(100 + n for n in range(had, max(had, total)))
    assert live.generated().tokens == tuple(range(100, 120))
    assert live.generated().logprobs == tuple(-float(n) for n in range(20))
    assert live.generated().versions == (4,) * 20


def test_a_piece_is_not_compared_with_all_that_came_before_it() -> None:
    class Untouched(list[int]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("the work would grow with the square of the length")

    live = Live(asked(stops=(9,)))
    live.tokens = Untouched([4, 5])
    live.take(Piece((6,), (-1.0,), 3), 0)
    assert live.tokens == [4, 5, 6]
    live.tokens.append(9)
    with pytest.raises(Unsound, match="after the stop token 9"):
        live.take(Piece((7,), (-1.0,), 5), 0)


def test_a_piece_after_a_gap_changes_nothing() -> None:
    live = Live(asked())
    assert live.take(Piece((5,), (-1.0,), 2), 0) is None
    assert live.tokens == []


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        (Piece((8,), (-1.0,), 1), "were"),
        (Piece((5,), (-1.0,), None), "does not count"),
        (Piece((5, 6), (-1.0, -1.0), 1), "in all"),
        (Piece((6,), (float("inf"),), 2), "not all numbers"),
        (Piece((6,), (10**400,), 2), "not all numbers"),
        (Piece((6,), (), 2), "0 log-probabilities"),
        (Piece((9, 6), (-1.0, -1.0), 3), "after the stop token 9"),
        (Piece((6,) * 20, (-1.0,) * 20, 21), "more than 20"),
        (Piece((6,), (-1.0,), 2, prompt_tokens=3), "a prompt of 3 tokens, it was sent 2"),
        (Piece((6,), (-1.0,), 2, version="7"), "draws with version '7', the engine has 0"),
    ],
)
def test_a_piece_that_contradicts_is_told_and_takes_nothing(piece: Piece, why: str) -> None:
    live = Live(asked(stops=(9,)))
    live.take(Piece((5,), (-1.0,), 1), 0)
    with pytest.raises(Unsound, match=why):
        live.take(piece, 0)
    assert live.tokens == [5]


def test_what_is_left_of_a_request_is_asked_with_a_seed_of_its_own() -> None:
    whole = Vllm("m").generate(Attempt("a", asked(), ())).body or {}
    rest = Vllm().generate(Attempt("b", asked(), (7, 8))).body or {}
    assert (whole["model"], whole["prompt"], whole["max_tokens"], whole["seed"]) == ("m", [1, 2], 20, 0)
    assert (rest["prompt"], rest["max_tokens"]) == ([1, 2, 7, 8], 18)
    assert "model" not in rest
    assert rest["seed"] != 0
    assert -(2**63) <= rest["seed"] < 2**63
    json.dumps(rest)


@pytest.mark.parametrize("weights", [{"path": ""}, {"path": 3}, {"path": "a", "more": 1}, {"update_info": 1}, {}])
def test_weights_that_are_no_place_are_refused(weights: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec, match="folder"):
        Vllm().update(1, weights)


def test_numbers_that_are_not_told_or_are_none_count_nothing() -> None:
    found = Metrics('a 3\na NaN\nb{x="4",y="none"} 1\nb{x="4",y="5"} 1\n')
    assert (found.sum("a"), found.share("a"), found.sum("c"), found.share("c")) == (3, 3.0, 0, 0.0)
    assert found.label_product("b", "x", "y") == 20


def test_settings_that_are_no_settings_are_refused_all_at_once() -> None:
    with pytest.raises(InvalidSpec, match="4 problems"):
        Settings(max_length=0, inbox=-1, cuts=-1, stall_s=float("nan"))


def test_a_refusal_can_go_from_process_to_process() -> None:
    refused = pickle.loads(pickle.dumps(ServerRefused(400, "no")))
    assert (refused.status, str(refused)) == (400, "no")


class Desk:
    """A counter whose clock is moved by hand, and streams that lead nowhere."""

    def __init__(self, ids: str, **settings: float) -> None:
        self.now_s = 0.0
        self.counter = Counter(Settings(max_length=99, **settings), lambda each: None, lambda: self.now_s)  # type: ignore[arg-type]
        self.counter.add([Unfinished(replace(asked(), id=name), Generated()) for name in ids])
        self._loop = asyncio.new_event_loop()

    def launch(self) -> list[str]:
        self.counter.launch(lambda attempt, live: Stream(self._loop, set()), "x")
        return list(self.counter.open)

    def speak(self, name: str) -> None:
        count = len(self.counter.live[name].tokens) + 1
        self.counter.hear(Heard((name, self.counter.open[name].attempt), Piece((5,), (-1.0,), count)), 0)

    def stalled(self) -> str:
        return "".join(live.request.id for live in self.counter.stalled())

    def __enter__(self) -> "Desk":
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()


def test_who_waits_in_the_queue_of_a_server_that_speaks_has_not_stalled() -> None:
    with Desk("ab", stall_s=10.0, queue_s=100.0) as desk:
        desk.launch()
        for _ in range(10):
            desk.now_s += 9.0
            desk.speak("a")
            assert desk.stalled() == ""
        desk.now_s += 9.0
        assert desk.stalled() == ""
        desk.speak("b")
        desk.now_s += 10.0
        assert desk.stalled() == ""
        desk.now_s += 1.0
        assert desk.stalled() == "ab"  # now that nobody speaks


def test_a_stream_whose_connection_is_dead_ends_though_others_go_on() -> None:
    with Desk("ab", stall_s=10.0, queue_s=50.0) as desk:
        desk.launch()
        while not desk.stalled():
            desk.now_s += 9.0
            desk.speak("a")
        assert (desk.stalled(), desk.now_s) == ("b", 54.0)
    with Desk("ab", stall_s=10.0, queue_s=1000.0) as desk:  # and sooner once the others have ended
        desk.launch()
        desk.now_s += 9.0
        desk.speak("a")
        desk.counter.end(desk.counter.live["a"], FinishReason.LENGTH)
        desk.now_s += 9.0
        assert desk.stalled() == ""
        desk.now_s += 2.0
        assert desk.stalled() == "b"


def test_who_could_not_be_heard_was_not_silent() -> None:
    with Desk("ab", stall_s=10.0) as desk:
        desk.launch()
        desk.now_s += 99.0
        assert desk.stalled() == "ab"
        desk.counter.listen_anew()
        desk.now_s += 10.0
        assert desk.stalled() == ""
        desk.now_s += 1.0
        assert desk.stalled() == "ab"


def test_who_came_first_is_first_and_a_pause_keeps_no_other_waiting() -> None:
    with Desk("abcd", max_open=2, retry_s=5.0) as desk:
        assert desk.launch() == ["a", "b"]
        desk.counter.cut(desk.counter.live["a"], "reset")
        assert desk.launch() == ["b", "c"]
        desk.counter.remove(desk.counter.live["b"])
        desk.counter.remove(desk.counter.live["d"])
        assert desk.launch() == ["c"]  # a pauses
        desk.now_s += 5.0
        assert desk.launch() == ["c", "a"]
        assert not desk.counter.waiting


class Counted(str):
    """A name that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str(self) == str(other)

    __hash__ = str.__hash__


def test_who_leaves_a_long_queue_is_not_looked_for_among_the_others() -> None:
    names = [Counted(n) for n in range(300)]
    with Desk("") as desk:
        desk.counter.add([Unfinished(replace(asked(), id=name), Generated()) for name in names])
        Counted.compared = 0
        for name in reversed(names):
            desk.counter.remove(desk.counter.live[name])
        assert not desk.counter.waiting
    assert Counted.compared < 10 * len(names)


def test_news_of_an_attempt_that_was_given_up_changes_nothing() -> None:
    loop = asyncio.new_event_loop()
    counter = Counter(Settings(max_length=99, retry_s=0.0), lambda each: None, lambda: 0.0)
    counter.add([Unfinished(asked(), Generated())])
    for attempt in (1, 2):
        counter.launch(lambda attempt, live: Stream(loop, set()), "x")
        assert counter.open["r"].attempt == attempt
        if attempt == 1:
            counter.hear(Heard(("r", 1), Cut("reset")), 0)
    for late in (Piece((5,), (-1.0,), 1), Cut("late"), Refused("late")):
        counter.hear(Heard(("r", 1), late), 0)
        counter.hear(Heard(("unknown", 1), late), 0)
    assert counter.told() == []
    assert counter.live["r"].cuts == 1
    counter.hear(Heard(("r", 2), Piece((5,), (-1.0,), 1)), 0)
    assert [type(event) for event in counter.told()] == [Grown]
    loop.close()


@pytest.mark.parametrize("found", [-1, 1.0, True, "1", None, [1]])
def test_a_count_that_is_none_is_not_counted_with(found: object) -> None:
    with pytest.raises(ValueError, match="completion_tokens: a count was expected"):
        reading.count("completion_tokens", found)

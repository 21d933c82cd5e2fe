"""A predicted round against one played token by token, and what it must keep whatever the load."""

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.packer.round_time import DecodeRates, RoundLoad, predict

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12).map(tuple)


def rates(size: int = 1, room: int = 10**6, base_s: float = 1.0) -> DecodeRates:
    return DecodeRates(
        size=size,
        kv_room_tokens=room,
        base_s=base_s,
        per_request_s=0.25,
        per_kv_token_s=0.125,
        prefill_tokens_per_s=64.0,
    )


@st.composite
def loads(draw: st.DrawFn) -> RoundLoad:
    requests = draw(st.integers(1, 30))
    needed = draw(st.none() | st.integers(1, requests))
    return RoundLoad(requests, draw(LENGTHS), draw(st.integers(0, 20)), needed)


def played(one: DecodeRates, load: RoundLoad, replicas: int) -> tuple[float, int, int]:
    """The same engine, a token at a time: seconds, preemptions and tokens computed again."""
    lengths, needed = load.share(replicas)
    waiting = deque([load.prompt_tokens, length] for length in lengths)
    running: list[list[int]] = []  # held, to come
    elapsed_s, done, preemptions, recomputed = 0.0, 0, 0, 0
    ended = True
    while done < needed:
        while (
            ended and waiting and sum(held for held, _ in running) + waiting[0][0] + len(running) < (one.kv_room_tokens)
        ):
            running.append(waiting.popleft())
            elapsed_s += running[-1][0] / one.prefill_tokens_per_s
        held = sum(request[0] for request in running)
        ended = held + len(running) <= one.kv_room_tokens
        if not ended:
            waiting.appendleft(running.pop())
            preemptions, recomputed = preemptions + 1, recomputed + waiting[0][0]
            continue
        elapsed_s += one.base_s + one.per_request_s * len(running) + one.per_kv_token_s * held
        for request in running:
            request[0], request[1] = request[0] + 1, request[1] - 1
        assert sum(request[0] for request in running) <= one.kv_room_tokens
        ended = any(not left for _, left in running)
        done += sum(not left for _, left in running)
        running = [request for request in running if request[1]]
    return elapsed_s, preemptions, recomputed


@given(load=loads(), spare=st.integers(0, 120), replicas=st.integers(1, 3))
def test_a_prediction_is_what_playing_token_by_token_gives(load: RoundLoad, spare: int, replicas: int) -> None:
    tight = rates(room=load.prompt_tokens + max(load.lengths) + spare)
    found = predict(tight, load, replicas)
    assert found is not None
    seconds, preemptions, recomputed = played(tight, load, replicas)
    assert found.round_s == pytest.approx(seconds)
    assert (found.preemptions, found.recomputed_tokens) == (preemptions * replicas, recomputed * replicas)


@given(load=loads(), gpus=st.integers(1, 8))
def test_with_room_for_all_nothing_is_preempted_and_the_longest_needed_response_sets_the_steps(
    load: RoundLoad, gpus: int
) -> None:
    found = predict(DecodeRates(1, 10**6, 1.0, 0.0, 0.0, 1e12), load, gpus)
    lengths, needed = load.share(gpus)
    assert found is not None
    assert (found.preemptions, found.recomputed_tokens) == (0, 0)
    assert found.round_s == pytest.approx(sorted(lengths)[needed - 1])


@given(load=loads(), replicas=st.integers(1, 8))
def test_a_replica_has_its_share_of_the_requests_with_the_shortest_and_the_longest(
    load: RoundLoad, replicas: int
) -> None:
    lengths, needed = load.share(replicas)
    assert replicas * (len(lengths) - 1) < load.requests <= replicas * len(lengths)
    assert max(lengths) == max(load.lengths)
    assert len(lengths) == 1 or min(lengths) == min(load.lengths)
    assert set(lengths) <= set(load.lengths)
    all_needed = load.requests if load.needed is None else load.needed
    assert needed / len(lengths) >= all_needed / load.requests > (needed - 1) / len(lengths)


@given(load=loads(), spare=st.integers(0, 120))
def test_short_room_never_makes_a_round_that_waits_for_all_faster(load: RoundLoad, spare: int) -> None:
    """Only where steps cost the same however many run: else fewer at once make shorter steps."""
    everything = RoundLoad(load.requests, load.lengths, load.prompt_tokens)
    room = load.prompt_tokens + max(load.lengths) + spare
    tight, wide = (predict(DecodeRates(1, each, 1.0, 0.0, 0.0, 64.0), everything, 1) for each in (room, 10**6))
    assert tight is not None
    assert wide is not None
    assert tight.round_s >= wide.round_s - 1e-9


def test_lengths_do_not_come_in_their_order() -> None:
    lengths, _ = RoundLoad(64, tuple(range(1, 65))).share(1)
    rises = sum(a < b for a, b in pairwise(lengths))
    assert sorted(lengths) == list(range(1, 65))
    assert 16 < rises < 48


def test_what_a_replica_can_not_hold_is_not_predicted() -> None:
    load = RoundLoad(4, (10, 50), prompt_tokens=6)
    assert predict(rates(room=55), load, 2) is None
    assert predict(rates(room=56), load, 2) is not None
    assert predict(rates(size=4), load, 2) is None, "no whole replica"


def test_a_load_and_rates_report_all_that_is_wrong_with_them() -> None:
    with pytest.raises(InvalidSpec) as load:
        RoundLoad(requests=4, lengths=(3, 0), prompt_tokens=-1, needed=5)
    assert [problem.path for problem in load.value.problems] == [
        "round_load.needed",
        "round_load.prompt_tokens",
        "round_load.lengths[1]",
    ]
    with pytest.raises(InvalidSpec, match="requests") as empty:
        RoundLoad(requests=0, lengths=(), needed=5)
    assert len(empty.value.problems) == 2
    with pytest.raises(InvalidSpec) as speed:
        DecodeRates(0, -1, float("nan"), -1.0, float("inf"), 0.0)
    assert len(speed.value.problems) == 6

"""The replay engine: lengths and times as told, without a model and without torch."""

import subprocess
import sys
from dataclasses import replace
from statistics import median

import pytest

from rollmux.errors import InvalidSpec
from rollmux.packer import DecodeRates
from rollmux.runtime.engine import Canary, Ended, FinishReason, GenerationRequest, Limits, stream
from rollmux.runtime.engine.replay import Clock, Lognormal, Played, replay

RATES = DecodeRates(1, 10_000, base_s=0.5, per_request_s=0.25, per_kv_token_s=0.01, prefill_tokens_per_s=10.0)
LIMITS = Limits(room_tokens=10_000, max_running=2, page_tokens=10)


class Hands:
    """A clock that only sleep moves, by a little more than it was asked."""

    def __init__(self, overshoot: float = 0.0) -> None:
        self.now_s, self.overshoot = 100.0, overshoot

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_s += seconds + self.overshoot

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now_s, self.sleep)


def request(name: str, seed: int = 0, limit: int = 50) -> GenerationRequest:
    return GenerationRequest(name, (1,) * 20, limit, seed=seed, stop_tokens=(0,))


def test_neither_the_seam_nor_replay_needs_torch() -> None:
    code = "import sys, rollmux.runtime.engine.replay; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_responses_have_their_lengths_and_end_by_the_end_token() -> None:
    engine = replay(Played(lambda request: (3, 7, 90)[request.seed % 3], RATES), LIMITS, clock=Hands().clock)
    for seed in range(30):
        engine.submit(request(f"r{seed}", seed))
    ends = {event.id: event for event in stream(engine) if isinstance(event, Ended)}
    lengths = {(len(end.response.tokens), end.reason) for end in ends.values()}
    assert lengths == {(3, FinishReason.STOP), (7, FinishReason.STOP), (50, FinishReason.LENGTH)}
    for end in ends.values():
        assert (0 in end.response.tokens[:-1]) is False
        assert (end.response.tokens[-1] == 0) is (end.reason is FinishReason.STOP)


def test_a_step_takes_what_the_rates_say() -> None:
    hands = Hands()
    engine = replay(Played(lambda _: 3, RATES), LIMITS, clock=hands.clock)
    engine.submit(request("a"))
    engine.submit(replace(request("b"), prompt=(2,) * 20))
    engine.submit(request("waits"))
    engine.step()
    assert hands.now_s == pytest.approx(100 + 40 / 10 + 0.5)
    engine.step()
    assert hands.now_s == pytest.approx(104.5 + 0.5 + 2 * 0.25 + 40 * 0.01)
    engine.step()
    assert hands.now_s == pytest.approx(105.9 + 0.5 + 2 * 0.25 + 42 * 0.01)


def test_what_sleep_overshoots_does_not_add_up_and_idle_time_is_not_made_up() -> None:
    hands = Hands(overshoot=0.1)
    engine = replay(Played(lambda _: 40, RATES), LIMITS, clock=hands.clock)
    engine.submit(request("a"))
    list(stream(engine))
    busy_s = 2.5 + 39 * 0.75 + 0.01 * sum(range(20, 59))
    assert hands.now_s - 100 == pytest.approx(busy_s + 0.1)
    hands.now_s += 1000
    begun = hands.now_s
    engine.submit(request("b"))
    engine.step()
    assert hands.now_s - begun == pytest.approx(2.5 + 0.1)


def test_modelled_lengths_have_their_median_and_tail() -> None:
    lengths = sorted(Lognormal(200, 1.0)(request("r", seed)) for seed in range(4000))
    assert median(lengths) == pytest.approx(200, rel=0.08)
    assert lengths[3364] / 200 == pytest.approx(2.718, rel=0.1)  # 84.1 % lie below one sigma
    assert {Lognormal(9, 0)(request("r", seed)) for seed in range(9)} == {9}


def test_a_length_is_the_requests_own_wherever_it_runs() -> None:
    lengths = Lognormal(200, 1.0)
    assert [lengths(request("a", seed)) for seed in range(50)] == [lengths(request("b", seed)) for seed in range(50)]


def test_a_canary_sits_in_a_replay_engine_too() -> None:
    engine = replay(Played(lambda _: 5, RATES), LIMITS, clock=Hands().clock)
    canary = Canary.learn(engine, (1, 2), 8)
    engine.suspend()
    engine.resume()
    canary.check(engine)


def test_what_can_not_be_played_is_refused() -> None:
    for wrong in (
        lambda: Lognormal(0, 1),
        lambda: Lognormal(5, -1),
        lambda: Played(Lognormal(5, 1), RATES, end_token=9, vocabulary=9),
    ):
        with pytest.raises(InvalidSpec):
            wrong()

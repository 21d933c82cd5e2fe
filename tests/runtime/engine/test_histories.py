"""Any interleaving of calls ends every request exactly once, with the tokens it would have had alone.

The models are in double precision: in single precision sums depend on the batch by a rounding, which now and
then decides between two tokens.
"""

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollmux.packer import DecodeRates
from rollmux.runtime.engine import Engine, Limits
from rollmux.runtime.engine.replay import Clock, Lognormal, Played, replay
from rollmux.runtime.engine.slots import slots
from tests.runtime.engine.histories import CALLS, History, alone, some_requests
from tests.runtime.engine.models import VOCABULARY, tiny

# Room for hardly more than the largest request, so that there is preemption.
TIGHT = Limits(room_tokens=80, max_running=5, prefill_tokens=7, page_tokens=8)
PLAYED = Played(Lognormal(12, 0.8), DecodeRates(1, 80, 1.0, 0.0, 0.0, 100.0), vocabulary=VOCABULARY)


def replaying() -> Engine:
    return replay(PLAYED, TIGHT, clock=Clock(lambda: 0.0, lambda seconds: None))


@given(st.integers(0, 2**32), st.lists(st.sampled_from(CALLS), max_size=60))
def test_replayed_requests_end_once_and_as_if_alone(seed: int, calls: list[str]) -> None:
    rng = Random(seed)
    known = alone(replaying, some_requests(rng, 8, VOCABULARY))
    History((replaying(), replaying()), known, rng).play(calls)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_computed_requests_end_once_and_as_if_alone(family: str) -> None:
    model = tiny(family, torch.float64)
    requests = some_requests(Random(1), 10, VOCABULARY)
    known = alone(lambda: slots(model, TIGHT), requests)
    preemptions = recomputed = 0
    for seed in range(9):
        rng = Random(seed)
        history = History((slots(model, TIGHT), slots(model, TIGHT)), known, rng)
        history.play(rng.choices(CALLS, k=70))
        for engine in history.engines:
            preemptions += engine.gauges().preemptions
            recomputed += engine.gauges().recomputed_tokens
    assert preemptions > 5, "histories in which nobody gives way show little"
    assert recomputed > 50

"""Pieces as what changed in them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.runtime.sync import Broken
from rollmux.runtime.sync.delta import WORTH, apply, changes

WORDS = st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64])


@given(WORDS, st.integers(1, 150_000), st.floats(0, 1), st.integers(0, 2**32))
def test_a_delta_applied_to_the_old_words_gives_the_new_ones(
    kind: type[np.unsignedinteger], size: int, share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256, size).astype(kind)
    new = np.where(rng.random(size) < share, rng.integers(0, 256, size).astype(kind), old)
    delta = changes(new, old)
    if delta is None:
        assert (new != old).mean() > 0.1 or size < 100
    else:
        assert len(delta) <= WORTH * new.nbytes
        apply(memoryview(delta), old)
        assert np.array_equal(old, new)


def test_one_word_in_a_hundred_costs_a_fiftieth() -> None:
    old = np.zeros(500_000, np.uint16)
    new = old.copy()
    new[::100] = 1
    delta = changes(new, old)
    assert delta is not None
    assert len(delta) / new.nbytes == pytest.approx(0.02, rel=0.01)


@given(st.binary(max_size=60) | st.just(bytes(4)) | st.just(b"\1" + bytes(7)), st.integers(1, 70_000))
def test_a_delta_that_does_not_fit_is_refused(delta: bytes, size: int) -> None:
    words = np.zeros(size, np.uint16)
    blocks = -(-size // 65_536)
    fits = len(delta) >= 4 * blocks and len(delta) == 4 * blocks + 4 * int(
        np.frombuffer(delta[: 4 * blocks], "<u4").sum()
    )
    try:
        apply(memoryview(delta), words)
    except Broken:
        return
    assert fits


def test_a_delta_may_not_write_beyond_its_piece() -> None:
    delta = np.array([1], "<u4").tobytes() + np.array([10], "<u2").tobytes() + b"\1\1"
    with pytest.raises(Broken, match="word 10 of 10"):
        apply(memoryview(delta), np.zeros(10, np.uint16))

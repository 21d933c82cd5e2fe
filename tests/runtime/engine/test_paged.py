"""Attention over pages is attention over the tokens that lie in them, wherever the pages are."""

from collections.abc import Sequence
from random import Random

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rollmux.runtime.engine import GenerationRequest
from rollmux.runtime.engine.desk import Live, Work
from rollmux.runtime.engine.paged import Held, decode, decoding

PAGE, WIDTH, HEADS, KV_HEADS, USED = 4, 8, 6, 2, 12
LENGTHS = (1, 9, 4, 12)  # one page that is all but empty, three of which the last is, one that is full, three full ones


def requests() -> list[Work]:
    """Their pages lie about; each holds one more than it needs, and two pages are another's."""
    order = list(range(USED))
    Random(3).shuffle(order)
    work: list[Work] = []
    for number, length in enumerate(LENGTHS):
        live = Live(GenerationRequest(str(number), (1,) * length, 8), cached=length - 1)
        live.pages = [order.pop() for _ in range(-(-length // PAGE) + (number == 1))]
        work.append((live, 1))
    return work


def room(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    shape = (USED + 2, KV_HEADS, PAGE, WIDTH)
    query = torch.randn(len(LENGTHS), HEADS, WIDTH) * 4
    return query.to(dtype), torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)


def plainly(query: Tensor, keys: Tensor, values: Tensor, work: Sequence[Work]) -> Tensor:
    """Request by request, in double precision."""
    rows = []
    for row, (live, _) in zip(query.double(), work, strict=True):
        key, value = (side.double()[live.pages].transpose(0, 1).flatten(1, 2) for side in (keys, values))
        key, value = (side[:, : live.cached + 1].repeat_interleave(HEADS // KV_HEADS, 0) for side in (key, value))
        rows.append(functional.scaled_dot_product_attention(row.unsqueeze(1), key, value).squeeze(1))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=str
)
def test_a_decode_step_is_plain_attention_of_each_request(dtype: torch.dtype, near: float) -> None:
    query, keys, values = room(dtype)
    work = requests()
    found = decode(query, keys, values, decoding(Held.by(work, PAGE), USED, KV_HEADS, dtype))
    torch.testing.assert_close(found.double(), plainly(query, keys, values, work), atol=near, rtol=near)


@pytest.mark.parametrize("far", [-1e4, 1e4])
def test_scores_far_from_zero_neither_vanish_nor_overflow(far: float) -> None:
    """As large biases of keys make them: all of a request's scores lie far off, yet near each other."""
    query, keys, values = room(torch.float64)
    query[..., 0], keys[..., 0] = far, 1.0
    work = requests()
    found = decode(query, keys, values, decoding(Held.by(work, PAGE), USED, KV_HEADS, torch.float64))
    torch.testing.assert_close(found, plainly(query, keys, values, work), atol=1e-9, rtol=1e-9)


def test_what_is_not_a_number_stays_with_its_request() -> None:
    query, keys, values = room(torch.float32)
    work = requests()
    step = decoding(Held.by(work, PAGE), USED, KV_HEADS, torch.float32)
    sound = decode(query, keys, values, step)
    held = {page for live, _ in work for page in live.pages}
    bad = [next(page for page in range(USED) if page not in held), work[0][0].pages[0]]
    keys[bad], values[bad] = torch.nan, torch.nan
    found = decode(query, keys, values, step)
    assert found[0].isnan().all()
    assert torch.equal(found[1:], sound[1:])

"""Attention over keys and values that lie in pages.

A decode step reads the pages in use as one piece, whosever they are: each page meets the query of its holder, and what
the pages of a request found is summed. Its cost is what is held, not the longest times the number of requests.

Invariant: a token meets exactly the tokens of its own request that stand before it, and itself.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rollmux.runtime.engine.desk import Work


@dataclass(frozen=True, slots=True)
class Decoding:
    """One token of each of `rows` requests. Pages of others meet the query of a row of zeros behind them."""

    rows: int
    pages: int
    row_of_page: Tensor
    mask: Tensor  # what is added to scores: zero, or minus infinity behind the last token; pages × heads, 1, tokens


@dataclass(frozen=True, slots=True)
class Prefilling:
    """Some tokens of one request, in these rows; `before` tokens of it are in its pages already."""

    start: int
    stop: int
    before: int
    pages: Tensor
    mask: Tensor | None  # None: nothing before, so it is the plain triangle


def decoding(work: list[Work], used_pages: int, page_tokens: int, kv_heads: int, dtype: torch.dtype) -> Decoding:
    """Lays out a decode step; on the CPU."""
    rows = [len(work)] * used_pages
    filled = [page_tokens] * used_pages
    for row, (live, _) in enumerate(work):
        for page in live.pages:
            rows[page] = row
        length = live.cached + 1
        filled[live.pages[(length - 1) // page_tokens]] = (length - 1) % page_tokens + 1
        for page in live.pages[(length - 1) // page_tokens + 1 :]:
            filled[page] = 0
    reach = torch.tensor(filled).unsqueeze(1) > torch.arange(page_tokens)
    mask = torch.zeros(reach.shape, dtype=dtype).masked_fill_(~reach, -torch.inf)
    spread = mask.view(used_pages, 1, 1, page_tokens).expand(-1, kv_heads, -1, -1)
    return Decoding(len(work), used_pages, torch.tensor(rows), spread.reshape(-1, 1, page_tokens))


def prefilling(work: Work, start: int) -> Prefilling:
    """Lays out tokens of one request; on the CPU."""
    live, count = work
    mask = None
    if live.cached:
        mask = torch.ones(count, live.cached + count, dtype=torch.bool).tril(live.cached)
    return Prefilling(start, start + count, live.cached, torch.tensor(live.pages), mask)


def decode(query: Tensor, keys: Tensor, values: Tensor, step: Decoding) -> Tensor:
    """`query`: rows, heads, width, scaled; `keys` and `values`: pages, kv heads, tokens of a page, width.

    What is summed is summed in single precision at least.
    """
    rows, heads, width = query.shape
    pages, tokens = step.pages, keys.shape[2]
    group = heads // keys.shape[1]
    exact = torch.promote_types(query.dtype, torch.float32)
    spread = functional.pad(query.reshape(rows, -1), (0, 0, 0, 1)).index_select(0, step.row_of_page)
    pieces = keys[:pages].view(-1, tokens, width).transpose(1, 2)
    scores = torch.baddbmm(step.mask, spread.view(-1, group, width), pieces).to(exact).view(pages, heads, tokens)
    highest = torch.full((rows + 1, heads), -torch.inf, dtype=exact, device=query.device)
    highest.scatter_reduce_(0, step.row_of_page.unsqueeze(1).expand(-1, heads), scores.amax(-1), "amax")
    weights = (scores - highest.index_select(0, step.row_of_page).unsqueeze(-1)).exp_()
    total = torch.zeros_like(highest).index_add_(0, step.row_of_page, weights.sum(-1))
    found = torch.bmm(weights.to(values.dtype).view(-1, group, tokens), values[:pages].view(-1, tokens, width))
    summed = torch.zeros(rows + 1, heads * width, dtype=exact, device=query.device)
    summed.index_add_(0, step.row_of_page, found.view(pages, -1).to(exact))
    result = summed.view(rows + 1, heads, width)[:rows] / total[:rows].unsqueeze(-1)
    return result.to(query.dtype)


def prefill(query: Tensor, keys: Tensor, values: Tensor, step: Prefilling) -> Tensor:
    """As `decode`, for tokens of one request whose own keys and values are in the pages by now."""
    length = step.before + step.stop - step.start
    group = query.shape[1] // keys.shape[1]
    key, value = (
        side.index_select(0, step.pages).transpose(0, 1).flatten(1, 2)[:, :length].repeat_interleave(group, 0)
        for side in (keys, values)
    )
    found = functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        key.unsqueeze(0),
        value.unsqueeze(0),
        attn_mask=step.mask,
        is_causal=step.mask is None,
        scale=1.0,
    )
    return found.squeeze(0).transpose(0, 1)

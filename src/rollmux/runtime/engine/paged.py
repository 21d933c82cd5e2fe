"""Attention over keys and values that lie in pages.

A decode step reads the pages in use as one piece, whichever request they belong to: each page meets the query of its
holder, and the results of a request's pages are summed. The step costs as much as the pages in use, not as the longest
request times the number of requests.

Invariant: a token meets exactly the tokens of its own request that stand before it, and itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rollmux.runtime.engine.desk import Work

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Decoding:
    """One token of each of `rows` requests. Pages of other requests meet some row's query, and nobody reads the result.

    If a request has fewer pages than the one with most, its first page fills the row up, and is masked by `absent`.
    """

    rows: int
    pages: int
    row_of_page: Tensor
    mask: Tensor  # what is added to scores: zero, or minus infinity behind the last token; pages × heads, 1, tokens
    pages_of_rows: Tensor  # rows × most pages of a row
    absent: Tensor  # what is added to their scores: zero, or minus infinity; rows, most pages of a row, 1
    place_of_page: Tensor  # where each page stands in `pages_of_rows`
    held: Tensor  # the pages of the first row, then those of the second, and so on
    starts: Tensor  # where each row's pages begin in `held`

    def to(self, device: torch.device) -> "Decoding":
        moved = (getattr(self, field.name) for field in fields(self)[2:])
        return Decoding(self.rows, self.pages, *(tensor.to(device) for tensor in moved))


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts of which nothing was computed before, in these rows; each has `length` of the rows."""

    start: int
    stop: int
    length: int


@dataclass(frozen=True, slots=True)
class Continued:
    """Some tokens of one request, in these rows; the tokens before them are in its pages already."""

    start: int
    stop: int
    pages: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Held:
    """Where the tokens of some requests lie once a step is done; these arrays are on the CPU.

    `pages`: those of the first request, then those of the second, and so on, without pages that are held for later.
    """

    page_tokens: int
    lengths: Numbers
    counts: Numbers
    starts: Numbers  # where each request's pages begin in `pages`
    pages: Numbers

    @classmethod
    def by(cls, work: Sequence[Work], page_tokens: int) -> "Held":
        lengths = np.array([live.cached + count for live, count in work])
        counts = (lengths - 1) // page_tokens + 1
        counted = zip(work, counts.tolist(), strict=True)
        pages = np.array([page for (live, _), count in counted for page in live.pages[:count]])
        return cls(page_tokens, lengths, counts, counts.cumsum() - counts, pages)

    def first(self, requests: int) -> "Held":
        """What the first so many requests hold."""
        if requests == len(self.lengths):
            return self
        lengths, counts, starts = (each[:requests] for each in (self.lengths, self.counts, self.starts))
        return Held(self.page_tokens, lengths, counts, starts, self.pages[: self.starts[requests]])

    def rows(self, requests: Numbers, positions: Numbers, heads: int) -> Numbers:
        """Where these tokens lie among all rows of a layer's keys, head by head."""
        page, offset = np.divmod(positions, self.page_tokens)
        first = self.pages[self.starts[requests] + page] * heads
        return ((first[:, None] + np.arange(heads)) * self.page_tokens + offset[:, None]).ravel()


def decoding(held: Held, used_pages: int, kv_heads: int, dtype: torch.dtype) -> Decoding:
    """Lays out a decode step, on the CPU."""
    page_tokens, counts, starts, pages = held.page_tokens, held.counts, held.starts, held.pages
    rows, most = len(counts), int(counts.max())
    row = np.arange(rows).repeat(counts)
    place = row * most + np.arange(len(pages)) - starts[row]
    pages_of_rows = pages[starts].repeat(most)
    pages_of_rows[place] = pages
    absent = np.full(rows * most, -np.inf)
    absent[place] = 0
    row_of_page, place_of_page = np.zeros((2, used_pages), np.int64)
    row_of_page[pages], place_of_page[pages] = row, place
    filled = np.full(used_pages, page_tokens)
    filled[pages[starts + counts - 1]] = (held.lengths - 1) % page_tokens + 1
    mask = np.where(filled[:, None] > np.arange(page_tokens), 0.0, -np.inf)
    return Decoding(
        rows,
        used_pages,
        torch.from_numpy(row_of_page),
        torch.from_numpy(mask.repeat(kv_heads, 0)).to(dtype).unsqueeze(1),
        torch.from_numpy(pages_of_rows),
        torch.from_numpy(absent).to(at_least_single(dtype)).view(rows, most, 1),
        torch.from_numpy(place_of_page),
        torch.from_numpy(pages),
        torch.from_numpy(starts),
    )


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """The type for sums: this one, or single precision if that is wider."""
    return torch.promote_types(dtype, torch.float32)


def decode(query: Tensor, keys: Tensor, values: Tensor, step: Decoding) -> Tensor:
    """`query`: rows, heads, width; `keys` and `values`: pages, kv heads, tokens of a page, width.

    Each page has a softmax of its own. Then another softmax weighs the pages of a request, over the logarithm of each
    page's sum of exponentials. That logarithm is the page's highest score less the logarithm of that score's share.
    """
    rows, heads, width = query.shape
    pages, tokens = step.pages, keys.shape[2]
    group = heads // keys.shape[1]
    asking = query.reshape(rows, -1).index_select(0, step.row_of_page).view(-1, group, width)
    pieces = keys[:pages].view(-1, tokens, width).transpose(1, 2)
    scores = torch.baddbmm(step.mask, asking, pieces, alpha=width**-0.5).to(at_least_single(query.dtype))
    shares = torch.softmax(scores, -1)
    sums = (scores.amax(-1) - shares.amax(-1).log_()).view(pages, heads)
    weights = torch.softmax(sums.index_select(0, step.pages_of_rows).view(rows, -1, heads).add_(step.absent), 1)
    weight_of_page = weights.view(-1, heads).index_select(0, step.place_of_page).unsqueeze(-1)
    found = torch.bmm(shares.to(values.dtype), values[:pages].view(-1, tokens, width)).view(pages, heads, width)
    weighed = found.to(weights.dtype).mul_(weight_of_page)
    summed = functional.embedding_bag(step.held, weighed.view(pages, -1), step.starts, mode="sum")
    return summed.view(rows, heads, width).to(query.dtype)


def prefill(query: Tensor, key: Tensor, value: Tensor, length: int) -> Tensor:
    """Plain attention of prompts that are equally long: tokens, heads or kv heads, width."""
    query, key, value = (side.reshape(-1, length, *side.shape[1:]).transpose(1, 2) for side in (query, key, value))
    key, value = (side.repeat_interleave(query.shape[1] // side.shape[1], 1) for side in (key, value))
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(0, 1)


def go_on(query: Tensor, keys: Tensor, values: Tensor, step: Continued) -> Tensor:
    """Like `decode`, for several tokens of one request, whose own keys and values are in the pages already."""
    group = query.shape[1] // keys.shape[1]
    key, value = (
        side.index_select(0, step.pages).transpose(0, 1).flatten(1, 2)[:, : step.mask.shape[1]]
        for side in (keys, values)
    )
    key, value = (side.repeat_interleave(group, 0).unsqueeze(0) for side in (key, value))
    query = query.transpose(0, 1).unsqueeze(0)
    found = functional.scaled_dot_product_attention(query, key, value, attn_mask=step.mask)
    return found.squeeze(0).transpose(0, 1)

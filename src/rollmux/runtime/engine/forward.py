"""A forward over rows that are tokens of many requests: some decode, some are prompts, each at its own position.

Invariant: the result for a row depends on its request alone, except for rounding.
"""

import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rollmux.runtime.engine.anatomy import Anatomy, Layer
from rollmux.runtime.engine.desk import Live, Work
from rollmux.runtime.engine.paged import (
    Continued,
    Decoding,
    Held,
    Numbers,
    Prompts,
    decode,
    decoding,
    go_on,
    prefill,
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of one forward, in the order of `ordered`. `places`: where keys and values are written."""

    tokens: Tensor
    positions: Tensor
    places: Tensor
    wanted: Tensor | None  # the rows for which logits are wanted; None: all of them
    decoding: Decoding | None
    prompts: tuple[Prompts, ...]
    continued: tuple[Continued, ...]


class Forward:
    """A model with the room for its keys and values."""

    def __init__(self, anatomy: Anatomy, pages: int, page_tokens: int, max_length: int) -> None:
        self.anatomy, self.page_tokens = anatomy, page_tokens
        shape = (len(anatomy.layers), pages, anatomy.kv_heads, page_tokens, anatomy.head_width)
        self.keys, self.values = (_zeros(shape, anatomy.dtype, anatomy.device) for _ in range(2))
        self.cosines, self.sines = _rotations(anatomy, max_length)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.keys, self.values, self.cosines, self.sines))

    def layout(self, work: Sequence[Work], wanted: Sequence[int], used_pages: int) -> Layout:
        """Where each token stands. `work` is `ordered`; `wanted`: the rows for which logits are wanted."""
        a = self.anatomy
        counts = np.array([count for _, count in work])
        held = Held.by(work, self.page_tokens)
        of = np.arange(len(work)).repeat(counts)
        positions = np.arange(len(of)) + (held.lengths - counts.cumsum())[of]  # a request's last row has its last place
        single = int((counts == 1).sum())
        step = decoding(held.first(single), used_pages, a.kv_heads, a.dtype).to(a.device) if single else None
        prompts, continued = self._prefilling(work[single:], single)
        return Layout(
            self._tensor(np.array([token for live, count in work for token in live.following(count)])),
            self._tensor(positions),
            self._tensor(held.rows(of, positions, a.kv_heads)),
            None if len(wanted) == len(of) else self._tensor(np.array(wanted, np.int64)),
            step,
            prompts,
            continued,
        )

    def _tensor(self, numbers: Numbers) -> Tensor:
        return torch.from_numpy(numbers).to(self.anatomy.device)

    def _prefilling(self, work: Sequence[Work], row: int) -> tuple[tuple[Prompts, ...], tuple[Continued, ...]]:
        prompts: list[Prompts] = []
        continued: list[Continued] = []
        for live, count in work:
            if live.cached:
                continued.append(self._continued(live, row, row + count))
            elif prompts and prompts[-1].length == count:
                prompts[-1] = Prompts(prompts[-1].start, row + count, count)
            else:
                prompts.append(Prompts(row, row + count, count))
            row += count
        return tuple(prompts), tuple(continued)

    def _continued(self, live: Live, start: int, stop: int) -> Continued:
        device, count = self.anatomy.device, stop - start
        mask = torch.ones(count, live.cached + count, dtype=torch.bool, device=device).tril(live.cached)
        return Continued(start, stop, torch.tensor(live.pages, device=device), mask)

    def __call__(self, layout: Layout) -> Tensor:
        """The logits that are wanted, in the model's own type whatever `torch.autocast` there is around."""
        kind = self.keys.device.type
        if not torch.is_autocast_enabled(kind):
            return self._logits(layout)
        with torch.autocast(kind, enabled=False):
            return self._logits(layout)

    def _logits(self, layout: Layout) -> Tensor:
        a = self.anatomy
        x = functional.embedding(layout.tokens, a.embedding).to(a.dtype)
        cosines = self.cosines.index_select(0, layout.positions).unsqueeze(1)
        sines = self.sines.index_select(0, layout.positions).unsqueeze(1)
        for number, layer in enumerate(a.layers):
            x = x + layer.output(self._attend(number, layer, layer.attention_norm(x), cosines, sines, layout))
            x = x + layer.down(_gated(layer.gate_up(layer.mlp_norm(x))))
        if layout.wanted is not None:
            x = x.index_select(0, layout.wanted)
        return a.head(a.norm(x)) if len(x) else x

    def _attend(self, number: int, layer: Layer, x: Tensor, cosines: Tensor, sines: Tensor, layout: Layout) -> Tensor:
        a = self.anatomy
        parts = layer.queries_keys_values(x).view(len(x), -1, a.head_width)
        turned, value = parts[:, : a.heads + a.kv_heads], parts[:, a.heads + a.kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            normed = (layer.query_norm(turned[:, : a.heads]), layer.key_norm(turned[:, a.heads :]))
            turned = torch.cat(normed, 1)
        turned = _rotated(turned, cosines, sines)
        query, key = turned[:, : a.heads], turned[:, a.heads :]
        keys, values = self.keys[number], self.values[number]
        keys.view(-1, a.head_width).index_copy_(0, layout.places, key.reshape(-1, a.head_width))
        values.view(-1, a.head_width).index_copy_(0, layout.places, value.reshape(-1, a.head_width))
        found = []
        if layout.decoding is not None:
            found.append(decode(query[: layout.decoding.rows], keys, values, layout.decoding))
        for step in layout.prompts:
            rows = slice(step.start, step.stop)
            found.append(prefill(query[rows], key[rows], value[rows], step.length))
        found += [go_on(query[step.start : step.stop], keys, values, step) for step in layout.continued]
        return (found[0] if len(found) == 1 else torch.cat(found)).reshape(len(x), -1)


def ordered(work: Sequence[Work]) -> list[int]:
    """How a forward takes requests: those that decode, prompts (one length together), those that go on."""
    if all(count == 1 for _, count in work):
        return list(range(len(work)))

    def kind(place: int) -> tuple[int, int]:
        live, count = work[place]
        return 0 if count == 1 else 2 if live.cached else 1, count

    return sorted(range(len(work)), key=kind)


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU in memory of their own, which the kernel gives as it is touched, and which goes with the tensor.

    A room is seldom full, and to write zeros into all of it took longer than the rest of a switch. With large pages
    the kernel gives what is touched five times as fast.
    """
    size = prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without large pages: small ones do
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`sines` have their sign already, so the halves need only change their places."""
    return (x * cosines).addcmul_(x.roll(x.shape[-1] // 2, -1), sines)


def _gated(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return functional.silu(gate).mul_(up)


def _rotations(anatomy: Anatomy, max_length: int) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine of each position, from the model's own module."""
    positions = torch.arange(max_length, device=anatomy.device).unsqueeze(0)
    like = torch.empty(0, dtype=anatomy.dtype, device=anatomy.device)
    cosines, sines = anatomy.rotary(like, positions)
    half = sines.shape[-1] // 2
    return cosines[0].contiguous(), torch.cat((-sines[0, :, :half], sines[0, :, half:]), -1)

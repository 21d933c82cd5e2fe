"""A forward over rows that are tokens of many requests: some decode, some are prompts, each at its own position.

Invariant: what a row comes to depends on its request alone, but for rounding.
"""

import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from rollmux.runtime.engine.anatomy import Anatomy, Layer
from rollmux.runtime.engine.desk import Work
from rollmux.runtime.engine.paged import Decoding, Prefilling, decode, decoding, prefill, prefilling


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of one forward: first those that decode, then prompts. `places`: where keys and values are written."""

    tokens: Tensor
    positions: Tensor
    places: Tensor
    drawing: Tensor | None  # rows whose next token is due; None: all of them
    decoding: Decoding | None
    prefilling: tuple[Prefilling, ...]


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

    def layout(self, work: Sequence[Work], used_pages: int) -> Layout:
        """Where each token stands. `work` that decodes comes first."""
        single = [each for each in work if each[1] == 1]
        tokens: list[int] = []
        positions: list[int] = []
        places: list[int] = []
        drawing: list[int] = []
        prefills: list[Prefilling] = []
        for live, count in work:
            if count > 1:
                prefills.append(self._on_device(prefilling((live, count), len(tokens))))
            tokens += live.following(count)
            where = range(live.cached, live.cached + count)
            positions += where
            places += [live.pages[p // self.page_tokens] * self.page_tokens + p % self.page_tokens for p in where]
            if live.owed == count:
                drawing.append(len(tokens) - 1)
        a = self.anatomy
        step = decoding(single, used_pages, self.page_tokens, a.kv_heads, a.dtype) if single else None
        return Layout(
            self._tensor(tokens),
            self._tensor(positions),
            self._spread(places),
            None if len(drawing) == len(tokens) else self._tensor(drawing),
            step and step.to(a.device),
            tuple(prefills),
        )

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.anatomy.device)

    def _on_device(self, step: Prefilling) -> Prefilling:
        device = self.anatomy.device
        mask = None if step.mask is None else step.mask.to(device)
        return Prefilling(step.start, step.stop, step.before, step.pages.to(device), mask)

    def _spread(self, places: list[int]) -> Tensor:
        """The row of each token and head among all rows of a layer's keys."""
        heads, tokens = self.anatomy.kv_heads, self.page_tokens
        at = self._tensor(places)
        page, offset = at // tokens, at % tokens
        heads_at = torch.arange(heads, device=at.device)
        return ((page.unsqueeze(1) * heads + heads_at) * tokens + offset.unsqueeze(1)).flatten()

    def __call__(self, layout: Layout) -> Tensor:
        """The logits of the rows whose next token is due."""
        a = self.anatomy
        x = functional.embedding(layout.tokens, a.embedding).to(a.dtype)
        cosines = self.cosines.index_select(0, layout.positions).unsqueeze(1)
        sines = self.sines.index_select(0, layout.positions).unsqueeze(1)
        for number, layer in enumerate(a.layers):
            x = x + layer.output(self._attend(number, layer, layer.attention_norm(x), cosines, sines, layout))
            x = x + layer.down(_gated(layer.gate_up(layer.mlp_norm(x))))
        if layout.drawing is not None:
            x = x.index_select(0, layout.drawing)
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
        found += [prefill(query[step.start : step.stop], keys, values, step) for step in layout.prefilling]
        return (found[0] if len(found) == 1 else torch.cat(found)).reshape(len(x), -1)


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU memory of its own: it comes as it is touched, and goes back with the tensor.

    A room is seldom full, and to write zeros into all of it took longer than the rest of a switch. Large pages make
    what is touched come five times as fast.
    """
    size = prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them: small ones do
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

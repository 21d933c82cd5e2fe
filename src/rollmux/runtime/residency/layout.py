"""Where everything lies in one flat piece of memory, the same on the host and on the device.

The unit is the storage, not the tensor: what shares memory (tied weights, views, flat buffers) still does after a move.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil, prod

import torch
from torch import Tensor

from rollmux.runtime.host.errors import Unfit
from rollmux.runtime.residency.leaves import Leaf

# Both larger than any alignment that torch or a GPU asks for; checksums sum whole rows.
ALIGN_BYTES, ROW_BYTES = 512, 8192
CPU = torch.device("cpu")
# Small enough to stay in a CPU's cache between being copied and being summed, large enough that calls do not count:
# 4 MiB copied at 14 GB/s with two threads, 1 MiB at 10.7, all at once at 11.6.
CHUNK_BYTES = 4 << 20
BEGINNING_BYTES = 512  # of a chunk: if it has changed, these mostly show it


@dataclass(frozen=True, slots=True)
class Unit:
    """One storage."""

    at: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor in a unit; `offset` counts elements."""

    name: str
    unit: int
    dtype: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Aside:
    """A small tensor that lies on the host anyway, such as an optimizer's count of steps: it goes with the record."""

    name: str
    dtype: str
    size: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.size) * _dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """All units, in the order in which they were met, and all tensors."""

    units: tuple[Unit, ...]
    places: tuple[Place, ...]
    asides: tuple[Aside, ...] = ()

    @property
    def nbytes(self) -> int:
        """The length of the flat memory, in whole rows."""
        last = self.units[-1] if self.units else Unit(0, 0)
        return ceil((last.at + last.nbytes) / ROW_BYTES) * ROW_BYTES

    @property
    def aside_bytes(self) -> int:
        return sum(aside.nbytes for aside in self.asides)

    @property
    def chunks(self) -> int:
        return ceil(self.nbytes / CHUNK_BYTES)

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """The chunks of a flat memory."""
        return torch.split(flat, CHUNK_BYTES)

    def blanks(self, device: torch.device) -> dict[str, Callable[[], Tensor]]:
        """For each tensor, by its name, a function that makes one like it without values."""
        found = [(place, device) for place in self.places] + [(aside, CPU) for aside in self.asides]
        return {
            each.name: partial(torch.empty, each.size, dtype=_dtype(each.dtype), device=where) for each, where in found
        }

    def view(self, place: Place, flat: Tensor) -> Tensor:
        """The tensor of this place in such a flat memory."""
        dtype = _dtype(place.dtype)
        start = (flat.storage_offset() + self.units[place.unit].at) // dtype.itemsize + place.offset
        empty = torch.empty(0, dtype=dtype, device=flat.device)
        return empty.set_(flat.untyped_storage(), start, place.size, place.stride)


@dataclass(frozen=True, slots=True)
class Survey:
    """Where the tensors are now: a layout for them, and for each unit its present bytes."""

    layout: Layout
    sources: tuple[Tensor, ...]  # left out where all are at home
    at_home: bool  # all lie in the flat memory, each in its place


class _Surveyor:
    """Meets one tensor after the other."""

    def __init__(self, layout: Layout | None, flat: Tensor | None) -> None:
        self.layout, self.flat = layout, flat
        self.home = flat.untyped_storage().data_ptr() if flat is not None else None
        self.starts = [unit.at for unit in layout.units] if layout is not None else []
        # Units by (True, number, length) in the flat memory, by (False, address, length) of storages elsewhere.
        self.numbers: dict[tuple[bool, int, int], int] = {}
        self.units: list[Unit] = []
        self.sources: list[Tensor] = []
        self.places: list[Place] = []

    def meet(self, leaf: Leaf) -> None:
        tensor = leaf.tensor
        first = tensor.storage_offset() * tensor.itemsize
        base = tensor.untyped_storage().data_ptr()
        if base == self.home and self.layout is not None and self.flat is not None:
            first -= self.flat.storage_offset()
            number = bisect_right(self.starts, first) - 1
            unit = self.layout.units[number]
            first -= unit.at
            place = self._unit((True, number, unit.nbytes), self.flat[unit.at : unit.at + unit.nbytes])
        else:
            place = self._unit((False, base, tensor.untyped_storage().nbytes()), whole(tensor))
        dtype = _named(tensor.dtype)
        offset, size, stride = first // tensor.itemsize, tuple(tensor.shape), tuple(tensor.stride())
        self.places.append(Place(leaf.name, place, dtype, offset, size, stride))

    def require_apart(self) -> None:
        """Refuses storages that overlap: each is moved by itself, and what two have in common would be there twice."""
        spans = sorted(
            (start, start + nbytes, unit) for (inside, start, nbytes), unit in self.numbers.items() if not inside
        )
        for (_, end, one), (start, _, other) in pairwise(spans):
            if start < end:
                names = [next(each.name for each in self.places if each.unit == unit) for unit in (one, other)]
                both = f"{names[0]!r} and {names[1]!r} have memory in common, which torch takes for two pieces"
                raise Unfit(f"{both}; make one a view of the other, or a copy")

    def _unit(self, key: tuple[bool, int, int], source: Tensor) -> int:
        if key not in self.numbers:
            self.numbers[key] = len(self.units)
            self.sources.append(source)
            self.units.append(Unit(self._end(), source.numel()))
        return self.numbers[key]

    def _end(self) -> int:
        last = self.units[-1] if self.units else Unit(0, 0)
        return ceil((last.at + last.nbytes) / ALIGN_BYTES) * ALIGN_BYTES


def survey(
    found: Sequence[Leaf], layout: Layout | None = None, flat: Tensor | None = None, aside: Sequence[Leaf] = ()
) -> Survey:
    """Looks at where each tensor is. Those in `flat` keep the units that `layout` gives them."""
    asides = tuple(Aside(leaf.name, _named(leaf.tensor.dtype), tuple(leaf.tensor.shape)) for leaf in aside)
    if layout is not None and flat is not None and layout.asides == asides and _is_settled(found, layout, flat):
        return Survey(layout, (), True)
    surveyor = _Surveyor(layout, flat)
    for leaf in found:
        surveyor.meet(leaf)
    surveyor.require_apart()
    seen = Layout(tuple(surveyor.units), tuple(surveyor.places), asides)
    return Survey(seen, tuple(surveyor.sources), seen == layout and all(inside for inside, *_ in surveyor.numbers))


def _is_settled(found: Sequence[Leaf], layout: Layout, flat: Tensor) -> bool:
    """Whether each tensor is where it was put. Mostly it is, and this tells so four times as fast as a survey."""
    home = flat.data_ptr()
    return len(found) == len(layout.places) and all(
        leaf.name == place.name
        and leaf.tensor.data_ptr() == home + layout.units[place.unit].at + place.offset * leaf.tensor.itemsize
        and leaf.tensor.shape == place.size
        and leaf.tensor.stride() == place.stride
        and leaf.tensor.dtype is _dtype(place.dtype)
        for leaf, place in zip(found, layout.places, strict=True)
    )


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def whole(tensor: Tensor) -> Tensor:
    """All bytes of the memory that a tensor looks at."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())

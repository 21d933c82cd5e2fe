"""Who has which part of which tensor: boxes of indices, cut as torch cuts.

Invariant: the boxes of the ranks of one replica cover each split tensor exactly once, as `torch.chunk` does, and an
unsplit tensor is whole on every rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import EllipsisType

from rollmux.checks import Checks

# Names of the safetensors format, and the bytes of one element.
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
MAX_DIMS, MAX_EXTENT, MAX_RANKS = 8, 2**40, 4096
# Tensors begin at whole cache lines, so that any element type and vector unit can read them in place.
ALIGN_BYTES = 64

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as it lands: its whole shape, and the type of its elements there and on the wire."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        checks = Checks(f"tensor {self.name[:80]!r}")
        if self.dtype not in ITEM_BYTES:
            checks.report("dtype", self.dtype, f"one of {', '.join(ITEM_BYTES)}", "use safetensors' names")
        if len(self.shape) > MAX_DIMS:
            checks.report("shape", self.shape, f"of at most {MAX_DIMS} dimensions", "reshape it before")
        for place, extent in enumerate(self.shape):
            checks.whole(f"shape[{place}]", extent, 0, MAX_EXTENT, "give the extents of the whole tensor")
        checks.require()

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.item_bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """`tp` ranks share each split tensor, on the dimension named in `split`; `dp` replicas of them have the same.

    Rank r is number `r % tp` of replica `r // tp`. Whatever `split` does not name is whole on every rank.
    """

    tp: int
    dp: int = 1
    split: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks = Checks("layout")
        checks.whole("tp", self.tp, 1, MAX_RANKS, "give the ranks that share a tensor")
        checks.whole("dp", self.dp, 1, MAX_RANKS, "give the number of replicas")
        for name, dim in self.split.items():
            checks.whole(f"split[{name!r}]", dim, 0, MAX_DIMS - 1, "give the dimension that is cut")
        checks.require()

    @property
    def ranks(self) -> int:
        return self.tp * self.dp

    def box(self, tensor: TensorSpec, rank: int) -> Box:
        """The part of a tensor that this rank has; a dimension may be empty where there are more ranks than rows."""
        whole = tuple((0, extent) for extent in tensor.shape)
        dim = self.split.get(tensor.name)
        if dim is None:
            return whole
        extent = tensor.shape[dim]
        rows = -(-extent // self.tp)
        start = min(extent, rows * (rank % self.tp))
        return (*whole[:dim], (start, min(extent, start + rows)), *whole[dim + 1 :])

    def holders(self, tensor: TensorSpec) -> dict[Box, tuple[int, ...]]:
        """The different parts of a tensor, none of them empty, each with the ranks that have it."""
        found: dict[Box, list[int]] = {}
        for rank in range(self.ranks):
            found.setdefault(self.box(tensor, rank), []).append(rank)
        return {box: tuple(ranks) for box, ranks in found.items() if elements(box)}


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a rank keeps its part of a tensor, row after row."""

    tensor: TensorSpec
    box: Box
    offset: int

    @property
    def nbytes(self) -> int:
        return elements(self.box) * self.tensor.item_bytes


def slots(tensors: Sequence[TensorSpec], layout: Layout, rank: int) -> tuple[dict[str, Slot], int]:
    """All parts of one rank, one after the other, and the bytes that they take together."""
    found: dict[str, Slot] = {}
    offset = 0
    for tensor in tensors:
        slot = Slot(tensor, layout.box(tensor, rank), offset)
        found[tensor.name] = slot
        offset += -(-slot.nbytes // ALIGN_BYTES) * ALIGN_BYTES
    return found, offset


def elements(box: Box) -> int:
    return prod(stop - start for start, stop in box)


def shape_of(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def common(a: Box, b: Box) -> Box | None:
    """What two boxes have in common; None for nothing."""
    found = tuple((max(s, t), min(e, f)) for (s, e), (t, f) in zip(a, b, strict=True))
    return found if all(start < stop for start, stop in found) else None


def inside(outer: Box, inner: Box) -> tuple[EllipsisType | slice, ...]:
    """Where a box lies within a larger one, as indices of the larger one. The `...` keeps a scalar in place, too."""
    return (..., *(slice(s - start, e - start) for (start, _), (s, e) in zip(outer, inner, strict=True)))

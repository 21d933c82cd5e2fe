"""The device's side of a state: its tensor objects, bound to one flat piece of memory there, or not there at all.

After `vacate` nothing of the state is on the device, or NotFreed says that somebody else holds it.
"""

import gc
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rollmux.runtime.host.errors import Unfit, shown
from rollmux.runtime.residency.errors import Changed, NotFreed
from rollmux.runtime.residency.guard import Guard
from rollmux.runtime.residency.layout import Layout, Survey, survey
from rollmux.runtime.residency.leaves import Leaf, leaves, names, plain_number
from rollmux.runtime.residency.memory import Memory, memory_of

# More bytes than this are too many to be written with each version.
ASIDE_BYTES = 1 << 20
Storages = list[tuple["weakref.ref[torch.UntypedStorage]", int]]


class OnDevice:
    """One state. Tensors that lie on the host anyway, such as an optimizer's counts of steps, don't move: if they are
    few bytes they go with the record of each version, if they are many (`left_bytes`) they end with this process."""

    def __init__(self, state: Callable[[], object], name: str, memory: Memory | None) -> None:
        self.name, self._state = name, state
        self.memory = memory if memory is not None else memory_of(self._leaves()[0].tensor.device)
        self.flat: Tensor | None = None
        self._layout: Layout | None = None  # of `flat`
        self._tensors: dict[str, Tensor] = {}
        self._aside: list[Tensor] = []
        self._put_aside = b""
        self.left_bytes = 0
        self._guard: Guard | None = None
        self._settled = False  # whether at the last look all of it was in `flat`
        self._left = False
        self._leaked: Storages = []
        self._is_freed = True  # the device has said that it has back what was let go of
        self._is_late = False  # others held that for a while
        self.look()

    def _leaves(self) -> list[Leaf]:
        found = leaves(self._state())
        if not found:
            raise Unfit(f"the state {self.name!r} holds no tensor with data; give modules, optimizers or tensors")
        return found

    def look(self) -> Survey:
        """Where the state is now. Its tensors may be others than before."""
        found, beside = list[Leaf](), list[Leaf]()
        for leaf in self._leaves():
            (found if self.memory.holds(leaf.tensor) else beside).append(leaf)
        for leaf in beside:
            if leaf.tensor.device.type != "cpu":
                both = f"{leaf.name!r} on {leaf.tensor.device}, and others on {self.memory.device}"
                raise Unfit(f"{self.name!r} has {both}; make a state for each device")
        nbytes = sum(leaf.tensor.nbytes for leaf in beside)
        self.left_bytes = nbytes if nbytes > ASIDE_BYTES else 0
        self._aside = [] if self.left_bytes else [leaf.tensor for leaf in beside]
        self._tensors = {leaf.name: leaf.tensor for leaf in found}
        seen = survey(found, self._layout, self.flat, [] if self.left_bytes else beside)
        self._settled = seen.at_home
        return seen

    def names(self) -> dict[str, str]:
        """For each name that a module has for one of its tensors, the name here."""
        return names(self._state())

    @property
    def left_number(self) -> str | None:
        """The name of a plain number in an optimizer: it ends with this process, even if the state survives."""
        return plain_number(self._state())

    def aside(self) -> bytes:
        """The present bytes of the tensors that were on the host at the last look."""
        return b"".join(_bytes_of(tensor.detach()).numpy().tobytes() for tensor in self._aside)

    def put_aside(self, content: bytes) -> None:
        """Writes such bytes, which a version has kept, back into those tensors."""
        self._put_aside = content
        at = 0
        for tensor in self._aside:
            part = bytearray(content[at : at + tensor.nbytes])
            if part:
                tensor.data.copy_(torch.frombuffer(part, dtype=tensor.dtype).view(tensor.shape))
            at += tensor.nbytes

    def expect(self, layout: Layout) -> None:
        """Refuses the state if its tensors are not those of a layout that was made elsewhere."""
        mine, theirs = _shapes(self.look().layout), _shapes(layout)
        for name in sorted(set(mine) | set(theirs)):
            if mine.get(name) != theirs.get(name):
                both = f"{mine.get(name, 'missing')}, and {theirs.get(name, 'missing')} in the copy on the host"
                raise Unfit(f"{self.name!r}: {name!r} is {both}; build the state as it was, or start cold")

    def board(self, found: Sequence[Leaf], layout: Layout, flat: Tensor, *, watched: bool) -> None:
        """Binds all tensors of the state, which were elsewhere, to `flat`, where it is laid out."""
        self._tensors, self._aside, self.left_bytes = {leaf.name: leaf.tensor for leaf in found}, [], 0
        self.bind(layout, flat)
        if watched:
            self.watch()

    def bind(self, layout: Layout, flat: Tensor) -> None:
        """The state is in `flat` from now on; its values may still be on their way there."""
        # First: if it is interrupted, some of it is there.
        self.flat, self._layout, self._guard, self._settled = flat, layout, None, True
        for place in layout.places:
            self._tensors[place.name].data = layout.view(place, flat)
        self._left = False

    def leave(self) -> None:
        """Empties the tensors, all of which are in `flat`; their values stay there."""
        self._left = True
        self._empty()

    def _empty(self) -> None:
        blanks: dict[torch.dtype, Tensor] = {}
        for tensor in self._tensors.values():
            if tensor.dtype not in blanks:
                blanks[tensor.dtype] = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            tensor.data = blanks[tensor.dtype]

    def come_back(self) -> None:
        """Undoes `leave`: the tensors are in `flat` again."""
        if self._left and self.flat is not None and self._layout is not None:
            self.bind(self._layout, self.flat)

    def unbind(self) -> None:
        """Empties the tensors, and forgets their memory: whoever else holds that still does."""
        if not self._left:
            self._empty()
        self._gone()

    def _gone(self) -> None:
        self.flat, self._layout, self._guard, self._left = None, None, None, False

    def watch(self) -> None:
        """From now on a change of the state is noticed."""
        assert self.flat is not None
        self._guard = Guard(self._tensors, self.flat)

    @property
    def watched(self) -> bool:
        return self._guard is not None

    def unwatch(self) -> None:
        """From now on the state may change."""
        self._guard = None

    def require_unchanged(self) -> None:
        found = self._guard.found(self._tensors) if self._guard is not None else ""
        if not found and self._guard is not None and self.aside() != self._put_aside:
            found = "a number of it that lies on the host was changed"
        if found:
            remedy = "do not declare it read-only, or say so (`Resident.update`, `Visitor.writing`)"
            raise Changed(f"{self.name!r} is read-only, and {found}; {remedy}")

    def vacate(self, home: tuple[Layout, Tensor] | None = None) -> None:
        """Empties the tensors, or binds them to their piece at home, and gives their memory back."""
        let_go = self._let_go()
        piece = self.flat.data_ptr() if self.flat is not None and len(let_go) == 1 else None
        self.memory.expect(sum(nbytes for _, nbytes in let_go), piece)
        if home is not None:
            layout, flat = home
            for place in layout.places:
                self._tensors[place.name].data = layout.view(place, flat)
            self._gone()
        else:
            self.unbind()
        self._leaked += _held(let_go)
        if self._leaked:
            self._leaked = _held(self._leaked)
        self._is_freed = self._is_late = False
        self.require_freed()

    def let_go_of(self, flat: Tensor) -> None:
        """The load that this memory was for has failed: it goes back once nobody holds it."""
        storage = flat.untyped_storage()
        self._leaked.append((weakref.ref(storage), storage.nbytes()))
        self._is_freed, self._is_late = False, True

    @property
    def is_there(self) -> bool:
        """Whether any of it is on the device: an interrupted `vacate` may have left some, even if all was elsewhere."""
        return self.flat is not None or any(tensor.numel() for tensor in self._tensors.values())

    def _let_go(self) -> Storages:
        """Each piece of memory that the state is in, once, with its size."""
        if self.flat is not None and self._settled:
            storage = self.flat.untyped_storage()
            return [(weakref.ref(storage), storage.nbytes())]
        there = [*self._tensors.values(), *([self.flat] if self.flat is not None else [])]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in there}
        return [(weakref.ref(storage), storage.nbytes()) for storage in storages.values()]

    @property
    def leaked_bytes(self) -> int:
        """Memory that the state was in, and that others still hold."""
        return sum(nbytes for _, nbytes in _held(self._leaked))

    def require_freed(self) -> None:
        """Raises NotFreed for as long as the device does not have its memory back, however often it is asked."""
        if self.leaked_bytes:
            gc.collect()  # frees what only a cycle of dead objects holds
        if self.leaked_bytes:
            self._is_late = True
            what = f"{shown(self.leaked_bytes)} of the device's memory"
            remedy = "drop views of the state, graphs and outputs that hold it, before the phase ends"
            raise NotFreed(f"{self.name!r} is on the host, but others still hold {what} that it was in; {remedy}")
        if not self._is_freed:
            if self._is_late:
                self.memory.expect(0, None)  # what was allocated meanwhile would count as what was not freed
            self.memory.release()
            self._is_freed = True


def _shapes(layout: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    moved = {place.name: (place.dtype, place.size) for place in layout.places}
    return moved | {aside.name: (aside.dtype, aside.size) for aside in layout.asides}


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _held(storages: Storages) -> Storages:
    return [(ref, nbytes) for ref, nbytes in storages if ref() is not None]

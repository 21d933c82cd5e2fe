"""The device's side of a state: its tensor objects, bound to one flat piece of memory or empty.

After `vacate` nothing of the state is on the device, or NotFreed says that somebody else holds it.
"""

import gc
import weakref

import torch
from torch import Tensor

from rollmux.runtime.residency.errors import Changed, NotFreed, Unfit, shown
from rollmux.runtime.residency.guard import Guard
from rollmux.runtime.residency.layout import Layout, Survey, survey
from rollmux.runtime.residency.leaves import Leaf, leaves
from rollmux.runtime.residency.memory import Memory, memory_of

Storages = list[tuple["weakref.ref[torch.UntypedStorage]", int]]


class OnDevice:
    """One state. What lies on another device than its first tensor is left where it is."""

    def __init__(self, state: object, name: str, memory: Memory | None) -> None:
        found = leaves(state)
        if not found:
            raise Unfit(f"the state {name!r} holds no tensor with data; give modules, optimizers or tensors")
        self.name, self.memory = name, memory if memory is not None else memory_of(found[0].tensor.device)
        self.flat: Tensor | None = None
        self._state = state
        self._layout: Layout | None = None  # of `flat`
        self._tensors: dict[str, Tensor] = {}
        self._guard: Guard | None = None
        self._leaked: Storages = []
        self.look()

    def look(self) -> Survey:
        """Where the state is now. Its tensors may be others than before."""
        found = [leaf for leaf in leaves(self._state) if leaf.tensor.device == self.memory.device]
        self._tensors = {leaf.name: leaf.tensor for leaf in found}
        return survey(found, self._layout, self.flat)

    def expect(self, layout: Layout) -> None:
        """The tensors must be those of a layout that was made elsewhere."""
        mine = {place.name: (place.dtype, place.size) for place in self.look().layout.places}
        theirs = {place.name: (place.dtype, place.size) for place in layout.places}
        for name in sorted(set(mine) | set(theirs)):
            if mine.get(name) != theirs.get(name):
                both = f"{mine.get(name, 'missing')}, and {theirs.get(name, 'missing')} in the copy on the host"
                raise Unfit(f"{self.name!r}: {name!r} is {both}; build the state as it was, or start cold")

    def bind(self, layout: Layout, flat: Tensor, *, watched: bool) -> None:
        """The state is in `flat` from now on."""
        for place in layout.places:
            self._tensors[place.name].data = layout.view(place, flat)
        self.flat, self._layout = flat, layout
        self._guard = Guard(self._tensors, flat) if watched else None

    @property
    def watched(self) -> bool:
        return self._guard is not None

    def require_unchanged(self) -> None:
        found = self._guard.found(self._tensors) if self._guard is not None else ""
        if found:
            remedy = "do not declare it read-only, or change it on the host by `update`"
            raise Changed(f"{self.name!r} is read-only, and {found}; {remedy}")

    def vacate(self) -> None:
        """Empties the tensors, and gives their memory back."""
        in_one = self.flat is not None
        let_go = self._let_go()
        self.memory.expect(sum(nbytes for _, nbytes in let_go), in_one)
        for tensor in self._tensors.values():
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self.flat, self._layout, self._guard = None, None, None
        self._leaked += _held(let_go)
        if self._leaked:
            self._leaked = _held(self._leaked)
        if _held(let_go):
            self.memory.abandon()
        self.require_freed()
        self.memory.release()

    def _let_go(self) -> Storages:
        """Each piece of memory once, with its size."""
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in self._tensors.values()}
        return [(weakref.ref(storage), storage.nbytes()) for storage in storages.values()]

    @property
    def leaked_bytes(self) -> int:
        """Memory that the state was in, and that others still hold."""
        return sum(nbytes for _, nbytes in _held(self._leaked))

    def require_freed(self) -> None:
        if not self.leaked_bytes:
            return
        gc.collect()  # what is held by a cycle of dead objects only
        if self.leaked_bytes:
            what = f"{shown(self.leaked_bytes)} of the device's memory"
            remedy = "drop views of the state, graphs and outputs that hold it, before the phase ends"
            raise NotFreed(f"{self.name!r} is on the host, but others still hold {what} that it was in; {remedy}")


def _held(storages: Storages) -> Storages:
    return [(ref, nbytes) for ref, nbytes in storages if ref() is not None]


__all__ = ["Leaf", "OnDevice"]

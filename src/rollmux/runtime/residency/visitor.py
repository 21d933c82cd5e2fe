"""State that lives in host memory, and is on a device while somebody works there.

At rest its tensors are plain tensors on the host, to be read and written; `Resident` is for state that outlives its
process. Invariant: the state is wholly at home (on the host) or wholly on the device, and comes home with what the
device made of it.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from traceback import clear_frames

import torch
from torch import Tensor

from rollmux.runtime.residency.layout import Layout, survey
from rollmux.runtime.residency.leaves import leaves
from rollmux.runtime.residency.memory import Memory
from rollmux.runtime.residency.on_device import OnDevice
from rollmux.runtime.residency.transfer import finished


class Visitor:
    """`state` returns what `Resident` takes, and is called anew at each move: tensors that have joined come along.

    `read_only`: on the device the state changes only within `writing`, and else leaves without a copy. Other changes
    are noticed.
    """

    def __init__(self, state: Callable[[], object], *, name: str, memory: Memory, read_only: bool = False) -> None:
        self._state, self._memory, self._read_only = state, memory, read_only
        self._device = OnDevice(state, name, memory)
        self._layout = Layout((), ())
        self._home = torch.empty(0, dtype=torch.uint8)
        self._visiting = False
        self._lock = RLock()
        self._settle()
        self._at_end = weakref.finalize(self, memory.unpin)

    def load(self) -> None:
        """Moves it onto the device. Does nothing if it is there."""
        with self._lock:
            if self._visiting:
                return
            self._settle()
            flat = self._memory.allocate(self._layout.nbytes)
            try:
                self._fill(flat)
            except BaseException as error:
                clear_frames(error.__traceback__)  # which hold the memory for as long as somebody has the error
                if not self.is_here:
                    self._device.let_go_of(flat)
                del flat
                raise
            self._visiting = True

    def offload(self) -> None:
        """Moves it home and gives the device's memory back. An error other than NotFreed leaves it on the device."""
        with self._lock:
            if not self.is_here:
                self._device.require_freed()
                return
            if self._device.watched:
                self._device.require_unchanged()
            self._bring_home()
            self._device.unwatch()  # home has all of it
            self._visiting = False  # if it is interrupted from here on, it is in neither place as a whole
            self._device.vacate((self._layout, self._home))

    @property
    def is_here(self) -> bool:
        """Whether any of it is on the device."""
        return self._device.flat is not None

    @property
    def nbytes(self) -> int:
        """The bytes that move."""
        return self._layout.nbytes

    @contextmanager
    def still(self) -> Iterator[None]:
        """The state may be read within: it moves neither way."""
        with self._lock:
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The state may be written within, wherever it is."""
        with self._lock:
            self._device.unwatch()
            yield

    def close(self) -> None:
        """Moves the state home, and unpins its memory there."""
        with self._lock:
            try:
                self.offload()
            finally:
                self._at_end()

    # ------------------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Lays all of the state at home into one piece, with whatever has joined it since."""
        found = leaves(self._state())
        seen = survey(found, self._layout, self._home)
        if seen.at_home:
            return
        home = _piece(seen.layout)
        for part, source in zip(_parts(seen.layout, home), seen.sources, strict=True):
            part.copy_(source)
        for leaf, place in zip(found, seen.layout.places, strict=True):
            leaf.tensor.data = seen.layout.view(place, home)
        self._keep(seen.layout, home)

    def _fill(self, flat: Tensor) -> None:
        with finished(self._memory.transfer()) as transfer:
            for target, source in zip(self._layout.split(flat), self._layout.split(self._home), strict=True):
                transfer.load(target, source)
        self._device.board(leaves(self._state()), self._layout, flat, watched=self._read_only)

    def _bring_home(self) -> None:
        """Copies the state home, unless it is watched and nothing has joined it: home has it then."""
        seen, flat = self._device.look(), self._device.flat
        if seen.at_home and self._device.watched:
            return
        layout = self._layout if seen.at_home else seen.layout
        home = self._home if seen.at_home else _piece(layout)
        if seen.at_home and flat is not None:
            pairs = zip(layout.split(home), layout.split(flat), strict=True)
        else:
            pairs = zip(_parts(layout, home), seen.sources, strict=True)
        with finished(self._memory.transfer()) as transfer:
            for target, source in pairs:
                transfer.save(target, source)
        if home is not self._home:
            self._keep(layout, home)

    def _keep(self, layout: Layout, home: Tensor) -> None:
        self._memory.unpin()
        self._memory.pin(home)
        self._layout, self._home = layout, home


def _piece(layout: Layout) -> Tensor:
    return torch.empty(layout.nbytes, dtype=torch.uint8)


def _parts(layout: Layout, flat: Tensor) -> Sequence[Tensor]:
    """The bytes of each unit in `flat`."""
    return [flat[unit.at : unit.at + unit.nbytes] for unit in layout.units]

"""The state of a phase: on the device while the phase works, on the host otherwise, and never half on either.

A phase calls `load` and `offload`. Tensor objects stay the same; in between they are empty, so that nobody computes
with what is not there. The host's copy is the last version that was written whole.
"""

import logging
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from threading import RLock
from traceback import clear_frames

from torch import Tensor

from rollmux.runtime.host.budget import Budget
from rollmux.runtime.host.errors import NoRoom, Unfit, shown
from rollmux.runtime.residency.errors import BadCopy, Changed, NotFreed
from rollmux.runtime.residency.host_copy import HostCopy
from rollmux.runtime.residency.kept import Kept
from rollmux.runtime.residency.layout import Layout, Survey
from rollmux.runtime.residency.leaves import fill
from rollmux.runtime.residency.memory import Memory
from rollmux.runtime.residency.moves import bring, change, note, save, save_early
from rollmux.runtime.residency.on_device import OnDevice
from rollmux.runtime.residency.record import Record, require_fit

log = logging.getLogger("rollmux")


class Resident:
    """`state`: modules, optimizers, tensors, and containers of them.

    - `read_only`: the device never changes it, so nothing is copied back; a change is noticed
    - `slots`: 2 keeps the last version whole while the next is written; 1 takes half of the host memory
    - `shared`: other processes may join it by `attach`; all of them share one copy on the host
    - `survive_s`: how long the host's copy outlives this process if it dies, or ends without closing it
    - `declared_bytes`: the host memory that the job has said it needs
    - `rebuild`: fills the state anew; if it is given, the host's copy is given up when there is no room for it
    """

    def __init__(
        self,
        state: object,
        *,
        name: str,
        budget: Budget,
        memory: Memory | None = None,
        read_only: bool = False,
        slots: int = 2,
        shared: bool = False,
        survive_s: float = 0.0,
        declared_bytes: int | None = None,
        rebuild: Callable[[], object] | None = None,
    ) -> None:
        if slots not in (1, 2):
            raise Unfit(f"slots = {slots}: 2 keeps the last version while the next is written, 1 saves memory")
        self._slots, self._survive_s, self._declared_bytes, self._rebuild = slots, survive_s, declared_bytes, rebuild
        self._open(name, budget, OnDevice(lambda: state, name, memory), read_only, shared)
        self._layout = self.device.look().layout
        self._keep(self._created(self._layout))
        self._loaded = True

    @classmethod
    def attach(
        cls,
        state: object,
        *,
        name: str,
        budget: Budget,
        memory: Memory | None = None,
        read_only: bool = False,
        shared: bool = False,
        declared_bytes: int | None = None,
        rebuild: Callable[[], object] | None = None,
    ) -> "Resident":
        """Takes over what a dead process has left, or joins a living one that shares it.

        `state` must be built like theirs, with whatever values. Its optimizers need not have made a step if all that
        they keep are tensors under names, as torch's do; tensors that are nested, or under numbers, have to be there.
        The state is offloaded, and `load` brings the host's values. The host's copy survives this process for as long
        as it did theirs.
        """
        self, device = cls.__new__(cls), OnDevice(lambda: state, name, memory)
        kept = Kept.join(budget, name, device.memory, shared=shared)
        with ExitStack() as otherwise:
            otherwise.callback(kept.leave)
            otherwise.callback(fill(state, kept.host.layout.blanks(device.memory.device)))
            device.expect(kept.host.layout)
            device.vacate()
            otherwise.pop_all()
        self._slots, self._survive_s = kept.host.slots, kept.survive_s
        self._declared_bytes, self._rebuild = declared_bytes, rebuild
        self._open(name, budget, device, read_only, shared)
        self._layout = kept.host.layout
        self._keep(kept)
        self._loaded = False
        return self

    def _open(self, name: str, budget: Budget, device: OnDevice, read_only: bool, shared: bool) -> None:
        self.name, self.read_only, self._budget = name, read_only, budget
        self.device, self._shared = device, shared
        self.kept: Kept | None = None
        self._at_end: weakref.finalize[..., Resident] | None = None
        self._loaded_version = 0
        self._lock = RLock()

    # -- what a phase calls ------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Moves the newest version onto the device. Does nothing if it is there."""
        with self._lock:
            if self._loaded and not self.outdated:
                return
            if self._loaded:
                self._require_unchanged()
                self._loaded = False
                self.device.vacate()
            try:
                self._fill(self.device.memory.allocate(self._layout.nbytes))
            except BaseException as error:
                if self.device.flat is not None:
                    self._vacate_after(error)
                raise
            self._loaded = True

    def _vacate_after(self, error: BaseException) -> None:
        """Frames of the error may still hold memory. That goes with them, so NotFreed is only a note to this error."""
        try:
            self.device.vacate()
        except NotFreed as held:
            error.add_note(str(held))

    def _fill(self, flat: Tensor) -> None:
        if self.kept is not None and self.kept.whole:
            try:
                self._loaded_version = bring(self.kept, flat, self.device.memory, partial(self._board, flat))
                if self.read_only:
                    self.device.watch()
            except BaseException as error:
                clear_frames(error.__traceback__)  # which hold the memory for as long as somebody has the error
                self.device.unbind()
                self.device.let_go_of(flat)
                del flat
                raise
        elif self._rebuild is not None:
            self.device.bind(self._layout, flat)
            del flat  # so that an error on its way holds no memory
            self._rebuild()
        else:
            raise BadCopy(f"{self.name!r} has no copy on the host, and no `rebuild` was given; start cold")

    def _board(self, flat: Tensor) -> None:
        self.device.bind(self._layout, flat)
        assert self.kept is not None
        self.device.put_aside(self.kept.aside)

    def offload(self, notes: bytes | None = None) -> None:
        """Moves the state to the host and gives the device's memory back; `notes` go with the version.

        An error other than NotFreed leaves the state on the device, as it was.
        """
        require_fit(notes)
        with self._lock:
            if not self._loaded:
                if self.device.is_there:  # it was interrupted while it left
                    self.device.vacate()
                self.device.require_freed()
                return
            if self.device.watched and self.kept is not None and self.kept.whole:
                self._require_unchanged()
                if notes is not None:
                    note(self.kept, notes)
            else:
                self._save(notes)
            self._loaded = False
            self.device.vacate()

    def _require_unchanged(self) -> None:
        """Raises Changed if read-only state is not as it was loaded, or has other tensors than were loaded."""
        seen = self.device.look()
        self.device.require_unchanged()
        if not seen.at_home:
            raise Changed(f"{self.name!r} is read-only, and has other tensors than were loaded; take them out of it")

    @property
    def nbytes(self) -> int:
        """The bytes that move."""
        return self._layout.nbytes

    @property
    def leaked_bytes(self) -> int:
        """Device memory that was not free after an offload, and still is not."""
        return self.device.leaked_bytes

    # -- versions ----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version of the host's copy; 0 before the first."""
        newest = self._newest()
        return newest.version if newest is not None else 0

    @property
    def notes(self) -> bytes:
        """The notes that came with that version."""
        newest = self._newest()
        return newest.notes if newest is not None else b""

    def _newest(self) -> Record | None:
        return self.kept.newest() if self.kept is not None else None

    @property
    def outdated(self) -> bool:
        """Whether the host has a newer version than the device, for state that only the host changes."""
        return self._loaded and self.device.watched and self.version > self._loaded_version

    def update(self, values: Mapping[str, Tensor], notes: bytes | None = None) -> int:
        """New values on the host, named as in `state_dict()`; the next `load` brings them. Returns the new version."""
        with self._lock:
            if self._loaded and not self.read_only:
                raise Unfit(f"{self.name!r} is on the device, where it may have changed; offload it before its update")
            if self._shared and self._slots == 1:
                raise Unfit(f"{self.name!r} is shared in one slot, which others may be reading; use two for updates")
            if self._loaded and not self.device.watched:
                self.offload()
                self.load()
            if self.kept is None or not self.kept.whole:
                raise BadCopy(f"{self.name!r} has no copy on the host to be updated; load and offload it first")
            change(self.kept, values, notes, self.device.names())
            return self.kept.version

    # -- the host's side ---------------------------------------------------------------------------------------------

    def _save(self, notes: bytes | None) -> None:
        if not self._saved_early(notes):
            self._save_seen(notes)

    def _saved_early(self, notes: bytes | None) -> bool:
        """If the device copies by itself, it begins at once and all else is done meanwhile. False: nothing is saved."""
        kept, flat, device = self.kept, self.device.flat, self.device
        if not device.memory.copies_itself or flat is None or kept is None or not kept.whole or kept.host.slots == 1:
            return False
        if kept.host.layout != self._layout:  # an offload that failed has made a larger file
            return False
        try:
            return save_early(kept, flat, device.memory, notes, self._looked, self._leave)
        except BaseException:
            device.come_back()
            self._loaded = True
            raise

    def _leave(self) -> None:
        self._loaded = False
        self.device.leave()

    def _looked(self) -> tuple[Survey, bytes]:
        seen = self.device.look()
        if seen.at_home:
            self._require_room(seen.layout)
        return seen, self.device.aside()

    def _save_seen(self, notes: bytes | None) -> None:
        seen = self.device.look()
        try:
            self._require_room(seen.layout)
            kept = self.kept if self.kept is not None else self._keep(self._created(seen.layout))
            save(kept, seen, self.device.flat, self.device.memory, notes, self.device.aside())
        except NoRoom as refused:
            if self._rebuild is None:
                raise
            log.warning("%s; the next load starts cold", str(refused))  # a text: the error itself would hold the state
            self.drop()
        self._layout = self.kept.host.layout if self.kept is not None else seen.layout  # same object, quick to compare

    def _require_room(self, layout: Layout) -> None:
        """Refuses a state that does not fit what was declared, is shared or is to survive."""
        if self._survive_s and self.device.left_bytes:
            what = f"{shown(self.device.left_bytes)} of it are on the host, and end with this process"
            raise Unfit(f"{self.name!r} is to survive, and {what}; put them on {self.device.memory.device}")
        number = self.device.left_number if self._survive_s or self._shared else None
        if number is not None:
            state, asked = ("to survive", "survive_s") if self._survive_s else ("shared", "shared")
            remedy = f"keep it in a tensor, as torch's optimizers do, or leave `{asked}` out"
            raise Unfit(f"{self.name!r} is {state}, and {number} is a number, which no other process is told; {remedy}")
        size = HostCopy.size(layout, self._slots)
        if self._declared_bytes is not None and size > self._declared_bytes:
            both = (
                f"{shown(size)} of host memory for {self._slots} slots, and {shown(self._declared_bytes)} are declared"
            )
            raise NoRoom(f"{self.name!r} needs {both}; declare more, hold less, or use one slot")
        if self._shared and layout != self._layout:
            raise Unfit(
                f"{self.name!r} is shared, and its tensors are not those that it began with; keep them the same"
            )

    def _created(self, layout: Layout) -> Kept:
        self._require_room(layout)
        memory = self.device.memory
        size = HostCopy.size(layout, self._slots) + memory.staging_bytes
        claim = self._budget.claim(self.name, size, shared=self._shared, survive_s=self._survive_s)
        return Kept.create(claim, layout, self._slots, memory, shared=self._shared)

    def _keep(self, kept: Kept) -> Kept:
        self.kept, self._at_end = kept, weakref.finalize(self, kept.forsake)
        self._at_end.atexit = kept.survive_s == 0  # another thread may write to such state until the process is over
        return kept

    def drop(self) -> None:
        """Gives the host's copy up. State that is not on the device is lost then, and the next load starts cold."""
        self.close()

    def close(self, *, keep: bool = False) -> None:
        """Ends residency; with `keep` the host's copy stays for a later process, as long as it is to survive."""
        with self._lock:
            if self.kept is None or self._at_end is None:
                return
            self.kept.leave() if keep else self.kept.release()
            self._at_end.detach()
            self.kept = self._at_end = None

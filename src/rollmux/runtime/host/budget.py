"""The host memory of a node, shared out among all jobs on it by files in one folder, without a server.

A claim is a file whose lock its process holds: the kernel lets go of it whenever and however the process ends. Under
one lock over the folder the sum of claims never exceeds the limit, and what the dead have left is reclaimed.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

import msgspec

from rollmux.runtime.host.errors import Busy, NameTaken, NoRoom, NotKept, Unfit, shown
from rollmux.runtime.host.room import available_bytes
from rollmux.system import let_go, since_boot_s, took_lock

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
# Looking at the claims takes a millisecond; whoever has not had the folder after this long waits for a stopped process.
FOLDER_PATIENCE_S, LOCK_POLL_S = 30.0, 0.001
# An entry is always written at this length, so that nothing of a longer one is left. The longest path has 4,096 bytes.
ENTRY_BYTES = 8192
# What the node's own processes may need at any time.
LEAVE_FREE_BYTES = 256 << 20


class Place(msgspec.Struct, frozen=True):
    """Files in a folder that is not the budget's. The last of them is the lock that whoever works there holds.

    They, and nothing else that lies there, are deleted with the claim. If the folder is gone, a dead process's claim is
    over.
    """

    folder: str
    files: tuple[str, ...]


class Entry(msgspec.Struct, frozen=True):
    """What a claim's file says. `dead_since_s` is when it was first found without a process, since the boot."""

    nbytes: int
    survive_s: float
    dead_since_s: float | None = None
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """One claim, as others see it."""

    name: str
    nbytes: int
    alive: bool


class Claim:
    """Bytes that this process holds under a name."""

    def __init__(self, budget: "Budget", name: str, entry: Entry, file: int) -> None:
        self.budget, self.name, self.entry = budget, name, entry
        self._file: int | None = file
        self._pid = os.getpid()

    def resize(self, nbytes: int) -> None:
        """Changes the bytes of the claim. If more do not fit they are refused, and the claim stays as it was."""
        with self.budget.locked():
            if nbytes > self.entry.nbytes:
                self.budget.reclaim()
                self.budget.require(self.name, nbytes, taken=self.entry.nbytes)
            self.entry = msgspec.structs.replace(self.entry, nbytes=nbytes)
            self.budget.write(self.name, self.entry)

    def lies_in(self, folder: Path, files: Sequence[str]) -> None:
        """From now on these files are deleted with the claim. They are this process's: it holds the last, the lock."""
        try:
            place = Place(bytes(folder.absolute()).decode(), tuple(files))
        except UnicodeDecodeError as error:
            raise Unfit(f"{str(folder)!r} is no text, and can't be written into a claim: rename it") from error
        with self.budget.locked():
            self.entry = msgspec.structs.replace(self.entry, place=place)
            self.budget.write(self.name, self.entry)

    def release(self, patience_s: float = FOLDER_PATIENCE_S) -> None:
        """Gives the bytes back, and deletes what is kept under the name. A forked child only lets go of the file."""
        if self._file is None:
            return
        if os.getpid() == self._pid and self.budget.folder.exists():
            with self.budget.locked(patience_s):
                if self._last():
                    self.budget.forget(self.name)
        self.leave()

    def forsake(self) -> None:
        """Releases when the garbage collector calls, perhaps while this thread holds the lock that `release` needs."""
        try:
            self.release(patience_s=0.0)
        except Busy:
            self.leave()  # the next that claims anything reclaims it

    def leave(self) -> None:
        """Lets go as a process does that ends: what is kept stays for as long as it is to survive."""
        if self._file is not None:
            if os.getpid() == self._pid:
                let_go(self._file)
            else:
                os.close(self._file)  # inherited: the lock is the parent's
            self._file = None

    def _last(self) -> bool:
        """Whether nobody else shares the claim."""
        assert self._file is not None
        return took_lock(self._file)


class Budget:
    """Claims in `folder`, of which all together hold at most `limit_bytes`. All jobs of a node name the same two."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
            raise Unfit(f"{folder} is open to other users, who could read the state in it; use a folder with mode 0700")
        with self.locked():
            self._agree()

    def _agree(self) -> None:
        """Refuses another limit than the folder has: two limits for one memory would be none."""
        path = self.folder / "limit"
        said = int(path.read_text()) if path.exists() and path.stat().st_size else None
        if said is None:
            path.with_suffix(".new").write_text(str(self.limit_bytes))
            path.with_suffix(".new").replace(path)
        elif said != self.limit_bytes:
            both = f"{said} bytes, not {self.limit_bytes}"
            raise Unfit(f"the budget in {self.folder} is {both}; all jobs of a node give the same limit")

    # -- claims ------------------------------------------------------------------------------------------------------

    def claim(self, name: str, nbytes: int, *, shared: bool = False, survive_s: float = 0.0) -> Claim:
        """Takes bytes under a name that nobody alive has, for something new; what a dead process kept under it goes."""
        check_name(name)
        if not 0 <= survive_s < inf:
            raise Unfit(f"{name!r} is to survive for {survive_s} s: give a number of seconds from 0 on")
        with self.locked():
            if self._exists(name):
                let_go(self._hold(name, shared=False))
            self.reclaim()
            self.require(name, nbytes, taken=self._kept_bytes(name))
            if not self.forget(name):
                raise NameTaken(f"somebody works in the folder that {name!r} is about: wait for its end")
            return self._claimed(name, Entry(nbytes, survive_s), shared)

    def join(self, name: str, *, shared: bool = False) -> Claim:
        """Takes over what a dead process has left, or shares what a living one shares."""
        check_name(name)
        with self.locked():
            if not self._exists(name):
                raise NotKept(f"nothing is kept as {name!r} in {self.folder}")
            return self._claimed(name, msgspec.structs.replace(self._read(name), dead_since_s=None), shared)

    def _claimed(self, name: str, entry: Entry, shared: bool) -> Claim:
        file = self._hold(name, shared)
        try:
            self.write(name, entry)
        except BaseException:
            let_go(file)
            raise
        return Claim(self, name, entry, file)

    def holdings(self) -> tuple[Holding, ...]:
        """All claims."""
        with self.locked():
            return tuple(Holding(name, self._read(name).nbytes, self._alive(name)) for name in self._names())

    def sweep(self, *, now: bool = False) -> tuple[str, ...]:
        """Reclaims what the dead have left, with `now` also what was to survive them; returns the names."""
        with self.locked():
            return self.reclaim(now)

    # -- for claims, under the folder's lock -------------------------------------------------------------------------

    def require(self, name: str, nbytes: int, taken: int) -> None:
        """Refuses what would exceed the limit, or what the node does not have any more."""
        others = sum(self._read(each).nbytes for each in self._names() if each != name)
        if others + nbytes > self.limit_bytes:
            left = f"{shown(self.limit_bytes - others)} of the node's {shown(self.limit_bytes)} are left"
            remedy = "hold less, raise the limit, or end a job that holds state here"
            raise NoRoom(f"{name!r} needs {shown(nbytes)} of host memory, and {left}; {remedy}")
        free = available_bytes()
        if free is not None and nbytes - taken > free - LEAVE_FREE_BYTES:
            left = f"the node has {shown(free)}, of which {shown(LEAVE_FREE_BYTES)} stay free"
            raise NoRoom(f"{name!r} needs {shown(nbytes - taken)} more host memory; {left}; end what else uses it")

    def write(self, name: str, entry: Entry) -> None:
        """Writes the entry into the same file, for the file carries the lock."""
        data = msgspec.json.encode(entry)
        with self._path(name).open("r+b") as file:
            file.write(data.ljust(ENTRY_BYTES))

    def forget(self, name: str) -> bool:
        """Deletes the claim, its file last: after a crash it can be reclaimed. False: somebody works in its folder."""
        place = self._read(name).place if self._exists(name) else None
        if place is not None and not cleared(Path(place.folder), place.files):
            return False
        for path in self._kept(name):
            path.unlink(missing_ok=True)
        self._path(name).unlink(missing_ok=True)
        return True

    def reclaim(self, now: bool = False) -> tuple[str, ...]:
        """Deletes what the dead have left, once its time to survive is over; returns the names."""
        over = [name for name in self._names() if not self._alive(name) and (now or self._is_over(name))]
        return tuple(name for name in over if self.forget(name))

    @contextmanager
    def locked(self, patience_s: float = FOLDER_PATIENCE_S) -> Iterator[None]:
        file = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not took_lock(file, patience_s, LOCK_POLL_S):
                what = f"{self.folder / 'lock'} was held for {patience_s:g} s"
                raise Busy(f"{what}; look for a stopped process that holds it")
            yield
        finally:
            let_go(file)

    # -- files -------------------------------------------------------------------------------------------------------

    def state_path(self, name: str) -> Path:
        return self.folder / f"{name}.state"

    def _kept(self, name: str) -> list[Path]:
        return [self.state_path(name).with_suffix(suffix) for suffix in (".state", ".new")]

    def _kept_bytes(self, name: str) -> int:
        """The bytes that the name's files really take: a process may have died between its claim and its file."""
        return sum(path.stat().st_blocks * 512 for path in self._kept(name) if path.exists())

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.claim"

    def _exists(self, name: str) -> bool:
        return self._path(name).exists()

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.claim"))

    def _read(self, name: str) -> Entry:
        data = self._path(name).read_bytes()
        if not data:
            return Entry(0, 0.0)  # its process ended before it wrote the entry
        try:
            return msgspec.json.decode(data, type=Entry)
        except msgspec.DecodeError as error:
            raise Unfit(f"{self._path(name)} is no claim of ours ({error}): remove it") from error

    def _is_over(self, name: str) -> bool:
        """Whether a dead process's state has survived it for long enough, from when that was first noticed."""
        entry, now_s = self._read(name), since_boot_s()
        if entry.place is not None and not Path(entry.place.folder).exists():
            return True
        if entry.survive_s == 0:
            return True
        if entry.dead_since_s is None or entry.dead_since_s > now_s:  # the clock begins anew with the machine
            self.write(name, msgspec.structs.replace(entry, dead_since_s=now_s))
            return False
        return now_s - entry.dead_since_s >= entry.survive_s

    def _alive(self, name: str) -> bool:
        try:
            let_go(self._hold(name, shared=False))
        except NameTaken:
            return True
        return False

    def _hold(self, name: str, shared: bool) -> int:
        """Opens the claim's file with its lock. Forked children share the lock, and keep the claim alive."""
        file = os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if took_lock(file, shared=shared):
            return file
        os.close(file)
        remedy = "take another name, end that process, or share the state on both sides"
        raise NameTaken(f"a living process keeps state as {name!r} in {self.folder}; {remedy}")


def cleared(folder: Path, files: Sequence[str]) -> bool:
    """Deletes these files, and the folder if nothing else is in it. False, without deleting: somebody works there."""
    if not folder.exists():
        return True
    try:
        lock = os.open(folder / files[-1], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        lock = None
    except OSError:
        return False
    try:
        if lock is not None and not took_lock(lock):
            return False
        for name in files:
            (folder / name).unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        if lock is not None:
            let_go(lock)
    with suppress(OSError):
        folder.rmdir()
    return True


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise Unfit(f"the name {name!r} must be letters, digits, - and _, at most 100, the first a letter or digit")

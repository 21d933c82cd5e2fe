"""What the launcher intends to run on Ray, written down before it asks Ray: its only memory that outlives it.

Each intent has an id of its own, never used again: what Ray still does about an older one can't touch a newer one.
`told` says that nobody waits to hear of the end any more, `over` that nothing of it runs or ever will.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from threading import Lock
from uuid import uuid4

from rollmux.service.local.attempt_files import KEPT_ATTEMPTS, KEPT_JOBS, Key, file_name
from rollmux.service.local.durable import write


@dataclass(frozen=True, slots=True)
class Intent:
    """One attempt on Ray. `nodes` gives Ray's node for each of our nodes, `ranks` for each rank."""

    job: str
    attempt: int
    id: str
    nodes: dict[str, str]
    ranks: tuple[str, ...]
    told: bool = False
    over: bool = False

    @property
    def key(self) -> Key:
        return self.job, self.attempt


class Intents:
    """Intents on disk, in one folder per job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute() / "ray"
        for each in (self._folder.parent, self._folder):  # `parents` have no mode of ours, and the first holds tokens
            each.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = Lock()  # several threads start jobs: none takes away the folder that another writes to
        self.cluster = self._cluster()

    def new(self, key: Key, nodes: dict[str, str], ranks: tuple[str, ...]) -> Intent:
        """A new intent, with an id that tells a reader of Ray's own pages which job's it is."""
        readable = "".join(char if char.isalnum() and char.isascii() else "-" for char in key[0])[:40]
        return Intent(*key, f"rollmux-{self.cluster}-{readable}-{key[1]}-{uuid4().hex[:8]}", nodes, ranks)

    def keep(self, intent: Intent) -> None:
        """Writes down an attempt that begins. Attempts count up: higher ones that are over were an older job's."""
        with self._lock:
            for path in self._of(file_name(intent.job)):
                if int(path.stem) > intent.attempt and (older := _read(path)) is not None and older.over:
                    path.unlink()
            self._write(intent)

    def tell(self, intent: Intent, over: bool) -> None:
        with suppress(OSError), self._lock:  # on a full disk: a later life may do it again
            self._write(replace(intent, told=True, over=over))

    def latest(self, job_id: str) -> Intent | None:
        found = [each for path in self._of(file_name(job_id)) if (each := _read(path)) is not None]
        return max(found, key=lambda intent: intent.attempt, default=None)

    def forget(self, job_id: str) -> list[str]:
        """Removes the intents of a job that are over; returns their ids."""
        with self._lock:
            return self._pruned(self._folder / file_name(job_id), kept=0)

    def open(self) -> Iterator[Intent]:
        for path in sorted(self._folder.glob("*/*.json")):
            if (intent := _read(path)) is not None and not intent.over:
                yield intent

    def prune(self) -> list[str]:
        """Keeps only the latest attempts of the latest jobs, and those not over; returns the ids of the others."""
        with self._lock:
            folders = [path for path in self._folder.iterdir() if path.is_dir()]
            folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
            return [
                gone
                for i, folder in enumerate(folders)
                for gone in self._pruned(folder, KEPT_ATTEMPTS * (i < KEPT_JOBS))
            ]

    def _pruned(self, folder: Path, kept: int) -> list[str]:
        gone = []
        paths = sorted(self._of(folder.name), key=lambda path: int(path.stem))
        for path in paths[: max(0, len(paths) - kept)]:
            intent = _read(path)
            if intent is not None and intent.over:
                path.unlink()
                gone.append(intent.id)
        if not self._of(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
        return gone

    def _write(self, intent: Intent) -> None:
        path = self._path(intent.key)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write(str(path), asdict(intent))

    def _of(self, folder: str) -> list[Path]:
        return list((self._folder / folder).glob("*.json"))

    def _path(self, key: Key) -> Path:
        return self._folder / file_name(key[0]) / f"{key[1]}.json"

    def _cluster(self) -> str:
        """The id that tells this controller from others that use the same Ray."""
        path = self._folder / "cluster"
        if not path.exists():
            write(str(path), {"id": sha256(uuid4().bytes).hexdigest()[:8]})
        return str(json.loads(path.read_bytes())["id"])


def _read(path: Path) -> Intent | None:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return Intent(**{**found, "ranks": tuple(found["ranks"])})

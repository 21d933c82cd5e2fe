"""The files of attempts in the state directory: what they have printed, who keeps them, how they have ended.

`logs/JOB/ATTEMPT.RANK.log` is for readers. `attempts/JOB/ATTEMPT.*` is the memory of the launcher: the keeper writes
`started` and `ended` (if it is gone without a word, the launcher writes `ended`), and `told` says that nobody waits to
hear of the end any more. Only the files of the latest attempts are kept.
"""

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rollmux import system
from rollmux.service.local.attempt_log import tail
from rollmux.service.local.durable import write
from rollmux.service.local.process_tree import Identity

KEPT_ATTEMPTS = 5
KEPT_JOBS = 200
# The least size of a rank's log, however many ranks share what an attempt may write.
LEAST_LOG_BYTES = 2**16
# How much of all logs of a job is read at most when somebody asks.
TAIL_BYTES = 2**20
# The longest file name made of a job's name, with room for what is added, within the 255 that file systems take.
_LONGEST = 200

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Started:
    """An attempt that was started, and who keeps it."""

    key: Key
    keeper: Identity


class AttemptFiles:
    """All that a launcher has on disk."""

    def __init__(self, folder: Path) -> None:
        self._logs, self._records = folder.absolute() / "logs", folder.absolute() / "attempts"

    def prepare(self, key: Key) -> None:
        """Makes folders for a new attempt; of an older job of that name only records of what may still run are left.

        Attempts count up: files with this number or a higher one were that older job's.
        """
        logs, records = self.log(key).parent, self.record(key).parent
        for folder in (self._logs, self._records, logs, records):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in _numbers(logs, key[1]):
            self._remove(logs, number)
        for number in _numbers(records, key[1]):
            if number == key[1] or self.ended((key[0], number)) is not None:
                self._remove(records, number)

    def log(self, key: Key) -> Path:
        """What the names of the attempt's logs begin with."""
        return self._logs / file_name(key[0]) / str(key[1])

    def record(self, key: Key) -> Path:
        """What the names of the attempt's records begin with."""
        return self._records / file_name(key[0]) / str(key[1])

    def started(self, key: Key) -> Started | None:
        return _started(Path(f"{self.record(key)}.started"))

    def all_started(self) -> Iterator[Started]:
        for path in sorted(self._records.glob("*/*.started")):
            if (started := _started(path)) is not None:
                yield started

    def ended(self, key: Key) -> str | None:
        """How the attempt failed; "" if it did not fail; None if there is no record of its end."""
        found = _read(Path(f"{self.record(key)}.ended"))
        return None if found is None else str(found["failed"])

    def end(self, key: Key, failed: str) -> None:
        """Records an end for a keeper that could not do so, once nothing of the attempt is left."""
        with suppress(OSError):  # on a full disk: a later life of the controller looks for the attempt again
            write(f"{self.record(key)}.ended", {"failed": failed})

    def told(self, key: Key) -> bool:
        return Path(f"{self.record(key)}.told").exists()

    def tell(self, key: Key) -> None:
        with suppress(OSError):  # on a full disk: a later life of the controller may tell the end again
            Path(f"{self.record(key)}.told").touch()

    def complaint(self, key: Key) -> str:
        """What the keeper itself has said last."""
        return "".join(tail(f"{self.record(key)}.keeper", 1, 4096))

    def tail(self, job_id: str, lines: int) -> list[str]:
        """The last lines of the latest attempt. If it has more ranks than lines are wanted, the last to print count."""
        folder = self._logs / file_name(job_id)
        latest = max(_numbers(folder), default=0)
        paths = [path for path in folder.glob(f"{latest}.*.log") if path.name.split(".")[1].isdecimal()]
        paths = sorted(paths, key=_changed_at)[-max(1, lines) :]
        paths.sort(key=_rank)
        found = []
        for path in paths:
            said = tail(str(path), lines // len(paths), TAIL_BYTES // len(paths))
            found += [f"[{_rank(path)}] {line}" for line in said] if len(paths) > 1 else said
        return found

    def forget(self, job_id: str) -> None:
        """Removes what the job has printed, but not the records of what may still run."""
        shutil.rmtree(self._logs / file_name(job_id), ignore_errors=True)

    def prune(self, kept: Collection[Key]) -> None:
        """Keeps only the files of the latest attempts of the latest jobs, and of the attempts that run now (`kept`)."""
        numbers: dict[str, set[int]] = {}
        for job_id, number in kept:
            numbers.setdefault(file_name(job_id), set()).add(number)
        folders = sorted(self._records.glob("*"), key=_changed_at, reverse=True)
        for i, folder in enumerate(folders):
            running = numbers.get(folder.name, set())
            if i >= KEPT_JOBS and not running:
                shutil.rmtree(self._logs / folder.name, ignore_errors=True)
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for old in sorted(_numbers(folder))[:-KEPT_ATTEMPTS]:
                if old not in running:
                    self._remove(self._logs / folder.name, old)
                    self._remove(folder, old)

    def _remove(self, folder: Path, number: int) -> None:
        for path in folder.glob(f"{number}.*"):
            path.unlink(missing_ok=True)


def file_name(job_id: str) -> str:
    """A file name for this job alone, which means nothing else to a file system: some take A and a for the same."""
    name = quote(job_id, safe="").replace(".", "%2E")
    plain = len(name) <= _LONGEST and (system.IS_LINUX or name == name.lower())
    return name if plain else f"{name[: _LONGEST - 65]}~{sha256(job_id.encode()).hexdigest()}"


def _numbers(folder: Path, least: int = 0) -> set[int]:
    """The attempts that have files here, from this number on. Somebody may have put others beside them."""
    if not folder.is_dir():
        return set()
    first = {path.name.partition(".")[0] for path in folder.iterdir()}
    return {number for number in map(int, filter(str.isdecimal, first)) if number >= least}


def _rank(log: Path) -> int:
    return int(log.name.split(".")[1])


def _changed_at(path: Path) -> float:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0


def _started(path: Path) -> Started | None:
    found = _read(path)
    return None if found is None else Started((found["job"], found["attempt"]), Identity(*found["keeper"]))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return found

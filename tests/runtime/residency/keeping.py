"""What the tests of residency share: a budget of their own in the node's memory."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollmux.runtime.residency import Budget

MB = 10**6


@contextmanager
def budget_folder() -> Iterator[Path]:
    """In shared memory where there is any, as in earnest."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="rollmux-test-", dir=shm if shm.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def a_budget(limit_bytes: int = 500 * MB) -> Iterator[Budget]:
    with budget_folder() as folder:
        yield Budget(folder, limit_bytes)

"""What fails and is caught in silence is seen all the same; what is expected to fail is not."""

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from rollmux.runtime.rewards.swallowed import Swallowed


def quietly(call: Callable[[], object]) -> Callable[[], None]:
    def tried() -> None:
        with suppress(Exception):
            call()

    return tried


@pytest.mark.parametrize(
    ("fails", "named"),
    [
        (lambda: bytearray(1 << 62), "MemoryError"),
        (lambda: importlib.import_module("json.no_such_part"), "ModuleNotFoundError"),
        (lambda: os.read(-1, 1), "OSError"),
        (lambda: sorted([1, 2], key=lambda n: bytearray(1 << 62)), "MemoryError"),
    ],
    ids=["memory", "a part of a package", "a read", "memory, in a call from C"],
)
def test_a_failure_that_is_caught_within_is_seen(fails: Callable[[], object], named: str) -> None:
    with Swallowed() as seen:
        quietly(fails)()
    assert seen.failure is not None
    assert seen.failure.startswith(named)


@pytest.mark.parametrize(
    "fails",
    [
        lambda: {"a": 1}["another"],
        lambda: open("/no/such/file"),  # noqa: SIM115 - it never opens
        lambda: importlib.import_module("no_such_package_at_all"),
        lambda: importlib.import_module("tabnanny"),
        lambda: next(iter([])),
    ],
    ids=["a key", "a file", "a package that nobody has", "nothing at all", "an end"],
)
def test_what_a_library_does_without_is_no_failure(fails: Callable[[], object]) -> None:
    with Swallowed() as seen:
        quietly(fails)()
    assert seen.failure is None


def test_a_watch_that_is_lost_counts_as_a_failure() -> None:
    with Swallowed() as seen:
        quietly(lambda: sys.settrace(None))()
    assert seen.failure is not None
    assert "watched" in seen.failure

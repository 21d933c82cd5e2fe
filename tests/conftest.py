"""Hypothesis: profile `ci`, the default, repeats itself; `--hypothesis-profile=dev` searches anew; `thorough` repeats
itself with all examples (`thorough.py`).

Whoever starts tests in the background may have told them to ignore Ctrl-C, and what they start would too: it is heard.

The pure tiers are to be covered by their own tests, those that say what is expected: what properties come by does not
count. All others run untraced: tracing takes up to three times as long. So does finding the tests, which imports torch.
Torch has one thread in each process: threads that share cores wait for each other, busily (`docs/design/trainer.md`,
Surprises).

Workers of xdist have the files in an order of chance, the same each time: neighbours are alike, and while all workers
had tests that wait, nobody had any that compute.

Until all tests are known no garbage is collected, and what has been imported by then is left out of later collections.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any
from zlib import crc32

import pytest
from hypothesis import is_hypothesis_test, settings

import rollmux.checks
import rollmux.mux
import rollmux.packer
from tests.browsing import browsing
from tests.elsewhere import be_elsewhere

gc.disable()
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("ci", derandomize=True, print_blob=True, deadline=None, database=None, max_examples=25)
settings.register_profile("dev", derandomize=False, print_blob=True, deadline=None)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=100)
settings.load_profile("ci")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_HERE = Path(__file__).parent
_COVERING = (_HERE / "mux", _HERE / "packer", _HERE / "test_checks.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: crc32(str(item.path.relative_to(_HERE)).encode()))
    for item in items:
        if not any(item.path.is_relative_to(each) for each in _COVERING) or is_hypothesis_test(
            getattr(item, "obj", None)
        ):
            item.add_marker("no_cover")


@contextmanager
def _untraced() -> Iterator[None]:
    """A worker of xdist has two collectors (pytest-cov 7.1), of which `no_cover` stops only one."""
    tracers = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracers[0])
        threading.settrace(tracers[1])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is to be covered is imported before tests are found, for that counts."""
    for tier in (rollmux.mux, rollmux.packer):
        for module in walk_packages(tier.__path__, f"{tier.__name__}."):
            import_module(module.name)
    with _untraced():
        return (yield)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is on a system that has less than Linux; what it starts is not."""
    be_elsewhere(monkeypatch.delattr, partial(monkeypatch.setattr, raising=False))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    if item.get_closest_marker("no_cover") is None:
        return (yield)
    with _untraced():
        return (yield)

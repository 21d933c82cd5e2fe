"""A real browser for tests that look at pages; without one they are skipped."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# No sandbox: tests run as root in containers. Nothing that the browser does by itself may reach the network.
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def browsing() -> Iterator[Any]:
    """Chromium: from the path, or as playwright has installed it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        managed = driver.chromium.executable_path
        path = next(filter(None, map(shutil.which, BROWSERS)), managed if Path(managed).exists() else None)
        if path is None:
            pytest.skip("no chromium: neither on the path nor installed by playwright")
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def contrast(one: str, other: str) -> float:
    """The ratio of luminances as the WCAG define it."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour.strip()[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

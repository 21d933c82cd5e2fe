"""A folder and a budget for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollmux.runtime.residency import Budget
from tests.runtime.residency.keeping import MB, budget_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with budget_folder() as found:
        yield found


@pytest.fixture
def budget(folder: Path) -> Budget:
    return Budget(folder, 500 * MB)

"""A pool for these tests, started once."""

import os
from collections.abc import Iterator

import pytest

from tests.runtime.rewards.world import Pooled


@pytest.fixture(scope="session")
def pooled() -> Iterator[Pooled]:
    os.environ["ROLLMUX_TEST_SCORE"] = "0.5"
    with Pooled() as made:
        yield made

"""The sandboxes of these tests, each started once."""

from collections.abc import Iterator

import pytest

from tests.runtime.sandbox.world import WAYS, World


@pytest.fixture(scope="session", params=WAYS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(WAYS[request.param]) as made:
        yield made


@pytest.fixture(scope="session")
def full() -> Iterator[World]:
    with World(()) as made:
        yield made

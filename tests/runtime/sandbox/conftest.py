"""The sandboxes of these tests, each started once."""

from collections.abc import Iterator

import pytest

from tests.runtime.sandbox.world import WAYS, World

# What a machine without root has is the same again, and as long: left to the slow run.
PARAMS = [pytest.param(way, marks=pytest.mark.slow) if way == "user namespace" else way for way in WAYS]


@pytest.fixture(scope="session", params=PARAMS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(WAYS[request.param]) as made:
        yield made


@pytest.fixture(scope="session")
def full() -> Iterator[World]:
    with World(()) as made:
        yield made

"""Journals to test: each test that asks for one runs over a file and over a PostgreSQL server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.journals import InFile, OnServer, Place
from tests.service.postgres_server import Server, binaries, running


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One for all tests that leave it running."""
    if binaries() is None:
        pytest.skip("there is no PostgreSQL server: no initdb on PATH or in /usr/lib/postgresql/*/bin")
    with running() as found:
        yield found


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a journal may be begun."""
    return InFile(tmp_path) if request.param == "file" else OnServer(tmp_path, request.getfixturevalue("server"))

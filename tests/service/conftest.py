"""Journals to test, each over a file and over a PostgreSQL server, and a certificate."""

import subprocess
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


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine that nobody has signed, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "certificate.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    where = ["-out", str(made[0]), "-keyout", str(made[1])]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(["openssl", "req", "-x509", "-nodes", *curve, *subject, *where], check=True, capture_output=True)
    return made

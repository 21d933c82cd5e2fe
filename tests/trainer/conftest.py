"""What tests of several files begin with."""

import os

import pytest

from rollmux.trainer.job import train
from tests.trainer.jobs import alone, left_behind
from tests.trainer.talking import talking


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, ...]:
    """What the job of the file leaves behind, alone and never broken off."""
    folder = tmp_path_factory.mktemp("whole")
    train(request.module.JOB, folder, alone())
    return left_behind(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a model that was taught to talk."""
    return talking(tmp_path_factory.mktemp("talking"))


@pytest.fixture
def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ROLLMUX_")}

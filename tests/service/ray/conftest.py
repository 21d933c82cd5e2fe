"""One real Ray cluster for all tests of a run; where Ray is not installed they are skipped."""

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.service.ray.real import RealRay, real_ray


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRay]:
    """Two nodes of Ray's with one of ours each, and one that is two of ours."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed here: pip install 'rollmux[ray]'")
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    with real_ray(tmp_path_factory.mktemp("ray"), worker) as there:
        for names in (("rollout-0",), ("train-0",), ("rollout-1", "train-1")):
            there.add(*names)
        yield there

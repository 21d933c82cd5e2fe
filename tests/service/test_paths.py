"""Which call a path means."""

import re
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.service.paths import Paths
from rollmux.service.routes import ROUTES, Route

PATHS = Paths((route.method, route.path, route) for route in ROUTES)


@given(route=st.sampled_from(ROUTES), text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_every_call_is_found_whatever_its_job_or_node_is_called(route: Route, text: str) -> None:
    named = re.findall(r"{(\w+)}", route.path)
    sent = re.sub(r"{\w+}", lambda _: quote(text, safe=""), route.path)
    assert PATHS.find(route.method, sent) == (route, dict.fromkeys(named, text))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[("PUT", "/v1/jobs"), ("GET", "/v1/jobs/a/ask"), ("GET", ""), ("GET", "/"), ("GET", "v1"), ("GET", "/v1")],
        *[("GET", "/v1/jobs/a/b/c"), ("GET", "/v2/cluster"), ("GET", "/v1/cluster/"), ("GET", "/v1//cluster")],
    ],
)
def test_what_is_no_call_is_not_found(method: str, path: str) -> None:
    assert PATHS.find(method, path) is None

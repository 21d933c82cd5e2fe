"""Every call there is, each with every fault (F6): request lost, reply lost, cut, twice, late. Its effect comes once.

The real client and the real controller speak through a proxy. A call that some table here does not name fails a test.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollmux
from rollmux.cli.remote import CallRefused, Remote
from rollmux.client.mux import Mux
from rollmux.mux import events as ev
from rollmux.mux.cluster_state import Checks, Rules
from rollmux.mux.weave import Timing
from rollmux.protocol.messages import Done
from rollmux.protocol.views import Backup, Quote
from rollmux.service.journal import SqliteJournal
from rollmux.service.routes import ROUTES
from tests.service.misbehaving import Fate, misbehaving
from tests.service.serving import PAIR, Served, job, served

RULES = Rules(timing=Timing(lease_s=6.0, drain_s=3.0), checks=Checks.ALL)
FAULTS = [fate for fate in Fate if fate is not Fate.GOES]
STEPS = 3

# What the SDK calls, and what owners do; the first fault of a call is before anything else is said of the same.
SDK = ["/v1/jobs", *(f"/v1/jobs/{{job}}/{verb}" for verb in ("attach", "ask", "report", "listen", "profile", "leave"))]
OWNERS: dict[str, Callable[[Remote], object]] = {
    "/v1/quote": lambda there: there.post(Quote, "/v1/quote", job("other")),
    "/v1/backup": lambda there: there.post(Backup, "/v1/backup"),
    "/v1/jobs/{job}/cancel": lambda there: there.post(Done, "/v1/jobs/mine/cancel"),
    "/v1/nodes/{node}/drain": lambda there: there.post(Done, "/v1/nodes/rollout-0/drain"),
    "/v1/nodes/{node}/undrain": lambda there: there.post(Done, "/v1/nodes/rollout-0/undrain"),
}


class Once:
    """Each different call of one kind meets with the fault once; what it is repeated for goes through."""

    def __init__(self, path: str, fate: Fate) -> None:
        self.ending, self.fate = path.rpartition("}")[2] or path, fate
        self.path, self.met = path, Counter[bytes]()

    def __call__(self, line: str, body: bytes) -> Fate:
        called = line.partition(" ")[2].partition("?")[0]
        mine = called == self.path if "{" not in self.path else called.endswith(self.ending)
        if not mine or self.met[body]:
            return Fate.GOES
        self.met[body] += 1
        return self.fate


def events(folder: Path) -> list[ev.Event]:
    journal = SqliteJournal(folder / "journal.db")
    found = [record.event for record in journal.records()]
    journal.close()
    return found


def test_every_call_that_can_be_made_is_tried_here() -> None:
    assert {route.path for route in ROUTES if route.method != "GET"} == {*SDK, *OWNERS}


def live(there: Served, url: str, train_s: float) -> None:
    """A whole job by the SDK."""
    mux: Mux
    described = job("a", iterations=STEPS)
    with rollmux.connect(url=url, token=there.admin, job=described, profile=1, patience_s=30.0) as mux:
        for _ in mux.steps(STEPS):
            with mux.phase("rollout"):
                mux.progress(1, 2)
                time.sleep(0.02)
            with mux.phase("train"):
                time.sleep(train_s)


@pytest.mark.parametrize("fate", FAULTS, ids=lambda fate: fate.value)
@pytest.mark.parametrize("path", SDK)
def test_a_job_is_done_once_whatever_becomes_of_each_call_of_a_kind(tmp_path: Path, path: str, fate: Fate) -> None:
    decide = Once(path, fate)
    with served(tmp_path, PAIR, RULES) as there, misbehaving(there.service.url, decide) as proxy:
        live(there, proxy.url, 0.4 if path.endswith("/profile") else 0.02)  # a profile is sent in passing
        time.sleep(0.5 if fate is Fate.LATE else 0.0)  # until what comes late has come
        assert there.get("/v1/jobs/a")["state"] == "ended"
    assert decide.met, "the fault never came about"
    found = events(tmp_path)
    passing = (ev.Heartbeats, ev.PhaseProgressed, ev.JobProfiled, ev.NodeJoined)
    counted = Counter(type(event) for event in found if not isinstance(event, passing))
    phases = 3 * STEPS
    assert counted == {
        ev.JobSubmitted: 1,
        ev.JobStarted: 1,
        ev.PhaseRequested: phases,
        ev.PhaseStarted: phases,
        ev.PhaseFinished: phases,
        ev.JobFinished: 1,
    }
    assert sum(isinstance(event, ev.JobProfiled) for event in found) <= 1


def persistently(call: Callable[[Remote], object], there: Remote) -> object:
    """As an owner does who gets no answer: says it again."""
    for _ in range(5):
        try:
            return call(there)
        except CallRefused:
            continue
    raise AssertionError("five times in vain")


def seen(there: Served) -> Any:
    """All that an admin sees, but the time."""
    text = json.dumps({**there.get("/v1/cluster"), "now": 0, "seq": 0, "at": 0})
    return json.loads(text)


@pytest.mark.parametrize("fate", FAULTS, ids=lambda fate: fate.value)
@pytest.mark.parametrize("path", OWNERS)
def test_what_an_owner_does_is_done_once_whatever_becomes_of_the_call(tmp_path: Path, path: str, fate: Fate) -> None:
    counts, sights = [], []
    for name, way in (("plain", Fate.GOES), ("faulty", fate)):
        with served(tmp_path / name, PAIR, RULES) as there:
            there.post("/v1/jobs", job("mine"))
            if path.endswith("/undrain"):
                there.post("/v1/nodes/rollout-0/drain")
            with misbehaving(there.service.url, Once(path, way)) as proxy:
                persistently(OWNERS[path], Remote(proxy.url, there.admin))
            sights.append(seen(there))
        counts.append(Counter(type(event) for event in events(tmp_path / name)))
    assert counts[0] == counts[1]
    assert sights[0] == sights[1]

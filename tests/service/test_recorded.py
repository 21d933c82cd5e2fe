"""Journals and calls of every version so far are understood by this one (F14). How they came about: `recorded.py`."""

import json
from pathlib import Path
from typing import Any

import pytest

import rollmux
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.codec import decode
from rollmux.mux.hardware import Cluster
from rollmux.mux.order import Order
from rollmux.mux.policies import Policy
from rollmux.mux.policies.paper import PaperPolicy
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service.journal import SqliteJournal
from rollmux.service.recovery import recover
from tests.service.recorded import FOLDER, summary, unpacked
from tests.service.serving import PAIR, served

VERSIONS = sorted(FOLDER.iterdir())
JOURNALS = [path for version in VERSIONS for path in sorted(version.glob("*.db.gz"))]
POLICIES: dict[str, type[RollmuxPolicy] | type[PaperPolicy]] = {"rollmux": RollmuxPolicy, "paper": PaperPolicy}


def began_with(journal: SqliteJournal, order: str) -> tuple[Cluster, Policy, Rules]:
    head = journal.head()
    policy = POLICIES[head["policy"]](order=Order(order))
    return decode(Cluster, head["cluster"]), policy, decode(Rules, head["rules"])


def test_the_present_version_is_recorded() -> None:
    assert rollmux.__version__ in [version.name for version in VERSIONS]


@pytest.mark.parametrize("recorded", JOURNALS, ids=lambda path: f"{path.parent.name} {path.name}")
def test_a_recorded_journal_leads_to_what_it_led_to_then_with_its_image_and_without(
    tmp_path: Path, recorded: Path
) -> None:
    journal = unpacked(recorded, tmp_path)
    told = json.loads(recorded.with_name(recorded.name.replace(".db.gz", ".json")).read_text())
    cluster, policy, rules = began_with(journal, told["order"])
    assert journal.image() is not None
    assert len(list(journal.records())) > 100
    machines: list[ClusterMachine] = [recover(journal, cluster, policy, rules)[0].machine]
    journal._db.execute("DELETE FROM images")
    machines.append(recover(journal, cluster, policy, rules)[0].machine)
    journal.close()
    assert [summary(machine) for machine in machines] == [told["leads to"]] * 2


def answers(then: Any, now: Any, path: str = "") -> None:
    """Whoever understood what was said then understands what is said now: all of it is still there."""
    if isinstance(then, dict) and now is not None:
        assert isinstance(now, dict), path
        for name, value in then.items():
            assert name in now, f"{path}.{name} is gone"
            answers(value, now[name], f"{path}.{name}")
    elif isinstance(then, list) and now is not None:
        assert isinstance(now, list), path
        for one, other in zip(then, now, strict=False):
            answers(one, other, f"{path}[]")
    elif then is not None and now is not None:
        number = isinstance(then, int | float) and not isinstance(then, bool)
        assert isinstance(now, int | float) if number else type(now) is type(then), f"{path} was {then!r}, is {now!r}"


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_a_client_of_that_time_is_answered_as_it_was_then(tmp_path: Path, version: Path) -> None:
    calls = json.loads((version / "calls.json").read_text())
    said = {call["call"].rpartition("/")[2] for call in calls}
    assert said >= {"jobs", "attach", "ask", "report", "listen", "profile", "leave", "cancel", "drain", "cluster"}
    with served(tmp_path, PAIR) as there:
        for call in calls:
            method, path = call["call"].split(" ")
            answer = there.call(method, path, call["says"])
            assert answer.status_code == 200, (call, answer.text)
            answers(call["hears"], answer.json(), path)
        assert there.service.controller.machine.state.ended["a"] == "finished"
        assert there.get("/v1/jobs/b")["state"] in ("stopping", "ended")

"""What the controller answers over real HTTP: rights, limits, leases, and what is refused in which words."""

import inspect
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollmux.cli.main import app as program
from rollmux.mux.codec import decode
from rollmux.protocol.history import BillView, HistoryView
from rollmux.protocol.job_file import JOB_KEYS, NEEDED, PHASE_KEYS, TAIL_KEYS
from rollmux.service import app, views
from rollmux.service.journal import SqliteJournal
from rollmux.service.local.attempt_files import AttemptFiles
from rollmux.service.rates import Rates
from rollmux.service.routes import ADMINS, EVERYBODY, ROUTES, Route
from rollmux.service.tokens import Role
from tests.service.serving import PAIR, RULES, Served, job, served


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("controller")) as found:
        found.post("/v1/jobs", job("mine"), token=found.service.tokens.create("alice", Role.TENANT, "alice"))
        found.service.tokens.create("bob", Role.TENANT, "bob")
        yield found


def token(there: Served, tenant: str) -> str:
    there.service.tokens.revoke(tenant)
    return there.service.tokens.create(tenant, Role.TENANT, tenant)


def filled(route: Route) -> str:
    return route.path.replace("{job}", "mine").replace("{node}", "rollout-0")


GUARDED = [route for route in ROUTES if route.who is not EVERYBODY]
NAMES = [f"{route.method} {route.path}" for route in GUARDED]
OF_JOBS = [route for route in GUARDED if "{job}" in route.path]


def noted(caplog: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    """Who has made which call with which outcome, as the audit log has it."""
    found = [vars(record)["fields"] for record in caplog.records if record.name == "rollmux.audit"]
    return [tuple(fields[key] for key in ("who", "call", "status")) for fields in found if "call" in fields]


@pytest.mark.parametrize("route", GUARDED, ids=NAMES)
def test_each_call_that_is_not_allowed_is_noted_with_who_made_it(
    there: Served, route: Route, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rollmux.audit")
    bob = token(there, "bob")
    of_mine = there.service.tokens.of_job("mine", "alice")
    callers = [("nobody", 401, "wrong")]
    callers += [("bob", 404, bob)] * (route in OF_JOBS)
    callers += [("bob", 403, bob)] * (Role.TENANT not in route.who)
    callers += [("job mine", 403, of_mine)] * (Role.JOB not in route.who)
    for who, status, bearer in callers:
        caplog.clear()
        assert there.call(route.method, filled(route), {}, token=bearer).status_code == status
        assert noted(caplog) == [(who, f"{route.method} {filled(route)}", status)]


def test_who_scrapes_without_being_entitled_is_noted(there: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rollmux.audit")
    assert there.call("GET", "/metrics", token=there.service.tokens.of_job("mine", "alice")).status_code == 403
    assert noted(caplog) == [("job mine", "GET /metrics", 403)]


def test_strangers_fill_no_log_and_use_up_nothing_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "rollmux.audit")
    monkeypatch.setattr("rollmux.service.app.STRANGERS_BURST", 3.0)
    monkeypatch.setattr("rollmux.service.app.STRANGERS_PER_S", 1e-3)
    with served(tmp_path) as there:
        statuses = [there.call("POST", "/v1/jobs", {}, token="wrong").status_code for _ in range(10)]
        assert statuses == [401] * 3 + [429] * 7
        assert len(noted(caplog)) == 3
        there.get("/v1/cluster")


@pytest.mark.parametrize("path", ["/v1/cluster", "/v1/history", "/v1/bill", "/v1/jobs/its/story", "/metrics"])
def test_who_looks_at_all_jobs_too_often_is_told_so_and_can_still_work(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollmux.service.app.JOBS_A_CALL", 0.004)  # a job is as many calls as may come in a second
    with served(tmp_path) as there:
        alice = token(there, "alice")
        there.post("/v1/jobs", job("its"), token=alice)
        assert [there.call("GET", path, token=alice).status_code for _ in range(3)] == [200, 429, 429]
        assert there.call("GET", "/v1/jobs/its", token=alice).status_code == 200


def test_looks_weigh_no_more_for_all_the_jobs_that_have_ended_and_show_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = views.MOST_ENDED + 3
    with served(tmp_path) as there:
        alice = token(there, "alice")
        for number in range(count):
            there.post(f"/v1/jobs/job-{number}/leave", {"attempt": there.attached(f"job-{number}")})
        there.post("/v1/jobs", job("its"), token=alice)
        ended = [f"job-{number}" for number in range(count)]
        shown = there.get("/v1/cluster")
        assert [each["job"] for each in shown["jobs"]] == [*ended[3:], "its"]
        assert shown["ended"] == count
        assert f'rollmux_jobs{{state="ended"}} {count}.0' in there.call("GET", "/metrics").text
        said = CliRunner().invoke(program, ["status", "--url", there.service.url, "--token", there.admin]).output
        assert "3 jobs have ended before these" in said
        assert [each["job"] for each in there.get("/v1/cluster?ended=1")["jobs"]] == [ended[-1], "its"]
        assert [each["job"] for each in there.get("/v1/bill?ended=0")["jobs"]] == ["its"]
        assert [each["job"] for each in there.get("/v1/bill")["jobs"]] == [*ended, "its"]
        monkeypatch.setattr("rollmux.service.app.JOBS_A_CALL", 0.25)  # 100 jobs take all that a caller has
        for path in ("/v1/cluster?ended=0", "/v1/bill?ended=0", "/v1/history", "/metrics"):
            assert there.call("GET", path, token=alice if path != "/metrics" else None).status_code == 200
        bob = token(there, "bob")
        assert [there.call("GET", "/v1/bill", token=bob).status_code for _ in range(3)] == [200, 429, 429]


@pytest.mark.parametrize("route", GUARDED, ids=NAMES)
@pytest.mark.parametrize("bearer", ["", "wrong", "job.00.00", "job.", "rollmux_" + "x" * 43])
def test_without_a_good_token_no_call_is_answered(there: Served, route: Route, bearer: str) -> None:
    seq = there.get("/healthz")["seq"]
    answer = there.call(route.method, filled(route), {}, token=bearer)
    assert answer.status_code == 401
    assert there.get("/healthz")["seq"] == seq


@pytest.mark.parametrize("route", OF_JOBS, ids=lambda route: f"{route.method} {route.path}")
def test_another_tenants_job_is_as_if_it_were_not_there(there: Served, route: Route) -> None:
    bob = token(there, "bob")
    found = there.call(route.method, filled(route), {}, token=bob)
    missing = there.call(route.method, filled(route).replace("mine", "nowhere"), {}, token=bob)
    assert found.status_code == missing.status_code == 404
    assert found.text.replace("mine", "nowhere") == missing.text


def test_what_an_older_job_of_its_name_has_printed_is_no_part_of_a_jobs_log(tmp_path: Path) -> None:
    """One that is long forgotten, or was of another journal: its owner may be another tenant."""
    files = AttemptFiles(tmp_path)
    printed = Path(f"{files.log(('a', 1))}.0.log")
    with served(tmp_path) as there:
        for text, shown in (("older\n", []), ("own\n", ["own"])):
            files.prepare(("a", 1))
            printed.write_text(text)
            there.post("/v1/jobs", job("a"))
            assert there.get("/v1/jobs/a/log")["lines"] == shown


@pytest.mark.parametrize("route", GUARDED, ids=NAMES)
def test_a_jobs_own_token_speaks_for_that_job_alone(there: Served, route: Route) -> None:
    other = there.service.tokens.of_job("other", "alice")
    answer = there.call(route.method, filled(route), {}, token=other)
    allowed = Role.JOB in route.who
    assert answer.status_code == (404 if allowed else 403)


def test_nodes_are_an_admins_business(there: Served) -> None:
    assert {route.path for route in ROUTES if route.who is ADMINS} == {
        "/v1/backup",
        "/v1/nodes/{node}/drain",
        "/v1/nodes/{node}/undrain",
    }
    assert there.call("POST", "/v1/nodes/rollout-0/drain", token=token(there, "bob")).status_code == 403


def test_a_token_that_has_run_out_is_no_token(there: Served) -> None:
    old = there.service.tokens.create("old", Role.TENANT, "alice", lasts_s=1e-9)
    assert there.call("GET", "/v1/cluster", token=old).status_code == 401


def test_a_tenant_sees_its_own_jobs_and_no_name_of_another(there: Served) -> None:
    seen = there.get("/v1/cluster", token=token(there, "bob"))
    assert seen["jobs"] == []
    assert "mine" not in json.dumps(seen)
    assert [view["job"] for view in there.get("/v1/cluster", token=token(there, "alice"))["jobs"]] == ["mine"]


def test_tokens_are_kept_as_hashes_for_their_owner_alone(there: Served) -> None:
    text = there.service.tokens.path.read_text()
    assert there.admin not in text
    assert there.service.tokens.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("route", [r for r in GUARDED if r.takes is not None], ids=lambda r: r.path)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"nul", b'{"attempt": "x"}', b"\xff\xfe", b"[" * 5000])
def test_what_can_not_be_read_is_refused_and_changes_nothing(there: Served, route: Route, body: bytes) -> None:
    seq = there.get("/healthz")["seq"]
    headers = {"Authorization": f"Bearer {there.admin}"}
    answer = there.client.request(route.method, filled(route), content=body, headers=headers)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]
    assert there.get("/healthz")["seq"] == seq


def test_a_body_that_is_too_large_is_not_read(there: Served) -> None:
    answer = there.call("POST", "/v1/jobs", job("big", env={"A": "x" * 2_000_000}))
    assert answer.status_code == 413


def test_a_bad_job_is_refused_with_all_that_is_wrong(there: Served) -> None:
    bad = job("a/b", slo=0.5, priorty=3)
    answer = there.call("POST", "/v1/jobs", bad)
    assert answer.status_code == 422
    problems = " ".join(answer.json()["problems"])
    assert "the nearest is priority" in problems
    assert "without a slash" in problems


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_no_path_can_end_with_is_refused(there: Served, name: str) -> None:
    """It would run, and nobody could look at it or cancel it."""
    answer = there.call("POST", "/v1/jobs", job(name))
    assert answer.status_code == 422
    assert "a name that a path can end with" in " ".join(answer.json()["problems"])


def test_a_key_that_is_there_twice_is_refused_by_name(there: Served) -> None:
    text = json.dumps(job("twice")).replace('"slo": 3.0', '"slo": 3.0, "slo": 4.0')
    headers = {"Authorization": f"Bearer {there.admin}"}
    answer = there.client.post("/v1/jobs", content=text, headers=headers)
    assert answer.status_code == 400
    assert "'slo' is there twice" in answer.json()["error"]


def test_a_job_that_this_cluster_can_not_take_leaves_nothing_in_the_journal(there: Served) -> None:
    seq = there.get("/healthz")["seq"]
    answer = there.call("POST", "/v1/jobs", job("wide", train={"nodes": 9, "duration_s": 1.0}))
    assert answer.status_code == 422
    assert "job.train.nodes" in answer.json()["problems"][0]
    assert there.get("/healthz")["seq"] == seq
    assert there.call("GET", "/v1/jobs/wide").status_code == 404


def test_the_same_job_may_be_submitted_again_but_no_other_of_its_name(there: Served) -> None:
    alice = token(there, "alice")
    there.post("/v1/jobs", job("mine"), token=alice)
    assert there.call("POST", "/v1/jobs", job("mine", slo=2.0), token=alice).status_code == 409
    assert there.call("POST", "/v1/jobs", job("mine"), token=token(there, "bob")).status_code == 409


def test_processes_that_do_not_agree_how_many_they_are_are_told_so(there: Served) -> None:
    """One that starts the others only after it has connected does not know of them yet, as with Lightning."""
    there.post("/v1/jobs", job("apart"))
    answer = there.call("POST", "/v1/jobs", job("apart", processes=2))
    said = "a job 'apart' with processes = 1, and this one says 2: let each of its processes say the same"
    assert (answer.status_code, said in answer.json()["error"]) == (409, True)


def test_no_price_is_below_the_fluid_limit_of_what_is_done(tmp_path: Path) -> None:
    with served(tmp_path, PAIR) as there:
        for name, count in (("a", 1), ("b", 2), ("c", 3)):
            there.post("/v1/jobs", job(name, slo=3.5))
            found = there.get("/v1/cluster")
            price = 8 * (1.85 + 5.28)
            assert (found["usd_per_hour"], found["usd_per_hour_alone"]) == pytest.approx((price, count * price))
            # An iteration is 1 s of each node: half of the time alone, all of it with two jobs or more.
            assert found["usd_per_hour_fluid"] == pytest.approx(price * min(1.0, count / 2))


def test_a_quote_changes_nothing(there: Served) -> None:
    seq = there.get("/healthz")["seq"]
    quote = there.post("/v1/quote", job("asks"))
    assert quote["limit_s"] == 6.0
    assert quote["alone_usd_per_hour"] == pytest.approx(8 * (1.85 + 5.28))
    assert there.get("/healthz")["seq"] == seq


@pytest.mark.parametrize(
    "refused",
    [
        job("wide", train={"nodes": 9, "duration_s": 1.0}),
        job("large", rollout={"nodes": 1, "duration_s": 1.0, "resident_gb": 5000}),
        job("mine", slo=2.0),
    ],
    ids=["more nodes than there are", "more state than a node holds", "the name of another job"],
)
def test_a_quote_refuses_what_the_submission_would_in_the_same_words(there: Served, refused: dict[str, Any]) -> None:
    quoted, submitted = (there.call("POST", path, refused) for path in ("/v1/quote", "/v1/jobs"))
    assert (quoted.status_code, quoted.text) == (submitted.status_code, submitted.text)
    assert submitted.is_error


def test_a_quote_of_what_has_been_submitted_promises_no_second_place(there: Served) -> None:
    alice = token(there, "alice")
    quote = there.post("/v1/quote", job("mine"), token=alice)
    assert (quote["admitted"], quote["submitted"], quote["rollout_nodes"]) == (False, True, [])
    assert quote["lines"] == ["It has been submitted already: the same again changes nothing."]


def test_the_description_names_every_route_and_every_shape(there: Served) -> None:
    described = there.get("/openapi.json")
    named = {(method.upper(), path) for path, ways in described["paths"].items() for method in ways}
    assert named == {(route.method, route.path) for route in ROUTES} | {("GET", "/metrics")}
    shapes = set(described["components"]["schemas"])
    assert {"Ask", "Turn", "Held", "Orders", "ClusterView", "Refusal"} <= shapes


def test_the_description_tells_what_a_job_s_description_may_hold(there: Served) -> None:
    shapes = there.get("/openapi.json")["components"]["schemas"]
    shown = there.get("/openapi.json")["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    assert shown["schema"] == {"$ref": "#/components/schemas/JobSpec"}
    assert set(shapes["JobSpec"]["properties"]) == set(JOB_KEYS)
    assert shapes["JobSpec"]["required"] == list(NEEDED)
    assert set(shapes["PhaseSpec"]["properties"]) == set(PHASE_KEYS)
    assert set(shapes["Tail"]["properties"]) == set(TAIL_KEYS)


def test_the_description_names_every_number_that_a_query_may_hold() -> None:
    asked: dict[str, set[str]] = {}
    for route in ROUTES:
        names = set(re.findall(r'(?:number|query\.get)\("(\w+)"', inspect.getsource(route.answer)))
        names |= {"ended"} if route.ended else set()  # it is read before the handler is called
        asked[route.path] = names
        assert {name for name, _ in route.asks} == names
    assert asked["/v1/history"] == {"since_s", "most"}
    assert asked["/v1/bill"] == {"ended"}


def phase(there: Served, name: str, attempt: int, kind: str, iteration: int) -> Any:
    """Asks for a phase until it is granted, begins and ends it."""
    ask = {"attempt": attempt, "kind": kind, "iteration": iteration, "wait_s": 5.0}
    turn = there.post(f"/v1/jobs/{name}/ask", ask)
    epoch = turn["lease"]["epoch"]
    there.post(f"/v1/jobs/{name}/report", {"said": "started", "epoch": epoch})
    heard = there.post(f"/v1/jobs/{name}/report", {"said": "finished", "epoch": epoch})
    assert heard["committed"]
    return turn["lease"]


def test_a_job_goes_through_its_phases(there: Served) -> None:
    there.post("/v1/jobs", job("goes", iterations=2))
    attached = there.post("/v1/jobs/goes/attach", {"instance": "one", "wait_s": 5.0})
    for iteration in range(2):
        for kind in ("rollout", "train", "sync"):
            lease = phase(there, "goes", attached["attempt"], kind, iteration)
            assert (lease["kind"], lease["iteration"]) == (kind, iteration)
    there.post("/v1/jobs/goes/leave", {"attempt": attached["attempt"]})
    view = there.get("/v1/jobs/goes")
    assert (view["state"], view["synced"], view["iterations"]) == ("ended", 2, 2)


def test_a_script_that_is_started_again_after_its_job_has_ended_is_told_what_helps(there: Served) -> None:
    attempt = there.attached("again")
    there.post("/v1/jobs/again/leave", {"attempt": attempt})
    answer = there.call("POST", "/v1/jobs/again/attach", {"instance": "two"})
    assert (answer.status_code, answer.json()["error"]) == (
        409,
        "job again has ended: finished; give this one another name",
    )


@pytest.mark.parametrize(("verb", "what"), [("listen", "epochs"), ("listen", "finished"), ("ask", "finished")])
def test_a_call_that_names_leases_without_end_holds_nobody_up(there: Served, verb: str, what: str) -> None:
    body = {"attempt": 1, "kind": "rollout", "iteration": 0, what: [1] * 10_000}
    answer = there.call("POST", f"/v1/jobs/mine/{verb}", body)
    assert (answer.status_code, "10000 leases in one call" in answer.json()["error"]) == (409, True)


def test_who_asks_for_a_phase_that_is_done_is_told_so_and_one_out_of_order_is_refused(there: Served) -> None:
    there.post("/v1/jobs", job("order"))
    attempt = there.post("/v1/jobs/order/attach", {"instance": "one", "wait_s": 5.0})["attempt"]
    phase(there, "order", attempt, "rollout", 0)
    again = there.post("/v1/jobs/order/ask", {"attempt": attempt, "kind": "rollout", "iteration": 0})
    assert again["done"]
    answer = there.call("POST", "/v1/jobs/order/ask", {"attempt": attempt, "kind": "train", "iteration": 3})
    assert answer.status_code == 409
    assert "go in order" in answer.json()["error"]
    there.post("/v1/jobs/order/leave", {"attempt": attempt})


def a_holds_what_b_wants(there: Served) -> tuple[dict[str, Any], dict[str, Any]]:
    """The lease of job a, and how job b asks for the same nodes."""
    attempts = {name: there.attached(name) for name in "ab"}
    ask = {"kind": "rollout", "iteration": 0, "wait_s": 10.0}
    lease = there.post("/v1/jobs/a/ask", {"attempt": attempts["a"], **ask})["lease"]
    return lease, {"attempt": attempts["b"], **ask}


def test_a_parked_call_is_answered_the_moment_the_lease_is_free(tmp_path: Path) -> None:
    with served(tmp_path, PAIR) as there:
        first, ask = a_holds_what_b_wants(there)
        told = there.post("/v1/jobs/b/ask", {**ask, "wait_s": 0.0})
        assert told["holders"] == ["a"]
        assert "rollout(0) of job a" in told["reason"]
        assert 0.0 < told["expected_s"] <= job("a")["rollout"]["duration_s"]
        got: list[float] = []

        def wait() -> None:
            assert there.post("/v1/jobs/b/ask", ask)["lease"]
            got.append(time.monotonic())

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.2)
        there.post("/v1/jobs/b/ask", {**ask, "wait_s": 0.1})  # the job's other call ends with its own time
        freed = time.monotonic()
        there.post("/v1/jobs/a/report", {"said": "finished", "epoch": first["epoch"]})
        waiting.join(5)
        assert got
        assert got[0] - freed < 1.0


def test_a_silent_holder_holds_nobody_up_for_longer_than_its_lease_and_drain(tmp_path: Path) -> None:
    with served(tmp_path, PAIR) as there:
        first, ask = a_holds_what_b_wants(there)
        began = time.monotonic()
        second = there.post("/v1/jobs/b/ask", ask)["lease"]
        assert time.monotonic() - began < RULES.timing.lease_s + RULES.timing.drain_s + 1.5
        assert second["nodes"] == first["nodes"]
        assert second["epoch"] > first["epoch"]
        late = there.post("/v1/jobs/a/report", {"said": "finished", "epoch": first["epoch"]})
        assert late == {"holds": False, "committed": False}


class SmallDisk(SqliteJournal):
    """A journal on a disk that is nearly full."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._db.execute("PRAGMA max_page_count = 12")


def test_with_a_full_disk_nothing_changes_any_more_and_everybody_is_told(tmp_path: Path) -> None:
    taken = []
    with served(tmp_path, journal=SmallDisk) as there:
        for number in range(200):
            answer = there.call("POST", "/v1/jobs", job(f"job-{number}", env={"TEXT": "x" * 500}))
            if answer.status_code != 200:
                break
            taken.append(f"job-{number}")
        assert answer.status_code == 503
        assert "free its disk" in answer.json()["error"]
        assert "disk is full" in there.get("/healthz")["broken"]
        assert there.call("POST", "/v1/jobs/job-0/cancel").status_code == 503
        seen = there.get("/v1/cluster")
        assert "disk is full" in seen["broken"]
        written = re.search(r"what came after record (\d+) may be lost", seen["broken"])
        assert written is not None
        assert int(written[1]) < seen["seq"]
        admin = there.admin
    with served(tmp_path) as there:
        assert [view["job"] for view in there.get("/v1/cluster", token=admin)["jobs"]] == taken


def test_figures_for_prometheus_tell_of_calls_jobs_nodes_prices_and_writes(there: Served) -> None:
    assert there.call("GET", "/metrics", token="").status_code == 401
    assert there.call("GET", "/metrics", token=there.service.tokens.of_job("mine", "alice")).status_code == 403
    there.get("/v1/cluster")
    there.call("POST", "/v1/jobs", {})
    text = there.call("GET", "/metrics").text
    figures = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    assert figures['rollmux_calls_total{call="cluster",status="200"}'] >= 1
    assert figures['rollmux_calls_total{call="submit",status="422"}'] >= 1
    assert figures["rollmux_records_total"] == there.get("/healthz")["seq"]
    assert sum(value for name, value in figures.items() if name.startswith("rollmux_nodes{")) == 4
    assert figures['rollmux_usd_per_hour{of="shared"}'] == there.get("/v1/cluster")["usd_per_hour"]
    assert figures["rollmux_write_seconds_count"] > 0
    assert figures["rollmux_broken"] == 0


def test_what_has_happened_and_what_it_cost_is_told_to_whom_it_concerns(tmp_path: Path) -> None:
    with served(tmp_path) as there:
        alice, bob = (there.service.tokens.create(name, Role.TENANT, name) for name in ("alice", "bob"))
        there.post("/v1/jobs", job("hers", iterations=2), token=alice)
        attempt = there.post("/v1/jobs/hers/attach", {"instance": "one", "wait_s": 5.0})["attempt"]
        for kind in ("rollout", "train", "sync"):
            phase(there, "hers", attempt, kind, 0)
        past = decode(HistoryView, there.get("/v1/history?since_s=60", token=alice))
        assert [(span.job, span.kind, span.iteration, span.how) for span in past.spans] == [
            ("hers", kind, 0, "finished") for kind in ("rollout", "train", "sync")
        ]
        assert len(decode(HistoryView, there.get("/v1/history?since_s=60&most=1", token=alice)).spans) == 1
        (bill,) = decode(BillView, there.get("/v1/bill", token=alice)).jobs
        assert (bill.job, bill.tenant, bill.iterations_done, bill.iterations) == ("hers", "alice", 1, 2)
        assert 0 < bill.usd < 0.1
        assert bill.usd_per_hour == pytest.approx(8 * (1.85 + 5.28))
        assert there.get("/v1/bill", token=bob)["jobs"] == []
        others = there.get("/v1/history", token=bob)
        assert {span["job"] for span in others["spans"]} == {"another tenant's job"}
        assert "hers" not in json.dumps(others)


def test_however_long_a_call_would_wait_it_is_answered(there: Served) -> None:
    for wait_s in ("-1e308", "-1", "0"):
        content = f'{{"instance": "one", "rank": 0, "processes": 1, "wait_s": {wait_s}}}'
        headers = {"authorization": f"Bearer {there.admin}"}
        assert there.client.post("/v1/jobs/mine/attach", content=content, headers=headers).status_code == 200


def test_whoever_listens_is_answered_often_enough_to_keep_its_lease(there: Served) -> None:
    """A controller may have been started anew with a shorter one than the job was told."""
    attempt = there.attached("other")
    listen = {
        "attempt": attempt,
        "wait_s": 30.0,
        "seen": there.post("/v1/jobs/other/listen", {"attempt": attempt})["version"],
    }
    began = time.monotonic()
    orders = there.post("/v1/jobs/other/listen", listen)
    assert time.monotonic() - began < RULES.timing.lease_s
    assert orders["lease_s"] == RULES.timing.lease_s


def test_each_process_of_a_large_job_may_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger has no more calls for it."""
    monkeypatch.setattr(app, "Rates", partial(Rates, lambda: 0.0))
    with served(tmp_path) as there:
        there.post("/v1/jobs", job("large", processes=2000))
        attach = {"instance": "one", "processes": 2000}
        callers = {"own": there.service.tokens.of_job("large", "admin"), "bob": token(there, "bob")}
        calls = {
            name: Counter(there.call("POST", "/v1/jobs/large/attach", attach, each).status_code for _ in range(450))
            for name, each in callers.items()
        }
        assert calls == {"own": {200: 450}, "bob": {404: 400, 429: 50}}


def test_a_tenant_hears_no_name_and_no_word_of_another_s_job_that_it_waits_for(tmp_path: Path) -> None:
    with served(tmp_path, PAIR) as there:
        alice, bob = token(there, "alice"), token(there, "bob")
        there.post("/v1/jobs", job("secret"), token=alice)
        attempt = there.post("/v1/jobs/secret/attach", {"instance": "one", "wait_s": 5.0})["attempt"]
        ask = {"attempt": attempt, "kind": "rollout", "iteration": 0, "wait_s": 5.0}
        epoch = there.post("/v1/jobs/secret/ask", ask)["lease"]["epoch"]
        there.post("/v1/jobs/secret/report", {"said": "started", "epoch": epoch})
        there.post("/v1/jobs", job("bobs"), token=bob)
        attempt = there.post("/v1/jobs/bobs/attach", {"instance": "b", "wait_s": 5.0}, token=bob)["attempt"]
        turn = there.post("/v1/jobs/bobs/ask", {**ask, "attempt": attempt, "wait_s": 0.0}, token=bob)
        assert turn["reason"] == "waits for a rollout of another tenant's job"
        speaks = {
            "report": {"said": "finished", "epoch": epoch},
            "listen": {"attempt": attempt, "epochs": [epoch]},
            "ask": {"attempt": attempt, "kind": "rollout", "iteration": 0, "finished": [epoch]},
        }
        refused = [there.call("POST", f"/v1/jobs/bobs/{verb}", body, token=bob) for verb, body in speaks.items()]
        assert [answer.status_code for answer in refused] == [409] * 3
        assert [answer.text for answer in refused if "secret" in answer.text] == []
        there.post("/v1/jobs", job("tight", slo=1.001), token=bob)
        there.post("/v1/jobs/secret/report", {"said": "failed", "epoch": epoch, "reason": "no file of secret's"})
        said = [
            there.call("GET", f"/v1/jobs/{name}/{what}", token=bob).text
            for name in ("bobs", "tight")
            for what in ("explain", "story")
        ]
        said.append(there.call("POST", "/v1/quote", job("third", slo=1.001), token=bob).text)
        assert [text for text in said if "secret" in text] == []


def test_a_jobs_own_words_command_no_terminal_of_those_who_read_them(tmp_path: Path) -> None:
    words = "lost \x1b]0;title\x07\x1b[2J\x9b31m\u202e\nof 3"
    with served(tmp_path) as there:
        attempt = there.attached("wild")
        left = {"attempt": attempt, "rank": 0, "instance": "one", "failed": words}
        there.post("/v1/jobs/wild/leave", left, token=there.service.tokens.of_job("wild", "admin"))
        reason = there.get("/v1/jobs/wild")["reason"]
        assert reason.isprintable()
        assert re.search(r"lost +\]0;title +\[2J +31m +of 3", reason)
        who = ["--url", there.service.url, "--token", there.admin]
        for command in (["status"], ["status", "wild"], ["top", "--once"]):
            said = CliRunner().invoke(program, [*command, *who]).output
            assert "wild" in said
            assert not any(char in said for char in "\x1b\x07\x9b\u202e")


def test_who_takes_the_name_of_a_job_that_is_forgotten_hears_nothing_of_it(tmp_path: Path) -> None:
    with served(tmp_path, rules=replace(RULES, ended_limit=1)) as there:
        bob = token(there, "bob")
        for name in ("a", "next", "last"):
            attempt = there.attached(name)
            there.post(f"/v1/jobs/{name}/ask", {"attempt": attempt, "kind": "rollout", "iteration": 0, "wait_s": 5.0})
            there.post(f"/v1/jobs/{name}/cancel")
            there.post(f"/v1/jobs/{name}/leave", {"attempt": attempt})
        there.post("/v1/jobs", job("a"), token=bob)
        story = there.get("/v1/jobs/a/story", token=bob)["lines"]
        assert "JobSubmitted a" in story[0]
        assert sum("JobSubmitted a" in line for line in story) == 1
        assert not any("cancelled" in line.lower() for line in story)
        spans = there.get("/v1/history", token=bob)["spans"]
        assert [(each["job"], each["iteration"]) for each in spans] == [("another tenant's job", -1)] * 3
        assert [each["job"] for each in there.get("/v1/history")["spans"]] == ["a", "next", "last"]

"""The live page in a real browser, before a real controller: what it shows, to whom, and what it never does."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollmux.client.wire import read
from rollmux.mux.hardware import Cluster
from rollmux.mux.weave import Timing
from rollmux.protocol.cluster_file import read_cluster
from rollmux.protocol.views import JobView
from rollmux.service.app import App, Receive, Scope, Send
from rollmux.service.tokens import Role
from tests.browsing import contrast
from tests.service.serving import PAIR, RULES, Served, job, served
from tests.service.test_stream import follow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "attach"
PLAIN, HOSTILE = "gsm8k-7b", "<img src=x onerror=alert(1)>"
SCHEMES = ("light", "dark")


@dataclass
class Eyes:
    """Opens pages, and remembers what they complained of and whom they called."""

    browser: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    contexts: list[Any] = field(default_factory=list)
    allowed: str = "nothing"  # complaints of the browser that belong to the test

    def open(self, there: Served, token: str | None = None, at: str = "/", **context: Any) -> Any:
        """The page, come in with this token (empty: before the door)."""
        bearer = there.admin if token is None else token
        self.contexts.append(self.browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context}))
        page = self.contexts[-1].new_page()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(there.service.url + at + (f"#token={bearer}" if bearer else ""))
        if bearer:
            page.locator("#cluster").wait_for(state="visible", timeout=15_000)
        return page

    def close(self) -> None:
        while self.contexts:
            self.contexts.pop().close()


@pytest.fixture
def eyes(browser: Any) -> Iterator[Eyes]:
    found = Eyes(browser)
    yield found
    found.close()
    assert [text for text in found.complaints if not re.search(found.allowed, text)] == []
    assert {httpx.URL(url).host for url in found.requests} <= {"127.0.0.1"}


@pytest.fixture(scope="module")
def woven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two copies of the shipped script, which go on for as long as they are looked at."""
    folder = tmp_path_factory.mktemp("woven")
    script = folder / "job.py"
    text = (
        (EXAMPLES / "job.py")
        .read_text()
        .replace("steps(5)", "steps(5000)")
        .replace('"iterations": 5', '"iterations": 5000')
    )
    script.write_text(text)
    with served(folder / "controller", read_cluster(EXAMPLES / "cluster.yaml"), RULES) as there:
        env = {**os.environ, "ROLLMUX_URL": there.service.url, "ROLLMUX_TOKEN": there.admin}
        jobs = [
            subprocess.Popen(
                [sys.executable, script, name], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for name in (PLAIN, HOSTILE)
        ]
        until = time.monotonic() + 60.0
        while min([view["synced"] for view in there.get("/v1/cluster")["jobs"]] + [0] * 2, default=0) < 2:
            views = there.get("/v1/cluster")["jobs"]
            if len(views) == 2 and min(view["synced"] for view in views) >= 2:
                break
            assert time.monotonic() < until, "the jobs do not run"
            time.sleep(0.2)
        yield there
        for process in jobs:
            process.kill()
            process.wait()


def texts(page: Any, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


def test_two_jobs_that_weave_are_seen_at_work(woven: Served, eyes: Eyes) -> None:
    page = eyes.open(woven)
    soon(page, "#link-text", "^Live$")
    assert texts(page, ".lane .title") == ["group-0"]
    assert texts(page, ".names li .name") == ["rollout-0", "train-0"]
    assert sorted(texts(page, ".lane h3 .member")) == sorted([PLAIN, HOSTILE])
    page.get_by_text("The same as a table").click()
    rows = page.locator("#span-table tbody tr")
    until = time.monotonic() + 30.0
    while not {"rollout 1", "train 1", "sync 1"} <= set(texts(page, "#span-table tbody tr > :nth-child(3)")):
        assert time.monotonic() < until
        page.wait_for_timeout(100)
    assert set(texts(page, "#span-table tbody tr > :nth-child(5)")) == {"rollout-0", "train-0", "no node"}
    newest = rows.first.inner_text()
    page.wait_for_function("was => document.querySelector('#span-table tbody tr').innerText !== was", arg=newest)
    synced = int(texts(page, "#job-table tbody tr:first-child td:nth-child(3) > span:first-child")[0].split(" / ")[0])
    page.wait_for_function(
        "was => parseInt(document.querySelector('#job-table tbody tr td:nth-child(3) > span').innerText) > was",
        arg=synced,
    )
    assert re.search(r"\d\.\d\d× of 2\.50×", page.locator("#job-table").inner_text())


def test_the_timeline_is_drawn_and_moves(woven: Served, eyes: Eyes) -> None:
    eyes.allowed = "willReadFrequently"
    page = eyes.open(woven)
    page.get_by_role("radio", name="5 min", exact=True).check(force=True)
    read = """() => {
        const canvas = document.querySelector(".stage canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const colours = new Map();
        for (const colour of new Uint32Array(data.buffer)) colours.set(colour, (colours.get(colour) ?? 0) + 1);
        return [colours.size, [...new Uint32Array(data.buffer)].reduce((sum, one) => (sum * 31 + one) | 0, 7)];
    }"""
    colours, drawn = page.evaluate(read)
    assert colours > 10
    page.wait_for_function(f"was => ({read})()[1] !== was", arg=drawn)


def test_prices_stand_beside_each_other_and_pools_add_up(woven: Served, eyes: Eyes) -> None:
    page = eyes.open(woven)
    assert texts(page, "#cost tbody td.number")[:2] == ["$7.13", "$14.26"]
    assert "50.0 % less an hour than alone" in page.locator("#cost .note").inner_text()
    for row in page.locator("#bubbles tr.stacked").all():
        parts = [float(text) for text in re.findall(r"([\d.]+) %", row.inner_text())]
        assert len(parts) == 5
        assert sum(parts) == pytest.approx(100.0, abs=0.3)


def test_what_an_slo_has_left_is_the_same_as_in_other_places(woven: Served, eyes: Eyes) -> None:
    paces = {PLAIN: 1.2, HOSTILE: 1.45}
    views = woven.get("/v1/cluster")
    for view in views["jobs"]:
        view.update(slowdown=paces[view["job"]], slo=1.5, synced=9)
    page = eyes.open(woven, "")
    page.route("**/v1/cluster*", lambda route: route.fulfill(json=views))
    page.locator("#token").fill(woven.admin)
    page.keyboard.press("Enter")
    soon(page, "#job-table .room", "left")
    found = {view["job"]: read(JobView, view).slo_headroom for view in views["jobs"]}
    shown = dict(zip(texts(page, "#job-table .name"), texts(page, "#job-table .room strong"), strict=True))
    assert {job: text.lstrip("! ") for job, text in shown.items()} == {
        job: f"{100 * left:.0f} % left" for job, left in found.items() if left is not None
    }
    assert next(iter(shown)) == HOSTILE, "the nearest to its SLO stands first"


def test_of_many_groups_as_many_are_drawn_as_a_page_can_bear(woven: Served, eyes: Eyes) -> None:
    views = woven.get("/v1/cluster")
    node = views["nodes"][0]
    views["nodes"] = [{**node, "node": f"node-{i}", "group": f"group-{i // 3}"} for i in range(450)]
    page = eyes.open(woven, "")
    page.route("**/v1/cluster*", lambda route: route.fulfill(json=views))
    page.locator("#token").fill(woven.admin)
    page.keyboard.press("Enter")
    soon(page, "#more-lanes", "^8[3-5] more groups are not drawn: rollmux status shows all")
    assert page.locator(".lane").count() in (65, 66, 67)  # group-0 also has the nodes of those who weave
    assert page.locator(".names li").count() == 200


def test_a_name_is_never_more_than_text(woven: Served, eyes: Eyes) -> None:
    page = eyes.open(woven)
    assert page.locator("#job-table .name").get_by_text(HOSTILE, exact=True).is_visible()
    page.get_by_text("The same as a table").click()
    page.locator("#span-table").get_by_text(HOSTILE).first.wait_for()
    assert page.locator("img").count() == 0


def test_keys_go_from_phase_to_phase_and_say_each(woven: Served, eyes: Eyes) -> None:
    page = eyes.open(woven)
    page.locator(".stage").focus()
    said = page.locator("#picked")
    page.keyboard.press("ArrowLeft")
    first = said.inner_text()
    assert re.match(r"rollout-0: .+, rollout \d+, [\d.]+ s", first)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert said.inner_text() != first
    assert "ago" in said.inner_text()
    page.keyboard.press("ArrowDown")
    assert re.match(r"train-0: .+, train \d+", said.inner_text())
    page.keyboard.press("Home")
    assert re.match(r"train-0: .+, train 0", said.inner_text())
    page.keyboard.press("Escape")
    assert said.inner_text() == ""
    page.get_by_role("radio", name="15 min").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("radio", name="1 h").is_checked()
    page.locator("#spans summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("#span-table caption").inner_text().startswith("Phases of the last 60 minutes")


def test_what_has_the_focus_is_seen(woven: Served, eyes: Eyes) -> None:
    page = eyes.open(woven)
    stops = []
    page.locator("body").press("Tab")
    for _ in range(12):
        stops.append(
            page.evaluate("""() => {
                const one = document.activeElement;
                const shown = one.type === "radio" ? one.nextElementSibling : one;
                return [one.id || one.className || one.tagName, getComputedStyle(shown).outlineStyle];
            }""")
        )
        page.keyboard.press("Tab")
    assert {"skip", "leave", "stage", "SUMMARY"} <= {name for name, _ in stops}
    assert [name for name, outline in stops if outline == "none" and name not in ("BODY", "main")] == []


def test_everything_that_can_be_worked_has_a_name(woven: Served, eyes: Eyes) -> None:
    page = eyes.open(woven)
    nameless = """() => [...document.querySelectorAll("button, input, summary, [tabindex='0']")]
        .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length))
        .map((one) => one.outerHTML)"""
    assert page.evaluate(nameless) == []
    assert page.evaluate("[...document.querySelectorAll('table')].filter((one) => !one.caption).length") == 0


@pytest.mark.parametrize("width", [1280, 768, 400])
def test_the_page_is_never_wider_than_its_window(woven: Served, eyes: Eyes, width: int) -> None:
    page = eyes.open(woven, viewport={"width": width, "height": 800})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_stands_out_from_its_ground(woven: Served, eyes: Eyes, scheme: str) -> None:
    page = eyes.open(woven, "", color_scheme=scheme)
    read = "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()"
    pairs = [(text, ground) for text in ("ink", "muted", "accent", "bad") for ground in ("paper", "ground")]
    pairs += [("bad", "bad-ground"), ("job-ink", "other"), *(("job-ink", f"job-{place}") for place in range(8))]
    for text, ground in pairs:
        assert contrast(page.evaluate(read, text), page.evaluate(read, ground)) >= 4.5, (text, ground)
    for place in range(8):
        assert contrast(page.evaluate(read, f"edge-{place}"), page.evaluate(read, "paper")) >= 3.0


def test_the_file_holds_no_data_needs_no_token_and_may_do_little(woven: Served) -> None:
    answer = woven.client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert PLAIN not in answer.text
    assert "style=" not in answer.text
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", answer.text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text)


def test_a_script_that_came_with_data_would_not_run(woven: Served, eyes: Eyes) -> None:
    eyes.allowed = "Content Security Policy"
    page = eyes.open(woven)
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "document.title = 'run'";
        document.body.append(script);
        const image = document.createElement("img");
        image.setAttribute("onerror", "document.title = 'run'");
        image.src = "/x.png";
        document.body.append(image);
    }""")
    page.wait_for_timeout(300)
    assert page.title() == "RollMux"
    assert any("Content Security Policy" in text for text in eyes.complaints)


def test_a_token_is_asked_for_once_kept_in_the_tab_and_seen_nowhere(woven: Served, eyes: Eyes) -> None:
    eyes.allowed = "401"
    page = eyes.open(woven, "")
    assert page.locator("#door").is_visible()
    assert page.evaluate("document.activeElement.id") == "token"
    for wrong in ("wrong", f"{woven.admin}\u200b", "rollmux_…"):  # the last two can't be sent at all
        page.locator("#token").fill(wrong)
        page.keyboard.press("Enter")
        page.locator("#refused").get_by_text("knows no such token").wait_for(timeout=5_000)
    assert page.locator("#cluster").is_hidden()
    page.locator("#token").fill(woven.admin)
    page.keyboard.press("Enter")
    page.locator("#cluster").wait_for(state="visible")
    page.reload()
    page.locator("#cluster").wait_for(state="visible")
    assert page.evaluate("localStorage.length") == 0
    page.get_by_role("button", name="Forget token").click()
    assert page.locator("#door").is_visible()
    assert page.evaluate("sessionStorage.length") == 0
    page.evaluate("token => { location.hash = `token=${token}`; }", woven.admin)
    page.locator("#cluster").wait_for(state="visible")
    assert page.url == f"{woven.service.url}/"
    assert woven.admin not in page.content()


def test_a_jobs_own_token_is_turned_away_in_words(woven: Served, eyes: Eyes) -> None:
    eyes.allowed = "403"
    page = eyes.open(woven, "")
    page.locator("#token").fill(woven.service.tokens.of_job(PLAIN, "admin"))
    page.keyboard.press("Enter")
    page.locator("#refused").get_by_text("speaks for one job alone").wait_for()


def test_another_tenant_sees_that_nodes_are_held_but_not_by_whom(woven: Served, eyes: Eyes) -> None:
    page = eyes.open(woven, woven.service.tokens.create("bob", Role.TENANT, "bob"))
    page.get_by_text("The same as a table").click()
    page.locator("#span-table").get_by_text("another tenant's job").first.wait_for()
    page.wait_for_timeout(1500)
    assert PLAIN not in page.content()
    assert page.locator("#jobs").get_by_text("No job runs or waits").is_visible()
    assert texts(page, "#cost-title") == ["Price of an hour of all jobs"], "none of them is this tenant's"


def test_another_token_in_the_address_ends_what_was_seen_with_the_one_before(woven: Served, eyes: Eyes) -> None:
    page = eyes.open(woven)
    page.get_by_text("The same as a table").click()
    page.locator("#span-table").get_by_text(PLAIN).first.wait_for()
    page.get_by_text("The same as a table").click()
    page.locator(".stage").hover()
    bob = woven.service.tokens.create("bob in the same tab", Role.TENANT, "bob in the same tab")
    page.evaluate("token => { location.hash = `token=${token}`; }", bob)
    page.wait_for_function("() => location.hash === ''")
    page.locator("#cluster").wait_for(state="visible")
    for _ in range(15):  # the stream of before is looked after once a second
        assert PLAIN not in page.content()
        page.wait_for_timeout(100)
    before = len(eyes.requests)
    soon(page, "#link-text", "^Live$")
    page.wait_for_timeout(2500)
    assert any("v1/cluster" in url for url in eyes.requests[before:]), "it looks at nothing any more"
    assert page.locator("#link-text").inner_text() == "Live"


IN_THE_BACKGROUND = """
    Object.defineProperty(document, "hidden", { get: () => true });
    window.maps = [];
    window.Map = class extends Map { constructor(...of) { super(...of); window.maps.push(this); } };
    const asks = window.fetch;
    const stream = new ReadableStream({ start: (control) => window.says = (text) => control.enqueue(text) });
    window.fetch = (path, how) => path.includes("v1/events")
        ? new Response(stream.pipeThrough(new TextEncoderStream()), how) : asks(path, how);
"""
MANY_PHASES = """() => {
    const phase = (epoch) => [
        { what: "granted", job: "j", kind: "rollout", epoch, group: "g", nodes: ["rollout-0"] },
        { what: "ended", job: "j", kind: "rollout", epoch, state: "finished" },
    ];
    const changes = [...Array(13_000).keys()].flatMap((place) => phase(1_000_000 + place));
    window.says(`data: ${JSON.stringify({ seq: 1, at: 1e6, changes })}\\n\\n`);
}"""


STREAM_ALONE_IS_SILENT = """
    window.streams = 0;
    const asks = window.fetch, clock = performance.now.bind(performance);
    let ahead = 0;
    performance.now = () => clock() + ahead;
    setInterval(() => ahead += 2000, 150);
    window.fetch = (path, how) => {
        if (!path.includes("v1/events")) return asks(path, how);
        window.streams += 1;
        const silent = { start: (control) => how.signal.onabort = () => control.error(how.signal.reason) };
        return new Response(new ReadableStream(silent));
    };
"""


def test_a_stream_that_is_silent_alone_is_opened_anew(woven: Served, eyes: Eyes) -> None:
    page = eyes.open(woven, "")
    page.add_init_script(STREAM_ALONE_IS_SILENT)
    page.evaluate("token => sessionStorage.setItem('rollmux-token', token)", woven.admin)
    page.reload()
    page.wait_for_function("() => window.streams > 1", timeout=10_000)


def test_a_tab_in_the_background_forgets_what_is_past_too(woven: Served, eyes: Eyes) -> None:
    page = eyes.open(woven, "")
    page.add_init_script(IN_THE_BACKGROUND)
    page.evaluate("token => sessionStorage.setItem('rollmux-token', token)", woven.admin)
    page.reload()
    page.wait_for_function("() => window.says && document.querySelector('#cluster').checkVisibility()")
    page.evaluate(MANY_PHASES)
    most = "() => Math.max(...window.maps.map((map) => map.size))"
    page.wait_for_function(f"() => ({most})() >= 12_000")
    page.wait_for_timeout(700)
    assert page.evaluate(most) <= 12_000


@dataclass
class Hands:
    """Works jobs by plain calls, so that a test can look at one moment for as long as it likes."""

    there: Served
    attempts: dict[str, int] = field(default_factory=dict)

    def submit(self, name: str) -> None:
        self.there.post("/v1/jobs", job(name))
        attached = self.there.post(f"/v1/jobs/{name}/attach", {"instance": "one", "wait_s": 5.0})
        self.attempts[name] = attached["attempt"]

    def ask(self, name: str, kind: str = "rollout") -> Any:
        ask = {"attempt": self.attempts[name], "kind": kind, "iteration": 0}
        return self.there.post(f"/v1/jobs/{name}/ask", ask)["lease"]

    def report(self, name: str, said: str, epoch: int) -> None:
        self.there.post(f"/v1/jobs/{name}/report", {"said": said, "epoch": epoch})


def soon(page: Any, selector: str, pattern: str) -> None:
    """Within seconds this is to be read there, without a reload."""
    page.wait_for_function(
        """([selector, pattern]) =>
            [...document.querySelectorAll(selector)].some((one) => new RegExp(pattern).test(one.innerText))""",
        arg=[selector, pattern],
        timeout=8_000,
    )


@contextmanager
def looked_at(eyes: Eyes, folder: Path, port: int = 0) -> Iterator[Served]:
    """A controller that ends after those who look at it."""
    with served(folder, PAIR, replace(RULES, timing=Timing(lease_s=120.0, drain_s=1.0)), port=port) as there:
        yield there
        eyes.close()


def test_who_waits_is_shown_with_whom_it_waits_for_and_then_holds(tmp_path: Path, eyes: Eyes) -> None:
    with looked_at(eyes, tmp_path) as there:
        hands = Hands(there)
        page = eyes.open(there)
        assert page.locator("#no-lanes, .lane").count() >= 1
        for name in ("first", "second"):
            hands.submit(name)
        lease = hands.ask("first")
        soon(page, ".holds li", r"first\s+moves in")
        hands.report("first", "started", lease["epoch"])
        soon(page, ".holds li", r"first\s+rollout 0")
        assert hands.ask("second") is None
        soon(page, ".doing.waits", r"rollout 0 waits .*: for rollout\(0\) of job first")
        soon(page, ".holds li", "next: second")
        hands.report("first", "finished", lease["epoch"])
        soon(page, ".holds li", r"second\s+moves in")
        page.get_by_text("The same as a table").click()
        soon(page, "#span-table tbody tr", r"first\s+rollout 0[\s\S]*finished")
        failing = hands.ask("second")
        hands.report("second", "failed", failing["epoch"])
        soon(page, "#span-table tbody tr", r"second\s+rollout 0[\s\S]*failed")
        there.post("/v1/nodes/train-0/drain")
        soon(page, ".names li", r"train-0\s*⊘ draining")


def test_names_that_differ_in_their_ends_alone_are_told_apart(tmp_path: Path, eyes: Eyes) -> None:
    with looked_at(eyes, tmp_path) as there:
        for end in "12":
            Hands(there).submit("n" * 127 + end)
        page = eyes.open(there)
        for width in (1280, 400):
            page.set_viewport_size({"width": width, "height": 800})
            soon(page, "#job-table .name", "n2$")
            whole = "names => names.every((name) => name.scrollWidth <= name.clientWidth)"
            assert page.locator("#job-table .name").evaluate_all(whole)
            assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_finger_reads_the_phase_that_it_points_at(tmp_path: Path, eyes: Eyes) -> None:
    with looked_at(eyes, tmp_path) as there:
        hands = Hands(there)
        hands.submit("pointed-at")
        lease = hands.ask("pointed-at")
        hands.report("pointed-at", "started", lease["epoch"])
        page = eyes.open(there, viewport={"width": 400, "height": 800}, has_touch=True)
        page.get_by_role("radio", name="5 min", exact=True).check(force=True)
        page.wait_for_timeout(2_500)  # two pixels
        page.locator(".stage").scroll_into_view_if_needed()
        box = page.locator(".stage").bounding_box()
        page.touchscreen.tap(box["x"] + box["width"] - 1, box["y"] + 34)
        assert page.locator("#picked").inner_text().startswith("rollout-0: pointed-at, rollout 0, ")


def test_a_job_that_has_its_place_and_no_script_is_shown_to_wait_for_that(tmp_path: Path, eyes: Eyes) -> None:
    with looked_at(eyes, tmp_path) as there:
        hands = Hands(there)
        hands.submit("alone")
        page = eyes.open(there)
        soon(page, ".doing.rests", "between phases")
        listen = {"attempt": hands.attempts["alone"], "wait_s": 5.0}
        version = there.post("/v1/jobs/alone/listen", listen)["version"]
        url, headers = f"{there.service.url}/v1/jobs/alone/listen", {"Authorization": f"Bearer {there.admin}"}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json={**listen, "seen": version}, headers=headers, timeout=0.5)
        soon(page, ".doing.waits", "its script hung up: it has 121 s to be started again")


def test_the_page_says_when_nothing_is_heard_and_goes_on_with_the_next_controller(tmp_path: Path, eyes: Eyes) -> None:
    # Nobody at the port, a connection cut off, or the door of a controller that is still reading its journal.
    eyes.allowed = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE|ERR_CONNECTION_RESET|ERR_EMPTY|503"
    with served(tmp_path, PAIR, replace(RULES, timing=Timing(lease_s=120.0, drain_s=1.0))) as there:
        hands, admin = Hands(there), there.admin
        hands.submit("stays")
        lease = hands.ask("stays")
        hands.report("stays", "started", lease["epoch"])
        page = eyes.open(there)
        soon(page, ".holds li", r"stays\s+rollout 0")
        port = int(there.service.url.rpartition(":")[2])
    page.locator("#stale").get_by_text("Nothing has been heard").wait_for(timeout=20_000)
    assert page.locator("#link").get_attribute("data-state") == "late"
    since = page.locator("#stale").inner_text()
    page.evaluate("() => { const now = Date.now(); Date.now = () => now + 20 * 3600_000; }")  # it has slept
    page.wait_for_timeout(1_200)
    assert page.locator("#stale").inner_text() == since
    assert page.evaluate("new Date().toLocaleDateString()") in since
    assert "stays" in page.locator("#job-table").inner_text()
    with looked_at(eyes, tmp_path, port) as there:
        there.admin = admin
        soon(page, "#link-text", "^Live$")
        assert page.locator("#stale").is_hidden()
        soon(page, ".holds li", r"stays\s+rollout 0")
        Hands(there).report("stays", "finished", lease["epoch"])
        soon(page, ".holds li", r"^idle$")


class Below(App):
    """Behind a proxy that hands on what lies below a path, by the rest of it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            mount, path = scope["raw_path"][:8], scope["raw_path"][8:]
            scope = {**scope, "raw_path": path if mount == b"/rollmux" else b"/of/others"}
        await super().__call__(scope, receive, send)


def test_below_a_path_of_a_proxy_the_page_is_live_too(
    tmp_path: Path, eyes: Eyes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollmux.service.serve.App", Below)
    with served(tmp_path, PAIR) as there:
        page = eyes.open(there, at="/rollmux/")
        page.get_by_text("Live", exact=True).wait_for(timeout=15_000)
        eyes.close()


def test_jobs_on_machines_that_cost_nothing_are_not_said_to_have_none(tmp_path: Path, eyes: Eyes) -> None:
    pools = [replace(pool, node_type=replace(pool.node_type, usd_per_gpu_hour=0.0)) for pool in PAIR.pools]
    with served(tmp_path, Cluster(*pools)) as there:
        page = eyes.open(there)
        soon(page, "#cost .note", "^No job is pinned to a node")
        Hands(there).submit("free")
        soon(page, "#cost .note", "^These machines cost nothing")
        eyes.close()


def test_an_ended_job_leaves_its_bill(tmp_path: Path, eyes: Eyes) -> None:
    with looked_at(eyes, tmp_path) as there:
        hands = Hands(there)
        hands.submit("brief")
        page = eyes.open(there)
        there.post("/v1/jobs/brief/leave", {"attempt": hands.attempts["brief"]})
        page.get_by_text("1 job has ended").click(timeout=8_000)
        row = page.locator("#jobs details tbody tr").inner_text()
        assert re.match(r"brief\s+finished", row)
        assert "$" in row
        for name in ("second", "third"):
            hands.submit(name)
            there.post(f"/v1/jobs/{name}/leave", {"attempt": hands.attempts[name]})
        page.get_by_text("3 jobs have ended").wait_for(timeout=8_000)
        assert page.locator("#jobs details tbody tr").count() == 3
        page.wait_for_timeout(1500)
        assert page.locator("#jobs details tbody tr").first.is_visible(), "it closed by itself"


def test_the_page_opens_however_many_calls_a_look_weighs(
    tmp_path: Path, eyes: Eyes, monkeypatch: pytest.MonkeyPatch
) -> None:
    eyes.allowed = "429"
    monkeypatch.setattr("rollmux.service.app.JOBS_A_CALL", 1 / 120)  # of one job: three looks at once, and no fourth
    with looked_at(eyes, tmp_path) as there:
        Hands(there).submit("heavy")
        page = eyes.open(there)
        soon(page, "#link-text", "^Live$")
        soon(page, "#job-table", "heavy")


def test_a_page_that_gets_no_stream_says_why_and_asks_ever_more_seldom(
    tmp_path: Path, eyes: Eyes, monkeypatch: pytest.MonkeyPatch
) -> None:
    eyes.allowed = "429"
    monkeypatch.setattr("rollmux.service.app.MOST_STREAMS_EACH", 1)
    with looked_at(eyes, tmp_path) as there, follow(there):
        page, looks = eyes.open(there), [time.monotonic()]
        page.on("request", lambda one: looks.append(time.monotonic()) if "since_s=3600" in one.url else None)
        soon(page, "#link-text", "^Not live: too many streams are open: close one")
        while len(looks) < 4:
            page.wait_for_timeout(50)
        assert looks[-1] - looks[-2] > 0.7
        bob = there.service.tokens.create("bob", Role.TENANT, "bob")
        page.evaluate(
            """token => {
            window.told = [];
            const link = document.querySelector("#link-text");
            new MutationObserver(() => window.told.push(link.textContent)).observe(link, { childList: true });
            location.hash = `token=${token}`;
        }""",
            bob,
        )
        soon(page, "#link-text", "^Live$")
        assert not [text for text in page.evaluate("window.told") if "Not live" in text], "that was of the token before"

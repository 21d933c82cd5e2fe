"""The page in a real browser: it opens from a file without an error or a request, and answers keys and filters."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rollmux.report.page import html_report
from rollmux.sim.outcome import Level, Outcome
from tests.browsing import contrast
from tests.report.runs import bare, job, nothing, run, unfinished

Open = Callable[..., Any]  # with these runs, and perhaps in this tab


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of some runs; at the end there was no complaint and no request but for the file."""
    complaints: list[str] = []
    requests: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    file = tmp_path / "report.html"

    def opens(outcomes: list[Outcome], page: Any = None) -> Any:
        file.write_text(html_report("Ten hours & four jobs", outcomes), encoding="utf-8")
        page = page or context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        return page

    yield opens
    context.close()
    assert complaints == []
    assert set(requests) <= {file.as_uri()}


def two_runs() -> list[Outcome]:
    broken = (job("a-2", 1.7), job("a-10", 1.4), job("b-1", 1.45, "group-10"), job("b-2", 1.0, "group-10"))
    return [run(), run("paper", 2345.67, broken)]


def window(page: Any) -> tuple[float, float]:
    stage = page.locator(".stage")
    return float(stage.get_attribute("data-from")), float(stage.get_attribute("data-to"))


def column(page: Any, table: str, place: int) -> list[str]:
    texts: list[str] = page.locator(f"#{table} tbody tr > :nth-child({place})").all_inner_texts()
    return texts


def test_the_headline_is_there_to_read(opened: Open) -> None:
    page = opened(two_runs())
    assert page.get_by_role("heading", level=1).inner_text() == "Ten hours & four jobs"
    for figure in ("$1,234.56", "$2,345.67", "1.235×", "100.0 %", "(1 broken)"):
        assert page.locator("#headline-table").get_by_text(figure, exact=False).first.is_visible(), figure
    assert "paper: ✕ 1 of 4 SLOs broken: a-2 (1.700× of 1.50×)." in page.locator(".violations").inner_text()


def test_keys_move_the_window_of_the_timeline(opened: Open) -> None:
    page = opened(two_runs())
    page.locator(".stage").focus()
    first = window(page)
    page.keyboard.press("ArrowRight")
    later = window(page)
    assert later[0] > first[0]
    assert later[1] - later[0] == pytest.approx(first[1] - first[0])
    page.keyboard.press("+")
    near = window(page)
    assert near[1] - near[0] == pytest.approx((later[1] - later[0]) / 2)
    assert sum(near) == pytest.approx(sum(later))
    page.keyboard.press("0")
    whole = window(page)
    assert whole[0] == 360_000
    assert whole[1] > later[1]
    page.keyboard.press("End")
    assert window(page) == whole


def test_keys_go_from_span_to_span_and_say_each(opened: Open) -> None:
    page = opened(two_runs())
    page.locator(".stage").focus()
    page.keyboard.press("Shift+ArrowRight")
    status = page.locator("#gantt-status")
    assert status.inner_text() == "rollout-0: a-2, switch, iteration 0, 0:06:00 to 0:06:02 (2.0 s)"
    page.keyboard.press("Shift+ArrowRight")
    assert status.inner_text() == "rollout-0: a-2, rollout, iteration 0, 0:06:02 to 0:07:32 (90.0 s)"
    page.keyboard.press("ArrowDown")
    assert status.inner_text().startswith("train-0. Window 0:06:00 to ")


def test_the_mouse_pans_zooms_and_points(opened: Open) -> None:
    page = opened(two_runs())
    stage = page.locator(".stage")
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 50
    before = window(page)
    page.mouse.move(x, y)
    assert page.locator("#gantt-status").inner_text().startswith("rollout-0: a-")
    page.mouse.down()
    page.mouse.move(x - 100, y)
    page.mouse.up()
    panned = window(page)
    assert panned[0] > before[0]
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_function(f"document.querySelector('.stage').dataset.to != {panned[1]}")
    zoomed = window(page)
    assert zoomed[1] - zoomed[0] == pytest.approx((panned[1] - panned[0]) / 2)


def test_a_finger_reads_what_it_points_at(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(html_report("On a phone", two_runs()), encoding="utf-8")
    with closing(browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)) as context:
        page = context.new_page()
        page.goto(file.as_uri())
        for plot, readout, wanted in (
            ("#cost .plot", "#cost .readout", r"^5\.\d\d h\s+rollmux \$128\.94/h"),
            ("#slo .plot", "#slo .readout", r"^no\. 3\s+rollmux: a-2"),
            (".stage", "#gantt-status", "^rollout-0: a-2, rollout, iteration 4"),
        ):
            at = page.locator(plot).first
            at.scroll_into_view_if_needed()
            box = at.bounding_box()
            page.touchscreen.tap(box["x"] + 0.6 * box["width"], box["y"] + 50)
            assert re.match(wanted, page.locator(readout).inner_text()), page.locator(readout).inner_text()


def test_any_group_of_any_policy_can_be_chosen_and_read_as_a_table(opened: Open) -> None:
    page = opened(two_runs())
    page.get_by_text("The spans of this window as a table").click()
    page.locator("#gantt-policy").select_option(label="paper")
    page.locator("#gantt-group").select_option("group-10")
    assert set(column(page, "span-table", 1)) == {"rollout-4", "train-4"}
    page.locator("#gantt-from").fill("0.1")
    page.locator("#gantt-to").fill("0.12")
    page.keyboard.press("Tab")
    assert column(page, "span-table", 3) == ["switch", "rollout"]


def test_the_timeline_is_drawn(opened: Open) -> None:
    page = opened(two_runs())
    page.locator(".stage").scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('.stage canvas').height > 90")
    count = """() => {
        const canvas = document.querySelector(".stage canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size;
    }"""
    assert page.evaluate(count) > 10


def test_a_job_leads_to_its_place_in_the_timeline(opened: Open) -> None:
    page = opened(two_runs())
    page.locator("#job-search").fill("b-2")
    page.locator("#job-policy").select_option(label="paper")
    page.locator("#job-table").get_by_role("button", name="b-2").click()
    assert page.locator("#gantt-policy option:checked").inner_text() == "paper"
    assert page.locator("#gantt-group").input_value() == "group-10"
    assert page.locator("#gantt-job option:checked").inner_text() == "b-2"
    assert page.locator("#gantt-status").inner_text().startswith("rollout-4. Window 0:07:42 to ")
    assert page.evaluate("document.activeElement.className") == "stage"


def test_jobs_are_sorted_by_their_headers_and_filtered(opened: Open) -> None:
    page = opened(two_runs())
    assert column(page, "job-table", 1)[0] == "a-2"  # the nearest to its SLO stands first
    header = page.locator("#job-table th").filter(has_text="Job")
    header.get_by_role("button").click()
    assert column(page, "job-table", 1) == ["a-2", "a-2", "a-10", "a-10", "b-1", "b-1", "b-2", "b-2"]
    assert header.get_attribute("aria-sort") == "ascending"
    header.get_by_role("button").click()
    assert column(page, "job-table", 1)[0] == "b-2"
    page.locator("#job-search").fill("A-1")
    assert column(page, "job-table", 1) == ["a-10", "a-10"]
    page.locator("#job-search").fill("")
    page.get_by_label("Only broken SLOs").check()
    assert list(zip(column(page, "job-table", 1), column(page, "job-table", 2), strict=True)) == [("a-2", "paper")]
    page.locator("#job-search").fill("nobody")
    assert page.get_by_text("No jobs match the filter.").is_visible()


def test_admissions_are_filtered_and_tell_why(opened: Open) -> None:
    page = opened(two_runs())
    page.locator("#admission-strategy").select_option("isolated")
    assert column(page, "admission-table", 1) == ["a-2", "a-2"]
    page.locator("#admission-table summary").first.click()
    assert page.locator("#admission-table li").first.inner_text() == "tried: full"
    assert page.locator("#admission-table li").first.is_visible()


def test_charts_read_values_at_a_cursor_and_hide_what_is_toggled(opened: Open) -> None:
    page = opened(two_runs())
    plot = page.get_by_role("slider", name="USD per hour: time cursor")
    plot.focus()
    page.keyboard.press("Shift+ArrowRight")
    assert plot.get_attribute("aria-valuetext") == "at 1.00 h, rollmux $143.75/h, paper $143.75/h"
    toggle = page.locator("#cost").get_by_role("button", name="paper")
    toggle.click()
    assert toggle.get_attribute("aria-pressed") == "false"
    plot.focus()
    page.keyboard.press("End")
    assert plot.get_attribute("aria-valuetext") == "at 10.00 h, rollmux $0.00/h"
    for section in ("cost", "nodes", "slo"):
        for button in page.locator(f"#{section} .toggle").all():
            button.click()
            button.click()
            button.click()
    assert toggle.get_attribute("aria-pressed") == "true"
    toggle.click()
    page.locator("#cost .toggle").first.click()
    page.locator("#cost-measure").select_option("sum")
    page.get_by_role("slider", name="USD so far: time cursor").focus()
    page.keyboard.press("Home")
    assert "rollmux not begun" in page.locator("#cost .readout").inner_text()
    for _ in range(5):
        page.keyboard.press("Shift+ArrowRight")
    assert f"rollmux ${4.9 * 143.75:,.2f}" in page.locator("#cost .readout").inner_text()


@pytest.mark.parametrize("usd", [0.4, 0.0004, 4000.0])
def test_the_ticks_of_a_chart_are_told_apart_and_say_where_they_stand(opened: Open, usd: float) -> None:
    levels = (Level(0.0, 1, 1, usd, 1, 1), Level(60.0, 0, 0, 0.0, 0, 0))
    page = opened([replace(run(), makespan_h=1 / 60, levels=levels)])
    for measure in ("rate", "sum"):
        page.locator("#cost-measure").select_option(measure)
        for plot in page.locator("#cost .plot, #nodes .plot").all():
            plot.locator("svg").wait_for()
            texts = [text.strip("$ s") for text in plot.locator(".tick").all_text_contents()]
            places = [float(text.replace(",", "")) for text in texts[: texts.index("0", 1)]]
            steps = [after - before for before, after in pairwise(places)]
            assert steps == [pytest.approx(steps[0])] * len(steps)
            assert steps[0] > 0


def test_the_headroom_chart_names_the_jobs_from_the_tightest_on(opened: Open) -> None:
    page = opened(two_runs())
    plot = page.get_by_role("slider", name="SLO headroom: job cursor")
    plot.focus()
    said = "rollmux: b-1 1.450× of 1.50×; paper: a-2 1.700× of 1.50×, broken"
    assert plot.get_attribute("aria-valuetext") == said
    page.keyboard.press("ArrowRight")
    assert plot.get_attribute("aria-valuetext").startswith("rollmux: a-10 1.400×")


def test_a_broken_slo_is_told_with_its_reason(opened: Open) -> None:
    homeless = replace(job("homeless", group=""), started_h=None, slowdown=None, iteration_s=None, iterations=0)
    overdue = replace(job("overdue", 1.1), slowdown_at_least=2.0)
    jobs = (replace(job("given-up", 1.1), failed=True), homeless, unfinished(), overdue, job("slow", 1.7), job("good"))
    page = opened([bare(run(jobs=jobs))])
    said = page.locator(".violations").inner_text()
    assert "5 of 6 SLOs broken: " in said
    for reason in (
        "given-up (it was given up)",
        "homeless (it never had a place)",
        "stuck (it did no iteration)",
        "overdue (at least 2.000× of 1.50×)",
        "slow (1.700× of 1.50×)",
    ):
        assert reason in said
    chart = page.get_by_role("slider", name="SLO headroom: job cursor").locator("svg")
    assert chart.get_attribute("aria-label") == "Slowdown over SLO. rollmux: 5 of 6 broken"
    assert page.locator("#job-table tr").filter(has_text="overdue").get_by_text("✕ 133.3 %").is_visible()


def test_whatever_is_missing_is_said_in_a_sentence(opened: Open) -> None:
    page = opened([bare(run())])
    for section in ("cost", "nodes", "timeline", "admissions"):
        assert page.locator(f"#{section} .empty").inner_text().endswith(".")
    assert page.locator("#job-table").is_visible()
    paced = opened([replace(run(), spans=())])
    assert "forecast pace" in paced.locator("#timeline .empty").inner_text(), "its history was asked for"
    assert opened([]).locator(".empty").count() == 6
    assert opened([nothing()]).locator(".empty").count() == 6


def test_a_quantity_that_is_always_zero_is_a_sentence(opened: Open) -> None:
    calm = replace(run(), levels=tuple(replace(level, waiting=0) for level in run().levels))
    page = opened([calm])
    assert page.locator("#nodes .empty").inner_text() == "Jobs waiting: none, at any time."
    assert page.locator("#nodes .plot").count() == 3


def test_runs_with_odd_parts_are_drawn_all_the_same(opened: Open) -> None:
    stuck = replace(run(jobs=(unfinished(), job("b"), job("c"), job("</script><b>"))), policy="<i>odd</i>")
    page = opened([bare(run()), stuck, nothing()])
    assert column(page, "job-table", 1)[-1] == "stuck"
    assert page.locator("#job-table").get_by_text("</script><b>").is_visible()
    assert page.locator("#gantt-policy option").all_inner_texts() == ["<i>odd</i>"]


def test_the_longest_name_leaves_room_for_the_figures_beside_it(opened: Open) -> None:
    page = opened([run(jobs=(job("n" * 128), job("b"), job("c"), job("d")))])
    page.set_viewport_size({"width": 800, "height": 844})
    for table in ("job-table", "admission-table"):
        name, beside = page.locator(f"#{table} tbody tr").filter(has_text="nnn").locator("th, td").all()[:2]
        assert name.bounding_box()["width"] < 400
        assert name.inner_text() == "n" * 128
        assert beside.bounding_box()["x"] < 500


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_never_wider_than_its_window(opened: Open, width: int) -> None:
    page = opened(two_runs())
    page.set_viewport_size({"width": width, "height": 844})
    page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_on_paper_nothing_is_cut_off_and_the_ink_is_dark(opened: Open) -> None:
    page = opened([])
    # A browser that lays the page out for paper draws nothing anew: so what is drawn for the screen has to fit.
    page.add_init_script("""{
        const Real = ResizeObserver;
        window.ResizeObserver = class extends Real {
            constructor(told) { super(() => this.over || told()); setTimeout(() => this.over = true, 500); }
        };
    }""")
    page.emulate_media(color_scheme="dark")
    page = opened(two_runs(), page)
    page.wait_for_function("() => document.querySelectorAll('.plot svg').length === 6")
    page.wait_for_timeout(600)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 900})
    right = "all => Math.max(...all.map((one) => one.getBoundingClientRect().right))"
    for drawn in (".plot svg", ".stage canvas", "table"):
        assert page.locator(drawn).evaluate_all(right) <= 700, drawn
    ink = "getComputedStyle(document.documentElement).getPropertyValue('--ink')"
    assert contrast(page.evaluate(ink), "#ffffff") >= 4.5
    corner = "canvas => [...canvas.getContext('2d').getImageData(50, 37, 1, 1).data]"
    assert page.locator(".stage canvas").evaluate(corner) == [255, 255, 255, 255], "behind the nodes' names"


def test_everything_that_can_be_worked_has_a_name(opened: Open) -> None:
    page = opened(two_runs())
    nameless = """() => [...document.querySelectorAll("button, select, input, summary, [tabindex='0']")]
        .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length))
        .map((one) => one.outerHTML)"""
    assert page.evaluate(nameless) == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((heading) => Number(heading.tagName[1]))")
    assert levels == [1, *[2] * 7]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(opened: Open, scheme: str) -> None:
    page = opened(two_runs())
    page.emulate_media(color_scheme=scheme)
    read = "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()"
    for text, ground, least in (
        *((text, "paper", 4.5) for text in ("ink", "muted", "accent", "broken")),
        *(("job-ink", f"job-{place}", 4.5) for place in range(8)),
        *((f"s{place}", "paper", 3.0) for place in range(8)),
    ):
        assert contrast(page.evaluate(read, text), page.evaluate(read, ground)) >= least, (text, ground)

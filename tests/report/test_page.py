"""The page is one closed file: it holds every figure, fetches nothing, and no name can break out of it."""

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.report.data import deltas, labels, timeline
from rollmux.report.page import SCRIPTS, asset, html_report
from rollmux.sim.outcome import Level, Outcome
from tests.report.runs import bare, job, nothing, run, unfinished

NASTY = "</script><b onclick=alert(1)>&amp;<!--\u2028\"'"


class Elements(HTMLParser):
    """Every element with its attributes, and the text of each script, style and cell."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.texts.append((tag, ""))

    def handle_data(self, data: str) -> None:
        if self.texts:
            tag, text = self.texts[-1]
            self.texts[-1] = (tag, text + data)

    def handle_endtag(self, tag: str) -> None:
        self.texts.append(("", ""))

    def text_of(self, tag: str, place: int = 0) -> str:
        return [text for found, text in self.texts if found == tag][place]


def documents(page: str) -> dict[str, Any]:
    """The data that the page carries, by the ids of their elements."""
    found = re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', page, re.S)
    return {name: json.loads(text) for name, text in found}


def headline(page: str) -> str:
    found = re.search(r'<section id="headline".*?</section>', page, re.S)
    assert found is not None
    return re.sub(r"<[^>]*>", " ", found[0])


def test_the_same_runs_give_the_same_bytes_whatever_the_order_of_their_spans() -> None:
    runs = [run(), run("paper", 1500.0)]
    again = [run(), replace(run("paper", 1500.0), spans=tuple(reversed(run().spans)))]
    assert html_report("A title", runs) == html_report("A title", again)


def test_names_cannot_break_out_of_the_page() -> None:
    plain = Elements(html_report("title", [run()], ["note"]))
    outcome = run(NASTY, jobs=(job(NASTY, 1.2, NASTY), job("b"), job("c"), job("d")))
    page = html_report(NASTY, [outcome], [NASTY])
    nasty = Elements(page)
    assert [tag for tag, _ in nasty.found] == [tag for tag, _ in plain.found]
    assert "onclick" not in {name for _, attributes in nasty.found for name in attributes}
    facts = documents(page)["facts"]["runs"][0]
    assert (facts["name"], facts["jobs"]["job"][0], facts["jobs"]["group"][0]) == (NASTY, NASTY, NASTY)
    assert NASTY in documents(page)["timeline-0"]["jobs"]


@given(st.lists(st.text(max_size=20), min_size=4, max_size=4, unique=True))
@settings(max_examples=30)
def test_any_name_comes_back_from_the_page_as_it_was(names: list[str]) -> None:
    page = html_report("title", [run(jobs=tuple(map(job, names)))])
    assert documents(page)["facts"]["runs"][0]["jobs"]["job"] == names


def test_the_headline_has_every_figure_of_every_run_without_a_script() -> None:
    text = headline(html_report("title", [run(), replace(run("paper", 98765.4), peak_rollout=19, moves=77)]))
    wanted = ("rollmux", "paper", "$1,234.56", "$98,765.40", "$123.46", "$9,876.54", "1.235×", "98.765×", "1.122×")
    for figure in (*wanted, "89.787×", "100.0 %", "75.0 %", "55.0 %", " 5 ", " 77 ", " 7 ", " 19 ", " 3 "):
        assert figure in text, figure


def test_the_best_of_a_column_is_marked_with_a_word_and_equal_columns_are_not() -> None:
    page = html_report("title", [run(), run("paper", 2000.0)])
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page)
    best = [re.sub(r"<[^>]*>", "", cell) for cell in cells if "best: " in cell]
    assert best == ["★best:  $1,234.56", "★best:  $123.46", "★best:  1.235×", "★best:  1.122×"]


def test_the_summary_says_whose_slo_breaks_and_what_keeping_every_one_costs() -> None:
    broken = run("cheap", 1000.0, (job("a", 1.7), job("b"), job("c"), job("d")))
    text = re.sub(r"\s+", " ", headline(html_report("title", [run("safe", 1100.0), broken])))
    assert "Cheapest: cheap , $1,000.00 over 10.0 h. It breaks the SLO of 1 of 4 jobs." in text
    assert "Cheapest that keeps every SLO: safe , $1,100.00, which is 10.0 % more." in text
    assert "75.0 % (1 broken)" in text


def test_nothing_is_so_many_percent_more_than_nothing() -> None:
    none = run("none", 0.0, (job("a", 1.7), job("b"), job("c"), job("d")))
    text = re.sub(r"\s+", " ", headline(html_report("title", [none, run("safe", 10.0)])))
    assert "Cheapest that keeps every SLO: safe , $10.00." in text


def test_the_facts_of_every_run_are_in_the_page() -> None:
    outcomes = [run(), run("paper", 1500.0)]
    found = documents(html_report("title", outcomes))["facts"]["runs"]
    for outcome, facts in zip(outcomes, found, strict=True):
        assert facts["usd_total"] == outcome.usd_total
        assert facts["pools"]["training"] == {"paid": 20.0, "busy": 11.0, "switch": 0.5, "idle": 8.5}
        assert facts["jobs"]["slowdown"] == [one.slowdown for one in outcome.jobs]
        assert facts["jobs"]["met"] == [1, 1, 1, 1]
        assert list(accumulate(facts["admissions"]["at_ms"])) == [round(one.at_s * 1000) for one in outcome.admissions]
        assert facts["admissions"]["why"] == [list(one.why) for one in outcome.admissions]


def test_of_several_levels_at_one_instant_the_last_counts() -> None:
    levels = documents(html_report("title", [run()]))["facts"]["runs"][0]["levels"]
    assert list(accumulate(levels["at_ms"])) == [360_000, 18_000_000, 36_000_000]
    assert levels["rollout_nodes"] == [4, 3, 0]
    late = replace(run(), levels=(Level(2.0, 1, 1, 1.0, 1, 0), Level(1.0, 2, 2, 2.0, 2, 0)))
    assert documents(html_report("title", [late]))["facts"]["runs"][0]["levels"]["running"] == [2, 1]


def test_spans_come_back_from_their_columns() -> None:
    outcome = run()
    packed = timeline(outcome)
    found = []
    for group in packed["groups"]:
        for lane in group["lanes"]:
            end, iterations = 0, dict.fromkeys(range(len(packed["jobs"])), 0)
            columns = (lane[name] for name in ("gap", "long", "job", "kind", "step"))
            for gap, long, one, kind, step in zip(*columns, strict=True):
                start, end = end + gap, end + gap + long
                iterations[one] += step
                names = (lane["node"], group["name"], packed["jobs"][one], packed["kinds"][kind])
                found.append((*names, start, end, iterations[one]))
    wanted = [
        (s.node, s.group, s.job, s.kind, round(s.start_s * 1000), round(s.end_s * 1000), s.iteration)
        for s in outcome.spans
    ]
    assert sorted(found) == sorted(wanted)


def test_many_spans_take_little_room() -> None:
    outcome = run()
    size = len(json.dumps(timeline(outcome), separators=(",", ":")))
    assert size / len(outcome.spans) < 25


@given(st.lists(st.floats(0, 1e7)))
def test_times_are_kept_to_the_millisecond(times: list[float]) -> None:
    assert list(accumulate(deltas(times))) == [round(time * 1000) for time in times]


def test_the_page_may_fetch_nothing_and_runs_only_its_own_script() -> None:
    page = Elements(html_report("title", [run()]))
    rules = next(str(found["content"]) for tag, found in page.found if tag == "meta" and "http-equiv" in found)
    assert rules.startswith("default-src 'none'; ")
    assert "unsafe" not in rules
    for kind, text in (("style", page.text_of("style")), ("script", page.text_of("script", -1))):
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in rules
    for _, attributes in page.found:
        assert {"src", "srcset", "style"}.isdisjoint(attributes)
        assert str(attributes.get("href", "#")).startswith("#")


@pytest.mark.parametrize("name", [*SCRIPTS, "report.css", "page.html"])
def test_assets_name_no_address_and_stay_short(name: str) -> None:
    text = asset(name).replace("http://www.w3.org/2000/svg", "")
    assert "//" not in re.sub(r"^\s*//.*|; //.*", "", text, flags=re.M)
    assert len(text.splitlines()) <= 500
    assert name == "page.html" or "</" not in text


@pytest.mark.parametrize("outcomes", [[], [nothing()], [bare(run())], [run(), nothing()]], ids=str)
def test_runs_that_lack_something_give_a_page(outcomes: list[Outcome]) -> None:
    page = html_report("title", outcomes)
    assert len(documents(page)["facts"]["runs"]) == len(outcomes)
    assert "inf" not in headline(page)
    assert "nan" not in headline(page)


def test_a_job_without_an_iteration_has_no_slowdown_and_breaks_its_slo() -> None:
    page = html_report("title", [bare(run(jobs=(unfinished(), job("b"))))])
    jobs = documents(page)["facts"]["runs"][0]["jobs"]
    assert (jobs["slowdown"], jobs["met"]) == ([None, 1.25], [0, 1])


def test_runs_of_one_policy_are_told_apart() -> None:
    assert labels([run(), run(), run("paper"), run("rollmux (2)")]) == [
        "rollmux",
        "rollmux (2)",
        "paper",
        "rollmux (2) (2)",
    ]

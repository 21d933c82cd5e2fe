"""Every query of the shipped dashboard and alerts asks for what a controller at work really shows."""

import json
import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.service.serving import PAIR, RULES, Served, served

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "rollmux.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())

NAME = re.compile(r"(?<![\w$])([a-zA-Z_:][\w:]*)(?![\w:]|\s*\()(?:{([^}]*)})?")
GROUPING = re.compile(r"\b(by|without|on)\s*\(([^)]*)\)")
MATCHER = re.compile(r'(\w+)\s*(=~|!=|=)\s*"([^"]*)"')
GIVEN_BY_PROMETHEUS = {"job", "instance"}

Figures = dict[str, list[dict[str, str]]]
Selector = tuple[str, list[tuple[str, str, str]]]


def queries() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    rules = [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]
    return list(dict.fromkeys(panels + rules))


def selectors(query: str) -> list[Selector]:
    """The metrics that a query names, each with its matchers."""
    plain = re.sub(r"\[[^\]]*\]", "", GROUPING.sub("", query))
    return [(name, MATCHER.findall(inside or "")) for name, inside in NAME.findall(plain)]


def grouped_by(query: str) -> set[str]:
    return {label.strip() for _, labels in GROUPING.findall(query) for label in labels.split(",")} - {""}


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Figures]:
    """What is scraped from a controller that has been through all that the dashboard shows."""
    with served(tmp_path_factory.mktemp("controller"), PAIR) as there:
        attempts = {name: there.attached(name) for name in "ab"}
        ask = {"kind": "rollout", "iteration": 0, "wait_s": 0.0}
        lease = there.post("/v1/jobs/a/ask", {"attempt": attempts["a"], **ask})["lease"]
        assert there.post("/v1/jobs/b/ask", {"attempt": attempts["b"], **ask})["lease"] is None
        for said in ("started", "finished"):
            there.post("/v1/jobs/a/report", {"said": said, "epoch": lease["epoch"]})
        for kind in ("train", "sync"):
            there.post("/v1/jobs/b/ask", {"attempt": attempts["b"], **ask, "wait_s": 0.0})
            turn = there.post("/v1/jobs/a/ask", {"attempt": attempts["a"], **ask, "kind": kind, "wait_s": 5.0})["lease"]
            for said in ("started", "finished"):
                there.post("/v1/jobs/a/report", {"said": said, "epoch": turn["epoch"]})
        end = time.monotonic() + RULES.timing.lease_s + RULES.timing.drain_s + 10
        while not _value(_scraped(there), "rollmux_expired_leases_total") and time.monotonic() < end:
            time.sleep(0.2)  # b has its lease and is silent
        yield _labels(_scraped(there))


def _scraped(there: Served) -> list[Any]:
    text = there.call("GET", "/metrics").text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def _value(samples: list[Any], name: str) -> float:
    return float(sum(sample.value for sample in samples if sample.name == name))


def _labels(samples: list[Any]) -> Figures:
    found = defaultdict(list)
    for sample in samples:
        found[sample.name].append(dict(sample.labels))
    return {**found, "up": [{}]}


@pytest.mark.parametrize("query", queries())
def test_a_query_finds_what_it_asks_for(figures: Figures, query: str) -> None:
    asked = selectors(query)
    assert asked
    for name, matchers in asked:
        assert name in figures, f"/metrics has no {name}"
        own = [(label, how, value) for label, how, value in matchers if label not in GIVEN_BY_PROMETHEUS]
        fitting = [labels for labels in figures[name] if all(_fits(labels, *matcher) for matcher in own)]
        assert fitting, f"no {name} has {own}; there are {figures[name]}"
        labels = set().union(*figures[name])
        assert grouped_by(query) <= labels | GIVEN_BY_PROMETHEUS, f"{name} has the labels {labels}"


def _fits(labels: dict[str, str], label: str, how: str, value: str) -> bool:
    found = labels.get(label, "")
    return re.fullmatch(value, found) is not None if how == "=~" else (found == value) is (how == "=")


def test_what_operators_look_for_is_there(figures: Figures) -> None:
    assert {labels["of"] for labels in figures["rollmux_slo_headroom"]} == {"worst", "median"}
    assert {labels["kind"] for labels in figures["rollmux_wait_seconds_count"]} == {"rollout", "train", "sync"}
    assert {"rollmux_slow_jobs", "rollmux_parked_calls", "rollmux_queue_oldest_seconds", "rollmux_info"} <= set(figures)


def test_no_figure_is_of_a_single_job_or_node(figures: Figures) -> None:
    values = {value for each in figures.values() for labels in each for value in labels.values()}
    assert values.isdisjoint({"a", "b", "rollout-0", "train-0", "group-0"})


def test_all_controllers_are_those_that_have_figures_and_not_all_that_prometheus_scrapes() -> None:
    """Of every program there are `up` and `process_open_fds`."""
    asked = [each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    assert [each["name"] for each in asked] == ["job", "instance"]
    assert all("rollmux_info" in each["query"]["query"] and "allValue" not in each for each in asked)


def test_panels_do_not_cover_one_another_and_each_has_a_query() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] == "row" or panel["targets"], panel["title"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_scrape_example_reads_the_path_and_the_port_that_are_served() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (scrape,) = config["scrape_configs"]
    assert scrape.get("metrics_path", "/metrics") == "/metrics"
    assert scrape["static_configs"] == [{"targets": ["localhost:8421"]}]
    assert [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]] == [
        str(DEPLOY / "prometheus" / "alerts.yml")
    ]


@pytest.mark.parametrize(
    "rule", [rule for group in ALERTS["groups"] for rule in group["rules"]], ids=lambda r: r["alert"]
)
def test_an_alert_says_of_which_controller_it_is(rule: dict[str, Any]) -> None:
    """One that is slow is not to be lost among others that are not."""
    assert not re.search(r"\b(sum|avg|min|max|count|quantile)\b", rule["expr"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_prometheus_takes_the_figures_the_rules_and_the_scrape_example(tmp_path: Path) -> None:
    with served(tmp_path / "controller", PAIR) as there:
        figures = there.call("GET", "/metrics").content
    shutil.copytree(DEPLOY / "prometheus", tmp_path, dirs_exist_ok=True)
    (tmp_path / "rollmux.token").touch()
    for words, given in (["metrics"], figures), (["config", "--lint=all", "--lint-fatal", "prometheus.yml"], b""):
        done = subprocess.run(
            ["promtool", "check", *words], cwd=tmp_path, input=given, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b""), done


def test_selectors_are_found_and_functions_are_not() -> None:
    query = 'sum by (le) (rate(a_total{job=~"$job", of="x"}[$__rate_interval])) / (b > 0)'
    assert selectors(query) == [("a_total", [("job", "=~", "$job"), ("of", "=", "x")]), ("b", [])]
    assert grouped_by(query) == {"le"}

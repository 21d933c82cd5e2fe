"""The benchmark harness measures what it says."""

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import harness

VALUES = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=30)
PERCENT = st.floats(0, 100)


@given(values=VALUES, q=PERCENT)
def test_a_percentile_lies_among_the_values_whatever_their_order(values: list[float], q: float) -> None:
    found = harness.percentile(values, q)
    assert min(values) <= found <= max(values)
    assert harness.percentile(values[::-1], q) == found


@given(values=VALUES, q=PERCENT, p=PERCENT)
def test_percentiles_grow_with_q(values: list[float], q: float, p: float) -> None:
    low, high = sorted((q, p))
    assert harness.percentile(values, low) <= harness.percentile(values, high)


@given(values=VALUES)
def test_percentiles_begin_at_the_minimum_pass_the_median_and_end_at_the_maximum(values: list[float]) -> None:
    assert harness.percentile(values, 0) == min(values)
    assert harness.percentile(values, 50) == pytest.approx(statistics.median(values), abs=1e-3)
    assert harness.percentile(values, 100) == max(values)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_percentiles_agree_with_the_standard_library(values: list[float]) -> None:
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    assert [harness.percentile(values, q) for q in range(10, 100, 10)] == pytest.approx(deciles, abs=1e-6)


@pytest.mark.parametrize(("values", "q"), [([], 50), ([1.0], -1), ([1.0], 100.5)], ids=["empty", "below", "above"])
def test_a_percentile_that_does_not_exist_is_refused(values: list[float], q: float) -> None:
    with pytest.raises(ValueError, match="needs a value and 0 <= q <= 100"):
        harness.percentile(values, q)


def test_the_result_file_says_what_ran_where_and_what_came_out(tmp_path: Path) -> None:
    out = tmp_path / "results" / "sample.json"
    parser = harness.arguments("sample", "A sample.")
    parser.add_argument("--jobs", type=int, default=10)
    args = parser.parse_args(["--out", str(out), "--seed", "7", "--quick", "--jobs", "3"])

    result = harness.record("sample", args, lambda: {"decisions_per_s": 12.5})

    written = json.loads(out.read_text(encoding="utf-8"))
    assert written == result
    assert written["benchmark"] == "sample"
    assert written["seed"] == 7
    assert written["arguments"] == {"quick": True, "jobs": 3}
    assert written["measured"] == {"decisions_per_s": 12.5}
    assert written["machine"]["cores"] == os.cpu_count()
    assert written["machine"]["memory_bytes"] > 0
    assert {"cpu", "python", "platform"} <= written["machine"].keys()
    assert {"rollmux", "rich", "typer"} <= written["packages"].keys()
    assert written["git"] is None or written["git"].keys() == {"commit", "dirty"}
    assert written["wall_s"] > 0


@pytest.mark.parametrize(("words", "kept"), [([], ["sample.json"]), (["--quick"], [])])
def test_a_quick_run_takes_no_recorded_results_place(
    words: list[str], kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    harness.record("sample", harness.arguments("sample", "A sample.").parse_args(words), dict)
    assert [path.name for path in tmp_path.iterdir()] == kept


def test_a_result_that_is_not_a_number_is_not_written(tmp_path: Path) -> None:
    args = harness.arguments("sample", "A sample.").parse_args(["--out", str(tmp_path / "sample.json")])
    with pytest.raises(ValueError, match="not JSON compliant"):
        harness.record("sample", args, lambda: {"ratio": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not tell how busy it is")
def test_work_of_other_processes_is_seen_in_the_result(tmp_path: Path) -> None:
    args = harness.arguments("sample", "A sample.").parse_args(["--out", str(tmp_path / "sample.json")])
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    def wait() -> dict[str, object]:
        time.sleep(1)
        return {}

    try:
        cores = harness.record("sample", args, wait)["other_cpu_cores"]
    finally:
        other.kill()
        other.wait()
    assert isinstance(cores, float)
    assert cores > 0.3


def test_a_callable_that_takes_four_times_as_long_is_seen_as_slower() -> None:
    timing = harness.alternate(lambda: time.sleep(0.03), lambda: time.sleep(0.12), rounds=5)

    summary = timing.summary()
    low, middle, high = (summary[f"ratio_{name}"] for name in ("min", "median", "max"))
    assert isinstance(low, float)
    assert isinstance(middle, float)
    assert isinstance(high, float)
    assert low <= middle <= high
    assert middle > 1.3


def test_the_two_callables_take_turns_after_one_call_that_does_not_count() -> None:
    calls: list[str] = []
    timing = harness.alternate(lambda: calls.append("A"), lambda: calls.append("B"), rounds=3)
    assert "".join(calls) == "AB" * 4
    assert len(timing.a_s) == len(timing.b_s) == 3


def test_the_collector_is_off_during_a_timed_call_and_on_after_it_even_if_the_call_fails() -> None:
    during: list[bool] = []
    harness.seconds(lambda: during.append(gc.isenabled()))
    with pytest.raises(ZeroDivisionError):
        harness.seconds(lambda: 1 / 0)
    assert during == [False]
    assert gc.isenabled()


def test_a_table_shows_its_columns_and_rounds_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    harness.table([{"policy": "best fit", "cost": 1.2345678}, {"policy": "first fit", "cost": 123456.7}])
    printed = capsys.readouterr().out
    for text in ("policy", "cost", "best fit", "1.23457", "123,457"):
        assert text in printed

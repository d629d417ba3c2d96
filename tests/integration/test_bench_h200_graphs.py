"""The benchmark of graphs by captured size, rehearsed with simulated engines."""

import json
from pathlib import Path

import pytest

from benchmarks._h200_buckets import steps_between
from benchmarks._h200_trace import PHASES, make_trace
from benchmarks.h200_graphs import main, without_probe
from canaryctl.common.metrics import Signal
from canaryctl.gates.samples import Histogram, HistogramSet, Labels, Scrape, Series
from canaryctl.runtimes.engines.base import Launch

INF = float("inf")


def test_four_grids_and_the_cost_are_measured(tmp_path: Path) -> None:
    argv = ["--simulated", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    assert main([*argv, "--pairs", "1", "--cell", "0.1", "--parity", "nine"]) == 0
    results = json.loads((tmp_path / "out" / "h200_graphs.json").read_text())
    totals = {name: found["steps"]["total"] for name, found in results["engines"].items()}
    assert set(totals) == {"eager", "piecewise", "default", "nine", "planned"}
    assert totals["eager"]["hit"] == 0
    assert totals["default"]["full"] == totals["piecewise"]["piecewise"] == 1
    assert totals["nine"]["beyond"] > 0.02, "60 at once are more than its 48"
    assert totals["nine"]["fallback"] == totals["default"]["beyond"] == 0
    assert {found["failed"] for found in results["engines"].values()} == {0}
    assert set(results["overhead"]) == {"1", "8", "40"}
    assert set(results["parity"]) == {"nine"}
    page = (tmp_path / "out" / "h200_graphs.md").read_text()
    assert "| nine |" in page
    assert "| nine | 160 | 0 | 0 |" in page, "the answers are those of the eager runtime"
    assert "| FULL | 48 |" in page
    _, _, forecast = page.partition("## The planner's forecast")
    rows = {
        name: cells
        for line in forecast.partition("\n## ")[0].splitlines()
        if len(cells := line.strip("| ").split(" | ")) == 5
        for name in cells[:1]
    }
    # Of an engine that was started beside others, memory and capture are not its own.
    assert rows["nine"][1:4] == ["18", "not said", "not said"]
    assert " / " in rows["planned"][2]
    for name in ("piecewise", "default", "nine", "planned"):
        foretold, measured = map(float, rows[name][4].partition(" (")[0].split(" / "))
        assert foretold == pytest.approx(measured, rel=0.15), "the simulated engine's own steps"
    assert results["not_run"] == []


def test_without_time_nothing_is_begun_and_that_is_said(tmp_path: Path) -> None:
    argv = ["--simulated", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    assert main([*argv, "--limit", "5"]) == 1
    results = json.loads((tmp_path / "out" / "h200_graphs.json").read_text())
    assert results["engines"] == {}
    assert "start the engines: it may take 170 s" in results["not_run"][0]


def test_the_trace_is_the_same_each_time_and_goes_beyond_the_nine_sizes() -> None:
    trace = make_trace(PHASES)
    assert trace == make_trace(PHASES)
    assert trace != make_trace(PHASES, seed=2)
    at_once = max(sum(r.at_s == other.at_s for r in trace) for other in trace)
    assert at_once == 100
    assert trace[-1].at_s < 24


def test_ratios_are_of_the_steps_between_two_scrapes() -> None:
    def labels(mode: str, bucket: int, pure: str, reason: str = "") -> Labels:
        said = {"mode": mode, "bucket": str(bucket), "pure_decode": pure, "reason": reason}
        return tuple(sorted(said.items()))

    counts = {
        labels("FULL", 8, "true"): (60, 420, 480),
        labels("PIECEWISE", 8, "true"): (20, 140, 160),
        labels("NONE", 0, "true", "beyond_grid"): (15, 900, 900),
        labels("NONE", 0, "true", "unknown"): (5, 30, 30),
        labels("PIECEWISE", 512, "false"): (10, 4000, 5120),
        labels("NONE", 0, "unknown", "unknown"): (10, 60, 60),
    }

    def scrape(at: float, times: int) -> Scrape:
        signals = (Signal.STEPS, Signal.TOKENS_ACTUAL, Signal.TOKENS_PADDED)
        step_times = Histogram(((0.002, 3 * times), (0.004, 9 * times), (INF, 9 * times)), times)
        return Scrape(
            "one",
            at,
            {
                **{
                    signal: Series({k: (1 + times) * v[i] for k, v in counts.items()})
                    for i, signal in enumerate(signals)
                },
                Signal.STEP_TIME: HistogramSet({(("bucket", "8"), ("mode", "FULL")): step_times}),
            },
        )

    found = steps_between(scrape(1, 0), scrape(2, 1))
    assert found["total"] == {
        "steps": 120,
        "pure": 100,
        "unknown": 10,
        "hit": 0.8,
        "full": 0.6,
        "piecewise": 0.2,
        "fallback": 0.05,
        "beyond": 0.15,
        "padding": 6750 / 5550 - 1,
    }
    first = found["buckets"][0]
    assert (first["mode"], first["bucket"], first["step_s"]) == ("FULL", 8, 0.004)
    assert first["mean_s"] == pytest.approx(1 / 9), "the sum over the count"
    assert [row["steps"] for row in found["buckets"]] == [60, 20, 10, 30]


def test_the_engine_beside_has_no_probe() -> None:
    launch = Launch(("python", "--cudagraph-metrics", "--port=1"), {"A": "b"}, ("/probe",))
    assert without_probe(launch) == Launch(("python", "--port=1"), {"A": "b"}, ())

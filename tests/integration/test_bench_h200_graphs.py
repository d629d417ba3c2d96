"""The benchmark of graphs by captured size, rehearsed with simulated engines."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import h200_graphs
from benchmarks._h200_attested import attested_table
from benchmarks._h200_buckets import steps_between
from benchmarks._h200_forecast import mean_step_s
from benchmarks._h200_trace import PHASES, make_trace
from benchmarks.h200_graphs import main, without_probe
from canaryctl.common.errors import PermanentError
from canaryctl.common.metrics import Signal
from canaryctl.controller.baseline.figures import DecodeSteps
from canaryctl.gates.samples import Histogram, HistogramSet, Labels, Scrape, Series
from canaryctl.runtimes.engines.base import Launch
from canaryctl.runtimes.grid.calibration import packaged
from canaryctl.runtimes.grid.cost import CostModel
from canaryctl.runtimes.placements.base import Handle, InstanceRequest
from canaryctl.runtimes.placements.process import ProcessPlacement
from canaryctl.runtimes.simulator.cost import calibrated
from tests.support.cli import Cli, eventually

ROOT = Path(__file__).parents[2]
INF = float("inf")


def test_four_grids_and_the_cost_are_measured(tmp_path: Path) -> None:
    argv = ["--simulated", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    argv += ["--calibration", str(simulated_costs(tmp_path / "simulated.json"))]
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
    sizes = "1,2,4,8,12,16,24,32,48"
    assert f"| nine | graph_sizes | {sizes} | {sizes} | passed |" in page
    assert "| default | graph_sizes | 35, from 1 to 256 | 35, from 1 to 256 | passed |" in page
    assert "| eager | graph_mode | NONE | NONE | passed |" in page
    _, _, forecast = page.partition("## The planner's forecast")
    rows = {
        name: cells
        for line in forecast.partition("\n## ")[0].splitlines()
        if len(cells := line.strip("| ").split(" | ")) == 6
        for name in cells[:1]
    }
    # Of an engine that was started beside others, memory and capture are not its own.
    assert rows["nine"][1:4] == ["18", "not said", "not said"]
    assert " / " in rows["planned"][2]
    for name in ("piecewise", "default", "nine", "planned"):
        foretold, measured = map(float, rows[name][4].partition(" (")[0].split(" / "))
        assert foretold == pytest.approx(measured, rel=0.15), "the simulated engine's own steps"
    assert results["not_run"] == []


def simulated_costs(path: Path) -> Path:
    """A calibration whose steps are those of the simulated engine, which runs as another one did
    than that of the packaged calibration."""
    cost = calibrated()
    curves = {
        "FULL": cost.full,
        "PIECEWISE": cost.piecewise,
        "NONE": cost.no_graph,
        "EAGER": cost.eager,
    }
    steps = {
        mode: {size: curve.at(size) * 1000 for size in curve.sizes}
        for mode, curve in curves.items()
    }
    path.write_text(replace(packaged(), engine="simulated", step_ms=steps).to_json())
    return path


def test_without_time_nothing_is_begun_and_that_is_said(tmp_path: Path) -> None:
    argv = ["--simulated", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    assert main([*argv, "--limit", "5"]) == 1
    results = json.loads((tmp_path / "out" / "h200_graphs.json").read_text())
    assert results["engines"] == {}
    assert "start eager: it may take 170 s" in results["not_run"][0]


class NoPiecewise(ProcessPlacement):
    def ensure(self, request: InstanceRequest) -> Handle:
        if request.instance.endswith("piecewise"):
            raise PermanentError("there is no room for it")
        return super().ensure(request)


def test_what_was_measured_outlives_engines_and_a_page_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_page(*_: object) -> str:
        raise ZeroDivisionError

    out, state = tmp_path / "out", tmp_path / "work" / "state"
    argv = ["--simulated", "--out", str(out), "--work", str(tmp_path / "work"), "--pairs", "0"]
    argv += ["--parity", "piecewise"]
    two = {name: h200_graphs.GRIDS[name] for name in ("piecewise", "eager")}
    monkeypatch.setattr(h200_graphs, "GRIDS", two)
    monkeypatch.setattr(h200_graphs, "ProcessPlacement", NoPiecewise)
    with monkeypatch.context() as broken:
        broken.setattr(h200_graphs, "page", no_page)
        with pytest.raises(ZeroDivisionError):
            main(argv)
    results = json.loads((out / "h200_graphs.json").read_text())
    assert results["not_run"][0] == "start piecewise: PermanentError: there is no room for it"
    assert set(results["engines"]) == {"eager"}
    assert results["engines"]["eager"]["failed"] == 0
    assert leftovers(state) == []
    assert main(["--out", str(out), "--page"]) == 0
    page = (out / "h200_graphs.md").read_text()
    assert "Not done: start piecewise: PermanentError: there is no room for it" in page
    assert "| eager | graph_mode | NONE | NONE | passed |" in page


def leftovers(state: Path) -> list[str]:
    """What is still written down to be stopped, and what runs of it."""
    running = [path.stem for path in (state / "baselines" / "running").glob("*.json")]
    return running + Cli(state).left_over()


def test_asked_to_end_it_leaves_no_engine(tmp_path: Path) -> None:
    out, state = tmp_path / "out", tmp_path / "work" / "state"
    argv = [sys.executable, "-m", "benchmarks.h200_graphs", "--simulated"]
    argv += ["--out", str(out), "--work", str(tmp_path / "work")]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as bench:
        eventually("all engines", lambda: len(leftovers(state)) >= 5 + 5, timeout_s=60)
        bench.terminate()
        said, _ = bench.communicate(timeout=60)
    assert bench.returncode == 1
    assert "the rest: not done: it was interrupted" in said
    assert leftovers(state) == []
    assert "Not done: " in (out / "h200_graphs.md").read_text()


def test_a_table_shows_both_sides_of_what_is_not_as_declared() -> None:
    """And at length where they differ."""
    sizes = ",".join(map(str, range(1, 21)))
    engine = {
        "declared": {"graph_sizes": sizes, "torch_version": "2.11.0", "gpu_model": "H200"},
        "attested": {"graph_sizes": f"{sizes},24", "torch_version": "2.11.0+cu130"},
    }
    rows = attested_table({"one": engine}).splitlines()[2:]
    assert rows == [
        f"| one | graph_sizes | {sizes} | {sizes},24 | failed |",
        "| one | torch_version | 2.11.0 | 2.11.0+cu130 | passed |",
        "| one | gpu_model | H200 | not told | inconclusive |",
    ]


def test_steps_beyond_the_grid_are_foretold_from_their_decodes_alone() -> None:
    """Two of 50 sequences, and one with a prompt of 4000 tokens, which took no part in the time."""
    known = packaged()
    longer = {**known.step_ms, "NONE": {1: 10.0, 100: 20.0, 2000: 60.0}}
    cost = CostModel(replace(known, step_ms=longer, noise_ms={"FULL": 0.3, "NONE": 6.0}))
    found = mean_step_s(cost, [DecodeSteps("NONE", 0, steps=2, tokens=100, mean_s=0.02)])
    assert found == (cost.no_graph_s(50, pure_decode=True), 0.02, 0.006)
    assert found[0] < cost.no_graph_s(1367, pure_decode=True)
    eager = mean_step_s(cost, [DecodeSteps("NONE", 0, 2, 100, 0.02)], compiled=False)
    assert eager is not None
    assert eager.noise_s is None, "it does not state that of EAGER"


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
    assert [row["steps"] for row in found["buckets"]] == [60, 20, 10, 30]
    decodes = {(one["mode"], one["bucket"]): one for one in found["decodes"]}
    assert decodes["FULL", 8]["mean_s"] == pytest.approx(1 / 9), "the sum over the count"
    asked = {at: one["tokens"] for at, one in decodes.items()}
    assert asked == {("FULL", 8): 420, ("PIECEWISE", 8): 140, ("NONE", 0): 930}


def test_the_engine_beside_has_no_probe() -> None:
    launch = Launch(("python", "--cudagraph-metrics", "--port=1"), {"A": "b"}, ("/probe",))
    assert without_probe(launch) == Launch(("python", "--port=1"), {"A": "b"}, ())

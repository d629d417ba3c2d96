"""The adapter on what vLLM 0.25.1 really said on an H200: logs and metrics pages, as recorded."""

from pathlib import Path

import pytest

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.samples import Histogram, Missing, Series, Value
from canaryctl.gates.sources.exposition import read_page
from canaryctl.runtimes.engines.base import LogFacts, Stage
from canaryctl.runtimes.engines.vllm import VllmEngine

RECORDS = Path(__file__).parents[1] / "data" / "vllm" / "0.25.1-h200"
VERSION = "0.25.1"
ENGINE = VllmEngine()
MIB = 2**20


def facts(name: str) -> LogFacts:
    lines = (RECORDS / f"engine-{name}.log").read_text().splitlines()
    return ENGINE.read_log(lines, VERSION)


def values(name: str) -> dict[AnySignal, Value]:
    page = read_page((RECORDS / f"metrics-{name}.txt").read_text(), ENGINE.metrics(VERSION))
    return dict(page.values)


def steps(name: str) -> dict[tuple[str, str, str], float]:
    """(mode, pure decode, reason) → engine steps."""
    found = values(name)[Signal.STEPS]
    assert isinstance(found, Series)
    totals: dict[tuple[str, str, str], float] = {}
    for labels, count in found.values.items():
        named = dict(labels)
        key = (named["mode"], named["pure_decode"], named["reason"])
        totals[key] = totals.get(key, 0) + count
    return totals


def test_the_log_tells_stages_memory_and_capacity() -> None:
    graphs = facts("graphs")
    assert set(graphs.stages) >= {Stage.LOADED, Stage.COMPILED, Stage.CAPTURED}
    assert graphs.stage_seconds["capture"] == pytest.approx(3, abs=0.5)
    assert graphs.stage_seconds["compile"] == pytest.approx(21.4, abs=1)
    assert graphs.graph_bytes == pytest.approx(246 * MIB, rel=0.03)
    assert graphs.weights_bytes == pytest.approx(1147 * MIB, rel=0.03)
    assert graphs.kv_cache_tokens == 243_616
    assert graphs.kv_cache_bytes == pytest.approx(26.02 * 1024 * MIB, rel=1e-3)
    assert not graphs.out_of_memory


def test_the_probe_has_the_core_say_exactly_what_its_graphs_took() -> None:
    planned = facts("planned")
    assert planned.stage_seconds["capture"] == 2.121
    assert planned.graph_bytes == pytest.approx(150 * MIB, abs=1024)
    sizes = "1,4,6,8,9,10,48,64,76,84,100,129,159,194"
    assert planned.resolved["graph_mode"] == "FULL_AND_PIECEWISE"
    assert planned.resolved["graph_sizes"] == sizes
    assert Stage.CAPTURED in planned.stages
    assert not planned.fatal


def test_a_smaller_grid_captures_less() -> None:
    nine, graphs = facts("nine"), facts("graphs")
    assert nine.graph_bytes is not None
    assert graphs.graph_bytes is not None
    assert nine.graph_bytes < graphs.graph_bytes / 2


def test_eager_captures_nothing() -> None:
    eager = facts("eager")
    assert eager.graph_bytes is None
    assert "capture" not in eager.stage_seconds


def test_running_out_of_memory_in_capture_is_seen() -> None:
    oom = facts("oom-capture")
    assert "CUDA out of memory" in oom.out_of_memory[0]
    assert Stage.CAPTURED not in oom.stages


LATER = {
    *(Signal.PREFILL, Signal.SHAPES, Signal.STEP_TIME),
    *(Signal.STARTUP, Signal.MEMORY, Signal.ATTESTATION),
    *(Signal.PREFIX_QUERIES, Signal.PREFIX_HITS, Signal.PREEMPTIONS),
}
"""What the probe did not export yet, or was not kept, when these pages were recorded."""


@pytest.mark.parametrize("name", ["eager", "graphs", "nine"])
def test_what_the_older_probe_exported_is_read_and_the_rest_is_missing(name: str) -> None:
    missing = {s for s, value in values(name).items() if isinstance(value, Missing)}
    assert missing == LATER
    ttft = values(name)[Signal.TTFT]
    assert isinstance(ttft, Histogram)
    assert ttft.count > 100


def test_steps_tell_graphs_from_eager() -> None:
    graphs, eager, nine = steps("graphs"), steps("eager"), steps("nine")
    assert sum(n for (mode, _, _), n in graphs.items() if mode == "FULL") > 1000
    assert {mode for mode, _, _ in eager} == {"NONE"}
    beyond = sum(n for (mode, _, reason), n in nine.items() if reason == "beyond_grid")
    replayed = sum(n for (mode, _, _), n in nine.items() if mode == "FULL")
    assert beyond > 100
    assert replayed > 100


def test_the_engine_reports_its_own_grid() -> None:
    found = values("nine")[Signal.GRID]
    assert isinstance(found, Series)
    sizes = {dict(labels)["sizes"] for labels in found.values}
    assert sizes == {"1,2,4,8,12,16,24,32,48"}

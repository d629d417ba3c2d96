"""What graphs cost, found again from what engines said they took."""

import csv
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.common.errors import InputError
from canaryctl.runtimes.grid.calibration import Calibration, GraphCost, PoolCost
from canaryctl.runtimes.grid.cost import MIB, CostModel
from canaryctl.runtimes.grid.fit import CaptureRun, GraphFit, fit_graph_cost
from canaryctl.runtimes.grid.runs import About, MeasuredRun, calibration_of
from canaryctl.runtimes.simulator.graphs import GraphSet
from tests.support.grids import calibration

DEFAULT = (1, 2, 4, *range(8, 257, 8))
# One H200, vLLM 0.25.1 with model runner V1, max_num_seqs 128: docs/benchmarks/h200_baseline.md.
MEASURED = (
    ("default", "FULL_AND_PIECEWISE", DEFAULT, 244.0, 3.043),
    ("piecewise", "PIECEWISE", DEFAULT, 190.0, 2.701),
    ("few", "FULL_AND_PIECEWISE", (1, 2, 4, 8, 12, 16, 24, 32, 48), 84.0, 1.992),
    ("dense", "FULL_AND_PIECEWISE", tuple(range(1, 65)), 376.0, 8.935),
)
PLANNED = (
    ((1, 4, 5, 9, 48, 64, 76, 84, 100, 137, 177, 249, 308), 138.0),
    ((1, 4, 5, 6, 7, 8, 10, 48, 64, 76, 83, 100, 148, 186, 251, 366), 162.0),
    ((1, 4, 5, 7, 8, 9, 10, 48, 64, 76, 83, 100, 131, 153, 193), 148.0),
    ((1, 4, 6, 8, 9, 10, 48, 64, 76, 84, 100, 129, 159, 194), 150.0),
)
CAPTURES = Path(__file__).parents[1] / "data" / "vllm" / "0.25.1-h200" / "captures.csv"


def graphs(mode: str, sizes: tuple[int, ...]) -> GraphSet:
    return GraphSet.of(mode, sizes, 128)


def run(name: str, mode: str, sizes: tuple[int, ...], mib: float, seconds: float) -> CaptureRun:
    found = graphs(mode, sizes)
    return CaptureRun(name, found.full, found.piecewise, mib, seconds)


def model(fit: GraphFit) -> CostModel:
    found: Calibration = calibration(full=fit.cost, piecewise=fit.cost, pool=fit.pool)
    return CostModel(found)


def captured() -> Mapping[str, CaptureRun]:
    """By grid what its starts took in the mean, of engines that had their GPU for themselves."""
    found: dict[str, list[CaptureRun]] = {}
    with CAPTURES.open() as lines:
        for row in csv.DictReader(lines):
            if not row["beside"].startswith("idle engines"):
                sizes = tuple(map(int, row["sizes"].split()))
                took = float(row["mib"]), float(row["seconds"])
                found.setdefault(row["grid"], []).append(run("", row["mode"], sizes, *took))
    return {
        name: CaptureRun(
            name,
            starts[0].full,
            starts[0].piecewise,
            fmean(start.graph_mib for start in starts),
            fmean(start.capture_s for start in starts),
        )
        for name, starts in found.items()
    }


def test_memory_of_grids_that_were_not_measured_is_foretold_within_15_percent() -> None:
    cost = model(fit_graph_cost([run(*measured) for measured in MEASURED]))
    for sizes, mib in PLANNED:
        foretold = cost.graph_bytes(graphs("FULL_AND_PIECEWISE", sizes)) / MIB
        assert foretold == pytest.approx(mib, rel=0.15)


def test_the_capture_of_a_grid_is_foretold_by_those_of_others_within_15_percent() -> None:
    runs = captured()
    assert runs.keys() == {"default", "piecewise", "few", "dense", "sparse"}
    for name, left_out in runs.items():
        cost = model(fit_graph_cost([one for other, one in runs.items() if other != name]))
        graphs_of_it = GraphSet(left_out.full, left_out.piecewise)
        assert cost.capture_s(graphs_of_it) == pytest.approx(left_out.capture_s, rel=0.15), name


@given(
    st.sampled_from([0.0, 20.0, 40.0]), st.sampled_from([0.0, 0.15, 0.4]),
    st.sampled_from([1.0, 2.5]), st.sampled_from([0.0, 0.01]),
    st.sampled_from([0.0, 0.5]), st.sampled_from([0.03, 0.05]), st.sampled_from([0.0, 0.001]),
)  # fmt: skip
def test_costs_are_found_again(
    pool: float, largest: float, graph: float, token: float,
    once_s: float, graph_s: float, token_s: float,
) -> None:  # fmt: skip
    cost = GraphCost(0.0, graph, token, 0.0, graph_s, token_s)
    truth = model(GraphFit(cost, PoolCost(pool, largest, once_s), 0.0))
    runs = []
    for name, mode, sizes, _, _ in (*MEASURED, ("sparse", "PIECEWISE", (8, 64, 512), 0, 0)):
        found = graphs(mode, sizes)
        mib, seconds = truth.graph_bytes(found) / MIB, truth.capture_s(found)
        runs.append(CaptureRun(name, found.full, found.piecewise, mib, seconds))
    fit = fit_graph_cost(runs)
    assert fit.error < 1e-3
    for sizes, _ in PLANNED:
        found = graphs("FULL_AND_PIECEWISE", sizes)
        assert model(fit).graph_bytes(found) == pytest.approx(truth.graph_bytes(found), rel=0.01)
        assert model(fit).capture_s(found) == pytest.approx(truth.capture_s(found), rel=0.01)


def test_a_grid_without_graphs_has_no_pool() -> None:
    cost = model(GraphFit(GraphCost(0, 2, 0, 0, 0.1, 0), PoolCost(30, 0.1, 0.5), 0.0))
    assert cost.graph_bytes(GraphSet.of("NONE", (), 128)) == 0
    assert cost.capture_s(GraphSet.of("NONE", (), 128)) == 0
    assert cost.capture_s(graphs("PIECEWISE", (8,))) == pytest.approx(0.6)
    assert cost.graph_bytes(graphs("PIECEWISE", (8,))) == pytest.approx((30 + 0.8 + 2) * MIB)


def test_two_grids_are_too_few() -> None:
    with pytest.raises(InputError, match="found 2 runs with graphs, expected 3"):
        fit_graph_cost([run(*measured) for measured in MEASURED[:2]])


def test_a_slow_engine_is_slow_with_graphs_and_without() -> None:
    """What it alone ran, beyond its grid, is brought to the others' level too."""
    truth = {"FULL": 2.0, "PIECEWISE": 5.0, "NONE": 15.0, "EAGER": 20.0}
    runs = [
        MeasuredRun("eager", "NONE", (), 128, [(8, truth["EAGER"])]),
        MeasuredRun("default", MEASURED[0][1], DEFAULT, 128, [(8, 2.0), (64, 2.0)], 244.0, 3.0),
        MeasuredRun("piecewise", "PIECEWISE", DEFAULT, 128, [(8, 5.0)], 190.0, 2.7),
        MeasuredRun("few", MEASURED[2][1], MEASURED[2][2], 128, [(8, 2.6), (64, 19.5)], 84.0, 2.0),
    ]
    about = About("a GPU", "an engine", "a model", "made up", "", 1.0, 100, 1000)
    found = calibration_of(runs, about)
    assert found.step_ms["NONE"] == pytest.approx({64: truth["NONE"]})
    assert found.step_ms["FULL"] == pytest.approx({8: 2.0, 64: 2.0})
    assert found.noise_ms == pytest.approx({"FULL": 0.6 / 2**0.5}, abs=1e-3)

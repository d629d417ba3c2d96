"""What graphs cost, found again from what engines said they took."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.h200_calibration import PLANNED, captures, foretold_by_others, page
from benchmarks.h200_calibration import calibration as calibration_of_h200
from canaryctl.common.errors import InputError
from canaryctl.runtimes.grid.calibration import Calibration, GraphCost, PoolCost, packaged
from canaryctl.runtimes.grid.cost import MIB, CostModel
from canaryctl.runtimes.grid.fit import CaptureRun, GraphFit, fit_graph_cost
from canaryctl.runtimes.grid.runs import About, MeasuredRun, calibration_of
from canaryctl.runtimes.simulator.graphs import GraphSet
from tests.support.grids import calibration

DEFAULT = (1, 2, 4, *range(8, 257, 8))
# An H200, vLLM 0.25.1 with model runner V1, max_num_seqs 128; one start each.
MEASURED = (
    ("default", "FULL_AND_PIECEWISE", DEFAULT, 244.0, 3.043),
    ("piecewise", "PIECEWISE", DEFAULT, 190.0, 2.701),
    ("few", "FULL_AND_PIECEWISE", (1, 2, 4, 8, 12, 16, 24, 32, 48), 84.0, 1.992),
    ("dense", "FULL_AND_PIECEWISE", tuple(range(1, 65)), 376.0, 8.935),
)


def graphs(mode: str, sizes: tuple[int, ...]) -> GraphSet:
    return GraphSet.of(mode, sizes, 128)


def run(name: str, mode: str, sizes: tuple[int, ...], mib: float, seconds: float) -> CaptureRun:
    found = graphs(mode, sizes)
    return CaptureRun(name, found.full, found.piecewise, mib, seconds)


def model(fit: GraphFit) -> CostModel:
    found: Calibration = calibration(full=fit.cost, piecewise=fit.cost, pool=fit.pool)
    return CostModel(found)


def test_memory_of_planned_grids_is_foretold_within_15_percent() -> None:
    """They took no part in the calibration."""
    cost = CostModel(packaged())
    for sizes, mib in PLANNED:
        foretold = cost.graph_bytes(graphs("FULL_AND_PIECEWISE", sizes)) / MIB
        assert foretold == pytest.approx(mib, rel=0.15)


def test_the_packaged_calibration_is_made_of_the_recorded_starts() -> None:
    made = calibration_of_h200()
    assert made == packaged()
    shown = Path(__file__).parents[2] / "docs" / "benchmarks" / "h200_calibration.md"
    assert page(made) == shown.read_text("utf-8")


def test_beyond_the_largest_that_was_measured_the_pool_grows_no_more() -> None:
    measured = [run("", mode, sizes, mib, s) for _, mode, sizes, mib, s in MEASURED]
    pool = fit_graph_cost(measured).pool
    assert pool.most_tokens == 256
    cost = CostModel(calibration(pool=PoolCost(10, 0.5, 0.0, 256)))
    assert cost.pool_bytes(256) == cost.pool_bytes(512) == pytest.approx(138 * MIB)
    assert cost.pool_bytes(8) == pytest.approx(14 * MIB)


def test_the_capture_of_a_grid_is_foretold_by_those_of_others_within_15_percent() -> None:
    """On both hosts together, as docs/benchmarks/h200_calibration.md shows."""
    taken = captures()
    assert taken.keys() == {"default", "piecewise", "few", "dense", "sparse"}
    for name, (_, seconds) in taken.items():
        assert foretold_by_others(name, taken) == pytest.approx(fmean(seconds), rel=0.15), name


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
    for name, mode, sizes, _, _ in (*MEASURED, ("spread", "PIECEWISE", (8, 64, 512), 0, 0)):
        found = graphs(mode, sizes)
        mib, seconds = truth.graph_bytes(found) / MIB, truth.capture_s(found)
        runs.append(CaptureRun(name, found.full, found.piecewise, mib, seconds))
    fit = fit_graph_cost(runs)
    assert fit.error < 0.05
    for sizes, _ in PLANNED:
        found = graphs("FULL_AND_PIECEWISE", sizes)
        assert model(fit).graph_bytes(found) == pytest.approx(truth.graph_bytes(found), rel=0.05)
        assert model(fit).capture_s(found) == pytest.approx(truth.capture_s(found), rel=0.05)


def test_a_grid_without_graphs_has_no_pool() -> None:
    cost = model(GraphFit(GraphCost(0, 2, 0, 0, 0.1, 0), PoolCost(30, 0.1, 0.5), 0.0))
    assert cost.graph_bytes(GraphSet.of("NONE", (), 128)) == 0
    assert cost.capture_s(GraphSet.of("NONE", (), 128)) == 0
    assert cost.capture_s(graphs("PIECEWISE", (8,))) == pytest.approx(0.6)
    assert cost.graph_bytes(graphs("PIECEWISE", (8,))) == pytest.approx((30 + 0.8 + 2) * MIB)


def test_two_grids_are_too_few() -> None:
    two = [run(*measured) for measured in MEASURED[:2]]
    for runs in (two, [*two, two[0]]):
        with pytest.raises(InputError, match="found 2 grids whose graphs' memory is known, expe"):
            fit_graph_cost(runs)
    untimed = replace(run(*MEASURED[2]), capture_s=None)
    with pytest.raises(InputError, match="found 2 grids whose graphs' time is known"):
        fit_graph_cost([*two, untimed])


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
    # Rounds of one engine tell nothing of another: their mean counts, and PIECEWISE ran on one.
    runs[2] = replace(runs[2], step_ms=[(8, 4.0), (8, 6.0)])
    runs[3] = replace(runs[3], step_ms=[(8, 2.4), (8, 2.8), (64, 19.5)])
    in_rounds = calibration_of(runs, about)
    assert in_rounds.noise_ms == found.noise_ms
    assert in_rounds.step_ms == found.step_ms

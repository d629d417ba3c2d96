"""The simulated costs against the measurements they come from."""

import math
from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.runtimes.engines.grid import vllm_default_sizes
from canaryctl.runtimes.simulator.config import SimulatorConfig
from canaryctl.runtimes.simulator.cost import (
    MIB,
    CostModel,
    calibrated,
    calibration,
    fit_monotone,
)
from canaryctl.runtimes.simulator.faults import ActiveFaults, Fault
from canaryctl.runtimes.simulator.graphs import Dispatch, EagerReason, GraphSet, StepMode
from canaryctl.runtimes.simulator.memory import OutOfMemoryError, plan_memory
from canaryctl.runtimes.simulator.startup import captured_graphs

DEFAULT = vllm_default_sizes(256, 8192)
NINE = (1, 2, 4, 8, 12, 16, 24, 32, 48)
NOISE_MS = 0.7  # of the measurements


def decode_ms(mode: str, batch: int, sizes: tuple[int, ...] = DEFAULT) -> float:
    graphs = GraphSet.of(mode, sizes, 256)
    dispatch = graphs.dispatch(batch, pure_decode=True)
    return 1000 * calibrated().step_s(dispatch, batch, compiled=mode != "NONE")


@pytest.mark.parametrize(
    ("mode", "batch", "measured_ms"),
    [
        ("FULL_AND_PIECEWISE", 1, 1.54),
        ("FULL_AND_PIECEWISE", 16, 2.07),
        ("FULL_AND_PIECEWISE", 48, 3.09),
        ("FULL_AND_PIECEWISE", 64, 3.16),
        ("PIECEWISE", 1, 4.82),
        ("PIECEWISE", 16, 5.01),
        ("PIECEWISE", 48, 5.21),
        ("PIECEWISE", 64, 6.27),
        ("NONE", 64, 29.07),
    ],
)
def test_decode_steps_take_what_was_measured(mode: str, batch: int, measured_ms: float) -> None:
    assert decode_ms(mode, batch) == pytest.approx(measured_ms, abs=NOISE_MS)


def test_eager_steps_take_the_mean_of_what_was_measured() -> None:
    # Launch-bound and very noisy (15 to 31 ms): no size below 64 differs from another.
    rows = next(run for run in calibration()["runs"] if run["name"] == "eager")
    measured = [ms for batch, ms in rows["decode_step_ms_by_batch"].items() if int(batch) < 64]
    for batch in (1, 16, 48):
        assert decode_ms("NONE", batch) == pytest.approx(sum(measured) / len(measured))


def test_one_above_the_largest_captured_size_falls_off_a_cliff() -> None:
    assert decode_ms("FULL_AND_PIECEWISE", 48, NINE) == pytest.approx(3.37, abs=NOISE_MS)
    assert decode_ms("FULL_AND_PIECEWISE", 49, NINE) == pytest.approx(14.59, abs=NOISE_MS)


def test_padding_costs_what_the_padded_size_costs() -> None:
    assert decode_ms("FULL_AND_PIECEWISE", 33, NINE) == decode_ms("FULL_AND_PIECEWISE", 48, NINE)


def test_a_step_is_faster_with_a_full_graph_than_piecewise_than_without_than_eager() -> None:
    cost = calibrated()
    for size in DEFAULT:
        full, piecewise = cost.full.at(size), cost.piecewise.at(size)
        assert full < piecewise < cost.no_graph.at(size) < cost.eager.at(size)


@given(st.integers(1, 8192), st.integers(1, 8192))
def test_no_step_gets_faster_with_more_tokens(one: int, other: int) -> None:
    small, large = sorted((one, other))
    cost = calibrated()
    for curve in (cost.full, cost.piecewise, cost.no_graph, cost.eager):
        assert curve.at(small) <= curve.at(large)
    beyond = Dispatch(StepMode.NONE, 0, EagerReason.BEYOND_GRID)
    for compiled in (True, False):
        assert cost.step_s(beyond, small, compiled=compiled) <= cost.step_s(
            beyond, large, compiled=compiled
        )


def test_prefill_beyond_the_grid_is_bound_by_computing_in_the_end() -> None:
    cost = calibrated()
    beyond = Dispatch(StepMode.NONE, 0, EagerReason.BEYOND_GRID)
    one, two = (cost.step_s(beyond, tokens, compiled=True) for tokens in (8192, 16384))
    assert two == pytest.approx(2 * one)


@pytest.mark.parametrize("name", ["default", "piecewise"])
def test_capture_takes_the_time_and_memory_measured(name: str) -> None:
    run = next(run for run in calibration()["runs"] if run["name"] == name)
    graphs = GraphSet.of(run["mode"], DEFAULT, 512)
    assert calibrated().capture_s(graphs) == pytest.approx(run["capture_s"], rel=0.01)
    assert calibrated().graph_bytes(graphs) == pytest.approx(run["graph_mib"] * MIB, rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.001, 1)), min_size=1, max_size=40))
def test_monotone_fit_is_monotone_and_keeps_the_mean(points: list[tuple[int, float]]) -> None:
    curve = fit_monotone(points)
    assert all(low <= high + 1e-12 for low, high in pairwise(curve.seconds))
    fitted = sum(curve.at(size) for size, _ in points)
    assert fitted == pytest.approx(sum(seconds for _, seconds in points))


def test_monotone_fit_leaves_monotone_points_alone() -> None:
    points = [(1, 0.1), (4, 0.2), (9, 0.7)]
    curve = fit_monotone(points)
    assert [(size, curve.at(size)) for size, _ in points] == points
    assert curve.at(5) == pytest.approx(0.3)


@given(
    mode=st.sampled_from(["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]),
    tokens=st.integers(1, 600),
    pure_decode=st.booleans(),
    max_num_seqs=st.integers(1, 300),
)
def test_dispatch_takes_the_smallest_graph_that_holds_the_step(
    mode: str, tokens: int, pure_decode: bool, max_num_seqs: int
) -> None:
    graphs = GraphSet.of(mode, DEFAULT, max_num_seqs)
    found = graphs.dispatch(tokens, pure_decode=pure_decode)
    match found.mode:
        case StepMode.FULL:
            sizes = graphs.full
            assert pure_decode or mode == "FULL"
        case StepMode.PIECEWISE:
            sizes = graphs.piecewise
        case StepMode.NONE:
            assert (found.bucket, found.reason) == (0, EagerReason.BEYOND_GRID)
            usable = [*graphs.piecewise, *(graphs.full if pure_decode or mode == "FULL" else ())]
            assert max(usable, default=0) < tokens
            return
    assert found.bucket == sizes[bisect_left(sizes, tokens)]
    assert found.reason is EagerReason.REPLAYED
    lost = graphs.dispatch(tokens, pure_decode=pure_decode, downgraded=True)
    assert lost == Dispatch(StepMode.NONE, 0, EagerReason.DOWNGRADED)


def test_a_decode_step_beyond_the_full_graphs_replays_a_piecewise_one() -> None:
    graphs = GraphSet.of("FULL_AND_PIECEWISE", (1, 2, 4, 8, 16), 4)
    assert graphs.dispatch(4, pure_decode=True).mode is StepMode.FULL
    assert graphs.dispatch(5, pure_decode=True) == Dispatch(
        StepMode.PIECEWISE, 8, EagerReason.REPLAYED
    )
    assert graphs.dispatch(4, pure_decode=False).mode is StepMode.PIECEWISE


def kv_tokens(config: SimulatorConfig, *faults: Fault) -> int:
    active = ActiveFaults(set(faults))
    graphs = captured_graphs(config, active)
    divisor = active.factor_of(Fault.SMALL_KV)
    return plan_memory(config, graphs, calibrated(), kv_divisor=divisor).kv_tokens


def test_the_kv_cache_gets_what_weights_and_graphs_leave() -> None:
    eager = SimulatorConfig(model="m", version="1", graph_mode="NONE")
    graphs = SimulatorConfig(model="m", version="1")
    lost = kv_tokens(eager) - kv_tokens(graphs)
    captured = captured_graphs(graphs, ActiveFaults())
    graph_bytes = calibrated().graph_bytes(captured)
    assert lost == pytest.approx(graph_bytes / 114688, abs=16)
    assert kv_tokens(graphs, Fault.SMALL_KV) == pytest.approx(kv_tokens(graphs) / 2, abs=16)


def test_a_gpu_without_room_for_one_request_is_refused() -> None:
    config = SimulatorConfig(model="m", version="1", memory_fraction=0.015)
    with pytest.raises(OutOfMemoryError, match="max seq len"):
        kv_tokens(config)


def test_a_reduced_grid_loses_its_larger_half() -> None:
    config = SimulatorConfig(model="m", version="1", capture_sizes=NINE)
    graphs = captured_graphs(config, ActiveFaults({Fault.GRID_REDUCED}))
    assert graphs.sizes == (1, 2, 4, 8, 12)


def test_the_calibration_says_where_it_comes_from() -> None:
    document = calibration()
    assert "H200" in document["machine"]
    assert {"measured", "read_as", "observed", "assumed"} <= set(document["provenance"])
    assert isinstance(calibrated(), CostModel)
    assert math.isfinite(calibrated().full.slope)

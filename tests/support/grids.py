"""Calibrations and problems small enough to look at every grid there is."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from hypothesis import strategies as st

from canaryctl.runtimes.grid.calibration import NO_POOL, Calibration, GraphCost, PoolCost
from canaryctl.runtimes.grid.cost import CostModel
from canaryctl.runtimes.grid.distribution import Distribution, Shapes
from canaryctl.runtimes.grid.problem import Amounts, Limits, Problem
from canaryctl.runtimes.grid.rules import EngineRules
from canaryctl.runtimes.simulator.graphs import GRAPH_MODES

MODES = tuple(mode for mode in GRAPH_MODES if mode != "NONE")
COST = GraphCost(40.0, 2.5, 0.01, 0.5, 0.03, 0.0001)


def calibration(
    step_ms: dict[str, dict[int, float]] | None = None,
    full: GraphCost = COST,
    piecewise: GraphCost = COST,
    *,
    prefill_us: float = 3.0,
    pool: PoolCost = NO_POOL,
) -> Calibration:
    return Calibration(
        machine="a machine",
        engine="an engine",
        model="a model",
        method="made up",
        assumed="all of it",
        noise_ms={"FULL": 0.1},
        step_ms=step_ms
        or {
            "FULL": {1: 1.5, 256: 5.0},
            "PIECEWISE": {1: 4.5, 256: 8.0},
            "NONE": {1: 14.0},
            "EAGER": {1: 20.0},
        },
        prefill_us_per_token=prefill_us,
        graphs={"FULL": full, "PIECEWISE": piecewise},
        graphs_error=0.0,
        kv_bytes_per_token=100_000,
        kv_cache_tokens=100_000,
        pool=pool,
    )


def every_grid(problem: Problem) -> Iterator[tuple[int, ...]]:
    indices = range(1, len(problem))
    for count in range(len(problem)):
        yield from combinations(indices, count)


def best_by_looking(problem: Problem, limits: Limits, goal: Amounts) -> float | None:
    """The least value of ``goal`` over all grids within ``limits``; None where none is."""
    values = [
        goal.dot(problem.use(grid)) for grid in every_grid(problem) if within(problem, limits, grid)
    ]
    return min(values, default=None)


def within(problem: Problem, limits: Limits, grid: Sequence[int]) -> bool:
    use = problem.use(grid)
    margin = 1 + limits.margin
    total = problem.total
    held = (
        (use.bytes / 2**20 * margin, limits.max_memory_mib),
        (use.capture_s * margin, limits.max_capture_s),
        (use.sizes, limits.max_sizes),
        (use.step_s / total, limits.max_mean_s),
    )
    if any(cap is not None and amount > cap * (1 + 1e-11) for amount, cap in held):
        return False
    if limits.max_p99_s is not None and use.over > total - -(-99 * total // 100):
        return False
    last = grid[-1] if grid else 0
    return problem.coverage(last) >= (limits.min_coverage or 0) - 1e-12


def _curve(low: float, high: float) -> st.SearchStrategy[dict[int, float]]:
    return st.fixed_dictionaries({size: st.floats(low, high) for size in (1, 4, 9, 24)})


def _graph_cost() -> st.SearchStrategy[GraphCost]:
    return st.builds(
        GraphCost,
        fixed_mib=st.sampled_from([0.0, 5.0, 40.0]),
        per_graph_mib=st.sampled_from([1.0, 2.5, 3.0]),
        per_token_mib=st.sampled_from([0.0, 0.01, 0.5]),
        fixed_s=st.sampled_from([0.0, 0.5]),
        per_graph_s=st.sampled_from([0.03, 0.05]),
        per_token_s=st.sampled_from([0.0, 0.01]),
    )


def cost_models() -> st.SearchStrategy[CostModel]:
    """Any: PIECEWISE may be faster than FULL, and a graph slower than none."""
    steps = st.fixed_dictionaries(
        {
            "FULL": _curve(1, 6),
            "PIECEWISE": _curve(1, 9),
            "NONE": _curve(3, 20),
            "EAGER": st.just({1: 20.0}),
        }
    )
    pools = st.builds(
        PoolCost,
        st.sampled_from([0.0, 30.0]),
        st.sampled_from([0.0, 0.1, 2.0]),
        st.sampled_from([0.0, 0.7]),
        st.sampled_from([None, 4, 9]),
    )
    return st.builds(
        lambda *parts, pool: CostModel(calibration(*parts, pool=pool)),
        steps,
        _graph_cost(),
        _graph_cost(),
        pool=pools,
    )


NUM_SEQS = st.sampled_from([4, 8, 16])


def engine_rules(max_num_seqs: st.SearchStrategy[int] = NUM_SEQS) -> (
    st.SearchStrategy[EngineRules]
):  # fmt: skip
    return st.builds(
        EngineRules,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=st.sampled_from([16, 40]),
        mode=st.sampled_from(MODES),
        speculative_tokens=st.sampled_from([0, 0, 1]),
        sequence_parallel=st.sampled_from([1, 1, 2]),
    )


def _distributions(largest: int, least: int, most: int = 4) -> st.SearchStrategy[Distribution]:
    return st.dictionaries(
        st.integers(1, largest), st.sampled_from([1, 5, 30, 200]), min_size=least, max_size=most
    ).map(Distribution.of)


def shapes() -> st.SearchStrategy[Shapes]:
    """Of up to seven sizes: 128 grids at most."""
    return st.builds(Shapes, _distributions(16, 1), _distributions(60, 0))


def many_shapes() -> st.SearchStrategy[Shapes]:
    """Of up to eleven sizes: 2048 grids at most."""
    return st.builds(Shapes, _distributions(16, 4, 6), _distributions(40, 3, 5))


def limits() -> st.SearchStrategy[Limits]:
    return st.builds(
        Limits,
        max_memory_mib=st.none() | st.floats(5, 150),
        max_capture_s=st.none() | st.floats(0.1, 2),
        max_sizes=st.none() | st.integers(1, 5),
        min_coverage=st.none() | st.floats(0.2, 1),
        max_p99_s=st.none() | st.floats(0.002, 0.02),
        max_mean_s=st.none() | st.floats(0.002, 0.02),
        margin=st.sampled_from([0.0, 0.1]),
    )

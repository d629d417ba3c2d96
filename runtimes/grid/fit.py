"""From measured runs to a calibration: what a graph costs, by least squares.

A run is one engine with one grid: the graphs that it captured, the memory and the time they
took. Both are of each graph and of each token of their sizes, and of what all graphs share: memory
of their pool, once and by the largest size, and time once, before the first and after the last.
Relative errors are squared, so that small grids count as much as large ones, and no cost may be
negative. Every set of costs is tried, the smaller sets first, and the first that is as near as
measurements are counts: more unknowns fit the same few grids better and foretell others worse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from canaryctl.common.errors import InputError
from canaryctl.runtimes.grid.calibration import GraphCost, PoolCost

_LEAST_GRIDS: Final = 3
_NEAR_MEMORY: Final = 0.02
"""Root mean square of relative errors. Memory is told in 2 MiB, of some hundred."""
_NEAR_TIME: Final = 0.1
"""Likewise. Two starts of one grid differ by more."""


@dataclass(frozen=True, slots=True)
class CaptureRun:
    """One engine: the sizes of its FULL and PIECEWISE graphs, and what they took in all.
    ``graph_mib``, ``capture_s``: None where it says nothing of other grids or starts."""

    name: str
    full: tuple[int, ...]
    piecewise: tuple[int, ...]
    graph_mib: float | None
    capture_s: float | None


@dataclass(frozen=True, slots=True)
class GraphFit:
    """``error``: the largest relative error of memory or time over the runs."""

    cost: GraphCost
    pool: PoolCost
    error: float


def fit_graph_cost(runs: Sequence[CaptureRun]) -> GraphFit:
    """One cost for the graphs of both modes: runs of few grids cannot tell them apart.

    InputError where fewer than three different grids say what their graphs took.
    """
    usable = [run for run in runs if run.full or run.piecewise]
    sized = [(run, run.graph_mib) for run in usable if run.graph_mib is not None]
    timed = [(run, run.capture_s) for run in usable if run.capture_s is not None]
    for what, told in (("memory", sized), ("time", timed)):
        different = len({(run.full, run.piecewise) for run, _ in told})
        if different < _LEAST_GRIDS:
            raise InputError(
                f"found {different} grids whose graphs' {what} is known, expected {_LEAST_GRIDS} "
                "different ones"
            )
    memory, memory_error = _fitted(
        [_memory_row(run) for run, _ in sized], [mib for _, mib in sized], _NEAR_MEMORY
    )
    seconds, seconds_error = _fitted(
        [_time_row(run) for run, _ in timed], [s for _, s in timed], _NEAR_TIME
    )
    pool_mib, per_largest_mib, per_graph_mib, per_token_mib = memory
    largest = max(size for run, _ in sized for size in (*run.full, *run.piecewise))
    once_s, per_graph_s, per_token_s = seconds
    return GraphFit(
        GraphCost(0.0, per_graph_mib, per_token_mib, 0.0, per_graph_s, per_token_s),
        PoolCost(pool_mib, per_largest_mib, once_s, largest),
        max(memory_error, seconds_error),
    )


def _fitted(
    rows: Sequence[Sequence[float]], values: Sequence[float], near: float
) -> tuple[tuple[float, ...], float]:
    """What each column costs, and the largest relative error."""
    costs = _non_negative(rows, values, near)
    error = max(
        abs(_product(row, costs) / value - 1) for row, value in zip(rows, values, strict=True)
    )
    return tuple(float(f"{cost:.6g}") for cost in costs), error


def _memory_row(run: CaptureRun) -> tuple[float, ...]:
    graphs = (*run.full, *run.piecewise)
    return (1.0, float(max(graphs)), float(len(graphs)), float(sum(graphs)))


def _time_row(run: CaptureRun) -> tuple[float, ...]:
    graphs = (*run.full, *run.piecewise)
    return (1.0, float(len(graphs)), float(sum(graphs)))


def _non_negative(
    rows: Sequence[Sequence[float]], values: Sequence[float], near: float
) -> tuple[float, ...]:
    if min(values) <= 0:
        raise InputError(f"a run with graphs took {min(values):g}, expected more than 0")
    scaled = [[x / v for x in row] for row, v in zip(rows, values, strict=True)]
    best: tuple[float, tuple[float, ...]] | None = None
    unknowns = len(rows[0])
    for size in range(1, unknowns + 1):
        if best is not None and best[0] <= len(rows) * near**2:
            break
        for support in combinations(range(unknowns), size):
            solved = _least_squares([[row[column] for column in support] for row in scaled])
            if solved is None or min(solved) < 0:
                continue
            costs = [0.0] * unknowns
            for column, cost in zip(support, solved, strict=True):
                costs[column] = cost
            error = sum((_product(row, costs) - 1) ** 2 for row in scaled)
            if best is None or error < best[0]:
                best = (error, tuple(costs))
    assert best is not None  # noqa: S101  one column alone is always solvable
    return best[1]


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """``x`` with ``rows · x`` nearest to 1 everywhere; None where it is not determined."""
    size = len(rows[0])
    system = [
        [sum(row[a] * row[b] for row in rows) for b in range(size)] + [sum(row[a] for row in rows)]
        for a in range(size)
    ]
    scale = max(abs(value) for equation in system for value in equation)
    for column in range(size):
        pivot = max(range(column, size), key=lambda k: abs(system[k][column]))
        system[column], system[pivot] = system[pivot], system[column]
        if abs(system[column][column]) <= 1e-12 * scale:
            return None
        for other in range(size):
            if other != column:
                factor = system[other][column] / system[column][column]
                system[other] = [
                    a - factor * b for a, b in zip(system[other], system[column], strict=True)
                ]
    return [system[i][size] / system[i][i] for i in range(size)]


def _product(row: Sequence[float], costs: Sequence[float]) -> float:
    return sum(x * cost for x, cost in zip(row, costs, strict=True))

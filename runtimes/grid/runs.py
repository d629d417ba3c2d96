"""From runs of one engine with several grids to a calibration.

A run says which grid it had, what its graphs took, and the time of decode steps by tokens. Under
each mode, a step is a point of the padded size that it replayed; beyond the grid it is a point
without a graph. One process may be slower than another at everything: the runs are brought to the
level of the one that shares the most with others, by the median ratio at what both ran, so that two
sizes differ by what their graphs need and not by who ran them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median

from canaryctl.common.errors import InputError
from canaryctl.runtimes.grid.calibration import GRAPH_KINDS, STEP_MODES, Calibration
from canaryctl.runtimes.grid.fit import CaptureRun, fit_graph_cost
from canaryctl.runtimes.simulator.graphs import GraphSet, StepMode


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """``sizes``: the resolved grid; empty: it captured nothing, and its steps are those beyond a
    grid. ``largest_decode``: the most tokens of a step of decodes alone. ``step_ms``: (tokens,
    milliseconds) of such steps, once for each stretch that was measured. ``uncaptured``: sizes that
    are known to have run without a graph though the grid has one for them. Memory and time are None
    where nothing was captured; either also where it says nothing of other grids or starts."""

    name: str
    mode: str
    sizes: tuple[int, ...]
    largest_decode: int
    step_ms: Sequence[tuple[int, float]]
    graph_mib: float | None = None
    capture_s: float | None = None
    uncaptured: frozenset[int] = frozenset()

    @property
    def graphs(self) -> GraphSet:
        return GraphSet.of(self.mode, self.sizes, self.largest_decode)


@dataclass(frozen=True, slots=True)
class About:
    """What cannot be read off the runs."""

    machine: str
    engine: str
    model: str
    method: str
    assumed: str
    prefill_us_per_token: float
    kv_bytes_per_token: int
    kv_cache_tokens: int


def calibration_of(runs: Iterable[MeasuredRun], about: About) -> Calibration:
    """InputError where the runs leave a mode without a point, a graph's cost undetermined, or no
    batch that ran twice, so that nothing tells the noise."""
    runs = tuple(runs)
    by_run = [_points(run) for run in runs]
    step_ms = _means(_gathered(_levelled(by_run)))
    missing = [mode for mode, found in step_ms.items() if not found]
    if missing:
        raise InputError(
            f"no step ran {' or '.join(missing)}: expected runs with graphs of both modes, one "
            "with a batch beyond its grid, and one with graphs off"
        )
    fit = fit_graph_cost([_captured(run) for run in runs if run.graphs.sizes])
    return Calibration(
        machine=about.machine,
        engine=about.engine,
        model=about.model,
        method=about.method,
        assumed=about.assumed,
        noise_ms=_noise_ms(by_run),
        step_ms=step_ms,
        prefill_us_per_token=about.prefill_us_per_token,
        graphs=dict.fromkeys(GRAPH_KINDS, fit.cost),
        graphs_error=round(fit.error, 4),
        kv_bytes_per_token=about.kv_bytes_per_token,
        kv_cache_tokens=about.kv_cache_tokens,
        pool=fit.pool,
    )


Place = tuple[str, int]  # mode and size
Points = Mapping[Place, Sequence[float]]
"""Milliseconds, as often as they were measured."""


def _points(run: MeasuredRun) -> Points:
    found: dict[Place, list[float]] = {}
    for tokens, milliseconds in run.step_ms:
        found.setdefault(_place(run, tokens), []).append(milliseconds)
    return found


def _levelled(found: Sequence[Points]) -> list[Points]:
    """All as fast as the run that shares the most with others, where they ran what it ran."""

    def shared(one: Points) -> int:
        return sum(len(one.keys() & other.keys()) for other in found if other is not one)

    level = max(found, key=shared, default={})
    return [_scaled(points, _ratio(level, points)) for points in found]


def _ratio(level: Points, points: Points) -> float:
    shared = sorted(level.keys() & points.keys())
    return median(fmean(level[at]) / fmean(points[at]) for at in shared) if shared else 1.0


def _scaled(points: Points, by: float) -> Points:
    return {at: [by * value for value in values] for at, values in points.items()}


def _gathered(found: Iterable[Points]) -> Points:
    points: dict[Place, list[float]] = {}
    for one in found:
        for at, values in one.items():
            points.setdefault(at, []).extend(values)
    return points


def _place(run: MeasuredRun, tokens: int) -> tuple[str, int]:
    """The mode whose point such a step is, and the padded size."""
    if run.mode == "NONE":
        return "EAGER", tokens
    found = run.graphs.dispatch(tokens, pure_decode=True)
    if found.mode is StepMode.NONE or tokens in run.uncaptured:
        return "NONE", tokens
    return found.mode.value, found.bucket


def _captured(run: MeasuredRun) -> CaptureRun:
    if run.graph_mib is None and run.capture_s is None:
        raise InputError(f"run {run.name} has graphs, but not what they took")
    return CaptureRun(run.name, run.graphs.full, run.graphs.piecewise, run.graph_mib, run.capture_s)


def _noise_ms(found: Sequence[Points]) -> dict[str, float]:
    """By mode the standard deviation of one engine's mean step about that of all that ran the same,
    before they are levelled: another engine is as far off. Of a mode that one engine ran alone
    nothing is known."""
    means = [{at: [fmean(values)] for at, values in one.items()} for one in found]
    repeated: dict[str, list[Sequence[float]]] = {}
    for (mode, _), values in _gathered(means).items():
        if len(values) > 1:
            repeated.setdefault(mode, []).append(values)
    if not repeated:
        raise InputError(
            "no batch ran in the same mode and size twice: nothing tells the noise; "
            "expected runs whose grids share sizes"
        )
    return {mode: _deviation(repeated[mode]) for mode in STEP_MODES if mode in repeated}


def _deviation(groups: Sequence[Sequence[float]]) -> float:
    """About the mean of each group."""
    squares = sum((ms - fmean(values)) ** 2 for values in groups for ms in values)
    return round(sqrt(squares / sum(len(values) - 1 for values in groups)), 4)


def _means(points: Points) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {mode: {} for mode in STEP_MODES}
    for mode, size in sorted(points):
        found[mode][size] = round(fmean(points[mode, size]), 4)
    return found

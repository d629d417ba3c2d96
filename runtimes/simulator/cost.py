"""What a step, a graph and a token of cache cost, from measurements of one real engine.

``calibration.json`` holds the measurements and says what was assumed beside them. Noise makes
some larger batches measure faster than smaller ones; the curves here are the non-decreasing
least-squares fit, linear between measured sizes.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from canaryctl.runtimes.engines.grid import vllm_default_sizes
from canaryctl.runtimes.simulator.graphs import Dispatch, GraphSet, StepMode

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by size: linear between the knots, flat before the first, ``slope`` after the
    last (seconds a token)."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    slope: float = 0.0

    def at(self, size: int) -> float:
        index = bisect_left(self.sizes, size)
        if index == 0:
            return self.seconds[0]
        if index == len(self.sizes):
            return self.seconds[-1] + self.slope * (size - self.sizes[-1])
        low, high = self.sizes[index - 1], self.sizes[index]
        share = (size - low) / (high - low)
        return self.seconds[index - 1] + share * (self.seconds[index] - self.seconds[index - 1])


def fit_monotone(points: Iterable[tuple[int, float]]) -> Curve:
    """The non-decreasing least-squares fit (pool adjacent violators); equal sizes are averaged."""
    by_size: dict[int, list[float]] = {}
    for size, seconds in points:
        by_size.setdefault(size, []).append(seconds)
    blocks: list[tuple[float, float, list[int]]] = []  # mean, weight, sizes
    for size in sorted(by_size):
        values = by_size[size]
        mean, weight, sizes = sum(values) / len(values), float(len(values)), [size]
        while blocks and blocks[-1][0] >= mean:
            before_mean, before_weight, before_sizes = blocks.pop()
            mean = (mean * weight + before_mean * before_weight) / (weight + before_weight)
            weight += before_weight
            sizes = before_sizes + sizes
        blocks.append((mean, weight, sizes))
    fitted = [(size, mean) for mean, _, sizes in blocks for size in sizes]
    return Curve(tuple(size for size, _ in fitted), tuple(mean for _, mean in fitted))


@dataclass(frozen=True, slots=True)
class CostModel:
    """Step times by how the step ran, and the cost of a graph.

    ``full``, ``piecewise``: by padded size. ``no_graph``: compiled code without a graph, which
    is what a size beyond the grid falls to. ``eager``: neither compiled nor captured.
    """

    full: Curve
    piecewise: Curve
    no_graph: Curve
    eager: Curve
    prefill_s_per_token: float
    full_graph_bytes: float
    full_graph_s: float
    piecewise_graph_bytes: float
    piecewise_graph_s: float

    def step_s(self, dispatch: Dispatch, tokens: int, *, compiled: bool) -> float:
        """Seconds of one step of ``tokens``. A step without a graph is bound by launching
        kernels until computing takes longer."""
        if dispatch.mode is StepMode.FULL:
            return self.full.at(dispatch.bucket)
        if dispatch.mode is StepMode.PIECEWISE:
            return self.piecewise.at(dispatch.bucket)
        launching = (self.no_graph if compiled else self.eager).at(tokens)
        return max(launching, tokens * self.prefill_s_per_token)

    def graph_s(self, dispatch: Dispatch) -> float:
        """Seconds to capture the graph of a step."""
        return self.full_graph_s if dispatch.mode is StepMode.FULL else self.piecewise_graph_s

    def capture_s(self, graphs: GraphSet) -> float:
        return len(graphs.full) * self.full_graph_s + len(graphs.piecewise) * self.piecewise_graph_s

    def graph_bytes(self, graphs: GraphSet) -> int:
        return round(
            len(graphs.full) * self.full_graph_bytes
            + len(graphs.piecewise) * self.piecewise_graph_bytes
        )


@cache
def calibration() -> Mapping[str, Any]:
    """The packaged measurements."""
    text = files("canaryctl.runtimes.simulator").joinpath("calibration.json").read_text("utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document


@cache
def calibrated() -> CostModel:
    """The cost model of ``calibration.json``."""
    document = calibration()
    runs = {run["name"]: run for run in document["runs"]}
    within: list[tuple[int, float]] = []
    beyond: list[tuple[int, float]] = []
    for name in ("default", "nine", "dense64"):
        grid = _grid(runs[name])
        for batch, seconds in _rows(runs[name]):
            index = bisect_left(grid, batch)
            # Batch 512 ran without a graph: see ``read_as`` in the file.
            if index == len(grid) or batch >= 512:
                beyond.append((batch, seconds))
            else:
                within.append((grid[index], seconds))
    full = fit_monotone(within)
    full = Curve(full.sizes, full.seconds, _mean_slope(full))
    graphs = float(runs["default"]["captured_sizes"])
    both, piecewise = runs["default"], runs["piecewise"]
    return CostModel(
        full=full,
        piecewise=_continue(fit_monotone(_padded(piecewise)), full),
        no_graph=fit_monotone(beyond),
        eager=fit_monotone(_rows(runs["eager"])),
        prefill_s_per_token=document["assumed"]["prefill_s_per_token"],
        full_graph_bytes=(both["graph_mib"] - piecewise["graph_mib"]) * MIB / graphs,
        full_graph_s=(both["capture_s"] - piecewise["capture_s"]) / graphs,
        piecewise_graph_bytes=piecewise["graph_mib"] * MIB / graphs,
        piecewise_graph_s=piecewise["capture_s"] / graphs,
    )


def _rows(run: Mapping[str, Any]) -> list[tuple[int, float]]:
    return [
        (int(batch), milliseconds / 1000)
        for batch, milliseconds in run["decode_step_ms_by_batch"].items()
    ]


def _grid(run: Mapping[str, Any]) -> Sequence[int]:
    requested = run["requested"].get("compilation_config", {}).get("cudagraph_capture_sizes")
    return requested or vllm_default_sizes(512, 8192)


def _padded(run: Mapping[str, Any]) -> list[tuple[int, float]]:
    grid = _grid(run)
    return [(grid[bisect_left(grid, batch)], seconds) for batch, seconds in _rows(run)]


def _mean_slope(curve: Curve) -> float:
    return (curve.seconds[-1] - curve.seconds[0]) / (curve.sizes[-1] - curve.sizes[0])


def _continue(curve: Curve, longer: Curve) -> Curve:
    """``curve``, growing beyond its last size as ``longer`` does: the GPU's work is the same,
    only the launches differ."""
    last = curve.sizes[-1]
    beyond = tuple(size for size in longer.sizes if size > last)
    grown = tuple(curve.seconds[-1] + longer.at(size) - longer.at(last) for size in beyond)
    return Curve(curve.sizes + beyond, curve.seconds + grown, longer.slope)

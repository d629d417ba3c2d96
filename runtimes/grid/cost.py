"""What steps and graphs cost, by a calibration: the model that a grid is planned with.

Noise makes some larger sizes measure faster than smaller ones; a curve is the non-decreasing
least-squares fit of its points, linear between them. A mode that was measured up to a smaller
size than another goes on as that one grows: the GPU's work is the same, only launching differs.
Beyond all that was measured, a graph is taken to be no slower than the same step without one.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from canaryctl.runtimes.grid.calibration import Calibration, GraphCost
from canaryctl.runtimes.simulator import cost as simulator
from canaryctl.runtimes.simulator.cost import Curve, fit_monotone
from canaryctl.runtimes.simulator.graphs import Dispatch, GraphSet, StepMode

MIB: Final = 2**20


@dataclass(frozen=True)
class CostModel:
    """Seconds and bytes. Decodes run as measured; a step with prompt tokens takes at least as
    long as computing them does (``prefill_us_per_token``)."""

    calibration: Calibration

    def graph_s(self, mode: StepMode, size: int, *, pure_decode: bool) -> float:
        """A step that replays the graph of ``size``."""
        seconds = self._at_least(self._curves[mode.value].at(size), size, pure_decode)
        if size <= self.largest_measured:
            return seconds
        return min(seconds, self.no_graph_s(size, pure_decode=pure_decode))

    def no_graph_s(self, size: int, *, pure_decode: bool, compiled: bool = True) -> float:
        """A step of ``size`` tokens without a graph: beyond the grid, or with graphs off."""
        curve = self._curves["NONE" if compiled else "EAGER"]
        return self._at_least(curve.at(size), size, pure_decode)

    def step_s(
        self, dispatch: Dispatch, size: int, *, pure_decode: bool, compiled: bool = True
    ) -> float:
        if dispatch.mode is StepMode.NONE:
            return self.no_graph_s(size, pure_decode=pure_decode, compiled=compiled)
        return self.graph_s(dispatch.mode, dispatch.bucket, pure_decode=pure_decode)

    def graph_bytes(self, graphs: GraphSet) -> float:
        largest = max((*graphs.full, *graphs.piecewise), default=0)
        return self.pool_bytes(largest) + sum(
            cost.fixed_mib * MIB + sum(self.one_graph_bytes(kind, size) for size in sizes)
            for kind, sizes, cost in self._kinds(graphs)
        )

    def pool_bytes(self, largest: int) -> float:
        """What all graphs share, by the size of the largest; of size 0: there is none."""
        pool = self.calibration.pool
        if not largest:
            return 0.0
        grown = largest if pool.most_tokens is None else min(largest, pool.most_tokens)
        return (pool.fixed_mib + pool.per_largest_token_mib * grown) * MIB

    def capture_s(self, graphs: GraphSet) -> float:
        shared_s = self.calibration.pool.fixed_s if graphs.full or graphs.piecewise else 0.0
        return shared_s + sum(
            cost.fixed_s + sum(self.one_capture_s(kind, size) for size in sizes)
            for kind, sizes, cost in self._kinds(graphs)
        )

    def one_graph_bytes(self, kind: str, size: int) -> float:
        """What one more graph of ``size`` takes, beside the mode's fixed part."""
        cost = self.calibration.graphs[kind]
        return (cost.per_graph_mib + cost.per_token_mib * size) * MIB

    def one_capture_s(self, kind: str, size: int) -> float:
        cost = self.calibration.graphs[kind]
        return cost.per_graph_s + cost.per_token_s * size

    def kv_tokens_lost(self, graph_bytes: float) -> float:
        return graph_bytes / self.calibration.kv_bytes_per_token

    def simulated(self) -> simulator.CostModel:
        """The same step times, for the simulated engine's batching."""
        full, piecewise = (self.calibration.graphs[kind] for kind in ("FULL", "PIECEWISE"))
        return simulator.CostModel(
            full=self._curves["FULL"],
            piecewise=self._curves["PIECEWISE"],
            no_graph=self._curves["NONE"],
            eager=self._curves["EAGER"],
            prefill_s_per_token=self.calibration.prefill_us_per_token / 1e6,
            full_graph_bytes=full.per_graph_mib * MIB,
            full_graph_s=full.per_graph_s,
            piecewise_graph_bytes=piecewise.per_graph_mib * MIB,
            piecewise_graph_s=piecewise.per_graph_s,
        )

    @cached_property
    def largest_measured(self) -> int:
        """The largest size whose graph was measured; beyond it the model extrapolates."""
        return max(max(self.calibration.step_ms[mode]) for mode in ("FULL", "PIECEWISE"))

    def _kinds(self, graphs: GraphSet) -> list[tuple[str, tuple[int, ...], GraphCost]]:
        by_kind = (("FULL", graphs.full), ("PIECEWISE", graphs.piecewise))
        return [(kind, sizes, self.calibration.graphs[kind]) for kind, sizes in by_kind if sizes]

    def _at_least(self, seconds: float, size: int, pure_decode: bool) -> float:
        if pure_decode:
            return seconds
        return max(seconds, size * self.calibration.prefill_us_per_token / 1e6)

    @cached_property
    def _curves(self) -> dict[str, Curve]:
        curves = {
            mode: fit_monotone((size, ms / 1000) for size, ms in points.items())
            for mode, points in self.calibration.step_ms.items()
        }
        longest = max((curves["FULL"], curves["PIECEWISE"]), key=lambda curve: curve.sizes[-1])
        grown = Curve(longest.sizes, longest.seconds, _mean_slope(longest))
        for mode in ("FULL", "PIECEWISE"):
            curves[mode] = grown if curves[mode] is longest else _continue(curves[mode], grown)
        return curves


def _mean_slope(curve: Curve) -> float:
    span = curve.sizes[-1] - curve.sizes[0]
    return (curve.seconds[-1] - curve.seconds[0]) / span if span else 0.0


def _continue(curve: Curve, longer: Curve) -> Curve:
    last = curve.sizes[-1]
    beyond = longer.sizes[bisect_left(longer.sizes, last + 1) :]
    grown = tuple(curve.seconds[-1] + longer.at(size) - longer.at(last) for size in beyond)
    return Curve(curve.sizes + beyond, curve.seconds + grown, longer.slope)

"""What a grid does with traffic, by the cost model: every figure of a comparison."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from canaryctl.runtimes.grid.cost import MIB, CostModel
from canaryctl.runtimes.grid.distribution import Shapes
from canaryctl.runtimes.grid.rules import EngineRules
from canaryctl.runtimes.simulator.graphs import StepMode


@dataclass(frozen=True, slots=True)
class Figures:
    """``coverage``: share of all steps that replay a graph. ``decode_hits``, ``mixed_hits``: of
    the steps of that kind; None where there are none. ``padding``: tokens computed by replayed
    steps over tokens asked of them, from 1. ``concurrency``: requests of ``tokens_per_request``
    that the KV cache holds beside the graphs.
    """

    sizes: tuple[int, ...]
    mode: str
    full_graphs: int
    piecewise_graphs: int
    graph_mib: float
    capture_s: float
    coverage: float
    decode_hits: float | None
    mixed_hits: float | None
    padding: float
    mean_s: float
    p99_s: float
    decode_p99_s: float | None
    kv_tokens: int
    kv_tokens_lost: int
    concurrency: float

    @property
    def graphs(self) -> int:
        return self.full_graphs + self.piecewise_graphs


def evaluate(
    sizes: Sequence[int],
    shapes: Shapes,
    cost: CostModel,
    rules: EngineRules,
    *,
    tokens_per_request: int,
) -> Figures:
    """The figures of a resolved grid. Shapes of no steps at all: ValueError."""
    if not shapes.total:
        raise ValueError("no step was counted: nothing to judge a grid by")
    graphs = rules.graphs(sizes)
    compiled = rules.mode != "NONE"
    hits = {True: 0, False: 0}
    steps_s: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    actual = padded = 0
    for pure_decode, distribution in (
        (True, shapes.decode.scaled(rules.decode_tokens)),
        (False, shapes.mixed),
    ):
        for size, count in distribution.items():
            found = graphs.dispatch(size, pure_decode=pure_decode)
            seconds = cost.step_s(found, size, pure_decode=pure_decode, compiled=compiled)
            steps_s[pure_decode].append((seconds, count))
            if found.mode is not StepMode.NONE:
                hits[pure_decode] += count
                actual += size * count
                padded += found.bucket * count
    graph_bytes = cost.graph_bytes(graphs)
    lost = math.ceil(cost.kv_tokens_lost(graph_bytes))
    kv_tokens = max(0, cost.calibration.kv_cache_tokens - lost)
    every = steps_s[True] + steps_s[False]
    return Figures(
        sizes=tuple(sizes),
        mode=rules.mode,
        full_graphs=len(graphs.full),
        piecewise_graphs=len(graphs.piecewise),
        graph_mib=graph_bytes / MIB,
        capture_s=cost.capture_s(graphs),
        coverage=(hits[True] + hits[False]) / shapes.total,
        decode_hits=_share(hits[True], shapes.decode.total),
        mixed_hits=_share(hits[False], shapes.mixed.total),
        padding=padded / actual if actual else 1.0,
        mean_s=math.fsum(seconds * count for seconds, count in every) / shapes.total,
        p99_s=quantile_s(every, 0.99),
        decode_p99_s=quantile_s(steps_s[True], 0.99) if steps_s[True] else None,
        kv_tokens=kv_tokens,
        kv_tokens_lost=lost,
        concurrency=kv_tokens / tokens_per_request,
    )


def quantile_s(steps: Sequence[tuple[float, int]], share: float) -> float:
    """The least time that ``share`` of the steps (seconds, count) do not exceed."""
    total = sum(count for _, count in steps)
    rank = total - exceeding(total, share)
    reached = 0
    for seconds, count in sorted(steps):
        reached += count
        if reached >= rank:
            return seconds
    raise ValueError("no step was counted")


def exceeding(total: int, share: float) -> int:
    """How many of ``total`` steps may exceed their ``share`` quantile."""
    return total - max(1, math.ceil(share * total - 1e-9)) if total else 0


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None

"""Latency trials: two arms drawn with a seed and judged look by look."""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from canaryctl.common.metrics import Signal
from canaryctl.gates import registry
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.history import AaHistory
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import ArmWindow, Delta, Histogram
from canaryctl.gates.spec import GateSpec

FINE = [*(0.01 * 1.1 ** (k / 2) for k in range(140)), math.inf]
VLLM = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, math.inf]

Draw = Callable[[random.Random], float]
Observations = Sequence[float]


def normal(rng: random.Random) -> float:
    return rng.lognormvariate(math.log(0.05), 0.45)


def times(factor: float) -> Draw:
    return lambda rng: factor * normal(rng)


def tail(share: float, factor: float) -> Draw:
    return lambda rng: normal(rng) * (factor if rng.random() < share else 1)


def histogram(found: Observations, edges: Sequence[float]) -> Histogram:
    counts = [0] * len(edges)
    for value in found:
        counts[bisect_left(edges, value)] += 1
    return Histogram(tuple(zip(edges, accumulate(counts), strict=True)), math.fsum(found))


def arm(name: str, found: Observations, edges: Sequence[float]) -> ArmWindow:
    return ArmWindow((Delta(name, 2.0, {Signal.TTFT: histogram(found, edges)}),), 1)


class Trial:
    """Two arms drawn with a seed and judged look by look."""

    def __init__(
        self,
        *,
        canary: Draw = normal,
        name: str = "ttft_p99",
        edges: Sequence[float] = FINE,
        per_look: int = 40,
        detectable: float = 1.0,
        gates_total: int = 1,
        has_baseline: bool = True,
        seed: int = 1,
        history: AaHistory | None = None,
        interval_s: float = 2.0,
        **limits: Any,
    ) -> None:
        context = GateContext(gates_total, detectable, interval_s, 0.5, has_baseline, history)
        if not limits.keys() & {"max_regression", "max_seconds"}:
            limits["max_regression"] = "21%"
        spec = GateSpec.model_validate({"name": name, **limits})
        self.gate = registry.build(spec, context)
        self.state = self.gate.start()
        self.canary, self.edges, self.per_look = canary, edges, per_look
        self.rng = random.Random(seed)
        self.at = 0.0
        self.result: GateResult | None = None

    def look(self, unequal: str | None = None, weight: float | None = None) -> GateResult:
        self.at += 2.0
        found = [[draw(self.rng) for _ in range(self.per_look)] for draw in (self.canary, normal)]
        now = Look(
            self.at,
            arm("c0", found[0], self.edges),
            arm("b0", found[1], self.edges),
            unequal_load=unequal,
            weight=weight,
        )
        self.state, self.result = self.gate.look(self.state, now)
        return self.result

    def until_failed(self, looks: int) -> GateResult:
        for _ in range(looks):
            result = self.look()
            if result.outcome is Outcome.FAILED:
                break
        return result

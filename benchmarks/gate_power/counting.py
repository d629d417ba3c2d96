"""Counts and shares, judged by the gates themselves: ``error_rate`` against the baseline, and a
share of missed objectives against a fixed limit, as active driving for concurrency counts them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.gate_power.binomial import Median, Rate
from benchmarks.gate_power.independent import LOOK_S, LOOKS
from benchmarks.gate_power.ruler import random_source
from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates import registry
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.samples import ArmWindow, Delta, Series, Value
from canaryctl.gates.spec import GateSpec

SHARE = 0.005
CANARY, BASELINE = 30, 270  # requests in a look: 20/s, one in ten to the canary
DRIVEN = 10  # requests in a look of active driving


@dataclass(frozen=True, slots=True)
class Counted:
    """Canary requests until the gate failed or passed; infinite: it did not."""

    failed_after: tuple[float, ...]
    passed_after: tuple[float, ...]

    @property
    def failed(self) -> Rate:
        return Rate(sum(map(math.isfinite, self.failed_after)), len(self.failed_after))

    @property
    def failed_median(self) -> Median:
        return Median(self.failed_after)

    @property
    def passed_median(self) -> Median:
        return Median(self.passed_after)


def against_baseline(factor: float, repetitions: int, seed: int) -> Counted:
    """``error_rate`` with ``max_regression: 0%``, the baseline failing one request in 200."""
    spec = GateSpec.model_validate({"name": "error_rate", "max_regression": "0%"})
    return _many(spec, factor * SHARE, SHARE, CANARY, repetitions, seed)


def against_limit(share: float, repetitions: int, seed: int) -> Counted:
    """A share of misses against 1 %, ten requests a look."""
    spec = GateSpec.model_validate({"name": "error_rate", "max_ratio": "1%"})
    return _many(spec, share, SHARE, DRIVEN, repetitions, seed)


def _many(
    spec: GateSpec, share: float, other: float, requests: int, repetitions: int, seed: int
) -> Counted:
    ends = []
    for repetition in range(repetitions):
        rng = random_source(seed, repetition)
        events = rng.binomial(requests, share, LOOKS)
        others = rng.binomial(BASELINE, other, LOOKS)
        ends.append(_follow(spec, _looks(requests, events, others), requests))
    return Counted(tuple(e[0] for e in ends), tuple(e[1] for e in ends))


def _follow(spec: GateSpec, looks: Iterator[Look], requests: int) -> tuple[float, float]:
    gate = registry.build(spec, GateContext(1, 0.5, LOOK_S, 0.1))
    state, passed = gate.start(), math.inf
    for index, look in enumerate(looks):
        state, result = gate.look(state, look)
        after = float(requests * (index + 1))
        if result.outcome is Outcome.FAILED:
            return after, passed
        if result.outcome is Outcome.PASSED:
            passed = min(passed, after)
    return math.inf, passed


def _looks(requests: int, events: np.ndarray, others: np.ndarray) -> Iterator[Look]:
    for index, (canary, baseline) in enumerate(zip(events, others, strict=True)):
        yield Look(
            LOOK_S * (index + 1), _arm("canary", requests, canary), _arm("b", BASELINE, baseline)
        )


def _arm(name: str, requests: int, events: int) -> ArmWindow:
    values: dict[AnySignal, Value] = {
        Signal.REQUESTS: Series({(): float(requests)}),
        Signal.ERRORS: Series({(): float(events)}),
    }
    return ArmWindow((Delta(name, LOOK_S, values),), 1)

"""The gate's two forms, judged over simulated releases by the accelerated copy.

``p99`` is one quantile alone, ``multi`` the four of ``rules.mixed_quantiles``. A release fails at
the first look with ln E ≥ ln(1/α), and passes at the first with every quantile's ln E_pass ≥
ln(1/β), unless it has failed by then.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.gate_power import fast, fast_history
from benchmarks.gate_power.independent import LOOK_S
from benchmarks.gate_power.ruler import Counts, Floats, Path, Ruler
from canaryctl.gates import history
from canaryctl.gates.history import QUANTILES
from canaryctl.gates.rules.mixed_quantiles import WEIGHTS

ALPHA, BETA = 0.01, 0.05
TOLERANCE, MARGIN = 0.10, 0.33
BLOCKS_TRIED = np.array([1, 2, 4, 8, 20])  # looks: L* is one of them, the last five minutes

FORMS: Mapping[str, Mapping[str, float]] = {"p99": {"p99": 1.0}, "multi": WEIGHTS}

Methods = Mapping[str, Floats]
"""Quantile → how it is judged, as ``fast.judge`` takes it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a gate knows beforehand. ``past``: cumulative counts of the history's last half hour at
    the fine edges, which place the first edges; None without a history."""

    methods: Methods
    past: Counts | None


EXACT: Methods = {name: np.array([0.0, 1.0, 1.0, 1.0]) for name in QUANTILES}
"""(A) where it is a theorem: a history that says independent, φ = φ_U = 1."""

UNKNOWN = Known({name: np.array([4.0, 1.0, 1.0, 0.0]) for name in QUANTILES}, None)
"""No history: (B) with four looks a block, and no pass."""


def grid(ruler: Ruler) -> Floats:
    return np.append(ruler.fine_edges(), np.inf)


def learned(ruler: Ruler, engines: Counts) -> Known:
    """From hours of equal engines, [engines, looks, edges + 1] at all edges of ``ruler``."""
    fine = np.ascontiguousarray(engines[:, :, ruler.fine])
    least = 1 if fine.shape[1] * LOOK_S >= history.DRIFT_S else history.LEAST_LOOKS
    methods = {
        name: fast_history.learn(fine, grid(ruler), LOOK_S, p, BLOCKS_TRIED, least)
        for name, p in QUANTILES.items()
    }
    return Known(methods, fast_history.past(fine, LOOK_S))


@dataclass(frozen=True, slots=True)
class Decision:
    """Canary observations since the slowdown began until the release failed or passed, and the
    look (from 0) of the failure; infinite and −1: it did not."""

    failed_after: float
    passed_after: float
    failed_look: int

    @property
    def failed(self) -> bool:
        return math.isfinite(self.failed_after)

    @property
    def passed(self) -> bool:
        return math.isfinite(self.passed_after)


def evidence(
    path: Path, known: Known, *, tolerance: float = TOLERANCE, margin: float = MARGIN
) -> dict[str, tuple[Floats, Floats]]:
    """(ln E_fail, ln E_pass) after each look, for each quantile."""
    canary, baseline = path.fine()
    before, edges = fast.pasts(baseline, LOOK_S), grid(path.ruler)
    first = np.zeros_like(edges, np.int64) if known.past is None else known.past
    found = {}
    for name, method in known.methods.items():
        p = QUANTILES[name]
        found[name] = fast.judge(
            canary, baseline, before, first, edges, LOOK_S, p, tolerance, margin, method
        )
    return found


def mixed(found: Mapping[str, tuple[Floats, Floats]], form: Mapping[str, float]) -> Floats:
    """ln of the weighted mean of the quantiles' E_fail, after each look."""
    logs = np.stack([found[name][0] for name in form])
    return np.asarray(fast.mix(logs, np.array(list(form.values()))))


def decide(
    path: Path,
    found: Mapping[str, tuple[Floats, Floats]],
    form: Mapping[str, float],
    *,
    from_look: int = 0,
) -> Decision:
    requests = path.requests(from_look)
    failing = np.flatnonzero(mixed(found, form) >= -math.log(ALPHA))
    failed_look = int(failing[0]) if failing.size else -1
    passing = [np.flatnonzero(found[name][1] >= -math.log(BETA)) for name in form]
    passed_look = max(int(each[0]) for each in passing) if all(p.size for p in passing) else -1
    passed = passed_look >= 0 and (failed_look < 0 or passed_look < failed_look)
    return Decision(
        float(requests[failed_look]) if failed_look >= 0 else math.inf,
        float(requests[passed_look]) if passed else math.inf,
        failed_look,
    )

"""One-sample e-process: a share of events against a fixed limit s0.

    L_θ += [ k·ln(θ/s0) + (n−k)·ln((1−θ)/(1−s0)) ] / φ

with θ above s0 as evidence that the limit is broken, below s0 that it is held. Each factor's
expectation is at most 1 for every true share on the null side of s0, because the likelihood
ratio is monotone in the share. φ > 1: the observations can be dealt into φ interleaved
sequences, each free of dependence; the geometric mean of their e-values is at most the
arithmetic mean, so E stays an e-value. The grids are in odds, so that θ stays under 1.
"""

import math
from collections.abc import Sequence

FAIL_ODDS = (1.5, 2.0, 3.0, 5.0, 10.0, 25.0, 100.0, 1000.0, 10000.0)
PASS_ODDS = (1 / 1.5, 1 / 2, 1 / 3, 1 / 5, 1 / 10, 1 / 25, 1 / 100, 1 / 1000)


def thetas(s0: float, odds_grid: Sequence[float]) -> tuple[float, ...]:
    """Alternative shares for the limit ``s0`` (0 < s0 < 1)."""
    if not 0 < s0 < 1:
        raise ValueError(f"found the limit {s0:g}, expected a share between 0 and 1")
    return tuple(o * s0 / (1 - s0 + o * s0) for o in odds_grid)


def update(
    logs: Sequence[float],
    odds_grid: Sequence[float],
    s0: float,
    *,
    k: float,
    n: float,
    phi: float = 1.0,
) -> list[float]:
    """``logs`` (one per grid element, zeros at first) after ``k`` events in ``n`` more."""
    if phi < 1:
        raise ValueError(f"found φ {phi:g}; it is at least 1")
    return [
        log + (k * math.log(theta / s0) + (n - k) * math.log((1 - theta) / (1 - s0))) / phi
        for log, theta in zip(logs, thetas(s0, odds_grid), strict=True)
    ]

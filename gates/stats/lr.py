"""(A) The likelihood-ratio e-process of two Poisson-like arms.

Given the total of a look, the canary's part of the events is hypergeometric, convex-dominated
by a binomial, so that the expected factor is at most 1 whatever the load does between looks
(the thinning idea of Lindon & Malek, anytime-valid inference for multinomial count data):

    L_ρ += [ k_C·ln((ρ/ρ0)(ρ0·n_C+n_B)/(ρ·n_C+n_B)) + k_B·ln((ρ0·n_C+n_B)/(ρ·n_C+n_B)) ] / φ

for each alternative rate ratio ρ = ρ0·g, g in the grid; E is the mean of exp(L_ρ).
Limits: exact for independent observations at φ = 1. Bursts in one arm's own queue break it;
φ (variance of block counts over the independent one) tempers that, without a proof.
"""

import math
from collections.abc import Sequence

from canaryctl.gates.stats.counts import Counts

FAIL_GRID = (1.15, 1.35, 1.6, 2.0, 2.6, 3.5, 5.0, 8.0)
PASS_GRID = (1 / 1.12, 1 / 1.3, 1 / 1.55, 1 / 1.9, 1 / 2.5, 1 / 4, 1 / 8, 1 / 20)
COUNT_GRID = (1.5, 2.0, 3.0, 5.0, 10.0, 25.0, 60.0, 150.0)  # rare events: errors, fallbacks


def update(
    logs: Sequence[float],
    grid: Sequence[float],
    counts: Counts,
    *,
    rho0: float = 1.0,
    phi: float = 1.0,
) -> list[float]:
    """``logs`` (one per grid element, zeros at first) after one more look."""
    if phi < 1 or rho0 <= 0:
        raise ValueError(f"found φ {phi:g} and ρ0 {rho0:g}; φ is at least 1 and ρ0 positive")
    k_c, k_b, n_c, n_b = counts
    if k_c + k_b <= 0 or n_c <= 0 or n_b <= 0:
        return list(logs)  # each factor is exactly 1
    null = rho0 * n_c + n_b
    updated = []
    for log, g in zip(logs, grid, strict=True):
        shared = math.log(null / (rho0 * g * n_c + n_b))
        updated.append(log + (k_c * (math.log(g) + shared) + k_b * shared) / phi)
    return updated

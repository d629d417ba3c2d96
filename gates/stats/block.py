"""(B) The block-share e-process, for metrics whose observations depend on each other.

Per block of L looks, m = k_C + k_B > 0, π = ρ0·n_C/(ρ0·n_C + n_B), x = k_C/m − π:

    fail  L_c += ln(1 + (c/π)·x)        pass  L_c += ln(1 − (c/(1−π))·x)

for each bet c; E is the mean of exp(L_c) (betting on a bounded mean, Waudby-Smith & Ramdas).
ρ0 is the canary's rate over the baseline's at the edge of the hypothesis, 1 unless said.
A burst inside a block counts once, however long it is. Limits: exact where bursts stay inside
blocks and have equal sizes in both arms; no block can multiply E by more than 1 + c(1−π)/π, so
that at π = ½ even perfect evidence needs 11 blocks for α = 1 %.
"""

import math
from collections.abc import Sequence

from canaryctl.gates.stats.counts import Counts

BETS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)


def _excess(counts: Counts, rho0: float) -> tuple[float, float] | None:
    """(x, π), or None where the block says nothing about the arms."""
    k_c, k_b, n_c, n_b = counts
    if k_c + k_b <= 0 or n_c <= 0 or n_b <= 0:
        return None
    share = rho0 * n_c / (rho0 * n_c + n_b)
    return k_c / (k_c + k_b) - share, share


def update_fail(logs: Sequence[float], counts: Counts, *, rho0: float = 1.0) -> list[float]:
    """Evidence that the canary exceeds more often, after one more block."""
    block = _excess(counts, rho0)
    if block is None:
        return list(logs)
    x, share = block
    return [log + math.log1p(c / share * x) for log, c in zip(logs, BETS, strict=True)]


def update_pass(logs: Sequence[float], counts: Counts, *, rho0: float = 1.0) -> list[float]:
    """Evidence that the canary exceeds less often, after one more block."""
    block = _excess(counts, rho0)
    if block is None:
        return list(logs)
    x, share = block
    return [log + math.log1p(-c / (1 - share) * x) for log, c in zip(logs, BETS, strict=True)]

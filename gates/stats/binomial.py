"""Exact bounds of a share, from independent trials (Clopper and Pearson 1934)."""

import math
from functools import lru_cache
from itertools import accumulate

_HALVINGS = 50
_REMEMBERED = 64  # a gate asks the same at every look


@lru_cache(_REMEMBERED)
def tails(trials: int, p: float) -> tuple[float, ...]:
    """P(X ≥ k) for X binomial and each k from 0 to ``trials + 1``."""
    if p <= 0 or p >= 1:
        most = trials if p >= 1 else 0
        return tuple(float(k <= most) for k in range(trials + 2))
    log_odds, log_q = math.log(p) - math.log1p(-p), trials * math.log1p(-p)
    log_chosen, each = 0.0, []
    for k in range(trials + 1):
        each.append(math.exp(log_chosen + k * log_odds + log_q))
        log_chosen += math.log((trials - k) / (k + 1)) if k < trials else 0.0
    # From the small end, so that nothing small is lost.
    return (1.0, *list(accumulate(reversed(each)))[-2::-1], 0.0)


@lru_cache(_REMEMBERED)
def upper(found: int, trials: int, alpha: float) -> float:
    """The largest share that does not make ``found`` or fewer less likely than ``alpha``."""
    low, high = found / trials, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if 1 - tails(trials, middle)[found + 1] > alpha:
            low = middle
        else:
            high = middle
    return high


def least_unlikely(trials: int, p: float, alpha: float) -> int:
    """The least number that is reached with probability ``alpha`` at most; ``trials + 1``: none."""
    return next(k for k, likely in enumerate(tails(trials, p)) if likely <= alpha)

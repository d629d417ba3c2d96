"""What a number of simulated releases says of a rate or a median, with its uncertainty."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


def tail(k: int, n: int, p: float) -> float:
    """P(X ≥ k) of X ~ binomial(n, p)."""
    if k <= 0:
        return 1.0
    if p <= 0:
        return 0.0
    if p >= 1:
        return 1.0
    top, hit, miss = math.lgamma(n + 1), math.log(p), math.log1p(-p)
    return min(
        1.0,
        math.fsum(
            math.exp(top - math.lgamma(j + 1) - math.lgamma(n - j + 1) + j * hit + (n - j) * miss)
            for j in range(k, n + 1)
        ),
    )


def _where(holds_at: float, k: int, n: int) -> float:
    """p with P(X ≥ k) = ``holds_at``, which grows with p."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(k, n, middle) < holds_at else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Rate:
    """``k`` of ``n``. Its bounds are one-sided, exact (Clopper and Pearson), of 95 % each."""

    k: int
    n: int

    @property
    def value(self) -> float:
        return self.k / self.n

    @property
    def error(self) -> float:
        """Standard error."""
        return math.sqrt(self.value * (1 - self.value) / self.n)

    @property
    def lower(self) -> float:
        return _where(1 - CONFIDENCE, self.k, self.n) if self.k else 0.0

    @property
    def upper(self) -> float:
        return _where(CONFIDENCE, self.k + 1, self.n) if self.k < self.n else 1.0


@dataclass(frozen=True, slots=True)
class Median:
    """Of ``values``, infinite where nothing was decided; the bounds by order statistics, one-sided
    of 95 % each; the standard error as for a normal median, from their distance."""

    values: Sequence[float]

    @property
    def value(self) -> float:
        ordered = sorted(self.values)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

    @property
    def lower(self) -> float:
        rank = max(0, math.floor(len(self.values) / 2 - self._reach()))
        return sorted(self.values)[rank]

    @property
    def upper(self) -> float:
        rank = min(len(self.values) - 1, math.ceil(len(self.values) / 2 + self._reach()))
        return sorted(self.values)[rank]

    @property
    def error(self) -> float:
        return (self.upper - self.lower) / (2 * 1.645)

    def _reach(self) -> float:
        return 1.645 * math.sqrt(len(self.values)) / 2

"""φ: how much more counts of equal engines vary than those of independent observations.

With k[b][e] = exceedances of engine e in block b of L looks, k̄_b their mean over E engines:

    φ(L) = Σ_b Σ_e (k − k̄_b)² / ((E−1)·Σ_b k̄_b)                     df = (E−1)·blocks

Comparing engines within a block leaves out what the load does to all of them alike. With few
engines, successive blocks of the same engine are compared instead, which counts a drift of the
load as dependence and so never says too little of a steady one:

    φ(L) = Σ (k_{b+1} − k_b)² / Σ (k_{b+1} + k_b)                    df = 0.67·(blocks−1)

Independent Poisson counts have φ = 1. Its upper 90 % bound is φ_U = φ·(1 + 1.28·√(2/df)).
Limits: a χ² approximation, poor below a few exceedances a block; it says nothing of another load.
Source: docs/gates.md, "How latency is judged".
"""

import math
from collections.abc import Sequence
from itertools import pairwise

Counts = Sequence[int] | None
"""Of one look or block, per engine; None: not all engines were read."""

MANY_ENGINES = 5
UPPER_90 = 1.28
_NEAR = 0.8


def blocks(looks: Sequence[Counts], length: int) -> list[Counts]:
    """Sums over ``length`` looks in a row; a block with a look that is None is None."""
    found: list[Counts] = []
    for start in range(0, len(looks) - length + 1, length):
        part = looks[start : start + length]
        whole = [counts for counts in part if counts is not None]
        full = len(whole) == length
        found.append([sum(column) for column in zip(*whole, strict=True)] if full else None)
    return found


def usable(counts: Sequence[Counts]) -> int:
    """How many of the blocks can be used."""
    return sum(each is not None for each in counts)


def phi(counts: Sequence[Counts]) -> float | None:
    """Of blocks; None where nothing was counted. Not clamped: chance alone may put it below 1."""
    known = [each for each in counts if each is not None]
    engines = len(known[0]) if known else 0
    if engines >= MANY_ENGINES:
        means = [sum(each) / engines for each in known]
        spread = sum((k - mean) ** 2 for each, mean in zip(known, means, strict=True) for k in each)
        return spread / ((engines - 1) * sum(means)) if sum(means) else None
    pairs = [
        (k, later)
        for one, other in pairwise(counts)
        if one is not None and other is not None
        for k, later in zip(one, other, strict=True)
    ]
    total = sum(k + later for k, later in pairs)
    return sum((later - k) ** 2 for k, later in pairs) / total if total else None


def degrees_of_freedom(engines: int, count: int) -> float:
    """Of φ from ``count`` blocks. Few engines count as one: they share the drift of the load."""
    return (engines - 1) * count if engines >= MANY_ENGINES else 0.67 * (count - 1)


def upper(found: float, df: float) -> float:
    """φ_U: with 90 % confidence φ is not above it."""
    return found * (1 + UPPER_90 * math.sqrt(2 / df))


def lengths(most: int) -> list[int]:
    """Block lengths to try, in looks: doubled while two fit into ``most``, then ``most``:
    1, 2, 4, 8, 20 for 20."""
    found = [1]
    while found[-1] * 4 <= most:
        found.append(found[-1] * 2)
    return found if found[-1] == most else [*found, most]


def shortest(looks: Sequence[Counts], most: int, phi_most: float) -> int:
    """L*: the shortest block whose counts vary almost (0.8) as much as those of ``most`` looks:
    what hangs together lies inside it."""
    for length in lengths(most):
        found = phi(blocks(looks, length))
        if found is not None and found >= _NEAR * phi_most:
            return length
    return most

"""Worlds without queues: independent requests, and tokens that come a batch at a time."""

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numba import njit

from benchmarks.gate_power.ruler import REQUESTS, TOKENS, Counts, Floats

LOOKS, LOOK_S = 240, 15.0
_NORMAL = NormalDist()

Mixture = tuple[tuple[float, float, float], ...]
"""(weight, median in seconds, σ of the logarithm) of each log-normal part."""

LATENCY: Mixture = ((0.93, 0.18, 0.45), (0.06, 0.5, 0.5), (0.01, 1.2, 0.7))
STEP: Mixture = ((0.97, 0.020, 0.20), (0.03, 0.045, 0.30))
"""A decode step, and one that waits for a chunk of somebody's prompt."""

BATCH = (48, 112)
"""Sequences in a step, each as likely: all of them see the same gap, so that counts of gaps vary
E[B²]/E[B] = 84 times as much as independent ones."""


def below(mixture: Mixture, x: float) -> float:
    """P(latency ≤ x)."""
    return math.fsum(w * _NORMAL.cdf(math.log(x / median) / s) for w, median, s in mixture)


@cache
def quantile(mixture: Mixture, p: float) -> float:
    """By bisection, in seconds."""
    low, high = 1e-6, 1e6
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if below(mixture, middle) < p else (low, middle)
    return math.sqrt(low * high)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """×``factor``; ``tail_only``: nothing below the 93 % quantile, rising log-linearly to
    ``factor`` at the 98.5 % quantile and above; ``from_look``: when it comes."""

    factor: float
    tail_only: bool = False
    from_look: int = 0

    def undo(self, mixture: Mixture, slow: float) -> float:
        """The latency that became ``slow`` seconds."""
        if not self.tail_only:
            return slow / self.factor
        a, b = (math.log(quantile(mixture, p)) for p in (0.93, 0.985))
        gain, y = math.log(self.factor), math.log(slow)
        if y <= a:
            return slow
        if y >= b + gain:
            return slow / self.factor
        return math.exp(a + (y - a) / (1 + gain / (b - a)))


NONE = Slowdown(1.0)


def shares(mixture: Mixture, slowdown: Slowdown, edges: Floats) -> Floats:
    """Of each bucket, the one beyond the last edge included."""
    return _shares(mixture, slowdown, tuple(map(float, edges)))


@cache
def _shares(mixture: Mixture, slowdown: Slowdown, edges: tuple[float, ...]) -> Floats:
    cdf = [below(mixture, slowdown.undo(mixture, edge)) for edge in edges]
    return np.diff(np.array([0.0, *cdf, 1.0]))


@njit(nogil=True, cache=True)
def _draws(rng, expected, cdf, counts):  # type: ignore[no-untyped-def]
    for look in range(counts.shape[0]):
        for _ in range(rng.poisson(expected)):
            counts[look, np.searchsorted(cdf, rng.random())] += 1


@njit(nogil=True, cache=True)
def _batches(rng, means, least, most, counts):  # type: ignore[no-untyped-def]
    for look in range(counts.shape[0]):
        for bucket in range(means.size):
            if means[bucket] > 1e-12:
                for _ in range(rng.poisson(means[bucket])):
                    counts[look, bucket] += least + int(rng.random() * (most + 1 - least))


@dataclass(frozen=True, slots=True)
class Independent:
    """20 requests a second over ten engines, each latency drawn from :data:`LATENCY`."""

    name: str = "iid"
    rate_per_engine: float = 2.0
    ruler = REQUESTS

    def load(self, rng: Any) -> Floats:
        """Steady."""
        del rng
        return np.ones(1)

    def arm(self, rng: Any, load: Floats, engines: int, slowdown: Slowdown = NONE) -> Counts:
        """Cumulative counts [looks, edges + 1] of so many engines together."""
        del load
        counts = np.zeros((LOOKS, self.ruler.edges.size + 1), np.int64)
        onset, expected = slowdown.from_look, engines * self.rate_per_engine * LOOK_S
        for change, first, last in ((NONE, 0, onset), (slowdown, onset, LOOKS)):
            cdf = shares(LATENCY, change, self.ruler.edges).cumsum()[:-1]
            _draws(rng, expected, cdf, counts[first:last])
        return counts.cumsum(axis=1)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Gaps between tokens: each step of an engine gives one gap to every sequence in it."""

    name: str = "tokens"
    ruler = TOKENS

    def load(self, rng: Any) -> Floats:
        """Steady."""
        del rng
        return np.ones(1)

    def arm(self, rng: Any, load: Floats, engines: int, slowdown: Slowdown = NONE) -> Counts:
        del load
        mean_step_s = sum(w * median * math.exp(s * s / 2) for w, median, s in STEP)
        steps = engines * LOOK_S / (mean_step_s * slowdown.factor)
        counts = np.zeros((LOOKS, self.ruler.edges.size + 1), np.int64)
        _batches(rng, steps * shares(STEP, slowdown, self.ruler.edges), *BATCH, counts)
        return counts.cumsum(axis=1)

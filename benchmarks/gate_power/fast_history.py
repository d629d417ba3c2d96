"""An accelerated copy of ``canaryctl.gates.history.learn`` for one signal and one quantile."""

import numpy as np
from numba import njit

from benchmarks.gate_power.fast import learned, low_edge, pasts, total
from canaryctl.gates import history
from canaryctl.gates.rules.quantile_regression import LOW_PHI
from canaryctl.gates.stats import dependence

NEAR, UPPER_90 = dependence._NEAR, dependence.UPPER_90
ENOUGH = history.ENOUGH_EXCEEDANCES


@njit(nogil=True, cache=True)
def exceedances(engines, grid, look_s, p):  # type: ignore[no-untyped-def]
    """[looks, engines] above the edge of the p-quantile, −1 in a look that has none."""
    count, looks, size = engines.shape
    pooled = np.zeros((looks, size), np.int64)
    for engine in range(count):
        pooled += engines[engine]
    whole = np.zeros(size, np.int64)
    for look in range(looks):
        whole += pooled[look]
    before = pasts(pooled, look_s)
    found = np.full((looks, count), -1, np.int64)
    for look in range(looks):
        past = before[look] if learned(before[look], p) else whole
        i = low_edge(grid, past, p)
        if i >= 0:
            for engine in range(count):
                found[look, engine] = engines[engine, look, -1] - engines[engine, look, i]
    return found


@njit(nogil=True, cache=True)
def past(engines, look_s):  # type: ignore[no-untyped-def]
    """Of all engines together, the last half hour."""
    count, looks, size = engines.shape
    pooled = np.zeros((looks + 1, size), np.int64)
    for engine in range(count):
        pooled[:looks] += engines[engine]
    return pasts(pooled, look_s)[looks]


@njit(nogil=True, cache=True)
def _phi(looks, length):  # type: ignore[no-untyped-def]
    """(φ or −1, exceedances, usable blocks) of blocks of so many looks, of five engines or more."""
    engines = looks.shape[1]
    count = looks.shape[0] // length
    means, squares = np.empty(count), np.empty(count * engines)
    usable, counted = 0, 0
    for b in range(count):
        part = looks[b * length : (b + 1) * length]
        if part.min() < 0:
            continue
        sums = part.sum(axis=0)
        counted += sums.sum()
        mean = sums.sum() / engines
        for engine in range(engines):
            squares[usable * engines + engine] = (sums[engine] - mean) ** 2
        means[usable] = mean
        usable += 1
    below = total(means[:usable])
    if below == 0:
        return -1.0, counted, usable
    return total(squares[: usable * engines]) / ((engines - 1) * below), counted, usable


@njit(nogil=True, cache=True)
def learn(engines, grid, look_s, p, lengths, least):  # type: ignore[no-untyped-def]
    """What ``fast.judge`` takes as its method: (block looks or 0, φ, φ_U, 1 if it may pass).

    ``engines``: [engines, looks, edges] cumulative; ``lengths``: of blocks in looks, the last one
    five minutes long; ``least``: of the block.
    """
    looks = exceedances(engines, grid, look_s, p)
    phi, counted, blocks = _phi(looks, lengths[-1])
    if phi < 0 or blocks < 2 or counted < ENOUGH:
        return np.array([4.0, 1.0, 1.0, 0.0])
    clamped = max(1.0, phi)
    upper = clamped * (1 + UPPER_90 * np.sqrt(2 / ((engines.shape[0] - 1) * blocks)))
    if clamped <= LOW_PHI:
        return np.array([0.0, clamped, upper, 1.0])
    block = lengths[-1]
    for length in lengths:
        found = _phi(looks, length)[0]
        if found >= 0 and found >= NEAR * phi:
            block = length
            break
    return np.array([float(max(block, least)), clamped, upper, 1.0])

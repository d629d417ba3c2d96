"""An accelerated copy of the latency gates, for the thousands of releases that a rate takes.

It does in compiled loops what ``canaryctl.gates`` does look by look, operation for operation, so
that every log e-value is the same float: tests/unit/test_gate_power_copy.py holds the two beside
each other. Grids, bets and constants are the gates' own.
"""

import math
import sys

import numpy as np
from numba import njit

from canaryctl.gates.rules.quantile_regression import LOW_PHI
from canaryctl.gates.stats import block, edges, lr, mixture

FAIL_GRID, PASS_GRID = np.array(lr.FAIL_GRID), np.array(lr.PASS_GRID)
BETS = np.array(block.BETS)
TOLERANCE, LEARN, TRAILING_S = edges.TOLERANCE, edges.LEARN_EXCEEDANCES, edges.TRAILING_S
CHUNK_S = edges._CHUNK_S
WHOLE_PERCENT = edges.WHOLE_PERCENT
STARTS, SPACING_S = mixture.STARTS, mixture.START_SPACING_S
COMPENSATED = sys.version_info >= (3, 12)  # the built-in sum of floats, since then


@njit(nogil=True, cache=True)
def total(values):  # type: ignore[no-untyped-def]
    """The built-in ``sum`` of floats."""
    high, low = 0.0, 0.0
    for x in values:
        t = high + x
        if COMPENSATED:
            low += (high - t) + x if abs(high) >= abs(x) else (x - t) + high
        high = t
    return high + low


@njit(nogil=True, cache=True)
def _first_at_least(ordered, x, low, high):  # type: ignore[no-untyped-def]
    """bisect_left"""
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def _first_above(ordered, x, low, high):  # type: ignore[no-untyped-def]
    """bisect_right"""
    while low < high:
        middle = (low + high) // 2
        if x < ordered[middle]:
            high = middle
        else:
            low = middle + 1
    return low


@njit(nogil=True, cache=True)
def pasts(cumulative, look_s):  # type: ignore[no-untyped-def]
    """Before each look: counts of the trailing half hour, in chunks as ``edges.remember`` keeps
    them; zeros before the first. [looks, edges]"""
    looks, size = cumulative.shape
    found = np.zeros((looks, size), np.int64)
    starts = np.empty(looks)
    chunks = np.zeros((looks, size), np.int64)
    first, last = 0, -1
    for look in range(looks):
        for chunk in range(first, last + 1):
            found[look] += chunks[chunk]
        at = look_s * (look + 1)
        while first <= last and at - starts[first] >= TRAILING_S:
            first += 1
        if first > last or at - starts[last] >= CHUNK_S:
            last += 1
            starts[last] = at
        chunks[last] += cumulative[look]
    return found


@njit(nogil=True, cache=True)
def low_edge(grid, past, p):  # type: ignore[no-untyped-def]
    """i of ``edges.choose``; −1: none. ``grid`` ends with +Inf."""
    finite = grid.size - 1
    i = _first_above(past, p * past[-1] * (1 + 1e-12), 0, finite) - 1
    return -1 if i < 0 or grid[i] <= 0 else i


@njit(nogil=True, cache=True)
def learned(past, p):  # type: ignore[no-untyped-def]
    """``edges.learned``"""
    return past[-1] > 0 and past[-1] * (1 - p) >= LEARN * (1 - 1e-12)


@njit(nogil=True, cache=True)
def _question(grid, past, first, p, r, m):  # type: ignore[no-untyped-def]
    """(i, j_fail, j_pass) of ``edges.choose``, by the release's past or, as long as that is too
    short, by the history's; −1: there is nothing to ask yet."""
    finite = grid.size - 1
    known = past if learned(past, p) else first
    i = low_edge(grid, known, p) if learned(known, p) else -1
    if i < 0:
        return -1, -1, -1
    j_fail = _first_at_least(grid, (1 + r) * grid[i] * (1 - TOLERANCE), i + 1, grid.size)
    j_pass = _first_above(grid, (1 + m + WHOLE_PERCENT) * grid[i], i, finite) - 1
    return (-1 if j_fail >= finite else i), j_fail, j_pass


@njit(nogil=True, cache=True)
def _log_mean_exp(logs):  # type: ignore[no-untyped-def]
    top = logs.max()
    exps = np.empty(logs.size)
    for index in range(logs.size):
        exps[index] = math.exp(logs[index] - top)
    return top + math.log(total(exps) / logs.size)


@njit(nogil=True, cache=True)
def mix(logs, weights):  # type: ignore[no-untyped-def]
    """``mixture.log_weighted_exp`` of each column of ``logs`` [quantiles, looks]."""
    found = np.empty(logs.shape[1])
    terms = np.empty(logs.shape[0])
    for look in range(logs.shape[1]):
        top = logs[:, look].max()
        for index in range(logs.shape[0]):
            terms[index] = weights[index] * math.exp(logs[index, look] - top)
        found[look] = top + math.log(total(terms))
    return found


@njit(nogil=True, cache=True)
def _log_e_late(logs, starts, started):  # type: ignore[no-untyped-def]
    terms = np.empty(started + 2)
    terms[0] = math.log(0.5) + _log_mean_exp(logs)
    weight = math.log(0.5 / STARTS)
    for index in range(started):
        terms[index + 1] = weight + _log_mean_exp(logs - starts[index])
    count = started + 1
    if started < STARTS:
        terms[count] = weight + math.log(STARTS - started)
        count += 1
    top = terms[:count].max()
    exps = np.empty(count)
    for index in range(count):
        exps[index] = math.exp(terms[index] - top)
    return top + math.log(total(exps))


@njit(nogil=True, cache=True)
def _likelihood(logs, grid, k_c, k_b, n_c, n_b, phi):  # type: ignore[no-untyped-def]
    """``lr.update`` at ρ0 = 1, in place."""
    if k_c + k_b <= 0 or n_c <= 0 or n_b <= 0:
        return
    null = 1.0 * n_c + n_b
    for index in range(grid.size):
        g = grid[index]
        shared = math.log(null / (1.0 * g * n_c + n_b))
        logs[index] += (k_c * (math.log(g) + shared) + k_b * shared) / phi


@njit(nogil=True, cache=True)
def _block_share(logs, failing, k_c, k_b, n_c, n_b):  # type: ignore[no-untyped-def]
    """``block.update_fail`` or ``update_pass`` at ρ0 = 1, in place."""
    if k_c + k_b <= 0 or n_c <= 0 or n_b <= 0:
        return
    share = n_c / (n_c + n_b)
    x = k_c / (k_c + k_b) - share
    for index in range(BETS.size):
        stake = BETS[index] / share if failing else -BETS[index] / (1 - share)
        logs[index] += math.log1p(stake * x)


@njit(nogil=True, cache=True)
def judge(canary, baseline, before, first, grid, look_s, p, r, m, method):  # type: ignore[no-untyped-def]
    """One quantile over a whole release: (ln E_fail, ln E_pass) after each look, NaN for a pass
    that is not on offer.

    ``canary``, ``baseline``: [looks, edges] cumulative; ``before``: :func:`pasts`; ``first``: the
    history's past, zeros without one; ``grid``: edges, +Inf last; ``method``: (block_looks or 0
    for (A), φ, φ_U, 1 if a pass is on offer).
    """
    block_looks, phi_upper, passes = int(method[0]), method[2], method[3] > 0
    likelihood = block_looks == 0
    looks = canary.shape[0]
    fail, pass_a, pass_b = np.zeros(8), np.zeros(8), np.zeros(8)
    starts = np.zeros((STARTS, 8))
    started, origin = 0, -1.0
    opened = np.zeros(5, np.int64)
    open_looks = 0
    log_fail = np.full(looks, _log_e_late(fail, starts, 0))
    log_pass = np.full(looks, 0.0 if passes else np.nan)
    for look in range(looks):
        if look > 0:
            log_fail[look], log_pass[look] = log_fail[look - 1], log_pass[look - 1]
        i, j_fail, j_pass = _question(grid, before[look], first, p, r, m)
        if i < 0:
            continue
        at = look_s * (look + 1)
        if origin < 0:
            origin = at
        due = min(STARTS, int((at - origin) // SPACING_S))
        starts[started:due] = fail
        started = max(started, due)
        n_c, n_b = canary[look, -1], baseline[look, -1]
        k_fail, k_pass = n_c - canary[look, j_fail], n_c - canary[look, j_pass]
        k_b = n_b - baseline[look, i]
        if likelihood:
            _likelihood(fail, FAIL_GRID, k_fail, k_b, n_c, n_b, phi_upper)
        if passes:
            _likelihood(pass_a, PASS_GRID, k_pass, k_b, n_c, n_b, max(phi_upper, LOW_PHI))
        if not likelihood:
            opened += np.array([k_fail, k_b, n_c, n_b, k_pass])
            open_looks += 1
            if open_looks == block_looks:
                _block_share(fail, True, opened[0], opened[1], opened[2], opened[3])
                if passes:
                    _block_share(pass_b, False, opened[4], opened[1], opened[2], opened[3])
                opened[:] = 0
                open_looks = 0
        log_fail[look] = _log_e_late(fail, starts, started)
        if passes:
            log_pass[look] = _log_mean_exp(pass_a)
            if not likelihood:
                log_pass[look] = min(log_pass[look], _log_mean_exp(pass_b))
    return log_fail, log_pass

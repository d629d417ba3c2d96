"""What others judge by, for comparison: each takes a path and says at which look it fails it.

Thresholds read ``histogram_quantile`` over a window of vLLM's own buckets, and fail a canary whose
p99 is more than 1.1 times the baseline's. Mann–Whitney judges points of p99 as Kayenta does.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from benchmarks.gate_power.independent import LOOK_S
from benchmarks.gate_power.ruler import Counts, Floats, Path

P = 0.99
RATIO = 1.1
CHECKS = 5
CONFIDENCE_Z = 2.3263478740408408  # two-sided 98 %, Kayenta's
TOLERANCE = 0.25  # of the estimated shift, Kayenta's

Judge = Callable[[Path], int | None]
"""The look (from 0) at which the canary is failed; None: never."""


def quantile(edges: Floats, cumulative: Counts) -> Floats:
    """p99 of each row as Prometheus interpolates it; NaN without observations."""
    rank = P * cumulative[:, -1]
    bucket = np.minimum((cumulative < rank[:, None]).sum(axis=1), edges.size)
    padded = np.concatenate([np.zeros((len(cumulative), 1), np.int64), cumulative], axis=1)
    rows = np.arange(len(cumulative))
    below = padded[rows, bucket]
    inside = padded[rows, bucket + 1] - below
    lower, upper = np.append(0.0, edges)[bucket], np.append(edges, edges[-1])[bucket]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = (rank - below) / inside
    found = np.where(bucket == edges.size, edges[-1], lower + (upper - lower) * part)
    return np.where(cumulative[:, -1] > 0, found, np.nan)


def window(counts: Counts, looks: int) -> Counts:
    """Sums over the last ``looks`` looks, from the first full window on."""
    total = np.concatenate([np.zeros((1, counts.shape[1]), np.int64), counts.cumsum(axis=0)])
    return np.asarray(total[looks:] - total[:-looks])


def _ratios(path: Path, looks: int) -> Floats:
    edges, columns = path.ruler.coarse_edges(), path.ruler.coarse
    canary, baseline = (
        quantile(edges, window(arm[:, columns], looks)) for arm in (path.canary, path.baseline)
    )
    return canary / baseline


def threshold(path: Path, *, looks: int = 4) -> int | None:
    """The first look at which the last minute is worse."""
    bad = np.flatnonzero(_ratios(path, looks) > RATIO)
    return int(bad[0]) + looks - 1 if bad.size else None


def five_in_a_row(path: Path, *, looks: int = 20) -> int | None:
    """Five looks one after the other at which the last five minutes are worse."""
    run = 0
    for index, bad in enumerate(_ratios(path, looks) > RATIO):
        run = run + 1 if bad else 0
        if run == CHECKS:
            return index + looks - 1
    return None


def flagger(path: Path, *, looks: int = 4) -> int | None:
    """A check of the last minute every minute; the fifth failed one rolls back."""
    bad = np.flatnonzero(_ratios(path, looks)[::looks] > RATIO)
    return (int(bad[CHECKS - 1]) + 1) * looks - 1 if bad.size >= CHECKS else None


def mann_whitney(path: Path, *, looks_per_point: int, looks_per_judgement: int) -> int | None:
    """All points so far, again and again: failed once the lower 98 % bound of the Hodges–Lehmann
    shift exceeds a quarter of its estimate. Normal approximation with continuity correction."""
    edges, columns = path.ruler.coarse_edges(), path.ruler.coarse
    canary, baseline = (
        quantile(edges, window(arm[:, columns], looks_per_point)[::looks_per_point])
        for arm in (path.canary, path.baseline)
    )
    step = looks_per_judgement // looks_per_point
    for n in range(step, canary.size + 1, step):
        x, y = canary[:n][~np.isnan(canary[:n])], baseline[:n][~np.isnan(baseline[:n])]
        shifts = (x[:, None] - y[None, :]).ravel()
        if not shifts.size:
            continue
        limit = TOLERANCE * abs(float(np.median(shifts)))
        wins = (shifts > limit).sum() + 0.5 * (shifts == limit).sum()
        spread = np.sqrt(shifts.size * (x.size + y.size + 1) / 12)
        if wins - shifts.size / 2 - 0.5 > CONFIDENCE_Z * spread:
            return n * looks_per_point - 1
    return None


PER_MINUTE = int(60 / LOOK_S)
JUDGES: Mapping[str, Judge] = {
    "p99 ratio > 1.1, 1 min": threshold,
    "the same of 5 min, five looks in a row": five_in_a_row,
    "Flagger: five failed checks of 1 min": flagger,
    "Mann–Whitney, points of 60 s, each 5 min": partial(
        mann_whitney, looks_per_point=PER_MINUTE, looks_per_judgement=5 * PER_MINUTE
    ),
    "Mann–Whitney, points of 15 s, each 1 min": partial(
        mann_whitney, looks_per_point=1, looks_per_judgement=PER_MINUTE
    ),
}

"""Which bucket edges a quantile question is asked at.

The edges come from the baseline's data strictly before the look that they judge; chosen so,
they may move from look to look without touching the guarantee. With K(e) = observations > e:

    i      = the largest edge whose exceedance share is still ≥ 1−p
    j_fail = the smallest edge ≥ (1+r)·e_i      j_pass = the largest edge ≤ (1+m)·e_i, m rounded

and what is tested is P(C > e_j) ≤ P(B > e_i): the statement about the quantile at the
resolution of the edges. Edges are compared with a relative tolerance, because engines print
them rounded. Source: docs/gates.md.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

TOLERANCE = 1e-6
WHOLE_PERCENT = 0.005
"""Margins are written as whole per cents: 33 % means the edge at 1.331, not the one before it."""
TRAILING_S = 1800.0
_CHUNK_S = 300.0
LEARN_EXCEEDANCES = 3
"""Edges are chosen once the baseline's past is expected to hold so many beyond the quantile."""

Chunk = tuple[float, list[int]]  # (start, cumulative counts); a JSON list once stored


@dataclass(frozen=True, slots=True)
class Question:
    """Indices into the edges. ``j_fail`` None: no finite edge lies (1+r) above e_i."""

    i: int
    j_fail: int | None
    j_pass: int
    effective_tolerance: float | None  # e_j_fail/e_i − 1: never below r; r where edges are fine
    inside_bucket: bool = False  # (1+r)·e_i lies before the next edge: r cannot be told from less


def choose(
    edges: Sequence[float], cumulative: Sequence[int], *, p: float, r: float, m: float
) -> Question | None:
    """The question for the p-quantile; None: it lies below the first edge above zero.

    ``edges`` ascending with +Inf last, ``cumulative`` counts at or under each.
    """
    finite = len(edges) - 1
    allowed = p * cumulative[-1] * (1 + 1e-12)
    i = bisect_right(cumulative, allowed, 0, finite) - 1
    if i < 0 or edges[i] <= 0:
        return None
    low = edges[i]
    j_fail = bisect_left(edges, (1 + r) * low * (1 - TOLERANCE), i + 1)
    j_pass = bisect_right(edges, (1 + m + WHOLE_PERCENT) * low, i, finite) - 1
    if j_fail >= finite:
        return Question(i, None, j_pass, None)
    effective = edges[j_fail] / low - 1
    inside = j_fail == i + 1 and edges[j_fail] > (1 + r) * low * (1 + TOLERANCE)
    return Question(i, j_fail, j_pass, effective, inside)


def rate_ratio(
    edges: Sequence[float], cumulative: Sequence[int], i: int, factor: float
) -> float | None:
    """ρ0 = S(e_i/factor)/S(e_i): how much more often a latency ``factor`` times as long exceeds
    e_i, for ``factor`` > 1 and S = P(> x), interpolated.

    S is taken to fall as a power of x: between two edges below e_i by their own counts; inside
    the bucket that ends at e_i by the steeper of that bucket and the next one, because the tail
    of most latencies steepens and the bucket's mean understates how fast S falls at its end. None
    where either of the two is unknown. Limit: the truth inside a bucket may be anything between
    its two edges; where latencies gather near an edge ρ0 is far too small (what is within the
    tolerance looks worse) or too large (what is worse is hidden).
    """
    x = edges[i] / factor
    above = bisect_left(edges, x * (1 - TOLERANCE), 0, i)
    total = cumulative[-1]
    at_i = total - cumulative[i]
    if at_i <= 0:
        return None
    if edges[above] <= x * (1 + TOLERANCE):
        return (total - cumulative[above]) / at_i
    slope = _slope(edges, cumulative, above)
    if slope is None:
        return None
    if above == i:
        beyond = _slope(edges, cumulative, i + 1)
        return None if beyond is None else factor ** float(max(slope, beyond))
    s_above = total - cumulative[above]
    return s_above / at_i * float((edges[above] / x) ** slope)


def _slope(edges: Sequence[float], cumulative: Sequence[int], above: int) -> float | None:
    """−d ln S/d ln x over the bucket that ends at the edge ``above``; None where unknown."""
    total = cumulative[-1]
    if above == 0 or edges[above - 1] <= 0 or cumulative[above] >= total:
        return None
    fall = math.log((total - cumulative[above - 1]) / (total - cumulative[above]))
    return fall / math.log(edges[above] / edges[above - 1])


def learned(past: Sequence[int], p: float) -> bool:
    """Whether the baseline's past is long enough to place its p-quantile."""
    return bool(past) and past[-1] * (1 - p) >= LEARN_EXCEEDANCES * (1 - 1e-12)


def exceedances(cumulative: Sequence[int], index: int) -> int:
    """Observations above the edge ``index``."""
    return cumulative[-1] - cumulative[index]


def share_above(edges: Sequence[float], cumulative: Sequence[int], x: float) -> float:
    """A lower bound of P(> x): the share above the smallest edge ≥ x."""
    index = bisect_left(edges, x * (1 - TOLERANCE))
    return exceedances(cumulative, min(index, len(edges) - 1)) / cumulative[-1]


def quantile(edges: Sequence[float], cumulative: Sequence[int], p: float) -> float | None:
    """The p-quantile for people: linear inside its bucket; the last finite edge if beyond it."""
    total = cumulative[-1]
    if total <= 0 or len(edges) < 2:
        return None
    rank = p * total
    index = bisect_left(cumulative, rank)
    if index >= len(edges) - 1:
        return edges[-2]
    low, below = (edges[index - 1], cumulative[index - 1]) if index else (0.0, 0)
    inside = cumulative[index] - below
    return low + (edges[index] - low) * ((rank - below) / inside if inside else 1.0)


def remember(
    history: Sequence[Chunk], at: float, cumulative: Sequence[int], *, since: float = -math.inf
) -> list[Chunk]:
    """The trailing half hour, in chunks of five minutes, after one more look. A chunk that began
    before ``since`` is not added to."""
    kept = [c for c in history if at - c[0] < TRAILING_S]
    if kept and at - kept[-1][0] < _CHUNK_S and kept[-1][0] >= since:
        start, counts = kept[-1]
        return [*kept[:-1], (start, list(map(add, counts, cumulative)))]
    return [*kept, (at, list(cumulative))]


def recall(history: Sequence[Chunk], *, since: float = -math.inf) -> list[int]:
    """Cumulative counts of the trailing window, from ``since`` on; empty without any."""
    chunks = [counts for start, counts in history if start >= since]
    if len(chunks) == 1:
        return list(chunks[0])
    return list(map(sum, zip(*chunks, strict=True)))

"""Which bucket edges a quantile question is asked at.

The edges come from the baseline's data strictly before the look that they judge; chosen so,
they may move from look to look without touching the guarantee. With K(e) = observations > e:

    i      = the largest edge whose exceedance share is still ≥ 1−p
    j_fail = the smallest edge ≥ (1+r)·e_i      j_pass = the largest edge ≤ (1+m)·e_i

and what is tested is P(C > e_j) ≤ P(B > e_i): the statement about the quantile at the
resolution of the edges. Edges are compared with a relative tolerance, because engines print
them rounded. Source: docs/gates.md.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE = 1e-6
TRAILING_S = 1800.0
_CHUNK_S = 300.0

Chunk = tuple[float, list[int]]  # (start, cumulative counts); a JSON list once stored


@dataclass(frozen=True, slots=True)
class Question:
    """Indices into the edges. ``j_fail`` None: no finite edge lies (1+r) above e_i."""

    i: int
    j_fail: int | None
    j_pass: int
    effective_tolerance: float | None  # e_j_fail/e_i − 1: never below r; r where edges are fine


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
    j_pass = bisect_right(edges, (1 + m) * low * (1 + TOLERANCE), i, finite) - 1
    if j_fail >= finite:
        return Question(i, None, j_pass, None)
    return Question(i, j_fail, j_pass, edges[j_fail] / low - 1)


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


def remember(history: Sequence[Chunk], at: float, cumulative: Sequence[int]) -> list[Chunk]:
    """The trailing half hour, in chunks of five minutes, after one more look."""
    kept = [c for c in history if at - c[0] < TRAILING_S]
    if kept and at - kept[-1][0] < _CHUNK_S:
        start, counts = kept[-1]
        return [*kept[:-1], (start, [a + b for a, b in zip(counts, cumulative, strict=True)])]
    return [*kept, (at, list(cumulative))]


def recall(history: Sequence[Chunk]) -> list[int]:
    """Cumulative counts of the whole trailing window; empty without any."""
    return [sum(column) for column in zip(*(counts for _, counts in history), strict=True)]

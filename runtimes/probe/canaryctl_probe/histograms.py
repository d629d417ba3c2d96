"""Histograms that are cheap to fill at every token, and their edges.

A histogram of prometheus_client walks its edges one by one, too slow for one of 250 edges that
is asked for every token. Counts here are plain numbers, cumulative only when shown.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K")

EDGE_RATIO = 1.1**0.5  # neighbours differ by 4.9 %, so a tolerance of 10 % is two edges

EXACT_UP_TO = 512  # sizes: an edge at every whole number
SIZES_PER_OCTAVE = 8  # above: neighbours differ by 6 to 12.5 %


def log_edges(first: float, last: float) -> tuple[float, ...]:
    """``first · 1.1^(k/2)`` for k = 0, 1, … up to ``last``, in seconds."""
    count = math.floor(math.log(last / first) / math.log(EDGE_RATIO) + 1e-9) + 1
    return tuple(float(f"{first * EDGE_RATIO**k:.9g}") for k in range(count))


def size_edges(limit: int) -> tuple[float, ...]:
    """1, 2, 3, … 512, then eight in each doubling, until ``limit`` is reached."""
    edges = list(range(1, min(limit, EXACT_UP_TO) + 1))
    while edges[-1] < limit:
        octave = EXACT_UP_TO << ((edges[-1] // EXACT_UP_TO).bit_length() - 1)
        edges.append(edges[-1] + octave // SIZES_PER_OCTAVE)
    return tuple(map(float, edges))


REQUEST_EDGES = log_edges(0.001, 165.0)  # to the first token, to the last one
TOKEN_EDGES = log_edges(0.0002, 10.0)  # between tokens
STEP_EDGES = log_edges(0.0002, 0.3)  # one step that decodes


class Histogram:
    """Counts between edges, and the sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """ValueError for what no duration or size can be: a histogram that holds one NaN has no
        sum any more."""
        if not 0 <= value < math.inf:
            raise ValueError(f"found {value!r}, expected a number from 0")
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def observe_all(self, values: Iterable[float]) -> None:
        """Sequences of one step mostly report the very same time, so equal ones are one."""
        for value, times in Counter(iter(values)).items():
            self.observe(value, times)

    def copy(self) -> "Histogram":
        found = Histogram(self._bounds)
        found._counts, found._sum = self._counts.copy(), self._sum
        return found

    def shown(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper edge, and the sum."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if math.isinf(bound) else repr(bound), float(total)))
        return buckets, self._sum


def copies(histograms: Mapping[K, Histogram]) -> dict[K, Histogram]:
    return {key: histogram.copy() for key, histogram in histograms.items()}

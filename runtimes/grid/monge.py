"""Shortest paths over sizes, where taking size ``j`` after size ``i`` costs

    node[j] + (cd[j] - cd[i])·xd[j] + (cm[j] - cm[i])·xm[j]

for non-decreasing counts ``cd``, ``cm`` and non-decreasing prices ``xd``, ``xm``: every step
between ``i`` and ``j`` pays the price of ``j``. Such a cost has the Monge property

    cost(i, j) + cost(i', j') ≤ cost(i, j') + cost(i', j)    for i < i' ≤ j < j',

since the difference of the two sides is (c[i'] - c[i])·(x[j'] - x[j]) ≥ 0, summed over both
kinds. So the best ``i`` does not fall as ``j`` grows, which both algorithms here rest on: divide
and conquer for a given number of sizes (Yao 1980; O(n log n) a size), and a queue of candidates
for any number of them (Hirschberg and Larmore 1987, the least-weight subsequence; O(n log n)).

Where prices fall somewhere, every candidate is compared instead: exact as well, and slower.

Index 0 is the start: nothing captured. What it costs to begin at ``j`` is ``first[j]`` on top.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Values = list[float]


@dataclass(frozen=True, slots=True)
class Costs:
    """Arrays over 0..n; ``end[j]``: what it costs to stop after ``j`` (math.inf: not allowed)."""

    cd: Sequence[float]
    cm: Sequence[float]
    xd: Sequence[float]
    xm: Sequence[float]
    node: Sequence[float]
    first: Sequence[float]
    end: Sequence[float]

    def __len__(self) -> int:
        return len(self.node)

    @property
    def monotone(self) -> bool:
        return all(a <= b for prices in (self.xd, self.xm) for a, b in pairwise(prices))

    def begin(self, j: int) -> float:
        return self.first[j] + self.edge(0, j)

    def edge(self, i: int, j: int) -> float:
        return (
            self.node[j]
            + (self.cd[j] - self.cd[i]) * self.xd[j]
            + (self.cm[j] - self.cm[i]) * self.xm[j]
        )


def path_to(costs: Costs) -> tuple[Values, list[int]]:
    """For each ``j`` the least cost of any path that ends there, and the size before it."""
    n = len(costs)
    cd, cm, xd, xm = costs.cd, costs.cm, costs.xd, costs.xm
    fixed = [costs.node[j] + cd[j] * xd[j] + cm[j] * xm[j] for j in range(n)]
    best, before = [0.0] * n, [0] * n
    queue = _candidates(costs)(cd, cm, xd, xm, n)
    for j in range(1, n):
        best[j] = costs.begin(j)
        found, at = queue.least(j)
        if found + fixed[j] < best[j]:
            best[j], before[j] = found + fixed[j], at
        queue.add(j, best[j])
    return best, before


def path_from(costs: Costs) -> Values:
    """For each ``i`` from 1 the least cost of what follows it, its end included."""
    n = len(costs)
    cd, cm, xd, xm = costs.cd, costs.cm, costs.xd, costs.xm
    # The same search from the other side: there, counts are the prices and prices the counts.
    queue = _candidates(costs)(
        [-x for x in reversed(xd)],
        [-x for x in reversed(xm)],
        [-c for c in reversed(cd)],
        [-c for c in reversed(cm)],
        n,
    )
    best = [math.inf] * n
    for i in range(n - 1, 0, -1):
        mirrored = n - 1 - i
        found, _ = queue.least(mirrored)
        best[i] = min(costs.end[i], found)
        if best[i] < math.inf:
            queue.add(mirrored, best[i] + costs.node[i] + cd[i] * xd[i] + cm[i] * xm[i])
    return best


class _Candidates:
    """Which of the candidates added so far is least at ``j``: value - a·x[j] - b·y[j].

    They are added with non-decreasing ``a`` and ``b``, and asked for at non-decreasing ``x`` and
    ``y``: once a later one is less than an earlier one, it stays so.
    """

    def __init__(
        self, a: Sequence[float], b: Sequence[float], x: Sequence[float], y: Sequence[float], n: int
    ) -> None:
        self._a, self._b, self._x, self._y, self._n = a, b, x, y, n
        self._queue: deque[tuple[int, float, int]] = deque()  # candidate, its value, best from

    def least(self, j: int) -> tuple[float, int]:
        queue = self._queue
        while len(queue) > 1 and queue[1][2] <= j:
            queue.popleft()
        if not queue:
            return math.inf, 0
        at, value, _ = queue[0]
        return value - self._a[at] * self._x[j] - self._b[at] * self._y[j], at

    def add(self, at: int, value: float) -> None:
        """It can be asked for from ``at + 1`` on."""
        a, b, x, y, queue = self._a, self._b, self._x, self._y, self._queue
        start = at + 1
        while queue:
            last, last_value, last_start = queue[-1]
            da, db, gain = a[at] - a[last], b[at] - b[last], value - last_value
            low = max(last_start, at + 1)
            if low >= self._n:
                return
            if gain - da * x[low] - db * y[low] < 0:
                if low == last_start:
                    queue.pop()
                    continue
                queue.append((at, value, low))
                return
            high = self._n  # the first j at which the new one is less lies in (low, high]
            while low + 1 < high:
                middle = (low + high) // 2
                if gain - da * x[middle] - db * y[middle] < 0:
                    high = middle
                else:
                    low = middle
            start = high
            break
        if start < self._n:
            queue.append((at, value, start))


class _Unordered(_Candidates):
    """The same for prices in any order: all candidates are compared."""

    def least(self, j: int) -> tuple[float, int]:
        x, y = self._x[j], self._y[j]
        return min(
            ((value - self._a[at] * x - self._b[at] * y, at) for at, value, _ in self._queue),
            default=(math.inf, 0),
        )

    def add(self, at: int, value: float) -> None:
        self._queue.append((at, value, at + 1))


def _candidates(costs: Costs) -> type[_Candidates]:
    return _Candidates if costs.monotone else _Unordered


def paths_by_count(costs: Costs, most: int) -> list[tuple[float, tuple[int, ...]]]:
    """For 1, 2, … sizes, at most ``most``: the least cost with exactly that many, and the sizes'
    indices. math.inf and () where that many cannot be had."""
    n = len(costs)
    layers: list[tuple[Values, list[int]]] = []
    found: list[tuple[float, tuple[int, ...]]] = []
    for count in range(1, min(most, n - 1) + 1):
        if not layers:
            layers.append(([math.inf, *(costs.begin(j) for j in range(1, n))], [0] * n))
        else:
            layers.append(_one_more(costs, layers[-1][0], count))
        reached = layers[-1][0]
        value, last = min((reached[j] + costs.end[j], j) for j in range(count, n))
        found.append((value, _trace(layers, last) if value < math.inf else ()))
    return found


def rest_by_count(costs: Costs, most: int) -> list[Values]:
    """For exactly 0, 1, …, ``most`` more sizes: the least cost of what follows each size."""
    n = len(costs)
    cd, cm, xd, xm = costs.cd, costs.cm, costs.xd, costs.xm
    rest = [list(costs.end)]
    for _ in range(most):
        value = [r + costs.node[j] + cd[j] * xd[j] + cm[j] * xm[j] for j, r in enumerate(rest[-1])]
        rest.append(
            [
                min(
                    (
                        v - cd[i] * x - cm[i] * y
                        for v, x, y in zip(value[i + 1 :], xd[i + 1 :], xm[i + 1 :], strict=True)
                    ),
                    default=math.inf,
                )
                for i in range(n)
            ]
        )
    return rest


def _one_more(costs: Costs, previous: Values, count: int) -> tuple[Values, list[int]]:
    """The layer of ``count`` sizes from that of one less, by divide and conquer."""
    n = len(costs)
    cd, cm, xd, xm = costs.cd, costs.cm, costs.xd, costs.xm
    values, before = [math.inf] * n, [0] * n
    if costs.monotone:
        work = [(count, n - 1, count - 1, n - 2)]
    else:
        work = [(j, j, count - 1, n - 2) for j in range(count, n)]
    while work:
        j_low, j_high, i_low, i_high = work.pop()
        if j_low > j_high:
            continue
        j = (j_low + j_high) // 2
        x, y, to = xd[j], xm[j], min(j, i_high + 1)
        choices = [
            value - a * x - b * y
            for value, a, b in zip(previous[i_low:to], cd[i_low:to], cm[i_low:to], strict=True)
        ]
        least = min(choices)
        i = i_low + choices.index(least)
        values[j] = least + costs.node[j] + cd[j] * x + cm[j] * y
        before[j] = i
        work.append((j_low, j - 1, i_low, i))
        work.append((j + 1, j_high, i, i_high))
    return values, before


def _trace(layers: Sequence[tuple[Values, list[int]]], last: int) -> tuple[int, ...]:
    path = [last]
    for _, before in reversed(layers[1:]):
        path.append(before[path[-1]])
    return tuple(reversed(path))

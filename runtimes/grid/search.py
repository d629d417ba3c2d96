"""The least of a goal within limits, over all grids: exactly.

Without a limit that binds, one search for a shortest path answers (``monge.py``). With one, the
limits are given prices (Lagrange multipliers). For any prices ≥ 0, and any price of a size, the
cheapest grid bounds from below what a grid of a given number of sizes can reach within the
limits: as a whole, and through each single size. Numbers of sizes whose bound is no better than
the best grid known are done with; for the others, so are single sizes. Over the few that remain
all paths are followed, but those that another one beats in everything, or whose own bound is no
better than the best grid known (constrained shortest paths: Handler and Zang 1980; Dumitrescu and
Boland 2003). For the number of sizes the bounds are tight, since costs are convex in it (Monge);
so little remains. Of a limit on memory or capture time they are not always: where following the
paths would take more than ``_WORK`` extensions, the best grid known is the answer, with how far
below it the bound leaves room (``Choice.gap``; 0: proven the best). The same input gives the same
grid.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add
from typing import Final

from canaryctl.runtimes.grid.monge import Costs, path_from, path_to, paths_by_count, rest_by_count
from canaryctl.runtimes.grid.problem import Amounts, Problem

_SAMPLE: Final = 96  # candidates among which prices are sought; all are searched with them
_ROUNDS: Final = 4  # in which limits are given prices, the one exceeded most first
_QUADRUPLINGS: Final = 16
_HALVINGS: Final = 14
_FACTORS: Final = (0.0, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0)  # of those prices, by count
_COUNTS: Final = 48  # numbers of sizes for which prices are sought one by one
_REFINEMENTS: Final = 8  # of a price for one count, by halving
_SHRUNK: Final = 0.8  # as long as pruning leaves less than this, another round is worth it
_ROUNDING: Final = 1e-11  # relative: what adding in another order may change
_WORK: Final = 100_000  # extensions of paths, for each number of sizes
_STATES: Final = 4_000_000  # pairs of sizes, by how many came before
_SEARCHES: Final = 30_000  # paths to a candidate, while numbers of sizes are told apart
_TUNINGS: Final = 24  # of the price of a size, until the cheapest grid has as many as wanted
_LIMITS: Final = ("step_s", "over", "bytes", "capture_s")


@dataclass(slots=True)
class Choice:
    """What is sought: the least of ``goal`` with at most ``caps``, ending where ``ends`` allows.

    ``best``: the best known, with its value and its indices.
    """

    problem: Problem
    goal: Amounts
    caps: Amounts
    ends: Sequence[bool]
    best: tuple[float, tuple[int, ...]] | None = None
    floor: float = math.inf  # no grid that was not looked at is better than this

    @property
    def chosen(self) -> tuple[int, ...]:
        """The indices of the best known. ValueError where none is allowed."""
        if self.best is None:
            raise ValueError("no grid is within the limits")
        return self.best[1]

    @property
    def gap(self) -> float:
        """By what share a better grid than the best known could be better, at most."""
        if self.best is None or self.floor >= self.best[0] or not self.best[0]:
            return 0.0
        return (self.best[0] - self.floor) / abs(self.best[0])

    def offer(self, chosen: tuple[int, ...]) -> bool:
        """Whether ``chosen`` is allowed; if so, and better than the best known, it is taken."""
        use = self.problem.use(chosen)
        if not self.ends[chosen[-1] if chosen else 0] or self.exceeded(use) is not None:
            return False
        value = self.goal.dot(use)
        if self.best is None or value < self.best[0]:
            self.best = (value, chosen)
        return True

    def exceeded(self, use: Amounts) -> str | None:
        """The resource of which ``use`` is furthest above the cap."""
        excess = {
            name: amount / cap if cap else math.inf
            for name, amount, cap in zip(Amounts._fields, use, self.caps, strict=True)
            if amount > cap
        }
        return max(excess, key=lambda name: excess[name], default=None)

    def to_beat(self) -> float:
        """Only what is below this is better than the best known."""
        if self.best is None:
            return math.inf
        return self.best[0] - _ROUNDING * abs(self.best[0])

    def costs(self, weights: Amounts, indices: Sequence[int]) -> Costs:
        return self.problem.costs(weights, indices, self.ends)

    def priced(self, prices: Amounts) -> Amounts:
        return Amounts(*(g + p for g, p in zip(self.goal, prices, strict=True)))

    def cheapest(self, prices: Amounts, indices: Sequence[int]) -> tuple[int, ...]:
        """The grid of least cost at ``prices``; it is offered."""
        costs = self.costs(self.priced(prices), indices)
        reached, before = path_to(costs)
        last = min(range(len(costs)), key=lambda j: reached[j] + costs.end[j])
        path = []
        while last:
            path.append(indices[last])
            last = before[last]
        chosen = tuple(reversed(path))
        self.offer(chosen)
        return chosen


def solve(choice: Choice, indices: Sequence[int]) -> None:
    """Look for the best grid among the candidates at ``indices`` (ascending, from 0)."""
    choice.offer(())
    if len(indices) > 1 and not choice.offer(choice.cheapest(Amounts(), indices)):
        _solve_by_count(choice, indices)


def _solve_by_count(choice: Choice, indices: Sequence[int]) -> None:
    prices = _prices(choice, _sample(indices, _SAMPLE))
    most = _most_sizes(choice, indices)
    tried = min(most, _COUNTS)
    sample = _sample(indices, max(_SAMPLE, 2 * tried))
    guesses = _by_count(choice, sample, tried, [_times(prices, factor) for factor in _FACTORS])
    order = sorted(guesses, key=lambda c: (guesses[c].value, c))
    bounds = dict.fromkeys(range(1, most + 1), -math.inf)
    if not any(getattr(prices, name) for name in _LIMITS):
        # The number of sizes alone is limited: costs are convex in it, so the most is best.
        _solve_count(choice, indices, most, guesses[tried].prices, bounds, _TUNINGS)
    else:
        floor = _floor(choice, indices, prices)
        bounds = dict.fromkeys(bounds, floor) if floor < choice.to_beat() else {}
    rough = _sample(indices, 2 * _SAMPLE)
    tunings = min(_TUNINGS, 2 + _SEARCHES // len(indices))
    for _ in range(max(2, _SEARCHES // len(indices))):
        if not bounds:
            break
        _improve(choice, rough)
        count = next((c for c in order if c in bounds), min(bounds))
        nearest = min(guesses, key=lambda c: abs(c - count))
        _solve_count(choice, indices, count, guesses[nearest].prices, bounds, tunings)
    choice.floor = min([choice.floor, *bounds.values()])
    if choice.gap:
        _improve(choice, rough)


def _floor(choice: Choice, indices: Sequence[int], prices: Amounts) -> float:
    """What no grid of any number of sizes can go below, at prices in this proportion."""
    floor, low, high = -math.inf, 0.0, 2.0
    for _ in range(_REFINEMENTS):
        middle = _times(prices, (low + high) / 2)
        use = choice.problem.use(choice.cheapest(middle, indices))
        floor = max(floor, choice.priced(middle).dot(use) - middle.dot(choice.caps))
        if choice.exceeded(use) is None:
            high = (low + high) / 2
        else:
            low = (low + high) / 2
    return floor


def _improve(choice: Choice, indices: Sequence[int]) -> None:
    """Move, add or drop one size of the best known as long as that makes it better."""
    before: tuple[float, tuple[int, ...]] | None = None
    while choice.best is not None and choice.best != before:
        before = choice.best
        chosen = before[1]
        for k in range(len(chosen) + 1):
            rest = (*chosen[:k], *chosen[k + 1 :])
            low = chosen[k - 1] if k else 0
            high = chosen[k + 1] if k + 1 < len(chosen) else indices[-1] + 1
            choice.offer(rest)
            for other in _near(indices, low, high, chosen[k] if k < len(chosen) else low):
                choice.offer((*chosen[:k], other, *chosen[k + 1 :]))
                if k < len(chosen) and other != chosen[k]:
                    choice.offer(tuple(sorted((*chosen, other))))


def _near(indices: Sequence[int], low: int, high: int, at: int) -> list[int]:
    """Candidates between ``low`` and ``high``: those given, and the ones next to ``at``."""
    first, last = bisect_right(indices, low), bisect_left(indices, high)
    near = range(max(low + 1, at - 3), min(high, at + 4))
    return sorted({*indices[first:last], *near})


def _sample(indices: Sequence[int], size: int) -> list[int]:
    step = max(1, (len(indices) - 1) // size)
    return sorted({0, *indices[:0:-step]})


def _most_sizes(choice: Choice, indices: Sequence[int]) -> int:
    """With more sizes than this a limit is exceeded, whichever they are, or the price of sizes
    alone is more than the best grid known is worth."""
    most = int(min(choice.caps.sizes, len(indices) - 1))
    problem = choice.problem
    for cap, amounts in (
        (choice.caps.bytes, problem.bytes),
        (choice.caps.capture_s, problem.capture_s),
    ):
        reached = accumulate(sorted(amounts[j] for j in indices[1:]))
        most = min(most, sum(amount <= cap for amount in reached))
    if choice.goal.sizes and choice.best is not None:
        free = choice.goal._replace(sizes=0.0)
        costs = choice.costs(free, indices)
        least = min(map(add, path_to(costs)[0], costs.end)) + problem.base(free)
        most = min(most, int((choice.best[0] - least) / choice.goal.sizes) + 1)
    return max(most, 1)


def _prices(choice: Choice, indices: Sequence[int]) -> Amounts:
    """Prices at which the cheapest grid just comes within the limits."""

    def exceeded(prices: Amounts) -> str | None:
        return choice.exceeded(choice.problem.use(choice.cheapest(prices, indices)))

    prices = Amounts()
    for _ in range(_ROUNDS):
        name = exceeded(prices)
        if name is None:
            break
        low, high = 0.0, _first_price(choice, name)
        for _ in range(_QUADRUPLINGS):
            if exceeded(prices.plus(name, high)) != name:
                break
            low, high = high, high * 4
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if exceeded(prices.plus(name, middle)) == name:
                low = middle
            else:
                high = middle
        prices = prices.plus(name, high)
    return prices


def _first_price(choice: Choice, name: str) -> float:
    """All that no grid at all would cost, for a thousand times the limit."""
    worth = abs(choice.goal.dot(choice.problem.use(()))) or 1.0
    cap: float = getattr(choice.caps, name)
    return worth / max(cap, 1e-9) / 1000


def _times(prices: Amounts, factor: float) -> Amounts:
    """The limits' prices; that of a size is found by count."""
    return Amounts(*(price * factor for price in prices))._replace(sizes=0.0)


@dataclass(frozen=True, slots=True)
class _Guess:
    """For one number of sizes: the prices that bound it best, that of a size among them; the
    bound; and whether the cheapest grid at these prices is within the limits."""

    prices: Amounts
    value: float
    allowed: bool


def _by_count(
    choice: Choice, indices: Sequence[int], most: int, tried: Sequence[Amounts]
) -> dict[int, _Guess]:
    """The tightest bound for each number of sizes among ``indices``. Grids met are offered."""
    found: dict[int, _Guess] = {}
    for prices in dict.fromkeys(tried):
        priced = choice.priced(prices)
        base = choice.problem.base(priced) - prices.dot(choice.caps)
        rows = paths_by_count(choice.costs(priced, indices), most + 1)
        values = [math.inf, *(value for value, _ in rows), math.inf]
        for count, (value, path) in enumerate(rows[:most], start=1):
            if not path:
                continue
            allowed = choice.offer(tuple(indices[j] for j in path))
            if count not in found or value + base > found[count].value:
                size_price = _slope(values[count - 1 : count + 2])
                found[count] = _Guess(prices._replace(sizes=size_price), value + base, allowed)
    return found


def _slope(values: Sequence[float]) -> float:
    """What one more size saves, between the one before and the one after."""
    gains = [a - b for a, b in pairwise(values) if math.isfinite(a - b)]
    return sum(gains) / len(gains) if gains else 0.0


def _solve_count(
    choice: Choice,
    indices: Sequence[int],
    count: int,
    prices: Amounts,
    bounds: dict[int, float],
    tunings: int,
) -> None:
    """Find the best grid of ``count`` sizes, unless its bound says that it is no better than the
    best known. Numbers of sizes of which that shows are taken from ``bounds``."""
    left = indices
    tuned = False
    while True:
        priced = choice.priced(prices)
        costs = choice.costs(priced, left)
        slack = prices._replace(sizes=0.0).dot(choice.caps) - choice.problem.base(priced)
        reached, _ = path_to(costs)
        least = min(r + end for r, end in zip(reached[1:], costs.end[1:], strict=True)) - slack
        if left is indices:
            for other in tuple(bounds):
                bounds[other] = max(bounds[other], least - prices.sizes * other)
                if bounds[other] >= choice.to_beat():
                    del bounds[other]
        if count not in bounds:
            return
        if not tuned:
            tuned, prices = True, _tuned(choice, left, count, prices, tunings)
            continue
        rest, worth = path_from(costs), slack + prices.sizes * count
        kept = [
            left[j] for j in range(1, len(left)) if reached[j] + rest[j] - worth < choice.to_beat()
        ]
        if len(kept) < count:
            break
        shrunk = len(kept) <= _SHRUNK * (len(left) - 1)
        left = [0, *kept]
        if count * len(left) ** 2 <= _STATES:
            prices = _refined(choice, left, count, prices)
            if shrunk:
                continue
            follow = _Follow(choice, left, count, prices)
            if follow.run():
                break
            bounds[count] = max(bounds[count], follow.bound)
        choice.floor = min(choice.floor, bounds[count])
        break
    bounds.pop(count, None)


def _tuned(
    choice: Choice, indices: Sequence[int], count: int, prices: Amounts, tunings: int
) -> Amounts:
    """The same prices, but that of a size such that the cheapest grid has ``count``."""
    low = high = prices.sizes
    for _ in range(tunings):
        middle = prices.sizes if low == high else (low + high) / 2
        found = len(choice.cheapest(prices._replace(sizes=middle), indices))
        if found == count:
            return prices._replace(sizes=middle)
        widen = abs(middle) / 8 + 1e-12
        if found > count:
            low, high = middle, (middle + widen if high <= middle else high)
        else:
            low, high = (middle - widen if low >= middle else low), middle
    return prices


def _refined(choice: Choice, indices: Sequence[int], count: int, prices: Amounts) -> Amounts:
    """Prices in the same proportion that bound grids of ``count`` sizes better."""
    best = _by_count(choice, indices, count, [_times(prices, 1.0)]).get(count)
    low, high = 0.6, 1.5
    for _ in range(_REFINEMENTS):
        middle = (low + high) / 2
        guess = _by_count(choice, indices, count, [_times(prices, middle)]).get(count)
        if guess is None:
            break
        if best is None or guess.value > best.value:
            best = guess
        low, high = (low, middle) if guess.allowed else (middle, high)
    return prices if best is None else best.prices


_Label = tuple[tuple[float, ...], tuple[int, ...]]  # goal and limited resources so far, the path


class _Follow:
    """All paths of ``count`` sizes over ``indices`` that may lead to a better grid."""

    def __init__(self, choice: Choice, indices: Sequence[int], count: int, prices: Amounts) -> None:
        self._choice, self._indices, self._count = choice, indices, count
        names = [name for name in _LIMITS if getattr(choice.caps, name) < math.inf]
        counted = [choice.goal, *(Amounts().plus(name, 1.0) for name in names)]
        self._counted = [choice.costs(weights, indices) for weights in counted]
        self._base = [choice.problem.base(weights) for weights in counted]
        self._caps = [getattr(choice.caps, name) for name in names]
        self._prices = [getattr(prices, name) for name in names]
        limits = prices._replace(sizes=0.0)
        self._slack = limits.dot(choice.caps)
        self._priced = choice.costs(choice.priced(limits), indices)
        self._priced_base = choice.problem.base(choice.priced(limits))
        self._rest = rest_by_count(self._priced, count - 1)

    @property
    def bound(self) -> float:
        """No grid within the limits is better than this."""
        costs = self._priced
        begun = (costs.begin(j) + self._rest[-1][j] for j in range(1, len(self._indices)))
        return min(begun) - self._slack + self._priced_base

    def run(self) -> bool:
        """False where it was more than ``_WORK``: what was left out may hold a better grid."""
        n, work = len(self._indices), 0
        at: list[list[_Label]] = [[] for _ in range(n)]
        for j in range(1, n):
            pairs = zip(self._base, self._counted, strict=True)
            self._keep(at[j], 1, tuple(base + costs.begin(j) for base, costs in pairs), (j,))
        for used in range(2, self._count + 1):
            further: list[list[_Label]] = [[] for _ in range(n)]
            for i in range(1, n):
                labels = _undominated(at[i])
                work += len(labels) * (n - i)
                if work > _WORK:
                    return False
                for amounts, path in labels:
                    for j in range(i + 1, n):
                        pairs = zip(amounts, self._counted, strict=True)
                        so_far = tuple(amount + costs.edge(i, j) for amount, costs in pairs)
                        self._keep(further[j], used, so_far, (*path, j))
            at = further
        for labels in at:
            for _, path in labels:
                self._choice.offer(tuple(self._indices[j] for j in path))
        return True

    def _keep(
        self, labels: list[_Label], used: int, so_far: tuple[float, ...], path: tuple[int, ...]
    ) -> None:
        if any(amount > cap for amount, cap in zip(so_far[1:], self._caps, strict=True)):
            return
        priced = sum(p * amount for p, amount in zip(self._prices, so_far[1:], strict=True))
        rest = self._rest[self._count - used][path[-1]]
        if so_far[0] + priced + rest - self._slack < self._choice.to_beat():
            labels.append((so_far, path))


def _undominated(labels: list[_Label]) -> list[_Label]:
    """Those that no other one beats, or equals, in everything."""
    kept: list[_Label] = []
    for label in sorted(labels):
        if not any(all(a <= b for a, b in zip(k[0], label[0], strict=True)) for k in kept):
            kept.append(label)
    return kept

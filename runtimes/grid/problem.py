"""The choice of a grid as a shortest path: which sizes, what each costs, what must hold."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import Final, NamedTuple

from canaryctl.common.errors import InputError
from canaryctl.runtimes.grid.cost import MIB, CostModel
from canaryctl.runtimes.grid.distribution import Distribution, Shapes
from canaryctl.runtimes.grid.figures import exceeding
from canaryctl.runtimes.grid.monge import Costs
from canaryctl.runtimes.grid.rules import EngineRules
from canaryctl.runtimes.simulator.graphs import StepMode

P99: Final = 0.99


@dataclass(frozen=True, slots=True)
class Limits:
    """What a grid must keep to; None: no limit. ``margin``: the share by which memory and
    capture time are taken to be larger than predicted when they are held to their limits.

    ``max_sizes`` counts captured sizes; those up to the largest decode are two graphs in mode
    FULL_AND_PIECEWISE.
    """

    max_memory_mib: float | None = None
    max_capture_s: float | None = None
    max_sizes: int | None = None
    min_coverage: float | None = None
    max_p99_s: float | None = None
    max_mean_s: float | None = None
    margin: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(f"{name} is {value:g}, expected 0 or more")
        if self.min_coverage is not None and self.min_coverage > 1:
            raise InputError(f"min_coverage is {self.min_coverage:g}, expected at most 1 (100%)")


class Amounts(NamedTuple):
    """What one grid takes, over all steps together; or what a unit of each counts for."""

    step_s: float = 0.0
    over: float = 0.0  # steps above the p99 limit
    bytes: float = 0.0
    capture_s: float = 0.0
    sizes: float = 0.0

    def dot(self, other: "Amounts") -> float:
        """The sum of products; what is not counted may be infinite."""
        return sum(a * b for a, b in zip(self, other, strict=True) if a)

    def plus(self, name: str, amount: float) -> "Amounts":
        return self._replace(**{name: getattr(self, name) + amount})


class Problem:
    """Arrays over the candidate sizes; index 0 is the start, with nothing captured.

    ``base_s`` and ``base_over`` are of the steps that no grid can serve.
    """

    def __init__(
        self, shapes: Shapes, cost: CostModel, rules: EngineRules, *, max_p99_s: float | None
    ) -> None:
        if rules.mode == "NONE":
            raise InputError("mode NONE has no graphs: nothing to plan")
        self.cost, self.rules = cost, rules
        self.total = shapes.total
        decode = shapes.decode.scaled(rules.decode_tokens)
        mixed = Distribution() if rules.mode == "FULL_DECODE_ONLY" else shapes.mixed
        never = shapes.mixed if rules.mode == "FULL_DECODE_ONLY" else Distribution()
        observed = {*decode.sizes, *mixed.sizes}
        self.sizes = (0, *rules.candidates(observed))
        self.cd, self.cm = self._cumulative(decode), self._cumulative(mixed)
        self.td = [0.0, *(self._graph_s(size, pure_decode=True) for size in self.sizes[1:])]
        self.tm = [0.0, *(self._graph_s(size, pure_decode=False) for size in self.sizes[1:])]
        limit = math.inf if max_p99_s is None else max_p99_s
        self.vd = [float(seconds > limit) for seconds in self.td]
        self.vm = [float(seconds > limit) for seconds in self.tm]
        self.tail_s, self.tail_over = self._tails(decode, mixed, limit)
        never_s = [(cost.no_graph_s(s, pure_decode=False), count) for s, count in never.items()]
        self.base_s = math.fsum(seconds * count for seconds, count in never_s)
        self.base_over = sum(count for seconds, count in never_s if seconds > limit)
        self.may_exceed = exceeding(self.total, P99)
        kinds = [self._kinds(size) for size in self.sizes]
        each = list(zip(self.sizes, kinds, strict=True))
        self.bytes = [sum(cost.one_graph_bytes(k, size) for k in of) for size, of in each]
        self.capture_s = [sum(cost.one_capture_s(k, size) for k in of) for size, of in each]
        graphs = cost.calibration.graphs
        self.first_bytes = [sum(graphs[k].fixed_mib * MIB for k in of) for of in kinds]
        self.pool_bytes = [cost.pool_bytes(size) for size in self.sizes]
        shared_s = cost.calibration.pool.fixed_s
        self.first_capture_s = [
            sum((graphs[k].fixed_s for k in of), shared_s if of else 0.0) for of in kinds
        ]

    def __len__(self) -> int:
        return len(self.sizes)

    def costs(self, weights: Amounts, indices: Sequence[int], ends: Sequence[bool]) -> Costs:
        """The weighed sum over the sizes at ``indices`` (ascending, from 0)."""

        def mix(seconds: Sequence[float], over: Sequence[float]) -> list[float]:
            return [weights.step_s * seconds[j] + weights.over * over[j] for j in indices]

        def take(own: Sequence[float], capture: Sequence[float], size: float) -> list[float]:
            return [weights.bytes * own[j] + weights.capture_s * capture[j] + size for j in indices]

        # The largest size is where a grid stops: what depends on it alone is part of the end.
        pool = [weights.bytes * self.pool_bytes[j] for j in indices]
        tails = list(map(add, mix(self.tail_s, self.tail_over), pool))
        return Costs(
            cd=[self.cd[j] for j in indices],
            cm=[self.cm[j] for j in indices],
            xd=mix(self.td, self.vd),
            xm=mix(self.tm, self.vm),
            node=take(self.bytes, self.capture_s, weights.sizes),
            first=take(self.first_bytes, self.first_capture_s, 0.0),
            end=[tail if ends[j] else math.inf for tail, j in zip(tails, indices, strict=True)],
        )

    def use(self, chosen: Sequence[int]) -> Amounts:
        """Of the sizes at the indices ``chosen``, ascending; of none: nothing captured."""
        step_s, over, last = self.base_s, float(self.base_over), 0
        for j in chosen:
            decodes, others = self.cd[j] - self.cd[last], self.cm[j] - self.cm[last]
            step_s += decodes * self.td[j] + others * self.tm[j]
            over += decodes * self.vd[j] + others * self.vm[j]
            last = j
        first = chosen[0] if chosen else 0
        return Amounts(
            step_s=step_s + self.tail_s[last],
            over=over + self.tail_over[last],
            bytes=self.first_bytes[first]
            + self.pool_bytes[last]
            + math.fsum(self.bytes[j] for j in chosen),
            capture_s=self.first_capture_s[first] + math.fsum(self.capture_s[j] for j in chosen),
            sizes=float(len(chosen)),
        )

    def base(self, weights: Amounts) -> float:
        """What the steps count for that no grid can serve."""
        return weights.step_s * self.base_s + weights.over * self.base_over

    def coverage(self, j: int) -> float:
        """Share of all steps that a grid up to size ``j`` replays a graph for."""
        return (self.cd[j] + self.cm[j]) / self.total

    def served_by(self, grid: Sequence[int]) -> tuple[int, ...]:
        """The indices of candidates that serve as ``grid`` does or better: each of its sizes, or
        the next candidate below, which the same steps fit into."""
        at = (bisect_right(self.sizes, size) - 1 for size in grid)
        return tuple(sorted({j for j in at if j}))

    def useful(self) -> int:
        """How many candidates could help: from the next on, no graph is faster than none."""
        last = len(self) - 1
        while last and self._gains_nothing(last):
            last -= 1
        return last

    def _gains_nothing(self, j: int) -> bool:
        size = self.sizes[j]
        return all(
            cumulative[-1] == 0 or times[j] >= self.cost.no_graph_s(size, pure_decode=pure_decode)
            for cumulative, times, pure_decode in (
                (self.cd, self.td, True),
                (self.cm, self.tm, False),
            )
        )

    def _graph_s(self, size: int, *, pure_decode: bool) -> float:
        full_for_all = self.rules.mode == "FULL"
        has_full = self.rules.mode != "PIECEWISE" and size <= self.rules.largest_decode
        mode = StepMode.FULL if full_for_all or (pure_decode and has_full) else StepMode.PIECEWISE
        return self.cost.graph_s(mode, size, pure_decode=pure_decode)

    def _kinds(self, size: int) -> tuple[str, ...]:
        """The graphs that capturing ``size`` makes."""
        if not size:
            return ()
        graphs = self.rules.graphs((size,))
        return tuple(
            kind for kind, of in (("FULL", graphs.full), ("PIECEWISE", graphs.piecewise)) if of
        )

    def _cumulative(self, distribution: Distribution) -> list[int]:
        reached = [0, *accumulate(distribution.counts)]
        return [reached[bisect_right(distribution.sizes, size)] for size in self.sizes]

    def _tails(
        self, decode: Distribution, mixed: Distribution, limit: float
    ) -> tuple[list[float], list[int]]:
        """Time, and steps above the limit, of all steps larger than each size."""
        steps = [
            (size, self.cost.no_graph_s(size, pure_decode=pure_decode), count)
            for distribution, pure_decode in ((decode, True), (mixed, False))
            for size, count in distribution.items()
        ]
        steps.sort(reverse=True)
        seconds, over = [0.0] * len(self.sizes), [0] * len(self.sizes)
        at, total_s, total_over = 0, 0.0, 0
        for j in range(len(self.sizes) - 1, -1, -1):
            while at < len(steps) and steps[at][0] > self.sizes[j]:
                total_s += steps[at][1] * steps[at][2]
                total_over += steps[at][2] if steps[at][1] > limit else 0
                at += 1
            seconds[j], over[j] = total_s, total_over
        return seconds, over

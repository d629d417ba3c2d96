"""The best grid, exactly: least expected step time, or least memory, within limits.

The search is in ``search.py``; here is what is asked of it, and why it may have no answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from canaryctl.common.errors import InputError
from canaryctl.runtimes.grid.cost import MIB
from canaryctl.runtimes.grid.problem import Amounts, Limits, Problem
from canaryctl.runtimes.grid.search import Choice, solve

_ROUNDING: Final = 1e-11  # relative: what adding in another order may change


class Objective(StrEnum):
    STEP_TIME = "step-time"  # least expected step time
    MEMORY = "memory"  # least graph memory; of equal ones, least expected step time


class InfeasibleError(InputError):
    """No grid is within the limits."""


@dataclass(frozen=True, slots=True)
class Best:
    """``sizes``: ascending; empty where no graph is worth it. ``gap``: by what share of the
    objective another grid could be better, at most; 0: it is proven the best."""

    sizes: tuple[int, ...]
    gap: float


def optimise(
    problem: Problem,
    limits: Limits,
    objective: Objective = Objective.STEP_TIME,
    *,
    size_price_s: float = 0.0,
    known: Sequence[Sequence[int]] = (),
) -> Best:
    """The best grid within ``limits``, exactly or up to the gap that is said.

    ``size_price_s``: seconds of step time, over all steps, that a size must save to be taken.
    ``known``: grids to do no worse than, where they are within the limits. InfeasibleError where
    no grid is.
    """
    caps = _caps(problem, limits)
    least = limits.min_coverage or 0.0
    ends = [problem.coverage(j) >= least - 1e-12 for j in range(len(problem))]
    usable = len(problem) - 1 if limits.min_coverage else problem.useful()
    everything = list(range(usable + 1))
    if not any(ends):
        raise InfeasibleError(
            f"no grid covers {least:.2%} of steps: the largest that the engine can capture covers "
            f"{problem.coverage(usable):.2%}"
        )
    offered = [problem.served_by(grid) for grid in known]
    goal, gap = Amounts(step_s=1.0, sizes=size_price_s), 0.0
    if objective is Objective.MEMORY:
        smallest = Choice(problem, Amounts(bytes=1.0), caps, ends)
        _least(smallest, everything, offered, limits)
        caps = caps._replace(bytes=smallest.goal.dot(problem.use(smallest.chosen)))
        caps = caps._replace(bytes=caps.bytes * (1 + _ROUNDING))
        goal, gap, offered = Amounts(step_s=1.0), smallest.gap, [smallest.chosen]
    choice = Choice(problem, goal, caps, ends)
    _least(choice, everything, offered, limits)
    return Best(tuple(problem.sizes[j] for j in choice.chosen), max(gap, choice.gap))


def _least(
    choice: Choice, indices: list[int], offered: Sequence[tuple[int, ...]], limits: Limits
) -> None:
    for grid in offered:
        choice.offer(grid)
    solve(choice, indices)
    if choice.best is None:
        raise InfeasibleError(_why(choice, indices, limits))


def _caps(problem: Problem, limits: Limits) -> Amounts:
    """The most of everything, with a hair for rounding."""

    def most(limit: float | None, factor: float) -> float:
        return math.inf if limit is None else limit * factor * (1 + _ROUNDING)

    return Amounts(
        step_s=most(limits.max_mean_s, problem.total),
        over=math.inf if limits.max_p99_s is None else float(problem.may_exceed),
        bytes=most(limits.max_memory_mib, MIB / (1 + limits.margin)),
        capture_s=most(limits.max_capture_s, 1 / (1 + limits.margin)),
        sizes=most(limits.max_sizes, 1),
    )


def _why(choice: Choice, indices: list[int], limits: Limits) -> str:
    """Which limit no grid keeps, by itself or with the others."""
    problem, caps = choice.problem, choice.caps
    said = {
        "step_s": (f"expected step time of {_ms(limits.max_mean_s)}", 1e3 / problem.total, "ms"),
        "over": (f"p99 step time of {_ms(limits.max_p99_s)}", 1.0, "steps above it"),
        "bytes": ("graph memory, margin included", (1 + limits.margin) / MIB, "MiB"),
        "capture_s": ("capture time, margin included", 1 + limits.margin, "s"),
        "sizes": ("count of sizes", 1.0, "sizes"),
    }
    for name, cap in caps._asdict().items():
        if cap == math.inf:
            continue
        alone = Choice(problem, Amounts().plus(name, 1.0), Amounts(*[math.inf] * 5), choice.ends)
        solve(alone, indices)
        least = getattr(problem.use(alone.chosen), name)
        if least > cap:
            what, factor, unit = said[name]
            return (
                f"no grid is within the limit of {what}: at best it takes "
                f"{least * factor:.4g} {unit}, and {cap * factor:.4g} are allowed"
            )
    return "each limit can be kept, but no grid keeps all of them; relax one"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.3g} ms"

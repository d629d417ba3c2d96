"""Whether a grid still fits: the traffic that it was planned from against what runs now.

What counts is what a new plan would gain, by the same cost model: shapes may differ widely where
it costs nothing, and little where it costs much.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from canaryctl.runtimes.grid.cost import CostModel
from canaryctl.runtimes.grid.distribution import Distribution, Shapes
from canaryctl.runtimes.grid.figures import Figures
from canaryctl.runtimes.grid.planner import Plan, Wish, plan_grid
from canaryctl.runtimes.grid.rules import EngineRules

REGRET: Final = 0.02
LEAST_STEPS: Final = 1000


@dataclass(frozen=True, slots=True)
class Drift:
    """``distance``: the largest difference between the shares of steps up to a size, then and
    now; None where one of them has no such step. ``regret``: by what share the expected step
    would fall with the new plan's grid. ``enough``: whether there were steps enough to say.
    """

    live: Figures
    decode_distance: float | None
    mixed_distance: float | None
    plan: Plan
    regret: float
    enough: bool
    replan: bool
    verdict: str


def drift(
    sizes: tuple[int, ...],
    then: Shapes,
    now: Shapes,
    cost: CostModel,
    rules: EngineRules,
    wish: Wish,
    *,
    tolerance: float = REGRET,
) -> Drift:
    """Compare a grid's own traffic with ``now``. It is to be replanned where a new plan would
    lower the expected step by more than ``tolerance``."""
    plan = plan_grid(now, cost, rules, wish, {"now": sizes})
    live = plan.compared["now"]
    regret = 1 - plan.grid.mean_s / live.mean_s
    enough = now.total >= LEAST_STEPS
    replan = enough and regret > tolerance
    if not enough:
        verdict = f"too few steps to say: {now.total}, expected {LEAST_STEPS} at least"
    else:
        verdict = (
            f"{'replan' if replan else 'no need to replan'}: a new grid would lower the expected "
            f"step by {max(0.0, regret):.1%}, from {live.mean_s * 1000:.3g} ms, and more than "
            f"{tolerance:.1%} is worth it; {1 - live.coverage:.2%} of steps run without a graph now"
        )
    return Drift(
        live=live,
        decode_distance=distance(then.decode, now.decode),
        mixed_distance=distance(then.mixed, now.mixed),
        plan=plan,
        regret=regret,
        enough=enough,
        replan=replan,
        verdict=verdict,
    )


def distance(a: Distribution, b: Distribution) -> float | None:
    """Kolmogorov's: the largest difference of the two cumulative shares, from 0 to 1."""
    if not a.sizes or not b.sizes:
        return None
    shares: dict[int, float] = dict.fromkeys(sorted({*a.sizes, *b.sizes}), 0.0)
    for sign, distribution in ((1, a), (-1, b)):
        for size, count in distribution.items():
            shares[size] += sign * count / distribution.total
    return max(map(abs, accumulate(shares.values())))

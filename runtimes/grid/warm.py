"""The warm-up plan of a grid: every bucket that traffic reaches, where it can be brought about."""

from bisect import bisect_left
from collections.abc import Sequence

from canaryctl.runtimes.grid.distribution import Shapes
from canaryctl.runtimes.grid.rules import EngineRules
from canaryctl.runtimes.spec import LimitsSpec, WarmupPlan
from canaryctl.runtimes.warmup import WarmupPlanError, plan_requests


def warm_buckets(
    sizes: Sequence[int], shapes: Shapes, rules: EngineRules, limits: LimitsSpec
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(decode buckets in sequences, mixed buckets in tokens) for a resolved grid.

    Every size that decodes can run is warmed; of the mixed ones those that traffic had steps
    for, since a step with a prompt is costly to bring about.
    """
    graphs = rules.graphs(sizes)
    decode = tuple(size // rules.decode_tokens for size in sizes if size <= rules.largest_decode)
    mixed_graphs = graphs.full if graphs.full_mixed else graphs.piecewise
    reached = {
        mixed_graphs[at]
        for size in shapes.mixed.sizes
        if (at := bisect_left(mixed_graphs, size)) < len(mixed_graphs)
    }
    return (
        tuple(n for n in decode if _possible(WarmupPlan(decode_buckets=(n,)), limits)),
        tuple(
            n for n in sorted(reached) if _possible(WarmupPlan(mixed_token_buckets=(n,)), limits)
        ),
    )


def _possible(plan: WarmupPlan, limits: LimitsSpec) -> bool:
    try:
        plan_requests(plan, limits)
    except WarmupPlanError:
        return False
    return True

"""The warm-up plan of a grid: every bucket that traffic reaches, or every one that there is, where
it can be brought about."""

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
    graphs = _mixed_graphs(sizes, rules)
    reached = {
        graphs[at] for size in shapes.mixed.sizes if (at := bisect_left(graphs, size)) < len(graphs)
    }
    return _decode(sizes, rules, limits), _mixed(sorted(reached), limits)


def grid_buckets(
    sizes: Sequence[int], rules: EngineRules, limits: LimitsSpec
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(decode buckets in sequences, mixed buckets in tokens) by a resolved grid alone: decodes up
    to the largest step of decodes, steps with prompts above it, which decodes do not reach."""
    above = [size for size in _mixed_graphs(sizes, rules) if size > rules.largest_decode]
    return _decode(sizes, rules, limits), _mixed(above, limits)


def _mixed_graphs(sizes: Sequence[int], rules: EngineRules) -> tuple[int, ...]:
    graphs = rules.graphs(sizes)
    return graphs.full if graphs.full_mixed else graphs.piecewise


def _decode(sizes: Sequence[int], rules: EngineRules, limits: LimitsSpec) -> tuple[int, ...]:
    wanted = (size // rules.decode_tokens for size in sizes if size <= rules.largest_decode)
    return tuple(n for n in wanted if _possible(WarmupPlan(decode_buckets=(n,)), limits))


def _mixed(wanted: Sequence[int], limits: LimitsSpec) -> tuple[int, ...]:
    return tuple(n for n in wanted if _possible(WarmupPlan(mixed_token_buckets=(n,)), limits))


def _possible(plan: WarmupPlan, limits: LimitsSpec) -> bool:
    try:
        plan_requests(plan, limits)
    except WarmupPlanError:
        return False
    return True

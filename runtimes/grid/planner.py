"""A plan: the grid for some traffic, beside others, with what each size is worth."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from canaryctl.runtimes.grid.cost import MIB, CostModel
from canaryctl.runtimes.grid.distribution import Distribution, Shapes
from canaryctl.runtimes.grid.figures import Figures, evaluate
from canaryctl.runtimes.grid.monge import paths_by_count
from canaryctl.runtimes.grid.optimise import Best, InfeasibleError, Objective, optimise
from canaryctl.runtimes.grid.problem import Amounts, Limits, Problem
from canaryctl.runtimes.grid.rules import EngineRules

MIN_GAIN: Final = 0.001
WORTH: Final = 0.05
CORE: Final = 0.95
"""The sizes that cover this share of steps come first; larger ones answer for themselves."""

_FRONT_SIZES: Final = 40
_FRONT_CANDIDATES: Final = 400


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of a plan.

    ``min_gain``: the share of the expected step time that a size must save to be captured.
    ``worth``: the share that graphs must save at all. ``tokens_per_request``: of the KV cache,
    for concurrency.
    """

    tokens_per_request: int
    limits: Limits = NO_LIMITS
    objective: Objective = Objective.STEP_TIME
    min_gain: float = MIN_GAIN
    worth: float = WORTH


@dataclass(frozen=True, slots=True)
class Marginal:
    """What leaving out one size saves and costs. ``share``: of all steps, which then take
    ``slower_s`` longer on average: with the next size, or where there is none without a graph.
    ``core``: among the sizes that cover the most frequent 95 % of steps."""

    size: int
    core: bool
    saves_mib: float
    saves_capture_s: float
    share: float
    slower_s: float
    beyond: bool

    @property
    def words(self) -> str:
        then = "run without a graph" if self.beyond else "are padded to the next size"
        return (
            f"dropping {self.size} saves {self.saves_mib:.3g} MiB and {self.saves_capture_s:.2g} s"
            f" of capture, and costs {self.share:.2%} of steps {self.slower_s * 1000:.2g} ms"
            f" each: they {then}"
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """A grid, what each of its sizes is worth, and what there is beside it. ``front``: grids that
    no other beats in both graph memory and expected step time, smallest first. ``notes``: what is
    to be known of its figures."""

    grid: Figures
    marginals: tuple[Marginal, ...]
    front: tuple[Figures, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan(Judged):
    """``compared``: other grids by name, with ``no graphs`` (compiled, none captured) last.
    ``gap``: see :class:`~canaryctl.runtimes.grid.optimise.Best`."""

    gap: float
    compared: Mapping[str, Figures]
    worth_it: bool
    verdict: str


DEFAULT: Final = "default"
NO_GRAPHS: Final = "no graphs"


def plan_grid(
    shapes: Shapes,
    cost: CostModel,
    rules: EngineRules,
    wish: Wish,
    others: Mapping[str, Sequence[int]],
) -> Plan:
    """The plan for ``shapes``; ``others``: resolved grids to compare with. Where the one named
    ``default`` is within the limits, the plan's expected step is no longer than its. Of all of them
    within the limits none is better by the objective, ``min_gain`` included. InfeasibleError where
    no grid is within the limits."""

    def figures(sizes: Sequence[int]) -> Figures:
        return evaluate(sizes, shapes, cost, rules, tokens_per_request=wish.tokens_per_request)

    problem = Problem(shapes, cost, rules, max_p99_s=wish.limits.max_p99_s)
    compared = {**{name: figures(sizes) for name, sizes in others.items()}, NO_GRAPHS: figures(())}
    best = _best(problem, wish, compared.get(DEFAULT), tuple(others.values()))
    grid, bare = figures(best.sizes), compared[NO_GRAPHS]
    worth_it, verdict = _verdict(grid, bare, shapes, cost, wish.worth)
    return Plan(
        grid=grid,
        gap=best.gap,
        compared=compared,
        marginals=marginals(grid.sizes, shapes, cost, rules),
        front=_front(problem, figures),
        worth_it=worth_it,
        verdict=verdict,
        notes=(*shapes.notes, *_notes(shapes, cost, rules, grid)),
    )


def judge_grid(
    sizes: Sequence[int],
    shapes: Shapes,
    cost: CostModel,
    rules: EngineRules,
    *,
    tokens_per_request: int,
) -> Judged:
    """A resolved grid as it is; in mode NONE it has no sizes, and nothing is beside it."""

    def figures(sizes: Sequence[int]) -> Figures:
        return evaluate(sizes, shapes, cost, rules, tokens_per_request=tokens_per_request)

    grid = figures(sizes)
    front: tuple[Figures, ...] = ()
    if rules.mode != "NONE":
        front = _front(Problem(shapes, cost, rules, max_p99_s=None), figures)
    return Judged(
        grid=grid,
        marginals=marginals(grid.sizes, shapes, cost, rules),
        front=front,
        notes=(*shapes.notes, *_notes(shapes, cost, rules, grid)),
    )


def _best(
    problem: Problem, wish: Wish, default: Figures | None, known: Sequence[Sequence[int]]
) -> Best:
    """The best of the grids of observed sizes that are no slower than the default; what a size must
    save gives way to that. Where none of them keeps the limits and the default does: the default.
    """
    everything = problem.use(range(1, len(problem)))
    price_s = wish.min_gain * everything.step_s
    compared = wish.objective is Objective.STEP_TIME
    if default is None or not compared or not _within(default, wish.limits):
        return optimise(problem, wish.limits, wish.objective, size_price_s=price_s, known=known)
    limits = replace(wish.limits, max_mean_s=default.mean_s)
    try:
        return optimise(problem, limits, size_price_s=price_s, known=known)
    except InfeasibleError:
        # Above the largest decode a size is one graph, below it may be two: a size that no step has
        # can take less memory than the observed one that serves the same steps.
        least = optimise(problem, NO_LIMITS).sizes
        at = [problem.sizes.index(size) for size in least]
        gap = 1 - problem.use(at).step_s / problem.total / default.mean_s
        return Best(default.sizes, max(0.0, gap))


def _within(figures: Figures, limits: Limits) -> bool:
    margin = 1 + limits.margin
    held = (
        (figures.graph_mib * margin, limits.max_memory_mib),
        (figures.capture_s * margin, limits.max_capture_s),
        (len(figures.sizes), limits.max_sizes),
        (figures.p99_s, limits.max_p99_s),
        (figures.mean_s, limits.max_mean_s),
    )
    covers = limits.min_coverage is None or figures.coverage >= limits.min_coverage
    return covers and all(most is None or amount <= most for amount, most in held)


def marginals(
    sizes: Sequence[int], shapes: Shapes, cost: CostModel, rules: EngineRules
) -> tuple[Marginal, ...]:
    """What each size of a resolved grid is worth beside the others."""
    kinds = ((True, shapes.decode.scaled(rules.decode_tokens)), (False, shapes.mixed))
    core = _core(shapes, rules)
    with_all = rules.graphs(sizes)
    found = []
    for k, size in enumerate(sizes):
        without = rules.graphs([*sizes[:k], *sizes[k + 1 :]])
        below = sizes[k - 1] if k else 0
        steps, extra_s, beyond = 0, 0.0, 0
        for pure_decode, distribution in kinds:
            for step, count in _between(distribution, below, size):
                before, after = (
                    graphs.dispatch(step, pure_decode=pure_decode) for graphs in (with_all, without)
                )
                if before == after:
                    continue
                steps += count
                beyond += count if not after.bucket else 0
                extra_s += count * (
                    cost.step_s(after, step, pure_decode=pure_decode)
                    - cost.step_s(before, step, pure_decode=pure_decode)
                )
        found.append(
            Marginal(
                size=size,
                core=size <= core,
                saves_mib=(cost.graph_bytes(with_all) - cost.graph_bytes(without)) / MIB,
                saves_capture_s=cost.capture_s(with_all) - cost.capture_s(without),
                share=steps / shapes.total,
                slower_s=extra_s / steps if steps else 0.0,
                beyond=beyond > 0,
            )
        )
    return tuple(found)


def _between(distribution: Distribution, low: int, high: int) -> Sequence[tuple[int, int]]:
    first, last = (bisect_left(distribution.sizes, bound + 1) for bound in (low, high))
    return list(zip(distribution.sizes[first:last], distribution.counts[first:last], strict=True))


def _core(shapes: Shapes, rules: EngineRules) -> int:
    """The size that the most frequent 95 % of steps do not exceed, rounded up as captured."""
    decode = dict(shapes.decode.scaled(rules.decode_tokens).items())
    for size, count in shapes.mixed.items():
        decode[size] = decode.get(size, 0) + count
    size = Distribution.of(decode).quantile(CORE)
    return -(-size // rules.multiple) * rules.multiple


def _front(problem: Problem, figures: Callable[[Sequence[int]], Figures]) -> tuple[Figures, ...]:
    useful = problem.useful()
    step = max(1, -(-useful // _FRONT_CANDIDATES))
    indices = sorted({0, *range(useful, 0, -step)})
    costs = problem.costs(Amounts(step_s=1.0), indices, [True] * len(problem))
    front: list[Figures] = []
    for _, path in paths_by_count(costs, _FRONT_SIZES):
        found = figures([problem.sizes[indices[j]] for j in path])
        front = [kept for kept in front if not _beats(found, kept)]
        if not any(_beats(kept, found) for kept in front):
            front.append(found)
    return tuple(sorted(front, key=lambda found: found.graph_mib))


def _beats(a: Figures, b: Figures) -> bool:
    return a.graph_mib <= b.graph_mib and a.mean_s <= b.mean_s


def _verdict(
    grid: Figures, bare: Figures, shapes: Shapes, cost: CostModel, worth: float
) -> tuple[bool, str]:
    gain = 1 - grid.mean_s / bare.mean_s
    times = f"{bare.mean_s * 1000:.3g} ms to {grid.mean_s * 1000:.3g} ms"
    price = f"{grid.graphs} graphs, {grid.graph_mib:.3g} MiB, {grid.capture_s:.2g} s of capture"
    if gain >= worth:
        return True, f"worth it: the expected step falls by {gain:.1%}, from {times}, for {price}"
    bound = _compute_bound(shapes, cost)
    return False, (
        f"not worth it: graphs lower the expected step by {gain:.1%}, from {times}, and at least "
        f"{worth:.0%} was asked for. {bound:.0%} of the time goes to steps in "
        "which computing takes longer than launching: a graph removes launching alone"
    )


def _compute_bound(shapes: Shapes, cost: CostModel) -> float:
    """The share of time without graphs in steps whose computing takes longer than launching."""
    total = bound = 0.0
    for pure_decode, distribution in ((True, shapes.decode), (False, shapes.mixed)):
        for size, count in distribution.items():
            seconds = cost.no_graph_s(size, pure_decode=pure_decode)
            total += seconds * count
            if not pure_decode and seconds > cost.no_graph_s(size, pure_decode=True):
                bound += seconds * count
    return bound / total


def _notes(shapes: Shapes, cost: CostModel, rules: EngineRules, grid: Figures) -> Sequence[str]:
    notes = []
    if grid.sizes and grid.sizes[-1] > cost.largest_measured:
        notes.append(
            f"sizes above {cost.largest_measured} were not measured by the calibration: their "
            "figures are extrapolated"
        )
    impossible = shapes.decode.total - shapes.decode.up_to(rules.max_num_seqs)
    if impossible:
        notes.append(
            f"{impossible} steps had more than {rules.max_num_seqs} sequences (max_num_seqs): "
            "this traffic is of an engine with other limits"
        )
    return notes

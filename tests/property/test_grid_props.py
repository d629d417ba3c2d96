"""The planned grid against every grid there is."""

from collections.abc import Sequence
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from canaryctl.runtimes.grid import search
from canaryctl.runtimes.grid.cost import CostModel
from canaryctl.runtimes.grid.distribution import Shapes
from canaryctl.runtimes.grid.figures import evaluate
from canaryctl.runtimes.grid.monge import Costs, path_from, path_to, paths_by_count, rest_by_count
from canaryctl.runtimes.grid.optimise import InfeasibleError, Objective, optimise
from canaryctl.runtimes.grid.planner import DEFAULT, MIN_GAIN, Wish, plan_grid
from canaryctl.runtimes.grid.problem import Amounts, Limits, Problem
from canaryctl.runtimes.grid.rules import EngineRules
from tests.support import grids

MOST = settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MANY = settings(MOST, max_examples=300)


def indices(problem: Problem, sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(problem.sizes.index(size) for size in sizes)


@MOST
@given(
    grids.shapes(), grids.cost_models(), grids.engine_rules(), grids.limits(),
    st.sampled_from([0.0, 0.01, 0.1]),
)  # fmt: skip
def test_no_grid_within_the_limits_takes_less_time(
    shapes: Shapes, cost: CostModel, rules: EngineRules, limits: Limits, price_s: float
) -> None:
    problem = Problem(shapes, cost, rules, max_p99_s=limits.max_p99_s)
    goal = Amounts(step_s=1.0, sizes=price_s)
    least = grids.best_by_looking(problem, limits, goal)
    if least is None:
        with pytest.raises(InfeasibleError):
            optimise(problem, limits, size_price_s=price_s)
        return
    found = optimise(problem, limits, size_price_s=price_s)
    chosen = indices(problem, found.sizes)
    assert found.gap == 0
    assert grids.within(problem, limits, chosen)
    assert goal.dot(problem.use(chosen)) == pytest.approx(least, rel=1e-9)


@MANY
@given(grids.shapes(), grids.cost_models(), grids.engine_rules(), grids.limits())
def test_no_grid_within_the_limits_takes_less_memory(
    shapes: Shapes, cost: CostModel, rules: EngineRules, limits: Limits
) -> None:
    problem = Problem(shapes, cost, rules, max_p99_s=limits.max_p99_s)
    least = grids.best_by_looking(problem, limits, Amounts(bytes=1.0))
    if least is None:
        with pytest.raises(InfeasibleError):
            optimise(problem, limits, Objective.MEMORY)
        return
    found = optimise(problem, limits, Objective.MEMORY)
    chosen = indices(problem, found.sizes)
    assert grids.within(problem, limits, chosen)
    assert problem.use(chosen).bytes == pytest.approx(least, rel=1e-9, abs=1e-3)


@MOST
@given(grids.shapes(), grids.cost_models(), grids.engine_rules())
def test_it_is_never_worse_than_the_default_grid_in_the_same_room(
    shapes: Shapes, cost: CostModel, rules: EngineRules
) -> None:
    default = evaluate(rules.default(), shapes, cost, rules, tokens_per_request=100)
    limits = Limits(
        max_memory_mib=default.graph_mib,
        max_capture_s=default.capture_s,
        max_sizes=max(1, len(default.sizes)),
        max_p99_s=default.p99_s,
    )
    problem = Problem(shapes, cost, rules, max_p99_s=limits.max_p99_s)
    found = optimise(problem, limits)
    planned = evaluate(found.sizes, shapes, cost, rules, tokens_per_request=100)
    assert planned.mean_s <= default.mean_s * (1 + 1e-9)
    assert planned.graph_mib <= default.graph_mib * (1 + 1e-9)
    assert planned.capture_s <= default.capture_s * (1 + 1e-9)
    assert planned.p99_s <= default.p99_s * (1 + 1e-9)


@st.composite
def rooms(draw: st.DrawFn) -> tuple[Shapes, CostModel, EngineRules, Limits]:
    """Limits that the default grid keeps, some of them exactly; the margin is the command's."""
    shapes, cost = draw(grids.shapes()), draw(grids.cost_models())
    rules = draw(grids.engine_rules(st.sampled_from([4, 5, 8, 13])))
    default = evaluate(rules.default(), shapes, cost, rules, tokens_per_request=100)
    margin = 0.1
    exactly = {
        "max_memory_mib": default.graph_mib * (1 + margin),
        "max_capture_s": default.capture_s * (1 + margin),
        "max_sizes": len(default.sizes),
        "min_coverage": default.coverage,
        "max_p99_s": default.p99_s,
        "max_mean_s": default.mean_s,
    }
    bound = draw(st.sets(st.sampled_from(sorted(exactly))))
    kept: dict[str, float] = {name: exactly[name] for name in bound}
    return shapes, cost, rules, Limits(margin=margin, **kept)  # type: ignore[arg-type]


@MOST
@given(rooms(), st.sampled_from([MIN_GAIN, MIN_GAIN, 0.05]))
def test_a_plan_is_never_slower_than_a_default_grid_within_the_limits(
    room: tuple[Shapes, CostModel, EngineRules, Limits], min_gain: float
) -> None:
    """Though each size is to save something, in the room that the default has and in any other."""
    shapes, cost, rules, limits = room
    wish = Wish(100, limits, min_gain=min_gain)
    found = plan_grid(shapes, cost, rules, wish, {DEFAULT: rules.default()})
    default, planned = found.compared[DEFAULT], found.grid
    assert planned.mean_s <= default.mean_s * (1 + 1e-9)
    most = 1 + limits.margin
    assert limits.max_memory_mib is None or (
        planned.graph_mib * most <= limits.max_memory_mib * (1 + 1e-9)
    )
    assert limits.max_capture_s is None or (
        planned.capture_s * most <= limits.max_capture_s * (1 + 1e-9)
    )
    assert limits.max_p99_s is None or planned.p99_s <= limits.max_p99_s * (1 + 1e-9)
    assert planned.coverage >= (limits.min_coverage or 0) - 1e-12


@MANY
@given(grids.shapes(), grids.cost_models(), grids.engine_rules(), st.data())
def test_the_search_and_the_figures_agree_on_any_grid(
    shapes: Shapes, cost: CostModel, rules: EngineRules, data: st.DataObject
) -> None:
    problem = Problem(shapes, cost, rules, max_p99_s=0.005)
    chosen = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(problem))))) - {0}))
    sizes = tuple(problem.sizes[j] for j in chosen)
    use = problem.use(chosen)
    figures = evaluate(sizes, shapes, cost, rules, tokens_per_request=100)
    assert use.step_s / shapes.total == pytest.approx(figures.mean_s)
    assert use.bytes / 2**20 == pytest.approx(figures.graph_mib)
    assert use.capture_s == pytest.approx(figures.capture_s)
    assert (use.over <= problem.may_exceed) == (figures.p99_s <= 0.005)
    assert problem.coverage(chosen[-1] if chosen else 0) == pytest.approx(figures.coverage)


@settings(MANY, max_examples=400)
@given(
    grids.many_shapes(), grids.cost_models(), st.sampled_from(grids.MODES),
    st.floats(0.3, 0.9), st.floats(0.4, 1.0),
)  # fmt: skip
def test_the_proof_itself_finds_the_best(
    shapes: Shapes, cost: CostModel, mode: str, memory: float, capture: float
) -> None:
    """Without the improvements step by step, which on small problems may find it first."""
    problem = Problem(shapes, cost, EngineRules(16, 40, mode), max_p99_s=None)
    most = problem.use(range(1, len(problem)))
    limits = Limits(
        max_memory_mib=memory * most.bytes / 2**20, max_capture_s=capture * most.capture_s
    )
    with patch.object(search, "_improve"):
        found = optimise(problem, limits)
    least = grids.best_by_looking(problem, limits, Amounts(step_s=1.0))
    assert found.gap == 0
    assert problem.use(indices(problem, found.sizes)).step_s == pytest.approx(least, rel=1e-9)


@MANY
@given(grids.shapes(), grids.engine_rules(), grids.cost_models())
def test_every_candidate_is_captured_as_it_was_asked_for(
    shapes: Shapes, rules: EngineRules, cost: CostModel
) -> None:
    problem = Problem(shapes, cost, rules, max_p99_s=None)
    everything = problem.sizes[1:]
    if everything:
        assert rules.resolve(everything) == everything


def _cumulative(size: int) -> st.SearchStrategy[list[float]]:
    counts = st.lists(st.sampled_from([0.0, 1.0, 3.0, 10.0]), min_size=size, max_size=size)
    return counts.map(lambda found: [0.0, *(sum(found[: k + 1]) for k in range(size))])


def _costs(*, monotone: bool) -> st.SearchStrategy[Costs]:
    def of(size: int) -> st.SearchStrategy[Costs]:
        numbers = st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0]), min_size=size, max_size=size)
        prices = numbers.map(lambda found: [0.0, *(sorted(found) if monotone else found)])
        node = numbers.map(lambda found: [0.0, *found])
        return st.builds(
            Costs, _cumulative(size), _cumulative(size), prices, prices, node, node, node
        )

    return st.integers(1, 6).flatmap(of)


@MANY
@given(_costs(monotone=True) | _costs(monotone=False))
def test_paths_are_the_cheapest_there_are(costs: Costs) -> None:
    n = len(costs)
    looked: dict[int, float] = {}
    for mask in range(1, 2 ** (n - 1)):
        path = [j for j in range(1, n) if mask >> (j - 1) & 1]
        value = costs.begin(path[0]) + costs.end[path[-1]]
        value += sum(costs.edge(i, j) for i, j in pairwise(path))
        looked[len(path)] = min(value, looked.get(len(path), value))
    reached, _ = path_to(costs)
    assert min(reached[j] + costs.end[j] for j in range(1, n)) == pytest.approx(
        min(looked.values())
    )
    rest = path_from(costs)
    assert min(costs.begin(j) + rest[j] for j in range(1, n)) == pytest.approx(min(looked.values()))
    by_count = paths_by_count(costs, n)
    assert [value for value, _ in by_count] == pytest.approx([looked[k] for k in range(1, n)])
    further = rest_by_count(costs, n - 1)
    for count, value in looked.items():
        begun = (costs.begin(j) + further[count - 1][j] for j in range(1, n))
        assert min(begun) == pytest.approx(value)

"""A plan as one SVG picture: the traffic against the grid, and what memory buys. Pure."""

import math

from canaryctl.controller.svg import Line, Panel, Point, Style, render
from canaryctl.runtimes.grid.distribution import Distribution, Shapes
from canaryctl.runtimes.grid.figures import Figures
from canaryctl.runtimes.grid.planner import NO_GRAPHS, Plan

_TICKS = 8


def draw_plan(shapes: Shapes, plan: Plan, source: str) -> str:
    """One document."""
    return render(
        f"Capture grid for {source}", plan.verdict, [_traffic(shapes, plan), _front(plan)]
    )


def _traffic(shapes: Shapes, plan: Plan) -> Panel:
    largest = max((*shapes.decode.sizes, *shapes.mixed.sizes, *plan.grid.sizes, 2))
    doublings = math.ceil(math.log2(largest))
    lines = (
        Line("decodes", _cumulative(shapes.decode), Style.SECOND),
        Line("steps with prompts", _cumulative(shapes.mixed), Style.FIRST),
        Line(
            "captured sizes",
            tuple(((math.log2(s), 0.0), (math.log2(s), 100.0)) for s in plan.grid.sizes),
            Style.THIRD,
        ),
    )
    every = max(1, -(-doublings // _TICKS))
    return Panel(
        title="Steps of at most a size",
        x_label="sequences of a decode step, or tokens of one with prompts",
        y_label="% of steps",
        lines=tuple(line for line in lines if line.runs),
        from_zero=True,
        x_ticks=tuple((float(k), f"{2**k}") for k in range(0, doublings + 1, every)),
    )


def _front(plan: Plan) -> Panel:
    # Without graphs a step takes several times as long: shown, it would flatten all else.
    others = {name: figures for name, figures in plan.compared.items() if name != NO_GRAPHS}
    return Panel(
        title="What graph memory buys",
        x_label="graph memory, MiB",
        y_label="expected step, ms",
        lines=(
            Line("best for its memory", (tuple(map(_point, plan.front)),), Style.SECOND),
            Line("planned", ((_point(plan.grid),),), Style.FIRST),
            *(
                Line(name, ((_point(figures),),), Style.OTHER_BAR)
                for name, figures in others.items()
            ),
        ),
    )


def _point(figures: Figures) -> Point:
    return figures.graph_mib, figures.mean_s * 1000


def _cumulative(distribution: Distribution) -> tuple[tuple[Point, ...], ...]:
    """A staircase, over the logarithm of sizes."""
    points: list[Point] = []
    total = distribution.total
    for size, count in distribution.items():
        before = points[-1][1] if points else 0.0
        points += [(math.log2(size), before), (math.log2(size), before + 100 * count / total)]
    return (tuple(points),) if points else ()

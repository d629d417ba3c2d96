"""Grids as one SVG picture: the traffic against the sizes, and what memory buys. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from canaryctl.controller.svg import Line, Panel, Point, Style, render
from canaryctl.runtimes.grid.distribution import Distribution, Shapes
from canaryctl.runtimes.grid.figures import Figures
from canaryctl.runtimes.grid.planner import NO_GRAPHS, Plan

if TYPE_CHECKING:
    from canaryctl.controller.gridsetup import ArtifactGrid

_TICKS = 8
_NAME = 24  # characters that fit beside a panel


def draw_plan(shapes: Shapes, plan: Plan, source: str) -> str:
    """One document."""
    # Without graphs a step takes several times as long: shown, it would flatten all else.
    others = [(name, figures) for name, figures in plan.compared.items() if name != NO_GRAPHS]
    lines = [
        Line("best for its memory", _curve(plan.front), Style.SECOND),
        Line("planned", _dot(plan.grid), Style.FIRST),
        *(Line(name, _dot(figures), Style.OTHER_BAR) for name, figures in others),
    ]
    panels = [_traffic("Steps of at most a size", shapes, plan.grid.sizes), _memory(lines)]
    return render(f"Capture grid for {source}", plan.verdict, panels)


def draw_comparison(grids: Sequence["ArtifactGrid"], source: str) -> str:
    """One document: each artifact's grid against the traffic, and both against what memory buys
    (twice, where their limits differ)."""
    names = [_short(one.name) for one in grids]
    fronts = {one.judged.front: name for one, name in zip(grids, names, strict=True)}
    styles = (Style.SECOND, Style.THIRD)
    lines = [
        Line("best for its memory" if len(fronts) == 1 else f"best: {name}", _curve(front), style)
        for (front, name), style in zip(fronts.items(), styles, strict=False)
        if front
    ]
    points = (Style.FIRST, Style.BAR)
    lines += [
        Line(name, _dot(one.judged.grid), style)
        for one, name, style in zip(grids, names, points, strict=True)
    ]
    panels = [
        _traffic(f"{one.name}: steps of at most a size", one.shapes, one.judged.grid.sizes)
        for one in grids
    ]
    said = "; ".join(f"{one.name}: {_told(one.judged.grid)}" for one in grids)
    return render(f"Capture grids for {source}", said, [*panels, _memory(lines)])


def _told(figures: Figures) -> str:
    return (
        f"{len(figures.sizes)} sizes, {figures.graph_mib:.0f} MiB, expected step "
        f"{figures.mean_s * 1000:.3g} ms"
    )


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"


def _traffic(title: str, shapes: Shapes, sizes: Sequence[int]) -> Panel:
    largest = max((*shapes.decode.sizes, *shapes.mixed.sizes, *sizes, 2))
    doublings = math.ceil(math.log2(largest))
    lines = (
        Line("decodes", _cumulative(shapes.decode), Style.SECOND),
        Line("steps with prompts", _cumulative(shapes.mixed), Style.FIRST),
        Line(
            "captured sizes",
            tuple(((math.log2(s), 0.0), (math.log2(s), 100.0)) for s in sizes),
            Style.THIRD,
        ),
    )
    every = max(1, -(-doublings // _TICKS))
    return Panel(
        title=title,
        x_label="sequences of a decode step, or tokens of one with prompts",
        y_label="% of steps",
        lines=tuple(line for line in lines if line.runs),
        from_zero=True,
        x_ticks=tuple((float(k), f"{2**k}") for k in range(0, doublings + 1, every)),
    )


def _memory(lines: Iterable[Line]) -> Panel:
    return Panel(
        title="What graph memory buys",
        x_label="graph memory, MiB",
        y_label="expected step, ms",
        lines=tuple(lines),
    )


def _curve(front: Sequence[Figures]) -> tuple[tuple[Point, ...], ...]:
    return (tuple(map(_point, front)),)


def _dot(figures: Figures) -> tuple[tuple[Point, ...], ...]:
    return ((_point(figures),),)


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

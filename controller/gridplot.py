"""A plan as one SVG picture: the traffic against the grid, and what memory buys. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree import ElementTree as ET

from canaryctl.runtimes.grid.distribution import Distribution, Shapes
from canaryctl.runtimes.grid.figures import Figures
from canaryctl.runtimes.grid.planner import Plan

WIDTH: Final = 860
_PANEL: Final = 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 44, 44
_DECODE, _MIXED, _SIZE, _OTHER = "#0072b2", "#d55e00", "#009e73", "#6b6b6b"  # Okabe and Ito

Point = tuple[float, float]


def draw_plan(shapes: Shapes, plan: Plan, source: str) -> str:
    """One document, without script or font or link from elsewhere."""
    height = 2 * _PANEL + 30
    root = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH} {height}",
            "width": str(WIDTH),
            "height": str(height),
            "role": "img",
            "font-family": "sans-serif",
            "font-size": "12",
        },
    )
    ET.SubElement(root, "title").text = f"Capture grid for {source}"
    ET.SubElement(root, "desc").text = plan.verdict
    ET.SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": "#ffffff"})
    _traffic(_Panel(root, 10, "Steps up to a size, and the captured sizes"), shapes, plan)
    _front(_Panel(root, 10 + _PANEL, "Expected step time by graph memory"), plan)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _traffic(panel: "_Panel", shapes: Shapes, plan: Plan) -> None:
    largest = max(*shapes.decode.sizes[-1:], *shapes.mixed.sizes[-1:], *plan.grid.sizes[-1:], 2)
    doublings = range(math.ceil(math.log2(largest)) + 1)
    panel.axes((0, doublings[-1]), (0, 100), "sequences or tokens of a step", "% of steps")
    panel.x_ticks((k, f"{2**k}") for k in doublings[:: max(1, len(doublings) // 8)])
    panel.y_ticks([0, 25, 50, 75, 100])
    for size in plan.grid.sizes:
        panel.line([(math.log2(size), 0), (math.log2(size), 100)], _SIZE, "1", "2 3")
    for distribution, colour in ((shapes.decode, _DECODE), (shapes.mixed, _MIXED)):
        panel.line(_cumulative(distribution), colour, "2")
    panel.legend([("decodes", _DECODE), ("with prompt tokens", _MIXED), ("captured sizes", _SIZE)])


def _front(panel: "_Panel", plan: Plan) -> None:
    grids = {"planned": plan.grid, **plan.compared}
    shown = [*plan.front, *grids.values()]
    most_mib = max(figures.graph_mib for figures in shown) * 1.05 or 1.0
    most_ms = max(figures.mean_s for figures in shown) * 1050
    panel.axes((0, most_mib), (0, most_ms), "graph memory, MiB", "expected step, ms")
    panel.x_ticks((value, f"{value:.3g}") for value in _quarters(most_mib))
    panel.y_ticks(_quarters(most_ms))
    panel.line([_point(figures) for figures in plan.front], _DECODE, "2")
    for name, figures in grids.items():
        panel.dot(_point(figures), name, _MIXED if name == "planned" else _OTHER)
    panel.legend([("best for its memory", _DECODE), ("planned", _MIXED), ("others", _OTHER)])


def _point(figures: Figures) -> Point:
    return figures.graph_mib, figures.mean_s * 1000


def _quarters(most: float) -> list[float]:
    return [most * part / 4 for part in range(5)]


def _cumulative(distribution: Distribution) -> list[Point]:
    reached, points = 0, []
    for size, count in distribution.items():
        points.append((math.log2(size), 100 * reached / distribution.total))
        reached += count
        points.append((math.log2(size), 100 * reached / distribution.total))
    return points


class _Panel:
    def __init__(self, root: ET.Element, top: int, title: str) -> None:
        self._group = ET.SubElement(root, "g", {"role": "group", "aria-label": title})
        self._x0, self._x1 = _LEFT, WIDTH - _RIGHT
        self._y0, self._y1 = top + _PANEL - _BOTTOM, top + _TOP
        self._xs = self._ys = (0.0, 1.0)
        self._text(self._x0, self._y1 - 14, title, weight="bold")

    def axes(self, xs: Point, ys: Point, x_label: str, y_label: str) -> None:
        self._xs, self._ys = xs, ys
        corners = [(xs[0], ys[1]), (xs[0], ys[0]), (xs[1], ys[0])]
        self.line(corners, "#1a1a1a", "1")
        self._text((self._x0 + self._x1) / 2, self._y0 + 36, x_label, anchor="middle")
        self._text(self._x0 - 8, self._y1 - 2, y_label, anchor="end")

    def x_ticks(self, ticks: Iterable[tuple[float, str]]) -> None:
        for value, label in ticks:
            x, _ = self._at((value, self._ys[0]))
            self._text(x, self._y0 + 16, label, anchor="middle")

    def y_ticks(self, ticks: Iterable[float]) -> None:
        for value in ticks:
            _, y = self._at((self._xs[0], value))
            self._text(self._x0 - 6, y + 4, f"{value:.3g}", anchor="end")

    def line(self, points: Sequence[Point], colour: str, width: str, dashes: str = "") -> None:
        if not points:
            return
        where = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self._at, points))
        look = {"fill": "none", "stroke": colour, "stroke-width": width}
        if dashes:
            look["stroke-dasharray"] = dashes
        ET.SubElement(self._group, "polyline", {"points": where, **look})

    def dot(self, point: Point, label: str, colour: str) -> None:
        x, y = self._at(point)
        where = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "4", "fill": colour}
        ET.SubElement(self._group, "circle", where)
        self._text(x + 7, y - 5, label)

    def legend(self, entries: Iterable[tuple[str, str]]) -> None:
        for row, (label, colour) in enumerate(entries):
            y = self._y1 + 8 + 18 * row
            where = {"x": f"{self._x1 + 14:.1f}", "y": f"{y - 9:.1f}"}
            ET.SubElement(
                self._group, "rect", {**where, "width": "12", "height": "10", "fill": colour}
            )
            self._text(self._x1 + 32, y, label)

    def _at(self, point: Point) -> Point:
        (x_low, x_high), (y_low, y_high) = self._xs, self._ys
        x = self._x0 + (point[0] - x_low) / (x_high - x_low) * (self._x1 - self._x0)
        y = self._y0 - (point[1] - y_low) / (y_high - y_low) * (self._y0 - self._y1)
        return x, y

    def _text(
        self, x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal"
    ) -> None:
        look = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "font-weight": weight}
        ET.SubElement(self._group, "text", look).text = text

"""Line charts as SVG: panels below each other, over one horizontal axis each. Pure.

Drawn for eyes of every kind: colours that the colour-blind tell apart and a dash pattern besides,
a title and a description for who hears the picture, and no script, font or link from elsewhere.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from xml.etree import ElementTree as ET

Point = tuple[float, float]

WIDTH, PANEL_HEIGHT = 860, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 232, 40, 48  # around a panel's plotting area
_HEAD = 34
_LEGEND_ROW = 19
_TEXT = "#1a1a1a"
_GRID = "#dddddd"


class Style(Enum):
    """Colour (after Okabe and Ito) and dash pattern."""

    FIRST = ("#d55e00", None)
    SECOND = ("#0072b2", "7 3")
    THIRD = ("#009e73", "2 3")
    BAR = ("#000000", "10 4 2 4")
    OTHER_BAR = ("#6b6b6b", "4 4")


@dataclass(frozen=True, slots=True)
class Line:
    """``runs``: points joined within a run; between two runs nothing was measured."""

    label: str
    runs: tuple[tuple[Point, ...], ...]
    style: Style


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line that means something."""

    label: str
    y: float
    style: Style


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, in words."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Panel:
    """``x_label`` and ``y_label`` name the unit. ``from_zero``: the vertical axis shows 0.
    ``window``: what the vertical axis is cut to, where it reaches further. ``x_ticks``: places on
    the horizontal axis and what they are called; none: round numbers."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    levels: tuple[Level, ...] = ()
    marks: tuple[Mark, ...] = ()
    from_zero: bool = False
    window: tuple[float, float] | None = None
    x_ticks: tuple[tuple[float, str], ...] = ()


def runs(points: Iterable[tuple[float, float | None]]) -> tuple[tuple[Point, ...], ...]:
    """Points cut where a value is None or not finite."""
    found: list[list[Point]] = [[]]
    for x, y in points:
        if y is not None and math.isfinite(y):
            found[-1].append((x, y))
        elif found[-1]:
            found.append([])
    return tuple(tuple(run) for run in found if run)


def render(title: str, description: str, panels: Sequence[Panel]) -> str:
    """One SVG document."""
    height = _HEAD + PANEL_HEIGHT * len(panels)
    root = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH} {height}",
            "width": str(WIDTH),
            "height": str(height),
            "role": "img",
            "aria-labelledby": "title description",
            "font-family": "sans-serif",
            "font-size": "12",
            "fill": _TEXT,
        },
    )
    ET.SubElement(root, "title", {"id": "title"}).text = _writable(title)
    ET.SubElement(root, "desc", {"id": "description"}).text = _writable(description)
    ET.SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": "#ffffff"})
    _text(root, 12, 22, title, size=15, weight="bold")
    for number, panel in enumerate(panels):
        _Drawing(root, panel, _HEAD + PANEL_HEIGHT * number).draw()
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, at steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


class _Drawing:
    """One panel at ``top``."""

    def __init__(self, root: ET.Element, panel: Panel, top: int) -> None:
        self._panel = panel
        label = _writable(panel.title)
        self._group = ET.SubElement(root, "g", {"role": "group", "aria-label": label})
        self._x0, self._x1 = _LEFT, WIDTH - _RIGHT
        self._y0, self._y1 = top + PANEL_HEIGHT - _BOTTOM, top + _TOP
        points = [point for line in panel.lines for run in line.runs for point in run]
        xs = [x for x, _ in (*points, *panel.x_ticks)] + [mark.x for mark in panel.marks]
        ys = [y for _, y in points] + [level.y for level in panel.levels]
        self._xs = _span(xs, pad=0.0)
        self._ys = _span([*ys, 0.0] if panel.from_zero else ys, pad=0.06)
        if panel.from_zero and min(ys, default=0.0) >= 0:
            self._ys = (0.0, self._ys[1])
        if panel.window is not None:
            low, high = panel.window
            self._ys = (max(low, self._ys[0]), min(high, self._ys[1]))

    def _x(self, x: float) -> float:
        low, high = self._xs
        return self._x0 + (x - low) / (high - low) * (self._x1 - self._x0)

    def _y(self, y: float) -> float:
        low, high = self._ys
        return self._y0 - (y - low) / (high - low) * (self._y0 - self._y1)

    def draw(self) -> None:
        panel = self._panel
        _text(self._group, self._x0, self._y1 - 12, panel.title, size=13, weight="bold")
        self._axes()
        for level in panel.levels:
            y = self._y(level.y)
            self._stroke((self._x0, y), (self._x1, y), level.style)
        for mark in panel.marks:
            self._mark(mark)
        clipped = ET.SubElement(self._group, "g", {"clip-path": f"url(#{self._clip()})"})
        for line in panel.lines:
            for run in line.runs:
                self._run(clipped, run, line.style)
        self._legend()

    def _clip(self) -> str:
        """The id of the plotting area."""
        name = f"area-{self._y1}"
        area = {"x": self._x0, "y": self._y1, "width": self._x1 - self._x0}
        path = ET.SubElement(self._group, "clipPath", {"id": name})
        numbers = {**area, "height": self._y0 - self._y1}
        ET.SubElement(path, "rect", {key: str(value) for key, value in numbers.items()})
        return name

    def _axes(self) -> None:
        for value in ticks(*self._ys):
            y = self._y(value)
            self._plain((self._x0, y), (self._x1, y), _GRID)
            _text(self._group, self._x0 - 6, y + 4, f"{value:g}", anchor="end")
        for value, label in self._panel.x_ticks or [(x, f"{x:g}") for x in ticks(*self._xs)]:
            x = self._x(value)
            self._plain((x, self._y0), (x, self._y0 + 4), _TEXT)
            _text(self._group, x, self._y0 + 17, label, anchor="middle")
        self._plain((self._x0, self._y0), (self._x1, self._y0), _TEXT)
        self._plain((self._x0, self._y0), (self._x0, self._y1), _TEXT)
        middle = (self._x0 + self._x1) / 2
        _text(self._group, middle, self._y0 + 35, self._panel.x_label, anchor="middle")
        x, y = self._x0 - 52, (self._y0 + self._y1) / 2
        turned = _text(self._group, x, y, self._panel.y_label, anchor="middle")
        turned.set("transform", f"rotate(-90 {x:.1f} {y:.1f})")

    def _mark(self, mark: Mark) -> None:
        x = self._x(mark.x)
        self._plain((x, self._y0), (x, self._y1), _TEXT)
        is_right = x > (self._x0 + self._x1) / 2
        _text(
            self._group,
            x - 5 if is_right else x + 5,
            self._y1 + 11,
            mark.label,
            anchor="end" if is_right else "start",
            weight="bold",
        )

    def _run(self, parent: ET.Element, run: Sequence[Point], style: Style) -> None:
        colour, _ = style.value
        if len(run) == 1:
            x, y = run[0]
            where = {"cx": f"{self._x(x):.1f}", "cy": f"{self._y(y):.1f}"}
            ET.SubElement(parent, "circle", {**where, "r": "2.5", "fill": colour})
            return
        points = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in run)
        ET.SubElement(parent, "polyline", {"points": points, **_stroke(style, "1.8")})

    def _legend(self) -> None:
        x, y = self._x1 + 14, self._y1 + 8
        entries: tuple[Line | Level, ...] = (*self._panel.lines, *self._panel.levels)
        for entry in entries:
            self._stroke((x, y - 4), (x + 28, y - 4), entry.style)
            _text(self._group, x + 34, y, entry.label)
            y += _LEGEND_ROW

    def _stroke(self, start: Point, end: Point, style: Style) -> None:
        ET.SubElement(self._group, "line", {**_ends(start, end), **_stroke(style, "1.5")})

    def _plain(self, start: Point, end: Point, colour: str) -> None:
        ET.SubElement(self._group, "line", {**_ends(start, end), "stroke": colour})


def _span(values: Sequence[float], pad: float) -> tuple[float, float]:
    """From the least to the greatest, never empty."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low <= abs(high) * 1e-9:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    return low - pad * (high - low), high + pad * (high - low)


def _ends(start: Point, end: Point) -> dict[str, str]:
    return {
        "x1": f"{start[0]:.1f}",
        "y1": f"{start[1]:.1f}",
        "x2": f"{end[0]:.1f}",
        "y2": f"{end[1]:.1f}",
    }


def _stroke(style: Style, width: str) -> dict[str, str]:
    colour, dashes = style.value
    found = {"stroke": colour, "stroke-width": width, "fill": "none"}
    return found if dashes is None else {**found, "stroke-dasharray": dashes}


def _text(
    parent: ET.Element,
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 12,
    weight: str = "normal",
) -> ET.Element:
    found = ET.SubElement(
        parent,
        "text",
        {
            "x": f"{x:.1f}",
            "y": f"{y:.1f}",
            "text-anchor": anchor,
            "font-size": str(size),
            "font-weight": weight,
        },
    )
    found.text = _writable(text)
    return found


def _writable(text: str) -> str:
    """What XML cannot hold is shown, not written."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)

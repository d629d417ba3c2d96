"""The course of a release's gates as a picture: the evidence, and what was measured. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from canaryctl.common.errors import InputError, UnknownNameError
from canaryctl.controller.model import LookRecord
from canaryctl.controller.svg import Level, Line, Mark, Panel, Point, Style, render, runs
from canaryctl.gates import capacity, latency, step_time
from canaryctl.gates.outcome import GateResult, Outcome

X_LABEL = "minutes since the first look"
_DECIDED = (Outcome.FAILED, Outcome.PASSED)


@dataclass(slots=True)
class _Course:
    """One gate over the looks: minutes and its results."""

    name: str
    minutes: list[float] = field(default_factory=list)
    results: list[GateResult] = field(default_factory=list)

    def values(self, name: str, scale: float) -> list[tuple[Point, ...]]:
        """Runs of one quantile each: the gate tells of the one with the most evidence."""
        found: list[tuple[Point, ...]] = []
        points = zip(self.minutes, self.results, strict=True)
        for _, run in groupby(points, key=lambda point: _reported(point[1])):
            told = [(at, getattr(result, name)) for at, result in run]
            found += runs((at, None if value is None else value * scale) for at, value in told)
        return found

    def rule(self, number: int, name: str) -> list[tuple[float, float | None]]:
        return [
            (at, rules[number].get(name) if number < len(rules) else None)
            for at, rules in zip(self.minutes, (r.rules for r in self.results), strict=True)
        ]

    @property
    def marks(self) -> tuple[Mark, ...]:
        """When it was decided, and whenever that changed."""
        found, before = [], None
        for at, result in zip(self.minutes, self.results, strict=True):
            if result.outcome in _DECIDED and result.outcome is not before:
                found.append(Mark(at, result.outcome.value))
            before = result.outcome
        return tuple(found)


def plot(release: str, looks: Iterable[LookRecord], gate: str | None = None) -> str:
    """SVG: for each gate that weighs evidence, ln E against its bars, and below it what was
    measured of both arms with the limit. InputError if there is nothing to draw."""
    courses = _courses(looks)
    if gate is not None and gate not in courses:
        raise UnknownNameError("gate of this release", gate, courses)
    drawn = [c for name, c in courses.items() if name == gate or (gate is None and _weighs(c))]
    panels = [panel for course in drawn for panel in _panels(course)]
    if not panels:
        raise InputError(f"{release} has no look of a gate that measures anything: nothing to draw")
    said = [f"{c.name}: {c.results[-1].outcome.value}, {c.results[-1].reason}" for c in drawn]
    return render(f"Gates of release {release}", ". ".join(said), panels)


def _courses(looks: Iterable[LookRecord]) -> dict[str, _Course]:
    found: dict[str, _Course] = {}
    begun = None
    for record in looks:
        begun = begun or record.at
        minutes = (record.at - begun).total_seconds() / 60
        for measurement in record.measurements:
            course = found.setdefault(measurement.gate, _Course(measurement.gate))
            course.minutes.append(minutes)
            course.results.append(measurement.result)
    return found


def _reported(result: GateResult) -> str | None:
    """Which quantile the values are of, where a gate has several."""
    return next((rule["reported"] for rule in result.rules if "reported" in rule), None)


def _weighs(course: _Course) -> bool:
    return any(result.rules for result in course.results)


def _panels(course: _Course) -> list[Panel]:
    rules = max((result.rules for result in course.results), key=len)
    panels = [_evidence(course, n, rules[n], len(rules)) for n in range(len(rules))]
    measured = _measured(course)
    return panels if measured is None else [*panels, measured]


def _evidence(course: _Course, number: int, rule: Mapping[str, Any], of: int) -> Panel:
    title = f"{course.name}: evidence" + (f", rule {number + 1} of {of}" if of > 1 else "")
    fail, passed = runs(course.rule(number, "log_e_fail")), runs(course.rule(number, "log_e_pass"))
    lines = [Line("that it is worse", fail, Style.FIRST)]
    levels = [Level("fails from here", rule["log_fail_at"], Style.BAR)]
    if passed:
        lines.append(Line("that it is not worse", passed, Style.SECOND))
        levels.append(Level("passes from here", rule["log_pass_at"], Style.OTHER_BAR))
    top = max(level.y for level in levels)
    return Panel(
        title,
        X_LABEL,
        "ln of the e-value",
        tuple(lines),
        tuple(levels),
        course.marks,
        window=(-1.5 * top, 2 * top),
    )


def _measured(course: _Course) -> Panel | None:
    unit, scale = _unit(course)
    lines = [
        Line(label, found, style)
        for label, name, style in (
            ("canary", "value", Style.FIRST),
            ("baseline", "baseline", Style.SECOND),
            ("limit", "limit", Style.BAR),
        )
        if (found := tuple(course.values(name, scale)))
    ]
    if not lines:
        return None
    quantiles = {_reported(result) for result in course.results}
    which = ", at the quantile with the most evidence against it" if len(quantiles) > 1 else ""
    title = f"{course.name}: measured{which}"
    return Panel(title, X_LABEL, unit, tuple(lines), marks=course.marks, from_zero=True)


def _unit(course: _Course) -> tuple[str, float]:
    """The unit of what is measured, and by how much the stored value is multiplied."""
    if course.name in (*latency.NAMES, step_time.STEP_TIME):
        largest = max((r.value or 0.0 for r in course.results), default=0.0)
        return ("seconds", 1.0) if largest >= 1 else ("milliseconds", 1000.0)
    if course.name in capacity.NAMES:
        return "requests at once", 1.0
    if any(
        "by_reason" in result.details or "events" in result.details for result in course.results
    ):
        return "per cent", 100.0
    return "in the metric's unit", 1.0

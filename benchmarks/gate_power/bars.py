"""The bars of the gates, each with what was measured against it.

A bar is met when the one-sided 95 % bound of what was measured is within it, missed when the
opposite bound is beyond it, and open between the two: then it takes more repetitions to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.gate_power.binomial import Median, Rate
from benchmarks.gate_power.campaign import Found
from benchmarks.gate_power.experiments import (
    AT_MARGIN,
    AT_TOLERANCE,
    EQUAL,
    IID,
    IID_OWN,
    LATE,
    ONE_HOUR,
    TOKENS,
)
from benchmarks.gate_power.forms import FORMS
from benchmarks.gate_power.planned import plans
from benchmarks.gate_power.queues import QUEUES
from benchmarks.gate_power.vectors import vector_error

MET, MISSED, OPEN = "met", "**missed**", "open"
Results = Mapping[tuple[str, str], Found]


@dataclass(frozen=True, slots=True)
class Row:
    bar: str
    what: str
    form: str
    value: str
    error: str
    bound: str
    limit: str
    verdict: str

    def cells(self) -> tuple[str, ...]:
        return (
            *(self.bar, self.what, self.form, self.value, self.error, self.bound, self.limit),
            self.verdict,
        )


def share(value: float) -> str:
    return f"{100 * value:.2f} %"


def number(value: float) -> str:
    return f"{value:,.0f}" if value < float("inf") else "never"


def seldom(bar: str, what: str, form: str, rate: Rate, limit: float) -> Row:
    """A rate that is ``limit`` at most."""
    verdict = MET if rate.upper <= limit else MISSED if rate.lower > limit else OPEN
    shown = f"≤ {share(rate.upper)}"
    return Row(
        bar, what, form, f"{share(rate.value)} of {rate.n:,}", share(rate.error), shown,
        f"≤ {100 * limit:g} %", verdict,
    )  # fmt: skip


def often(bar: str, what: str, form: str, rate: Rate, limit: float) -> Row:
    """A rate that is ``limit`` at least."""
    verdict = MET if rate.lower >= limit else MISSED if rate.upper < limit else OPEN
    shown = f"≥ {share(rate.lower)}"
    return Row(
        bar, what, form, f"{share(rate.value)} of {rate.n:,}", share(rate.error), shown,
        f"≥ {100 * limit:g} %", verdict,
    )  # fmt: skip


def soon(bar: str, what: str, form: str, median: Median, limit: float) -> Row:
    """A median of canary requests that is ``limit`` at most."""
    verdict = MET if median.upper <= limit else MISSED if median.lower > limit else OPEN
    return Row(
        bar, what, form, number(median.value), number(median.error), f"≤ {number(median.upper)}",
        f"≤ {number(limit)}", verdict,
    )  # fmt: skip


def rows(found: Results) -> list[Row]:
    return [
        *_independent(found),
        *_medians(found),
        *_queues(found),
        *_false_passes(found),
        *_planner(found),
        *_tokens(found),
        soon(
            "7",
            "iid, +100 % after 30 min: requests after it",
            "p99",
            found[IID, LATE].failed_after("p99"),
            600,
        ),
        _vectors(),
    ]


def _independent(found: Results) -> list[Row]:
    return [
        seldom("1", f"{world}, {case}: fails", form, found[world, case].failed(form), 0.01)
        for world in (IID, IID_OWN)
        for case in (EQUAL, AT_TOLERANCE)
        for form in FORMS
    ]


def _medians(found: Results) -> list[Row]:
    bars = (("p99", "+50 %", 1900), ("p99", "+100 %", 400), ("multi", "+50 %", 200))
    return [
        soon("2", f"iid, {case}: median of a failure", form, found[IID, case].failed_after(form), n)
        for form, case, n in bars
    ]


def _queues(found: Results) -> list[Row]:
    bars = []
    for queue in (*QUEUES, *ONE_HOUR):
        for case, limit in ((EQUAL, 0.01), (AT_TOLERANCE, 0.015)):
            for form in FORMS:
                # Slowed until its p99 is 10 % longer, Qk is longer by more at lower quantiles.
                if (queue.name[:2], case, form) != ("Qk", AT_TOLERANCE, "multi"):
                    rate = found[queue.name, case].failed(form)
                    bars.append(seldom("3", f"{queue.name}, {case}: fails", form, rate, limit))
    half, twice = found["Q60", "+50 %"], found["Q60", "+100 %"]
    bars.append(often("3", "Q60, +50 %: fails in 7,200", "multi", half.failed("multi"), 0.9))
    bars.append(
        soon("3", "Q60, +100 %: median of a failure", "multi", twice.failed_after("multi"), 1300)
    )
    return bars


def _false_passes(found: Results) -> list[Row]:
    cases = [
        (IID, AT_MARGIN, "iid, +33 %"),
        (IID_OWN, AT_MARGIN, f"{IID_OWN}, +33 %"),
        *(
            (queue.name, case, f"{queue.name}, {case}")
            for queue in QUEUES
            for case in (AT_MARGIN, "+33 %, 1:1")
        ),
        *((queue.name, AT_MARGIN, f"{queue.name}, {AT_MARGIN}") for queue in ONE_HOUR),
    ]
    return [
        seldom("4", f"{what}: passes", form, found[world, case].passed(form), 0.05)
        for world, case, what in cases
        for form in FORMS
    ]


def _planner(found: Results) -> list[Row]:
    made = []
    for what, case, passing, planned in plans():
        each = found[IID, case]
        median = each.passed_after("p99") if passing else each.failed_after("p99")
        off, low, high = (x / planned - 1 for x in (median.value, median.lower, median.upper))
        inside = low >= -0.25 and high <= 0.25
        outside = low > 0.25 or high < -0.25
        made.append(
            Row(
                "5",
                f"{what}: {number(median.value)} measured, {number(planned)} planned",
                "p99",
                f"{100 * off:+.0f} %",
                f"{100 * median.error / planned:.0f} %",
                f"{100 * low:+.0f} … {100 * high:+.0f} %",
                "±25 %",
                MET if inside else MISSED if outside else OPEN,
            )
        )
    return made


def _tokens(found: Results) -> list[Row]:
    return [
        seldom("6", f"tokens, {case}: fails", form, found[TOKENS, case].failed(form), 0.01)
        for case in (EQUAL, AT_TOLERANCE)
        for form in FORMS
    ]


def _vectors() -> Row:
    error = vector_error()
    return Row(
        "8", "four values of (A) and (B) on three looks", "–", f"{error:.1e} off", "–", "–",
        "six digits", MET if error < 1e-6 else MISSED,
    )  # fmt: skip

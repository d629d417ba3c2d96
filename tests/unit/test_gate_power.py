"""The short form of ``benchmarks.gate_power``: fixed seeds, bounds from binomial tails.

Each bound is such that a gate within its bars exceeds it in one run of ten thousand at most.
"""

import math
import statistics

import numpy as np
import pytest

from benchmarks.gate_power.binomial import Median, Rate, tail
from benchmarks.gate_power.calibrate import p99
from benchmarks.gate_power.campaign import Campaign, Case, Found
from benchmarks.gate_power.counting import against_baseline, against_limit
from benchmarks.gate_power.experiments import MARGINS
from benchmarks.gate_power.forms import EXACT, FORMS
from benchmarks.gate_power.independent import NONE, Independent, Slowdown, Tokens
from benchmarks.gate_power.judges import JUDGES
from benchmarks.gate_power.planned import plans
from benchmarks.gate_power.queues import Q60
from benchmarks.gate_power.vectors import vector_error

UNLIKELY = 1e-4


def most(n: int, p: float) -> int:
    """So many of ``n`` are still likely at a rate of ``p``."""
    return next(k for k in range(n + 1) if tail(k + 1, n, p) < UNLIKELY)


def measured(campaign: Campaign) -> dict[str, Found]:
    """By case."""
    repetitions = max(case.repetitions for case in campaign.cases)
    found = campaign.part(0, repetitions)
    return {case.name: each for case, each in zip(campaign.cases, found, strict=True)}


@pytest.fixture(scope="module")
def independent() -> dict[str, Found]:
    return measured(
        Campaign(
            Independent(),
            (
                Case("equal", NONE, 400, EXACT, judged=20),
                *(
                    Case(f"equal, margin {name}", NONE, 100, EXACT, margin=m)
                    for name, m in MARGINS.items()
                ),
                Case("+10 %", Slowdown(1.1), 400, EXACT),
                Case("+33 %", Slowdown(1.33), 200, EXACT),
                Case("+50 %", Slowdown(1.5), 100, EXACT),
                Case("+100 %", Slowdown(2.0), 100, EXACT),
                Case("late", Slowdown(2.0, from_look=120), 100, EXACT),
                Case("no history", NONE, 100, history=False),
            ),
            seed=1,
        )
    )


@pytest.mark.parametrize("form", FORMS)
def test_independent_releases_fail_as_seldom_as_said(
    independent: dict[str, Found], form: str
) -> None:
    for case in ("equal", "+10 %"):
        failed = independent[case].failed(form)
        assert failed.k <= most(failed.n, 0.01)
    passed = independent["+33 %"].passed(form)
    assert passed.k <= most(passed.n, 0.05)


def test_a_regression_is_found_as_soon_as_said(independent: dict[str, Found]) -> None:
    assert independent["+50 %"].failed("p99").value > 0.95
    assert independent["+50 %"].failed_after("p99").lower <= 1900
    assert independent["+100 %"].failed_after("p99").lower <= 400
    assert independent["late"].failed_after("p99").lower <= 600
    assert independent["+50 %"].failed_after("multi").lower <= 200


def test_equal_releases_pass_and_only_with_a_history(independent: dict[str, Found]) -> None:
    assert independent["equal"].passed("p99").value > 0.75
    assert independent["no history"].passed("p99").k == 0


def test_the_planner_says_what_is_measured(independent: dict[str, Found]) -> None:
    for _, case, passing, planned in plans():
        found = independent[case]
        median = found.passed_after("p99") if passing else found.failed_after("p99")
        assert median.lower <= 1.25 * planned
        assert median.upper >= 0.75 * planned


def test_other_judges_fail_equal_releases(independent: dict[str, Found]) -> None:
    failed = {name: times for name, times in independent["equal"].others.items() if "min" in name}
    assert failed.keys() == JUDGES.keys()
    for name, times in failed.items():
        decided = sum(map(math.isfinite, times))
        assert decided <= 2 if name.startswith("Mann") else decided >= 18


def test_a_history_protects_where_requests_queue() -> None:
    found = measured(
        Campaign(
            Q60,
            (
                Case("equal", NONE, 120),
                Case("+100 %", Slowdown(2.0), 40),
                Case("equal, φ = 1", NONE, 60, EXACT),
            ),
            seed=2,
        )
    )
    for form in FORMS:
        assert found["equal"].failed(form).k <= most(120, 0.01)
    assert statistics.median(found["equal"].phis) > 10
    assert found["+100 %"].failed("multi").lower > 0.8
    assert found["+100 %"].failed_after("multi").lower <= 1300
    assert found["equal, φ = 1"].failed("p99").k > most(60, 0.05)  # what φ is for


def test_gaps_between_tokens_are_no_independent_observations() -> None:
    found = measured(
        Campaign(Tokens(), (Case("equal", NONE, 40), Case("+20 %", Slowdown(1.2), 10)), seed=3)
    )
    assert found["equal"].failed("p99").k <= most(40, 0.01)
    assert found["+20 %"].failed("p99").k == 10
    assert 70 < statistics.median(found["equal"].phis) < 100


def test_counts_of_errors() -> None:
    assert against_baseline(1.0, 40, seed=4).failed.k <= most(40, 0.01)
    assert against_baseline(4.0, 20, seed=5).failed_median.value <= 800
    assert against_limit(0.0, 1, seed=6).passed_median.value <= 400
    assert against_limit(0.05, 20, seed=7).failed_median.value <= 250


def test_published_values_of_both_processes() -> None:
    assert vector_error() < 1e-6


def test_scales_of_the_queues_give_the_factor() -> None:
    ratio = p99(Q60, Q60.scales[1.5], 300_000) / p99(Q60, 1.0, 300_000)
    assert ratio == pytest.approx(1.5, rel=0.1)


def test_repetitions_do_not_depend_on_how_they_are_spread() -> None:
    campaign = Campaign(Q60, (Case("equal", NONE, 4), Case("+50 %", Slowdown(1.5), 3)), seed=8)
    whole, parts = campaign.part(0, 4), [campaign.part(0, 1), campaign.part(1, 4)]
    for index, found in enumerate(whole):
        both = parts[0][index]
        both.extend(parts[1][index])
        assert both.decisions == found.decisions
        assert both.phis == found.phis


def test_bounds_are_exact() -> None:
    assert Rate(0, 300).upper == pytest.approx(1 - 0.05 ** (1 / 300))
    assert Rate(300, 300).lower == pytest.approx(0.05 ** (1 / 300))
    assert Rate(0, 300).lower == 0.0
    half = Rate(50, 100)
    assert tail(50, 100, half.lower) == pytest.approx(0.05)
    assert 1 - tail(51, 100, half.upper) == pytest.approx(0.05)
    values = Median([float(x) for x in np.arange(101)])
    assert (values.lower, values.value, values.upper) == (42.0, 50.0, 59.0)
    assert Median([1.0, math.inf, math.inf]).value == math.inf

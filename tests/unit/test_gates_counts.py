"""Errors among requests."""

import math

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.samples import Missing, Series, Value
from tests.support.gates import arm, judge, spec


def requests(errors: float, total: float) -> dict[AnySignal, Value]:
    return {Signal.ERRORS: Series({(): errors}), Signal.REQUESTS: Series({(): total})}


def test_no_error_at_all_passes_an_absolute_limit() -> None:
    looks, result = judge(spec("error_rate", max_ratio="1%"), 10, arm(requests(0, 40)))
    assert result.outcome is Outcome.PASSED
    assert looks * 40 == result.samples == 400
    assert result.value == 0.0
    assert "0 % of 400 requests failed; at most 1 % may" in result.reason


def test_many_errors_fail_an_absolute_limit_at_once() -> None:
    looks, result = judge(spec("error_rate", max_ratio="1%"), 10, arm(requests(20, 40)))
    assert result.outcome is Outcome.FAILED
    assert looks == 1
    assert "chance of saying so by accident ≤ 1 %" in result.reason


def test_errors_are_compared_with_the_baseline() -> None:
    worse = spec("error_rate", max_regression="50%")
    _, result = judge(worse, 100, arm(requests(4, 40)), arm(requests(1, 40)))
    assert result.outcome is Outcome.FAILED
    assert "10 % of" in result.reason
    assert "2.5 % of" in result.reason
    _, result = judge(worse, 100, arm(requests(1, 40)), arm(requests(1, 40)))
    assert result.outcome is Outcome.INCONCLUSIVE
    _, result = judge(worse, 400, arm(requests(0, 400)), arm(requests(0, 400)))
    assert result.outcome is Outcome.INCONCLUSIVE  # no rate, no ratio of rates
    assert result.no_harm
    assert "a rise by 100 % from 0.5 % would have been found" in result.reason


def test_equal_or_fewer_errors_can_be_shown() -> None:
    gate = spec("error_rate", max_regression="50%", margin="100%")
    _, result = judge(gate, 200, arm(requests(1, 40)), arm(requests(2, 40)))
    assert result.outcome is Outcome.PASSED


def test_a_failure_counted_before_its_request_is_no_contradiction() -> None:
    _, result = judge(spec("error_rate", max_ratio="1%"), 1, arm(requests(1, 0)))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.samples == 1


def test_missing_reasons_reach_the_gate() -> None:
    _, found = judge(
        spec("error_rate", max_ratio="1%"),
        1,
        arm({Signal.ERRORS: Missing("answered 500"), Signal.REQUESTS: Series({(): math.pi})}),
    )
    assert "answered 500" in found.reason

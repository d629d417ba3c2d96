"""``output_parity`` on counts made by hand, and its bounds against sums of exact fractions."""

from dataclasses import asdict, replace
from fractions import Fraction
from functools import cache
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canaryctl.common.parity import Agreement, Parity
from canaryctl.gates import registry
from canaryctl.gates.base import Look
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.parity import BY_TEXT
from canaryctl.gates.samples import Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.stats import binomial
from tests.support.gates import arm, context, judge, spec

SHARE = spec("output_parity", max_ratio="5%")
NATS = spec("output_parity", max_nats=0.05)


def parity(
    canary: int, own: int = 0, *, of: int = 126, nats: float | None = 0.01, own_nats: float = 0.01
) -> Parity:
    """All in batches of one size."""
    example = "prompt 5 in a batch of 32, token 3: ' ba', not ' de'" if canary else ""
    itself = Agreement({"32": of}, {"32": own}, own_nats)
    counts = Agreement({"32": of}, {"32": canary}, nats)
    return Parity("r0-0 (eager)", counts, itself, example, token_ids=True)


def judged(found: Parity | Missing | None, gate: GateSpec = SHARE) -> GateResult:
    return judge(gate, 3, arm({}), parity=found)[1]


def test_equal_answers_pass() -> None:
    result = judged(parity(0))
    assert result.outcome is Outcome.PASSED
    assert result.no_harm
    assert result.valid_looks == 3
    assert "0 of 126 prompts are answered otherwise than by r0-0 (eager)" in result.reason


def test_what_was_compared_by_texts_alone_says_so() -> None:
    by_text = replace(parity(0), token_ids=False)
    assert BY_TEXT in judged(by_text).reason
    assert BY_TEXT not in judged(parity(0)).reason
    stored = asdict(parity(0))
    del stored["token_ids"]
    assert Parity.of(stored) == by_text, "of a record from before there were ids"


def test_output_that_is_wrong_fails_and_says_where() -> None:
    result = judged(parity(40))
    assert result.outcome is Outcome.FAILED
    assert "40 of 126 in batches of 32" in result.reason
    assert "token 3: ' ba', not ' de'" in result.reason
    assert result.details["canary"]["diverged"] == {"32": 40}


def test_what_the_batch_alone_changes_is_allowed_for() -> None:
    assert judged(parity(32, own=0)).outcome is Outcome.FAILED
    alike = judged(parity(13, own=12))
    assert alike.outcome is Outcome.INCONCLUSIVE
    assert alike.no_harm
    assert "to be proven" in alike.reason


def test_a_few_too_many_may_be_chance() -> None:
    result = judged(parity(9))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert not result.no_harm
    assert "it may be chance" in result.reason


SIZES = {"1": 24, "2": 24, "4": 24, "8": 24, "16": 32, "32": 32}


@pytest.mark.parametrize("size", SIZES)
def test_one_wrong_graph_among_right_ones_is_found(size: str) -> None:
    found = Parity("r0-0 (eager)", Agreement(SIZES, {size: SIZES[size]}), Agreement(SIZES, {}))
    result = judged(found)
    assert result.outcome is Outcome.FAILED
    assert f"{SIZES[size]} of {SIZES[size]} in batches of {size}" in result.reason


def test_a_size_that_looks_wrong_is_not_harmless_within_a_share_that_is_allowed() -> None:
    generous = spec("output_parity", max_ratio="20%")
    found = Parity("r0-0 (eager)", Agreement(SIZES, {"4": 13}), Agreement(SIZES, {}))
    result = judged(found, generous)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert not result.no_harm


def test_a_reference_that_contradicts_itself_proves_nothing() -> None:
    result = judged(parity(80, own=80))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert not result.no_harm


@pytest.mark.parametrize(
    ("canary", "own", "outcome"),
    [(0.04, 0.01, "passed"), (0.3, 0.28, "passed"), (0.2, 0.01, "failed")],
)
def test_log_probabilities_are_compared_beyond_the_reference_s_own(
    canary: float, own: float, outcome: str
) -> None:
    assert judged(parity(0, nats=canary, own_nats=own), NATS).outcome == outcome


def test_an_engine_without_log_probabilities_is_unknown() -> None:
    result = judged(parity(0, nats=None), NATS)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert not result.no_harm
    assert "no log-probabilities" in result.reason


@pytest.mark.parametrize("found", [None, Missing("r0-0 runs another model")])
def test_what_was_not_measured_is_no_pass(found: Missing | None) -> None:
    result = judged(found)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert not result.no_harm
    assert result.valid_looks == 0
    assert (found.reason if found else "not measured") in result.reason


def test_it_is_measured_once_and_remembered() -> None:
    gate = registry.build(SHARE, context())
    state, _ = gate.look(gate.start(), Look(0.0, arm({}), None, parity=parity(0)))
    for later in (None, Missing("it was not measured before the canary had traffic")):
        state, result = gate.look(state, Look(1.0, arm({}), None, parity=later))
        assert result.outcome is Outcome.PASSED
    assert result.valid_looks == 3


def exactly(least: int, trials: int, p: float) -> float:
    """P(X ≥ ``least``), without rounding until the end."""
    share = Fraction(p)
    ways = (
        comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(least, trials + 1)
    )
    return float(sum(ways, Fraction(0)))


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5])
def test_equal_runtimes_fail_no_more_often_than_alpha(share: float) -> None:
    """Both arms differ from the reference's small batches with the same probability."""
    prompts, alpha = 126, 0.01 / context().gates_total
    tails = [exactly(k, prompts, share) for k in range(prompts + 2)]
    wrong = sum(
        (tails[own] - tails[own + 1]) * tails[_least(own, prompts)] for own in range(prompts + 1)
    )
    assert wrong <= alpha


@cache
def _least(own: int, prompts: int) -> int:
    """The least number of the canary that fails beside ``own``."""
    low, high = 0, prompts + 1
    while low < high:
        middle = (low + high) // 2
        if judged(parity(middle, own=own)).outcome is Outcome.FAILED:
            high = middle
        else:
            low = middle + 1
    return low


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 90), st.data())
def test_bounds_are_exact(trials: int, data: st.DataObject) -> None:
    found = data.draw(st.integers(0, trials))
    p = data.draw(st.floats(0.01, 0.99))
    expected = exactly(found, trials, p)
    assert binomial.tails(trials, p)[found] == pytest.approx(expected, rel=1e-9, abs=1e-300)
    if found < trials:
        upper = binomial.upper(found, trials, 0.01)
        assert 1 - exactly(found + 1, trials, upper) == pytest.approx(0.01, rel=1e-6)
    least = binomial.least_unlikely(trials, p, 0.01)
    assert exactly(least, trials, p) <= 0.01 * (1 + 1e-9)
    assert least == 0 or exactly(least - 1, trials, p) > 0.01 * (1 - 1e-9)

"""Requests held at once."""

from typing import Any

import pytest

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import ArmWindow, Series, Value
from tests.support.gates import arm, judge, spec

LIMITS = {"max_num_seqs": 256, "max_model_len": 4096}


def cache(**labels: str) -> dict[AnySignal, Value]:
    return {Signal.CACHE_CONFIG: Series({tuple(sorted(labels.items())): 1.0})}


FULL_CACHE = cache(num_gpu_blocks="25600", block_size="16")  # 409,600 tokens: 100 requests


def capacity(canary: ArmWindow, **more: Any) -> GateResult:
    limits = {"canary_limits": LIMITS, "baseline_limits": LIMITS, **more}
    gate = spec("max_concurrency", max_regression="5%")
    return judge(gate, 1, canary, arm(FULL_CACHE), **limits)[1]


def test_a_smaller_kv_cache_fails_and_one_within_tolerance_passes() -> None:
    shrunk = capacity(arm(cache(num_gpu_blocks="20480", block_size="16")))
    assert shrunk.outcome is Outcome.FAILED
    assert (shrunk.value, shrunk.baseline, shrunk.limit) == (80.0, 100.0, 95.0)
    assert "80.0 requests at once against 100.0 of the baseline (-20 %" in shrunk.reason
    assert capacity(arm(cache(kv_cache_size_tokens="389120"))).outcome is Outcome.PASSED  # 95
    assert capacity(arm(cache(kv_cache_size_tokens="389119"))).outcome is Outcome.FAILED


def test_the_least_of_sequences_and_cache_and_of_the_instances_counts() -> None:
    few = capacity(arm(FULL_CACHE), canary_limits={**LIMITS, "max_num_seqs": 90})
    assert (few.outcome, few.value) == (Outcome.FAILED, 90.0)
    uneven = capacity(arm(FULL_CACHE, cache(kv_cache_size_tokens="4096")))
    assert (uneven.outcome, uneven.value) == (Outcome.FAILED, 1.0)


@pytest.mark.parametrize(
    "labels", [{}, {"num_gpu_blocks": "None", "block_size": "16"}, {"num_gpu_blocks": "100"}]
)
def test_capacity_that_is_not_told_is_unknown(labels: dict[str, str]) -> None:
    result = capacity(arm(cache(**labels)))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "unknown" in result.reason
    assert capacity(arm(FULL_CACHE), canary_limits=None).outcome is Outcome.INCONCLUSIVE
    assert capacity(arm(FULL_CACHE, {})).outcome is Outcome.INCONCLUSIVE


# ---------------------------------------------------------- saturation


def driven(ok: int, missed: int, looks: int, canary: ArmWindow | None = None) -> GateResult:
    limits = {"canary_limits": LIMITS, "baseline_limits": LIMITS}
    gate = spec("max_concurrency", max_regression="5%")
    held = arm(FULL_CACHE) if canary is None else canary
    return judge(gate, looks, held, arm(FULL_CACHE), saturation=(ok, missed), **limits)[1]


def test_a_canary_that_misses_its_objective_when_it_is_driven_fails() -> None:
    result = driven(95, 5, 20)
    assert result.outcome is Outcome.FAILED
    assert "driven at 95 at once, 5 % of" in result.reason
    assert "missed their objective; at most 1 % may" in result.reason


def test_driving_it_long_enough_confirms_what_it_holds() -> None:
    early = driven(50, 0, 2)
    assert early.outcome is Outcome.INCONCLUSIVE
    assert early.needed is not None
    assert not early.no_harm
    assert driven(50, 0, 10).outcome is Outcome.PASSED


def test_what_the_cache_cannot_hold_needs_no_driving() -> None:
    small = arm(cache(num_gpu_blocks="20480", block_size="16"))
    result = driven(100, 0, 10, small)
    assert result.outcome is Outcome.FAILED
    assert "driven" not in result.reason


def test_what_runs_shows_what_is_held_only_while_others_wait() -> None:
    def flowing(waiting: float) -> dict[AnySignal, Value]:
        return {
            **FULL_CACHE,
            Signal.RUNNING: Series({(): 97.0}),
            Signal.WAITING: Series({(): waiting}),
        }

    assert "seen to hold" not in capacity(arm(flowing(0))).reason
    full = capacity(arm(flowing(3), flowing(0)))
    assert "it was seen to hold 97 while others waited" in full.reason

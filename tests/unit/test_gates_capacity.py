"""Requests held at once."""

from dataclasses import replace
from typing import Any

import pytest

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.common.saturation import Round
from canaryctl.gates import registry
from canaryctl.gates.base import Look
from canaryctl.gates.capacity import MaxConcurrencyGate
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.rules.saturation import NOT_TOLD, counted
from canaryctl.gates.samples import ArmWindow, Missing, Series, Value
from tests.support.gates import arm, context, judge, spec

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


def test_a_canary_that_does_not_hold_them_when_it_is_driven_fails() -> None:
    result = driven(95, 5, 20)
    assert result.outcome is Outcome.FAILED
    assert "driven at 95 at once, 5 % of" in result.reason
    assert "were not held; at most 1 % may" in result.reason


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


# ------------------------------------------------------- confirmed by it

CONFIRMED = spec("max_concurrency", max_regression="5%", confirm="saturation")
BOTH: dict[str, Any] = {"canary_limits": LIMITS, "baseline_limits": LIMITS}


def confirmed(looks: list[tuple[int, int] | Missing | None], **more: Any) -> GateResult:
    gate = registry.build(CONFIRMED, context())
    state = gate.start()
    for k, driven_ in enumerate(looks):
        given = {**BOTH, "saturation": driven_, **more}
        state, result = gate.look(state, Look(2.0 * k, arm(FULL_CACHE), arm(FULL_CACHE), **given))
    assert isinstance(gate, MaxConcurrencyGate)
    undriven = not any(isinstance(each, tuple | Missing) for each in looks)
    assert gate.awaits_driving(state) == (undriven and result.outcome is not Outcome.FAILED)
    return result


def test_a_confirmation_that_is_asked_for_is_waited_for() -> None:
    result = confirmed([None, None])
    assert result.outcome is Outcome.INCONCLUSIVE
    assert not result.no_harm
    assert "to be confirmed by 95 at once: it was not driven yet" in result.reason
    why = confirmed([Missing("the engine has 3 requests of others"), None])
    assert why.outcome is Outcome.INCONCLUSIVE
    assert "at once: the engine has 3 requests of others" in why.reason


def test_what_was_driven_once_is_counted_once() -> None:
    result = confirmed([None, (400, 0), None, None])
    assert result.outcome is Outcome.PASSED
    assert "0 % of 400 requests were not held" in result.reason
    assert confirmed([(80, 20), None]).outcome is Outcome.FAILED


def test_it_is_counted_in_a_look_that_shows_no_capacity() -> None:
    """The look is recorded, and the canary is not driven again."""
    gate = registry.build(CONFIRMED, context())
    state, _ = gate.look(gate.start(), Look(0.0, arm({}), arm(FULL_CACHE), saturation=(400, 0)))
    _, result = gate.look(state, Look(2.0, arm(FULL_CACHE), arm(FULL_CACHE), **BOTH))
    assert result.outcome is Outcome.PASSED


def test_it_is_driven_at_the_least_that_is_allowed_and_only_where_that_is_held() -> None:
    gate = registry.build(CONFIRMED, context())
    assert isinstance(gate, MaxConcurrencyGate)

    def at(canary: dict[AnySignal, Value], **limits: Any) -> int | Missing | None:
        return gate.drive_at(Look(0.0, arm(canary), arm(FULL_CACHE), **{**BOTH, **limits}))

    assert at(FULL_CACHE) == 95
    assert at(cache(kv_cache_size_tokens="389119")) is None
    unknown = at({})
    assert isinstance(unknown, Missing)
    assert "canary" in unknown.reason
    tiny = {"canary_limits": LIMITS, "baseline_limits": {**LIMITS, "max_model_len": 409_600}}
    assert isinstance(at(FULL_CACHE, **tiny), Missing)


def test_it_is_driven_until_that_decides_and_not_for_ever() -> None:
    gate = registry.build(CONFIRMED, context())
    assert isinstance(gate, MaxConcurrencyGate)
    assert not gate.driven_enough(0, 0)
    assert not gate.driven_enough(95, 0)
    assert gate.driven_enough(400, 0)
    assert gate.driven_enough(75, 20)
    assert not gate.driven_enough(396, 4)
    assert gate.driven_enough(1980, 20)


def test_only_capacity_is_confirmed_so() -> None:
    assert registry.check([CONFIRMED]) == []
    found = registry.check([spec("error_rate", max_ratio="1%", confirm="saturation")])
    assert found == [(0, "confirm", "error_rate takes no confirm: it is for max_concurrency")]


# ------------------------------------------------------------ one round

SOUND = Round(asked=20, failed=0, late=0, longest=False, preempted=0.0, waited=3.0)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, (20, 0)),
        ({"failed": 2}, (18, 2)),
        ({"preempted": 3.0}, (17, 3)),
        ({"preempted": 90.0, "failed": 1}, (0, 20)),
        ({"preempted": 1.0, "late": 4}, (15, 5)),
        ({"late": 4}, None),  # they may have come too late, with others before them
        ({"late": 4, "longest": True}, (16, 4)),
        ({"late": 4, "longest": True, "waited": 0.0}, None),
        ({"late": 4, "longest": True, "waited": None}, None),
        ({"preempted": None}, NOT_TOLD),
    ],
)
def test_what_a_round_says(change: dict[str, Any], found: object) -> None:
    assert counted(replace(SOUND, **change)) == found

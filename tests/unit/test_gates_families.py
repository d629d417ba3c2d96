"""Counts, events and capacity; the registry's checks; the fold."""

import math
from typing import Any

import pytest

from canaryctl.common.errors import UnknownNameError
from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates import registry
from canaryctl.gates.base import Event, GateContext, Look
from canaryctl.gates.fold import fold
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import ArmWindow, Delta, Missing, Series, Value
from canaryctl.gates.spec import GateSpec

LIMITS = {"max_num_seqs": 256, "max_model_len": 4096}


def spec(name: str, **limits: Any) -> GateSpec:
    return GateSpec.model_validate({"name": name, **limits})


def context(**changes: Any) -> GateContext:
    given: dict[str, Any] = {
        "gates_total": 4,
        "detectable": 1.0,
        "interval_s": 2.0,
        "canary_share": 0.5,
    }
    return GateContext(**{**given, **changes})


def arm(*instances: dict[AnySignal, Value]) -> ArmWindow:
    return ArmWindow(
        tuple(Delta(f"i{k}", 2.0, values) for k, values in enumerate(instances)), len(instances)
    )


def judge(
    gate_spec: GateSpec,
    looks: int,
    canary: ArmWindow,
    baseline: ArmWindow | None = None,
    **more: Any,
) -> tuple[int, GateResult]:
    """(looks made, last result), ending at the first failure."""
    gate = registry.build(gate_spec, context())
    state = gate.start()
    for k in range(looks):
        state, result = gate.look(state, Look(2.0 * k, canary, baseline, **more))
        if result.outcome is Outcome.FAILED:
            break
    return k + 1, result


# ---------------------------------------------------------- error_rate


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


# ------------------------------------------------------ graph_fallback


def steps(**counts: float) -> dict[AnySignal, Value]:
    """``full=…``, ``prefill=…`` (eager, not pure decode), or a reason of eager decode steps."""
    series: dict[tuple[tuple[str, str], ...], float] = {}
    for what, count in counts.items():
        mode = "FULL" if what == "full" else "NONE"
        pure = "false" if what == "prefill" else "true"
        reason = "" if what in ("full", "prefill") else what
        labels = (("bucket", "8"), ("mode", mode), ("pure_decode", pure), ("reason", reason))
        series[labels] = count
    return {Signal.STEPS: Series(series)}


@pytest.mark.parametrize("per_look", [65, 110])
def test_a_canary_that_is_all_eager_is_found_within_four_looks(per_look: float) -> None:
    """31 ms a step at batch 1 and 18 ms at batch 8 and more, over two seconds."""
    looks, result = judge(
        spec("graph_fallback", max_ratio="1%"), 20, arm(steps(downgraded=per_look))
    )
    assert result.outcome is Outcome.FAILED
    assert looks <= 4
    assert "downgraded by the engine" in result.reason


def test_steps_beyond_the_grid_are_told_apart() -> None:
    _, result = judge(
        spec("graph_fallback", max_ratio="1%"),
        50,
        arm(steps(full=60, beyond_grid=40, unknown=3, prefill=500)),
    )
    assert result.outcome is Outcome.FAILED
    assert "beyond the grid" in result.reason
    assert result.details["by_reason"]["beyond_grid"] == pytest.approx(result.samples * 40 / 103)
    assert result.details["by_reason"]["unknown"] > 0
    assert result.value == pytest.approx(43 / 103)  # steps with prefill are no part of it


def test_one_burst_of_eager_steps_does_not_fail() -> None:
    gate = registry.build(spec("graph_fallback", max_ratio="1%"), context())
    state = gate.start()
    for k in range(400):
        burst = k % 60 == 7
        window = arm(steps(full=400 if burst else 500, beyond_grid=100 if burst else 0))
        state, result = gate.look(state, Look(2.0 * k, window, None))
    assert result.outcome is Outcome.PASSED  # 0.3 % in all


def test_an_engine_that_cannot_say_is_unknown() -> None:
    silent: list[dict[AnySignal, Value]] = [
        {},
        {Signal.STEPS: Series({(("mode", "NONE"),): 5.0})},
    ]
    for values in silent:
        _, result = judge(spec("graph_fallback", max_ratio="1%"), 1, arm(values))
        assert result.outcome is Outcome.INCONCLUSIVE
        assert "unknown" in result.reason


def test_steps_that_cannot_be_told_count_against_passing_and_not_for_failing() -> None:
    def mixed(eager_untold: float, graph_untold: float) -> ArmWindow:
        untold = ("pure_decode", "unknown")
        return arm(
            {
                Signal.STEPS: Series(
                    {
                        (("mode", "FULL"), ("pure_decode", "true")): 500.0,
                        (("mode", "NONE"), untold): eager_untold,
                        (("mode", "PIECEWISE"), untold): graph_untold,
                    }
                )
            }
        )

    gate = spec("graph_fallback", max_ratio="1%")
    assert judge(gate, 200, mixed(0, 30))[1].outcome is Outcome.PASSED
    doubtful = judge(gate, 200, mixed(30, 0))[1]
    assert doubtful.outcome is Outcome.INCONCLUSIVE
    assert doubtful.details["doubtful"] == 200 * 30
    cannot = judge(gate, 200, mixed(300, 300))[1]
    assert cannot.outcome is Outcome.INCONCLUSIVE
    assert "cannot tell whether they were pure decode" in cannot.reason
    assert cannot.valid_looks == 0


def test_no_decode_step_is_no_pass() -> None:
    _, result = judge(spec("graph_fallback", max_ratio="1%"), 50, arm(steps(prefill=500)))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.samples == 0


# -------------------------------------------------------------- events


def event(kind: str, detail: str = "it said so") -> Event:
    return Event(kind, "c0", 5.0, detail)


def test_oom_counts_one_event_told_twice_once() -> None:
    gate = spec("oom", max=1)
    counted = arm({Signal.OOM: Series({(): 1.0})})
    _, result = judge(gate, 1, counted, canary_events=(event("oom"),))
    assert result.outcome is Outcome.PASSED
    _, result = judge(gate, 2, counted, canary_events=(event("oom"),))
    assert result.outcome is Outcome.FAILED  # the counter rose again
    assert result.value == 2.0


def test_a_counter_alone_is_enough_for_oom() -> None:
    _, result = judge(spec("oom", max=0), 1, arm({Signal.OOM: Series({(): 1.0})}))
    assert result.outcome is Outcome.FAILED
    assert "counter" in result.reason


def test_engine_exit_allows_none_by_default() -> None:
    clean = judge(spec("engine_exit"), 1, arm({}))[1]
    assert clean.outcome is Outcome.PASSED
    _, result = judge(spec("engine_exit"), 1, arm({}), canary_events=(event("exit", "code 0"),))
    assert result.outcome is Outcome.FAILED
    assert "c0: code 0" in result.reason
    _, result = judge(spec("engine_exit", max=1), 1, arm({}), canary_events=(event("exit"),))
    assert result.outcome is Outcome.PASSED


def test_events_of_another_kind_do_not_count() -> None:
    for name in ("oom", "engine_exit"):
        limits = {"max": 0}
        _, result = judge(spec(name, **limits), 1, arm({}), canary_events=(event("no_progress"),))
        assert result.outcome is Outcome.PASSED


def test_progress_needs_a_generation_to_have_ended() -> None:
    gate = spec("progress", max_seconds="5s")
    waiting = judge(gate, 1, arm({}))[1]
    assert waiting.outcome is Outcome.INCONCLUSIVE
    assert waiting.valid_looks == 0
    assert judge(gate, 1, arm({}), progress_checks=1)[1].outcome is Outcome.PASSED
    hung = judge(gate, 1, arm({}), progress_checks=9, canary_events=(event("no_progress"),))[1]
    assert hung.outcome is Outcome.FAILED
    assert "no token within 5 s" in hung.reason


# ----------------------------------------------------- max_concurrency


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


# ------------------------------------------------------------ registry


def mistakes(*specs: GateSpec) -> list[tuple[int, str, str]]:
    return registry.check(specs)


def test_good_gates_have_no_mistakes() -> None:
    assert not mistakes(
        spec("ttft_p99", max_regression="10%"),
        spec("tpot_p50", max_seconds="50ms", max_regression="10%"),
        spec("ttft_p90", max_regression="46%"),  # above the default margin, which then yields
        spec("error_rate", max_ratio="1%"),
        spec("graph_fallback", max_ratio="1%", max_regression="20%"),
        spec("oom", max=0),
        spec("engine_exit"),
        spec("progress", max_seconds="10s"),
        spec("max_concurrency", max_regression="5%"),
    )


@pytest.mark.parametrize(
    ("wrong", "field", "says"),
    [
        (spec("ttft_p98", max_regression="10%"), "name", "did you mean ttft_p9"),
        (spec("zzz"), "name", "expected one of"),
        (spec("ttft_p99"), "name", "needs max_regression or max_seconds"),
        (spec("ttft_p99", max=3), "max", "takes no max"),
        (spec("oom", max_ratio="1%"), "max_ratio", "it takes max"),
        (spec("oom"), "name", "needs max"),
        (spec("progress"), "name", "needs max_seconds"),
        (spec("error_rate", max_ratio="0%"), "max_ratio", "more than 0 %"),
        (spec("error_rate", max_ratio="100%"), "max_ratio", "less than 100 %"),
        (spec("ttft_p99", max_regression="0%"), "max_regression", "no two runs"),
        (spec("ttft_p99", max_regression="40%", margin="30%"), "margin", "more than max_regr"),
        (spec("ttft_p99", max_regression="10%", alpha="0%"), "alpha", "more than 0 %"),
        (spec("ttft_p99", max_regression="10%", beta="50%"), "beta", "less than 50 %"),
        (spec("max_concurrency", max_regression="100%"), "max_regression", "less than 100 %"),
        (spec("ttft_p99", max_seconds="0s"), "max_seconds", "expected more"),
    ],
)
def test_each_mistake_is_named_with_its_field(wrong: GateSpec, field: str, says: str) -> None:
    found = mistakes(spec("engine_exit"), wrong)
    assert found
    assert all(index == 1 for index, _, _ in found)
    assert any(f == field and says in message for _, f, message in found), found


def test_all_mistakes_are_reported_at_once() -> None:
    found = mistakes(spec("oom", max=0), spec("oom", max=0), spec("nope"), spec("ttft_p99", max=1))
    assert [(index, field) for index, field, _ in found] == [
        (1, "name"),
        (2, "name"),
        (3, "max"),
        (3, "name"),
    ]
    assert "oom is gate 1 already" in found[0][2]


def test_an_unknown_gate_is_not_built() -> None:
    with pytest.raises(UnknownNameError, match="ttft_p99"):
        registry.build(spec("p99"), context())


def test_what_can_never_be_decided_is_known_before() -> None:
    latency = spec("ttft_p99", max_regression="50%")
    assert registry.undecidable(latency, context(detectable=1.0)) is None
    assert "not below" in (registry.undecidable(latency, context(detectable=0.5)) or "")
    assert "no baseline" in (registry.undecidable(latency, context(has_baseline=False)) or "")
    both = spec("ttft_p99", max_regression="50%", max_seconds="2s")
    assert registry.undecidable(both, context(has_baseline=False)) is None
    assert registry.undecidable(spec("oom", max=0), context(has_baseline=False)) is None
    assert registry.spends_alpha(spec("ttft_p99"))
    assert not registry.spends_alpha(spec("oom"))
    assert not registry.spends_alpha(spec("max_concurrency"))


# ---------------------------------------------------------------- fold


def result(name: str, outcome: Outcome, looks: int = 9, *, no_harm: bool = False) -> GateResult:
    return GateResult(name, outcome, f"why {name}", no_harm=no_harm, valid_looks=looks)


PASSED, FAILED = Outcome.PASSED, Outcome.FAILED
OPEN, ERROR = Outcome.INCONCLUSIVE, Outcome.ERROR


def test_worst_wins() -> None:
    results = [result(o.value, o) for o in (PASSED, OPEN, ERROR, FAILED)]
    for k, worst in enumerate((PASSED, OPEN, ERROR, FAILED)):
        verdict = fold(results[: k + 1], [], "no_harm")
        assert verdict.outcome is worst
        assert verdict.reason
    assert fold(results, [], "no_harm").failed == (results[3],)


def test_nothing_at_all_is_neither_a_pass_nor_promotable() -> None:
    verdict = fold([], [], "no_harm")
    assert verdict.outcome is OPEN
    assert not verdict.promotable
    assert verdict.missing


def test_a_required_gate_without_a_result_is_missing() -> None:
    verdict = fold([result("oom", PASSED)], ["oom", "ttft_p99"], "no_harm")
    assert verdict.outcome is OPEN
    assert not verdict.promotable
    assert verdict.missing == ("ttft_p99: not judged yet",)


@pytest.mark.parametrize(
    ("found", "no_harm_promotes", "proven_promotes"),
    [
        (result("ttft_p99", PASSED), True, True),
        (result("ttft_p99", OPEN, no_harm=True), True, False),
        (result("ttft_p99", OPEN), False, False),
        (result("ttft_p99", ERROR, no_harm=True), False, False),
        (result("ttft_p99", FAILED, no_harm=True), False, False),
        (result("ttft_p99", PASSED, looks=2), False, False),
        (result("ttft_p99", PASSED, looks=0), False, False),
        (result("oom", PASSED, looks=1), True, True),
        (result("oom", PASSED, looks=0), False, False),
    ],
)
def test_the_promotion_rules(
    found: GateResult, no_harm_promotes: bool, proven_promotes: bool
) -> None:
    assert fold([found], [found.name], "no_harm").promotable is no_harm_promotes
    verdict = fold([found], [found.name], "proven")
    assert verdict.promotable is proven_promotes
    assert bool(verdict.missing) is not proven_promotes


def test_a_gate_that_is_not_required_can_still_forbid_promotion() -> None:
    verdict = fold([result("oom", PASSED), result("ttft_p99", FAILED)], ["oom"], "no_harm")
    assert not verdict.promotable


def test_an_unknown_promotion_rule_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="no_harm, proven"):
        fold([], [], "always")


def test_missing_reasons_reach_the_gate() -> None:
    _, found = judge(
        spec("error_rate", max_ratio="1%"),
        1,
        arm({Signal.ERRORS: Missing("answered 500"), Signal.REQUESTS: Series({(): math.pi})}),
    )
    assert "answered 500" in found.reason

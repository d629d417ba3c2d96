"""What a list of gates may say, and the verdict that they fold to."""

import pytest

from canaryctl.common.errors import UnknownNameError
from canaryctl.gates import registry
from canaryctl.gates.fold import fold
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.spec import GateSpec
from tests.support.gates import context, spec


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
        spec("dispatched_vs_finished", max_seconds="60s", max_regression="100%"),
        spec("step_time", max_regression="10%"),
        spec("graph_hit", min_ratio="99%"),
        spec("beyond_grid", max_ratio="5%"),
        spec("padding_ratio", max_ratio="130%", max_regression="20%"),
        spec("graph_memory", max_bytes="512MiB"),
        spec("ready_time", max_seconds="2m"),
        spec("attestation"),
        spec("warmup"),
        spec("output_parity", max_ratio="5%", max_nats=0.05),
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
        (spec("graph_hit", max_ratio="1%"), "max_ratio", "it takes min_ratio"),
        (spec("graph_hit", min_ratio="100%"), "min_ratio", "less than 100 %"),
        (spec("padding_ratio", max_ratio="20%"), "max_ratio", "expected more than 100 %"),
        (spec("attestation", max=0), "max", "it takes none"),
        (spec("step_time", max_regression="0%"), "max_regression", "no two runs"),
        (spec("output_parity"), "name", "needs max_ratio or max_nats"),
        (spec("attestation", max_nats=0.1), "max_nats", "it takes none"),
        (spec("graph_memory"), "name", "needs max_bytes or max_regression"),
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

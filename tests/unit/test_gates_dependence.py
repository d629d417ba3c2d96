"""Latency gates that know how observations depend on each other; all quantiles; one bucket."""

import math
from typing import Any

import pytest

from canaryctl.common.metrics import Signal
from canaryctl.gates import registry
from canaryctl.gates.history import QUANTILES, AaHistory, Dependence
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.readings import Buckets
from canaryctl.gates.spec import GateSpec
from tests.support.latency import FINE, Trial, tail, times

# ------------------------------------------------- with an A/A history

CALM = Dependence(phi=1.1, phi_upper=1.2, block_looks=1, engines=10, blocks=12)
BURSTY = Dependence(phi=6.0, phi_upper=7.0, block_looks=8, engines=10, blocks=12)


def history_of(found: Dependence, *quantiles: float, span_s: float = 3600.0) -> AaHistory:
    names = quantiles or tuple(QUANTILES.values())
    return AaHistory(2.0, span_s, {(Signal.TTFT, p): found for p in names})


def test_with_little_dependence_equal_arms_pass_and_say_what_is_excluded() -> None:
    trial = Trial(name="ttft_p90", history=history_of(CALM), max_regression="21%")
    first = trial.look()
    for _ in range(400):
        result = trial.look()
        if result.outcome is Outcome.PASSED:
            break
    assert result.outcome is Outcome.PASSED
    assert result.no_harm
    assert "not worse by 33 %, at confidence 95 %" in result.reason
    assert not first.no_harm
    regression = result.details["rules"][0]
    assert regression["log_e_pass"] >= regression["log_pass_at"]
    assert regression["quantiles"]["p90"]["rule"].startswith("likelihood ratio, φ 1.1")
    trial.canary = times(2.0)
    assert trial.until_failed(400).outcome is Outcome.FAILED  # a failure overrides a pass


def test_a_pass_takes_as_much_as_the_most_dependence_that_the_rule_is_for() -> None:
    """Which equal engines do not show: a canary slower by the margin queues more than they do."""

    def evidence(phi: float, phi_upper: float) -> float:
        found = Dependence(phi, phi_upper, block_looks=1, engines=10, blocks=12)
        trial = Trial(name="ttft_p90", history=history_of(found), margin="46%", seed=3)
        for _ in range(20):
            result = trial.look()
        return float(result.details["rules"][0]["log_e_pass"])

    assert evidence(1.0, 1.0) == evidence(1.1, 1.2) == evidence(1.2, 1.25)
    assert 0 < evidence(1.2, 1.5) < evidence(1.2, 1.25)


def test_a_pass_that_was_given_is_kept() -> None:
    trial = Trial(name="ttft_p90", history=history_of(CALM), max_regression="46%", margin="60%")
    while trial.look().outcome is not Outcome.PASSED:
        assert trial.at < 1200
    trial.canary = times(1.5)
    assert {trial.look().outcome for _ in range(10)} == {Outcome.PASSED}


def test_a_history_finds_a_regression_sooner() -> None:
    def looks(history: AaHistory | None) -> int:
        return (
            Trial(canary=times(2.0), name="ttft_p90", history=history, seed=4)
            .until_failed(400)
            .valid_looks
        )

    assert looks(history_of(CALM)) * 2 < looks(None)


def test_with_much_dependence_both_processes_have_to_agree_on_a_pass() -> None:
    trial = Trial(name="ttft_p90", history=history_of(BURSTY), margin="61%", per_look=60)
    found = [trial.look() for _ in range(900)]
    passed = next(k for k, r in enumerate(found) if r.outcome is Outcome.PASSED)
    part = trial.state["regression"]["p90"]
    assert part["pass_a"] is not None
    assert part["pass_b"] is not None
    bar = math.log(20)
    before = found[passed - 1].details["rules"][0]
    assert before["log_e_pass"] < bar <= found[passed].details["rules"][0]["log_e_pass"]
    assert "8 looks a block, φ 6" in before["quantiles"]["p90"]["rule"]
    # a block of the history is a time: at half the interval it is twice the looks
    quick = Trial(name="ttft_p90", history=history_of(BURSTY), interval_s=1.0)
    for _ in range(17):
        quick.look()
    assert quick.state["regression"]["p90"]["blocks"] == 1


@pytest.mark.parametrize(
    ("history", "why"),
    [
        (None, "which there is not"),
        (history_of(CALM, span_s=1800.0), "spans 30 of the 60 minutes"),
        (history_of(CALM, 0.99), "too few beyond p90 to tell"),
    ],
)
def test_without_enough_history_there_is_no_pass_and_the_reason_says_why(
    history: AaHistory | None, why: str
) -> None:
    trial = Trial(name="ttft_p90", history=history, max_regression="21%", per_look=80)
    for _ in range(200):
        result = trial.look()
        assert result.outcome is Outcome.INCONCLUSIVE
    assert result.no_harm
    assert why in result.reason
    assert result.details["rules"][0]["log_e_pass"] is None
    assert trial.state["regression"]["p90"]["blocks"] == 49


def test_the_history_places_edges_before_the_baseline_has_a_past() -> None:
    past = Buckets(tuple(FINE), tuple(min(600, 10 * k) for k in range(len(FINE))))
    known = AaHistory(2.0, 3600.0, {(Signal.TTFT, 0.99): CALM}, {Signal.TTFT: past})
    trial = Trial(name="ttft_p99", history=known)
    trial.look()
    assert trial.state["regression"]["p99"]["sums"][2] == trial.per_look
    other = AaHistory(
        2.0, 3600.0, known.dependences, {Signal.TTFT: Buckets((1.0, math.inf), (1, 2))}
    )
    without = Trial(name="ttft_p99", history=other)
    without.look()
    assert without.state["regression"]["p99"]["sums"][2] == 0


def test_absolute_limits_take_phi_from_the_history() -> None:
    def phi(history: AaHistory | None) -> float:
        result = Trial(
            name="ttft_p90", has_baseline=False, max_seconds="1s", history=history
        ).look()
        return float(result.details["rules"][0]["phi"])

    assert phi(None) == 4.0
    assert phi(history_of(CALM)) == 1.2


# ------------------------------------------------- all quantiles at once


def test_the_multi_quantile_gate_reports_the_quantile_that_shows_most() -> None:
    slow = Trial(canary=tail(0.08, 8.0), name="ttft", history=history_of(CALM)).until_failed(300)
    assert slow.outcome is Outcome.FAILED
    assert slow.reason.startswith("TTFT p9")
    whole = Trial(canary=times(1.6), name="ttft", history=history_of(CALM)).until_failed(300)
    assert whole.outcome is Outcome.FAILED
    rule = whole.details["rules"][0]
    logs = {name: each["log_e_fail"] for name, each in rule["quantiles"].items()}
    assert rule["reported"] == max(logs, key=lambda name: logs[name])
    weights = {"p99": 0.5, "p95": 0.25, "p90": 0.125, "p50": 0.125}
    mixed = math.log(sum(w * math.exp(logs[name]) for name, w in weights.items()))
    assert rule["log_e_fail"] == pytest.approx(mixed)
    assert whole.reason.startswith(f"TTFT {rule['reported']} of the canary is ")
    alone = Trial(canary=times(1.6), name="ttft_p99", history=history_of(CALM)).until_failed(300)
    assert whole.valid_looks < alone.valid_looks


def test_the_multi_quantile_gate_passes_when_every_quantile_does() -> None:
    trial = Trial(name="ttft", history=history_of(CALM), max_regression="21%", margin="46%")
    passed: set[str] = set()
    while (result := trial.look()).outcome is not Outcome.PASSED:
        now = {name for name, part in trial.state["regression"].items() if part["passed"]}
        assert now >= passed
        assert now != set(QUANTILES)
        passed = now
        assert trial.at < 2400
    assert len(passed) == 3
    assert result.no_harm
    one_unknown = Trial(name="ttft", history=history_of(CALM, 0.95, 0.9, 0.5), margin="46%")
    for _ in range(round(trial.at / 2) + 20):
        result = one_unknown.look()
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "p99: " in result.reason


def test_the_multi_quantile_limit_is_that_of_the_p99() -> None:
    slow = Trial(
        name="ttft", has_baseline=False, canary=tail(0.05, 50.0), max_seconds="1s"
    ).until_failed(100)
    assert slow.outcome is Outcome.FAILED
    assert slow.reason.startswith("TTFT p99: ")
    assert "at most 1 % may" in slow.reason


def test_blocks_end_where_the_weight_changes() -> None:
    trial = Trial(name="ttft_p90")
    for _ in range(3):
        trial.look(weight=10)
    assert trial.state["regression"]["p90"]["open_looks"] == 2
    trial.look(weight=50)
    part = trial.state["regression"]["p90"]
    assert (part["blocks"], part["open_looks"]) == (1, 1)


# ------------------------------------------------- inside one bucket

WIDE = [0.02, 0.05, 0.1, 0.25, 0.5, 1.0, math.inf]


def test_interpolation_is_asked_for_labelled_and_never_passes() -> None:
    asked: dict[str, Any] = {"max_regression": "10%", "interpolate": True}
    slow = Trial(
        canary=times(1.6), name="ttft_p90", edges=WIDE, history=history_of(CALM), **asked
    ).until_failed(400)
    assert slow.outcome is Outcome.FAILED
    assert "interpolated inside the bucket from 50 ms to 100 ms" in slow.reason
    assert "smooth latencies" in slow.reason
    assert slow.details["rules"][0]["quantiles"]["p90"]["interpolated_rate_ratio"] > 1
    refused = Trial(
        canary=times(1.6),
        name="ttft_p90",
        edges=WIDE,
        history=history_of(CALM),
        max_regression="10%",
        detectable=0.5,
    )
    same = Trial(name="ttft_p90", edges=WIDE, history=history_of(CALM), detectable=0.5, **asked)
    for _ in range(200):
        unanswered, equal = refused.look(), same.look()
    assert unanswered.outcome is Outcome.INCONCLUSIVE
    assert "effective tolerance; asked were 10 %" in unanswered.reason
    assert equal.outcome is Outcome.INCONCLUSIVE
    assert "interpolated" in equal.reason
    assert not equal.no_harm
    assert equal.details["rules"][0]["log_e_pass"] < math.log(20)


def test_at_the_tolerance_interpolation_of_a_smooth_latency_does_not_fail() -> None:
    for seed in range(8):
        trial = Trial(
            canary=times(1.1),
            name="ttft_p90",
            edges=WIDE,
            history=history_of(CALM),
            max_regression="10%",
            interpolate=True,
            seed=seed,
        )
        assert trial.until_failed(150).outcome is Outcome.INCONCLUSIVE


def test_only_latencies_are_interpolated() -> None:
    given = {"max_regression": "10%", "max_ratio": "1%", "interpolate": True}
    counts = GateSpec.model_validate({"name": "error_rate", **given})
    assert [field for _, field, _ in registry.check([counts])] == ["interpolate"]
    latency = GateSpec.model_validate(
        {"name": "prefill_p99", "max_regression": "2%", "interpolate": True}
    )
    assert registry.check([latency]) == []

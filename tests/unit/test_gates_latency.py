"""Latency gates: what they decide, when, and how they say so."""

import math

import pytest

from canaryctl.gates.base import Look
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.stats import edges
from tests.support.latency import FINE, VLLM, Trial, arm, normal, tail, times


def test_twice_as_slow_fails_with_a_sentence() -> None:
    result = Trial(canary=times(2.0), name="ttft_p90").until_failed(300)
    assert result.outcome is Outcome.FAILED
    assert result.value is not None
    assert result.baseline is not None
    assert result.value / result.baseline == pytest.approx(2.0, rel=0.15)
    assert result.limit == pytest.approx(result.baseline * 1.21)
    assert result.reason.startswith("TTFT p90 of the canary is ")
    assert "of the baseline (+" in result.reason
    assert "allowed +21 %" in result.reason
    assert f"over {result.samples} canary requests" in result.reason
    assert result.reason.endswith("chance of saying so by accident ≤ 1 %")


def test_a_slow_tail_is_found_by_p99_and_missed_by_p50() -> None:
    slow = tail(0.1, 8.0)
    found = Trial(canary=slow, name="ttft_p99", max_regression="46%").until_failed(100)
    assert found.outcome is Outcome.FAILED
    blocks = found.details["rules"][0]["quantiles"]["p99"]["blocks"]
    assert 11 <= blocks <= 20  # eleven are the least at equal shares
    missed = Trial(canary=slow, name="ttft_p50", max_regression="46%").until_failed(100)
    assert missed.outcome is Outcome.INCONCLUSIVE


def test_equal_arms_end_harmless_and_never_pass_without_history() -> None:
    trial = Trial(name="ttft_p90")
    first = trial.look()
    assert "from which its quantile is placed" in first.reason
    assert not first.no_harm
    assert first.valid_looks == 1
    waiting = [trial.look() for _ in range(20)][-1]
    assert not waiting.no_harm
    assert waiting.needed is not None
    assert waiting.needed > waiting.samples
    assert f"about {waiting.needed} canary requests in all" in waiting.reason
    settled = [trial.look() for _ in range(280)][-1]
    assert settled.outcome is Outcome.INCONCLUSIVE
    assert settled.no_harm
    assert settled.needed is not None
    assert settled.samples >= settled.needed
    assert "a regression of 100 % would have been found with 90 % power" in settled.reason
    assert "a pass needs a history" in settled.reason


def test_what_is_planned_for_is_found_about_as_planned() -> None:
    """The regression declared detectable is found within the blocks that no harm takes."""
    planned = Trial(name="ttft_p90")
    for _ in range(400):
        planned.look()
    needed = planned.state["regression"]["p90"]["plan"]["blocks"]
    found = [
        Trial(name="ttft_p90", canary=times(2.0), seed=seed).until_failed(4 * needed + 8).outcome
        for seed in range(40)
    ]
    assert found.count(Outcome.FAILED) >= 33  # 90 % of 40, less two standard errors


def test_unequal_load_does_not_count_and_says_so() -> None:
    trial = Trial(canary=times(3.0), name="ttft_p90")
    for _ in range(100):
        result = trial.look("5 % of the traffic on one engine, 95 % on the other")
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "unequal load: 5 % of the traffic" in result.reason
    assert (result.samples, result.valid_looks) == (0, 0)
    assert not result.no_harm
    assert trial.until_failed(100).outcome is Outcome.FAILED


def test_blocks_end_where_the_load_changes_and_edges_are_learnt_anew() -> None:
    trial = Trial(name="ttft_p90")
    for _ in range(1 + 6):
        trial.look()
    regression = trial.state["regression"]["p90"]
    assert (regression["blocks"], regression["open_looks"]) == (1, 2)
    trial.look("half the requests")
    regression = trial.state["regression"]["p90"]
    assert (regression["blocks"], regression["open_looks"]) == (2, 0)
    trial.look("another cause")
    assert trial.state["regression"]["p90"]["blocks"] == 2  # an empty block is none
    trial.look()  # two uneven windows are no other regime
    assert trial.state["regression"]["p90"]["open_looks"] == 1
    for _ in range(5):
        trial.look("a step of another weight")
    trial.look()
    regression = trial.state["regression"]["p90"]
    assert (regression["blocks"], regression["open_looks"]) == (3, 0)
    past = edges.recall(trial.state["baseline"], since=trial.state["regime_at"])
    assert past[-1] == trial.per_look


def test_exposure_at_equal_load_still_holds_while_load_is_unequal() -> None:
    trial = Trial(name="ttft_p90")
    for _ in range(400):
        trial.look()
    result = trial.look("one engine at 90 %")
    assert result.no_harm
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "unequal load" in result.reason


def test_a_question_inside_one_bucket_is_inconclusive_with_the_effective_tolerance() -> None:
    """All of 0.12 s against 0.2 s lies between 0.1 and 0.25 s: neither hidden nor misread."""
    trial = Trial(
        canary=lambda rng: rng.uniform(0.19, 0.21),
        name="ttft_p99",
        edges=VLLM,
        max_regression="10%",
        detectable=0.5,
    )
    for _ in range(150):
        result = trial.look()
    assert result.outcome is Outcome.INCONCLUSIVE
    assert not result.no_harm
    assert "effective tolerance" in result.reason
    assert "150 %" in result.reason


def test_coarse_buckets_still_fail_what_crosses_them() -> None:
    trial = Trial(canary=times(20.0), name="ttft_p90", edges=VLLM, max_regression="10%")
    assert trial.until_failed(100).outcome is Outcome.FAILED


def test_a_quantile_below_the_first_edge_or_beyond_the_last_is_inconclusive() -> None:
    below = Trial(edges=[0.5, 1.0, math.inf])
    beyond = Trial(edges=[0.001, 0.002, math.inf])
    for _ in range(60):
        low, high = below.look(), beyond.look()
    assert low.outcome is high.outcome is Outcome.INCONCLUSIVE
    assert "lies below its first edge of 500 ms" in low.reason
    assert "have no edge 21 % above 2 ms" in high.reason
    assert "more than 2 ms" in high.reason
    assert not low.no_harm
    assert not high.no_harm


def test_arms_with_different_buckets_are_compared_at_the_edges_they_share() -> None:
    trial = Trial(canary=times(3.0), name="ttft_p90")
    for _ in range(120):
        trial.at += 2.0
        canary = arm("c0", [trial.canary(trial.rng) for _ in range(40)], FINE[::2])
        baseline = arm("b0", [normal(trial.rng) for _ in range(40)], FINE)
        trial.state, result = trial.gate.look(trial.state, Look(trial.at, canary, baseline))
        if result.outcome is Outcome.FAILED:
            break
    assert result.outcome is Outcome.FAILED


def test_a_late_regression_is_found_and_shown_as_it_is_now() -> None:
    trial = Trial(name="ttft_p90", per_look=60)
    for _ in range(450):  # fifteen minutes
        trial.look()
    trial.canary = times(1.6)
    result = trial.until_failed(150)
    assert result.outcome is Outcome.FAILED
    without = Trial(name="ttft_p90", per_look=60)
    without.state["regression"]["p90"]["origin"] = 1e9  # late starts never come due
    for _ in range(450):
        without.look()
    without.canary = times(1.6)
    at = without.at
    without.until_failed(600)
    assert trial.at - at < without.at - at


def test_an_absolute_limit_alone_passes_and_fails() -> None:
    good = Trial(name="ttft_p90", has_baseline=False, max_seconds="500ms")
    for _ in range(10):
        result = good.look()
    assert result.outcome is Outcome.PASSED
    assert result.baseline is None
    assert result.limit == 0.5
    assert "took longer than 500 ms; at most 10 % may" in result.reason
    assert "at confidence 95 %" in result.reason
    bad = Trial(name="ttft_p90", has_baseline=False, max_seconds="50ms").until_failed(20)
    assert bad.outcome is Outcome.FAILED
    assert "took longer than 50 ms" in bad.reason


def test_at_unequal_load_a_limit_can_be_broken_but_not_held() -> None:
    fast = Trial(name="ttft_p90", max_seconds="500ms")
    slow = Trial(name="ttft_p90", max_seconds="500ms", canary=times(30))
    for _ in range(20):
        held, broken = fast.look("little traffic"), slow.look("little traffic")
    assert held.outcome is Outcome.INCONCLUSIVE
    assert broken.outcome is Outcome.FAILED
    assert fast.look().outcome is Outcome.INCONCLUSIVE  # what came before shows nothing


def test_a_limit_between_two_edges_is_neither_held_nor_broken_inside() -> None:
    trial = Trial(
        canary=lambda rng: rng.uniform(0.11, 0.24), name="ttft_p90", edges=VLLM, max_seconds="200ms"
    )
    for _ in range(100):
        result = trial.look()
    assert result.outcome is Outcome.INCONCLUSIVE


def test_without_a_baseline_a_regression_cannot_be_judged() -> None:
    result = Trial(has_baseline=False).look()
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "no baseline" in result.reason
    assert not result.no_harm


def test_min_samples_holds_back_a_pass_but_never_a_failure() -> None:
    good = Trial(name="ttft_p90", has_baseline=False, max_seconds="500ms", min_samples=2000)
    for _ in range(20):
        result = good.look()
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "at least 2000 requests are asked for" in result.reason
    for _ in range(30):
        result = good.look()
    assert result.outcome is Outcome.PASSED
    bad = Trial(canary=times(30), has_baseline=False, max_seconds="500ms", min_samples=10**6)
    assert bad.until_failed(20).outcome is Outcome.FAILED


def test_more_gates_ask_for_more_evidence() -> None:
    few = Trial(canary=times(3.0), name="ttft_p90").until_failed(200)
    many = Trial(canary=times(3.0), name="ttft_p90", gates_total=8).until_failed(200)
    assert many.valid_looks > few.valid_looks
    bar = many.details["rules"][0]["log_fail_at"] - few.details["rules"][0]["log_fail_at"]
    assert bar == pytest.approx(math.log(8))


def test_no_harm_is_not_claimed_just_before_a_failure() -> None:
    """A tail far worse than what is detectable reaches the planned exposure almost as soon as it
    fails: while the evidence leans towards a failure, no harm is not said."""
    for seed in range(12):
        trial = Trial(
            canary=tail(0.16, 8.0),
            per_look=10,
            gates_total=4,
            detectable=2.0,
            max_regression="46%",
            seed=seed,
        )
        for _ in range(200):
            result = trial.look()
            assert not result.no_harm
            if result.outcome is Outcome.FAILED:
                break
        assert result.outcome is Outcome.FAILED

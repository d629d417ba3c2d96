"""Latency gates: what they decide, when, and how they say so."""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pytest

from canaryctl.common.metrics import Signal
from canaryctl.gates import registry
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.history import QUANTILES, AaHistory, Dependence
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import Buckets
from canaryctl.gates.samples import ArmWindow, Delta, Histogram
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.stats import edges

FINE = [*(0.01 * 1.1 ** (k / 2) for k in range(140)), math.inf]
VLLM = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, math.inf]

Draw = Callable[[random.Random], float]
Observations = Sequence[float]


def normal(rng: random.Random) -> float:
    return rng.lognormvariate(math.log(0.05), 0.45)


def times(factor: float) -> Draw:
    return lambda rng: factor * normal(rng)


def tail(share: float, factor: float) -> Draw:
    return lambda rng: normal(rng) * (factor if rng.random() < share else 1)


def histogram(found: Observations, edges: Sequence[float]) -> Histogram:
    counts = [0] * len(edges)
    for value in found:
        counts[bisect_left(edges, value)] += 1
    return Histogram(tuple(zip(edges, accumulate(counts), strict=True)), math.fsum(found))


def arm(name: str, found: Observations, edges: Sequence[float]) -> ArmWindow:
    return ArmWindow((Delta(name, 2.0, {Signal.TTFT: histogram(found, edges)}),), 1)


class Trial:
    """Two arms drawn with a seed and judged look by look."""

    def __init__(
        self,
        *,
        canary: Draw = normal,
        name: str = "ttft_p99",
        edges: Sequence[float] = FINE,
        per_look: int = 40,
        detectable: float = 1.0,
        gates_total: int = 1,
        has_baseline: bool = True,
        seed: int = 1,
        history: AaHistory | None = None,
        interval_s: float = 2.0,
        **limits: Any,
    ) -> None:
        context = GateContext(gates_total, detectable, interval_s, 0.5, has_baseline, history)
        if not limits.keys() & {"max_regression", "max_seconds"}:
            limits["max_regression"] = "21%"
        spec = GateSpec.model_validate({"name": name, **limits})
        self.gate = registry.build(spec, context)
        self.state = self.gate.start()
        self.canary, self.edges, self.per_look = canary, edges, per_look
        self.rng = random.Random(seed)
        self.at = 0.0
        self.result: GateResult | None = None

    def look(self, unequal: str | None = None, weight: float | None = None) -> GateResult:
        self.at += 2.0
        found = [[draw(self.rng) for _ in range(self.per_look)] for draw in (self.canary, normal)]
        now = Look(
            self.at,
            arm("c0", found[0], self.edges),
            arm("b0", found[1], self.edges),
            unequal_load=unequal,
            weight=weight,
        )
        self.state, self.result = self.gate.look(self.state, now)
        return self.result

    def until_failed(self, looks: int) -> GateResult:
        for _ in range(looks):
            result = self.look()
            if result.outcome is Outcome.FAILED:
                break
        return result


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

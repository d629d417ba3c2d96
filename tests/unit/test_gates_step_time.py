"""Engine speed at equal batch."""

import math
import random
from bisect import bisect_left

import pytest

from canaryctl.common.metrics import Signal
from canaryctl.gates import registry
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.history import AaHistory, Dependence
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import Histogram, HistogramSet, Labels, Missing
from tests.support.gates import Values, arm, context, judge, spec

EDGES = [*(0.0002 * 1.1 ** (k / 2) for k in range(200)), math.inf]
GATE = spec("step_time", max_regression="10%")


def timed(
    rng: random.Random,
    steps: dict[int, int],
    *,
    slower: float = 1.0,
    mode: str = "FULL",
    jitter: float = 0.05,
) -> Values:
    """``steps``: bucket → steps, of 2 ms + 20 µs a sequence each."""
    found: dict[Labels, Histogram] = {}
    for bucket, count in steps.items():
        counts = [0] * len(EDGES)
        for _ in range(count):
            seconds = (0.002 + 2e-5 * bucket) * slower * rng.lognormvariate(0, jitter)
            counts[bisect_left(EDGES, seconds)] += 1
        total, buckets = 0, []
        for edge, number in zip(EDGES, counts, strict=True):
            total += number
            buckets.append((edge, total))
        labels = (("bucket", str(bucket)), ("mode", mode))
        found[labels] = Histogram(tuple(buckets), 1.0)
    return {Signal.STEP_TIME: HistogramSet(found)}


def run(
    looks: int, *, slower: float = 1.0, given: GateContext | None = None, seed: int = 1
) -> tuple[int, GateResult]:
    """A canary at a twentieth of the traffic, in small batches: most of its steps are in buckets
    that the baseline uses seldom."""
    rng = random.Random(seed)
    gate = registry.build(GATE, given or context())
    state = gate.start()
    for k in range(looks):
        canary = timed(rng, {1: 120, 2: 60, 4: 20}, slower=slower)
        baseline = timed(rng, {1: 30, 2: 30, 4: 60, 16: 400})
        look = Look(15.0 * k, arm(canary), arm(baseline), unequal_load="5 % against 95 %")
        state, result = gate.look(state, look)
        if result.outcome is Outcome.FAILED:
            break
    return k + 1, result


@pytest.mark.parametrize(("slower", "most"), [(1.5, 25), (1.25, 60)])
def test_a_slower_engine_is_found_at_unequal_load(slower: float, most: int) -> None:
    looks, result = run(most, slower=slower)
    assert result.outcome is Outcome.FAILED
    assert looks <= most
    assert "at equal batch (+" in result.reason
    assert "100 % of" not in result.reason  # the first steps only taught where the edges are
    assert "canary steps" in result.reason
    assert result.value is not None
    assert result.baseline is not None
    assert result.value / result.baseline == pytest.approx(slower, rel=0.05)
    assert set(result.details["by_bucket"]) == {"1", "2", "4"}


def test_an_equal_engine_passes_although_its_steps_are_quicker_on_the_whole() -> None:
    _, result = run(60)
    assert result.outcome is Outcome.PASSED
    assert "of" in result.reason
    assert result.value == pytest.approx(result.baseline, rel=0.02)


def test_what_is_tolerated_does_not_fail() -> None:
    for seed in range(6):
        assert run(80, slower=1.1, seed=seed)[1].outcome is not Outcome.FAILED


def test_what_a_pass_must_exclude_does_not_pass() -> None:
    for seed in range(6):
        assert run(80, slower=1.33, seed=seed)[1].outcome is not Outcome.PASSED


def test_a_history_says_how_steps_depend_on_each_other() -> None:
    free = AaHistory(2.0, 3600, {(Signal.STEP_TIME, 0.9): Dependence(1.0, 1.5, 1, 5, 100)})
    assert run(60, slower=1.5, given=context(history=free))[0] < run(60, slower=1.5)[0]


def test_steps_that_no_bucket_of_the_other_arm_has_are_not_compared() -> None:
    rng = random.Random(1)
    other = arm(timed(rng, {16: 400}))
    _, result = judge(GATE, 30, arm(timed(rng, {24: 400})), other)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "no bucket has both steps of the canary" in result.reason
    few = {**timed(rng, {24: 400, 16: 100})}
    _, little = judge(GATE, 200, arm(few), other)
    assert little.outcome is Outcome.INCONCLUSIVE
    assert "at least 50 % of the steps have to be comparable" in little.reason


def test_eager_steps_are_in_no_bucket_and_are_told() -> None:
    rng = random.Random(1)
    eager = timed(rng, {0: 500}, mode="NONE", slower=9)
    _, result = judge(GATE, 30, arm(eager), arm(timed(rng, {8: 500})))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "15000 ran eager, in no bucket" in result.reason


def test_piecewise_and_full_of_one_size_are_compared() -> None:
    rng = random.Random(1)
    full, lesser = timed(rng, {8: 400}), timed(rng, {8: 400}, mode="PIECEWISE", slower=3)
    _, result = judge(GATE, 30, arm(lesser), arm(full))
    assert result.outcome is Outcome.FAILED


def test_an_engine_that_times_nothing_is_unknown() -> None:
    rng = random.Random(1)
    good = timed(rng, {8: 400})
    silent: Values = {Signal.STEP_TIME: Missing("absent from the page")}
    for canary, baseline in ((silent, good), (good, silent)):
        _, result = judge(GATE, 3, arm(canary), arm(baseline))
        assert result.outcome is Outcome.INCONCLUSIVE
        assert "unknown" in result.reason
    found = registry.build(GATE, context(has_baseline=False))
    _, alone = found.look(found.start(), Look(0.0, arm(good), None))
    assert "there is no baseline" in alone.reason

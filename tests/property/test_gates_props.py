"""Properties of reading and judging, and simulations of the promise that gates make."""

import json
import math
import random
from bisect import bisect_left
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canaryctl.common.metrics import MetricKind, MetricRef, Signal
from canaryctl.gates import registry
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.deltas import Skipped, delta, histogram_fault
from canaryctl.gates.history import QUANTILES, SIGNALS, AaHistory, Dependence
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.samples import (
    ArmWindow,
    Delta,
    Histogram,
    HistogramSet,
    Missing,
    Scrape,
    Series,
    Value,
)
from canaryctl.gates.sources.exposition import read_page
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.stats import bernoulli, block, edges, lr, mixture, planner
from canaryctl.gates.stats.counts import Counts

INF = math.inf

# ------------------------------------------------------------- reading

grids = st.lists(st.floats(0.001, 100), min_size=1, max_size=8, unique=True).map(sorted)
counts = st.integers(0, 50)


@st.composite
def grown(draw: st.DrawFn) -> tuple[Histogram, Histogram, list[int]]:
    """A histogram, a later one of the same process, and what came between, per bucket."""
    grid = [*draw(grids), INF]
    first = draw(st.lists(counts, min_size=len(grid), max_size=len(grid)))
    added = draw(st.lists(counts, min_size=len(grid), max_size=len(grid)))
    later = [a + b for a, b in zip(first, added, strict=True)]
    before, after = (
        Histogram(tuple(zip(grid, accumulate(each), strict=True)), 0.0) for each in (first, later)
    )
    return before, after, added


def between(before: Value, after: Value) -> Delta | Skipped:
    return delta(Scrape("c", 1.0, {Signal.TTFT: before}), Scrape("c", 2.0, {Signal.TTFT: after}))


@given(grown())
def test_what_was_added_is_what_is_found(case: tuple[Histogram, Histogram, list[int]]) -> None:
    before, after, added = case
    found = between(before, after)
    assert isinstance(found, Delta)
    histogram = found.values[Signal.TTFT]
    assert isinstance(histogram, Histogram)
    assert [count for _, count in histogram.buckets] == list(accumulate(added))
    assert histogram_fault(histogram) is None
    if any(added):
        assert isinstance(between(after, before), Skipped)


pages = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.builds(
            "x{}{} {}".format,
            st.sampled_from(["", "_total", "_bucket", "_sum"]),
            st.sampled_from(
                ["", "{}", '{le="1"}', '{le="+Inf"}', '{a="b', '{a="\\"}"}', "{,}", "{"]
            ),
            st.one_of(
                st.integers(-5, 5).map(str), st.sampled_from(["NaN", "+Inf", "x", "", "1 2 3"])
            ),
        ),
    ),
    max_size=8,
).map("\n".join)


@given(pages, st.sampled_from(list(MetricKind)), st.booleans())
@settings(max_examples=300)
def test_no_page_however_broken_raises(page: str, kind: MetricKind, witness: bool) -> None:
    ref = MetricRef("x", kind, born_at_zero=not witness, exists_with="x" if witness else None)
    value = read_page(page, {Signal.TTFT: ref}).values[Signal.TTFT]
    if isinstance(value, Histogram):
        assert histogram_fault(value) is None
    elif isinstance(value, Series):
        assert not any(math.isnan(v) for v in value.values.values())
    elif isinstance(value, HistogramSet):
        assert all(histogram_fault(one) is None for one in value.histograms.values())
    else:
        assert value.reason


# ---------------------------------------------------------- statistics


@given(grids, st.data(), st.sampled_from([0.5, 0.9, 0.99]), st.floats(0.01, 1), st.floats(0.01, 1))
def test_the_question_is_what_it_says(
    finite: list[float], data: st.DataObject, p: float, r: float, m: float
) -> None:
    grid = [*finite, INF]
    per_bucket = data.draw(st.lists(counts, min_size=len(grid), max_size=len(grid)))
    if not any(per_bucket):
        per_bucket[0] = 1
    cumulative = list(accumulate(per_bucket))
    question = edges.choose(grid, cumulative, p=p, r=r, m=m)
    total = cumulative[-1]
    enough = [k for k in range(len(finite)) if total - cumulative[k] >= (1 - p) * total - 1e-9]
    if question is None:
        assert not enough
        return
    assert question.i == enough[-1]
    low = grid[question.i]
    assert grid[question.j_pass] <= (1 + m + 0.005) * low
    if question.j_fail is None:
        assert finite[-1] < (1 + r) * low
    else:
        assert grid[question.j_fail] >= (1 + r) * low * (1 - 2e-6)
        assert question.j_fail == question.i + 1 or grid[question.j_fail - 1] < (1 + r) * low
        assert question.effective_tolerance is not None
        assert question.effective_tolerance >= r - 1e-5


looks = st.lists(
    st.builds(
        Counts, st.integers(0, 40), st.integers(0, 40), st.integers(0, 400), st.integers(0, 400)
    ),
    max_size=30,
)


@given(looks, st.integers(0, 30))
def test_evidence_is_finite_and_resumes_bit_for_bit(found: list[Counts], cut: int) -> None:
    def run(cut_at: int | None) -> str:
        state: dict[str, Any] = {"a": [0.0] * 8, "b": [0.0] * 8, "c": [0.0] * 9, "starts": []}
        for k, each in enumerate(found):
            if k == cut_at:
                state = json.loads(json.dumps(state, allow_nan=False))
            state["starts"] = mixture.take_starts(state["starts"], state["a"], 100.0 * k)
            state["a"] = lr.update(state["a"], lr.FAIL_GRID, each, rho0=1.1, phi=1.7)
            state["b"] = block.update_pass(block.update_fail(state["b"], each), each)
            n = max(each.n_c, each.k_c)
            state["c"] = bernoulli.update(
                state["c"], bernoulli.FAIL_ODDS, 0.01, k=each.k_c, n=n, phi=2
            )
        assert math.isfinite(mixture.log_e_late(state["a"], state["starts"]))
        return json.dumps(state, allow_nan=False)

    assert run(cut) == run(None)


def evidence(found: list[Counts]) -> list[list[float]]:
    logs = [[0.0] * 8 for _ in range(4)]
    for each in found:
        logs = [
            lr.update(logs[0], lr.FAIL_GRID, each, phi=1.3),
            lr.update(logs[1], lr.PASS_GRID, each),
            block.update_fail(logs[2], each),
            block.update_pass(logs[3], each),
        ]
    return logs


@given(looks, st.randoms(use_true_random=False))
def test_the_order_of_windows_does_not_matter(found: list[Counts], rng: random.Random) -> None:
    shuffled = list(found)
    rng.shuffle(shuffled)
    for one, other in zip(evidence(found), evidence(shuffled), strict=True):
        assert one == pytest.approx(other, abs=1e-9)


@given(looks, st.data())
def test_a_window_may_be_split_where_the_shares_stay(
    found: list[Counts], data: st.DataObject
) -> None:
    """(A) alone: a block is where what happens together is counted together."""
    split = []
    for k_c, k_b, n_c, n_b in found:
        part = data.draw(st.floats(0.1, 0.9))
        first = Counts(part * k_c, 0.5 * k_b, part * n_c, part * n_b)
        split += [first, Counts(k_c - first.k_c, k_b - first.k_b, n_c - first.n_c, n_b - first.n_b)]
    for one, other in zip(evidence(found)[:2], evidence(split)[:2], strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)


# ------------------------------------------------- whole gates, whatever comes

PHIS = (
    None,
    Dependence(phi=1.0, phi_upper=1.1, block_looks=1, engines=10, blocks=12),
    Dependence(phi=9.0, phi_upper=11.0, block_looks=2, engines=10, blocks=12),
)
NARROW = (0.1, 0.2, 0.25, 0.3, 0.4, INF)
per_bucket = st.lists(
    st.one_of(st.integers(0, 30), st.just(0), st.integers(0, 10**12)), min_size=6, max_size=6
)
odd_arm = st.one_of(
    per_bucket,
    st.just([0] * 6),
    st.sampled_from([Missing("no answer"), Histogram((), 0.0), Histogram(((1.0, 4),), 0.0)]),
    st.none(),  # no instance answered
)


def odd_window(found: list[int] | Value | None) -> ArmWindow:
    if found is None:
        return ArmWindow((), 1, {"c": "reset: a bucket fell"})
    value = (
        Histogram(tuple(zip(NARROW, accumulate(found), strict=True)), 1.0)
        if isinstance(found, list)
        else found
    )
    return ArmWindow((Delta("c", 15.0, dict.fromkeys(Signal, value)),), 1)


odd_looks = st.lists(
    st.tuples(
        odd_arm,
        st.one_of(odd_arm, st.just("absent")),
        st.sampled_from([None, None, None, "half the requests"]),
        st.sampled_from([10.0, 50.0]),
    ),
    max_size=25,
)


@given(
    odd_looks,
    st.sampled_from(["ttft", "ttft_p99", "prefill_p50", "itl_p90"]),
    st.sampled_from(PHIS),
    st.booleans(),
    st.integers(0, 25),
    st.sampled_from([15.0, 400.0]),
)
@settings(max_examples=150, deadline=None)
def test_whatever_comes_a_gate_answers_resumes_and_passes_nothing_unseen(
    found: list[Any],
    name: str,
    known: Dependence | None,
    interpolate: bool,
    cut: int,
    look_s: float,
) -> None:
    pairs = [(s, p) for s in SIGNALS.values() for p in QUANTILES.values()]
    history = None if known is None else AaHistory(15.0, 3600.0, dict.fromkeys(pairs, known))
    spec = GateSpec.model_validate(
        {"name": name, "max_regression": "10%", "max_seconds": "1s", "interpolate": interpolate}
    )
    gate = registry.build(spec, GateContext(2, 0.5, 15.0, 0.5, history=history))
    state = resumed = gate.start()
    for k, (canary, baseline, unequal, weight) in enumerate(found):
        look = Look(
            look_s * k,
            odd_window(canary),
            None if baseline == "absent" else odd_window(baseline),
            unequal_load=unequal,
            weight=weight,
        )
        state, result = gate.look(state, look)
        if k == cut:
            resumed = json.loads(json.dumps(resumed, allow_nan=False))
        resumed, again = gate.look(resumed, look)
        assert again == result
        assert json.dumps(resumed, allow_nan=False) == json.dumps(state, allow_nan=False)
        json.dumps(result.details, allow_nan=False)
        if result.outcome is Outcome.PASSED or result.no_harm:
            assert isinstance(canary, list)
            assert isinstance(baseline, list)
            assert result.samples > 0
            assert known is not None or result.outcome is not Outcome.PASSED


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 300)), min_size=1, max_size=8),
    st.floats(1, 5),
    st.floats(1, 5),
)
def test_what_passes_at_a_larger_phi_passes_at_a_smaller_one(
    looks: list[tuple[int, int]], phi: float, more: float
) -> None:
    """A power mean falls with its exponent: φ·ln mean exp(L/φ) does as φ grows."""

    def evidence(phi: float) -> float:
        logs = [0.0] * len(lr.PASS_GRID)
        for k_c, k_b in looks:
            logs = lr.update(logs, lr.PASS_GRID, Counts(k_c, k_b, 100, 900), phi=phi)
        return mixture.log_mean_exp(logs)

    assert evidence(phi * more) * more <= evidence(phi) + 1e-9


@given(st.floats(1.05, 20), st.floats(0.05, 0.95), st.floats(0.1, 500), st.floats(1, 10))
@settings(max_examples=60, deadline=None)
def test_more_power_and_a_higher_bar_take_more_blocks(
    rho: float, share: float, events: float, bar: float
) -> None:
    def need(bar: float, z: float) -> float:
        found = planner.blocks_needed(rho=rho, share=share, baseline_events=events, bar=bar, z=z)
        return INF if found is None else found

    assert need(bar, planner.Z90) >= need(bar, planner.Z50) >= 1
    assert need(bar + 1, planner.Z50) >= need(bar, planner.Z50)


@pytest.mark.parametrize(
    ("share", "rho", "events"), [(0.5, 2.0, 8.0), (0.5, 5.0, 1.6), (0.1, 2.0, 40.0)]
)
def test_blocks_are_planned_as_simulated(share: float, rho: float, events: float) -> None:
    rng = random.Random(5)
    bar, times = math.log(400), []
    for _ in range(150):
        logs, blocks = [0.0] * len(block.BETS), 0
        while mixture.log_e_late(logs, []) < bar:
            k_c = poisson(rng, rho * events * share / (1 - share))
            counts = Counts(k_c, poisson(rng, events), share, 1 - share)
            logs = block.update_fail(logs, counts)
            blocks += 1
        times.append(blocks)
    times.sort()
    for z, at in ((planner.Z50, 75), (planner.Z90, 135)):
        planned = planner.blocks_needed(rho=rho, share=share, baseline_events=events, bar=bar, z=z)
        assert planned == pytest.approx(times[at], rel=0.25, abs=1)


def poisson(rng: random.Random, mean: float) -> int:
    if mean > 60:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    limit, product, k = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        k += 1
    return k


# --------------------------------------------- the promise, by simulation

GRID = [*(0.02 * 1.1 ** (k / 2) for k in range(60)), INF]
LOOKS, REPEATS = 240, 200


def sampler(seed: int, draws: int = 40_000) -> list[int]:
    """Bucket indices of a log-normal latency with a heavy tail, drawn once and resampled."""
    rng = random.Random(seed)
    return [
        bisect_left(
            GRID,
            rng.lognormvariate(math.log(0.05), 0.45)
            if rng.random() < 0.95
            else rng.lognormvariate(math.log(0.15), 0.5),
        )
        for _ in range(draws)
    ]


POOL = sampler(11)


def window(name: str, indices: list[int]) -> ArmWindow:
    found = [0] * len(GRID)
    for index in indices:
        found[min(index, len(GRID) - 1)] += 1
    histogram = Histogram(tuple(zip(GRID, accumulate(found), strict=True)), 1.0)
    return ArmWindow((Delta(name, 2.0, {Signal.TTFT: histogram}),), 1)


def decided(rng: random.Random, *, shift: int, bursts: bool, looks: int) -> int | None:
    """The look of the failure. ``shift``: edges (of 4.9 %) by which the canary is slower.
    ``bursts``: every so often, all requests of one arm's look queue and take far longer."""
    spec = GateSpec.model_validate({"name": "ttft_p90", "max_regression": "10%"})
    gate = registry.build(spec, GateContext(1, 1.0, 2.0, 0.5))
    state = gate.start()
    for k in range(looks):
        arms = []
        for slower in (shift, 0):
            queue = 20 if bursts and rng.random() < 0.03 else 0
            arms.append([i + slower + queue for i in rng.choices(POOL, k=10)])
        state, result = gate.look(state, Look(2.0 * k, window("c", arms[0]), window("b", arms[1])))
        if result.outcome is Outcome.FAILED:
            return k
    return None


@pytest.mark.parametrize("bursts", [False, True])
def test_equal_arms_are_not_failed_however_often_one_looks(bursts: bool) -> None:
    """α is 1 %: of 200 releases of 240 looks two are expected at most; 7 have p < 0.5 %."""
    rng = random.Random(2026)
    fails = sum(
        decided(rng, shift=0, bursts=bursts, looks=LOOKS) is not None for _ in range(REPEATS)
    )
    assert fails < 7


def test_a_canary_at_the_tolerance_is_not_failed_either() -> None:
    rng = random.Random(7)
    fails = sum(decided(rng, shift=2, bursts=False, looks=LOOKS) is not None for _ in range(60))
    assert fails < 5


def test_twice_as_slow_is_found() -> None:
    rng = random.Random(3)
    found = [decided(rng, shift=14, bursts=False, looks=LOOKS) for _ in range(30)]
    assert sum(at is not None for at in found) >= 28


def test_missing_values_survive_differences() -> None:
    found = between(Missing("x"), Missing("y"))
    assert isinstance(found, Delta)
    assert found.values[Signal.TTFT] == Missing("y")

"""What a gate is said to take, against what it then takes."""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canaryctl.common.metrics import Signal
from canaryctl.gates import readings, registry
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.history import AaHistory, Dependence
from canaryctl.gates.needs import Forecast, Forecasting, Need, StepTraffic, Target
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import Histogram, Series, Value
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.stats import block, mixture, planner
from canaryctl.gates.stats.counts import Counts
from tests.support.gates import Values, arm, spec

FINE = [*(0.01 * 1.1 ** (k / 2) for k in range(140)), math.inf]
VLLM = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, math.inf]
LOOK_S, PER_LOOK = 2.0, 40
ERRORS = 0.004

Draw = Callable[[random.Random], float]


def normal(rng: random.Random) -> float:
    return rng.lognormvariate(math.log(0.05), 0.45)


def histogram(found: Sequence[float], edges: Sequence[float]) -> Histogram:
    counts = [0] * len(edges)
    for value in found:
        counts[bisect_left(edges, value)] += 1
    return Histogram(tuple(zip(edges, accumulate(counts), strict=True)), math.fsum(found))


def counted(
    rng: random.Random, requests: int, *, factor: float = 1.0, edges: Sequence[float] = FINE
) -> Values:
    """An arm's requests: all slower by ``factor``, and failing more often by it."""
    times = [factor * normal(rng) for _ in range(requests)]
    errors = sum(rng.random() < factor * ERRORS for _ in range(requests))
    values: dict[Any, Value] = {
        Signal.TTFT: histogram(times, edges),
        Signal.REQUESTS: Series({(): float(requests)}),
        Signal.ERRORS: Series({(): float(errors)}),
    }
    return values


PAST = counted(random.Random(0), 40_000)


def history(phi: float, *, looks: int = 2) -> AaHistory:
    """Of engines whose counts vary ``phi`` times as much as independent ones."""
    known = Dependence(phi, phi, looks, engines=5, blocks=12)
    return AaHistory(LOOK_S, 3600.0, {(Signal.TTFT, p): known for p in (0.99, 0.95, 0.9, 0.5)})


def context(**changes: Any) -> GateContext:
    given = {"gates_total": 1, "detectable": 1.0, "interval_s": LOOK_S, "canary_share": 0.5}
    return GateContext(**{**given, **changes})


def forecast(
    asked: GateSpec,
    known: GateContext,
    past: Values | None = PAST,
    *,
    per_s: float | None = PER_LOOK / LOOK_S,
    share: float = 0.5,
) -> Forecast:
    gate = registry.build(asked, known)
    assert isinstance(gate, Forecasting)
    seen = None if past is None else arm(past)
    return gate.forecast(seen, StepTraffic(per_s, share, known.interval_s))


def samples_until(
    asked: GateSpec,
    known: GateContext,
    reached: Callable[[GateResult], bool],
    *,
    factor: float = 1.0,
    runs: int = 25,
    most: int = 400,
) -> float:
    """Canary observations until ``reached``: the median of runs with Poisson-like looks."""
    found = []
    for seed in range(runs):
        rng = random.Random(seed)
        gate = registry.build(asked, known)
        state = gate.start()
        for k in range(most):
            canary = arm(counted(rng, PER_LOOK, factor=factor))
            look = Look(LOOK_S * (k + 1), canary, arm(counted(rng, PER_LOOK)))
            state, result = gate.look(state, look)
            if reached(result):
                break
        found.append((k + 1) * PER_LOOK)
    return median(found)


def failed(result: GateResult) -> bool:
    return result.outcome is Outcome.FAILED


def passed(result: GateResult) -> bool:
    return result.outcome is Outcome.PASSED


def samples(need: Need | None) -> float:
    assert need is not None
    assert need.samples is not None
    return need.samples


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        (spec("ttft_p90", max_regression="21%"), context()),
        (spec("ttft_p99", max_regression="10%"), context(detectable=0.3)),
        (spec("ttft_p99", max_regression="10%"), context(detectable=0.5, history=history(1.0))),
        (spec("ttft_p95", max_regression="21%"), context(history=history(1.3))),
        (spec("ttft", max_regression="10%"), context(detectable=0.5, history=history(1.0))),
        (spec("error_rate", max_regression="50%"), context(detectable=9.0)),
    ],
    ids=["blocks", "rare", "independent", "blocks-by-history", "mixed", "errors"],
)
def test_a_bad_canary_fails_about_when_it_was_said(asked: GateSpec, known: GateContext) -> None:
    said = samples(forecast(asked, known).needs[Target.FAIL_50])
    found = samples_until(asked, known, failed, factor=1 + known.detectable)
    # A look is the least unit of time.
    assert found == pytest.approx(said, rel=0.25, abs=PER_LOOK)


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        (spec("ttft_p95", max_regression="10%", margin="46%"), context(history=history(1.0))),
        (spec("ttft_p90", max_regression="21%", margin="100%"), context(history=history(2.0))),
        (spec("error_rate", max_ratio="2%"), context()),
    ],
    ids=["independent", "both-rules", "errors"],
)
def test_a_good_canary_passes_about_when_it_was_said(asked: GateSpec, known: GateContext) -> None:
    said = samples(forecast(asked, known).needs[Target.PROVEN_50])
    found = samples_until(asked, known, passed)
    assert found == pytest.approx(said, rel=0.25, abs=PER_LOOK)


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        (spec("ttft_p90", max_regression="21%"), context()),
        (spec("ttft_p99", max_regression="10%"), context(detectable=0.5, history=history(1.0))),
        (spec("error_rate", max_regression="50%"), context(detectable=9.0)),
    ],
    ids=["blocks", "independent", "errors"],
)
def test_no_harm_is_claimed_about_when_it_was_said(asked: GateSpec, known: GateContext) -> None:
    said = samples(forecast(asked, known).needs[Target.NO_HARM])
    found = samples_until(asked, known, lambda result: result.no_harm, runs=15)
    assert found == pytest.approx(said, rel=0.25, abs=PER_LOOK)


def test_time_follows_the_traffic_and_blocks_the_looks() -> None:
    asked = spec("ttft_p99", max_regression="10%")
    known = context(detectable=0.5, history=history(1.0))
    slow = forecast(asked, known, per_s=5.0).needs[Target.FAIL_50]
    fast = forecast(asked, known, per_s=50.0).needs[Target.FAIL_50]
    assert slow.seconds is not None
    assert fast.seconds is not None
    assert slow.seconds == pytest.approx(10 * fast.seconds, rel=0.1)  # whole looks
    blocks = [
        forecast(asked, context(detectable=0.5), per_s=per_s).needs[Target.FAIL_50]
        for per_s in (500.0, 5000.0)
    ]
    assert blocks[0].blocks is not None
    assert blocks[0].seconds == blocks[1].seconds  # no traffic makes blocks shorter


def test_a_history_that_places_the_edges_saves_the_wait_for_them() -> None:
    asked = spec("ttft_p99", max_regression="10%")
    past = readings.histogram(arm(PAST), Signal.TTFT, "baseline")
    assert isinstance(past, readings.Buckets)
    waits, knows = (
        forecast(asked, context(detectable=0.5, history=each)).needs[Target.FAIL_50].seconds
        for each in (history(4.0), replace(history(4.0), pasts={Signal.TTFT: past}))
    )
    assert waits is not None
    assert knows is not None
    assert waits - knows == pytest.approx(300 / PER_LOOK * LOOK_S, abs=LOOK_S)


def test_what_the_buckets_cannot_show_is_named_with_the_effective_tolerance() -> None:
    coarse = counted(random.Random(3), 20_000, edges=VLLM)
    found = forecast(spec("ttft_p99", max_regression="10%"), context(detectable=0.5), coarse)
    assert found.tolerance == pytest.approx(1.5)
    assert "buckets of 100 ms and 250 ms" in found.notes[0]
    assert "more than 150 %" in found.notes[0]
    assert Target.NO_HARM not in found.needs
    assert "need not cross them" in found.lacks[Target.NO_HARM]
    wide = forecast(spec("ttft_p99", max_regression="10%"), context(detectable=9.0), coarse)
    assert wide.tolerance == pytest.approx(1.5)
    assert wide.needs[Target.NO_HARM].samples is not None


def test_a_quantile_below_the_first_edge_can_never_be_judged() -> None:
    coarse = counted(random.Random(3), 2000, edges=[0.3, 0.5, math.inf])
    found = forecast(spec("ttft_p90", max_regression="10%"), context(), coarse)
    assert found.needs == {}
    assert set(found.lacks) == set(Target)
    assert "lies below its first edge of 300 ms" in found.lacks[Target.FAIL_50]


def test_a_baseline_that_breaks_the_limit_itself_says_so() -> None:
    found = forecast(spec("ttft_p90", max_seconds="60ms"), context())
    assert "of the baseline's requests took longer than 60 ms" in found.lacks[Target.PROVEN_90]
    assert Target.NO_HARM in found.needs


def test_without_history_a_pass_is_not_on_offer() -> None:
    found = forecast(spec("ttft_p90", max_regression="10%"), context())
    assert "needs a history of equal runtimes" in found.lacks[Target.PROVEN_50]
    assert "needs a history of equal runtimes" in found.lacks[Target.PROVEN_90]


def test_a_gate_that_waits_for_nothing_has_no_forecast() -> None:
    for asked in (spec("oom", max=0), spec("max_concurrency", max_regression="5%")):
        assert not isinstance(registry.build(asked, context()), Forecasting)


SPECS = (
    spec("ttft_p99", max_regression="10%"),
    spec("ttft_p90", max_regression="21%", margin="46%"),
    spec("ttft", max_regression="10%"),
    spec("ttft_p90", max_seconds="2s"),
    spec("error_rate", max_ratio="2%"),
)


@settings(max_examples=40, deadline=None)
@given(
    asked=st.sampled_from(SPECS),
    phi=st.sampled_from([None, 1.0, 5.0]),
    share=st.sampled_from([0.1, 0.3, 0.5]),
    per_s=st.floats(0.1, 1000.0),
    detectable=st.floats(0.5, 5.0),
)
def test_no_data_take_less_than_is_said_without_any(
    asked: GateSpec, phi: float | None, share: float, per_s: float, detectable: float
) -> None:
    """A plan may be refused on the least: nothing that is seen later may come out below it."""
    known = context(detectable=detectable, history=None if phi is None else history(phi))
    least = forecast(asked, known, None, per_s=per_s, share=share)
    found = forecast(asked, known, per_s=per_s, share=share)
    assert least.least is not None
    assert found.least is None
    for target, need in found.needs.items():
        assert target in least.needs
        floor = least.needs[target]
        assert need.seconds is not None
        if floor.seconds is not None:
            assert floor.seconds <= need.seconds * (1 + 1e-9)
        else:  # what the likelihood ratio takes depends on buckets that nobody has seen
            assert "ttft" in asked.name
            assert phi == 1.0


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_least_blocks_are_those_that_the_process_takes(share: float) -> None:
    for update, counts, bar, expected, late in (
        (block.update_fail, (9, 0), math.log(100), planner.least_blocks, True),
        (block.update_pass, (0, 9), math.log(20), planner.least_blocks_to_pass, False),
    ):
        logs, blocks = [0.0] * len(block.BETS), 0
        while (mixture.log_e_late(logs, []) if late else mixture.log_mean_exp(logs)) < bar:
            logs = update(logs, Counts(*counts, 100 * share, 100 * (1 - share)))
            blocks += 1
        assert expected(share=share, bar=bar) == pytest.approx(blocks, abs=1)


def test_without_data_only_what_a_request_is_has_a_time() -> None:
    requests = forecast(spec("error_rate", max_ratio="2%"), context(), None)
    assert requests.needs[Target.PROVEN_50].seconds is not None
    tokens = forecast(spec("itl_p99", max_seconds="1s"), context(), None)
    assert tokens.needs[Target.PROVEN_50].samples is not None
    assert tokens.needs[Target.PROVEN_50].seconds is None

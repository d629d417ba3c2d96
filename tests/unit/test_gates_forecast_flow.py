"""What ``step_time`` and ``dispatched_vs_finished`` are said to take, against what they take."""

import random
from collections.abc import Callable
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canaryctl.common.metrics import Signal
from canaryctl.gates import registry
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.history import AaHistory, Dependence
from canaryctl.gates.needs import Forecast, Forecasting, StepTraffic, Target
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import ArmWindow, Delta, Histogram, Series
from canaryctl.gates.spec import GateSpec
from tests.support.gates import Values, arm, context, spec
from tests.unit.test_gates_step_time import timed
from tests.unit.test_gates_unfinished import Engine

Reached = Callable[[GateResult], bool]

STEP_TIME = spec("step_time", max_regression="10%")
AGE = spec("dispatched_vs_finished", max_seconds="30s")
PILES = spec("dispatched_vs_finished", max_regression="50%")
LOOK_S, BATCHES = 2.0, {1: 40, 2: 60, 4: 80, 8: 20}
PER_LOOK = sum(BATCHES.values())


def failed(result: GateResult) -> bool:
    return result.outcome is Outcome.FAILED


def passed(result: GateResult) -> bool:
    return result.outcome is Outcome.PASSED


def harmless(result: GateResult) -> bool:
    return result.no_harm and result.outcome is not Outcome.PASSED


def forecast(
    asked: GateSpec, known: GateContext, past: Values | None, traffic: StepTraffic
) -> Forecast:
    gate = registry.build(asked, known)
    assert isinstance(gate, Forecasting)
    return gate.forecast(None if past is None else arm(past), traffic)


# --------------------------------------------------------------- step time


def known(phi: float | None, detectable: float) -> GateContext:
    one = None if phi is None else Dependence(phi, phi, 1, engines=5, blocks=100)
    past = None if one is None else AaHistory(LOOK_S, 3600.0, {(Signal.STEP_TIME, 0.9): one})
    return context(detectable=detectable, history=past, interval_s=LOOK_S)


def steps_past(*, jitter: float, mode: str = "FULL") -> Values:
    """Ten thousand steps, two a request."""
    steps = timed(
        random.Random(99), {b: 50 * n for b, n in BATCHES.items()}, jitter=jitter, mode=mode
    )
    return {**steps, Signal.REQUESTS: Series({(): 5000.0})}


def said_of_steps(given_: GateContext, *, jitter: float, more: float = 1.0) -> Forecast:
    """Traffic of which the canary's part makes PER_LOOK steps in a look."""
    traffic = StepTraffic(PER_LOOK / LOOK_S / 2.0, 1 / (1 + more), LOOK_S)
    return forecast(STEP_TIME, given_, steps_past(jitter=jitter), traffic)


def steps_until(
    reached: Reached,
    given_: GateContext,
    *,
    jitter: float,
    slower: float = 1.0,
    more: float = 1.0,
    asked: GateSpec = STEP_TIME,
) -> float:
    found = []
    theirs = {bucket: round(count * more) for bucket, count in BATCHES.items()}
    for seed in range(7):
        rng = random.Random(seed)
        gate = registry.build(asked, given_)
        state, looks = gate.start(), 0
        while looks < 100:
            looks += 1
            canary = arm(timed(rng, BATCHES, slower=slower, jitter=jitter))
            baseline = arm(timed(rng, theirs, jitter=jitter))
            state, result = gate.look(state, Look(LOOK_S * looks, canary, baseline))
            if reached(result):
                break
        found.append(looks * PER_LOOK)
    return median(found)


@pytest.mark.parametrize(
    ("phi", "detectable", "more", "jitter"),
    [
        (1.0, 0.5, 1.0, 0.05),
        (8.0, 0.2, 1.0, 0.2),
        (None, 0.5, 1.0, 0.2),
        (None, 0.5, 4.0, 0.2),
        (None, 0.2, 4.0, 0.05),
    ],
)
def test_a_slower_engine_fails_about_when_it_was_said(
    phi: float | None, detectable: float, more: float, jitter: float
) -> None:
    given_ = known(phi, detectable)
    need = said_of_steps(given_, jitter=jitter, more=more).needs[Target.FAIL_50]
    found = steps_until(failed, given_, jitter=jitter, more=more, slower=1 + detectable)
    assert need.samples == pytest.approx(found, rel=0.25, abs=PER_LOOK)


@pytest.mark.parametrize(
    ("phi", "more", "jitter"), [(1.0, 1.0, 0.05), (None, 1.0, 0.2), (None, 4.0, 0.05)]
)
def test_an_equal_engine_passes_about_when_it_was_said(
    phi: float | None, more: float, jitter: float
) -> None:
    given_ = known(phi, 0.5)
    need = said_of_steps(given_, jitter=jitter, more=more).needs[Target.PROVEN_50]
    found = steps_until(passed, given_, jitter=jitter, more=more)
    assert need.samples == pytest.approx(found, rel=0.25, abs=PER_LOOK)


def test_no_harm_of_an_engine_is_claimed_about_when_it_was_said() -> None:
    """Where a pass asks for more: its margin is small, and what is detectable is not."""
    given_, asked = known(8.0, 1.0), STEP_TIME.model_copy(update={"margin": 0.1})
    traffic = StepTraffic(PER_LOOK / LOOK_S / 2.0, 0.5, LOOK_S)
    said = forecast(asked, given_, steps_past(jitter=0.4), traffic).needs
    found = steps_until(harmless, given_, jitter=0.4, asked=asked)
    assert said[Target.NO_HARM].samples == pytest.approx(found, rel=0.25, abs=PER_LOOK)
    passes = said[Target.PROVEN_50].samples
    assert passes is not None
    assert passes > found


def test_rare_batches_wait_until_the_baseline_has_shown_enough_of_them() -> None:
    few = said_of_steps(known(1.0, 0.5), jitter=0.05)
    assert few.needs[Target.PROVEN_50].seconds == 10.0  # half of the steps, from the fourth look
    many = StepTraffic(100 * PER_LOOK / LOOK_S, 0.5, LOOK_S)
    at_once = forecast(STEP_TIME, known(1.0, 0.5), steps_past(jitter=0.05), many)
    assert at_once.needs[Target.PROVEN_50].seconds == 6.0  # three looks are the least


def test_steps_that_replay_no_graph_can_never_be_compared() -> None:
    traffic = StepTraffic(10.0, 0.5, LOOK_S)
    eager = steps_past(jitter=0.05, mode="NONE")
    found = forecast(STEP_TIME, known(None, 0.5), eager, traffic)
    assert found.needs == {}
    assert "0 % of the baseline's steps replayed a graph" in found.lacks[Target.NO_HARM]


def test_a_small_slowdown_between_the_edges_is_not_said_to_be_found() -> None:
    found = forecast(
        STEP_TIME, known(1.0, 0.101), steps_past(jitter=0.001), StepTraffic(10.0, 0.5, LOOK_S)
    )
    assert "between the engine's edges, steps slower by 10.1 %" in found.lacks[Target.NO_HARM]


@settings(max_examples=30, deadline=None)
@given(
    phi=st.sampled_from([None, 1.0, 5.0]),
    share=st.sampled_from([0.1, 0.5, 0.8]),
    detectable=st.floats(0.2, 5.0),
    jitter=st.sampled_from([0.02, 0.2, 0.6]),
)
def test_no_steps_take_less_than_is_said_without_any(
    phi: float | None, share: float, detectable: float, jitter: float
) -> None:
    given_, traffic = known(phi, detectable), StepTraffic(50.0, share, LOOK_S)
    least = forecast(STEP_TIME, given_, None, traffic)
    assert least.least is not None
    for target, need in forecast(
        STEP_TIME, given_, steps_past(jitter=jitter), traffic
    ).needs.items():
        floor = least.needs[target]
        assert floor.seconds is None  # how many steps a request makes is not known
        assert floor.samples is not None
        assert need.samples is not None
        assert floor.samples <= need.samples


# ------------------------------------------------------------ unfinished


def flow_past(rate: float, mean_s: float) -> Values:
    return Engine(random.Random(7), rate, mean_s).look(4000.0, 1.0)


def seconds_until(
    asked: GateSpec, reached: Reached, rate: float, mean_s: float, look_s: float, hang: float = 0.0
) -> list[float]:
    """Of seven runs, in order. Both arms have run for a while when the release begins."""
    found = []
    for seed in range(7):
        rng = random.Random(seed)
        gate = registry.build(asked, context(interval_s=look_s))
        state, looks = gate.start(), 0
        canary, baseline = Engine(rng, rate, mean_s), Engine(rng, rate, mean_s)
        for engine in (canary, baseline):
            engine.look(6 * mean_s, 1.0)
        canary.hang = hang
        while looks < 400:
            looks += 1
            windows = [
                ArmWindow((Delta("i0", look_s, engine.look(look_s, 1.0)),), 1)
                for engine in (canary, baseline)
            ]
            state, result = gate.look(state, Look(look_s * looks, windows[0], windows[1]))
            if reached(result):
                break
        found.append(looks * look_s)
    return sorted(found)


def said_of_flow(
    asked: GateSpec, rate: float, mean_s: float, look_s: float, *, share: float = 0.5
) -> Forecast:
    traffic = StepTraffic(rate, share, look_s)
    return forecast(asked, context(interval_s=look_s), flow_past(rate, mean_s), traffic)


@pytest.mark.parametrize(("rate", "mean_s", "look_s"), [(2.0, 4.0, 5.0), (20.0, 4.0, 15.0)])
def test_a_sound_canary_shows_that_none_is_old_about_when_it_was_said(
    rate: float, mean_s: float, look_s: float
) -> None:
    need = said_of_flow(AGE, rate, mean_s, look_s).needs[Target.PROVEN_50]
    found = median(seconds_until(AGE, passed, rate, mean_s, look_s))
    assert need.seconds == pytest.approx(found, rel=0.25, abs=look_s)


def test_an_engine_that_ends_nothing_is_found_when_it_was_said() -> None:
    need = said_of_flow(AGE, 2.0, 4.0, 5.0).needs[Target.FAIL_90]
    assert seconds_until(AGE, failed, 2.0, 4.0, 5.0, hang=1.0)[-1] == need.seconds == 40.0


@pytest.mark.parametrize(("rate", "mean_s", "look_s"), [(5.0, 4.0, 5.0), (20.0, 4.0, 15.0)])
def test_requests_that_hang_pile_up_about_when_it_was_said(
    rate: float, mean_s: float, look_s: float
) -> None:
    said = said_of_flow(PILES, rate, mean_s, look_s).needs
    found = seconds_until(PILES, failed, rate, mean_s, look_s, hang=0.02)
    assert said[Target.FAIL_50].seconds == pytest.approx(median(found), rel=0.25, abs=look_s)
    claimed = seconds_until(PILES, harmless, rate, mean_s, look_s)
    assert said[Target.NO_HARM].seconds == pytest.approx(median(claimed), rel=0.25, abs=look_s)
    assert found[-1] <= claimed[0]  # what no harm says would have been found


def test_what_can_never_be_shown_is_said_beforehand() -> None:
    piles = said_of_flow(PILES, 5.0, 4.0, 5.0)
    assert "a limit on their age" in piles.lacks[Target.PROVEN_90]
    assert piles.harm == "of whose requests 2 % never end"
    long = said_of_flow(AGE, 5.0, 60.0, 5.0)
    assert "the baseline's requests take 5" in long.lacks[Target.NO_HARM]
    assert Target.FAIL_50 in long.needs
    assert long.harm == "that ends nothing any more"


@settings(max_examples=30, deadline=None)
@given(
    asked=st.sampled_from([AGE, PILES]),
    share=st.sampled_from([0.1, 0.5]),
    rate=st.sampled_from([0.5, 5.0, 50.0]),
    mean_s=st.sampled_from([1.0, 8.0, 25.0]),
)
def test_no_flow_takes_less_than_is_said_without_any(
    asked: GateSpec, share: float, rate: float, mean_s: float
) -> None:
    traffic = StepTraffic(rate, share, 5.0)
    least = forecast(asked, context(), None, traffic)
    assert least.least is not None
    found = forecast(asked, context(), PASTS[mean_s], traffic)
    assert found.least is None
    for target, need in found.needs.items():
        floor = least.needs[target].seconds
        assert floor is not None
        assert need.seconds is not None
        assert floor <= need.seconds


PASTS: dict[float, Values] = {
    mean_s: {
        Signal.E2E: Histogram(((2 * mean_s, 1000), (4 * mean_s, 1000), (float("inf"), 1000)), 1.0)
    }
    for mean_s in (1.0, 8.0, 25.0)
}

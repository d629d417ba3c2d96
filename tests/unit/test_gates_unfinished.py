"""Requests that were sent and do not end; and how sound engines look."""

import heapq
import math
import random
from bisect import bisect_left
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.common.metrics import Signal
from canaryctl.gates import registry
from canaryctl.gates.base import Look
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import ArmWindow, Delta, Histogram, Missing, Series
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.stats import in_flight
from canaryctl.gates.stats.in_flight import Point
from tests.support.gates import Values, arm, context, judge, spec

AGE = spec("dispatched_vs_finished", max_seconds="30s")
PILES = spec("dispatched_vs_finished", max_regression="50%")
EDGES = [*(0.05 * 1.1**k for k in range(90)), math.inf]


def values(running: float, ended: float, *, waiting: float = 0, e2e: int = 0) -> Values:
    return {
        Signal.RUNNING: Series({(): running}),
        Signal.WAITING: Series({(): waiting}),
        Signal.REQUESTS: Series({(): ended}),
        Signal.E2E: Histogram(((60.0, e2e), (math.inf, e2e)), 1.0),
    }


def looks(gate_spec: GateSpec, canary: list[Values], baseline: list[Values]) -> GateResult:
    gate = registry.build(gate_spec, context())
    state = gate.start()
    for k, (ours, theirs) in enumerate(zip(canary, baseline, strict=True)):
        look = Look(15.0 * k, arm(ours, span_s=15.0), arm(theirs, span_s=15.0))
        state, result = gate.look(state, look)
    return result


# ------------------------------------------------------------- the age


def test_an_engine_that_stops_answering_is_found_by_the_age_of_what_it_holds() -> None:
    """Four hang; all that ended was quick, so that no histogram shows anything."""
    busy = [values(6, 90)] * 6
    hung = [values(4, 0)] * 4
    result = looks(AGE, busy + hung, [values(6, 90)] * 10)
    assert result.outcome is Outcome.FAILED
    assert "do not end: at least 4 requests of i0 in flight for 45 s" in result.reason
    assert "at most 30 s are allowed" in result.reason
    assert result.value == 45.0


def test_some_that_hang_among_many_that_do_not_are_found_too() -> None:
    canary = [values(6 + 12 * k, 78) for k in range(40)]  # of 90 sent a look 12 stay
    result = looks(AGE, canary, [values(6, 90)] * 40)
    assert result.outcome is Outcome.FAILED


def test_long_generations_and_a_busy_batch_that_the_baseline_shows_too_are_no_fault() -> None:
    slow = [values(60, 12)] * 40  # 75 s each
    result = looks(AGE, slow, slow)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "the baseline's are in flight as long: 60 s" in result.reason
    assert looks(AGE, slow, [values(6, 90)] * 40).outcome is Outcome.FAILED


def test_a_sound_canary_passes_once_next_to_none_can_be_as_old() -> None:
    _, early = judge(AGE, 10, arm(values(6, 40, waiting=2)), arm(values(6, 40)))
    assert early.outcome is Outcome.INCONCLUSIVE
    assert "the canary was not watched for 30 s" in early.reason
    _, later = judge(AGE, 18, arm(values(6, 40, waiting=2)), arm(values(6, 40)))
    assert later.outcome is Outcome.INCONCLUSIVE
    assert "either 800 have to end (so far 720)" in later.reason
    _, passed = judge(AGE, 30, arm(values(6, 40, waiting=2)), arm(values(6, 40)))
    assert passed.outcome is Outcome.PASSED
    assert "of 1200 requests sent at most 8 are older" in passed.reason


def test_an_idle_moment_shows_that_none_hangs() -> None:
    _, result = judge(AGE, 20, arm(values(0, 1)), arm(values(0, 1)))
    assert result.outcome is Outcome.PASSED


def test_several_sequences_of_one_request_are_counted_as_the_engine_counts_them() -> None:
    """n = 8: eight in flight, eight latencies, one answer."""
    _, result = judge(AGE, 60, arm(values(80, 10, e2e=80)), arm(values(80, 10, e2e=80)))
    assert result.value == 0.0
    assert result.outcome is not Outcome.FAILED


def test_a_restart_begins_a_new_track() -> None:
    gate = registry.build(AGE, context())
    state = gate.start()
    for k in range(3):
        state, _ = gate.look(state, Look(15.0 * k, arm(values(9, 0), span_s=15), None))
    gone = ArmWindow((), 1, {"i0": "restarted: the process is another one"})
    state, _ = gate.look(state, Look(45.0, gone, None))
    _, result = gate.look(state, Look(60.0, arm(values(9, 0), span_s=15), arm(values(9, 0))))
    assert result.value == 0.0
    assert result.outcome is Outcome.INCONCLUSIVE


def test_what_ended_in_a_look_that_could_not_be_read_makes_nothing_old() -> None:
    gate = registry.build(AGE, context())
    state = gate.start()
    unread = arm({**values(9, 90), Signal.RUNNING: Missing("no answer")}, span_s=60)
    for k, window in enumerate([arm(values(9, 0), span_s=15), unread, arm(values(9, 0))]):
        state, result = gate.look(state, Look(60.0 * k, window, arm(values(9, 90))))
    assert result.value == 0.0


def test_counts_that_are_missing_are_unknown() -> None:
    known = values(6, 90)
    for signal in (Signal.RUNNING, Signal.WAITING, Signal.REQUESTS):
        _, result = judge(AGE, 3, arm({**known, signal: Missing("answered 500")}), arm(known))
        assert result.outcome is Outcome.INCONCLUSIVE
        assert "answered 500" in result.reason
    _, result = judge(AGE, 3, arm(known), None)
    assert result.outcome is Outcome.INCONCLUSIVE


# ----------------------------------------------------------- piling up


@dataclass
class Engine:
    """As many servers as there are requests; a share of them never ends."""

    rng: random.Random
    rate: float
    mean_s: float
    hang: float = 0.0
    ends: list[tuple[float, float]] = field(default_factory=list)
    hung: int = 0
    at: float = 0.0

    def look(self, span_s: float, load: float) -> Values:
        end, at = self.at + span_s, self.at
        while (at := at + self.rng.expovariate(self.rate * load)) <= end:
            if self.rng.random() < self.hang:
                self.hung += 1
            else:
                lasts = self.rng.lognormvariate(math.log(self.mean_s) - 0.5, 1.0)
                heapq.heappush(self.ends, (at + lasts, lasts))
        ended = []
        while self.ends and self.ends[0][0] <= end:
            ended.append(heapq.heappop(self.ends)[1])
        self.at = end
        counts = [0] * len(EDGES)
        for lasts in ended:
            counts[bisect_left(EDGES, lasts)] += 1
        total, buckets = 0, []
        for edge, count in zip(EDGES, counts, strict=True):
            total += count
            buckets.append((edge, total))
        return {
            **values(len(self.ends) + self.hung, len(ended)),
            Signal.E2E: Histogram(tuple(buckets), sum(ended)),
        }


def simulate(
    seed: int, *, hang: float = 0.0, drift: float = 0.0, minutes: int = 30
) -> tuple[float | None, GateResult]:
    """(seconds until it failed, the last result), at 5 requests a second of 4 s each."""
    rng = random.Random(seed)
    gate = registry.build(PILES, context())
    state = gate.start()
    canary, baseline = Engine(rng, 5.0, 4.0, hang), Engine(rng, 5.0, 4.0)
    wander = 0.0
    for k in range(minutes * 4):
        wander += -wander / 20 + drift * math.sqrt(0.1) * rng.gauss(0, 1)
        load = math.exp(wander)
        look = Look(
            15.0 * k,
            ArmWindow((Delta("c", 15.0, canary.look(15.0, load)),), 1),
            ArmWindow((Delta("b", 15.0, baseline.look(15.0, load)),), 1),
        )
        state, result = gate.look(state, look)
        if result.outcome is Outcome.FAILED:
            return 15.0 * k, result
    return None, result


def test_sound_engines_do_not_fail_whatever_the_load_does() -> None:
    """24 runs, of which 1 % may fail by chance: two are next to impossible."""
    found = [simulate(seed, drift=0.5 * (seed % 3), minutes=20) for seed in range(24)]
    assert sum(at is not None for at, _ in found) <= 1


def test_a_share_that_hangs_piles_up_in_the_canary_alone() -> None:
    for seed in range(3):
        at, result = simulate(seed, hang=0.1, drift=0.3)
        assert at is not None
        assert at <= 600
        assert "requests were sent and do not end: of " in result.reason
        assert "has " in result.reason
        assert "chance of saying so by accident ≤ 1 %" in result.reason


def test_one_long_request_is_one_event() -> None:
    steady = [values(5, 75, e2e=75)] * 200
    longer = [values(6, 75, e2e=75)] * 100
    result = looks(PILES, steady[:20] + longer + steady[:80], steady)
    assert result.outcome is not Outcome.FAILED
    assert result.details["rules"][0]["rises"] == [1.0, 0.0]


def test_another_load_is_learnt_anew() -> None:
    """More traffic lifts the canary's floor and lowers the baseline's: no request hangs."""
    gate = registry.build(PILES, context())
    state = gate.start()
    for k in range(200):
        step = k // 50
        ours, theirs = values(5 + 40 * step, 75), values(200 - 40 * step, 75)
        look = Look(15.0 * k, arm(ours, span_s=15), arm(theirs, span_s=15), weight=25.0 * step)
        state, result = gate.look(state, look)
        assert result.outcome is not Outcome.FAILED, result.reason
    unequal = Look(9e3, arm(values(900, 75)), arm(values(5, 75)), unequal_load="weights")
    state, result = gate.look(state, unequal)
    assert result.reason.startswith("unequal load: weights;")
    assert result.details["rules"][0]["rises"] == [0.0, 0.0]
    again = Look(9e3, arm(values(900, 75)), arm(values(5, 75)), weight=50.0)
    _, result = gate.look(state, again)
    assert result.details["rules"][0]["rises"] == [0.0, 0.0]


# ---------------------------------------------------------- arithmetic

ARRIVALS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 60)), min_size=1, max_size=40)


@given(ARRIVALS, st.integers(2, 40))
def test_an_age_is_never_claimed_that_no_request_has(
    requests: list[tuple[float, float]], samples: int
) -> None:
    """Against requests whose ages are known, and a track that leaves most of its points out."""
    points: list[Point] = []
    for k in range(samples * 5):
        at = 100.0 * k / samples
        there = sum(since <= at < since + lasts for since, lasts in requests)
        ended = sum(since + lasts <= at for since, lasts in requests)
        points = in_flight.remember(points, Point(at, there, ended, there), 1e9)
        ages = [at - since for since, lasts in requests if since <= at < since + lasts]
        age, count = in_flight.oldest(points)
        assert sum(a >= age - 1e-6 for a in ages) >= count
        assert (age > 0) == (count > 0)
        for older in (1.0, 10.0, 50.0):
            most = in_flight.most_older(points, older)
            assert most is None or sum(a >= older + 1e-6 for a in ages) <= most


@given(st.integers(1, 1500))
def test_a_track_stays_short(looks_made: int) -> None:
    points: list[Point] = []
    for k in range(looks_made):
        points = in_flight.remember(points, Point(float(k), 5, 0, 1 if k == 700 else 5), 1e9)
    assert len(points) <= in_flight.MOST_POINTS + 1
    assert points[0].at == 0
    assert [p.at for p in points] == sorted({p.at for p in points})
    assert (min(p.least for p in points) == 1) == (looks_made > 700)


def test_a_moment_without_any_is_remembered_after_its_point_is_left_out() -> None:
    points: list[Point] = []
    for k in range(300):
        there = 0 if k == 41 else 5
        points = in_flight.remember(points, Point(float(k), there, 0, there), 1e9)
    assert 41.0 not in [p.at for p in points]
    assert 150 < in_flight.oldest(points).age_s <= 299 - 41


def test_without_points_nothing_is_known() -> None:
    assert in_flight.oldest([]) == (0.0, 0.0)
    assert in_flight.most_older([], 1.0) is None


@pytest.mark.parametrize("limits", [{"max_regression": "200%"}, {"max_regression": "50%"}])
def test_detectable_is_no_bar_to_it(limits: dict[str, str]) -> None:
    """What it has to have found is a share of requests, not a ratio of times."""
    found = registry.undecidable(spec("dispatched_vs_finished", **limits), context(detectable=0.5))
    assert found is None

"""Step times of equal batches, canary against the concurrent baseline: (A), summed over buckets.

Within one captured bucket both arms compute the same number of tokens, whatever their share of the
traffic. If a step of the canary takes at most 1+r times as long, then P(C > (1+r)e) ≤ P(B > e) at
every edge e; the edge is chosen from the baseline's past, where few of its steps are slower, so
that a slower canary exceeds it many times as often. Likewise for a pass, P(C > (1+m)e) ≥ P(B > e)
is what a canary slower by m would do; there the edge has most of the baseline's steps above it.

L_ρ is summed over the buckets before the mean over ρ is taken: all of them speak of one engine.
Limits: edges are compared, so that what lies between them is seen from (1+r)·e/e' on (4.9 % more
with the probe's); dependence of steps on each other is assumed or learnt, φ.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from canaryctl.gates.base import State
from canaryctl.gates.readings import Buckets, align
from canaryctl.gates.rules.standing import SUSPECT, Bars, Standing
from canaryctl.gates.stats import edges, lr, mixture, planner
from canaryctl.gates.stats.counts import Counts
from canaryctl.gates.stats.edges import TOLERANCE, exceedances
from canaryctl.gates.wording import percent, whole

SLOW_SHARE = 0.1
"""The edge that a slower canary exceeds is the lowest that at most so many of the baseline's steps
do."""
LEARN_STEPS = 100  # of the baseline in a bucket, before anything is judged there
COVERED = 0.5  # the least share of the canary's steps that a pass may speak of
RARE = 0.005
"""The least share of slow steps of the baseline that exposure is planned for."""

Sparse = dict[str, int]
"""Observations by the index of their edge, not cumulative."""


class Question(NamedTuple):
    """Indices into the edges: the baseline's steps beyond ``slow`` against the canary's beyond
    ``slow_by``, for a failure; ``most`` and ``most_by`` for a pass. None: the edges do not reach
    so far."""

    slow: int | None
    slow_by: int | None
    most: int | None
    most_by: int | None


@dataclass(frozen=True, slots=True)
class BucketSpeed:
    """``tolerance``, ``margin``: ratios. ``phi``: steps that are counted as one."""

    tolerance: float
    margin: float
    phi: float
    bars: Bars

    def start(self) -> State:
        return {
            "fail": [0.0] * len(lr.COUNT_GRID),
            "starts": [],
            "pass": [0.0] * len(lr.PASS_GRID),
            "passed": False,
            "origin": None,
            "edges": [],
            "buckets": {},  # bucket → [canary's, baseline's] observations, Sparse
            "compared": [0, 0],  # steps of canary and baseline that were judged
            "all": 0,  # steps of the canary
            "slow": [0.0, 0.0],  # expected of the baseline and of a canary slower by detectable
        }

    def look(
        self,
        state: State,
        at: float,
        canary: Mapping[str, Buckets],
        baseline: Mapping[str, Buckets],
        *,
        steps: int,
    ) -> State:
        """Histograms by captured bucket; ``steps``: all of the canary's, eager ones as well."""
        origin = at if state["origin"] is None else state["origin"]
        state = {
            **state,
            "origin": origin,
            "starts": mixture.take_starts(state["starts"], state["fail"], at - origin),
            "all": state["all"] + steps,
        }
        for bucket in sorted({*canary, *baseline}):
            state = self._bucket(state, bucket, canary.get(bucket), baseline.get(bucket))
        passed = mixture.log_mean_exp(state["pass"]) >= self.bars.log_pass
        return {**state, "passed": state["passed"] or passed}

    def _bucket(
        self, state: State, bucket: str, canary: Buckets | None, baseline: Buckets | None
    ) -> State:
        if canary is not None and baseline is not None:
            canary, baseline = align(canary, baseline)
        known = canary or baseline
        if known is None:
            return state
        if known.finite != state["edges"]:
            state = {**state, "edges": known.finite, "buckets": {}}
        before: list[Sparse] = state["buckets"].get(bucket, [{}, {}])
        if canary is not None and baseline is not None:
            state = self._judge(state, before[1], canary, baseline)
        after = [_added(before[0], canary), _added(before[1], baseline)]
        return {**state, "buckets": {**state["buckets"], bucket: after}}

    def _judge(self, state: State, known: Sparse, canary: Buckets, baseline: Buckets) -> State:
        past = _cumulative(known, len(canary.edges))
        if past[-1] < LEARN_STEPS:
            return state
        asked = self.question(canary.edges, past)
        judged = {
            **state,
            "compared": [
                state["compared"][0] + canary.count,
                state["compared"][1] + baseline.count,
            ],
        }
        if asked.slow is not None and asked.slow_by is not None:
            counts = _counts(canary, baseline, asked.slow_by, asked.slow)
            judged["fail"] = lr.update(state["fail"], lr.COUNT_GRID, counts, phi=self.phi)
            reached = canary.edges[asked.slow_by] / (1 + self.bars.detectable)
            judged["slow"] = [
                state["slow"][0] + canary.count * exceedances(past, asked.slow) / past[-1],
                state["slow"][1] + canary.count * edges.share_above(canary.edges, past, reached),
            ]
        if asked.most is not None and asked.most_by is not None:
            counts = _counts(canary, baseline, asked.most_by, asked.most)
            judged["pass"] = lr.update(state["pass"], lr.PASS_GRID, counts, phi=self.phi)
        return judged

    def question(self, bounds: Sequence[float], past: Sequence[int]) -> Question:
        """At which edges a bucket is judged whose baseline took ``past`` (cumulative) so far."""
        finite = len(bounds) - 1
        few = (1 - SLOW_SHARE) * past[-1]
        slow: int | None = bisect_left(past, few, 0, finite)
        slow_by: int | None = None
        if slow is not None and slow < finite and bounds[slow] > 0:
            reach = (1 + self.tolerance) * bounds[slow] * (1 - TOLERANCE)
            slow_by = bisect_left(bounds, reach, slow + 1)
        most = bisect_right(past, past[-1] / 2, 0, finite) - 1
        most_by: int | None = None
        if most >= 0 and bounds[most] > 0:
            margin = max(self.margin, self.tolerance)
            reach = (1 + margin) * bounds[most] * (1 + TOLERANCE)
            most_by = bisect_right(bounds, reach, most, finite) - 1
        return Question(
            slow,
            slow_by if slow_by is not None and slow_by < finite else None,
            most if most >= 0 else None,
            most_by,
        )

    def coverage(self, state: State) -> float:
        """The share of the canary's steps that were compared."""
        return float(state["compared"][0] / state["all"]) if state["all"] else 0.0

    def medians(self, state: State) -> dict[str, tuple[int, float, float]]:
        """Bucket → (canary steps, its median and the baseline's, seconds), where both have one."""
        bounds = [*state["edges"], float("inf")]
        found: dict[str, tuple[int, float, float]] = {}
        for bucket, (canary, baseline) in state["buckets"].items():
            ours, theirs = _cumulative(canary, len(bounds)), _cumulative(baseline, len(bounds))
            c, b = edges.quantile(bounds, ours, 0.5), edges.quantile(bounds, theirs, 0.5)
            if c is not None and b:  # a median of nothing, or of no time, compares with nothing
                found[bucket] = (ours[-1], c, b)
        return found

    def standing(self, state: State) -> Standing:
        log_fail = mixture.log_e_late(state["fail"], state["starts"])
        covered = self.coverage(state)
        needed = self._needed(state)
        enough = needed is not None and state["compared"][0] >= needed and covered >= COVERED
        suspected = self.bars.suspects(log_fail)
        return Standing(
            failed=log_fail >= self.bars.log_fail,
            passed=state["passed"] and covered >= COVERED,
            no_harm=enough and not suspected,
            claim=f"compared in equal buckets: {percent(covered)} of {state['all']} canary steps",
            waits=SUSPECT if enough and suspected else self._waits(state, covered, needed),
            needed=needed,
            details={
                "coverage": covered,
                "phi": self.phi,
                "log_e_fail": log_fail,
                "log_e_pass": mixture.log_mean_exp(state["pass"]),
                "log_fail_at": self.bars.log_fail,
                "log_pass_at": self.bars.log_pass,
            },
        )

    def _needed(self, state: State) -> int | None:
        """Canary steps after which one slower by ``detectable`` would have failed."""
        n_c, n_b = state["compared"]
        if n_c <= 0 or n_b <= 0:
            return None
        rate = max(state["slow"][0] / n_c, RARE)
        units = planner.requests_needed(
            rho=state["slow"][1] / n_c / rate,
            share=n_c / (n_c + n_b),
            s=rate,
            climb=planner.climb_to_fail(self.bars.log_fail),
            z=planner.Z90,
            phi=self.phi,
        )
        return None if units is None or state["slow"][1] / n_c <= rate else whole(units)

    def _waits(self, state: State, covered: float, needed: int | None) -> str:
        if not state["all"]:
            return "no decode step of the canary was timed yet"
        slower = f"steps slower by {percent(self.bars.detectable)}"
        if not state["compared"][0]:
            return (
                f"no bucket has both steps of the canary and {LEARN_STEPS} earlier ones of the "
                "baseline"
            )
        if covered < COVERED:
            return f"at least {percent(COVERED)} of the steps have to be comparable"
        if needed is None:
            return f"between the engine's edges {slower} cannot be told"
        if state["compared"][0] >= needed:
            return f"{slower} would have been found with 90 % power"
        return f"to have found {slower} takes about {needed} canary steps in all"


def _counts(canary: Buckets, baseline: Buckets, ours: int, theirs: int) -> Counts:
    return Counts(
        exceedances(canary.cumulative, ours),
        exceedances(baseline.cumulative, theirs),
        canary.count,
        baseline.count,
    )


def _added(known: Sparse, more: Buckets | None) -> Sparse:
    if more is None:
        return known
    found, before = dict(known), 0
    for index, count in enumerate(more.cumulative):
        if count > before:
            found[str(index)] = found.get(str(index), 0) + count - before
        before = count
    return found


def _cumulative(known: Sparse, length: int) -> list[int]:
    total, found = 0, []
    for index in range(length):
        total += known.get(str(index), 0)
        found.append(total)
    return found

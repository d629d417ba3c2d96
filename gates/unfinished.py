"""``dispatched_vs_finished``: requests that were sent and do not end.

They never reach a histogram, and ``/health`` says nothing of them: an engine may answer all that
it answers quickly and hold the rest for ever. What was sent is what ended and what more is in
flight. ``max_seconds``: how old a request in flight may be, by what the numbers prove.
``max_regression``: how much more often requests may pile up than in the baseline, at equal load.

A fixed age that the baseline's requests reach as well is no fault of the canary's: long
generations are long on both sides.
"""

import math
from dataclasses import dataclass
from typing import Any

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.needs import UNSEEN, Forecast, StepTraffic, fold
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import each_series, histogram, told
from canaryctl.gates.records import settle, settled
from canaryctl.gates.rules import expected_flow, standing
from canaryctl.gates.rules.pile_up import Flow, PileUp
from canaryctl.gates.rules.standing import Bars, Standing
from canaryctl.gates.samples import ArmWindow, Histogram, Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.stats import edges, in_flight
from canaryctl.gates.stats.in_flight import Oldest, Point
from canaryctl.gates.wording import percent, plural, seconds

DISPATCHED_VS_FINISHED = "dispatched_vs_finished"

SHOWN_SHARE = 0.01
"""A pass of ``max_seconds`` leaves at most so many of the requests that ended in doubt."""

_HORIZON_S = 3600.0
_STARTED_OVER = ("reset", "restarted")


@dataclass(frozen=True, slots=True)
class _Reading:
    """``flow``: of the whole arm, with each instance's track after this look. ``where``: the
    instance that holds the oldest. ``lasts_s``: the p99 of its requests that ended, if any."""

    flow: Flow
    oldest: Oldest
    where: str
    span_s: float
    lasts_s: float


class UnfinishedGate:
    """Little's law and the age of what is in flight."""

    hard = False

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        self.spec = spec
        tolerance = spec.max_regression if context.has_baseline else None
        bars = Bars.of(spec, context, rules=1)  # an age is proven, and spends no α
        self._piles = None if tolerance is None else PileUp(tolerance, bars)
        self._compares = context.has_baseline

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({Signal.RUNNING, Signal.WAITING, Signal.REQUESTS, Signal.E2E})

    def start(self) -> State:
        return {
            "failed": None,
            "looks": 0,
            "canary": {},
            "baseline": {},
            "sent": 0.0,
            "ended": 0.0,
            "oldest": [0.0, 0.0],  # now, of canary and baseline, in seconds
            "baseline_oldest": 0.0,  # of the whole release
            "piles": self._piles.start() if self._piles else None,
        }

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        canary = self._read(state["canary"], look.canary, "canary")
        baseline = (
            self._read(state["baseline"], look.baseline, "baseline") if self._compares else None
        )
        missing = next((m for m in (canary, baseline) if isinstance(m, Missing)), None)
        if isinstance(canary, Missing):
            state = {**state, "canary": _without(state["canary"], look.canary)}
        if isinstance(baseline, Missing):
            state = {**state, "baseline": _without(state["baseline"], look.baseline)}
        if isinstance(baseline, _Reading):
            state = {
                **state,
                "baseline": baseline.flow.tracks,
                "baseline_oldest": max(state["baseline_oldest"], baseline.oldest.age_s),
                "oldest": [state["oldest"][0], baseline.oldest.age_s],
            }
        held = ""
        if isinstance(canary, _Reading):
            held = self._held(canary)
            state = self._count(state, look, canary, baseline)
        result = self._result(state, look, held, missing)
        return settle(state, result), result

    def forecast(self, past: ArmWindow | None, traffic: StepTraffic) -> Forecast:
        """See :class:`~canaryctl.gates.needs.Forecasting`."""
        seen = Missing(UNSEEN) if past is None else histogram(past, Signal.E2E, "baseline")
        rules = []
        if self.spec.max_seconds is not None:
            rules.append(expected_flow.age(self.spec.max_seconds, SHOWN_SHARE, seen, traffic))
        if self._piles is not None:
            rules.append(expected_flow.pile_up(self._piles, seen, traffic))
        return fold(
            rules,
            traffic,
            unit="requests",
            per_request=1.0,
            min_samples=self.spec.min_samples or 1,
        )

    def _count(
        self, state: State, look: Look, canary: _Reading, baseline: _Reading | Missing | None
    ) -> State:
        counted = {
            **state,
            "looks": state["looks"] + 1,
            "canary": canary.flow.tracks,
            "sent": state["sent"] + canary.flow.sent,
            "ended": state["ended"] + canary.flow.ended,
            "oldest": [canary.oldest.age_s, state["oldest"][1]],
        }
        if self._piles is None:
            return counted
        if look.unequal_load is not None:  # how many are in flight depends on the load
            counted["piles"] = self._piles.unequal(state["piles"])
        elif isinstance(baseline, _Reading):
            counted["piles"] = self._piles.look(
                state["piles"],
                look.at,
                canary.flow,
                baseline.flow,
                span_s=canary.span_s,
                lasts_s=max(baseline.lasts_s, baseline.oldest.age_s),
                weight=look.weight,
            )
        return counted

    def _held(self, canary: _Reading) -> str:
        age, requests = canary.oldest.age_s, canary.oldest.requests
        return (
            f"{plural(round(requests), 'request')} of {canary.where} in flight for {seconds(age)}"
        )

    def _age(self, state: State, held: str) -> Standing:
        """Against ``max_seconds``."""
        limit = self.spec.max_seconds or 0.0
        age = state["oldest"][0]
        shown = f"at least {held} or longer" if age > 0 else "no request in flight is known to wait"
        claim = f"{shown}; at most {seconds(limit)} are allowed"
        if age > limit:
            if state["baseline_oldest"] <= limit:
                return Standing(failed=True, claim=claim)
            theirs = seconds(state["baseline_oldest"])
            return Standing(claim=claim, waits=f"the baseline's are in flight as long: {theirs}")
        left = [in_flight.most_older(track, limit) for track in _tracks(state["canary"])]
        known = [most for most in left if most is not None]
        if not left or len(known) < len(left):
            return Standing(claim=claim, waits=f"the canary was not watched for {seconds(limit)}")
        most = sum(known)
        passed = most <= SHOWN_SHARE * state["ended"]
        doubt = f"of {state['sent']:.0f} requests sent at most {most:.0f} are older"
        return Standing(
            passed=passed,
            no_harm=passed,
            claim=f"{doubt}; at most {seconds(limit)} are allowed",
            waits=""
            if passed
            else f"until at most {percent(SHOWN_SHARE)} of those that ended can be: either "
            f"{most / SHOWN_SHARE:.0f} have to end (so far {state['ended']:.0f}), or fewer be in "
            "flight for a moment",
        )

    def _standings(self, state: State, held: str) -> list[Standing]:
        found = [] if self.spec.max_seconds is None else [self._age(state, held)]
        if self._piles is not None:
            found.append(self._piles.standing(state["piles"]))
        return found

    def _result(self, state: State, look: Look, held: str, missing: Missing | None) -> GateResult:
        standings = self._standings(state, held)
        enough = state["sent"] >= (self.spec.min_samples or 1)
        outcome, no_harm = standing.judge(standings, enough=enough, missing=missing)
        return GateResult(
            name=self.spec.name,
            outcome=outcome,
            reason=self._reason(state, look, outcome, standings, missing),
            value=state["oldest"][0],
            baseline=state["oldest"][1] if self._compares else None,
            limit=self.spec.max_seconds,
            samples=max(0, round(state["sent"])),
            needed=standing.needed(standings),
            no_harm=no_harm,
            valid_looks=state["looks"],
            details={
                "sent": state["sent"],
                "ended": state["ended"],
                "rules": [dict(s.details) for s in standings],
            },
        )

    def _reason(
        self,
        state: State,
        look: Look,
        outcome: Outcome,
        standings: list[Standing],
        missing: Missing | None,
    ) -> str:
        if not standings:
            return "there is no baseline, so that max_regression cannot be judged"
        if outcome is Outcome.FAILED:
            broken = next(s for s in standings if s.failed)
            sure = f"; {standing.chance(self.spec.alpha)}" if broken.details else ""
            return f"requests were sent and do not end: {broken.claim}{sure}"
        if missing is not None:
            return missing.reason
        claims = "; ".join(s.claim for s in standings)
        if outcome is Outcome.PASSED:
            return claims
        waits = "; ".join(s.waits for s in standings if s.waits)
        if state["sent"] < (self.spec.min_samples or 1):
            waits = f"at least {plural(self.spec.min_samples or 1, 'request')} have to be sent"
        unequal = look.unequal_load if self._piles is not None else None
        return f"{f'unequal load: {unequal}; ' if unequal else ''}{claims}; {waits}"

    def _read(self, before: dict[str, Any], arm: ArmWindow | None, who: str) -> _Reading | Missing:
        """The arm's flow in this look, and what is known of its requests' ages after it."""
        numbers: dict[Signal, dict[str, float]] = {}
        for signal in (Signal.RUNNING, Signal.WAITING, Signal.REQUESTS):
            found = each_series(arm, signal, who)
            if isinstance(found, Missing):
                return found
            numbers[signal] = {name: value.total for name, value in found}
            odd = [n for n in numbers[signal].values() if not (math.isfinite(n) and n >= 0)]
            if odd:
                return Missing(f"{signal.value} of the {who} cannot be used: it is no count")
        if arm is None:
            return Missing(f"there is no {who} to read")
        tracks = _kept(before, arm)
        latencies = {n: v for n, v in told(arm, Signal.E2E) if isinstance(v, Histogram)}
        sent = ended = 0.0
        oldest, where = Oldest(0.0, 0.0), ""
        for delta in arm.deltas:
            name = delta.instance
            now = numbers[Signal.RUNNING][name] + numbers[Signal.WAITING][name]
            # One with several sequences is one to HTTP and several to the engine, as in flight;
            # one that was aborted is none to the latter.
            done = max(
                numbers[Signal.REQUESTS][name],
                float(latencies[name].count) if name in latencies else 0.0,
            )
            last = tracks[name][-1] if tracks.get(name) else Point(0.0, now, 0.0, now)
            new = Point(last.at + delta.span_s, now, last.ended + done, now)
            tracks[name] = in_flight.remember(tracks.get(name, []), new, _HORIZON_S)
            sent += done + now - last.in_flight
            ended += done
            age = in_flight.oldest(tracks[name])
            if age.age_s > oldest.age_s or not where:
                oldest, where = age, name
        return _Reading(
            Flow(max(0.0, sent), ended, tracks),
            oldest,
            where,
            sum(delta.span_s for delta in arm.deltas) / len(arm.deltas),
            _lasts_s(arm, who),
        )


def _kept(before: dict[str, Any], arm: ArmWindow) -> dict[str, list[Point]]:
    """The tracks of instances that are still there and did not start over."""
    there = {delta.instance for delta in arm.deltas} | {
        name for name, why in arm.skipped.items() if not any(word in why for word in _STARTED_OVER)
    }
    return {name: _points(track) for name, track in before.items() if name in there}


def _without(before: dict[str, Any], arm: ArmWindow | None) -> dict[str, list[Point]]:
    """The tracks after a look that could not be read: what ended in it is known of none that has
    a difference, while those without one are read over the gap later."""
    if arm is None:
        return {}
    read = {delta.instance for delta in arm.deltas}
    return {name: track for name, track in _kept(before, arm).items() if name not in read}


def _lasts_s(arm: ArmWindow, who: str) -> float:
    """Seconds that the requests which ended in this look took, the longest hundredth left out."""
    latency = histogram(arm, Signal.E2E, who)
    if isinstance(latency, Missing):
        return 0.0
    return edges.quantile(latency.edges, latency.cumulative, 0.99) or 0.0


def _points(track: list[Any]) -> list[Point]:
    return [Point(*point) for point in track]


def _tracks(tracks: dict[str, Any]) -> list[list[Point]]:
    return [_points(track) for track in tracks.values()]

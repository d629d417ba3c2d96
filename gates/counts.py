"""Gates on counted events against a fixed share (``max_ratio``), the baseline
(``max_regression``), or both; and ``error_rate``, the failed requests among all.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.needs import UNSEEN, Forecast, StepTraffic, fold
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import per_request, series
from canaryctl.gates.records import settle, settled
from canaryctl.gates.rules import expected, standing
from canaryctl.gates.rules.rate_regression import RARE, RateRegression
from canaryctl.gates.rules.share_limit import ShareLimit
from canaryctl.gates.rules.standing import Bars, Standing
from canaryctl.gates.samples import ArmWindow, Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.stats.counts import Counts
from canaryctl.gates.wording import percent

ERROR_RATE = "error_rate"

PHI_REQUESTS = 1.0  # whether one request fails says nothing of another, under the null
PHI_STEPS = 64.0
"""Steps depend on each other: a batch that outgrew the grid stays so until requests end. For a
batch of B requests of T tokens that takes about T/B steps, 64 being long for it (1,024 tokens at
batch 16); so 64 successive steps are counted as one observation."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Events among observations of one arm in one look. ``by_reason`` adds up to ``events``.

    ``doubtful``: observations that may be events or none at all: they count against passing
    and never for failing. ``aside``: what is shown and not judged, by name.
    """

    events: float
    observations: float
    by_reason: Mapping[str, float] = field(default_factory=dict)
    doubtful: float = 0.0
    aside: Mapping[str, float] = field(default_factory=dict)


class CountGate(ABC):
    """Events per observation. A subclass says what they are, and in what unit a limit and a
    result are shown where that is not the share of events itself."""

    hard = False
    _title: str
    _unit: str
    _subject: str
    _phi: float
    _reasons: Mapping[str, str] = {}  # of an event, as the engine says it → in words
    _per_request: float | None = None  # observations, where they follow from what they are

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        self.spec = spec
        self._limit: ShareLimit | None = None
        self._regression: RateRegression | None = None
        tolerance = spec.max_regression if context.has_baseline else None
        most = self._most()
        rules = (tolerance is not None) + (most is not None)
        bars = Bars.of(spec, context, rules=rules)
        if most is not None:
            self._limit = ShareLimit(most, self._phi, bars, self._subject, self._unit)
        if tolerance is not None:
            self._regression = RateRegression(
                tolerance,
                spec.margin,
                self._phi,
                bars,
                self._subject,
                self._unit,
                rare=most or RARE,
            )

    @abstractmethod
    def needs(self) -> frozenset[AnySignal]: ...

    @abstractmethod
    def _tally(self, look: Look, arm: ArmWindow | None, who: str) -> Tally | Missing: ...

    def _most(self) -> float | None:
        """The share of events that is allowed; None: there is no fixed limit."""
        return self.spec.max_ratio

    def _measure(self, share: float) -> float:
        """A share of events in the unit of the gate's limit."""
        return share

    def _heading(self, state: State) -> str:
        """What a reason begins with."""
        del state
        return self._title

    def _notes(self, state: State) -> str:
        """What a reason ends with, of what is not judged."""
        del state
        return ""

    def start(self) -> State:
        return {
            "failed": None,
            "looks": 0,
            "samples": 0.0,
            "events": 0.0,
            "by_reason": {},
            "doubtful": 0.0,
            "aside": {},
            "limit": self._limit.start() if self._limit else None,
            "regression": self._regression.start() if self._regression else None,
        }

    def _details(self, state: State) -> dict[str, Any]:
        """What a result tells besides, for those who want to see more."""
        return {"aside": state["aside"]}

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        canary = self._tally(look, look.canary, "canary")
        baseline = (
            None if self._regression is None else self._tally(look, look.baseline, "baseline")
        )
        missing = next((m for m in (canary, baseline) if isinstance(m, Missing)), None)
        if isinstance(canary, Tally):
            other = baseline if isinstance(baseline, Tally) else None
            state = self._count(state, look.at, canary, other)
        result = self._result(state, missing)
        return settle(state, result), result

    def _count(self, state: State, at: float, canary: Tally, baseline: Tally | None) -> State:
        counted = {
            **state,
            "looks": state["looks"] + 1,
            "samples": state["samples"] + canary.observations,
            "events": state["events"] + canary.events,
            "doubtful": state["doubtful"] + canary.doubtful,
            "by_reason": _added(state["by_reason"], canary.by_reason),
            "aside": _added(state["aside"], canary.aside),
        }
        if self._limit is not None:
            counted["limit"] = self._limit.look(
                state["limit"],
                at,
                k_fail=canary.events,
                k_pass=canary.events + canary.doubtful,
                n=canary.observations + canary.doubtful,
            )
        if self._regression is not None and baseline is not None:
            counted["regression"] = self._regression.look(
                state["regression"],
                at,
                Counts(canary.events, baseline.events, canary.observations, baseline.observations),
            )
        return counted

    def forecast(self, past: ArmWindow | None, traffic: StepTraffic) -> Forecast:
        """See :class:`~canaryctl.gates.needs.Forecasting`."""
        seen: Tally | Missing = Missing(UNSEEN)
        if past is not None:
            seen = self._tally(Look(0.0, past, past), past, "baseline")
        share: float | Missing = Missing(f"the baseline has shown no {self._unit} yet")
        if isinstance(seen, Missing):
            share = seen
        elif seen.observations > 0:
            share = seen.events / seen.observations
        rules = []
        if self._limit is not None:
            rules.append(expected.share_limit(self._limit, share))
        if self._regression is not None:
            rules.append(expected.rate_regression(self._regression, share, share=traffic.share))
        each = None if isinstance(seen, Missing) else per_request(past, seen.observations)
        return fold(
            rules,
            traffic,
            unit=self._unit,
            per_request=self._per_request if each is None else each,
            min_samples=self.spec.min_samples or 1,
        )

    def _standings(self, state: State) -> list[Standing]:
        found = []
        if self._limit is not None:
            found.append(self._limit.standing(state["limit"]))
        if self._regression is not None:
            found.append(self._regression.standing(state["regression"]))
        return found

    def _result(self, state: State, missing: Missing | None) -> GateResult:
        standings = self._standings(state)
        enough = state["samples"] >= (self.spec.min_samples or 1)
        outcome, no_harm = standing.judge(standings, enough=enough, missing=missing)
        share = state["events"] / state["samples"] if state["samples"] else None
        baseline = None
        if self._regression is not None and state["regression"]["sums"][3]:
            _, k_b, _, n_b = state["regression"]["sums"]
            baseline = k_b / n_b
        return GateResult(
            name=self.spec.name,
            outcome=outcome,
            reason=self._reason(state, outcome, standings, missing),
            value=None if share is None else self._measure(share),
            baseline=None if baseline is None else self._measure(baseline),
            limit=None if (most := self._most()) is None else self._measure(most),
            samples=int(state["samples"]),
            needed=standing.needed(standings),
            no_harm=no_harm,
            valid_looks=state["looks"],
            details={
                "events": state["events"],
                "doubtful": state["doubtful"],
                "by_reason": state["by_reason"],
                "rules": [dict(s.details) for s in standings],
                **self._details(state),
            },
        )

    def _reason(
        self,
        state: State,
        outcome: Outcome,
        standings: Sequence[Standing],
        missing: Missing | None,
    ) -> str:
        title = self._heading(state)
        if not standings:
            return f"{title}: there is no baseline, so that max_regression cannot be judged"
        why = self._why(state) + self._notes(state)
        if outcome is Outcome.FAILED:
            broken = next(s for s in standings if s.failed)
            return f"{title}: {broken.claim}{why}; {standing.chance(self.spec.alpha)}"
        if missing is not None:
            return f"{title}: {missing.reason}"
        claims = " and ".join(s.claim for s in standings)
        if outcome is Outcome.PASSED:
            sure = percent(1 - self.spec.beta)
            return f"{title}: {claims}{why}; shown at confidence {sure}"
        waits = "; ".join(s.waits for s in standings if s.waits)
        if state["samples"] < (self.spec.min_samples or 1):
            waits = f"at least {self.spec.min_samples or 1} {self._unit} are asked for"
        return f"{title}: {claims}{why}; {waits}"

    def _why(self, state: State) -> str:
        parts = [
            f"{count:.0f} {self._reasons.get(reason, reason)}"
            for reason, count in state["by_reason"].items()
            if count
        ]
        return f" ({', '.join(parts)})" if parts else ""


def _added(sums: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {name: sums.get(name, 0.0) + more.get(name, 0.0) for name in sorted({*sums, *more})}


def tally_of(
    arm: ArmWindow | None, who: str, *, events: AnySignal, observations: AnySignal
) -> Tally | Missing:
    """Of two counters."""
    counted, among = series(arm, events, who), series(arm, observations, who)
    if isinstance(counted, Missing):
        return counted
    if isinstance(among, Missing):
        return among
    total = sum(counted.values())
    # An engine may count an event a moment before what it is an event of: a failure before the
    # request that it ends.
    return Tally(total, max(total, sum(among.values())))


class ErrorRateGate(CountGate):
    """Requests that were answered 5xx or ended with an error."""

    _title, _unit, _subject, _phi = "Errors", "requests", "failed", PHI_REQUESTS
    _per_request = 1.0

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({Signal.REQUESTS, Signal.ERRORS})

    def _tally(self, look: Look, arm: ArmWindow | None, who: str) -> Tally | Missing:
        del look
        return tally_of(arm, who, events=Signal.ERRORS, observations=Signal.REQUESTS)

"""Gates on counted events: ``error_rate`` (failed requests) and ``graph_fallback`` (pure-decode
steps that ran eager), against a fixed share (``max_ratio``), the baseline
(``max_regression``), or both.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import series
from canaryctl.gates.records import settle, settled
from canaryctl.gates.rules import standing
from canaryctl.gates.rules.rate_regression import RARE, RateRegression
from canaryctl.gates.rules.share_limit import ShareLimit
from canaryctl.gates.rules.standing import Bars, Standing
from canaryctl.gates.samples import ArmWindow, Labels, Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.stats.counts import Counts
from canaryctl.gates.wording import percent

ERROR_RATE, GRAPH_FALLBACK = "error_rate", "graph_fallback"
NAMES = (ERROR_RATE, GRAPH_FALLBACK)

PHI_REQUESTS = 1.0  # whether one request fails says nothing of another, under the null
PHI_STEPS = 64.0
"""Steps depend on each other: a batch that outgrew the grid stays so until requests end. For a
batch of B requests of T tokens that takes about T/B steps, 64 being long for it (1,024 tokens at
batch 16); so 64 successive steps are counted as one observation."""

UNKNOWN, BEYOND_GRID = "unknown", "beyond_grid"
EAGER = "NONE"
REASONS: Mapping[str, str] = {
    BEYOND_GRID: "beyond the grid",
    "downgraded": "downgraded by the engine",
    UNKNOWN: "for a reason that the engine does not give",
}


@dataclass(frozen=True, slots=True)
class Tally:
    """Events among observations of one arm in one look. ``by_reason`` adds up to ``events``.

    ``doubtful``: observations that may be events or none at all: they count against passing
    and never for failing.
    """

    events: float
    observations: float
    by_reason: Mapping[str, float] = field(default_factory=dict)
    doubtful: float = 0.0


class CountGate(ABC):
    """Events per observation. A subclass says what they are."""

    hard = False
    _title: str
    _unit: str
    _subject: str
    _phi: float

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        self.spec = spec
        self._limit: ShareLimit | None = None
        self._regression: RateRegression | None = None
        tolerance = spec.max_regression if context.has_baseline else None
        rules = (tolerance is not None) + (spec.max_ratio is not None)
        bars = Bars.of(spec, context, rules=rules)
        if spec.max_ratio is not None:
            self._limit = ShareLimit(spec.max_ratio, self._phi, bars, self._subject, self._unit)
        if tolerance is not None:
            self._regression = RateRegression(
                tolerance,
                spec.margin,
                self._phi,
                bars,
                self._subject,
                self._unit,
                rare=spec.max_ratio or RARE,
            )

    @abstractmethod
    def needs(self) -> frozenset[AnySignal]: ...

    @abstractmethod
    def _tally(self, arm: ArmWindow | None, who: str) -> Tally | Missing: ...

    def start(self) -> State:
        return {
            "failed": None,
            "looks": 0,
            "samples": 0.0,
            "events": 0.0,
            "by_reason": {},
            "doubtful": 0.0,
            "limit": self._limit.start() if self._limit else None,
            "regression": self._regression.start() if self._regression else None,
        }

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        canary = self._tally(look.canary, "canary")
        baseline = None if self._regression is None else self._tally(look.baseline, "baseline")
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
            "by_reason": {
                reason: state["by_reason"].get(reason, 0.0) + canary.by_reason.get(reason, 0.0)
                for reason in sorted({*state["by_reason"], *canary.by_reason})
            },
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
            value=share,
            baseline=baseline,
            limit=self.spec.max_ratio,
            samples=int(state["samples"]),
            needed=standing.needed(standings),
            no_harm=no_harm,
            valid_looks=state["looks"],
            details={
                "events": state["events"],
                "doubtful": state["doubtful"],
                "by_reason": state["by_reason"],
                "rules": [dict(s.details) for s in standings],
            },
        )

    def _reason(
        self,
        state: State,
        outcome: Outcome,
        standings: Sequence[Standing],
        missing: Missing | None,
    ) -> str:
        if not standings:
            return f"{self._title}: there is no baseline, so that max_regression cannot be judged"
        why = self._why(state)
        if outcome is Outcome.FAILED:
            broken = next(s for s in standings if s.failed)
            return f"{self._title}: {broken.claim}{why}; {standing.chance(self.spec.alpha)}"
        if missing is not None:
            return f"{self._title}: {missing.reason}"
        claims = " and ".join(s.claim for s in standings)
        if outcome is Outcome.PASSED:
            sure = percent(1 - self.spec.beta)
            return f"{self._title}: {claims}{why}; shown at confidence {sure}"
        waits = "; ".join(s.waits for s in standings if s.waits)
        if state["samples"] < (self.spec.min_samples or 1):
            waits = f"at least {self.spec.min_samples or 1} {self._unit} are asked for"
        return f"{self._title}: {claims}{why}; {waits}"

    @staticmethod
    def _why(state: State) -> str:
        parts = [
            f"{count:.0f} {REASONS.get(reason, reason)}"
            for reason, count in state["by_reason"].items()
            if count
        ]
        return f" ({', '.join(parts)})" if parts else ""


class ErrorRateGate(CountGate):
    """Requests that were answered 5xx or ended with an error."""

    _title, _unit, _subject, _phi = "Errors", "requests", "failed", PHI_REQUESTS

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({Signal.REQUESTS, Signal.ERRORS})

    def _tally(self, arm: ArmWindow | None, who: str) -> Tally | Missing:
        errors, requests = series(arm, Signal.ERRORS, who), series(arm, Signal.REQUESTS, who)
        if isinstance(errors, Missing):
            return errors
        if isinstance(requests, Missing):
            return requests
        events = sum(errors.values())
        # an engine may count a failure a moment before the request that it ends
        return Tally(events, max(events, sum(requests.values())))


class GraphFallbackGate(CountGate):
    """Pure-decode engine steps that ran eager. An engine that cannot say is unknown, not zero.

    Of a step or two an engine may not be able to tell whether it was pure decode: eager ones are
    doubtful, and an engine that cannot tell of most of them cannot say at all.
    """

    _title, _unit, _subject, _phi = "Graph fallback", "pure-decode steps", "ran eager", PHI_STEPS

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({Signal.STEPS})

    def _tally(self, arm: ArmWindow | None, who: str) -> Tally | Missing:
        steps = series(arm, Signal.STEPS, who)
        if isinstance(steps, Missing):
            return Missing(f"unknown: {steps.reason}")
        pure, untold, doubtful = 0.0, 0.0, 0.0
        by_reason = dict.fromkeys(REASONS, 0.0)
        for labels, count in steps.items():
            said = dict(labels)
            kind, mode = said.get("pure_decode", "").lower(), said.get("mode", "").upper()
            if kind not in ("true", "false", UNKNOWN) or not mode:
                return Missing(
                    f"unknown: the {who} counts steps without saying whether they were pure decode "
                    f"and in which mode they ran: {_named(labels)}"
                )
            if kind == UNKNOWN:
                untold += count
                doubtful += count if mode == EAGER else 0.0
            elif kind == "true":
                pure += count
                if mode == EAGER:
                    reason = said.get("reason") or UNKNOWN
                    by_reason[reason] = by_reason.get(reason, 0.0) + count
        if untold > pure:
            return Missing(
                f"unknown: of {untold:.0f} steps the {who} cannot tell whether they were pure "
                f"decode, and {pure:.0f} it says were"
            )
        return Tally(sum(by_reason.values()), pure, by_reason, doubtful)


def _named(labels: Labels) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels) or "no labels"

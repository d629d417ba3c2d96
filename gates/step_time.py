"""``step_time``: how long a decode step takes at an equal batch, against the baseline.

Compared within each captured bucket, so that unequal shares of the traffic do not matter: it is
judged at every step of a release, and finds a slower engine in few requests. It does not replace
the gates on what users see: a slow canary raises its own load, which this gate leaves out.
"""

from dataclasses import dataclass

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.counts import PHI_STEPS
from canaryctl.gates.needs import UNSEEN, Forecast, RuleForecast, StepTraffic, Target, fold
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import Buckets, histogram_set, per_request
from canaryctl.gates.records import settle, settled
from canaryctl.gates.rules import expected_steps, standing
from canaryctl.gates.rules.bucket_speed import SLOW_SHARE, BucketSpeed
from canaryctl.gates.rules.standing import Bars, Standing
from canaryctl.gates.samples import ArmWindow, Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.wording import change, percent, seconds

STEP_TIME = "step_time"
EAGER = "NONE"
_NO_BASELINE = "there is no baseline, so that max_regression cannot be judged"
_SHOWN = 3  # buckets that a reason tells of


@dataclass(frozen=True, slots=True)
class _Timed:
    """``by_bucket``: of the graphs alone. ``steps``: all, ``eager`` ones among them."""

    by_bucket: dict[str, Buckets]
    steps: int
    eager: int


class StepTimeGate:
    """Pure-decode steps that replayed a graph of the same size."""

    hard = False

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        self.spec = spec
        self._rule: BucketSpeed | None = None
        if spec.max_regression is not None and context.has_baseline:
            known = None
            if context.history is not None:
                known = context.history.dependence(Signal.STEP_TIME, 1 - SLOW_SHARE)
            phi = PHI_STEPS if known is None else known.phi_upper
            bars = Bars.of(spec, context, rules=1)
            self._rule = BucketSpeed(spec.max_regression, spec.margin, phi, bars)

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({Signal.STEP_TIME})

    def start(self) -> State:
        return {
            "failed": None,
            "looks": 0,
            "eager": 0,
            "rule": self._rule.start() if self._rule else None,
        }

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        if self._rule is None:
            return state, GateResult(
                self.spec.name, Outcome.INCONCLUSIVE, f"Step time: {_NO_BASELINE}"
            )
        canary = _timed(look.canary, "canary")
        baseline = _timed(look.baseline, "baseline")
        missing = next((m for m in (canary, baseline) if isinstance(m, Missing)), None)
        if isinstance(canary, _Timed) and isinstance(baseline, _Timed):
            state = {
                **state,
                "looks": state["looks"] + 1,
                "eager": state["eager"] + canary.eager,
                "rule": self._rule.look(
                    state["rule"],
                    look.at,
                    canary.by_bucket,
                    baseline.by_bucket,
                    steps=canary.steps,
                ),
            }
        result = self._result(state, self._rule, missing)
        return settle(state, result), result

    def forecast(self, past: ArmWindow | None, traffic: StepTraffic) -> Forecast:
        """See :class:`~canaryctl.gates.needs.Forecasting`."""
        seen: _Timed | Missing = Missing(UNSEEN)
        if past is not None:
            seen = _timed(past, "baseline")
        each = None if isinstance(seen, Missing) else per_request(past, seen.steps)
        if self._rule is None:
            rule = RuleForecast("steps of one bucket", {}, dict.fromkeys(Target, _NO_BASELINE))
        else:
            rate = traffic.requests_per_s
            rule = expected_steps.bucket_speed(
                self._rule,
                seen if isinstance(seen, Missing) else seen.by_bucket,
                0 if isinstance(seen, Missing) else seen.steps,
                share=traffic.share,
                per_look=rate * each * traffic.look_s if rate and each else None,
            )
        return fold(
            [rule],
            traffic,
            unit="steps",
            per_request=each,
            min_samples=self.spec.min_samples or 1,
        )

    def _result(self, state: State, rule: BucketSpeed, missing: Missing | None) -> GateResult:
        found = rule.standing(state["rule"])
        steps = state["rule"]["compared"][0]
        enough = steps >= (self.spec.min_samples or 1)
        outcome, no_harm = standing.judge([found], enough=enough, missing=missing)
        medians = rule.medians(state["rule"])
        value, baseline = _like_for_like(medians)
        return GateResult(
            name=self.spec.name,
            outcome=outcome,
            reason=self._reason(state, outcome, found, missing, medians),
            value=value,
            baseline=baseline,
            limit=None if baseline is None else baseline * (1 + rule.tolerance),
            samples=steps,
            needed=found.needed,
            no_harm=no_harm,
            valid_looks=state["looks"],
            details={
                **found.details,
                "eager": state["eager"],
                "by_bucket": {
                    bucket: {"steps": count, "canary": ours, "baseline": theirs}
                    for bucket, (count, ours, theirs) in medians.items()
                },
            },
        )

    def _reason(
        self,
        state: State,
        outcome: Outcome,
        found: Standing,
        missing: Missing | None,
        medians: dict[str, tuple[int, float, float]],
    ) -> str:
        said = f"{self._compared(medians)}; {found.claim}"
        if state["eager"]:
            said += f" ({state['eager']} ran eager, in no bucket)"
        if outcome is Outcome.FAILED:
            return f"{said}; {standing.chance(self.spec.alpha)}"
        if missing is not None:
            return f"Step time: {missing.reason}"
        if outcome is Outcome.PASSED:
            return f"{said}; shown at confidence {percent(1 - self.spec.beta)}"
        waits = found.waits
        if state["rule"]["compared"][0] < (self.spec.min_samples or 1):
            waits = f"{waits}; at least {self.spec.min_samples or 1} steps are asked for"
        return f"{said}; {waits}"

    def _compared(self, medians: dict[str, tuple[int, float, float]]) -> str:
        value, baseline = _like_for_like(medians)
        if value is None or baseline is None:
            return "Step time: nothing to compare yet"
        worst = sorted(medians, key=lambda name: medians[name][1] / medians[name][2], reverse=True)
        shown = ", ".join(
            f"{name}: {change(medians[name][1], medians[name][2])}" for name in worst[:_SHOWN]
        )
        return (
            f"Step time of the canary is {seconds(value)} against {seconds(baseline)} of the "
            f"baseline at equal batch ({change(value, baseline)}, allowed "
            f"+{percent(self.spec.max_regression or 0.0)}; by bucket {shown})"
        )


def _like_for_like(
    medians: dict[str, tuple[int, float, float]],
) -> tuple[float | None, float | None]:
    """Of canary and baseline, both weighted by the canary's steps."""
    total = sum(count for count, _, _ in medians.values())
    if not total:
        return None, None
    return (
        sum(count * ours for count, ours, _ in medians.values()) / total,
        sum(count * theirs for count, _, theirs in medians.values()) / total,
    )


def _timed(arm: ArmWindow | None, who: str) -> _Timed | Missing:
    found = histogram_set(arm, Signal.STEP_TIME, who)
    if isinstance(found, Missing):
        return Missing(f"unknown: {found.reason}")
    by_bucket: dict[str, Buckets] = {}
    steps = eager = 0
    for labels, one in found.items():
        said = dict(labels)
        mode, bucket = said.get("mode", "").upper(), said.get("bucket", "")
        if not mode or not bucket:
            return Missing(f"unknown: the {who} times steps without saying their mode and bucket")
        steps += one.count
        if mode == EAGER:
            eager += one.count
            continue
        other = by_bucket.get(bucket)
        if other is None:
            by_bucket[bucket] = one
        elif other.edges == one.edges:  # FULL and PIECEWISE of one size: what a batch takes
            counts = zip(other.cumulative, one.cumulative, strict=True)
            by_bucket[bucket] = Buckets(one.edges, tuple(a + b for a, b in counts))
        else:
            return Missing(f"unknown: the {who} times bucket {bucket} with different edges")
    return _Timed(by_bucket, steps, eager)

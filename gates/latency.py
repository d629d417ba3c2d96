"""``{ttft,tpot,itl,e2e,prefill}``, each also with ``_p99``, ``_p95``, ``_p90`` or ``_p50``:
a latency against the baseline (``max_regression``), against a fixed limit (``max_seconds``), or
both. With a quantile it is that one; without, all four (``rules.mixed_quantiles``), and the
limit holds for the p99 and so for all.

Which process judges is decided in the constructor alone, by the A/A history of the release.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.history import QUANTILES, SIGNALS
from canaryctl.gates.needs import Forecast, RuleForecast, StepTraffic, fold
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import Buckets, align, histogram, per_request
from canaryctl.gates.records import settle, settled
from canaryctl.gates.rules import expected, standing
from canaryctl.gates.rules.mixed_quantiles import WEIGHTS, MixedQuantiles
from canaryctl.gates.rules.quantile_limit import QuantileLimit
from canaryctl.gates.rules.quantile_regression import Method, QuantileRegression
from canaryctl.gates.rules.standing import Bars, Standing
from canaryctl.gates.samples import ArmWindow, Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.stats import edges
from canaryctl.gates.wording import change, percent, seconds

NAMES = (
    *SIGNALS,
    *(f"{signal}_{quantile}" for signal in SIGNALS for quantile in QUANTILES),
)

PHI_REQUESTS, PHI_TOKENS = 4.0, 80.0
"""Dependence assumed for absolute limits, where no history says it. Counts of slow requests vary
1.1 times as much as independent ones behind eight slots, 18 times and more behind one: an engine
that batches is of the first kind, and 4 leaves room. Token gaps of one step come together: 80
was measured (docs/gates.md)."""

PER_REQUEST = frozenset({Signal.TTFT, Signal.TPOT, Signal.E2E, Signal.PREFILL})
"""Signals of which a request makes one observation, by what they are."""

CONTRADICTED = "but the quantile as measured is worse than that: it is waited for more"

LATEST_CHUNKS = 2  # 5 to 10 minutes

Quantiles = Mapping[str, tuple[float | None, float | None]]
"""Name → the canary's and the baseline's, in seconds."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Quantiles (by name, the largest first) of one histogram of seconds; ``title`` and ``unit``:
    in words, the latter plural. ``phi``: the dependence assumed for an absolute limit."""

    signal: AnySignal
    quantiles: tuple[str, ...]
    title: str
    unit: str
    phi: float


def named(name: str) -> Asked:
    """What the gate of that name asks."""
    signal, _, quantile = name.partition("_")
    is_tokens = SIGNALS[signal] is Signal.ITL
    return Asked(
        SIGNALS[signal],
        (quantile,) if quantile else tuple(QUANTILES),
        signal.upper() if signal != "prefill" else "Prefill",
        "tokens" if is_tokens else "requests",
        PHI_TOKENS if is_tokens else PHI_REQUESTS,
    )


class LatencyGate:
    """One latency, at one quantile or at all four."""

    hard = False

    def __init__(self, spec: GateSpec, context: GateContext, asked: Asked | None = None) -> None:
        self.spec = spec
        asked = asked or named(spec.name)
        self._signal, self._names, self._title = asked.signal, asked.quantiles, asked.title
        self._unit = asked.unit
        self._past = context.history.pasts.get(self._signal) if context.history else None
        self._regression: MixedQuantiles | None = None
        self._limit: QuantileLimit | None = None
        tolerance = spec.max_regression if context.has_baseline else None
        rules = (tolerance is not None) + (spec.max_seconds is not None)
        bars = Bars.of(spec, context, rules=rules)
        if tolerance is not None:
            self._regression = self._against_baseline(tolerance, bars, context)
        if spec.max_seconds is not None:
            p = QUANTILES[self._names[0]]
            known = context.history.dependence(self._signal, p) if context.history else None
            phi = known.phi_upper if known else asked.phi
            self._limit = QuantileLimit(p, spec.max_seconds, phi, bars, self._unit)

    def _against_baseline(
        self, tolerance: float, bars: Bars, context: GateContext
    ) -> MixedQuantiles:
        weights = {name: WEIGHTS[name] if len(self._names) > 1 else 1.0 for name in self._names}
        parts = {
            name: (
                QuantileRegression(
                    p=QUANTILES[name],
                    tolerance=tolerance,
                    margin=self.spec.margin,
                    bars=replace(bars, log_fail=bars.log_fail - log(weight)),
                    method=Method.of(
                        context.history, self._signal, QUANTILES[name], context.interval_s
                    ),
                    interpolate=self.spec.interpolate,
                ),
                weight,
            )
            for name, weight in weights.items()
        }
        return MixedQuantiles(parts, tolerance, self.spec.margin, bars, self._unit)

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({self._signal})

    def start(self) -> State:
        return {
            "failed": None,
            "looks": 0,
            "samples": 0,
            "load": None,  # why it is unequal
            "weight": None,
            "unequal_looks": 0,  # in a row
            "regime_at": None,  # when the present load began: the past before it places no edges
            "edges": [],
            "canary": [],  # of the last half hour at equal load, at the edges that both have
            "baseline": [],
            "regression": self._regression.start() if self._regression else None,
            "limit": self._limit.start() if self._limit else None,
        }

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        look = look.of(self._signal)
        state = self._follow_load(state, look)
        canary = histogram(look.canary, self._signal, "canary")
        baseline = self._baseline(look)
        missing = next((m for m in (canary, baseline) if isinstance(m, Missing)), None)
        if isinstance(canary, Buckets) and not isinstance(baseline, Missing):
            state = self._count(state, look, canary, baseline)
        result = self._result(state, look, missing)
        return settle(state, result), result

    def forecast(self, past: ArmWindow | None, traffic: StepTraffic) -> Forecast:
        """See :class:`~canaryctl.gates.needs.Forecasting`."""
        seen = None if past is None else histogram(past, self._signal, "baseline")
        each = per_request(past, seen.count) if isinstance(seen, Buckets) else None
        if each is None and self._signal in PER_REQUEST:
            each = 1.0
        rules: list[RuleForecast] = []
        if self._regression is not None:
            rules += expected.quantiles(self._regression, seen, traffic, each, self._past)
        if self._limit is not None:
            rules.append(expected.quantile_limit(self._limit, seen))
        return fold(
            rules,
            traffic,
            unit=self._unit,
            per_request=each,
            min_samples=self.spec.min_samples or 1,
        )

    def _baseline(self, look: Look) -> Buckets | Missing | None:
        """None: no rule asks for it."""
        if self._regression is None:
            return None
        return histogram(look.baseline, self._signal, "baseline")

    def _follow_load(self, state: State, look: Look) -> State:
        """A block ends where the load changes; what lasted longer than a block is another regime,
        while a single uneven window is not."""
        unequal = look.unequal_load
        over = state["unequal_looks"] if unequal is None else 0
        changed = {
            **state,
            "load": unequal,
            "weight": look.weight,
            "unequal_looks": 0 if unequal is None else state["unequal_looks"] + 1,
        }
        if self._regression is None:
            return changed
        if (state["load"], state["weight"]) != (unequal, look.weight):
            changed["regression"] = self._regression.load_changed(state["regression"])
        if over > self._regression.longest_block:
            changed["regime_at"] = look.at
        return changed

    def _count(self, state: State, look: Look, canary: Buckets, baseline: Buckets | None) -> State:
        """At unequal load only one thing counts: too slow for the fixed limit is too slow at any
        load, while fast enough at less load is not."""
        equal = look.unequal_load is None
        counted = dict(state)
        if self._limit is not None:
            counted["limit"] = self._limit.look(state["limit"], look.at, canary, may_pass=equal)
        if not equal:
            return counted
        counted["looks"] = state["looks"] + 1
        counted["samples"] = state["samples"] + canary.count
        if baseline is not None:
            canary, baseline = align(canary, baseline)
        if state["edges"] != canary.finite:
            counted |= {"edges": canary.finite, "canary": [], "baseline": []}
        since = _since(state)
        if self._regression is not None and baseline is not None:
            counted["regression"] = self._regression.look(
                state["regression"],
                look.at,
                canary,
                baseline,
                edges.recall(counted["baseline"], since=since),
                self._past.cumulative
                if self._past is not None and self._past.edges == canary.edges
                else (),
            )
        for arm, buckets in (("canary", canary), ("baseline", baseline)):
            if buckets is not None:
                counted[arm] = edges.remember(
                    counted[arm], look.at, buckets.cumulative, since=since
                )
        return counted

    def _result(self, state: State, look: Look, missing: Missing | None) -> GateResult:
        standings = self._standings(state)
        enough = state["samples"] >= (self.spec.min_samples or 1)
        outcome, no_harm = standing.judge(standings, enough=enough, missing=missing)
        quantiles = self._quantiles(state)
        shown = self._reported(standings)
        value, baseline = quantiles[shown]
        # Exposure says what would have been found of a whole distribution shifted; a tail alone
        # can be as slow and cross the edges less often. What is seen overrules what was planned.
        contradicted = any(self._contradicts(*measured) for measured in quantiles.values())
        limits = [
            limit
            for limit in (
                self.spec.max_seconds,
                baseline * (1 + self._regression.tolerance)
                if baseline is not None and self._regression is not None
                else None,
            )
            if limit is not None
        ]
        return GateResult(
            name=self.spec.name,
            outcome=outcome,
            reason=self._reason(state, look, outcome, standings, missing, quantiles)
            + (f"; {CONTRADICTED}" if contradicted and no_harm else ""),
            value=value,
            baseline=baseline,
            limit=min(limits, default=None),
            samples=state["samples"],
            needed=standing.needed(standings),
            no_harm=no_harm and not contradicted,
            valid_looks=state["looks"],
            details={
                "quantiles": "interpolated inside their bucket, over the equal load of the "
                "last half hour",
                "rules": [dict(s.details) for s in standings],
            },
        )

    def _contradicts(self, value: float | None, baseline: float | None) -> bool:
        """The quantile itself, as measured, is worse by more than the declared detectable size."""
        if self._regression is None or value is None or baseline is None:
            return False
        return value > baseline * (1 + self._regression.bars.detectable)

    def _standings(self, state: State) -> list[Standing]:
        found = []
        if self._regression is not None:
            since = _since(state)
            past = sum(counts[-1] for at, counts in state["baseline"] if at >= since)
            found.append(self._regression.standing(state["regression"], past))
        if self._limit is not None:
            found.append(self._limit.standing(state["limit"]))
        return found

    def _reported(self, standings: Sequence[Standing]) -> str:
        """The quantile with the most evidence against it."""
        if self._regression is None:
            return self._names[0]
        return str(standings[0].details["reported"])

    def _quantiles(self, state: State, latest: int | None = None) -> Quantiles:
        """Of canary and baseline, by name; ``latest``: over so many chunks only."""
        grid = [*state["edges"], inf]
        arms = []
        for arm in ("canary", "baseline"):
            chunks = state[arm] if latest is None else state[arm][-latest:]
            arms.append(edges.recall(chunks))
        canary, baseline = (
            {
                name: edges.quantile(grid, cumulative, QUANTILES[name]) if cumulative else None
                for name in self._names
            }
            for cumulative in arms
        )
        return {name: (canary[name], baseline[name]) for name in self._names}

    def _reason(
        self,
        state: State,
        look: Look,
        outcome: Outcome,
        standings: Sequence[Standing],
        missing: Missing | None,
        quantiles: Quantiles,
    ) -> str:
        if not standings:
            return f"{self._title}: there is no baseline, so that max_regression cannot be judged"
        shown = self._reported(standings)
        title = f"{self._title} {shown}"
        if outcome is Outcome.FAILED:
            broken = next(s for s in standings if s.failed)
            of_limit = self._limit is not None and broken is standings[-1]
            said = (
                f"{self._title} {self._names[0]}: {broken.claim}"
                if of_limit
                else f"{self._compared(state, shown, quantiles, failing=True)}"
                f"{self._interpolated(state, shown)}"
            )
            return f"{said}; {standing.chance(self.spec.alpha)}"
        if missing is not None:
            return f"{title}: {missing.reason}"
        said = self._compared(state, shown, quantiles)
        if outcome is Outcome.PASSED:
            claims = "; ".join(s.claim for s in standings)
            return f"{said}; {claims}, at confidence {percent(1 - self.spec.beta)}"
        unequal = f"unequal load: {look.unequal_load}; " if look.unequal_load is not None else ""
        waits = "; ".join(s.waits for s in standings if s.waits)
        if state["samples"] < (self.spec.min_samples or 1):
            waits = f"at least {self.spec.min_samples or 1} {self._unit} are asked for"
        return f"{unequal}{said}{self._interpolated(state, shown)}; {waits}"

    def _compared(
        self, state: State, shown: str, quantiles: Quantiles, *, failing: bool = False
    ) -> str:
        title = f"{self._title} {shown} of the canary"
        value, baseline = quantiles[shown]
        over = f"over {state['samples']} canary {self._unit}"
        if value is None:
            return f"{title}: none of its {self._unit} counted yet"
        if baseline is None or self._regression is None:
            return f"{title} is {self._seconds(state, value)}, {over}"
        allowed = self._regression.tolerance
        if failing and value <= baseline * (1 + allowed):  # it came late: the whole hides it
            latest, before = self._quantiles(state, LATEST_CHUNKS)[shown]
            if latest is not None and before is not None:
                value, baseline, over = latest, before, f"{over}, the latest minutes shown"
        return (
            f"{title} is {self._seconds(state, value)} against {self._seconds(state, baseline)} "
            f"of the baseline ({change(value, baseline)}, allowed +{percent(allowed)}), {over}"
        )

    def _interpolated(self, state: State, shown: str) -> str:
        """A label for an answer from inside a bucket, which rests on more than the counts."""
        question = state["regression"][shown]["question"] if self._regression else None
        if question is None or question[4] is None:
            return ""
        low, high = question[0], question[1]
        return (
            f"; interpolated inside the bucket from {seconds(low)} to {seconds(high)}: right for "
            "smooth latencies, wrong either way where they gather near an edge"
        )

    @staticmethod
    def _seconds(state: State, value: float) -> str:
        beyond = value >= state["edges"][-1]
        return f"more than {seconds(value)}" if beyond else seconds(value)


def _since(state: State) -> float:
    found: float | None = state["regime_at"]
    return -inf if found is None else found

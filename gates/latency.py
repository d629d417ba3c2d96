"""``{ttft,tpot,itl,e2e}_{p99,p95,p90,p50}``: a latency quantile against the baseline
(``max_regression``), against a fixed limit (``max_seconds``), or both.

Which rule judges a regression is decided in the constructor alone: without a history of equal
runtimes it is :class:`~canaryctl.gates.rules.block_share.BlockShare`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import Buckets, align, histogram
from canaryctl.gates.records import settle, settled
from canaryctl.gates.rules import standing
from canaryctl.gates.rules.block_share import LOOKS_PER_BLOCK, BlockShare
from canaryctl.gates.rules.quantile_limit import QuantileLimit
from canaryctl.gates.rules.standing import Bars, Standing
from canaryctl.gates.samples import Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.stats import edges
from canaryctl.gates.wording import change, percent, seconds

QUANTILES: Mapping[str, float] = {"p99": 0.99, "p95": 0.95, "p90": 0.9, "p50": 0.5}
SIGNALS: Mapping[str, Signal] = {
    "ttft": Signal.TTFT,
    "tpot": Signal.TPOT,
    "itl": Signal.ITL,
    "e2e": Signal.E2E,
}
NAMES = tuple(f"{signal}_{quantile}" for signal in SIGNALS for quantile in QUANTILES)

PHI_REQUESTS, PHI_TOKENS = 4.0, 80.0
"""Dependence assumed for absolute limits, where no history says it. Counts of slow requests vary
1.1 times as much as independent ones behind eight slots, 18 times and more behind one: an engine
that batches is of the first kind, and 4 leaves room. Token gaps of one step come together: 80
was measured (docs/gates.md)."""

CONTRADICTED = "but the quantile as measured is worse than that: it is waited for more"

LATEST_CHUNKS = 2  # 5 to 10 minutes


@dataclass(frozen=True, slots=True)
class Asked:
    """One quantile (0–1) of one histogram of seconds; ``title`` and ``unit``: in words, the
    latter plural. ``phi``: the dependence assumed for an absolute limit."""

    signal: AnySignal
    p: float
    title: str
    unit: str
    phi: float


def named(name: str) -> Asked:
    """What the gate of that name asks."""
    signal, _, quantile = name.partition("_")
    is_tokens = SIGNALS[signal] is Signal.ITL
    return Asked(
        SIGNALS[signal],
        QUANTILES[quantile],
        f"{signal.upper()} {quantile}",
        "tokens" if is_tokens else "requests",
        PHI_TOKENS if is_tokens else PHI_REQUESTS,
    )


class LatencyGate:
    """One quantile of one latency."""

    hard = False

    def __init__(self, spec: GateSpec, context: GateContext, asked: Asked | None = None) -> None:
        self.spec = spec
        asked = asked or named(spec.name)
        self._signal, self._p, self._title = asked.signal, asked.p, asked.title
        self._unit = asked.unit
        self._regression: BlockShare | None = None
        self._limit: QuantileLimit | None = None
        tolerance = spec.max_regression if context.has_baseline else None
        rules = (tolerance is not None) + (spec.max_seconds is not None)
        bars = Bars.of(spec, context, rules=rules)
        if tolerance is not None:
            self._regression = BlockShare(self._p, tolerance, spec.margin, bars, self._unit)
        if spec.max_seconds is not None:
            self._limit = QuantileLimit(self._p, spec.max_seconds, asked.phi, bars, self._unit)

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({self._signal})

    def start(self) -> State:
        return {
            "failed": None,
            "looks": 0,
            "samples": 0,
            "load": None,
            "unequal_looks": 0,  # in a row
            "edges": [],
            "canary": [],  # trailing evidence, for the quantiles that people are shown
            "baseline": [],
            "regression": self._regression.start() if self._regression else None,
            "limit": self._limit.start() if self._limit else None,
        }

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        look = look.of(self._signal)
        state = self._follow_load(state, look.unequal_load)
        canary = histogram(look.canary, self._signal, "canary")
        baseline = self._baseline(look)
        missing = next((m for m in (canary, baseline) if isinstance(m, Missing)), None)
        if isinstance(canary, Buckets) and not isinstance(baseline, Missing):
            state = self._count(state, look, canary, baseline)
        result = self._result(state, look, missing)
        return settle(state, result), result

    def _baseline(self, look: Look) -> Buckets | Missing | None:
        """None: no rule asks for it."""
        if self._regression is None:
            return None
        return histogram(look.baseline, self._signal, "baseline")

    def _follow_load(self, state: State, unequal: str | None) -> State:
        """A block ends where the load changes; what lasted longer than a block is another regime,
        while a single uneven window is not."""
        over = state["unequal_looks"] if unequal is None else 0
        changed = {
            **state,
            "load": unequal,
            "unequal_looks": 0 if unequal is None else state["unequal_looks"] + 1,
        }
        if self._regression is not None and state["load"] != unequal:
            changed["regression"] = self._regression.load_changed(state["regression"])
        if self._regression is not None and over > LOOKS_PER_BLOCK:
            changed["regression"] = self._regression.new_regime(changed["regression"])
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
        if self._regression is not None and baseline is not None:
            canary, baseline = align(canary, baseline)
            counted["regression"] = self._regression.look(
                state["regression"], look.at, canary, baseline
            )
        if state["edges"] != canary.finite:
            counted |= {"edges": canary.finite, "canary": [], "baseline": []}
        for arm, buckets in (("canary", canary), ("baseline", baseline)):
            if buckets is not None:
                counted[arm] = edges.remember(counted[arm], look.at, buckets.cumulative)
        return counted

    def _result(self, state: State, look: Look, missing: Missing | None) -> GateResult:
        standings = self._standings(state)
        enough = state["samples"] >= (self.spec.min_samples or 1)
        outcome, no_harm = standing.judge(standings, enough=enough, missing=missing)
        value, baseline = self._quantiles(state)
        # Exposure says what would have been found of a whole distribution shifted; a tail alone
        # can be as slow and cross the edges less often. What is seen overrules what was planned.
        contradicted = self._contradicts(value, baseline)
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
            reason=self._reason(state, look, outcome, standings, missing)
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
            found.append(self._regression.standing(state["regression"]))
        if self._limit is not None:
            found.append(self._limit.standing(state["limit"]))
        return found

    def _quantiles(
        self, state: State, latest: int | None = None
    ) -> tuple[float | None, float | None]:
        """Of canary and baseline; ``latest``: over so many chunks only."""
        found = []
        for arm in ("canary", "baseline"):
            chunks = state[arm] if latest is None else state[arm][-latest:]
            cumulative = edges.recall(chunks)
            found.append(
                edges.quantile([*state["edges"], inf], cumulative, self._p) if cumulative else None
            )
        return found[0], found[1]

    def _reason(
        self,
        state: State,
        look: Look,
        outcome: Outcome,
        standings: Sequence[Standing],
        missing: Missing | None,
    ) -> str:
        if not standings:
            return f"{self._title}: there is no baseline, so that max_regression cannot be judged"
        if outcome is Outcome.FAILED:
            broken = next(s for s in standings if s.failed)
            said = f"{self._title}: {broken.claim}" if broken.claim else self._compared(state, True)
            return f"{said}; {standing.chance(self.spec.alpha)}"
        if missing is not None:
            return f"{self._title}: {missing.reason}"
        said = self._compared(state, False)
        if outcome is Outcome.PASSED:
            return f"{said}; {standings[0].claim}, at confidence {percent(1 - self.spec.beta)}"
        unequal = f"unequal load: {look.unequal_load}; " if look.unequal_load is not None else ""
        waits = "; ".join(s.waits for s in standings if s.waits)
        if state["samples"] < (self.spec.min_samples or 1):
            waits = f"at least {self.spec.min_samples or 1} {self._unit} are asked for"
        return f"{unequal}{said}; {waits}"

    def _compared(self, state: State, failing: bool) -> str:
        value, baseline = self._quantiles(state)
        over = f"over {state['samples']} canary {self._unit}"
        if value is None:
            return f"{self._title} of the canary: none of its {self._unit} counted yet"
        if baseline is None or self._regression is None:
            return f"{self._title} of the canary is {self._shown(state, value)}, {over}"
        allowed = self._regression.tolerance
        if failing and value <= baseline * (1 + allowed):  # it came late: the whole hides it
            latest, before = self._quantiles(state, LATEST_CHUNKS)
            if latest is not None and before is not None:
                value, baseline, over = latest, before, f"{over}, the latest minutes shown"
        return (
            f"{self._title} of the canary is {self._shown(state, value)} against "
            f"{self._shown(state, baseline)} of the baseline ({change(value, baseline)}, "
            f"allowed +{percent(allowed)}), {over}"
        )

    @staticmethod
    def _shown(state: State, value: float) -> str:
        beyond = value >= state["edges"][-1]
        return f"more than {seconds(value)}" if beyond else seconds(value)

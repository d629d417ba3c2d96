"""One or several quantiles of a latency against the baseline, as one rule.

    E = Σ_q w_q·E_q        FAIL: ln E ≥ ln(G/α)        PASS: every quantile passes

The weights add up to 1, so that E is an e-value of "no quantile is worse than the tolerance": a
regression is found by whichever quantile shows it first, at the price of ln(1/w_q).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canaryctl.gates.base import State
from canaryctl.gates.readings import Buckets
from canaryctl.gates.rules.exposure import Exposure, exposure
from canaryctl.gates.rules.quantile_regression import QuantileRegression
from canaryctl.gates.rules.standing import SUSPECT, Bars, Standing
from canaryctl.gates.stats import edges, mixture
from canaryctl.gates.wording import percent

WEIGHTS: Mapping[str, float] = {"p99": 1 / 2, "p95": 1 / 4, "p90": 1 / 8, "p50": 1 / 8}


@dataclass(frozen=True, slots=True)
class MixedQuantiles:
    """``parts``: name of the quantile → its rule and weight; ``unit``: of observations, plural."""

    parts: Mapping[str, tuple[QuantileRegression, float]]
    tolerance: float
    margin: float
    bars: Bars
    unit: str

    def start(self) -> State:
        return {name: rule.start() for name, (rule, _) in self.parts.items()}

    @property
    def longest_block(self) -> int:
        return max(rule.method.longest_block for rule, _ in self.parts.values())

    def load_changed(self, state: State) -> State:
        return {name: rule.load_changed(state[name]) for name, (rule, _) in self.parts.items()}

    def look(
        self,
        state: State,
        at: float,
        canary: Buckets,
        baseline: Buckets,
        past: Sequence[int],
        before: Sequence[int] = (),
    ) -> State:
        """Both arms at the same edges; ``past``: of the baseline, strictly before this look;
        ``before``: of a history before the release, as long as the past is too short."""
        return {
            name: rule.look(
                state[name],
                at,
                canary,
                baseline,
                past if edges.learned(past, rule.p) else before,
            )
            for name, (rule, _) in self.parts.items()
        }

    def standing(self, state: State, past: int) -> Standing:
        """``past``: how many observations of the baseline there are to place the edges by."""
        logs = {name: rule.log_e_fail(state[name]) for name, (rule, _) in self.parts.items()}
        log_fail = mixture.log_weighted_exp(
            list(logs.values()), [weight for _, weight in self.parts.values()]
        )
        found = {
            name: exposure(rule, state[name], self.unit, past)
            for name, (rule, _) in self.parts.items()
        }
        passed = all(state[name]["passed"] for name in self.parts)
        enough = all(state[name]["passed"] or each.enough for name, each in found.items())
        suspected = enough and self.bars.suspects(log_fail)
        open_ = [each.needed for name, each in found.items() if not state[name]["passed"]]
        known = [needed for needed in open_ if needed is not None]
        return Standing(
            failed=log_fail >= self.bars.log_fail,
            passed=passed,
            no_harm=enough and not suspected,
            claim=f"not worse by {percent(max(self.margin, self.tolerance))}" if passed else "",
            waits=SUSPECT if suspected else self._waits(state, found),
            needed=max(known) if known and len(known) == len(open_) else None,
            details=self._details(state, logs, log_fail),
        )

    def _waits(self, state: State, found: Mapping[str, Exposure]) -> str:
        """Of the quantile that keeps the others waiting."""
        waiting = [name for name in found if not state[name]["passed"]]
        if not waiting:
            return ""
        worst = max(
            waiting,
            key=lambda name: (
                not found[name].enough,
                found[name].needed is None,
                found[name].needed or 0,
            ),
        )
        return found[worst].waits if len(found) == 1 else f"{worst}: {found[worst].waits}"

    def _details(
        self, state: State, logs: Mapping[str, float], log_fail: float
    ) -> Mapping[str, Any]:
        quantiles = {}
        for name, (rule, weight) in self.parts.items():
            part = state[name]
            low, high, e_pass, effective, rho0 = part["question"] or [None] * 5
            quantiles[name] = {
                "rule": rule.method.describe(),
                "weight": weight,
                "log_e_fail": logs[name],
                "log_e_pass": rule.log_e_pass(part),
                "passed": part["passed"],
                "edges": {"baseline": low, "fail": high, "pass": e_pass},
                "effective_tolerance": effective,
                "interpolated_rate_ratio": rho0,
                "counts": dict(zip(_COUNTS, part["sums"], strict=True)),
                "blocks": part["blocks"],
                "plan": part["plan"],
            }
        passes = [each["log_e_pass"] for each in quantiles.values()]
        return {
            "rule": "regression",
            "reported": max(logs, key=lambda name: logs[name]),
            "log_e_fail": log_fail,
            "log_fail_at": self.bars.log_fail,
            "log_e_pass": None if None in passes else min(passes),
            "log_pass_at": self.bars.log_pass,
            "quantiles": quantiles,
        }


_COUNTS = ("canary_beyond_fail", "baseline_beyond", "canary", "baseline", "canary_beyond_pass")

"""Events per observation, canary against the concurrent baseline: (A), both ways."""

import math
from dataclasses import dataclass

from canaryctl.gates.base import State
from canaryctl.gates.rules.standing import SUSPECT, Bars, Standing
from canaryctl.gates.stats import lr, mixture, planner
from canaryctl.gates.stats.counts import Counts
from canaryctl.gates.wording import percent, whole

RARE = 0.005
"""The least baseline share that exposure is planned for, unless a limit on the share says which
rises matter: without an event in either arm no ratio of rates can be judged."""


@dataclass(frozen=True, slots=True)
class RateRegression:
    """``tolerance``: how much higher the canary's rate may be; ``margin``: what a pass excludes;
    ``rare``: the least baseline share that exposure is planned for."""

    tolerance: float
    margin: float
    phi: float
    bars: Bars
    subject: str
    unit: str
    rare: float = RARE

    def start(self) -> State:
        return {
            "fail": [0.0] * len(lr.COUNT_GRID),
            "starts": [],
            "pass": [0.0] * len(lr.PASS_GRID),
            "passed": False,
            "sums": [0.0, 0.0, 0.0, 0.0],
            "origin": None,
        }

    def look(self, state: State, at: float, counts: Counts) -> State:
        origin = at if state["origin"] is None else state["origin"]
        starts = mixture.take_starts(state["starts"], state["fail"], at - origin)
        fail = lr.update(
            state["fail"], lr.COUNT_GRID, counts, rho0=1 + self.tolerance, phi=self.phi
        )
        held = lr.update(
            state["pass"],
            lr.PASS_GRID,
            counts,
            rho0=1 + max(self.margin, self.tolerance),
            phi=self.phi,
        )
        return {
            "fail": fail,
            "starts": starts,
            "pass": held,
            "passed": state["passed"] or mixture.log_mean_exp(held) >= self.bars.log_pass,
            "sums": [a + b for a, b in zip(state["sums"], counts, strict=True)],
            "origin": origin,
        }

    def standing(self, state: State) -> Standing:
        log_fail = mixture.log_e_late(state["fail"], state["starts"])
        k_c, k_b, n_c, n_b = state["sums"]
        canary, baseline = (k_c / n_c if n_c else 0.0), (k_b / n_b if n_b else 0.0)
        needed = self._exposure(n_c, n_b, baseline)
        enough = needed is not None and n_c >= needed
        return Standing(
            failed=log_fail >= self.bars.log_fail,
            passed=state["passed"],
            no_harm=enough and not self.bars.suspects(log_fail),
            claim=f"{percent(canary)} of {n_c:.0f} canary {self.unit} {self.subject} against "
            f"{percent(baseline)} of {n_b:.0f} of the baseline "
            f"(allowed +{percent(self.tolerance)})",
            waits=SUSPECT
            if enough and self.bars.suspects(log_fail)
            else self._waits(needed, n_c, baseline),
            needed=needed,
            details={
                "canary_share": canary,
                "baseline_share": baseline,
                "phi": self.phi,
                "log_e_fail": log_fail,
                "log_e_pass": mixture.log_mean_exp(state["pass"]),
                "log_fail_at": self.bars.log_fail,
                "log_pass_at": self.bars.log_pass,
                "assumed_share": max(baseline, self.rare),
            },
        )

    def _exposure(self, n_c: float, n_b: float, baseline: float) -> int | None:
        """Canary observations after which a rise by ``detectable`` would have failed."""
        if n_c <= 0 or n_b <= 0 or self.bars.detectable <= self.tolerance:
            return None
        units = planner.requests_needed(
            rho=1 + self.bars.detectable,
            rho0=1 + self.tolerance,
            share=n_c / (n_c + n_b),
            s=min(max(baseline, self.rare), 0.5),
            climb=planner.climb_to_fail(self.bars.log_fail),
            z=planner.Z90,
            phi=self.phi,
        )
        return None if units is None or math.isinf(units) else whole(units)

    def _waits(self, needed: int | None, n_c: float, baseline: float) -> str:
        rise = f"a rise by {percent(self.bars.detectable)}"
        if self.bars.detectable <= self.tolerance:
            return (
                f"{rise} (detectable) is within the allowed +{percent(self.tolerance)}, so that "
                "no exposure can show its absence"
            )
        if needed is None:
            return f"no {self.unit} of both arms yet"
        of = f" from {percent(max(baseline, self.rare))}"
        if n_c >= needed:
            return f"{rise}{of} would have been found"
        return f"to have found {rise}{of} takes about {needed} canary {self.unit} in all"

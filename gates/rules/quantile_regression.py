"""One latency quantile against the concurrent baseline, looked at again and again.

Which process judges follows from the dependence that an A/A history shows (docs/gates.md):

    φ ≤ 1.25    FAIL by (A) tempered by φ_U          PASS by (A) tempered by φ_U, 1.25 at least
    φ > 1.25    FAIL by (B), blocks of L*            PASS by (A, φ_U) and (B, L*) together
    unknown     FAIL by (B), blocks of four looks    no PASS

FAIL asks whether P(canary > e_fail) ≤ P(baseline > e_i), PASS whether P(canary > e_pass) ≥
P(baseline > e_i); the edges are those of ``stats.edges``, placed by the baseline's past. A
question inside one bucket is asked at e_i itself with the tolerance as a ratio of rates, but
only where that was asked for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from canaryctl.common.metrics import AnySignal
from canaryctl.gates.base import State
from canaryctl.gates.history import LEAST_LOOKS, AaHistory
from canaryctl.gates.readings import Buckets
from canaryctl.gates.rules import exposure
from canaryctl.gates.rules.standing import Bars
from canaryctl.gates.stats import block, edges, lr, mixture
from canaryctl.gates.stats.counts import Counts
from canaryctl.gates.stats.edges import Question, exceedances

LOW_PHI = 1.25


@dataclass(frozen=True, slots=True)
class Method:
    """``block_looks``: of (B), which judges FAIL; None: (A) does. ``no_pass``: why a pass is not
    on offer."""

    block_looks: int | None
    phi: float = 1.0
    phi_upper: float = 1.0
    no_pass: str | None = None

    @classmethod
    def of(cls, history: AaHistory | None, signal: AnySignal, p: float, look_s: float) -> "Method":
        """``look_s``: seconds between looks of the release, which may not be the history's."""
        found = history.dependence(signal, p) if history is not None else None
        if history is None or found is None:
            return cls(LEAST_LOOKS, no_pass=_no_pass(history, p))
        if found.phi <= LOW_PHI:
            return cls(None, found.phi, found.phi_upper)
        looks = max(1, math.ceil(history.block_s(found) / look_s * (1 - 1e-9)))
        return cls(looks, found.phi, found.phi_upper)

    @property
    def phi_pass(self) -> float:
        """What tempers (A) for a PASS, whose null is a canary slower by the margin: such a one is
        busier, and its slow requests come in bursts that no history of equal engines shows, however
        long it is. A larger φ passes less: ln mean exp(L/φ')·φ' falls as φ' grows."""
        return max(self.phi_upper, LOW_PHI)

    @property
    def longest_block(self) -> int:
        """Looks after which what happened no longer belongs to what happens."""
        return self.block_looks or LEAST_LOOKS

    def describe(self) -> str:
        if self.block_looks is None:
            return f"likelihood ratio, φ {self.phi:.3g} (at most {self.phi_upper:.3g})"
        blocks = f"block share, {self.block_looks} looks a block"
        return blocks if self.no_pass else f"{blocks}, φ {self.phi:.3g}"


def _no_pass(history: AaHistory | None, p: float) -> str:
    needs = "a pass needs a history of equal runtimes beside each other"
    if history is None:
        return f"{needs}, which there is not"
    return f"{needs}: {history.lacks or f'this one shows too few beyond p{p * 100:g} to tell'}"


@dataclass(frozen=True, slots=True)
class QuantileRegression:
    """``p``: the quantile, 0–1; ``tolerance``, ``margin``: ratios. ``bars``: of this quantile
    alone, its share of α included."""

    p: float
    tolerance: float
    margin: float
    bars: Bars
    method: Method
    interpolate: bool = False

    def start(self) -> State:
        low_phi = self.method.block_looks is None
        passes = self.method.no_pass is None
        return {
            "fail": [0.0] * len(lr.FAIL_GRID if low_phi else block.BETS),
            "starts": [],
            "pass_a": [0.0] * len(lr.PASS_GRID) if passes else None,
            "pass_b": [0.0] * len(block.BETS) if passes and not low_phi else None,
            "passed": False,
            "origin": None,
            # [e_i, e_fail or None, e_pass, effective tolerance or None, ρ0 or None]
            "question": None,
            "sums": [0, 0, 0, 0, 0],  # k_C above e_fail, k_B, n_C, n_B, k_C above e_pass
            "open": [0, 0, 0, 0, 0, 0],  # of the block being filled: as above, then ρ0·n_C
            "open_looks": 0,
            "blocks": 0,
            "plan": None,
        }

    def load_changed(self, state: State) -> State:
        """The block ends here: the arms' shares are others from now on."""
        return self._closed(state) if state["open_looks"] else state

    def look(
        self, state: State, at: float, canary: Buckets, baseline: Buckets, past: Sequence[int]
    ) -> State:
        """Judge one look. ``past``: the baseline's cumulative counts strictly before it."""
        if not edges.learned(past, self.p):
            return state
        question = edges.choose(
            canary.edges, past, p=self.p, r=self.tolerance, m=max(self.margin, self.tolerance)
        )
        if question is None:
            lowest = next((e for e in canary.finite if e > 0), None)
            return {**state, "question": [None, lowest, None, None, None], "plan": None}
        rho0 = self.allowed(canary.edges, past, question)
        asked = [
            canary.edges[question.i],
            None if question.j_fail is None else canary.edges[question.j_fail],
            canary.edges[question.j_pass],
            question.effective_tolerance,
            rho0,
        ]
        if question.j_fail is None:
            return {**state, "question": asked, "plan": None}
        at_fail = question.j_fail if rho0 is None else question.i
        counts = (
            exceedances(canary.cumulative, at_fail),
            exceedances(baseline.cumulative, question.i),
            canary.count,
            baseline.count,
            exceedances(canary.cumulative, question.j_pass),
        )
        state = self._count(state, at, asked, counts, 1.0 if rho0 is None else rho0)
        if self.method.block_looks is not None and state["open_looks"] > 0:
            return state  # nothing was added to the evidence
        state["passed"] = state["passed"] or self._passes(state)
        if exposure.is_due(state):
            state["plan"] = exposure.plan(self, state, canary.edges, past, question)
        return state

    def log_e_fail(self, state: State) -> float:
        return mixture.log_e_late(state["fail"], state["starts"])

    def log_e_pass(self, state: State) -> float | None:
        """The least of the processes that have to agree; None: a pass is not on offer."""
        logs = [state[name] for name in ("pass_a", "pass_b") if state[name] is not None]
        return min(map(mixture.log_mean_exp, logs)) if logs else None

    def _passes(self, state: State) -> bool:
        log = self.log_e_pass(state)
        return log is not None and log >= self.bars.log_pass

    def allowed(
        self, grid: Sequence[float], past: Sequence[int], question: Question
    ) -> float | None:
        """Where the answer is interpolated: the ratio of rates at e_i that is still allowed."""
        if not (self.interpolate and question.inside_bucket):
            return None
        return edges.rate_ratio(grid, past, question.i, 1 + self.tolerance)

    def _count(
        self, state: State, at: float, asked: list[Any], counts: tuple[int, ...], rho0: float
    ) -> State:
        origin = at if state["origin"] is None else state["origin"]
        k_fail, k_b, n_c, n_b, k_pass = counts
        changed = {
            **state,
            "origin": origin,
            "starts": mixture.take_starts(state["starts"], state["fail"], at - origin),
            "question": asked,
            "sums": [a + b for a, b in zip(state["sums"], counts, strict=True)],
        }
        low_phi = self.method.block_looks is None
        if low_phi:
            changed["fail"] = lr.update(
                state["fail"],
                lr.FAIL_GRID,
                Counts(k_fail, k_b, n_c, n_b),
                rho0=rho0,
                phi=self.method.phi_upper,
            )
        if state["pass_a"] is not None:
            changed["pass_a"] = lr.update(
                state["pass_a"],
                lr.PASS_GRID,
                Counts(k_pass, k_b, n_c, n_b),
                phi=self.method.phi_pass,
            )
        if low_phi:
            return changed
        added = (*counts, rho0 * n_c)
        changed["open"] = [a + b for a, b in zip(state["open"], added, strict=True)]
        changed["open_looks"] = state["open_looks"] + 1
        return (
            self._closed(changed) if changed["open_looks"] == self.method.block_looks else changed
        )

    @staticmethod
    def _closed(state: State) -> State:
        """The block's evidence is added. ρ0·n_C in place of n_C: the ratio may differ by look."""
        k_fail, k_b, n_c, n_b, k_pass, allowed = state["open"]
        changed = {
            **state,
            "fail": block.update_fail(state["fail"], Counts(k_fail, k_b, allowed, n_b)),
            "open": [0, 0, 0, 0, 0, 0],
            "open_looks": 0,
            "blocks": state["blocks"] + 1,
        }
        if state["pass_b"] is not None:
            changed["pass_b"] = block.update_pass(state["pass_b"], Counts(k_pass, k_b, n_c, n_b))
        return changed

"""A share of events against a fixed limit: one-sample Bernoulli, both ways."""

from dataclasses import dataclass

from canaryctl.gates.base import State
from canaryctl.gates.rules.standing import Bars, Standing
from canaryctl.gates.stats import bernoulli, mixture, planner
from canaryctl.gates.wording import percent, whole


@dataclass(frozen=True, slots=True)
class ShareLimit:
    """``limit``: the largest share that is allowed, 0–1 exclusive.

    ``subject``: plural, "requests that failed"; ``unit``: what the share is of, plural.
    """

    limit: float
    phi: float
    bars: Bars
    subject: str
    unit: str

    def start(self) -> State:
        return {
            "fail": [0.0] * len(bernoulli.FAIL_ODDS),
            "starts": [],
            "pass": [0.0] * len(bernoulli.PASS_ODDS),
            "passed": False,
            "k": 0.0,
            "n": 0.0,
            "origin": None,
        }

    def look(
        self, state: State, at: float, *, k_fail: float, k_pass: float | None, n: float
    ) -> State:
        """After ``n`` more observations, of which ``k_fail`` count as events for breaking the
        limit and ``k_pass`` for holding it (None: this look cannot show that it holds)."""
        origin = at if state["origin"] is None else state["origin"]
        starts = mixture.take_starts(state["starts"], state["fail"], at - origin)
        fail = bernoulli.update(
            state["fail"], bernoulli.FAIL_ODDS, self.limit, k=k_fail, n=n, phi=self.phi
        )
        held: list[float] = state["pass"]
        if k_pass is not None:
            held = bernoulli.update(
                held, bernoulli.PASS_ODDS, self.limit, k=k_pass, n=n, phi=self.phi
            )
        return {
            "fail": fail,
            "starts": starts,
            "pass": held,
            "passed": state["passed"] or mixture.log_mean_exp(held) >= self.bars.log_pass,
            "k": state["k"] + k_fail,
            "n": state["n"] + n,
            "origin": origin,
        }

    def standing(self, state: State) -> Standing:
        log_fail = mixture.log_e_late(state["fail"], state["starts"])
        k, n = state["k"], state["n"]
        share = k / n if n else 0.0
        seen = f"{percent(share)} of {n:.0f} {self.unit} {self.subject}"
        units = self.to_pass(share)
        needed = None if units is None else whole(units)
        return Standing(
            failed=log_fail >= self.bars.log_fail,
            passed=state["passed"],
            no_harm=n >= self._exposure() and not self.bars.suspects(log_fail),
            claim=f"{seen}; at most {percent(self.limit)} may",
            waits=""
            if state["passed"]
            else f"to show that at most {percent(self.limit)} do takes about "
            f"{needed} {self.unit} in all"
            if needed is not None
            else f"the share is not below the limit of {percent(self.limit)}",
            needed=needed,
            details={
                "share": share,
                "limit": self.limit,
                "phi": self.phi,
                "log_e_fail": log_fail,
                "log_e_pass": mixture.log_mean_exp(state["pass"]),
                "log_fail_at": self.bars.log_fail,
                "log_pass_at": self.bars.log_pass,
            },
        )

    def to_pass(self, share: float) -> float | None:
        """Observations to show a share as low as the one seen; a guess until there are many."""
        if share >= self.limit:
            return None
        climb = self.bars.log_pass + planner.MIXING
        return planner.bernoulli_needed(
            theta=share, s0=self.limit, climb=climb, z=planner.Z50, phi=self.phi
        )

    def _exposure(self) -> float:
        """Observations after which a share ``detectable`` above the limit would have failed."""
        theta = min(self.limit * (1 + self.bars.detectable), (1 + self.limit) / 2)
        climb = planner.climb_to_fail(self.bars.log_fail)
        units = planner.bernoulli_needed(
            theta=theta, s0=self.limit, climb=climb, z=planner.Z90, phi=self.phi
        )
        return float("inf") if units is None else units

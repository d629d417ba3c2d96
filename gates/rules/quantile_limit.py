"""A latency quantile against a fixed limit in seconds: the share of slower ones against 1−p."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from canaryctl.gates.base import State
from canaryctl.gates.readings import Buckets
from canaryctl.gates.rules.share_limit import ShareLimit
from canaryctl.gates.rules.standing import Bars, Standing
from canaryctl.gates.stats.edges import TOLERANCE, exceedances
from canaryctl.gates.wording import seconds


@dataclass(frozen=True, slots=True)
class QuantileLimit:
    """``p``: the quantile, 0–1; ``limit_s``: what it may be at most."""

    p: float
    limit_s: float
    phi: float
    bars: Bars
    unit: str

    @property
    def shares(self) -> ShareLimit:
        """The rule on slower observations that this one is."""
        subject = f"took longer than {seconds(self.limit_s)}"
        return ShareLimit(1 - self.p, self.phi, self.bars, subject, self.unit)

    def start(self) -> State:
        return self.shares.start()

    def look(self, state: State, at: float, canary: Buckets, *, may_pass: bool) -> State:
        """Slow are observations above the first edge at or over the limit, fast enough those at
        or under the last edge within it; one between the two edges counts against passing and
        not for failing."""
        over = bisect_left(canary.edges, self.limit_s * (1 - TOLERANCE))
        within = bisect_right(canary.edges, self.limit_s * (1 + TOLERANCE)) - 1
        slow = exceedances(canary.cumulative, over)
        not_fast = exceedances(canary.cumulative, within) if within >= 0 else canary.count
        k_pass = not_fast if may_pass else None
        return self.shares.look(state, at, k_fail=slow, k_pass=k_pass, n=canary.count)

    def standing(self, state: State) -> Standing:
        return self.shares.standing(state)

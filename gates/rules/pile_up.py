"""Requests that pile up in the canary and not in the baseline: (A) on the rises of a floor.

The floor of an engine is the least number of requests in flight over a window about as long as a
request takes. A request that never ends lifts it for good; one that is merely long, or a burst,
lifts it once and lets it fall again. So an event is a rise of the floor above where it has been
since the load became what it is: rare in a sound engine, one for each request that hangs.

A busy spell lifts the floor by several at once, by about its standard deviation; φ is the square
root of the baseline's floor, and at least PHI. How large it has to be is simulated
(tests/unit/test_gates_unfinished.py), not proven.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from canaryctl.gates.base import State
from canaryctl.gates.rules.standing import SUSPECT, Bars, Standing
from canaryctl.gates.stats import in_flight, lr, mixture, planner
from canaryctl.gates.stats.counts import Counts
from canaryctl.gates.stats.in_flight import Point
from canaryctl.gates.wording import percent, plural, whole

PHI = 4.0
LOOKS_PER_WINDOW = 4
LEARN_WINDOWS = 2.0  # of equal load, before anything is counted
HANGING = 0.02
"""The share of requests whose hanging the exposure has to have found."""
QUIET = 0.001
"""The least rate of events that is planned with, a request."""

Tracks = Mapping[str, Sequence[Point]]


@dataclass(frozen=True, slots=True)
class Flow:
    """One arm after a look: requests sent and ended in it, and each instance's track."""

    sent: float
    ended: float
    tracks: Tracks


@dataclass(frozen=True, slots=True)
class PileUp:
    """``tolerance``: how much more often the canary's floor may rise, a request."""

    tolerance: float
    bars: Bars

    def start(self) -> State:
        return {
            "logs": [0.0] * len(lr.COUNT_GRID),
            "starts": [],
            "origin": None,
            "sums": [0.0, 0.0, 0.0, 0.0],  # rises and requests sent, of canary and baseline
            "ended": [0.0, 0.0],
            "floor": [0.0, 0.0],  # now
            **self._unknown_load(),
        }

    @staticmethod
    def _unknown_load() -> State:
        return {"weight": None, "equal_s": 0.0, "window_s": 0.0, "highest": [{}, {}]}

    def unequal(self, state: State) -> State:
        """Another load has another floor: where it lies is learnt anew."""
        return {**state, **self._unknown_load()}

    def look(
        self,
        state: State,
        at: float,
        canary: Flow,
        baseline: Flow,
        *,
        span_s: float,
        lasts_s: float,
        weight: float | None,
    ) -> State:
        """At equal load. ``lasts_s``: how long the baseline's requests take, the longest but a
        few; ``weight``: the canary's part of the traffic, as it was set."""
        if weight != state["weight"]:
            state = {**state, **self._unknown_load(), "weight": weight}
        window_s = max(state["window_s"], LOOKS_PER_WINDOW * span_s, lasts_s)
        state = {**state, "equal_s": state["equal_s"] + span_s, "window_s": window_s}
        if state["equal_s"] < LEARN_WINDOWS * window_s:
            return state
        origin = at if state["origin"] is None else state["origin"]
        highest_c, risen_c, floor_c = _rises(state["highest"][0], canary.tracks, window_s)
        highest_b, risen_b, floor_b = _rises(state["highest"][1], baseline.tracks, window_s)
        counts = Counts(risen_c, risen_b, canary.sent, baseline.sent)
        return {
            **state,
            "origin": origin,
            "starts": mixture.take_starts(state["starts"], state["logs"], at - origin),
            "logs": lr.update(
                state["logs"],
                lr.COUNT_GRID,
                counts,
                rho0=1 + self.tolerance,
                phi=_phi(state["highest"][1]),
            ),
            "sums": [a + b for a, b in zip(state["sums"], counts, strict=True)],
            "ended": [state["ended"][0] + canary.ended, state["ended"][1] + baseline.ended],
            "highest": [highest_c, highest_b],
            "floor": [floor_c, floor_b],
        }

    def standing(self, state: State) -> Standing:
        log_fail = mixture.log_e_late(state["logs"], state["starts"])
        needed = self._needed(state)
        enough = needed is not None and state["sums"][2] >= needed
        suspected = self.bars.suspects(log_fail)
        (_, _, sent_c, sent_b), (ended_c, ended_b) = state["sums"], state["ended"]
        floor_c, floor_b = state["floor"]
        return Standing(
            failed=log_fail >= self.bars.log_fail,
            no_harm=enough and not suspected,
            claim=(
                f"of {plural(round(sent_c), 'request')} sent the canary ended {ended_c:.0f} and "
                f"has {floor_c:.0f} in flight at the least, of {sent_b:.0f} the baseline "
                f"{ended_b:.0f} with {floor_b:.0f}"
            ),
            waits=SUSPECT if enough and suspected else self._waits(state, needed),
            needed=needed,
            details={
                "rule": "rises of the least number in flight",
                "rises": state["sums"][:2],
                "sent": state["sums"][2:],
                "window_s": state["window_s"],
                "phi": _phi(state["highest"][1]),
                "log_e_fail": log_fail,
                "log_fail_at": self.bars.log_fail,
            },
        )

    def _needed(self, state: State) -> int | None:
        """Canary requests after which a share HANGING of them would have failed."""
        _, rises_b, sent_c, sent_b = state["sums"]
        if sent_c <= 0 or sent_b <= 0:
            return None
        units = self.requests(
            max(rises_b / sent_b, QUIET),
            share=sent_c / (sent_c + sent_b),
            phi=_phi(state["highest"][1]),
            z=planner.Z90,
        )
        return None if units is None else whole(units)

    def requests(self, quiet: float, *, share: float, phi: float, z: float) -> float | None:
        """The same where the baseline's floor rises ``quiet`` times a request. None: never, as so
        few are within the tolerance."""
        rho = (quiet + HANGING) / quiet
        if rho <= 1 + self.tolerance:
            return None
        return planner.requests_needed(
            rho=rho,
            rho0=1 + self.tolerance,
            share=share,
            s=quiet,
            climb=planner.climb_to_fail(self.bars.log_fail),
            z=z,
            phi=phi,
        )

    def _waits(self, state: State, needed: int | None) -> str:
        found = f"that {percent(HANGING)} of them never end"
        if needed is None and state["sums"][3] > 0:
            return (
                f"the baseline's number in flight rises so often by itself that {percent(HANGING)} "
                f"of the requests are within the allowed +{percent(self.tolerance)}"
            )
        if needed is None:
            left_s = LEARN_WINDOWS * state["window_s"] - state["equal_s"]
            return "at equal load it is being learnt how many are in flight" + (
                f", for {math.ceil(left_s)} s more" if left_s > 0 else ""
            )
        if state["sums"][2] >= needed:
            return (
                f"{found} would have been found with 90 % power; to show that none does needs "
                "a limit on their age, max_seconds"
            )
        return f"to have found {found} takes {needed} canary requests in all"


def _rises(
    highest: Mapping[str, float], tracks: Tracks, window_s: float
) -> tuple[dict[str, float], float, float]:
    """(the highest floor of each instance by now, how far they rose, the floors' sum)."""
    after: dict[str, float] = {}
    risen = total = 0.0
    for name, track in tracks.items():
        floor = in_flight.most_older(track, window_s)
        if floor is None:
            continue
        total += floor
        before = highest.get(name, floor)
        risen += max(0.0, floor - before)
        after[name] = max(before, floor)
    return after, risen, total


def _phi(highest: Mapping[str, float]) -> float:
    return max(PHI, math.sqrt(max(highest.values(), default=0.0)))

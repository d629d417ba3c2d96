"""What a quantile still needs: so much exposure that a regression of the declared size would have
been found, and about as much again as a pass takes.

Planned from what was measured so far: the baseline's histogram, its exceedances in a block, the
arms' shares. Exposure counts as it was judged: canary observations for (A), blocks for (B).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from canaryctl.gates.base import State
from canaryctl.gates.stats import edges, planner
from canaryctl.gates.stats.edges import LEARN_EXCEEDANCES, Question, exceedances
from canaryctl.gates.wording import percent, seconds, whole

if TYPE_CHECKING:
    from canaryctl.gates.rules.quantile_regression import QuantileRegression


@dataclass(frozen=True, slots=True)
class Exposure:
    """``enough``: a regression of the declared size would have been found. ``needed``: canary
    observations in all until something more can be said (None: nobody can tell)."""

    enough: bool
    needed: int | None
    waits: str


def is_due(state: State) -> bool:
    """Whether to plan again: always for (A); for (B), where it is dear, as the blocks grow."""
    plan = state["plan"]
    return plan is None or state["blocks"] == 0 or state["blocks"] >= 1.25 * plan["at"]


def plan(
    rule: QuantileRegression,
    state: State,
    grid: Sequence[float],
    past: Sequence[int],
    question: Question,
) -> dict[str, Any]:
    """``harm``: blocks or canary observations after which a canary slower by ``detectable`` would
    have failed with 90 % power; ``pass``: canary observations after which an equal one passes
    half of the time. None: never."""
    low, high, _, _, rho0 = state["question"]
    rate = exceedances(past, question.i) / past[-1]
    asked = high if rho0 is None else low
    slower = edges.share_above(grid, past, asked / (1 + rule.bars.detectable)) / rate
    passing = exceedances(past, question.j_pass) / past[-1] / rate
    share = _share(state)
    method, blocks, requests = rule.method, None, None
    if method.block_looks is None:
        needed = (
            planner.requests_needed(
                rho=slower,
                rho0=rho0 or 1.0,
                share=share,
                s=rate,
                climb=planner.climb_to_fail(rule.bars.log_fail),
                z=planner.Z90,
                phi=method.phi_upper,
            )
            if slower > (rho0 or 1.0)
            else None
        )
        requests = None if needed is None else whole(needed)
    elif slower > (rho0 or 1.0):
        blocks = _blocks(rule, state, slower, share, rule.bars.log_fail, planner.Z90, rho0 or 1.0)
        requests = None if blocks is None else whole(blocks * state["sums"][2] / state["blocks"])
    return {
        "at": state["blocks"],
        "blocks": blocks,
        "requests": requests,
        "pass": _pass_requests(rule, state, passing, share, rate) if passing < 1 else None,
    }


def exposure(rule: QuantileRegression, state: State, unit: str, look_count: int) -> Exposure:
    """Where the quantile stands. ``look_count``: observations of the baseline's past so far."""
    found = state["plan"]
    enough = _enough(rule, state)
    needed = None if found is None else found["requests"]
    if enough and found["pass"] is not None and rule.method.no_pass is None:
        needed = found["pass"]
    return Exposure(
        enough, needed, "" if state["passed"] else _waits(rule, state, unit, look_count)
    )


def _enough(rule: QuantileRegression, state: State) -> bool:
    found = state["plan"]
    if found is None or found["requests"] is None:
        return False
    if rule.method.block_looks is None:
        return bool(state["sums"][2] >= found["requests"])
    return bool(state["blocks"] >= found["blocks"])


def _share(state: State) -> float:
    n_c, n_b = state["sums"][2:4]
    return n_c / (n_c + n_b) if n_c + n_b else 0.0


def _pass_requests(
    rule: QuantileRegression, state: State, rho: float, share: float, rate: float
) -> int | None:
    """Canary observations until a canary with the ``rho``-fold rate at e_pass passes."""
    method = rule.method
    if method.no_pass is not None or rho <= 0:
        return None
    ratio = planner.requests_needed(
        rho=rho,
        share=share,
        s=rate,
        climb=rule.bars.log_pass + planner.MIXING_PASS,
        z=planner.Z50,
        phi=method.phi_pass,
    )
    if ratio is None or method.block_looks is None:
        return None if ratio is None else whole(ratio)
    blocks = _blocks(rule, state, rho, share, rule.bars.log_pass, planner.Z50, 1.0)
    if blocks is None:
        return None
    return whole(max(ratio, blocks * state["sums"][2] / state["blocks"]))


def _blocks(
    rule: QuantileRegression,
    state: State,
    rho: float,
    share: float,
    bar: float,
    z: float,
    rho0: float,
) -> int | None:
    """A burst counts as one exceedance: with a known φ there are so many fewer."""
    events = state["sums"][1] / state["blocks"] / rule.method.phi
    return _planned(
        _digits(rho, 3), _digits(share, 2), _digits(events, 2), bar, z, _digits(rho0, 3)
    )


@lru_cache(maxsize=4096)
def _planned(
    rho: float, share: float, events: float, bar: float, z: float, rho0: float
) -> int | None:
    """Cached, because it costs a millisecond and gates ask alike: hence the rounding."""
    return planner.blocks_needed(
        rho=rho, share=share, baseline_events=events, bar=bar, z=z, rho0=rho0
    )


def _digits(value: float, count: int) -> float:
    return float(f"{value:.{count}g}")


def _waits(rule: QuantileRegression, state: State, unit: str, seen: int) -> str:
    slower = f"a regression of {percent(rule.bars.detectable)}"
    if state["question"] is None:
        least = round(LEARN_EXCEEDANCES / (1 - rule.p))
        return (
            f"the baseline has shown {seen} of the {least} {unit} from which its quantile is placed"
        )
    low, high, _, effective, rho0 = state["question"]
    if low is None:
        where = "all its buckets" if high is None else f"its first edge of {seconds(high)}"
        return (
            f"the baseline's quantile lies below {where}: the engine's buckets are too coarse "
            f"to see a regression of {percent(rule.tolerance)}"
        )
    if high is None:
        return (
            f"the engine's buckets have no edge {percent(rule.tolerance)} above "
            f"{seconds(low)}, where the baseline's quantile lies: they cannot show a regression"
        )
    found = state["plan"]
    if found is None:
        return f"the first of the blocks of {rule.method.block_looks} looks is being filled"
    if found["requests"] is None:
        return (
            f"{_too_coarse(rule, low, high, effective, rho0)}, and {slower} (detectable) need "
            "not cross them, however long one waits"
        )
    if not _enough(rule, state):
        blocks = (
            f" {found['blocks']} blocks of {rule.method.block_looks} looks, about"
            if found["blocks"] is not None
            else ""
        )
        so_far = f" (so far {state['blocks']} blocks)" if blocks else ""
        return (
            f"to have found {slower} with 90 % power takes{blocks} {found['requests']} canary "
            f"{unit} in all{so_far}"
        )
    shown = f"{slower} would have been found with 90 % power"
    if rule.method.no_pass is not None:
        return f"{shown}; {rule.method.no_pass}"
    excluded = f"that it is worse by {percent(max(rule.margin, rule.tolerance))}"
    if found["pass"] is None:
        return f"{shown}; a pass would have to exclude {excluded}, which these buckets cannot show"
    return (
        f"{shown}; a pass has to exclude {excluded}, which takes about {found['pass']} canary "
        f"{unit} in all"
    )


def _too_coarse(
    rule: QuantileRegression, low: float, high: float, effective: float, rho0: float | None
) -> str:
    if rho0 is not None:
        return (
            f"inside the engine's bucket from {seconds(low)} to {seconds(high)} the answer is "
            "interpolated"
        )
    hint = "" if rule.interpolate else "; interpolate: true would guess inside the bucket"
    return (
        f"between the engine's buckets of {seconds(low)} and {seconds(high)} only regressions of "
        f"more than {percent(effective)} can be told (the effective tolerance; asked were "
        f"{percent(rule.tolerance)}{hint})"
    )

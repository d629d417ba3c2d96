"""How much evidence each rule is expected to take, from what the baseline has counted. Pure.

Where the baseline has shown too little, the amounts are those that the clearest evidence would
take: less than that no data can take, so that a plan may be refused on them.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace

from canaryctl.gates.needs import PASSING, UNSEEN, Amount, RuleForecast, StepTraffic, Target
from canaryctl.gates.readings import Buckets
from canaryctl.gates.rules.mixed_quantiles import MixedQuantiles
from canaryctl.gates.rules.quantile_limit import QuantileLimit
from canaryctl.gates.rules.quantile_regression import QuantileRegression
from canaryctl.gates.rules.rate_regression import RateRegression
from canaryctl.gates.rules.share_limit import ShareLimit
from canaryctl.gates.rules.standing import Bars
from canaryctl.gates.samples import Missing
from canaryctl.gates.stats import edges, lr, planner
from canaryctl.gates.wording import percent, seconds

Z = {
    Target.FAIL_50: planner.Z50,
    Target.FAIL_90: planner.Z90,
    Target.NO_HARM: planner.Z90,
    Target.PROVEN_50: planner.Z50,
    Target.PROVEN_90: planner.Z90,
}
_NOTICEABLE = 1.06  # edges 4.9 % apart answer a question of 10 % at 10 to 15 %
_TOO_COARSE = "they are too coarse for this gate (the probe's are fine enough)"


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where the baseline's buckets put the question. ``s``: the baseline's share above ``low``;
    ``rho``: target → the canary's share above the edge it is asked at over that; ``rho0``: what
    is still allowed of it."""

    low: float
    high: float
    s: float
    rho: Mapping[Target, float]
    tolerance: float
    rho0: float = 1.0
    interpolated: bool = False


_CLEAREST = _Placed(0.0, 0.0, 0.0, {t: 0.0 if t in PASSING else math.inf for t in Target}, 0.0)
"""Every exceedance is one arm's."""


@dataclass(frozen=True, slots=True)
class _Step:
    """``share``: π; ``events``: of the baseline in a block; None: as many as are the clearest.
    ``lead``: canary observations until the edges are placed."""

    share: float
    events: float | None
    lead: float


def quantiles(
    rule: MixedQuantiles,
    seen: Buckets | Missing | None,
    traffic: StepTraffic,
    per_request: float | None,
    known: Buckets | None,
) -> list[RuleForecast]:
    """Quantiles against the concurrent baseline, each by its own process: the first that fails
    does so for all, and all have to be harmless, or to pass. ``known``: the past of the A/A
    history, which places the edges from the first look on."""
    rate = traffic.requests_per_s
    per_look = rate * per_request * traffic.look_s if rate and per_request else None
    found = []
    for name, (part, _) in rule.parts.items():
        placed = (
            known is not None
            and edges.learned(known.cumulative, part.p)
            and (not isinstance(seen, Buckets) or seen.edges == known.edges)
        )
        one = _quantile(part, seen, traffic.share, per_look, rule.unit, placed=placed)
        if len(rule.parts) > 1:
            one = replace(
                one,
                rule=f"{name}: {one.rule}",
                lacks={target: f"{name}: {why}" for target, why in one.lacks.items()},
                notes=tuple(f"{name}: {note}" for note in one.notes),
            )
        found.append(one)
    return found


def _quantile(
    rule: QuantileRegression,
    seen: Buckets | Missing | None,
    share: float,
    per_look: float | None,
    unit: str,
    *,
    placed: bool,
) -> RuleForecast:
    """``per_look``: canary observations of one look; None: not known. ``placed``: the edges are
    there from the first look on."""
    # Without a rate the exceedances of a block are not known, only that there cannot be more.
    found = Missing(UNSEEN) if per_look is None else _place(rule, seen, unit)
    if isinstance(found, str):
        return RuleForecast(rule.method.describe(), {}, dict.fromkeys(Target, found))
    events, where = None, _CLEAREST
    if isinstance(found, _Placed):
        where = found
        looks = rule.method.block_looks or 1
        # A burst counts as one exceedance: with a known φ there are so many fewer.
        events = (per_look or 0.0) * looks * (1 - share) / share * found.s / rule.method.phi
    # It is the baseline that places the edges; here that is counted in canary observations.
    lead = 0.0 if placed else edges.LEARN_EXCEEDANCES / (1 - rule.p) * share / (1 - share)
    amounts: dict[Target, Amount] = {}
    lacks: dict[Target, str] = {}
    for target in Target:
        amount = _amount(rule, target, where, _Step(share, events, lead))
        if amount is None:
            lacks[target] = _why_never(rule, target, where)
        else:
            amounts[target] = amount
    coarse = isinstance(found, _Placed) and found.tolerance > rule.tolerance * _NOTICEABLE
    return RuleForecast(
        rule.method.describe(),
        amounts,
        lacks,
        notes=(_between(rule, where),) if coarse else (),
        least=found.reason if isinstance(found, Missing) else None,
        tolerance=where.tolerance if coarse else None,
    )


def quantile_limit(rule: QuantileLimit, seen: Buckets | Missing | None) -> RuleForecast:
    """A quantile against a fixed limit: the share of slower observations against 1−p."""
    share: float | Missing
    notes: tuple[str, ...] = ()
    if not isinstance(seen, Buckets):
        share = _unseen(seen)
    elif seen.count == 0:
        share = Missing(f"the baseline has shown no {rule.unit} yet")
    else:
        over = bisect_left(seen.edges, rule.limit_s * (1 - edges.TOLERANCE))
        within = bisect_right(seen.edges, rule.limit_s * (1 + edges.TOLERANCE)) - 1
        share = edges.exceedances(seen.cumulative, within) / seen.count if within >= 0 else 1.0
        if within != over:
            beyond = seconds(seen.edges[over]) if over < len(seen.finite) else "all its edges"
            under = seconds(seen.edges[within]) if within >= 0 else "nothing"
            note = (
                f"the limit of {seconds(rule.limit_s)} lies inside a bucket: what took longer than "
                f"{under} counts against a pass, longer than {beyond} for a failure"
            )
            notes = (note,)
    found = share_limit(rule.shares, share)
    return RuleForecast(found.rule, found.amounts, found.lacks, notes, found.least)


def share_limit(rule: ShareLimit, share: float | Missing) -> RuleForecast:
    """A share of events against a fixed limit. ``share``: the baseline's."""
    known = 0.0 if isinstance(share, Missing) else share
    worse = min(rule.limit * (1 + rule.bars.detectable), (1 + rule.limit) / 2)
    amounts: dict[Target, Amount] = {}
    lacks: dict[Target, str] = {}
    for target, z in Z.items():
        passing = target in PASSING
        units = None
        climbs = planner.climb_to_fail(rule.bars.log_fail)
        if passing:
            climbs = rule.bars.log_pass + planner.MIXING
        if not passing or known < rule.limit:
            units = planner.bernoulli_needed(
                theta=known if passing else worse,
                s0=rule.limit,
                climb=climbs,
                z=z,
                phi=rule.phi,
            )
        if units is None:
            lacks[target] = (
                f"{percent(known)} of the baseline's {rule.unit} {rule.subject} and at most "
                f"{percent(rule.limit)} may"
            )
        else:
            amounts[target] = Amount(samples=units)
    return RuleForecast(
        f"at most {percent(rule.limit)} of {rule.unit} {rule.subject}",
        amounts,
        lacks,
        least=share.reason if isinstance(share, Missing) else None,
    )


def rate_regression(
    rule: RateRegression, baseline: float | Missing, *, share: float
) -> RuleForecast:
    """Events per observation against the concurrent baseline. ``baseline``: its share of events;
    ``share``: π."""
    known = 0.0 if isinstance(baseline, Missing) else baseline
    amounts: dict[Target, Amount] = {}
    lacks: dict[Target, str] = {}
    for target, z in Z.items():
        passing = target in PASSING
        units = planner.requests_needed(
            rho=1.0 if passing else 1 + rule.bars.detectable,
            rho0=1 + (max(rule.margin, rule.tolerance) if passing else rule.tolerance),
            share=share,
            s=known if passing else min(max(known, rule.rare), 0.5),
            climb=climb(rule.bars, target),
            z=z,
            phi=rule.phi,
        )
        if units is not None:
            amounts[target] = Amount(samples=units)
        elif passing:
            lacks[target] = "without an event in the baseline no ratio to it can be shown"
        else:
            lacks[target] = f"{percent(rule.bars.detectable)} (detectable) is within the tolerance"
    return RuleForecast(
        f"share of {rule.unit} that {rule.subject}, allowed +{percent(rule.tolerance)}",
        amounts,
        lacks,
        least=baseline.reason if isinstance(baseline, Missing) else None,
    )


def climb(bars: Bars, target: Target) -> float:
    """Of (A)."""
    if target in PASSING:
        return bars.log_pass + planner.MIXING_PASS
    return planner.climb_to_fail(bars.log_fail)


def _unseen(seen: Missing | None) -> Missing:
    return Missing(UNSEEN) if seen is None else seen


def _place(
    rule: QuantileRegression, seen: Buckets | Missing | None, unit: str
) -> _Placed | Missing | str:
    """Where the quantile lies; Missing: too little was seen; text: the buckets can never say."""
    if not isinstance(seen, Buckets):
        return _unseen(seen)
    if not edges.learned(seen.cumulative, rule.p):
        least = round(edges.LEARN_EXCEEDANCES / (1 - rule.p))
        return Missing(
            f"the baseline has shown {seen.count} of the {least} {unit} from which its "
            "quantile is placed"
        )
    asked = edges.choose(
        seen.edges,
        seen.cumulative,
        p=rule.p,
        r=rule.tolerance,
        m=max(rule.margin, rule.tolerance),
    )
    if asked is None:
        lowest = next((edge for edge in seen.finite if edge > 0), None)
        where = "all its buckets" if lowest is None else f"its first edge of {seconds(lowest)}"
        return f"the baseline's quantile lies below {where}: {_TOO_COARSE}"
    low = seen.edges[asked.i]
    if asked.j_fail is None:
        return (
            f"the engine's buckets have no edge {percent(rule.tolerance)} above {seconds(low)}, "
            f"where the baseline's quantile lies: {_TOO_COARSE}"
        )
    high = seen.edges[asked.j_fail]
    rho0 = rule.allowed(seen.edges, seen.cumulative, asked)
    s = edges.exceedances(seen.cumulative, asked.i) / seen.count
    worse = (high if rho0 is None else low) / (1 + rule.bars.detectable)
    failing = beyond(seen, worse) / s
    # No harm is claimed on what is certain: the share above the next edge, not one in between.
    certain = edges.share_above(seen.edges, seen.cumulative, worse) / s
    passing = edges.exceedances(seen.cumulative, asked.j_pass) / seen.count / s
    rho = {target: passing if target in PASSING else failing for target in Target}
    return _Placed(
        low,
        high,
        s,
        rho | {Target.NO_HARM: certain},
        asked.effective_tolerance or 0.0,
        1.0 if rho0 is None else rho0,
        interpolated=rho0 is not None,
    )


def beyond(seen: Buckets, x: float) -> float:
    """P(> x) of the baseline: between two edges its logarithm is linear in that of x."""
    finite = seen.finite
    index = min(bisect_left(finite, x), len(finite) - 1)
    above = edges.exceedances(seen.cumulative, index) / seen.count
    low = finite[index - 1] if index else 0.0
    below = edges.exceedances(seen.cumulative, index - 1) / seen.count if index else 1.0
    if x >= finite[index] or above == below:
        return above
    if low <= 0 or above <= 0:
        return below + (above - below) * (x - low) / (finite[index] - low)
    part = math.log(x / low) / math.log(finite[index] / low)
    return float(below * (above / below) ** part)


def _amount(
    rule: QuantileRegression, target: Target, placed: _Placed, step: _Step
) -> Amount | None:
    """A failure is (A)'s or (B)'s, whichever judges; a pass is (A)'s and, where (B) judges, (B)'s
    too."""
    method, passing = rule.method, target in PASSING
    if passing and method.no_pass is not None:
        return None
    samples, blocks = 0.0, 0
    if passing or method.block_looks is None:
        found = _requests(rule, target, placed, step.share)
        if found is None:
            return None
        samples = found
    if method.block_looks is not None:
        counted = _blocks(rule, target, placed, step)
        if counted is None:
            return None
        blocks = counted
    looks = method.block_looks or 1
    if step.events is None:
        # How many of the baseline's observations lie above its edge depends on the buckets.
        return Amount(0.0, blocks, looks, step.lead, guess=samples)
    return Amount(samples, blocks, looks, step.lead)


def _requests(
    rule: QuantileRegression, target: Target, placed: _Placed, share: float
) -> float | None:
    """(A). Its grid of alternatives ends: what lies beyond is no clearer to it."""
    passing = target in PASSING
    rho = min(max(placed.rho[target], lr.PASS_GRID[-1]), lr.FAIL_GRID[-1] * placed.rho0)
    if rho >= 1 if passing else rho <= placed.rho0:
        return None
    return planner.requests_needed(
        rho=rho,
        rho0=1.0 if passing else placed.rho0,
        share=share,
        s=placed.s or 1 - rule.p,
        climb=climb(rule.bars, target),
        z=Z[target],
        phi=rule.method.phi_pass if passing else rule.method.phi_upper,
    )


def _blocks(rule: QuantileRegression, target: Target, placed: _Placed, step: _Step) -> int | None:
    bars, rho, passing = rule.bars, placed.rho[target], target in PASSING
    bar = bars.log_pass if passing else bars.log_fail
    if step.events is None:
        least = planner.least_blocks_to_pass if passing else planner.least_blocks
        return least(share=step.share, bar=bar)
    if rho >= 1 if passing else rho <= placed.rho0:
        return None
    return planner.blocks_needed(
        rho=max(rho, lr.PASS_GRID[-1]),
        rho0=1.0 if passing else placed.rho0,
        share=step.share,
        baseline_events=step.events,
        bar=bar,
        z=Z[target],
    )


def _why_never(rule: QuantileRegression, target: Target, placed: _Placed) -> str:
    if target in PASSING:
        return rule.method.no_pass or (
            f"there is no edge between {seconds(placed.low)}, where the baseline's quantile lies, "
            f"and {percent(rule.margin)} (margin) above it"
        )
    slower = f"{percent(rule.bars.detectable)} (detectable)"
    return f"{_between(rule, placed)}, and one of {slower} need not cross them"


def _between(rule: QuantileRegression, placed: _Placed) -> str:
    if placed.interpolated:
        return (
            f"inside the engine's bucket from {seconds(placed.low)} to {seconds(placed.high)} the "
            "answer is interpolated"
        )
    hint = "" if rule.interpolate else "; interpolate: true would guess inside the bucket"
    return (
        f"between the engine's buckets of {seconds(placed.low)} and {seconds(placed.high)} only "
        f"regressions of more than {percent(placed.tolerance)} can be told (asked were "
        f"{percent(rule.tolerance)}{hint})"
    )

"""How many steps the comparison of step times is expected to take, from the baseline's. Pure.

Within one bucket the process is (A) of :mod:`~canaryctl.gates.rules.bucket_speed`; its L_ρ is
linear in the counts, so that buckets with the same shares of the arms add up to one process
whose rates are their means, weighted by their steps. A bucket is judged once the baseline took
LEARN_STEPS there in the release: rare ones begin late.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from canaryctl.gates.needs import FAILING, PASSING, Amount, RuleForecast, Target
from canaryctl.gates.readings import Buckets
from canaryctl.gates.rules.bucket_speed import COVERED, LEARN_STEPS, RARE, BucketSpeed
from canaryctl.gates.rules.expected import Z, beyond, climb
from canaryctl.gates.samples import Missing
from canaryctl.gates.stats import edges, lr, planner
from canaryctl.gates.wording import percent

_ALIKE = "its batches are taken to be as large as the baseline's have been"


@dataclass(frozen=True, slots=True)
class _Odds:
    """``s``: the baseline's share of steps beyond its edge; ``rho``: the canary's beyond its own,
    over that."""

    s: float
    rho: float


def bucket_speed(
    rule: BucketSpeed,
    past: Mapping[str, Buckets] | Missing,
    steps: int,
    *,
    share: float,
    per_look: float | None,
) -> RuleForecast:
    """``past``: the baseline's steps by captured bucket; ``steps``: all of its steps, eager ones
    as well; ``share``: π; ``per_look``: steps of the canary in a look (None: not known). Amounts
    are in steps of the canary."""
    name = f"steps of one bucket, allowed +{percent(rule.tolerance)}"
    if isinstance(past, Missing):
        clearest = {t: Amount(samples=_clearest(rule, t, share)) for t in Target}
        return RuleForecast(name, clearest, least=past.reason)
    covered = sum(one.count for one in past.values()) / steps if steps else 0.0
    if covered <= COVERED:
        why = (
            f"{percent(covered)} of the baseline's steps replayed a graph, and at least "
            f"{percent(COVERED)} have to be comparable"
        )
        return RuleForecast(name, {}, dict.fromkeys(Target, why))
    begins = _begins(past, steps, share, per_look)
    amounts: dict[Target, Amount] = {}
    lacks: dict[Target, str] = {}
    for target in Target:
        odds = _odds(rule, past, target)
        compared = None if odds is None else _compared(rule, target, odds, share)
        if compared is None:
            lacks[target] = _why_never(rule, target)
            continue
        found = _until(begins, compared=compared)
        if target not in FAILING:
            found = max(found, _until(begins, covered=COVERED))
        amounts[target] = Amount(samples=found)
    return RuleForecast(name, amounts, lacks, notes=(_ALIKE,))


def _odds(rule: BucketSpeed, past: Mapping[str, Buckets], target: Target) -> _Odds | None:
    """Over all buckets that were learnt; None: the edges cannot tell the arms apart."""
    weight = rate = other = 0.0
    for one in past.values():
        if one.count < LEARN_STEPS:
            continue
        weight += one.count  # compared whatever its edges can say
        asked = rule.question(one.edges, one.cumulative)
        ours, theirs = asked.most_by, asked.most
        if target not in PASSING:
            ours, theirs = asked.slow_by, asked.slow
        if ours is None or theirs is None:
            continue
        rate += edges.exceedances(one.cumulative, theirs)
        if target in PASSING:
            other += edges.exceedances(one.cumulative, ours)
            continue
        reached = one.edges[ours] / (1 + rule.bars.detectable)
        # No harm is claimed on what is certain: the share above the next edge.
        certain = target is Target.NO_HARM
        above = edges.share_above(one.edges, one.cumulative, reached)
        other += one.count * (above if certain else beyond(one, reached))
    if not weight:
        return None
    if target in PASSING:
        return _Odds(rate / weight, other / rate) if other < rate else None
    rate, other = max(rate / weight, RARE), other / weight
    return _Odds(rate, other / rate) if other > rate else None


def _compared(rule: BucketSpeed, target: Target, odds: _Odds, share: float) -> float | None:
    """Steps of the canary that are compared until ``target``. The grid of alternatives ends:
    what lies beyond is no clearer to it."""
    passing = target in PASSING
    return planner.requests_needed(
        rho=max(odds.rho, lr.PASS_GRID[-1]) if passing else odds.rho,
        share=share,
        s=odds.s,
        climb=climb(rule.bars, target),
        z=Z[target],
        phi=rule.phi,
    )


def _begins(
    past: Mapping[str, Buckets], steps: int, share: float, per_look: float | None
) -> list[tuple[float, float]]:
    """(steps of the canary, in all, until a bucket is judged; its part of them), by the former:
    from the look on before which the baseline took LEARN_STEPS there."""
    found = []
    for one in past.values():
        part = one.count / steps
        if part <= 0:
            continue
        begins = LEARN_STEPS * share / (1 - share) / part
        if per_look:
            begins = math.ceil(begins / per_look - 1e-9) * per_look
        found.append((begins, part))
    return sorted(found)


def _until(
    begins: list[tuple[float, float]], *, compared: float = 0.0, covered: float = 0.0
) -> float:
    """The least n with Σ_b part_b·max(0, n − begins_b) ≥ compared + covered·n, b over the
    buckets: the sum is the largest of those over the first of them."""
    found, parts, missed = math.inf, 0.0, 0.0
    for begin, part in begins:
        parts += part
        missed += part * begin
        if parts > covered:
            found = min(found, (compared + missed) / (parts - covered))
    return found


def _clearest(rule: BucketSpeed, target: Target, share: float) -> float:
    """Where every step beyond the edges is one arm's: what no data can do with less."""
    odds = (1 - share) / share
    if target in PASSING:
        gain = max(-odds * math.log(g * share + 1 - share) for g in lr.PASS_GRID)
        return rule.phi * rule.bars.log_pass / gain
    gain = max(math.log(g / (g * share + 1 - share)) for g in lr.COUNT_GRID)
    return rule.phi * rule.bars.log_fail / gain


def _why_never(rule: BucketSpeed, target: Target) -> str:
    if target in PASSING:
        return (
            f"in no bucket with {LEARN_STEPS} steps of the baseline is there an edge between its "
            f"usual step and {percent(rule.margin)} (margin) more"
        )
    return (
        f"between the engine's edges, steps slower by {percent(rule.bars.detectable)} (detectable) "
        f"cannot be told in any bucket with {LEARN_STEPS} steps of the baseline"
    )

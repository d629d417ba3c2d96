"""How long the rules on requests that do not end are expected to take, from what the baseline has
answered. Pure.

How many are in flight in a sound engine is taken to vary as independent requests do: Poisson,
with the mean of Little's law, L = λW. That holds where an engine's speed does not depend on what
it holds; a queue holds more, and takes longer.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from canaryctl.gates.needs import UNSEEN, Amount, RuleForecast, StepTraffic, Target
from canaryctl.gates.readings import Buckets
from canaryctl.gates.rules.pile_up import (
    HANGING,
    LEARN_WINDOWS,
    LOOKS_PER_WINDOW,
    PHI,
    QUIET,
    PileUp,
)
from canaryctl.gates.samples import Missing
from canaryctl.gates.stats import edges, planner
from canaryctl.gates.wording import percent, seconds

SPREAD = 0.7
"""The standard deviation of the least of a window's numbers in flight, over that of one."""
_ROUNDS = 4
_UNPROVEN = "that none hangs can be shown by a limit on their age alone, max_seconds"
_EVER = {Target.PROVEN_50: 0.5, Target.PROVEN_90: 0.9, Target.NO_HARM: 0.9}
_Z = {Target.FAIL_50: planner.Z50, Target.FAIL_90: planner.Z90, Target.NO_HARM: planner.Z90}


def age(
    limit_s: float, shown_share: float, latency: Buckets | Missing | None, traffic: StepTraffic
) -> RuleForecast:
    """A request in flight for longer than ``limit_s``. ``latency``: the baseline's requests that
    ended; ``shown_share``: of those that ended, how many a pass leaves in doubt.

    Of an engine that ends nothing the age is proven from its first look on. A pass needs the
    least number in flight of the last ``limit_s`` seconds, which a busy engine has by chance, to
    be so small a share of those that ended.
    """
    name = f"none in flight for more than {seconds(limit_s)}"
    look_s = traffic.look_s
    fails = Amount(watch_s=(math.floor(limit_s / look_s + 1e-9) + 2) * look_s)
    amounts = {Target.FAIL_50: fails, Target.FAIL_90: fails}
    watched_s = (math.ceil(limit_s / look_s - 1e-9) + 1) * look_s
    harm = "that ends nothing any more"
    mean_s = _mean_s(latency)
    if isinstance(mean_s, Missing) or traffic.requests_per_s is None:
        least = mean_s.reason if isinstance(mean_s, Missing) else UNSEEN
        amounts |= dict.fromkeys(_EVER, Amount(watch_s=watched_s))
        return RuleForecast(name, amounts, least=least, harm=harm)
    if mean_s > limit_s:
        why = f"the baseline's requests take {seconds(mean_s)} themselves, in the mean"
        return RuleForecast(name, amounts, dict.fromkeys(_EVER, why), harm=harm)
    each = traffic.requests_per_s * mean_s / traffic.engines
    moments = 1 + limit_s / max(look_s, mean_s)  # that know nothing of each other, in the window
    for target, chance in _EVER.items():
        most = traffic.engines * _least_of(each, moments, chance)
        amounts[target] = Amount(samples=most / shown_share, watch_s=watched_s)
    return RuleForecast(name, amounts, harm=harm)


def pile_up(rule: PileUp, latency: Buckets | Missing | None, traffic: StepTraffic) -> RuleForecast:
    """Rises of the number in flight, of a canary that never ends a share HANGING."""
    name = f"requests in flight, allowed to pile up {percent(rule.tolerance)} more often"
    lacks = dict.fromkeys((Target.PROVEN_50, Target.PROVEN_90), _UNPROVEN)
    mean_s = _mean_s(latency)
    if isinstance(mean_s, Missing) or traffic.requests_per_s is None:
        least = mean_s.reason if isinstance(mean_s, Missing) else UNSEEN
        window_s = LOOKS_PER_WINDOW * traffic.look_s
        calm = _Calm(QUIET, PHI)
    else:
        least = None
        longest_s = mean_s
        if isinstance(latency, Buckets):
            longest_s = max(
                longest_s, edges.quantile(latency.edges, latency.cumulative, 0.99) or 0.0
            )
        window_s = max(LOOKS_PER_WINDOW * traffic.look_s, longest_s)
        calm = _calm(rule, mean_s, window_s, traffic)
    learns_s = (math.ceil(LEARN_WINDOWS * window_s / traffic.look_s - 1e-9) - 1) * traffic.look_s
    amounts: dict[Target, Amount] = {}
    for target, z in _Z.items():
        units = rule.requests(calm.quiet, share=traffic.share, phi=calm.phi, z=z)
        if units is None:
            lacks[target] = (
                f"the baseline's number in flight rises so often by itself that {percent(HANGING)} "
                f"of the requests are within the allowed +{percent(rule.tolerance)}"
            )
        elif target is Target.NO_HARM:
            amounts[target] = Amount(samples=units, lead_s=learns_s)
        else:  # a request that hangs is in the floor once the window has passed
            amounts[target] = Amount(samples=units, lead_s=learns_s + window_s)
    return RuleForecast(
        name, amounts, lacks, least=least, harm=f"of whose requests {percent(HANGING)} never end"
    )


@dataclass(frozen=True, slots=True)
class _Calm:
    """``quiet``: rises of the baseline's floor, a request; ``phi``: as the rule takes it."""

    quiet: float
    phi: float


def _calm(rule: PileUp, mean_s: float, window_s: float, traffic: StepTraffic) -> _Calm:
    """Of a sound baseline: over N windows its floor rises by chance from where it was first to
    the largest of N. Windows are taken to be independent, and a floor to vary by SPREAD·√L."""
    rate, odds = traffic.requests_per_s or 0.0, (1 - traffic.share) / traffic.share
    engines = max(1.0, traffic.engines * odds)  # equal load
    each = rate * odds / engines * mean_s
    phi = max(PHI, math.sqrt(engines * each))
    quiet = QUIET
    for _ in range(_ROUNDS):  # the longer it takes, the more records there are, and the rarer
        units = rule.requests(quiet, share=traffic.share, phi=phi, z=planner.Z50)
        if units is None:
            break
        windows = max(2.0, units / rate / window_s)
        largest = NormalDist().inv_cdf((windows - 0.375) / (windows + 0.25))
        quiet = max(QUIET, engines * SPREAD * math.sqrt(each) * largest / (units * odds))
    return _Calm(quiet, phi)


def _mean_s(latency: Buckets | Missing | None) -> float | Missing:
    """Within a bucket requests are taken to end in its middle."""
    if not isinstance(latency, Buckets):
        return Missing(UNSEEN) if latency is None else latency
    if latency.count == 0:
        return Missing("the baseline has ended no request yet")
    total = low = before = 0.0
    for edge, count in zip(latency.edges, latency.cumulative, strict=True):
        total += (count - before) * ((low + edge) / 2 if math.isfinite(edge) else low)
        low, before = edge, count
    return total / latency.count


def _least_of(mean: float, moments: float, chance: float) -> int:
    """The number that the least of so many Poisson numbers does not exceed with ``chance``:
    the smallest m with P(> m)^moments ≤ 1 − chance."""
    above = (1 - chance) ** (1 / moments)
    if mean > 500:  # as good as normal there, where exp(−mean) underflows
        return max(0, math.ceil(mean + math.sqrt(mean) * NormalDist().inv_cdf(1 - above)))
    term = below = math.exp(-mean)
    m = 0
    while 1 - below > above:
        m += 1
        term *= mean / m
        below += term
    return m

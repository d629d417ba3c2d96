"""How much is needed before an e-process can be expected to decide.

Every form here has a growth per unit (a request, a block) of mean g and variance v, and has to
climb to Λ; with power Φ(z) that takes n = [(z√v + √(z²v + 4gΛ)) / (2g)]² units.
Λ = ln(1/bar) + the price of mixing. Simulated against the processes: tests/property.
"""

import math
from collections.abc import Iterator

from canaryctl.gates.stats.block import BETS
from canaryctl.gates.stats.mixture import log_mean_exp

Z50, Z90 = 0.0, 1.28
MIXING = 0.7
MIXING_PASS = 0.4
"""Of (A)'s pass: less, because its low bar is more often reached by a lucky start before the mean
growth is there. Simulated medians come within 13 % then for rates of 0.15 to 0.7, ninth deciles up
to 18 % sooner."""
LATE = math.log(2)
"""Of every failure: half of the evidence is kept for late starts
(:func:`~canaryctl.gates.stats.mixture.log_e_late`)."""
_NEVER = 1_000_000
_POISSON_UP_TO = 12.0  # exceedances a block: above, their number is taken as fixed
_NEGLIGIBLE = 1e-7
_ENUMERATE_UP_TO = 200  # above, a larger block adds next to nothing to what it can say


def climb_to_fail(bar: float) -> float:
    """Λ of a mixture over alternatives and starts, all of them but (B)'s, to reach ``bar``."""
    return bar + MIXING + LATE


def units_needed(g: float, v: float, climb: float, z: float) -> float | None:
    """The formula above; None where the growth is not positive: never."""
    if g <= 0:
        return None
    root = z * math.sqrt(v) + math.sqrt(z * z * v + 4 * g * climb)
    return (root / (2 * g)) ** 2


def requests_needed(
    *,
    rho: float,
    share: float,
    s: float,
    climb: float,
    z: float,
    phi: float = 1.0,
    rho0: float = 1.0,
) -> float | None:
    """Canary observations n_C that (A) needs when the canary's rate is ``rho`` × the baseline's.

    ``share``: the canary's part π of all observations; ``s``: the baseline's event share;
    ``climb``: Λ. With p1 = ρπ/(ρπ+1−π), p0 the same for ρ0, a = ln(p1/p0), b = ln((1−p1)/(1−p0)):
    g = s(ρa + odds·b), v = s(ρa² + odds·b²), odds = (1−π)/π. None: never.
    ρ > ρ0 asks for FAIL, ρ < ρ0 for PASS.
    """
    if not 0 < share < 1 or s <= 0 or rho <= 0 or rho == rho0:
        return None
    odds = (1 - share) / share
    p1 = rho * share / (rho * share + 1 - share)
    p0 = rho0 * share / (rho0 * share + 1 - share)
    a, b = math.log(p1 / p0), math.log((1 - p1) / (1 - p0))
    needed = units_needed(s * (rho * a + odds * b), s * (rho * a * a + odds * b * b), climb, z)
    return None if needed is None else phi * needed


def bernoulli_needed(
    *, theta: float, s0: float, climb: float, z: float, phi: float = 1.0
) -> float | None:
    """Observations that the one-sample process needs when the true share is ``theta``."""
    if not (0 <= theta < 1 and 0 < s0 < 1) or theta == s0:
        return None
    hit = math.log(theta / s0) if theta else 0.0
    miss = math.log((1 - theta) / (1 - s0))
    g = theta * hit + (1 - theta) * miss
    v = theta * hit * hit + (1 - theta) * miss * miss - g * g
    needed = units_needed(g, max(v, 0.0), climb, z)
    return None if needed is None else phi * needed


def blocks_needed(
    *,
    rho: float,
    share: float,
    baseline_events: float,
    bar: float,
    z: float,
    rho0: float = 1.0,
) -> int | None:
    """Blocks that (B) needs to decide on a canary whose exceedance rate is ``rho`` × the
    baseline's: to FAIL for ρ > ρ0, to PASS for ρ < ρ0.

    ``baseline_events``: mean independent exceedances of the baseline in a block (bursts, where
    they come in bursts); ``bar``: ln(G/α) or ln(1/β), without Λ's price of mixing. The growth of
    each bet c is exact: the canary's exceedances among m are binomial(m, p1), p1 = ρπ/(ρπ+1−π),
    with m Poisson where it is small. The bets rise and fall together, so that the smallest n is
    sought with w·mean_c exp(n·g_c − z√(n·v_c)) ≥ e^bar, w = ½ for FAIL (late starts have the
    other half): for one bet alone that is the formula of :func:`units_needed`. None: never, or
    not in a million.
    """
    if not 0 < share < 1 or rho <= 0 or rho == rho0 or baseline_events <= 0:
        return None
    growths = _growths(rho, rho0, share, baseline_events)
    climb = bar + (LATE if rho > rho0 else 0.0)

    def decided(n: float) -> bool:
        return log_mean_exp([n * g - z * math.sqrt(n * v) for g, v in growths]) >= climb

    high = 1
    while not decided(high):
        high *= 2
        if high > _NEVER:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    return high


def _growths(
    rho: float, rho0: float, share: float, baseline_events: float
) -> list[tuple[float, float]]:
    """(mean, variance) of one block's growth, for each bet."""
    p1 = rho * share / (rho * share + 1 - share)
    p0 = rho0 * share / (rho0 * share + 1 - share)
    stakes = [bet / p0 if rho > rho0 else -bet / (1 - p0) for bet in BETS]
    first, second = [0.0] * len(BETS), [0.0] * len(BETS)
    for m, weight in _block_sizes(baseline_events / (1 - p1)):
        for k, chance in _binomial(m, p1):
            probability = weight * chance
            if probability < _NEGLIGIBLE:
                continue
            x = k / m - p0
            for index, stake in enumerate(stakes):
                growth = math.log1p(stake * x)
                first[index] += probability * growth
                second[index] += probability * growth * growth
    return [(g, max(s - g * g, 0.0)) for g, s in zip(first, second, strict=True)]


def _block_sizes(mean: float) -> Iterator[tuple[int, float]]:
    """(m, probability) of exceedances in a block; m = 0 says nothing and is left out."""
    if mean > _POISSON_UP_TO:
        yield min(int(mean), _ENUMERATE_UP_TO), 1.0
        return
    chance = math.exp(-mean)
    for m in range(1, int(mean + 6 * math.sqrt(mean)) + 4):
        chance *= mean / m
        yield m, chance


def _binomial(m: int, p: float) -> Iterator[tuple[int, float]]:
    """(k, probability) within five standard deviations; by logarithms, because (1−p)^m may
    underflow."""
    top = math.lgamma(m + 1)
    hit, miss = math.log(p), math.log1p(-p)
    reach = 5 * math.sqrt(m * p * (1 - p)) + 3
    for k in range(max(0, int(m * p - reach)), min(m, int(m * p + reach) + 1) + 1):
        chance = top - math.lgamma(k + 1) - math.lgamma(m - k + 1) + k * hit + (m - k) * miss
        yield k, math.exp(chance)


def least_blocks(*, share: float, bar: float) -> int:
    """Blocks that (B) needs to FAIL where every exceedance is the canary's: no evidence is
    quicker. A block multiplies bet c by 1 + c(1−π)/π then; late starts cost half. 11 at π = ½."""
    return _least([bet * (1 - share) / share for bet in BETS], bar + LATE)


def least_blocks_to_pass(*, share: float, bar: float) -> int:
    """Blocks that (B) needs to PASS where no exceedance is the canary's: 48 at π = 0.1, 7 at ½."""
    return _least([bet * share / (1 - share) for bet in BETS], bar)


def _least(gains: list[float], climb: float) -> int:
    blocks = 1
    while log_mean_exp([blocks * math.log1p(gain) for gain in gains]) < climb:
        blocks += 1
    return blocks

"""What an A/A history says of a latency: how strongly its observations depend on each other.

A history is equal engines beside each other under the load of the release, observed for an
hour or more. Slow requests come in bursts (a queue, a long prompt), so that their counts vary
φ times as much as those of independent ones; φ and how long a burst lasts decide which rule may
judge a latency and what a block of it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from canaryctl.common.metrics import Signal


@dataclass(frozen=True, slots=True)
class Dependence:
    """Of one signal at one quantile.

    ``phi``: variance of five-minute counts of exceedances over that of independent ones, ≥ 1.
    ``phi_upper``: its upper 90 % bound. ``block_looks``: L*, the looks after which counts vary
    almost as in five minutes. ``engines``, ``blocks``: how many were observed for how long.
    """

    phi: float
    phi_upper: float
    block_looks: int
    engines: int
    blocks: int


@dataclass(frozen=True, slots=True)
class AaHistory:
    """``look_s``: seconds of a look; ``span_s``: how long it was observed.

    ``dependences``: (signal, quantile as 0–1) → what was found. A pair that is absent had no
    exceedance: its dependence is unknown.
    """

    look_s: float
    span_s: float
    dependences: Mapping[tuple[Signal, float], Dependence] = field(default_factory=dict)

    def dependence(self, signal: Signal, p: float) -> Dependence | None:
        return self.dependences.get((signal, p))

"""Worlds with queues: first come first served, Poisson arrivals of 2/s at each of ten engines.

A request's TTFT is the time it waits and is served, and is seen when that is over. A regression
scales the service so that the long-run p99 of the TTFT grows by the factor; the scales below were
found by ``python -m benchmarks.gate_power.calibrate``, to about one part in a thousand.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from benchmarks.gate_power.independent import LOOK_S, LOOKS, NONE, Slowdown
from benchmarks.gate_power.ruler import REQUESTS, Counts, Floats

RATE_PER_S = 2.0
FIXED_S = 0.02
CAP_MEANS = 60.0
WARM_UP_S = 600.0
DRIFT_SD, DRIFT_TAU_S = 0.25, 300.0
GUIDE_CELLS = 512


@dataclass(frozen=True, slots=True)
class Queue:
    """``servers`` of one engine; service: 20 ms + a log-normal of ``mean_s`` and ``sigma``.

    ``drifting``: all engines share a load multiplier, exp of an Ornstein–Uhlenbeck process.
    ``scales``: the p99's factor → the service's.
    """

    name: str
    servers: int
    mean_s: float
    sigma: float = 0.9
    drifting: bool = False
    scales: Mapping[float, float] = field(default_factory=dict)
    ruler = REQUESTS

    def load(self, rng: Any) -> Floats:
        """Multiplier of all engines' arrival rate, for each second from the warm-up on."""
        seconds = int(WARM_UP_S + LOOKS * LOOK_S)
        return drift(rng, seconds) if self.drifting else np.ones(seconds)

    def arm(self, rng: Any, load: Floats, engines: int, slowdown: Slowdown = NONE) -> Counts:
        """Cumulative counts [looks, edges + 1] of so many engines together."""
        scale = 1.0 if slowdown == NONE else self.scales[slowdown.factor]
        counts = np.zeros((LOOKS, self.ruler.edges.size + 1), np.int64)
        mu, cap = math.log(self.mean_s) - self.sigma**2 / 2, CAP_MEANS * self.mean_s
        service = np.array([mu, self.sigma, cap, scale])
        edges = self.ruler.edges
        for _ in range(engines):
            serve(rng, load, self.servers, service, edges, guide(edges), counts, LOOK_S)
        return counts.cumsum(axis=1)


def guide(edges: Floats) -> tuple[float, float, NDArray[np.int64]]:
    """Where to begin to look for a bucket, by the logarithm of a latency: (its least, cells per
    unit, bucket of each cell)."""
    low, high = math.log(edges[0]), math.log(edges[-1])
    starts = np.exp(np.linspace(low, high, GUIDE_CELLS + 1)[:-1])
    buckets = np.maximum(np.searchsorted(edges, starts) - 1, 0)
    return low, GUIDE_CELLS / (high - low), buckets.astype(np.int64)


@njit(nogil=True, cache=True)
def drift(rng, seconds):  # type: ignore[no-untyped-def]
    """exp of a stationary Ornstein–Uhlenbeck process, one value a second."""
    keep = math.exp(-1.0 / DRIFT_TAU_S)
    fresh = DRIFT_SD * math.sqrt(1.0 - keep * keep)
    found = np.empty(seconds)
    x = DRIFT_SD * rng.standard_normal()
    for second in range(seconds):
        found[second] = math.exp(x)
        x = keep * x + fresh * rng.standard_normal()
    return found


@njit(nogil=True, cache=True)
def _bucket(x, edges, low, cells, buckets):  # type: ignore[no-untyped-def]
    """The first edge at or above ``x``."""
    cell = int((math.log(x) - low) * cells)
    found = buckets[min(max(cell, 0), buckets.size - 1)]
    while found < edges.size and edges[found] < x:
        found += 1
    return found


@njit(nogil=True, cache=True)
def serve(  # type: ignore[no-untyped-def]
    rng, load, servers, service, edges, guided, counts, look_s
):
    """One engine, added to ``counts`` [looks, edges + 1], not cumulative. ``service``: μ, σ and cap
    of the log-normal, and the scale of the whole; ``guided``: :func:`guide` of the edges."""
    mu, sigma, cap, scale = service
    low, cells, buckets = guided
    free_at = np.zeros(servers)
    end_s = WARM_UP_S + counts.shape[0] * look_s
    until_next = rng.standard_exponential()
    for second in range(load.size):
        rate = RATE_PER_S * load[second]
        now, left = float(second), 1.0
        while until_next <= rate * left:
            now += until_next / rate
            left = second + 1.0 - now
            until_next = rng.standard_exponential()
            chosen = 0
            for server in range(1, servers):
                if free_at[server] < free_at[chosen]:
                    chosen = server
            work = FIXED_S + min(cap, math.exp(mu + sigma * rng.standard_normal()))
            end = max(now, free_at[chosen]) + scale * work
            free_at[chosen] = end
            if WARM_UP_S <= end < end_s:
                look = int((end - WARM_UP_S) / look_s)
                counts[look, _bucket(end - now, edges, low, cells, buckets)] += 1
        until_next -= rate * left


Q60 = Queue("Q60", 1, 0.28, scales={1.1: 1.0396, 1.33: 1.1155, 1.5: 1.1612, 2.0: 1.2619})
Q80 = Queue("Q80", 1, 0.38, scales={1.1: 1.0195, 1.33: 1.0548, 1.5: 1.0747, 2.0: 1.1154})
QK = Queue("Qk", 8, 2.4, scales={1.1: 1.0904, 1.33: 1.2642, 1.5: 1.3488, 2.0: 1.4621})
QD = Queue(
    "Qd", 1, 0.28, drifting=True, scales={1.1: 1.0104, 1.33: 1.0326, 1.5: 1.0468, 2.0: 1.0831}
)
QUEUES = (Q60, Q80, QK, QD)

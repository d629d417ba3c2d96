"""By how much the service must slow for the long-run p99 of the TTFT to grow by a factor.

    python -m benchmarks.gate_power.calibrate

One long run with the same random numbers for every scale, so that the ratio of the two p99 is
far more certain than either; the scale is sought by the secant rule.
"""

import math

import numpy as np

from benchmarks.gate_power.queues import (
    CAP_MEANS,
    FIXED_S,
    QUEUES,
    RATE_PER_S,
    Queue,
    drift,
    guide,
    serve,
)
from benchmarks.gate_power.ruler import random_source

FACTORS = (1.1, 1.33, 1.5, 2.0)
SECONDS = 10_000_000
EDGES = np.array([0.02 * 1.002**k for k in range(8000)])
NEAR = 5e-4  # of the logarithm of the factor that is reached


def p99(queue: Queue, scale: float, seconds: int) -> float:
    """Of the TTFT in the long run, in seconds."""
    rng = random_source(20, [each.name for each in QUEUES].index(queue.name))
    load = drift(rng, seconds) if queue.drifting else np.ones(seconds)
    counts = np.zeros((1, EDGES.size + 1), np.int64)
    mu, cap = math.log(queue.mean_s) - queue.sigma**2 / 2, CAP_MEANS * queue.mean_s
    service = np.array([mu, queue.sigma, cap, scale])
    serve(rng, load, queue.servers, service, EDGES, guide(EDGES), counts, float(seconds))
    cumulative = counts[0].cumsum()
    rank = 0.99 * cumulative[-1]
    k = int(np.searchsorted(cumulative, rank))
    inside = (rank - cumulative[k - 1]) / (cumulative[k] - cumulative[k - 1])
    return float(EDGES[k - 1] * (EDGES[k] / EDGES[k - 1]) ** inside)


def scale_for(queue: Queue, factor: float, *, seconds: int = SECONDS) -> float:
    """The secant rule on the logarithm of the p99, short of the scale at which the queue grows
    for ever."""
    most = 0.97 * queue.servers / (RATE_PER_S * (FIXED_S + queue.mean_s))
    goal, reference = math.log(factor), math.log(p99(queue, 1.0, seconds))
    before, reached_before = 1.0, 0.0
    scale = min(most, 1 + 0.4 * (factor - 1))
    while True:
        reached = math.log(p99(queue, scale, seconds)) - reference
        if abs(reached - goal) < NEAR:
            return scale
        slope = (reached - reached_before) / (scale - before)
        before, reached_before = scale, reached
        scale = min(most, scale + (goal - reached) / slope)


if __name__ == "__main__":
    for queue in QUEUES:
        print(queue.name, {f: round(scale_for(queue, f), 4) for f in FACTORS}, flush=True)

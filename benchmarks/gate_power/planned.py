"""What the planner says of the independent world, to be held against what was measured."""

import math
from collections.abc import Iterator

import numpy as np

from benchmarks.gate_power.experiments import ALIGNED_MARGINS
from benchmarks.gate_power.forms import ALPHA, BETA, TOLERANCE
from benchmarks.gate_power.independent import LATENCY, below
from benchmarks.gate_power.ruler import REQUESTS
from canaryctl.gates.history import QUANTILES
from canaryctl.gates.stats import planner

SHARE = 0.1


def plans() -> Iterator[tuple[str, str, bool, float]]:
    """(what, case, whether it is a pass, canary requests that half of the releases take)."""
    late = math.log(2)
    for name, factor in (("+50 %", 1.5), ("+100 %", 2.0)):
        climb = -math.log(ALPHA) + planner.MIXING + late
        yield f"fail, {name}", name, False, _requests((1 + TOLERANCE) / factor, climb)
    for name, margin in ALIGNED_MARGINS.items():
        climb = -math.log(BETA) + planner.MIXING
        yield f"pass, margin {name}", f"equal, margin {name}", True, _requests(1 + margin, climb)


def _requests(stretch: float, climb: float) -> float:
    """For a canary that exceeds ``stretch`` times the baseline's edge as often as the baseline
    would: the edge at or below the p99, the rates those of the world."""
    edges = REQUESTS.fine_edges()
    above = np.array([1 - below(LATENCY, float(edge)) for edge in edges])
    low = float(edges[np.flatnonzero(above >= 1 - QUANTILES["p99"])[-1]])
    s = 1 - below(LATENCY, low)
    rho = (1 - below(LATENCY, low * stretch)) / s
    found = planner.requests_needed(rho=rho, share=SHARE, s=s, climb=climb, z=planner.Z50)
    assert found is not None
    return found

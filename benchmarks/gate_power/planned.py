"""What the planner says of the independent world, to be held against what was measured."""

import math
from collections.abc import Iterator

from benchmarks.gate_power.experiments import MARGINS
from benchmarks.gate_power.forms import ALPHA, BETA, TOLERANCE
from benchmarks.gate_power.independent import LATENCY, below
from benchmarks.gate_power.ruler import REQUESTS
from canaryctl.gates.history import QUANTILES
from canaryctl.gates.rules.quantile_regression import Method
from canaryctl.gates.stats import edges, planner

SHARE = 0.1
INDEPENDENT = Method(block_looks=None)
MANY = 10**9  # observations, so that rounding to whole ones does not show


def plans() -> Iterator[tuple[str, str, bool, float]]:
    """(what, case, whether it is a pass, canary requests that half of the releases take)."""
    failing = planner.climb_to_fail(-math.log(ALPHA))
    for name, factor in (("+50 %", 1.5), ("+100 %", 2.0)):
        yield f"fail, {name}", name, False, _requests(MARGINS["33 %"], factor, failing)
    passing = -math.log(BETA) + planner.MIXING_PASS
    for name, margin in MARGINS.items():
        yield f"pass, margin {name}", f"equal, margin {name}", True, _requests(margin, 1.0, passing)


def _requests(margin: float, factor: float, climb: float) -> float:
    """At the edges that the gate asks at; a canary slower by ``factor`` fails, an equal passes."""
    grid = [*map(float, REQUESTS.fine_edges()), math.inf]
    cumulative = [round(MANY * below(LATENCY, edge)) for edge in grid[:-1]] + [MANY]
    asked = edges.choose(grid, cumulative, p=QUANTILES["p99"], r=TOLERANCE, m=margin)
    assert asked is not None
    assert asked.j_fail is not None
    edge = grid[asked.j_fail if factor > 1 else asked.j_pass]
    s = 1 - below(LATENCY, grid[asked.i])
    rho = (1 - below(LATENCY, edge / factor)) / s
    phi = INDEPENDENT.phi_pass if rho < 1 else INDEPENDENT.phi_upper
    found = planner.requests_needed(rho=rho, share=SHARE, s=s, climb=climb, z=planner.Z50, phi=phi)
    assert found is not None
    return found

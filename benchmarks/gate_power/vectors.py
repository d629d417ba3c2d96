"""Published values of both e-processes on three looks."""

from canaryctl.gates.stats import block, lr, mixture
from canaryctl.gates.stats.counts import Counts

LOOKS = (Counts(0, 3, 30, 270), Counts(2, 2, 31, 268), Counts(1, 4, 29, 275))
EXPECTED = (0.734908, -1.262779, 0.451183, -0.173057)
"""ln E of (A) for failing and passing, of (B) with blocks of one look for failing and passing."""


def vector_error() -> float:
    """The largest difference from the published values."""
    logs = [[0.0] * 8 for _ in EXPECTED]
    for counts in LOOKS:
        logs = [
            lr.update(logs[0], lr.FAIL_GRID, counts),
            lr.update(logs[1], lr.PASS_GRID, counts),
            block.update_fail(logs[2], counts),
            block.update_pass(logs[3], counts),
        ]
    found = [mixture.log_mean_exp(each) for each in logs]
    return max(abs(a - b) for a, b in zip(found, EXPECTED, strict=True))

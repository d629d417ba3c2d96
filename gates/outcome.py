"""What gates say: measurements, results, and the verdict that folds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

VALID_LOOKS = 3
"""Looks with data that promotion needs of a gate."""


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class GateResult:
    """A gate's standing after its latest look. FAILED is sticky: it never changes again.

    ``value``, ``baseline`` and ``limit`` are in the gate's own unit (seconds, ratio, events).
    ``samples``: canary observations counted so far; ``needed``: how many are needed in all
    before the gate can decide, where that is known.
    ``no_harm``: nothing failed, and the exposure is such that a regression of the declared
    ``detectable`` size would have been found with 90 % power.
    """

    name: str
    outcome: Outcome
    reason: str
    value: float | None = None
    baseline: float | None = None
    limit: float | None = None
    samples: int = 0
    needed: int | None = None
    no_harm: bool = False
    valid_looks: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rules(self) -> Sequence[Mapping[str, Any]]:
        """What each rule of the gate says of its evidence: ``log_e_fail``, ``log_fail_at``, …;
        none for a gate that weighs none."""
        found: Sequence[Mapping[str, Any]] = self.details.get("rules", ())
        return (self.details,) if "log_e_fail" in self.details else found


def unseen(name: str) -> GateResult:
    """The standing of a gate that was never asked."""
    return GateResult(name, Outcome.INCONCLUSIVE, "not looked at yet")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fold of all gates: worst wins, and no data is never a pass."""

    outcome: Outcome
    results: tuple[GateResult, ...]
    reason: str
    promotable: bool  # the promotion rule holds for every required gate
    missing: tuple[str, ...] = ()  # what promotion still waits for, in words

    @property
    def failed(self) -> tuple[GateResult, ...]:
        return tuple(r for r in self.results if r.outcome is Outcome.FAILED)

"""What one rule of a gate says, the bars that it has to reach, and how several are folded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from canaryctl.gates.base import GateContext
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.samples import Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.wording import percent


@dataclass(frozen=True, slots=True)
class Bars:
    """Where the evidence decides. ``log_fail``: ln(G/α), of all gates and rules together."""

    log_fail: float
    log_pass: float
    detectable: float
    alpha: float

    @classmethod
    def of(cls, spec: GateSpec, context: GateContext, *, rules: int) -> "Bars":
        """``rules``: how many rules of this gate spend its part of α."""
        share = spec.alpha / (max(1, context.gates_total) * max(1, rules))
        return cls(-math.log(share), -math.log(spec.beta), context.detectable, spec.alpha)

    def suspects(self, log_fail: float) -> bool:
        """Whether the evidence leans so far towards a failure that no harm cannot be claimed,
        whatever the exposure: a sound canary is ever suspected with probability β at most."""
        return log_fail >= self.log_pass


@dataclass(frozen=True, slots=True)
class Standing:
    """``claim``: what is failed or shown, as a clause; ``waits``: what is missing for more."""

    failed: bool = False
    passed: bool = False
    no_harm: bool = False
    claim: str = ""
    waits: str = ""
    needed: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def outcome(standings: Sequence[Standing]) -> Outcome:
    """Worst wins; passed only if every rule passed."""
    if any(s.failed for s in standings):
        return Outcome.FAILED
    if standings and all(s.passed for s in standings):
        return Outcome.PASSED
    return Outcome.INCONCLUSIVE


def harmless(standings: Sequence[Standing]) -> bool:
    """No rule failed, and each passed or had the exposure to find what is declared detectable."""
    return bool(standings) and all((s.passed or s.no_harm) and not s.failed for s in standings)


def needed(standings: Sequence[Standing]) -> int | None:
    """Observations until the last rule can decide; None where one cannot tell."""
    open_ = [s.needed for s in standings if not s.passed]
    numbers = [n for n in open_ if n is not None]
    return max(numbers) if numbers and len(numbers) == len(open_) else None


def judge(
    standings: Sequence[Standing], *, enough: bool, missing: Missing | None
) -> tuple[Outcome, bool]:
    """(outcome, no_harm) after a look. ``enough``: the least number of samples is there; it
    never delays a failure. A look with data ``missing`` passes nothing."""
    found = outcome(standings)
    if found is Outcome.FAILED:
        return found, False
    if missing is not None:
        return (Outcome.ERROR if missing.is_error else Outcome.INCONCLUSIVE), False
    if not enough:
        return Outcome.INCONCLUSIVE, False
    return found, harmless(standings)


SUSPECT = "the exposure is there, but so far the evidence leans towards harm: it is waited for more"


def chance(alpha: float) -> str:
    """What a failure's reason ends with."""
    return f"chance of saying so by accident ≤ {percent(alpha)}"

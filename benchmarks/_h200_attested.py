"""What engines were declared to be beside what they attest, as the gate ``attestation`` judges."""

from collections.abc import Mapping
from typing import Any

from benchmarks._h200_buckets import table
from canaryctl.common.metrics import Signal
from canaryctl.gates import registry
from canaryctl.gates.attestation import ATTESTATION
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.samples import ArmWindow, Delta, Series
from canaryctl.gates.spec import GateSpec

_LONG = 12


def judged(declared: Mapping[str, str], attested: Mapping[str, str]) -> Outcome:
    """The gate's outcome for one engine."""
    spec = GateSpec.model_validate({"name": ATTESTATION})
    gate = registry.build(spec, GateContext(1, 0.5, 15.0, 0.1))
    told = Series({tuple(sorted(attested.items())): 1.0})
    arm = ArmWindow((Delta("engine", 0.0, {Signal.ATTESTATION: told}),), 1)
    _, result = gate.look(gate.start(), Look(0.0, arm, None, declared=declared))
    return result.outcome


def attested_table(engines: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for all that is declared of each engine; its ``declared`` and ``attested``: name →
    value."""
    rows = []
    for name, found in engines.items():
        for what, wanted in found["declared"].items():
            outcome = judged({what: wanted}, found["attested"])
            sides = (wanted, found["attested"].get(what, "not told"))
            shown = map(_short, sides) if outcome is Outcome.PASSED else sides
            rows.append((name, what, *shown, outcome.value))
    return table(("runtime", "what", "declared", "attested", f"`{ATTESTATION}`"), rows)


def _short(value: str) -> str:
    parts = value.split(",")
    return value if len(parts) <= _LONG else f"{len(parts)}, from {parts[0]} to {parts[-1]}"

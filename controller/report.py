"""The one document that ``--json`` prints of a release. Pure."""

from collections.abc import Sequence
from typing import Any

from canaryctl.controller.model import GateRecord, Release, ReleaseEvent
from canaryctl.controller.states import Phase

OUTCOMES = {
    Phase.SUCCEEDED: "promoted",
    Phase.WATCHING: "promoted",
    Phase.ROLLED_BACK: "rolled_back",
    Phase.FAILED: "failed",
}

EXIT_CODES = {"promoted": 0, "rolled_back": 3, "failed": 6, "held": 4}


def outcome_of(release: Release) -> str:
    """``promoted``, ``rolled_back``, ``failed``; ``held`` while it is none of these."""
    return OUTCOMES.get(release.phase, "held")


def release_document(
    release: Release, gates: Sequence[GateRecord], events: Sequence[ReleaseEvent]
) -> dict[str, Any]:
    """JSON types. Times are ISO 8601 in UTC; values are in the gate's own unit."""
    return {
        "release": release.id,
        "service": release.service,
        "artifact": f"{release.document.name}@{release.document.version}",
        "digest": release.digest,
        "kind": release.kind.value,
        "phase": release.phase.value,
        "outcome": outcome_of(release),
        "rollback_target": release.rollback_target,
        "reason": release.reason or release.hold or last_reason(events),
        "step": release.step + 1,
        "weight": release.weight,
        "hold": release.hold,
        "gates": [gate_document(record) for record in gates],
        "timeline": [
            {"phase": event.to_phase.value, "at": event.at.isoformat(), "message": event.message}
            for event in events
            if event.to_phase is not None and event.to_phase is not event.from_phase
        ],
    }


def gate_document(record: GateRecord) -> dict[str, Any]:
    result = record.result
    return {
        "name": result.name,
        "outcome": result.outcome.value,
        "value": result.value,
        "baseline": result.baseline,
        "limit": result.limit,
        "samples": result.samples,
        "needed": result.needed,
        "no_harm": result.no_harm,
        "reason": result.reason,
    }


def last_reason(events: Sequence[ReleaseEvent]) -> str | None:
    """Why it is where it is: what the last change of phase said."""
    for event in reversed(events):
        if event.to_phase is not None:
            return event.message
    return None

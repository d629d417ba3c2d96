"""What is kept of a gate: a failure, because it never changes again, and a state's digest; and what
a gate says that cannot say anything yet."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from canaryctl.gates.base import State
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import is_error


def settled(state: State) -> GateResult | None:
    """The failure that the state holds, if it does."""
    kept: dict[str, Any] | None = state["failed"]
    return None if kept is None else GateResult(**{**kept, "outcome": Outcome(kept["outcome"])})


def settle(state: State, result: GateResult) -> State:
    """``state``, which from now on always gives ``result`` if that is a failure."""
    if result.outcome is not Outcome.FAILED:
        return state
    kept = {name: getattr(result, name) for name in GateResult.__dataclass_fields__}
    return {**state, "failed": {**kept, "outcome": result.outcome.value}}


def undecided(
    name: str, state: State, reason: str, details: Mapping[str, Any] | None = None
) -> GateResult:
    """Inconclusive, or an error where waiting cannot help; never a pass."""
    outcome = Outcome.ERROR if is_error(reason) else Outcome.INCONCLUSIVE
    return GateResult(name, outcome, reason, valid_looks=state["looks"], details=details or {})


def state_digest(state: State) -> str:
    """SHA-256 of the state as JSON: equal for states that go on alike, to the last bit."""
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()

"""While the gates see nothing a release holds; what needs no samples goes on."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from canaryctl.controller.decide import BLIND, Decision, decide
from canaryctl.controller.desired import desired
from canaryctl.controller.model import Release
from canaryctl.controller.states import Phase
from canaryctl.gates.outcome import Outcome
from tests.support.releases import T0, clean, release, result, verdict, view

DOWN = "canary r1-0: http://prometheus:9090: cannot be reached: Connection refused"


def decided(rel: Release, **changes: Any) -> Decision:
    known = view(rel, **{"blind": DOWN, **changes})
    found = decide(known, desired(known, None))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("phase", "changes"),
    [
        (Phase.WARMING, {}),
        (Phase.PROGRESSING, {"step_at": T0}),  # a step that is over
        (Phase.PROGRESSING, {"step": 1, "weight": 50, "step_at": T0}),  # and the last one
    ],
)
def test_no_step_and_no_promotion_is_blind(phase: Phase, changes: dict[str, Any]) -> None:
    rel = release(phase, **changes)
    effective = {"r0": 100 - rel.weight, "r1": rel.weight}
    known = {
        "at": 60,
        "verdict": clean(promotable=True),
        "step_requests": 1000,
        "effective": effective,
    }
    held = decided(rel, **known)
    assert (held.release.phase, held.release.step) == (phase, rel.step)
    assert held.release.hold == f"{BLIND}: {DOWN}"
    assert [event.kind for event in held.events] == ["hold"]
    seeing = decided(rel, blind=None, **known)
    assert (seeing.release.phase, seeing.release.step) != (phase, rel.step)
    assert seeing.release.hold is None


def test_the_hold_is_told_once_whatever_the_words() -> None:
    rel = release(hold=f"{BLIND}: no answer within 1 s", step_at=T0)
    held = decided(rel, verdict=clean(), at=60)
    assert held.events == ()
    assert held.release.hold == f"{BLIND}: {DOWN}"


def test_a_hard_gate_that_failed_is_not_held_back() -> None:
    failed = verdict(result("engine_exit", Outcome.FAILED))
    found = decided(release(step_at=T0), verdict=failed, at=60)
    assert found.release.phase is Phase.ROLLING_BACK


def test_the_deadline_ends_it() -> None:
    rel = replace(release(step_at=T0), deadline_at=T0 + timedelta(seconds=60))
    missing = clean()
    found = decided(rel, verdict=replace(missing, missing=("ttft_p90: no data",)), at=60)
    assert found.release.phase is Phase.ROLLING_BACK
    assert "deadline" in (found.release.reason or "")

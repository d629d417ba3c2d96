"""Every phase × trigger: the table is the only way to move."""

import pytest

from canaryctl.controller.states import (
    ACTIVE,
    FINAL,
    TRANSITIONS,
    IllegalTransitionError,
    Phase,
    Trigger,
    advance,
)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("trigger", Trigger)
def test_a_move_is_in_the_table_or_raises(phase: Phase, trigger: Trigger) -> None:
    if (phase, trigger) in TRANSITIONS:
        assert advance(phase, trigger) is TRANSITIONS[phase, trigger]
    else:
        with pytest.raises(IllegalTransitionError, match=phase.value):
            advance(phase, trigger)


def test_final_phases_have_no_way_out() -> None:
    assert not [phase for phase, _ in TRANSITIONS if phase in FINAL]


def test_every_active_phase_can_be_rolled_back() -> None:
    for phase in ACTIVE - {Phase.ROLLING_BACK}:
        assert advance(phase, Trigger.GATE_FAILED) is Phase.ROLLING_BACK
        assert advance(phase, Trigger.ABORT) is Phase.ROLLING_BACK


def test_every_phase_is_reached_from_pending() -> None:
    reached = {Phase.PENDING}
    while True:
        more = reached | {to for (phase, _), to in TRANSITIONS.items() if phase in reached}
        if more == reached:
            break
        reached = more
    assert reached == set(Phase)

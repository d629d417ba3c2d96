"""The phases of a release and every legal move between them. Anything else raises."""

from enum import StrEnum

from canaryctl.common.errors import CanaryctlError


class Phase(StrEnum):
    PENDING = "pending"  # recorded; nothing has been started
    PREFLIGHT = "preflight"  # the artifact is compared with the machine
    DEPLOYING = "deploying"  # the canary's instances are started and load their model
    WARMING = "warming"  # graphs are captured and every warm-up bucket is run
    PROGRESSING = "progressing"  # traffic moves in steps, gates judge
    PAUSED = "paused"  # held by a person or by a step; gates go on
    PROMOTING = "promoting"  # scaled to full size, then all traffic
    WATCHING = "watching"  # all traffic, the previous runtime still warm, gates go on
    SUCCEEDED = "succeeded"  # final: the artifact is stable
    ROLLING_BACK = "rolling_back"  # traffic returns first, then everything else
    ROLLED_BACK = "rolled_back"  # final: a healthy rung serves
    FAILED = "failed"  # final: no healthy rung; the best one serving is held, a person is called


class Trigger(StrEnum):
    START = "start"
    CHECKED = "checked"
    DEPLOYED = "deployed"
    WARM = "warm"
    STEP = "step"  # the next step, inside progressing
    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    SERVING = "serving"  # all traffic is in force on the canary
    DONE = "done"
    GATE_FAILED = "gate_failed"
    ABORT = "abort"
    SUPERSEDE = "supersede"
    DEADLINE = "deadline"
    ENGINE_EXIT = "engine_exit"
    REFUSED = "refused"  # preflight found a fault
    RESTORED = "restored"
    NO_RUNG = "no_rung"


FINAL = frozenset({Phase.SUCCEEDED, Phase.ROLLED_BACK, Phase.FAILED})
ACTIVE = frozenset(Phase) - FINAL

_TO_ROLLBACK = (
    Trigger.GATE_FAILED,
    Trigger.ABORT,
    Trigger.SUPERSEDE,
    Trigger.DEADLINE,
    Trigger.ENGINE_EXIT,
    Trigger.REFUSED,
)

TRANSITIONS: dict[tuple[Phase, Trigger], Phase] = {
    (Phase.PENDING, Trigger.START): Phase.PREFLIGHT,
    (Phase.PREFLIGHT, Trigger.CHECKED): Phase.DEPLOYING,
    (Phase.DEPLOYING, Trigger.DEPLOYED): Phase.WARMING,
    (Phase.WARMING, Trigger.WARM): Phase.PROGRESSING,
    (Phase.PROGRESSING, Trigger.STEP): Phase.PROGRESSING,
    (Phase.PROGRESSING, Trigger.PAUSE): Phase.PAUSED,
    (Phase.PAUSED, Trigger.RESUME): Phase.PROGRESSING,
    (Phase.PROGRESSING, Trigger.PROMOTE): Phase.PROMOTING,
    (Phase.PAUSED, Trigger.PROMOTE): Phase.PROMOTING,
    (Phase.PROMOTING, Trigger.SERVING): Phase.WATCHING,
    (Phase.WATCHING, Trigger.DONE): Phase.SUCCEEDED,
    (Phase.ROLLING_BACK, Trigger.RESTORED): Phase.ROLLED_BACK,
    (Phase.ROLLING_BACK, Trigger.NO_RUNG): Phase.FAILED,
    **{
        (phase, trigger): Phase.ROLLING_BACK
        for phase in ACTIVE - {Phase.ROLLING_BACK}
        for trigger in _TO_ROLLBACK
    },
}


class IllegalTransitionError(CanaryctlError):
    """A move that the table does not have: a fault in the caller, never ignored."""

    def __init__(self, phase: Phase, trigger: Trigger) -> None:
        allowed = sorted(t.value for p, t in TRANSITIONS if p is phase)
        super().__init__(
            f"a release that is {phase.value} cannot take {trigger.value!r}; "
            f"it can take: {', '.join(allowed) or 'nothing, it is final'}"
        )
        self.phase, self.trigger = phase, trigger


def advance(phase: Phase, trigger: Trigger) -> Phase:
    """The phase that ``trigger`` leads to; :class:`IllegalTransitionError` otherwise."""
    try:
        return TRANSITIONS[phase, trigger]
    except KeyError:
        raise IllegalTransitionError(phase, trigger) from None

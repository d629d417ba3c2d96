"""What a round of driving says: of the requests that were sent together, how many were held.

A request that has begun, has not ended and was not preempted is held. So where all have begun
before the first ends and none was preempted, all of them were held at once: no sampling of the
running ones is needed, which would have to hit that moment.
"""

from canaryctl.common.saturation import Round

NOT_TOLD = "the engine does not say how often it preempts requests"


def counted(found: Round) -> tuple[int, int] | str | None:
    """(held, missed) of a round; text: why nothing can be said of it.

    None: its requests missed each other, which may be for having been sent too late: longer ones
    have to be tried. Where there are none, only those that the engine let wait are its fault.
    """
    if found.preempted is None:
        return NOT_TOLD
    at_fault = found.failed or found.preempted or (found.longest and found.waited)
    if found.late and not at_fault:
        return None
    missed = min(found.asked, found.failed + found.late + round(found.preempted))
    return found.asked - missed, missed

"""The event log of a release: what leads from one phase to the next. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from canaryctl.controller.errors import UnloggedChangeError
from canaryctl.controller.model import ReleaseEvent
from canaryctl.controller.states import Phase, advance


def follow(phase: Phase, events: Iterable[ReleaseEvent]) -> tuple[Phase, tuple[ReleaseEvent, ...]]:
    """Where ``events`` lead from ``phase``, and the events with their phases filled in.

    Only a trigger moves a phase. Raises IllegalTransitionError for a move that the table of
    states does not have, UnloggedChangeError where an event names other phases than its
    trigger leads from and to.
    """
    followed = []
    for event in events:
        if event.trigger is None:
            before = after = None
        else:
            before, after = phase, advance(phase, event.trigger)
            phase = after
        if event.from_phase not in (None, before) or event.to_phase not in (None, after):
            raise UnloggedChangeError(
                f"the event {event.message!r} says {event.from_phase} → {event.to_phase}, but "
                f"its trigger {event.trigger} leads from {before} to {after}"
            )
        followed.append(replace(event, from_phase=before, to_phase=after))
    return phase, tuple(followed)


def replay(events: tuple[ReleaseEvent, ...]) -> Phase:
    """The phase that a whole log leads to. Its first event is the release's creation."""
    first, *rest = events
    if first.to_phase is None or first.trigger is not None:
        raise UnloggedChangeError(f"the log of {first.release} does not begin with its creation")
    phase, _ = follow(first.to_phase, rest)
    return phase

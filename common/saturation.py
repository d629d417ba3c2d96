"""One round of requests that an engine is to hold at once: runtimes drive it, gates judge it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Round:
    """``asked`` requests were sent together. ``failed``: those that did not end well. ``late``: of
    the others, those that began only after another had ended. ``longest``: longer ones, which
    would have met more surely, are not tried.

    By the engine's own account, None where it gives none: ``preempted``, how often it took a
    request's cache away; ``waited``, how many it let wait when it had received all of them, as
    seen last before the first one ended.
    """

    asked: int
    failed: int
    late: int
    longest: bool
    preempted: float | None
    waited: float | None

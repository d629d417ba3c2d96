"""What an engine compiled or captured once it was ready: a request waits for each.

The requests that measure parity come between ready and the first look, and nobody waits for
those; so only what is new since the first look at an instance counts.
"""

from collections.abc import Mapping

from canaryctl.gates.base import StartFacts

Known = Mapping[str, int]
"""Instance → how much it had done when it was first looked at."""

_SHOWN = 3


def late_work(known: Known, starts: Mapping[str, StartFacts]) -> tuple[dict[str, int], str | None]:
    """``known`` with the instances that are new, and what is late, in words; None: nothing."""
    after = {**{name: len(start.late) for name, start in starts.items()}, **known}
    new = [
        f"{name}: {work}" for name, start in starts.items() for work in start.late[after[name] :]
    ]
    if not new:
        return after, None
    more = f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
    return after, f"after it was ready, with requests waiting: {'; '.join(new[:_SHOWN])}{more}"

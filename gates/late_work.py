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
    after = {**{name: start.late_count for name, start in starts.items()}, **known}
    new = {name: start.late_count - after[name] for name, start in starts.items()}
    new = {name: count for name, count in new.items() if count > 0}
    if not new:
        return after, None
    named = [
        f"{name}: {work}" for name, count in new.items() for work in starts[name].late[-count:]
    ]
    shown, count = named[:_SHOWN], sum(new.values())
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return after, f"after it was ready, with requests waiting: {'; '.join(shown)}{more}"

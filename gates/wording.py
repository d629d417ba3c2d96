"""Numbers as they stand in reasons, for people."""

import math


def seconds(value: float) -> str:
    """0.0021 as ``2.1 ms``, 1.2345 as ``1.23 s``."""
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def percent(ratio: float) -> str:
    """0.1 as ``10 %``, 6.49 as ``649 %``."""
    return f"{ratio * 100:.3g} %" if abs(ratio) < 1 else f"{ratio * 100:.0f} %"


def change(value: float, baseline: float) -> str:
    """``+649 %``."""
    if baseline <= 0:
        return "from zero"
    return f"{(value / baseline - 1) * 100:+.0f} %"


def whole(value: float) -> int:
    """A needed number, rounded up to two digits so that it does not feign precision."""
    number = max(1, math.ceil(value))
    step: int = 10 ** max(0, len(str(number)) - 2)
    return math.ceil(number / step) * step


def plural(count: float, word: str) -> str:
    number = f"{count:.0f}" if count == round(count) else f"{count:g}"
    return f"{number} {word}" if count == 1 else f"{number} {word}s"


def size(count: float) -> str:
    """Bytes: 532676608 as ``508 MiB``."""
    for unit, each in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= each:
            return (
                f"{count / each:.3g} {unit}"
                if count < 1000 * each
                else f"{count / each:.0f} {unit}"
            )
    return f"{count:.0f} B"


def about(duration_s: float) -> str:
    """A length of time, no finer than a person plans: ``41 s``, ``2.5 min``, ``3.5 h``."""
    if duration_s < 99.5:
        return f"{max(1, round(duration_s))} s"
    if duration_s < 7200:
        return f"{duration_s / 60:.2g} min" if duration_s < 600 else f"{duration_s / 60:.0f} min"
    return f"{duration_s / 3600:.3g} h"

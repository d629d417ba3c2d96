"""Durations, ratios and sizes as people write them: ``2m``, ``15s``, ``10%``, ``512MiB``.

A bare number is refused where a unit could be meant: 10 may be 10 % or ten times.
"""

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)(ms|s|m|h|d))")
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: object) -> float:
    """Seconds of ``90s``, ``2m``, ``1h30m``; ValueError says what is allowed."""
    if isinstance(text, str):
        compact = text.strip()
        parts = _DURATION.findall(compact)
        if parts and "".join(number + unit for number, unit in parts) == compact:
            return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    raise ValueError(f"found {text!r}, expected a duration with its unit, such as 15s, 2m or 1h30m")


def format_duration(seconds: float) -> str:
    """``90.0`` as ``1m30s``: exact to the millisecond, read back by :func:`parse_duration`."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    milliseconds = round(seconds * 1000)
    hours, milliseconds = divmod(milliseconds, 3_600_000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    text = (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes else "")
    if milliseconds or not text:
        text += f"{milliseconds / 1000:g}s"
    return text


def parse_ratio(text: object) -> float:
    """0.1 of ``10%``; ValueError says what is allowed."""
    if isinstance(text, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
        if match:
            return float(match.group(1)) / 100
    raise ValueError(f"found {text!r}, expected a percentage such as 10% or 0.5%")


def format_ratio(ratio: float) -> str:
    """0.1 as ``10%``."""
    return f"{ratio * 100:.6g}%"


def parse_bytes(text: object) -> int:
    """Bytes of ``512MiB``, ``1.5GiB``; ValueError says what is allowed."""
    if isinstance(text, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)\s*", text)
        if match:
            return round(float(match.group(1)) * _BYTES[match.group(2)])
    raise ValueError(f"found {text!r}, expected a size with its unit, such as 512MiB or 1.5GiB")


def format_bytes(size: int) -> str:
    """``536870912`` as ``512MiB``: exact, read back by :func:`parse_bytes`."""
    unit = next(unit for unit, each in reversed(_BYTES.items()) if size % each == 0 or each == 1)
    return f"{size // _BYTES[unit]}{unit}"


Seconds = Annotated[
    float, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)
]
"""A pydantic field in seconds, written with a unit (``15s``)."""

Ratio = Annotated[
    float, BeforeValidator(parse_ratio), PlainSerializer(format_ratio, return_type=str)
]
"""A pydantic field as a share of one, written in per cent (``10%``)."""

Bytes = Annotated[int, BeforeValidator(parse_bytes), PlainSerializer(format_bytes, return_type=str)]
"""A pydantic field in bytes, written with a unit (``512MiB``)."""

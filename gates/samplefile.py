"""The JSON lines of ``gates judge`` and ``gates record``: one scrape of one instance a line.

    {"at": 15.0, "arm": "baseline", "instance": "b0", "buckets": {"0.02": 3, …, "+Inf": 41}}

``at`` in seconds, ``buckets`` cumulative as scraped. May be there, too: ``signal`` (whose
histogram it is; without, that of the gate that is judged), ``stratum`` (counted apart from other
strata of the instance) and ``sum``, in seconds.
"""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import Signal
from canaryctl.gates.history import SIGNALS
from canaryctl.gates.samples import Histogram

CANARY, BASELINE = "canary", "baseline"
ARMS = (BASELINE, CANARY)
_REQUIRED = ("at", "arm", "instance", "buckets")
_OPTIONAL = ("stratum", "signal", "sum")
_SHOWN = 10


class SampleFileError(InputError):
    """Lines that cannot be read, each with its number and what was expected."""

    def __init__(self, name: str, mistakes: Sequence[str]) -> None:
        more = len(mistakes) - _SHOWN
        shown = [*mistakes[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        super().__init__("\n".join(f"{name}: {mistake}" for mistake in shown))


@dataclass(frozen=True, slots=True)
class Sample:
    """One line. ``signal`` None: the line does not say."""

    line: int
    at: float
    arm: str
    instance: str
    histogram: Histogram
    stratum: str | None = None
    signal: Signal | None = None

    @property
    def series(self) -> str:
        """What its counts go on in."""
        return self.instance if self.stratum is None else f"{self.instance}/{self.stratum}"


def read_samples(name: str, lines: Iterable[str]) -> list[Sample]:
    """All lines in the order of their times, whatever their order in the file; empty lines are
    none. SampleFileError if any cannot be read: nothing is left out in silence.
    """
    samples: list[Sample] = []
    mistakes: list[str] = []
    seen: dict[tuple[str, str, Signal | None, float], int] = {}
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            sample = _sample(number, text)
        except _LineError as error:
            mistakes.append(f"line {number}: {error}")
            continue
        key = (sample.arm, sample.series, sample.signal, sample.at)
        first = seen.setdefault(key, number)
        if first != number:
            where = f"{sample.arm} {sample.series} at {sample.at:g}"
            mistakes.append(f"line {number}: {where} is on line {first} already")
        samples.append(sample)
    if not mistakes:
        mistakes = _mixed(samples)
    if mistakes:
        raise SampleFileError(name, mistakes)
    if not samples:
        raise SampleFileError(name, ["found no line, expected a JSON object on each"])
    return sorted(samples, key=lambda sample: sample.at)


def _mixed(samples: Sequence[Sample]) -> list[str]:
    named = next((s.line for s in samples if s.signal is not None), None)
    unnamed = next((s.line for s in samples if s.signal is None), None)
    if named is None or unnamed is None:
        return []
    return [f"line {named} names its signal and line {unnamed} does not; expected all or none"]


def sample_line(at: float, arm: str, instance: str, signal: Signal, histogram: Histogram) -> str:
    """The line of a sample, without its end."""
    buckets = {_label(edge): count for edge, count in histogram.buckets}
    document = {
        "at": at,
        "arm": arm,
        "instance": instance,
        "signal": signal.value,
        "buckets": buckets,
        "sum": histogram.sum,
    }
    return json.dumps(document, allow_nan=False)


def _label(edge: float) -> str:
    return "+Inf" if edge == math.inf else repr(edge)


class _LineError(Exception):
    """What is wrong with a line."""


def _sample(number: int, text: str) -> Sample:
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _LineError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise _LineError(f"found {text.strip()[:40]!r}, expected a JSON object")
    lacking = [key for key in _REQUIRED if key not in found]
    if lacking:
        raise _LineError(f"{', '.join(lacking)} is missing; expected {', '.join(_REQUIRED)}")
    unknown = [key for key in found if key not in _REQUIRED and key not in _OPTIONAL]
    if unknown:
        allowed = ", ".join((*_REQUIRED, *_OPTIONAL))
        raise _LineError(f"found the key {unknown[0]!r}, expected one of {allowed}")
    if found["arm"] not in ARMS:
        raise _LineError(f"arm: found {found['arm']!r}, expected {' or '.join(ARMS)}")
    return Sample(
        line=number,
        at=_number(found, "at"),
        arm=found["arm"],
        instance=_text(found, "instance"),
        histogram=Histogram(
            _buckets(found["buckets"]), _number(found, "sum") if "sum" in found else 0.0
        ),
        stratum=_stratum(found),
        signal=_signal(found),
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _LineError(f"the key {twice!r} comes twice")
    return found


def _no_constant(text: str) -> float:
    raise _LineError(f"found the number {text}, expected a finite one")


def _number(found: Mapping[str, Any], key: str) -> float:
    value = found[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _LineError(f"{key}: found {value!r}, expected a number")
    return float(value)


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found[key]
    if not isinstance(value, str) or not value:
        raise _LineError(f"{key}: found {value!r}, expected a name")
    return value


def _stratum(found: Mapping[str, Any]) -> str | None:
    value = found.get("stratum")
    if isinstance(value, bool) or not (value is None or isinstance(value, str | int)):
        raise _LineError(f"stratum: found {value!r}, expected a name or a number")
    return None if value is None else str(value)


def _signal(found: Mapping[str, Any]) -> Signal | None:
    name = found.get("signal")
    if name is None:
        return None
    if not isinstance(name, str) or name not in SIGNALS:
        raise _LineError(f"signal: found {name!r}, expected one of {', '.join(SIGNALS)}")
    return SIGNALS[name]


def _buckets(found: object) -> tuple[tuple[float, int], ...]:
    if not isinstance(found, dict) or not found:
        raise _LineError(f"buckets: found {str(found)[:40]}, expected edges and cumulative counts")
    pairs = []
    for (edge, label), count in zip(_edges(tuple(found)), found.values(), strict=True):
        if isinstance(count, bool) or not isinstance(count, int | float) or count != count // 1:
            raise _LineError(f"buckets: found {count!r} at {label}, expected a whole number")
        pairs.append((edge, int(count)))
    pairs.sort()
    if pairs[-1][0] != math.inf:
        raise _LineError("buckets: there is no +Inf, which counts all")
    if pairs[0][1] < 0:
        raise _LineError(f"buckets: found {pairs[0][1]} at {pairs[0][0]:g}, expected 0 or more")
    for (edge, count), (after, later) in itertools.pairwise(pairs):
        if edge == after:
            raise _LineError(f"buckets: the edge {edge:g} comes twice")
        if count > later:
            raise _LineError(
                f"buckets: {later} at {after:g} after {count} at {edge:g}; cumulative counts "
                "never fall"
            )
    return tuple(pairs)


@lru_cache(maxsize=64)
def _edges(labels: tuple[str, ...]) -> tuple[tuple[float, str], ...]:
    """Edges with their labels, in their order. Cached: an engine's edges do not change."""
    found = []
    for label in labels:
        try:
            edge = float(label)
        except ValueError:
            edge = math.nan
        if math.isnan(edge) or edge == -math.inf:
            raise _LineError(f"buckets: found the edge {label!r}, expected a number or +Inf")
        found.append((edge, label))
    return tuple(found)

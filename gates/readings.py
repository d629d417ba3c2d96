"""What an arm says of a signal in one look: summed over its instances, or why it cannot say."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.deltas import Columns, columns
from canaryctl.gates.samples import (
    ArmWindow,
    Histogram,
    HistogramSet,
    Labels,
    Missing,
    Series,
    Value,
    is_error,
)


@dataclass(frozen=True, slots=True)
class Buckets:
    """An arm's histogram of one look. ``edges`` ascend, +Inf last; counts are cumulative."""

    edges: tuple[float, ...]
    cumulative: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.cumulative[-1]

    @property
    def finite(self) -> list[float]:
        """The edges without +Inf, which JSON does not have."""
        return list(self.edges[:-1])


def histogram(arm: ArmWindow | None, signal: AnySignal, who: str) -> Buckets | Missing:
    """The arm's histogram over the instances that have one."""
    if arm is None:
        return _histogram(arm, signal, who)
    known: Buckets | Missing | None = arm.read.get((signal, who))
    if known is None:
        known = arm.read[signal, who] = _histogram(arm, signal, who)
    return known


def _histogram(arm: ArmWindow | None, signal: AnySignal, who: str) -> Buckets | Missing:
    found: list[Columns] = []
    faults: list[str] = []
    for instance, value in told(arm, signal):
        if isinstance(value, Histogram):
            read = columns(value)
            if isinstance(read, str):
                faults.append(f"{instance}: the histogram cannot be used: {read}")
            else:
                found.append(read)
        else:
            faults.append(f"{instance}: {_why_not(value, 'a histogram')}")
    if any(map(is_error, faults)) or not found:
        return _missing(arm, signal, who, faults)
    summed = _sum(found)
    return summed if summed is not None else _different_edges(signal, who)


def histogram_set(
    arm: ArmWindow | None, signal: AnySignal, who: str
) -> dict[Labels, Buckets] | Missing:
    """The arm's histograms by labels, each over the instances that have it.

    Empty where the instances can say and none of them did: nothing happened in this look.
    """
    found: dict[Labels, list[Columns]] = {}
    readable = False
    faults: list[str] = []
    for instance, value in told(arm, signal):
        if not isinstance(value, HistogramSet):
            faults.append(f"{instance}: {_why_not(value, 'a set of histograms')}")
            continue
        read_set = {labels: columns(one) for labels, one in value.histograms.items()}
        unsound = [read for read in read_set.values() if isinstance(read, str)]
        if unsound:
            faults.append(f"{instance}: a histogram cannot be used: {unsound[0]}")
            continue
        readable = True
        for labels, one in read_set.items():
            if not isinstance(one, str):
                found.setdefault(labels, []).append(one)
    if any(map(is_error, faults)) or not readable:
        return _missing(arm, signal, who, faults)
    summed: dict[Labels, Buckets] = {}
    for labels, histograms in found.items():
        buckets = _sum(histograms)
        if buckets is None:
            return _different_edges(signal, who)
        summed[labels] = buckets
    return summed


def series(arm: ArmWindow | None, signal: AnySignal, who: str) -> dict[Labels, float] | Missing:
    """The arm's counters by labels, over the instances that have them."""
    found: dict[Labels, float] = {}
    readable = False
    faults: list[str] = []
    for instance, value in told(arm, signal):
        if not isinstance(value, Series):
            faults.append(f"{instance}: {_why_not(value, 'a counter')}")
        elif any(not math.isfinite(v) or v < 0 for v in value.values.values()):
            faults.append(f"{instance}: a counter is negative or not a finite number")
        else:
            readable = True
            for labels, count in value.values.items():
                found[labels] = found.get(labels, 0.0) + count
    if any(map(is_error, faults)) or not readable:
        return _missing(arm, signal, who, faults)
    return found


def each_series(
    arm: ArmWindow | None, signal: AnySignal, who: str
) -> list[tuple[str, Series]] | Missing:
    """(instance, series) for every instance with a delta; Missing if any of them cannot say."""
    pairs = list(told(arm, signal))
    found = [(instance, value) for instance, value in pairs if isinstance(value, Series)]
    faults = [
        f"{instance}: {_why_not(value, 'an info')}"
        for instance, value in pairs
        if not isinstance(value, Series)
    ]
    if faults or not found:
        return _missing(arm, signal, who, faults)
    return found


def told(arm: ArmWindow | None, signal: AnySignal) -> Iterator[tuple[str, Value]]:
    """(instance, what it says) for every instance with a delta."""
    for item in arm.deltas if arm is not None else ():
        yield item.instance, item.values.get(signal, Missing("the engine does not say"))


def per_request(arm: ArmWindow | None, observations: float) -> float | None:
    """Observations of a signal over the requests answered meanwhile; None: not known."""
    requests = series(arm, Signal.REQUESTS, "baseline")
    answered = 0.0 if isinstance(requests, Missing) else sum(requests.values())
    return observations / answered if answered > 0 and observations > 0 else None


def align(canary: Buckets, baseline: Buckets) -> tuple[Buckets, Buckets]:
    """Both at the edges that they share; cumulative counts stay exact there."""
    if canary.edges == baseline.edges:
        return canary, baseline
    shared = frozenset(canary.edges) & frozenset(baseline.edges)
    return _at(canary, shared.__contains__), _at(baseline, shared.__contains__)


def _at(buckets: Buckets, keep: Callable[[float], bool]) -> Buckets:
    pairs = [p for p in zip(buckets.edges, buckets.cumulative, strict=True) if keep(p[0])]
    return Buckets(tuple(edge for edge, _ in pairs), tuple(count for _, count in pairs))


def _sum(found: Sequence[Columns]) -> Buckets | None:
    """Of one or more histograms; None where their edges differ."""
    edges, first = found[0]
    if any(other != edges for other, _ in found[1:]):
        return None
    if len(found) == 1:
        return Buckets(edges, first)
    return Buckets(edges, tuple(map(sum, zip(*(counts for _, counts in found), strict=True))))


def _different_edges(signal: AnySignal, who: str) -> Missing:
    return Missing(f"{signal.value} of the {who}: its instances have different bucket edges")


def _why_not(value: Value, expected: str) -> str:
    return value.reason if isinstance(value, Missing) else f"not {expected}"


def _missing(arm: ArmWindow | None, signal: AnySignal, who: str, faults: list[str]) -> Missing:
    if arm is None:
        return Missing(f"{signal.value}: there is no {who} to read")
    reasons = faults or [f"{instance}: {why}" for instance, why in sorted(arm.skipped.items())]
    shown = "; ".join(reasons) or "none of its instances was read"
    return Missing(f"no {signal.value} from the {who}: {shown}")

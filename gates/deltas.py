"""Exact differences between two scrapes, and the window of an arm made of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import le, lt

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.samples import (
    ArmWindow,
    Delta,
    Histogram,
    HistogramSet,
    Labels,
    Missing,
    Scrape,
    Series,
    Value,
)

LATER_VALUE = frozenset(
    {
        Signal.RUNNING,
        Signal.WAITING,
        Signal.CACHE_CONFIG,
        Signal.GRID,
        Signal.STARTUP,
        Signal.MEMORY,
        Signal.ATTESTATION,
    }
)
"""Gauges and infos: what they say now is what counts. All other signals are differences."""

NO_NEW_SAMPLE = "no new sample since the last look"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why two scrapes of an instance have no difference."""

    reason: str


class _ResetError(Exception):
    """The instance started over between the two scrapes."""


Columns = tuple[tuple[float, ...], tuple[int, ...]]
"""A histogram's edges and its cumulative counts."""


def columns(histogram: Histogram) -> Columns | str:
    """What it holds, or what is wrong with it, in words."""
    if not histogram.buckets or histogram.buckets[-1][0] != math.inf:
        return "it has no +Inf bucket"
    edges, counts = zip(*histogram.buckets, strict=True)
    if not all(map(lt, edges, edges[1:])):
        return "its edges do not ascend"
    if not (counts[0] >= 0 and math.isfinite(counts[-1]) and all(map(le, counts, counts[1:]))):
        return _count_fault(counts)
    if not math.isfinite(histogram.sum):
        return "its sum is not a finite number"
    return edges, counts


def histogram_fault(histogram: Histogram) -> str | None:
    """What is wrong with it, in words; None where it is sound."""
    found = columns(histogram)
    return found if isinstance(found, str) else None


def _count_fault(counts: Sequence[float]) -> str:
    if not all(map(math.isfinite, counts)):
        return "a bucket is not a finite number"
    return "a bucket is negative" if counts[0] < 0 else "its cumulative buckets fall"


def delta(before: Scrape, after: Scrape) -> Delta | Skipped:
    """What one instance did between two of its scrapes; ValueError if they are of two instances.

    A series that ``before`` did not have counts from zero: the instance was scraped then, and
    the series was not born. A counter or bucket that fell, a series that vanished and a changed
    ``born`` are restarts. A signal missing from either scrape is missing from the difference.
    """
    if before.instance != after.instance:
        raise ValueError(f"scrapes of two instances: {before.instance} and {after.instance}")
    span = after.at - before.at
    if span == 0:
        return Skipped(NO_NEW_SAMPLE)
    if not span > 0:
        return Skipped(f"the later scrape is {-span:g} s older than the earlier one")
    if before.born is not None and after.born is not None and before.born != after.born:
        return Skipped("restarted: the process is another one than at the last scrape")
    values: dict[AnySignal, Value] = {}
    for signal, value in after.values.items():
        earlier = before.values.get(signal, Missing("not asked for at the last scrape"))
        try:
            values[signal] = _difference(signal, earlier, value)
        except _ResetError as error:
            return Skipped(f"{signal.value}: {error}")
    return Delta(after.instance, span, values)


def window(
    before: Mapping[str, Scrape], after: Mapping[str, Scrape], instances: Iterable[str]
) -> ArmWindow:
    """An arm over one look, from the last and the present scrape of each of its ``instances``."""
    names = tuple(instances)
    deltas: list[Delta] = []
    skipped: dict[str, str] = {}
    for name in names:
        if name not in after:
            skipped[name] = "not scraped"
        elif name not in before:
            skipped[name] = "first scrape: no earlier one to compare with"
        else:
            found = delta(before[name], after[name])
            if isinstance(found, Skipped):
                skipped[name] = found.reason
            else:
                deltas.append(found)
    return ArmWindow(tuple(deltas), len(names), skipped)


def readable(scrape: Scrape) -> bool:
    """Whether it says anything at all. One that was asked for nothing does."""
    return not scrape.values or any(not isinstance(v, Missing) for v in scrape.values.values())


def awaited(before: Mapping[str, Scrape], after: Mapping[str, Scrape]) -> tuple[str, ...]:
    """Instances that have nothing new to say: their samples are those of the last look.

    A store of samples has a new one only when the instance was scraped again. As long as one of
    them is awaited there is no look: its window would be empty beside the others'.
    """
    return tuple(
        sorted(
            name
            for name, scrape in after.items()
            if name in before and readable(scrape) and scrape.at <= before[name].at
        )
    )


def next_start(before: Mapping[str, Scrape], after: Mapping[str, Scrape]) -> dict[str, Scrape]:
    """Where the next window begins: the latest readable scrape of every instance in ``after``.

    Cumulative counts lose nothing over a gap, so a window goes on over scrapes that failed.
    """
    found: dict[str, Scrape] = {}
    for name, scrape in after.items():
        if readable(scrape):
            found[name] = scrape
        elif name in before:
            found[name] = before[name]
    return found


def _difference(signal: AnySignal, before: Value, after: Value) -> Value:
    if isinstance(after, Missing) or signal in LATER_VALUE:
        return after
    if isinstance(before, Missing):
        return Missing(f"no earlier value: {before.reason}")
    if isinstance(after, Histogram) and isinstance(before, Histogram):
        return _histogram_difference(before, after)
    if isinstance(after, HistogramSet) and isinstance(before, HistogramSet):
        return _set_difference(before, after)
    if isinstance(after, Series) and isinstance(before, Series):
        return _series_difference(before, after)
    return Missing(f"{_KINDS[type(before)]} in one scrape and {_KINDS[type(after)]} in the other")


_KINDS: Mapping[type[Value], str] = {
    Histogram: "a histogram",
    HistogramSet: "a set of histograms",
    Series: "a counter",
}


def _histogram_difference(before: Histogram, after: Histogram) -> Histogram | Missing:
    for which, histogram in (("earlier", before), ("later", after)):
        fault = histogram_fault(histogram)
        if fault is not None:
            return Missing(f"the {which} histogram cannot be used: {fault}")
    if [edge for edge, _ in before.buckets] != [edge for edge, _ in after.buckets]:
        raise _ResetError("the histogram's edges changed")
    buckets = tuple(
        (edge, now - then)
        for (edge, now), (_, then) in zip(after.buckets, before.buckets, strict=True)
    )
    if any(count < 0 for _, count in buckets):
        raise _ResetError("reset: a bucket fell")
    found = Histogram(buckets, after.sum - before.sum)
    fault = histogram_fault(found)
    return found if fault is None else Missing(f"the difference cannot be used: {fault}")


def _set_difference(before: HistogramSet, after: HistogramSet) -> Value:
    """As of a counter set: a histogram that was not there before counts from zero."""
    vanished = before.histograms.keys() - after.histograms.keys()
    if vanished:
        raise _ResetError(f"reset: the histogram {_name(min(vanished))} vanished")
    found: dict[Labels, Histogram] = {}
    for labels, now in after.histograms.items():
        unborn = Histogram(tuple((edge, 0) for edge, _ in now.buckets), 0.0)
        difference = _histogram_difference(before.histograms.get(labels, unborn), now)
        if not isinstance(difference, Histogram):
            return Missing(f"{_name(labels)}: {difference.reason}")
        found[labels] = difference
    return HistogramSet(found)


def _series_difference(before: Series, after: Series) -> Value:
    for which, series in (("earlier", before), ("later", after)):
        if any(not math.isfinite(v) or v < 0 for v in series.values.values()):
            return Missing(f"the {which} counter is negative or not a finite number")
    vanished = before.values.keys() - after.values.keys()
    if vanished:
        raise _ResetError(f"reset: the series {_name(min(vanished))} vanished")
    values: dict[Labels, float] = {}
    for labels, now in after.values.items():
        then = before.values.get(labels, 0.0)
        if now < then:
            raise _ResetError(f"reset: {_name(labels)} fell from {then:g} to {now:g}")
        values[labels] = now - then
    return Series(values)


def _name(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}"

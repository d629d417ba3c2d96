"""The Prometheus text format: only the lines of the metrics asked for are parsed.

A metrics page has hundreds of kilobytes, of which a release reads a few hundred lines. Lines are
chosen by the name that they begin with; prometheus_client's parser reads their labels.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families

from canaryctl.common.metrics import AnySignal, CustomSignal, MetricKind, MetricRef, References
from canaryctl.gates.deltas import histogram_fault
from canaryctl.gates.samples import (
    AMBIGUOUS,
    NO_SUCH_METRIC,
    Histogram,
    HistogramSet,
    Labels,
    Missing,
    Series,
    Value,
)

BORN = "process_start_time_seconds"

_HISTOGRAMS = frozenset({MetricKind.HISTOGRAM, MetricKind.HISTOGRAM_SET})
_COUNTERS = frozenset({MetricKind.COUNTER, MetricKind.COUNTER_SET})
_SETS = frozenset({MetricKind.COUNTER_SET, MetricKind.GAUGE_SET})


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float
    line: str


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says of the signals asked for. ``raw``: the lines it was taken from."""

    values: Mapping[AnySignal, Value]
    raw: str
    born: float | None


class _Unreadable(Exception):  # noqa: N818  not an error of ours: a page that we cannot use
    """Why a signal cannot be read; becomes Missing."""


class _NoSuchMetric(_Unreadable):
    """The page has no series of that name, whatever its labels."""


def read_page(
    text: str,
    refs: References,
    exported: Callable[[], Iterable[str]] | None = None,
) -> Page:
    """Values of ``refs`` on the page. What cannot be read is Missing with the reason; where an
    artifact named a metric that is not there, the reason names those that come close.

    ``exported``: every name that the engine exports, where ``text`` holds but those asked for.
    """
    lines = _lines_by_name(text, names(refs))
    values: dict[AnySignal, Value] = {}
    used: dict[str, None] = {}
    for signal, ref in refs.items():
        try:
            values[signal], matched = _read(ref, lines)
            used.update(dict.fromkeys(matched))
        except _NoSuchMetric as why:
            values[signal] = Missing(str(why))
            if isinstance(signal, CustomSignal):
                every = exported() if exported is not None else _every_name(text)
                values[signal] = Missing(_no_such_metric(ref, every))
        except _Unreadable as why:
            values[signal] = Missing(str(why))
    born = _born(lines.get(BORN, []))
    return Page(values, "".join(f"{line}\n" for line in used), born)


def names(refs: References) -> frozenset[str]:
    """Every name of a series that reading ``refs`` may need, the process's start among them."""
    wanted = {name for ref in refs.values() for name in _sample_names(ref)} | {BORN}
    witnesses = {ref.exists_with for ref in refs.values() if ref.exists_with is not None}
    return frozenset(wanted.union(*map(_family_names, witnesses)))


def _sample_names(ref: MetricRef) -> tuple[str, ...]:
    if ref.kind in _HISTOGRAMS:
        return (f"{ref.name}_bucket", f"{ref.name}_sum")
    if ref.kind in _COUNTERS and not ref.name.endswith("_total"):
        return (ref.name, f"{ref.name}_total")
    return (ref.name,)


def _every_name(text: str) -> Iterable[str]:
    return (re.split(r"[{\s]", line, maxsplit=1)[0] for line in text.split("\n"))


def _no_such_metric(ref: MetricRef, exported: Iterable[str]) -> str:
    """``exported`` holds histograms by the names of their parts."""
    kind = "histogram" if ref.kind in _HISTOGRAMS else "counter"
    found = {name for name in exported if name and not name.startswith("#")}
    histograms = {name.removesuffix("_bucket") for name in found if name.endswith("_bucket")}
    parts = {f"{name}{part}" for name in histograms for part in ("_bucket", "_sum")}
    of_kind = histograms if kind == "histogram" else found - parts
    close = difflib.get_close_matches(ref.name, sorted(of_kind), n=3, cutoff=0.6)
    hint = f"; it has {' and '.join(close)}" if close else f"; none of its {kind}s is called so"
    return f"{NO_SUCH_METRIC} as the {kind} {ref.name} is exported by the engine{hint}"


def _family_names(name: str) -> tuple[str, ...]:
    return (name, f"{name}_total", f"{name}_count")


def _lines_by_name(text: str, wanted: frozenset[str]) -> dict[str, list[str]]:
    starts = tuple(wanted)
    found: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if line.startswith(starts):
            name = re.split(r"[{\s]", line, maxsplit=1)[0]
            if name in wanted:
                found.setdefault(name, []).append(line.rstrip("\r"))
    return found


@lru_cache(maxsize=32768)
def _labels(series: str) -> Mapping[str, str]:
    """Labels of ``name{…}``. Cached: series stay the same from scrape to scrape, and this is
    nine tenths of what parsing a line costs."""
    (family,) = text_string_to_metric_families(f"{series} 0\n")
    (sample,) = family.samples
    if sample.value != 0 or sample.timestamp is not None:
        raise ValueError("more than labels before the value")
    return sample.labels


def _value(text: str) -> float:
    """The value; a timestamp may follow it."""
    value, *timestamp = text.split()
    if len(timestamp) > 1 or "_" in value:
        raise ValueError("expected a value and at most a timestamp")
    return float(value)


def _parse(lines: Iterable[str]) -> list[Sample]:
    samples = []
    for line in lines:
        end = line.rfind("}") + 1 or len(line.split(maxsplit=1)[0])
        try:
            samples.append(Sample(_labels(line[:end]), _value(line[end:]), line))
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise _Unreadable(f"unparsable line {line[:120]!r}: {error}") from error
    return samples


def _matching(ref: MetricRef, samples: Iterable[Sample]) -> list[Sample]:
    patterns = {label: re.compile(pattern) for label, pattern in ref.match.items()}
    return [
        sample
        for sample in samples
        if all(p.fullmatch(sample.labels.get(label, "")) for label, p in patterns.items())
    ]


def _grouped(ref: MetricRef, samples: Iterable[Sample]) -> dict[Labels, list[Sample]]:
    """By the labels that tell series apart, ``le`` and the summed ones left out."""
    ignored = {*ref.sum_over, "le"} if ref.kind in _HISTOGRAMS else set(ref.sum_over)
    groups: dict[Labels, list[Sample]] = {}
    for sample in samples:
        key = tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ignored))
        groups.setdefault(key, []).append(sample)
    return groups


def _read(ref: MetricRef, lines: Mapping[str, list[str]]) -> tuple[Value, list[str]]:
    present = [name for name in _sample_names(ref) if name in lines]
    if ref.kind in _HISTOGRAMS:
        return _read_histograms(ref, lines)
    if len(present) > 1:
        raise _Unreadable(f"{AMBIGUOUS}: both {' and '.join(present)} are on the page")
    samples = _matching(ref, _parse(lines[present[0]] if present else []))
    if not samples:
        return _absent(ref, lines)
    for sample in samples:
        if math.isnan(sample.value):
            raise _Unreadable(f"{ref.name} is NaN")
        if ref.kind in _COUNTERS and not (math.isfinite(sample.value) and sample.value >= 0):
            raise _Unreadable(f"the counter {ref.name} is {sample.value:g}")
    groups = _grouped(ref, samples)
    if ref.kind not in _SETS:
        _require_one(ref, groups)
    values = {labels: sum(s.value for s in group) for labels, group in groups.items()}
    return Series(values), [sample.line for sample in samples]


def _read_histograms(ref: MetricRef, lines: Mapping[str, list[str]]) -> tuple[Value, list[str]]:
    buckets = _matching(ref, _parse(lines.get(f"{ref.name}_bucket", [])))
    sums = _matching(ref, _parse(lines.get(f"{ref.name}_sum", [])))
    if not buckets:
        return _absent(ref, lines)
    by_labels, sums_by_labels = _grouped(ref, buckets), _grouped(ref, sums)
    used = [sample.line for sample in (*buckets, *sums)]
    if ref.kind is MetricKind.HISTOGRAM_SET:
        found = {
            labels: _histogram(_shown(ref.name, labels), group, sums_by_labels.get(labels, []))
            for labels, group in by_labels.items()
        }
        return HistogramSet(found), used
    _require_one(ref, by_labels)
    _require_one(ref, sums_by_labels)
    return _histogram(ref.name, buckets, sums), used


def _histogram(name: str, buckets: Iterable[Sample], sums: Iterable[Sample]) -> Histogram:
    """One histogram of its lines; those of the same edge are added."""
    by_edge: dict[float, float] = {}
    for sample in buckets:
        edge = sample.labels.get("le", "")
        try:
            key = float(edge)
        except ValueError:
            raise _Unreadable(f"{name} has a bucket with le={edge!r}") from None
        if not math.isfinite(sample.value):
            raise _Unreadable(f"{name}: the bucket le={edge} is {sample.value:g}")
        by_edge[key] = by_edge.get(key, 0.0) + sample.value
    if any(math.isnan(edge) for edge in by_edge):
        raise _Unreadable(f"{name} has a bucket with le=NaN")
    found = Histogram(
        tuple((edge, int(by_edge[edge])) for edge in sorted(by_edge)), sum(s.value for s in sums)
    )
    fault = histogram_fault(found)
    if fault is not None:
        raise _Unreadable(f"{name} cannot be used: {fault}")
    return found


def _absent(ref: MetricRef, lines: Mapping[str, list[str]]) -> tuple[Value, list[str]]:
    """Zero where the series is only born with its first event and its family's witness is there."""
    if not ref.born_at_zero and ref.exists_with is not None:
        for name in _family_names(ref.exists_with):
            if name in lines:
                none = HistogramSet({}) if ref.kind is MetricKind.HISTOGRAM_SET else Series({})
                return none, lines[name][:1]
        raise _NoSuchMetric(f"{ref.name} is absent, and so is {ref.exists_with}")
    matching = f" with {dict(ref.match)}" if ref.match else ""
    absent = f"{ref.name}{matching} is absent from the page"
    present = next((lines[name] for name in _sample_names(ref) if name in lines), [])
    if not present:
        raise _NoSuchMetric(absent)
    groups = sorted(_grouped(ref, _parse(present)))
    shown = ", ".join(_shown(ref.name, labels) for labels in groups[:3])
    raise _Unreadable(f"{absent}, which has {shown}")


def _require_one(ref: MetricRef, groups: Mapping[Labels, list[Sample]]) -> None:
    if len(groups) > 1:
        series = sorted(_shown(ref.name, labels) for labels in groups)
        shown = ", ".join(series[:4]) + (f" and {len(series) - 4} more" if len(series) > 4 else "")
        raise _Unreadable(f"{AMBIGUOUS}: {len(series)} series where one is expected: {shown}")


def _shown(name: str, labels: Labels) -> str:
    return name + "{" + ",".join(f'{k}="{v}"' for k, v in labels) + "}"


def _born(lines: list[str]) -> float | None:
    """The process's start; None where the page does not say, or not clearly."""
    try:
        samples = _parse(lines)
    except _Unreadable:
        return None
    values = {s.value for s in samples if math.isfinite(s.value)}
    return values.pop() if len(values) == 1 else None

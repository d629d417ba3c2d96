"""A look as a JSON document, and back: exactly, and small.

Histograms are kept as the observations of each bucket, and their edges once a document:
``{"edges": 0, "counts": [0, 3, …], "sum": 1.5}`` refers to the first of the document's
``edges``. Signals are told by their names; what an artifact names itself is in ``custom``.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from canaryctl.common.metrics import CustomSignal, MetricRef, Signal
from canaryctl.common.parity import Parity
from canaryctl.gates.base import Event, Look, StartFacts
from canaryctl.gates.samples import (
    ArmWindow,
    Delta,
    Histogram,
    HistogramSet,
    Labels,
    Missing,
    Series,
    Value,
)

Document = dict[str, Any]

_INF = "+Inf"
_SHARED = ("edges", "custom")  # what the values refer to


def look_document(look: Look) -> Document:
    """JSON types only; :func:`look_of` gives back an equal look."""
    writer = _Writer()
    document = {
        **_plain(look),
        "canary": writer.arm(look.canary),
        "baseline": None if look.baseline is None else writer.arm(look.baseline),
        "canary_events": [_plain(event) for event in look.canary_events],
        "start": {
            instance: {**_plain(facts), "late": list(facts.late)}
            for instance, facts in look.start.items()
        },
        "saturation": _saturation_document(look.saturation),
        "parity": _parity_document(look.parity),
    }
    edges = [[_INF if edge == math.inf else edge for edge in known] for known in writer.edges]
    custom = {
        name: {**_plain(ref), "sum_over": list(ref.sum_over)} for name, ref in writer.custom.items()
    }
    return {**document, "edges": edges, "custom": custom}


def look_of(document: Mapping[str, Any]) -> Look:
    """The look of a :func:`look_document`."""
    edges = [
        tuple(math.inf if edge == _INF else edge for edge in known) for known in document["edges"]
    ]
    custom = {
        name: CustomSignal(name, MetricRef(**{**ref, "sum_over": tuple(ref["sum_over"])}))
        for name, ref in document["custom"].items()
    }
    reader = _Reader(edges, custom)
    baseline = document["baseline"]
    return Look(
        **{
            **{name: value for name, value in document.items() if name not in _SHARED},
            "canary": reader.arm(document["canary"]),
            "baseline": None if baseline is None else reader.arm(baseline),
            "canary_events": tuple(Event(**event) for event in document["canary_events"]),
            "start": {name: _start(facts) for name, facts in document["start"].items()},
            "saturation": _saturation(document["saturation"]),
            "parity": _parity(document.get("parity")),
        }
    )


def _saturation_document(
    saturation: tuple[int, int] | Missing | None,
) -> list[int] | Document | None:
    if isinstance(saturation, Missing):
        return {"missing": saturation.reason}
    return None if saturation is None else list(saturation)


def _saturation(
    document: list[int] | Mapping[str, Any] | None,
) -> tuple[int, int] | Missing | None:
    if isinstance(document, Mapping):
        return Missing(document["missing"])
    return None if document is None else (document[0], document[1])


def _start(document: Mapping[str, Any]) -> StartFacts:
    """Looks of before logs were read after ready have nothing late, of before all of it was counted
    nothing unnamed, and of before logs said what was resolved nothing of it."""
    return StartFacts(**{**document, "late": tuple(document.get("late", ()))})


def _parity_document(parity: Parity | Missing | None) -> Document | None:
    if isinstance(parity, Missing):
        return {"missing": parity.reason}
    return None if parity is None else asdict(parity)


def _parity(document: Mapping[str, Any] | None) -> Parity | Missing | None:
    """Looks of before it was measured have none."""
    if document is None:
        return None
    return Missing(document["missing"]) if "missing" in document else Parity.of(document)


def _plain(value: Any) -> Document:
    """Field by field, without what is only remembered; mappings become dictionaries."""
    found = {name.name: getattr(value, name.name) for name in fields(value) if name.init}
    return {k: dict(v) if isinstance(v, Mapping) else v for k, v in found.items()}


@dataclass(slots=True)
class _Writer:
    """``edges``: every set of edges met so far, and its place."""

    edges: dict[tuple[float, ...], int] = field(default_factory=dict)
    custom: dict[str, MetricRef] = field(default_factory=dict)

    def arm(self, arm: ArmWindow) -> Document:
        return {**_plain(arm), "deltas": [self._delta(delta) for delta in arm.deltas]}

    def _delta(self, delta: Delta) -> Document:
        values = {}
        for signal, value in delta.values.items():
            if isinstance(signal, CustomSignal):
                self.custom[signal.value] = signal.ref
            values[signal.value] = self._value(value)
        return {**_plain(delta), "values": values}

    def _value(self, value: Value) -> Document:
        match value:
            case Missing():
                return {"missing": value.reason}
            case Series():
                return {"series": [[list(labels), v] for labels, v in value.values.items()]}
            case Histogram():
                return self._histogram(value)
            case HistogramSet():
                histograms = value.histograms.items()
                return {"histograms": [[list(k), self._histogram(h)] for k, h in histograms]}

    def _histogram(self, histogram: Histogram) -> Document:
        edges = tuple(edge for edge, _ in histogram.buckets)
        counts = (count for _, count in histogram.buckets)
        return {
            "edges": self.edges.setdefault(edges, len(self.edges)),
            "counts": [now - then for then, now in itertools.pairwise((0, *counts))],
            "sum": histogram.sum,
        }


@dataclass(frozen=True, slots=True)
class _Reader:
    edges: list[tuple[float, ...]]
    custom: Mapping[str, CustomSignal]

    def arm(self, document: Mapping[str, Any]) -> ArmWindow:
        deltas = tuple(self._delta(delta) for delta in document["deltas"])
        return ArmWindow(**{**document, "deltas": deltas})

    def _delta(self, document: Mapping[str, Any]) -> Delta:
        values = {
            self.custom.get(name) or Signal(name): self._value(value)
            for name, value in document["values"].items()
        }
        return Delta(**{**document, "values": values})

    def _value(self, document: Mapping[str, Any]) -> Value:
        if "missing" in document:
            return Missing(document["missing"])
        if "series" in document:
            return Series({_labels(labels): v for labels, v in document["series"]})
        if "histograms" in document:
            found = document["histograms"]
            return HistogramSet({_labels(labels): self._histogram(h) for labels, h in found})
        return self._histogram(document)

    def _histogram(self, document: Mapping[str, Any]) -> Histogram:
        edges = self.edges[document["edges"]]
        cumulative = itertools.accumulate(document["counts"])
        return Histogram(tuple(zip(edges, cumulative, strict=True)), document["sum"])


def _labels(pairs: list[list[str]]) -> Labels:
    return tuple((name, value) for name, value in pairs)

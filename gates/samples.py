"""Raw cumulative samples as scraped, and the exact differences between two of them.

A look takes the difference of two scrapes of the same instance, never ``rate()`` or
``increase()``: those extrapolate, and read the first event of a new counter as none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from canaryctl.common.metrics import AnySignal

Labels = tuple[tuple[str, str], ...]  # sorted (name, value) pairs


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts by upper edge, ``+Inf`` (math.inf) last; sum in the metric's unit."""

    buckets: tuple[tuple[float, int], ...]
    sum: float

    @property
    def count(self) -> int:
        return self.buckets[-1][1] if self.buckets else 0


@dataclass(frozen=True, slots=True)
class Series:
    """One or several series of a counter, gauge or info: value by labels."""

    values: Mapping[Labels, float]

    @property
    def total(self) -> float:
        return sum(self.values.values())


@dataclass(frozen=True, slots=True)
class HistogramSet:
    """Several histograms of one metric, by their labels (``le`` left out)."""

    histograms: Mapping[Labels, Histogram]


AMBIGUOUS = "ambiguous"  # how the reason begins where several series answer for one
NO_SUCH_METRIC = "no such metric"  # how it begins where an artifact names what is not exported


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a signal has no value. Never read as zero, never as a pass."""

    reason: str

    @property
    def is_error(self) -> bool:
        """Whether waiting cannot help: the question does not fit what the engine exports."""
        return is_error(self.reason)


def is_error(reason: str) -> bool:
    """See :attr:`Missing.is_error`; the reason may stand within a longer one."""
    return AMBIGUOUS in reason or NO_SUCH_METRIC in reason


Value = Histogram | HistogramSet | Series | Missing


@dataclass(frozen=True, slots=True)
class Scrape:
    """Everything read from one instance at one moment (``at``: seconds since the epoch).

    ``raw``: the lines of the answer that the values came from, kept as evidence.
    ``born``: identity of the process answering (its start time), where the source can say;
    a change is a restart.
    """

    instance: str
    at: float
    values: Mapping[AnySignal, Value]
    source: str = ""
    raw: str = ""
    born: float | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What one instance did between two scrapes. ``span_s`` > 0.

    Counters and histograms are differences, gauges and infos are the later value.
    """

    instance: str
    span_s: float
    values: Mapping[AnySignal, Value]


@dataclass(frozen=True, slots=True)
class ArmWindow:
    """One arm (canary or baseline) over one look: a delta for each of its instances.

    ``skipped``: instance → why it has no delta in this look (reset, first scrape, no answer).
    ``instances``: how many instances of the arm serve, with or without a delta.
    ``read``: what gates made of its histograms already (:mod:`canaryctl.gates.readings`): most
    are asked by several gates of a look, and they do not change.
    """

    deltas: tuple[Delta, ...]
    instances: int
    skipped: Mapping[str, str] = field(default_factory=dict)
    read: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

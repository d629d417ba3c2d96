"""What is measured (:class:`Signal`) and what an engine calls it (:class:`MetricRef`).

An engine adapter maps signals to references, a sample source reads references, a gate asks
for signals: the three meet only here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Signal(StrEnum):
    """The measured quantities, by the field's own names."""

    TTFT = "ttft"  # histogram, seconds: time to first token
    TPOT = "tpot"  # histogram, seconds: per request, decode time / (output tokens - 1)
    ITL = "itl"  # histogram, seconds: per token gap
    E2E = "e2e"  # histogram, seconds: arrival to last token
    PREFILL = "prefill"  # histogram, seconds: a request's prompt in the engine, queueing left out
    REQUESTS = "requests"  # counter: HTTP requests answered on generation routes
    ERRORS = "errors"  # counter: those answered 5xx or finished with an error
    OOM = "oom"  # counter: out-of-memory events seen inside the engine
    STEPS = "steps"  # counter set: engine steps by mode, bucket, pure_decode, reason
    TOKENS_ACTUAL = "tokens_actual"  # counter set: tokens scheduled, by the labels of STEPS
    TOKENS_PADDED = "tokens_padded"  # counter set: tokens computed, padding included; as above
    RUNNING = "running"  # gauge: sequences being decoded or prefilled
    WAITING = "waiting"  # gauge: sequences queued
    PREEMPTIONS = "preemptions"  # counter: how often a sequence lost its cache to another
    CACHE_CONFIG = "cache_config"  # info: num_gpu_blocks, block_size, kv_cache_size_tokens
    GRID = "grid"  # info: mode and resolved capture sizes, from the probe
    STEP_TIME = "step_time"  # histogram set, seconds: pure-decode steps by mode and bucket
    SHAPES = "shapes"  # histogram set, a count: sizes of steps by kind (decode_sequences, …)
    PREFIX_QUERIES = "prefix_queries"  # counter: prompt tokens looked up in the prefix cache
    PREFIX_HITS = "prefix_hits"  # counter: those found there
    STARTUP = "startup"  # gauge set, seconds by stage
    MEMORY = "memory"  # gauge set, bytes by kind (weights, graphs, kv_cache, …)
    ATTESTATION = "attestation"  # info: the versions, GPU, model and grid that really run


class MetricKind(StrEnum):
    COUNTER = "counter"
    COUNTER_SET = "counter_set"  # several series are meant; kept apart by their labels
    GAUGE = "gauge"
    GAUGE_SET = "gauge_set"  # as a counter set, of gauges
    HISTOGRAM = "histogram"
    HISTOGRAM_SET = "histogram_set"  # several histograms, kept apart by their labels
    INFO = "info"  # a constant gauge whose labels are the data


@dataclass(frozen=True, slots=True)
class MetricRef:
    """One metric of one engine version.

    ``match``: label → regular expression that the whole value must match.
    ``sum_over``: labels that the engine is known to split one count by (``status``,
    ``finished_reason``); series that differ only in these are added. Any other multiplicity
    is ambiguous and an error that names the series.
    ``born_at_zero``: False where a labelled series appears only with its first event, so
    that absence of the series beside presence of ``exists_with`` reads as zero.
    """

    name: str
    kind: MetricKind
    match: Mapping[str, str] = field(default_factory=dict)
    sum_over: tuple[str, ...] = ()
    born_at_zero: bool = True
    exists_with: str | None = None


@dataclass(frozen=True, slots=True)
class CustomSignal:
    """A quantity that an artifact names itself, with what the engine calls it.

    ``value``: the gate and what it is of it, ``queue_p90.histogram``; once in a release.
    """

    value: str
    ref: MetricRef = field(compare=False)


AnySignal = Signal | CustomSignal
References = Mapping[Signal, MetricRef] | Mapping[AnySignal, MetricRef]
"""What to read; the keys of a Mapping are invariant to a type checker, hence both."""


def references(
    wanted: Iterable[AnySignal], known: Mapping[Signal, MetricRef]
) -> dict[AnySignal, MetricRef]:
    """What to read for ``wanted``, of an engine that knows ``known``. A signal that it does not
    know is left out: unknown, never zero."""
    found: dict[AnySignal, MetricRef] = {}
    for signal in wanted:
        if isinstance(signal, CustomSignal):
            found[signal] = signal.ref
        elif signal in known:
            found[signal] = known[signal]
    return found

"""What the engine's /metrics show of the recorder's counts.

Absent reads as unknown, and zero would read as none: a family has a sample only where the
engine said something, and ``canaryctl_probe_unknown`` says why others have none.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from .recorder import LATENCIES, EngineCounts, Recorder, Snapshot

ENGINE = "engine"
STEP_LABELS = (ENGINE, "mode", "bucket", "pure_decode", "reason")

Engines = Mapping[int, EngineCounts]


class RecorderCollector(Collector):
    """A collector of prometheus_client; never raises, for that would spoil the whole page."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def describe(self) -> Iterable[Metric]:
        """Names only, so that registering does not collect."""
        return ()

    def collect(self) -> Iterable[Metric]:
        # Shown from a copy: the engine does not wait for a page to be written.
        made = self._recorder.tried("page", lambda: list(families(self._recorder.snapshot())))
        return made or [_errors(self._recorder.snapshot())]


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Everything that the probe shows."""
    engines = snapshot.engines
    yield from _step_families(engines)
    yield _shapes(engines)
    yield _step_times(engines)
    yield from _latency_families(engines)
    yield from _fact_families(engines)
    yield _grid(engines)
    yield _unknown(engines)
    yield _errors(snapshot)


def _step_families(engines: Engines) -> Iterator[Metric]:
    steps = CounterMetricFamily(
        "canaryctl_engine_steps",
        "Engine steps by graph mode and captured size",
        labels=STEP_LABELS,
    )
    actual = CounterMetricFamily(
        "canaryctl_tokens_actual", "Tokens that steps were made of", labels=STEP_LABELS
    )
    padded = CounterMetricFamily(
        "canaryctl_tokens_padded", "Tokens computed, padding included", labels=STEP_LABELS
    )
    for engine, counts in engines.items():
        for step, count in counts.steps.items():
            labels = (str(engine), step.mode, str(step.bucket), step.pure_decode, step.reason)
            steps.add_metric(labels, count.steps)
            actual.add_metric(labels, count.actual)
            padded.add_metric(labels, count.padded)
    yield from (steps, actual, padded)


def _shapes(engines: Engines) -> Metric:
    family = HistogramMetricFamily(
        "canaryctl_step_shape",
        "Sequences or tokens of an engine step, by what is counted",
        labels=(ENGINE, "kind"),
    )
    for engine, counts in engines.items():
        for kind, histogram in counts.shapes.items():
            buckets, total = histogram.shown()
            family.add_metric((str(engine), kind), buckets, total)
    return family


def _step_times(engines: Engines) -> Metric:
    family = HistogramMetricFamily(
        "canaryctl_step_time_seconds",
        "Time from one step of decodes alone to the next one, by the graph of the later",
        labels=(ENGINE, "mode", "bucket"),
    )
    for engine, counts in engines.items():
        for (mode, bucket), histogram in counts.step_times.items():
            buckets, total = histogram.shown()
            family.add_metric((str(engine), mode, str(bucket)), buckets, total)
    return family


def _latency_families(engines: Engines) -> Iterator[Metric]:
    for name, (text, _) in LATENCIES.items():
        family = HistogramMetricFamily(f"canaryctl_{name}_seconds", text, labels=(ENGINE,))
        for engine, counts in engines.items():
            buckets, total = counts.latencies[name].shown()
            family.add_metric((str(engine),), buckets, total)
        yield family


def _fact_families(engines: Engines) -> Iterator[Metric]:
    startup = GaugeMetricFamily(
        "canaryctl_startup_seconds", "Duration of a stage of the start", labels=(ENGINE, "stage")
    )
    memory = GaugeMetricFamily(
        "canaryctl_memory_bytes", "Memory by what it is for", labels=(ENGINE, "kind")
    )
    tokens = GaugeMetricFamily(
        "canaryctl_kv_cache_tokens", "Tokens that the KV cache holds", labels=(ENGINE,)
    )
    concurrency = GaugeMetricFamily(
        "canaryctl_max_concurrency",
        "Requests of the longest length that the KV cache holds at once",
        labels=(ENGINE,),
    )
    attested = GaugeMetricFamily(
        "canaryctl_attestation_info", "The versions, GPU, model and limits that really run"
    )
    for number, counts in engines.items():
        facts, engine = counts.facts, str(number)
        if facts is None:
            continue
        for stage, seconds in facts.startup_s.items():
            startup.add_metric((engine, stage), seconds)
        for kind, size in facts.memory_bytes.items():
            memory.add_metric((engine, kind), size)
        if facts.kv_cache_tokens is not None:
            tokens.add_metric((engine,), facts.kv_cache_tokens)
        if facts.max_concurrency is not None:
            concurrency.add_metric((engine,), facts.max_concurrency)
        # A label that is left out is unknown; an empty one would read as none.
        attested.add_sample(attested.name, {ENGINE: engine, **facts.attested}, 1)
    yield from (startup, memory, tokens, concurrency, attested)


def _grid(engines: Engines) -> Metric:
    family = GaugeMetricFamily(
        "canaryctl_grid_info",
        "Graph mode and capture sizes that the engine resolved",
        labels=(ENGINE, "mode", "sizes", "requested", "engine_version"),
    )
    for engine, counts in engines.items():
        grid = counts.grid
        if grid is not None:
            sizes = ",".join(map(str, grid.sizes))
            labels = (str(engine), grid.mode, sizes, grid.requested, grid.engine_version)
            family.add_metric(labels, 1)
    return family


def _unknown(engines: Engines) -> Metric:
    family = GaugeMetricFamily(
        "canaryctl_probe_unknown",
        "What this engine cannot say, and why",
        labels=(ENGINE, "what", "reason"),
    )
    for engine, counts in engines.items():
        for what, reason in counts.unknown().items():
            family.add_metric((str(engine), what, reason), 1)
    return family


def _errors(snapshot: Snapshot) -> Metric:
    family = CounterMetricFamily(
        "canaryctl_probe_errors", "What the probe could not read, by part", labels=("part",)
    )
    for part, count in snapshot.errors.items():
        family.add_metric((part,), count)
    return family

"""What the probe counts, and how it is shown on /metrics.

Reads vLLM's own reports by attribute, since their classes differ by version: a step's
``cudagraph_stats`` (with ``--cudagraph-metrics``) and the ``IterationStats`` of the same step.
Needs the standard library and prometheus_client alone; Python 3.10 or newer.

Counters are plain numbers behind one lock, and turned into metrics only when scraped: a
histogram of prometheus_client walks its edges one by one, too slow for one of 250 edges that
is asked for every token.
"""

import math
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

EDGE_RATIO = 1.1**0.5  # neighbours differ by 4.9 %, so a tolerance of 10 % is two edges

REQUESTED_MODE = "CANARYCTL_REQUESTED_MODE"  # environment: the artifact's graph.mode
REQUESTED_SIZES = "CANARYCTL_REQUESTED_SIZES"  # environment: "1,2,4" or "default"

NO_OOM = "the engine core reports no out-of-memory event; its log and its exit do"
METRICS_OFF = "the engine runs without --cudagraph-metrics"
NO_STATS = "the engine's model runner reports no graph statistics"

ENGINE = "engine"


def edges(first: float, last: float) -> tuple[float, ...]:
    """``first · 1.1^(k/2)`` for k = 0, 1, … up to ``last``, in seconds."""
    count = math.floor(math.log(last / first) / math.log(EDGE_RATIO) + 1e-9) + 1
    return tuple(float(f"{first * EDGE_RATIO**k:.9g}") for k in range(count))


REQUEST_EDGES = edges(0.001, 165.0)  # to the first token, to the last one
TOKEN_EDGES = edges(0.0002, 10.0)  # between tokens

LATENCIES: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "ttft": ("Time to the first token", REQUEST_EDGES),
    "tpot": ("Decode time per output token after the first, of a finished request", TOKEN_EDGES),
    "itl": ("Time between two outputs of a request", TOKEN_EDGES),
    "e2e": ("Time from arrival to the last token", REQUEST_EDGES),
}


@dataclass(frozen=True)
class Grid:
    """What the engine resolved of the graphs it was asked for, as its API server knows it.

    A worker may lower it still (a backend that cannot do FULL): that shows in the steps.
    """

    mode: str  # NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, FULL_AND_PIECEWISE
    sizes: tuple[int, ...]
    requested_mode: str  # "" when not told
    requested: str  # "1,2,4", "default", "" when not told
    engine_version: str
    max_num_seqs: int
    decode_tokens: int  # tokens of one decode of one request: 1 + speculative ones
    reports_steps: bool


def read_grid(config: Any, engine_version: str, environment: Mapping[str, str]) -> Grid:
    """The resolved grid from vLLM's own configuration object."""
    compilation = config.compilation_config
    mode = getattr(compilation.cudagraph_mode, "name", None) or "NONE"
    speculative = getattr(config, "speculative_config", None)
    return Grid(
        mode=mode,
        sizes=tuple(sorted(compilation.cudagraph_capture_sizes or ())) if mode != "NONE" else (),
        requested_mode=environment.get(REQUESTED_MODE, ""),
        requested=environment.get(REQUESTED_SIZES, ""),
        engine_version=engine_version,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        decode_tokens=1 + (getattr(speculative, "num_speculative_tokens", None) or 0),
        reports_steps=bool(config.observability_config.cudagraph_metrics),
    )


@dataclass(frozen=True)
class Step:
    """One engine step, as the labels of ``canaryctl_engine_steps_total`` say it."""

    mode: str
    bucket: int  # padded tokens of the graph replayed; 0 when eager
    pure_decode: str  # true, false, unknown
    reason: str  # why eager; empty when a graph was replayed


def classify(stats: Any, iteration: Any, grid: Grid) -> Step:
    """The labels of a step, from vLLM's report of it and of its outputs."""
    mode = str(stats.runtime_mode).rsplit(".", 1)[-1]
    pure_decode = is_pure_decode(stats.num_unpadded_tokens, iteration, grid)
    if mode != "NONE":
        return Step(mode, stats.num_padded_tokens, pure_decode, "")
    return Step(mode, 0, pure_decode, why_eager(stats.num_unpadded_tokens, pure_decode, grid))


def is_pure_decode(tokens: int, iteration: Any, grid: Grid) -> str:
    """Whether a step of so many tokens held decodes alone: "true", "false" or "unknown".

    A step's outputs name only requests that got a token in it. A prompt processed in part
    shows in the tokens alone, but so does a request that ended while its next step was
    already under way; where the two cannot be told apart the answer is unknown.
    """
    if iteration is not None and iteration.time_to_first_tokens_iter:
        return "false"  # a prompt was completed
    if tokens > grid.max_num_seqs * grid.decode_tokens:
        return "false"  # more than all decodes together
    if iteration is None:
        return "unknown"
    if grid.decode_tokens == 1:
        decoded = iteration.num_generation_tokens
    else:  # how many of the proposed tokens were accepted says nothing of how many were run
        decoded = len(iteration.inter_token_latencies_iter) * grid.decode_tokens
    return "true" if tokens == decoded else "unknown"


def why_eager(tokens: int, pure_decode: str, grid: Grid) -> str:
    """``downgraded``: graphs were asked for and the engine resolved to none; ``beyond_grid``:
    no graph was to be captured for such a step; ``unknown``: there should be one."""
    if not grid.sizes:
        asked = grid.requested_mode not in ("", "NONE")
        return "downgraded" if asked else "beyond_grid"
    if tokens > grid.sizes[-1]:
        return "beyond_grid"
    if grid.mode == "FULL_DECODE_ONLY" and pure_decode == "false":
        return "beyond_grid"
    return "unknown"


class _Histogram:
    """Counts between edges; not cumulative until shown."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def shown(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper edge, and the sum in seconds."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if math.isinf(bound) else repr(bound), float(total)))
        return buckets, self._sum


def _histograms() -> dict[str, _Histogram]:
    return {name: _Histogram(bounds) for name, (_, bounds) in LATENCIES.items()}


@dataclass
class _EngineCounts:
    """Everything counted of one engine."""

    grid: Grid | None = None
    steps: Counter[Step] = field(default_factory=Counter)
    tokens_actual: int = 0
    tokens_padded: int = 0
    silent_steps: int = 0  # outputs that came without graph statistics
    latencies: dict[str, _Histogram] = field(
        default_factory=lambda: {
            name: _Histogram(bounds) for name, (_, bounds) in LATENCIES.items()
        }
    )

    def unknown(self) -> dict[str, str]:
        """What this engine cannot say → why."""
        reasons = {"oom": NO_OOM}
        if self.grid is None:
            reasons["grid"] = "the engine's configuration could not be read"
        elif not self.grid.reports_steps:
            reasons["steps"] = METRICS_OFF
        elif self.silent_steps and not self.steps:
            reasons["steps"] = NO_STATS
        return reasons


class Recorder:
    """Counts what engines report; a collector of prometheus_client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[int, _EngineCounts] = {}
        self._errors = 0

    def describe_engine(self, engine: int, grid: Grid) -> None:
        with self._lock:
            self._of(engine).grid = grid

    def count_error(self) -> None:
        with self._lock:
            self._errors += 1

    def observe(self, engine: int, scheduler: Any, iteration: Any) -> None:
        """Count one report: a step's SchedulerStats and the IterationStats of its outputs.

        Either may be None. Raises where a report is not of the form known; what was counted
        until then stays.
        """
        with self._lock:
            counts = self._of(engine)
            stats = None if scheduler is None else scheduler.cudagraph_stats
            if stats is not None and counts.grid is not None:
                counts.steps[classify(stats, iteration, counts.grid)] += 1
                counts.tokens_actual += stats.num_unpadded_tokens
                counts.tokens_padded += stats.num_padded_tokens
            elif scheduler is not None and iteration is not None:
                counts.silent_steps += 1
            if iteration is not None:
                _observe_latencies(counts.latencies, iteration)

    def describe(self) -> Iterable[Metric]:
        """Names only, so that registering does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            families = [*self._step_families(), *self._info_families(), *self._latency_families()]
        yield from families

    def _of(self, engine: int) -> _EngineCounts:
        return self._engines.setdefault(engine, _EngineCounts())

    def _step_families(self) -> list[Metric]:
        steps = CounterMetricFamily(
            "canaryctl_engine_steps",
            "Engine steps by graph mode and captured size",
            labels=(ENGINE, "mode", "bucket", "pure_decode", "reason"),
        )
        actual = CounterMetricFamily(
            "canaryctl_tokens_actual", "Tokens that steps were made of", labels=(ENGINE,)
        )
        padded = CounterMetricFamily(
            "canaryctl_tokens_padded", "Tokens computed, padding included", labels=(ENGINE,)
        )
        for engine, counts in self._engines.items():
            if not counts.steps:
                continue  # absent reads as unknown, and zero would read as none
            for step, count in counts.steps.items():
                labels = (str(engine), step.mode, str(step.bucket), step.pure_decode, step.reason)
                steps.add_metric(labels, count)
            actual.add_metric((str(engine),), counts.tokens_actual)
            padded.add_metric((str(engine),), counts.tokens_padded)
        return [steps, actual, padded]

    def _info_families(self) -> list[Metric]:
        grid = GaugeMetricFamily(
            "canaryctl_grid_info",
            "Graph mode and capture sizes that the engine resolved",
            labels=(ENGINE, "mode", "sizes", "requested", "engine_version"),
        )
        unknown = GaugeMetricFamily(
            "canaryctl_probe_unknown",
            "What this engine cannot say, and why",
            labels=(ENGINE, "what", "reason"),
        )
        errors = CounterMetricFamily(
            "canaryctl_probe_errors", "Engine reports that the probe could not read"
        )
        errors.add_metric((), self._errors)
        for engine, counts in self._engines.items():
            if counts.grid is not None:
                sizes = ",".join(map(str, counts.grid.sizes))
                grid.add_metric(
                    (
                        str(engine),
                        counts.grid.mode,
                        sizes,
                        counts.grid.requested,
                        counts.grid.engine_version,
                    ),
                    1,
                )
            for what, reason in counts.unknown().items():
                unknown.add_metric((str(engine), what, reason), 1)
        return [grid, unknown, errors]

    def _latency_families(self) -> list[Metric]:
        families: list[Metric] = []
        for name, (text, _) in LATENCIES.items():
            family = HistogramMetricFamily(f"canaryctl_{name}_seconds", text, labels=(ENGINE,))
            for engine, counts in self._engines.items():
                buckets, total = counts.latencies[name].shown()
                family.add_metric((str(engine),), buckets, total)
            families.append(family)
        return families


def _observe_latencies(latencies: Mapping[str, _Histogram], iteration: Any) -> None:
    for seconds in iteration.time_to_first_tokens_iter:
        latencies["ttft"].observe(seconds)
    for seconds in iteration.inter_token_latencies_iter:
        latencies["itl"].observe(seconds)
    for request in iteration.finished_requests:
        latencies["e2e"].observe(request.e2e_latency)
        # vLLM's own histogram counts 0 s for a request of one token; it has no such time.
        if request.num_generation_tokens > 1:
            latencies["tpot"].observe(request.mean_time_per_output_token)

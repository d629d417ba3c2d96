"""The metrics page: vLLM's own names and labels, and the probe's own families."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from canaryctl.runtimes.probe.canaryctl_probe.page import families
from canaryctl.runtimes.probe.canaryctl_probe.recorder import PARTS, EngineCounts, Snapshot
from canaryctl.runtimes.simulator.attestation import Attested
from canaryctl.runtimes.simulator.core import EngineCore
from canaryctl.runtimes.simulator.faults import Fault
from canaryctl.runtimes.simulator.prefix import BLOCK_SIZE
from canaryctl.runtimes.simulator.stats import FINISHED_REASONS

# What a version that renames its per-token metrics would call them.
RENAMED = {
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
    "vllm:request_time_per_output_token_seconds": "vllm:request_mean_token_latency_seconds",
    "canaryctl_tpot_seconds": "canaryctl_time_per_output_token_seconds",
    "canaryctl_itl_seconds": "canaryctl_inter_token_latency_seconds",
}
# Absent under the fault missing_metrics: every latency, and what the probe adds.
_LATENCY = "_seconds"
_PROBE = "canaryctl_"


class EngineCollector(Collector):
    """Reads an engine's numbers when the page is asked for."""

    def __init__(self, core: EngineCore, attested: Attested) -> None:
        self._core, self._attested = core, attested
        self._names = ("model_name", "engine")
        self._values = (core.config.served_name, "0")

    def collect(self) -> Iterator[Metric]:
        faults = self._core.faults
        for metric in self._all():
            name = metric.name
            if Fault.MISSING_METRICS in faults and (
                name.endswith(_LATENCY) or name.startswith(_PROBE)
            ):
                continue
            if Fault.METRICS_RENAMED in faults and name in RENAMED:
                metric.name = RENAMED[name]
                metric.samples = [
                    sample._replace(name=sample.name.replace(name, metric.name))
                    for sample in metric.samples
                ]
            yield metric

    def _all(self) -> Iterator[Metric]:
        yield from self._latencies()
        yield from self._vllm_counters()
        yield from self._vllm_gauges()
        yield self._http()
        yield from self._probe()

    def _latencies(self) -> Iterable[Metric]:
        stats = self._core.stats
        named = {
            "vllm:time_to_first_token_seconds": stats.coarse["ttft"],
            "vllm:request_prefill_time_seconds": stats.coarse["prefill"],
            "vllm:inter_token_latency_seconds": stats.coarse["itl"],
            "vllm:request_time_per_output_token_seconds": stats.coarse["tpot"],
            "vllm:e2e_request_latency_seconds": stats.coarse["e2e"],
            "vllm:iteration_tokens_total": stats.iteration_tokens,
        }
        for name, histogram in named.items():
            metric = HistogramMetricFamily(name, "As vLLM names it; simulated.", labels=self._names)
            buckets, total = histogram.shown()
            metric.add_metric(self._values, buckets, total)
            yield metric

    def _vllm_counters(self) -> Iterable[Metric]:
        stats = self._core.stats
        finished = CounterMetricFamily(
            "vllm:request_success",
            "Requests that ended, by reason; simulated.",
            labels=(*self._names, "finished_reason"),
        )
        for reason in FINISHED_REASONS:
            finished.add_metric((*self._values, reason), stats.finished[reason])
        yield finished
        for name, value in (
            ("vllm:prompt_tokens", stats.prompt_tokens),
            ("vllm:generation_tokens", stats.generation_tokens),
            ("vllm:num_preemptions", stats.preemptions),
            ("vllm:prefix_cache_queries", self._core.batcher.prefix_queries),
            ("vllm:prefix_cache_hits", self._core.batcher.prefix_hits),
        ):
            counter = CounterMetricFamily(name, "As vLLM names it; simulated.", labels=self._names)
            counter.add_metric(self._values, value)
            yield counter

    def _vllm_gauges(self) -> Iterable[Metric]:
        batcher, memory = self._core.batcher, self._core.memory
        for name, value in (
            ("vllm:num_requests_running", float(len(batcher.running))),
            ("vllm:num_requests_waiting", float(len(batcher.waiting))),
            ("vllm:kv_cache_usage_perc", batcher.kv_usage),
        ):
            gauge = GaugeMetricFamily(name, "As vLLM names it; simulated.", labels=self._names)
            gauge.add_metric(self._values, value)
            yield gauge
        config = self._core.config
        labels = {
            "block_size": str(BLOCK_SIZE),
            "engine": "0",
            "gpu_memory_utilization": str(config.memory_fraction),
            "kv_cache_max_concurrency": str(memory.kv_tokens / config.max_model_len),
            "kv_cache_size_tokens": str(memory.kv_tokens),
            "num_gpu_blocks": str(memory.num_blocks),
        }
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV cache; simulated.", labels=tuple(labels)
        )
        info.add_metric(tuple(labels.values()), 1)
        yield info

    def _http(self) -> Metric:
        counter = CounterMetricFamily(
            "http_requests",
            "Requests by handler and status.",
            labels=("handler", "method", "status"),
        )
        for key, value in self._core.stats.http.items():
            counter.add_metric(key, value)
        return counter

    def _probe(self) -> Iterable[Metric]:
        """The probe's own families, from what the model knows without having to tell it."""
        stats = self._core.stats
        counts = EngineCounts(
            grid=self._attested.grid,
            facts=self._attested.facts,
            steps=stats.steps,
            shapes=stats.shapes,
            step_times=stats.step_times,
            latencies=stats.fine,
        )
        yield from families(Snapshot({0: counts}, dict.fromkeys(PARTS, 0)))
        oom = CounterMetricFamily("canaryctl_oom", "Out-of-memory events; simulated.")
        oom.add_metric([], stats.oom)
        yield oom


def metrics_page(core: EngineCore, attested: Attested) -> CollectorRegistry:
    """The registry behind ``/metrics``: the engine's numbers and the process's own."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(EngineCollector(core, attested))
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """The page, in the text format of Prometheus."""
    return generate_latest(registry)

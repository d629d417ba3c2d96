"""What TensorRT-LLM calls the signals, by version, on its page ``/prometheus/metrics``.

Names were read in ``tensorrt_llm/metrics/collector.py``; docs/engines.md has the table. The page
is there with ``return_perf_metrics`` alone. A family appears with the first request that ends, so
a missing one is unknown. No metric tells of CUDA graphs, and the page does not count failed
requests in a way that could be read as zero: both are unknown.

The gauges of running and waiting requests (1.3) are set by an iteration of the engine: one that
is idle shows those of its last iteration for ever. They are not offered.

The page ``/metrics`` is JSON of the iterations since it was last read. Whoever reads it takes it
from all others, the server's own collector among them, so it is not read at all.
"""

from collections.abc import Mapping

from canaryctl.common.metrics import MetricKind, MetricRef, Signal

PATH = "/prometheus/metrics"

# One server has one model; it may name both "undefined".
_LABELS = ("engine_type", "model_name")

# The names got a prefix of their own.
_PREFIX_SINCE = (1, 2)
_PREFILL_SINCE = (1, 3)

_HISTOGRAMS: Mapping[Signal, str] = {
    Signal.TTFT: "time_to_first_token_seconds",
    Signal.TPOT: "time_per_output_token_seconds",  # of a request, despite vLLM's use of the name
    Signal.E2E: "e2e_request_latency_seconds",
}


def native(version: tuple[int, int]) -> Mapping[Signal, MetricRef]:
    """``version`` is major and minor. Edges are coarse: the first of TPOT is 10 ms."""
    prefix = "trtllm_" if version >= _PREFIX_SINCE else ""
    names = dict(_HISTOGRAMS)
    if version >= _PREFILL_SINCE:
        names[Signal.PREFILL] = "request_prefill_time_seconds"
    found = {
        signal: MetricRef(prefix + name, MetricKind.HISTOGRAM, sum_over=_LABELS)
        for signal, name in names.items()
    }
    found[Signal.REQUESTS] = MetricRef(
        f"{prefix}request_success_total",
        MetricKind.COUNTER,
        sum_over=(*_LABELS, "finished_reason"),
    )
    return found

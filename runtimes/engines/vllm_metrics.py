"""What vLLM calls the signals, by version, and what the probe adds to its /metrics.

Names were read in the published code of 0.20 to 0.33. They did not change within that range;
``_CHANGES`` is where a later version that renames one is told of. Every family of vLLM carries
``engine`` and ``model_name``; several engines behind one API server are one instance, so both
are summed over.
"""

from collections.abc import Mapping

from canaryctl.common.metrics import MetricKind, MetricRef, Signal

OLDEST = (0, 20)
NEWEST = (0, 33)

_ENGINE = ("engine",)
_ENGINE_AND_MODEL = ("engine", "model_name")

# The routes that generate: others (tokenize, models) would dilute the share of errors.
_GENERATION = r"/v1/(completions|chat/completions|chat/completions/batch|responses|messages)"
_HTTP_LABELS = ("handler", "method", "status")


def _vllm(name: str, kind: MetricKind) -> MetricRef:
    return MetricRef(f"vllm:{name}", kind, sum_over=_ENGINE_AND_MODEL)


def _http(status: str | None) -> MetricRef:
    """Counted by the instrumentation around vLLM's API; a series appears with its first event."""
    match = {"handler": _GENERATION}
    return MetricRef(
        "http_requests_total",
        MetricKind.COUNTER,
        match=match if status is None else match | {"status": status},
        sum_over=_HTTP_LABELS,
        born_at_zero=False,
        exists_with="vllm:num_requests_running",
    )


def _probe(name: str, kind: MetricKind) -> MetricRef:
    return MetricRef(f"canaryctl_{name}", kind, sum_over=_ENGINE)


# Signal → reference, as of OLDEST. The status of a stream is sent before its tokens: one that
# breaks off later is answered 2xx here, and is known from finished_reason="error" alone.
_NATIVE: Mapping[Signal, MetricRef] = {
    Signal.TTFT: _vllm("time_to_first_token_seconds", MetricKind.HISTOGRAM),
    Signal.TPOT: _vllm("request_time_per_output_token_seconds", MetricKind.HISTOGRAM),
    Signal.ITL: _vllm("inter_token_latency_seconds", MetricKind.HISTOGRAM),
    Signal.E2E: _vllm("e2e_request_latency_seconds", MetricKind.HISTOGRAM),
    Signal.PREFILL: _vllm("request_prefill_time_seconds", MetricKind.HISTOGRAM),
    Signal.REQUESTS: _http(None),
    Signal.ERRORS: _http("5.."),
    Signal.RUNNING: _vllm("num_requests_running", MetricKind.GAUGE),
    Signal.WAITING: _vllm("num_requests_waiting", MetricKind.GAUGE),
    Signal.PREEMPTIONS: _vllm("num_preemptions_total", MetricKind.COUNTER),
    Signal.CACHE_CONFIG: MetricRef("vllm:cache_config_info", MetricKind.INFO, sum_over=_ENGINE),
    Signal.PREFIX_QUERIES: _vllm("prefix_cache_queries_total", MetricKind.COUNTER),
    Signal.PREFIX_HITS: _vllm("prefix_cache_hits_total", MetricKind.COUNTER),
}

# (since, what it renamed), oldest first.
_CHANGES: tuple[tuple[tuple[int, int], Mapping[Signal, MetricRef]], ...] = ()

PROBE_REFS: Mapping[Signal, MetricRef] = {
    Signal.TTFT: _probe("ttft_seconds", MetricKind.HISTOGRAM),
    Signal.TPOT: _probe("tpot_seconds", MetricKind.HISTOGRAM),
    Signal.ITL: _probe("itl_seconds", MetricKind.HISTOGRAM),
    Signal.E2E: _probe("e2e_seconds", MetricKind.HISTOGRAM),
    Signal.PREFILL: _probe("prefill_seconds", MetricKind.HISTOGRAM),
    # Absent until the engine reported a step with its graph mode, so absent is unknown.
    Signal.STEPS: _probe("engine_steps_total", MetricKind.COUNTER_SET),
    Signal.TOKENS_ACTUAL: _probe("tokens_actual_total", MetricKind.COUNTER_SET),
    Signal.TOKENS_PADDED: _probe("tokens_padded_total", MetricKind.COUNTER_SET),
    Signal.SHAPES: _probe("step_shape", MetricKind.HISTOGRAM_SET),
    Signal.STEP_TIME: _probe("step_time_seconds", MetricKind.HISTOGRAM_SET),
    Signal.GRID: _probe("grid_info", MetricKind.INFO),
    # Of several engines each has times of its own, which are not to be added up.
    Signal.STARTUP: MetricRef("canaryctl_startup_seconds", MetricKind.GAUGE_SET),
    Signal.MEMORY: _probe("memory_bytes", MetricKind.GAUGE_SET),
    Signal.ATTESTATION: _probe("attestation_info", MetricKind.INFO),
}


def native(version: tuple[int, int]) -> Mapping[Signal, MetricRef]:
    """vLLM's own names alone, for an engine that runs without the probe.

    ``version`` is major and minor. Its latency edges are coarse: the first of TPOT and ITL is
    10 ms, above a whole decode step of a small model.
    """
    names = dict(_NATIVE)
    for since, renamed in _CHANGES:
        if version >= since:
            names |= renamed
    return names


def with_probe(version: tuple[int, int]) -> Mapping[Signal, MetricRef]:
    """The probe's names where it has one, else vLLM's own. OOM is in neither: unknown here."""
    return {**native(version), **PROBE_REFS}

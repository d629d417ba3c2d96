"""The adapter of the simulated engine: a real server without a model or a GPU.

It is driven like vLLM and measured by vLLM's metric names, so that everything above it can be
tried where no GPU is. What it does not model it refuses, instead of passing it over.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import MetricKind, MetricRef, Signal
from canaryctl.runtimes.engines.base import Launch, LogFacts
from canaryctl.runtimes.engines.grid import resolve_sizes
from canaryctl.runtimes.engines.vllm_log import read_vllm_log
from canaryctl.runtimes.engines.vllm_metrics import PROBE_REFS
from canaryctl.runtimes.simulator.config import (
    SimulatorConfig,
    args_problems,
    parse_args,
    served_name,
)
from canaryctl.runtimes.spec import GraphMode, RuntimeSpec

_GENERATION_ROUTES = "/v1/(chat/)?completions"
# A gauge of vLLM's that is there from the start, whatever has happened.
_ALWAYS_THERE = "vllm:num_requests_running"


class SimulatedEngine:
    """The engine named ``simulated``; satisfies :class:`~.base.Engine`."""

    name = "simulated"
    simulated = True
    tells_token_ids = True

    def check(self, spec: RuntimeSpec) -> Sequence[str]:
        """Faults of the spec: wrong ``engine.args``, a grid beyond the limits, and whatever the
        model has no place for."""
        problems = [f"engine.args: {problem}" for problem in args_problems(spec.engine.args)]
        problems += _not_modelled(spec)
        if spec.graph.capture_sizes == ():
            problems.append("graph.capture_sizes is empty; expected sizes, or mode: NONE")
        budget = spec.limits.max_num_batched_tokens
        if spec.uses_graphs:
            beyond = [size for size in spec.graph.capture_sizes or () if size > budget]
            if beyond:
                problems.append(
                    f"graph.capture_sizes {_listed(beyond)} exceed max_num_batched_tokens "
                    f"({budget}): the engine would drop them"
                )
        beyond = [size for size in spec.warmup_plan.decode_buckets if size > _most_decodes(spec)]
        if beyond:
            problems.append(
                f"warmup_plan.decode_buckets {_listed(beyond)} exceed max_num_seqs "
                f"({spec.limits.max_num_seqs}): the engine never decodes so many at once"
            )
        beyond = [size for size in spec.warmup_plan.mixed_token_buckets if size > budget]
        if beyond:
            problems.append(
                f"warmup_plan.mixed_token_buckets {_listed(beyond)} exceed "
                f"max_num_batched_tokens ({budget})"
            )
        return problems

    def launch(self, spec: RuntimeSpec, *, host: str, port: int) -> Launch:
        """``engine.command`` (else this Python) with the simulator's arguments."""
        limits = spec.limits
        config = SimulatorConfig(
            model=spec.model.id,
            version=spec.engine.version,
            revision=spec.model.revision,
            graph_mode=spec.graph.mode.value,
            capture_sizes=spec.graph.capture_sizes if spec.uses_graphs else None,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            memory_fraction=spec.gpu.memory_fraction,
            args=parse_args(spec.engine.args),
        )
        command = spec.engine.command or (sys.executable, "-m", "canaryctl.runtimes.simulator")
        argv = (*command, "--host", host, "--port", str(port), "--config", config.to_json())
        return Launch(argv, env=dict(spec.engine.env), pythonpath=_own_path())

    def eager(self, spec: RuntimeSpec) -> RuntimeSpec:
        if not spec.uses_graphs:
            raise InputError("the runtime runs without graphs already; it has no eager form")
        graph = spec.graph.model_copy(update={"mode": GraphMode.NONE, "capture_sizes": None})
        return spec.model_copy(update={"graph": graph})

    def resolved_grid(self, spec: RuntimeSpec) -> tuple[int, ...]:
        if not spec.uses_graphs:
            return ()
        return resolve_sizes(
            spec.graph.capture_sizes,
            max_num_seqs=spec.limits.max_num_seqs,
            max_num_batched_tokens=spec.limits.max_num_batched_tokens,
        )

    def metrics(self, version: str) -> Mapping[Signal, MetricRef]:
        """The same for every version: latencies from the histograms with fine edges."""
        del version
        return _METRICS

    def read_log(self, lines: Iterable[str], version: str) -> LogFacts:
        del version
        return read_vllm_log(lines)

    def health_path(self) -> str:
        return "/health"

    def metrics_path(self) -> str:
        return "/metrics"

    def model_name(self, spec: RuntimeSpec) -> str:
        return served_name(spec.model.id)

    def variant(self, spec: RuntimeSpec) -> str:
        return ""


def _known_at_once(signal: Signal) -> MetricRef:
    """Before the first step there is none of a count, and the simulator knows that it is none."""
    return replace(PROBE_REFS[signal], born_at_zero=False, exists_with="canaryctl_grid_info")


_METRICS: Mapping[Signal, MetricRef] = {
    **PROBE_REFS,
    Signal.STEPS: _known_at_once(Signal.STEPS),
    Signal.TOKENS_ACTUAL: _known_at_once(Signal.TOKENS_ACTUAL),
    Signal.TOKENS_PADDED: _known_at_once(Signal.TOKENS_PADDED),
    Signal.REQUESTS: MetricRef(
        "http_requests_total",
        MetricKind.COUNTER,
        match={"handler": _GENERATION_ROUTES},
        sum_over=("handler", "method", "status"),
        born_at_zero=False,
        exists_with=_ALWAYS_THERE,
    ),
    Signal.ERRORS: MetricRef(
        "http_requests_total",
        MetricKind.COUNTER,
        match={"handler": _GENERATION_ROUTES, "status": "5xx"},
        sum_over=("handler", "method"),
        born_at_zero=False,
        exists_with=_ALWAYS_THERE,
    ),
    Signal.OOM: MetricRef("canaryctl_oom_total", MetricKind.COUNTER),
    Signal.RUNNING: MetricRef("vllm:num_requests_running", MetricKind.GAUGE),
    Signal.WAITING: MetricRef("vllm:num_requests_waiting", MetricKind.GAUGE),
    Signal.PREEMPTIONS: MetricRef("vllm:num_preemptions_total", MetricKind.COUNTER),
    Signal.CACHE_CONFIG: MetricRef("vllm:cache_config_info", MetricKind.INFO),
    Signal.PREFIX_QUERIES: MetricRef("vllm:prefix_cache_queries_total", MetricKind.COUNTER),
    Signal.PREFIX_HITS: MetricRef("vllm:prefix_cache_hits_total", MetricKind.COUNTER),
}


def _own_path() -> tuple[str, ...]:
    """The simulator is of this package: where that is found by PYTHONPATH alone, an engine with
    an environment of its own must find it too."""
    return tuple(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


def _not_modelled(spec: RuntimeSpec) -> list[str]:
    found = {
        "engine.image": spec.engine.image,
        "engine.venv": spec.engine.venv,
        "speculative": spec.speculative and spec.speculative.method,
        "model.lora": ", ".join(spec.model.lora),
        "model.quantization": spec.model.quantization,
        "model.kv_cache_dtype": spec.model.kv_cache_dtype,
    }
    problems = [
        f"{name} is {value!r}: the simulated engine does not model it; leave it out"
        for name, value in found.items()
        if value
    ]
    for name, value in spec.parallel.model_dump().items():
        if value != 1:
            problems.append(
                f"parallel.{name} is {value}: the simulated engine models one GPU; expected 1"
            )
    return problems


def _most_decodes(spec: RuntimeSpec) -> int:
    return min(spec.limits.max_num_seqs, spec.limits.max_num_batched_tokens)


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))

"""The TensorRT-LLM adapter: how an artifact becomes ``trtllm-serve`` and its YAML.

Options, defaults and names were read in its sources; it has not been run with its real engine
(docs/engines.md). Most options exist in the YAML alone, which is written for each instance.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import MetricRef, Signal
from canaryctl.runtimes.engines import trtllm_metrics
from canaryctl.runtimes.engines.base import FILES, Launch, LogFacts
from canaryctl.runtimes.engines.trtllm_args import configured, passed_through
from canaryctl.runtimes.engines.trtllm_check import faults
from canaryctl.runtimes.engines.trtllm_grid import (
    DECODE_MODES,
    PIECEWISE_MODES,
    batch_sizes,
    token_sizes,
)
from canaryctl.runtimes.engines.trtllm_log import read_trtllm_log
from canaryctl.runtimes.engines.trtllm_version import (
    CONFIG_OPTION_SINCE,
    SERVED_NAME,
    release,
    require_supported,
)
from canaryctl.runtimes.spec import GraphMode, GraphSpec, RuntimeSpec

CONFIG = "trtllm.yaml"


class TrtllmEngine:
    """Satisfies :class:`canaryctl.runtimes.engines.base.Engine`."""

    name = "trtllm"
    simulated = False
    tells_token_ids = False  # its server refuses fields that it does not know

    def check(self, spec: RuntimeSpec) -> tuple[str, ...]:
        return faults(spec)

    def launch(self, spec: RuntimeSpec, *, host: str, port: int) -> Launch:
        renamed = release(spec.engine.version) >= CONFIG_OPTION_SINCE
        option = "config" if renamed else "extra_llm_api_options"
        return Launch(
            argv=(
                *_program(spec),
                spec.model.id,
                f"--host={host}",
                f"--port={port}",
                "--backend=pytorch",
                *_options(spec),
                f"--{option}={FILES}/{CONFIG}",
                *passed_through(spec.engine.args),
            ),
            env=dict(spec.engine.env),
            files={CONFIG: yaml.safe_dump(_config(spec))},
        )

    def eager(self, spec: RuntimeSpec) -> RuntimeSpec:
        if not spec.uses_graphs:
            raise InputError("the runtime runs without graphs already; it has no eager form")
        return spec.model_copy(update={"graph": GraphSpec(mode=GraphMode.NONE)})

    def resolved_grid(self, spec: RuntimeSpec) -> tuple[int, ...]:
        """Batch sizes of decode graphs, and token counts of piecewise ones where they are given:
        the engine's own differ by version."""
        return tuple(sorted({*batch_sizes(spec), *(token_sizes(spec) or ())}))

    def metrics(self, version: str) -> Mapping[Signal, MetricRef]:
        return trtllm_metrics.native(require_supported(version))

    def read_log(self, lines: Iterable[str], version: str) -> LogFacts:
        require_supported(version)
        return read_trtllm_log(lines)

    def health_path(self) -> str:
        """``/health_generate`` would make a token at each look, with no bound on its time; the
        progress probe asks for one on its own schedule."""
        return "/health"

    def metrics_path(self) -> str:
        return trtllm_metrics.PATH

    def model_name(self, spec: RuntimeSpec) -> str:
        """``args: {served_model_name: …}``, else the model's id; of a folder, its last part."""
        served = spec.engine.args.get(SERVED_NAME)
        if served is not None:
            return str(served)
        model = spec.model.id
        return Path(model).name if Path(model).is_absolute() else model

    def variant(self, spec: RuntimeSpec) -> str:
        return ""


def _program(spec: RuntimeSpec) -> tuple[str, ...]:
    engine = spec.engine
    if engine.command is not None:
        return engine.command
    if engine.venv is None:
        return ("trtllm-serve",)
    return (str(Path(engine.venv) / "bin" / "trtllm-serve"),)


def _options(spec: RuntimeSpec) -> Iterable[str]:
    limits, parallel = spec.limits, spec.parallel
    if spec.model.tokenizer is not None:
        yield f"--tokenizer={spec.model.tokenizer}"
    yield f"--max_batch_size={limits.max_num_seqs}"
    yield f"--max_num_tokens={limits.max_num_batched_tokens}"
    yield f"--max_seq_len={limits.max_model_len}"
    yield f"--tp_size={parallel.tensor}"
    yield f"--pp_size={parallel.pipeline}"
    if parallel.expert > 1:
        yield f"--ep_size={parallel.expert}"
    yield f"--kv_cache_free_gpu_memory_fraction={spec.gpu.memory_fraction:g}"


def _config(spec: RuntimeSpec) -> dict[str, object]:
    """The YAML, which wins over the command line and replaces whole groups of it."""
    config: dict[str, object] = {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "cuda_graph_config": _decode_graphs(spec),
    }
    if spec.model.revision is not None:
        config["revision"] = spec.model.revision
    if spec.attention_backend is not None:
        config["attn_backend"] = spec.attention_backend
    groups: dict[str, dict[str, object]] = {}
    if spec.graph.mode in PIECEWISE_MODES:
        groups["torch_compile_config"] = _piecewise_graphs(spec)
    if spec.model.kv_cache_dtype is not None:
        groups["kv_cache_config"] = {"dtype": spec.model.kv_cache_dtype}
    for name, given in configured(spec.engine.args).items():
        ours = groups.get(name, {})
        if isinstance(given, dict):
            groups[name] = {**given, **ours}
    if "kv_cache_config" in groups:
        groups["kv_cache_config"]["free_gpu_memory_fraction"] = spec.gpu.memory_fraction
    return {**config, **groups}


def _decode_graphs(spec: RuntimeSpec) -> dict[str, object] | None:
    if spec.graph.mode not in DECODE_MODES:
        return None  # left out it would be the engine's default, which captures
    wanted: dict[str, object] = {"enable_padding": True}
    if spec.graph.capture_sizes is not None:
        sizes = list(batch_sizes(spec))
        # An explicit maximum must be that of the sizes; an empty list would mean the default.
        wanted |= {"batch_sizes": sizes, "max_batch_size": max(sizes, default=0)}
    return wanted


def _piecewise_graphs(spec: RuntimeSpec) -> dict[str, object]:
    wanted: dict[str, object] = {"enable_piecewise_cuda_graph": True}
    tokens = token_sizes(spec)
    if tokens is not None:
        wanted["capture_num_tokens"] = list(tokens)
    return wanted

"""The vLLM adapter: how an artifact becomes a command line, and what its answers mean.

Options, defaults and names were read in the published code of 0.20 to 0.33. The probe's folder
goes on the engine's PYTHONPATH, so that the engine's own /metrics tell of its steps.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import MetricRef, Signal
from canaryctl.runtimes.engines import vllm_metrics
from canaryctl.runtimes.engines.base import Launch, LogFacts
from canaryctl.runtimes.engines.grid import LARGEST_DEFAULT, resolve_sizes
from canaryctl.runtimes.engines.vllm_args import passed_through
from canaryctl.runtimes.engines.vllm_check import faults
from canaryctl.runtimes.engines.vllm_log import read_vllm_log
from canaryctl.runtimes.engines.vllm_version import release, require_supported
from canaryctl.runtimes.spec import GraphMode, GraphSpec, RuntimeSpec, SpeculativeSpec

PROBE = Path(__file__).resolve().parents[1] / "probe"
PROBE_PLUGIN = "canaryctl_probe"

_MODULE = ("-m", "vllm.entrypoints.openai.api_server")

# Model Runner V2 reports no graph statistics before this release.
_V2_REPORTS_GRAPHS = (0, 30)
_V2_SWITCH = "VLLM_USE_V2_MODEL_RUNNER"
_PLUGINS = "VLLM_PLUGINS"

# When the default grid gained sizes of its own: the token budget, then the most sequences.
_CAPTURES_TOKEN_BUDGET = (0, 21)
_CAPTURES_MAX_NUM_SEQS = (0, 29)


class VllmEngine:
    """Satisfies :class:`canaryctl.runtimes.engines.base.Engine`."""

    name = "vllm"
    simulated = False
    tells_token_ids = True

    def check(self, spec: RuntimeSpec) -> tuple[str, ...]:
        return faults(spec)

    def launch(self, spec: RuntimeSpec, *, host: str, port: int) -> Launch:
        return Launch(
            argv=(
                *_program(spec),
                *_model(spec),
                *_limits(spec),
                *_graphs(spec),
                *_devices(spec),
                *_speculation(spec.speculative),
                f"--host={host}",
                f"--port={port}",
                "--cudagraph-metrics",
                # A line for each request would bury what the engine itself has to say.
                "--disable-uvicorn-access-log",
                *passed_through(spec.engine.args),
            ),
            env=_environment(spec),
            pythonpath=(str(PROBE),),
        )

    def eager(self, spec: RuntimeSpec) -> RuntimeSpec:
        if not spec.uses_graphs:
            raise InputError("the runtime runs without graphs already; it has no eager form")
        return spec.model_copy(update={"graph": GraphSpec(mode=GraphMode.NONE)})

    def resolved_grid(self, spec: RuntimeSpec) -> tuple[int, ...]:
        if not spec.uses_graphs:
            return ()
        limits = spec.limits
        sizes = resolve_sizes(
            spec.graph.capture_sizes,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            speculative_tokens=_speculative_tokens(spec),
        )
        if spec.graph.capture_sizes is not None or spec.speculative is not None:
            return sizes
        return tuple(sorted({*sizes, *_later_default_sizes(spec)}))

    def metrics(self, version: str) -> Mapping[Signal, MetricRef]:
        return vllm_metrics.with_probe(require_supported(version))

    def read_log(self, lines: Iterable[str], version: str) -> LogFacts:
        require_supported(version)
        return read_vllm_log(lines)

    def health_path(self) -> str:
        return "/health"

    def metrics_path(self) -> str:
        return "/metrics"

    def model_name(self, spec: RuntimeSpec) -> str:
        """``args: {served-model-name: …}``, of several the first; else the model's id."""
        served = spec.engine.args.get("served-model-name", spec.model.id)
        return str(served[0] if isinstance(served, tuple) else served)

    def variant(self, spec: RuntimeSpec) -> str:
        """On GPUs which model runner it is told to use, and else V2, which is then its own choice;
        a model that V2 does not support yet gets V1."""
        if not spec.gpu.count:
            return ""
        return f"model runner {'V1' if _environment(spec).get(_V2_SWITCH) == '0' else 'V2'}"


def _program(spec: RuntimeSpec) -> tuple[str, ...]:
    engine = spec.engine
    if engine.command is not None:
        return engine.command
    python = "python3" if engine.venv is None else str(Path(engine.venv) / "bin" / "python")
    return (python, *_MODULE)


def _model(spec: RuntimeSpec) -> Iterable[str]:
    model = spec.model
    served_by_command = spec.engine.command is not None and spec.engine.command[-1:] == ("serve",)
    yield model.id if served_by_command else f"--model={model.id}"
    if "served-model-name" not in spec.engine.args:
        yield f"--served-model-name={model.id}"
    for option, value in (
        ("revision", model.revision),
        ("tokenizer", model.tokenizer),
        ("quantization", model.quantization),
        ("kv-cache-dtype", model.kv_cache_dtype),
    ):
        if value is not None:
            yield f"--{option}={value}"
    if model.lora:
        yield "--enable-lora"
        yield "--lora-modules"
        yield from model.lora


def _limits(spec: RuntimeSpec) -> Iterable[str]:
    yield f"--max-num-seqs={spec.limits.max_num_seqs}"
    yield f"--max-num-batched-tokens={spec.limits.max_num_batched_tokens}"
    yield f"--max-model-len={spec.limits.max_model_len}"


def _graphs(spec: RuntimeSpec) -> Iterable[str]:
    if not spec.uses_graphs:
        yield "--enforce-eager"
        return
    wanted: dict[str, object] = {"cudagraph_mode": spec.graph.mode.value}
    if spec.graph.capture_sizes is not None:
        wanted["cudagraph_capture_sizes"] = list(spec.graph.capture_sizes)
    yield f"--compilation-config={json.dumps(wanted, separators=(',', ':'))}"


def _devices(spec: RuntimeSpec) -> Iterable[str]:
    parallel = spec.parallel
    if parallel.tensor > 1:
        yield f"--tensor-parallel-size={parallel.tensor}"
    if parallel.pipeline > 1:
        yield f"--pipeline-parallel-size={parallel.pipeline}"
    if parallel.expert > 1:
        yield "--enable-expert-parallel"
    if spec.gpu.count:
        yield f"--gpu-memory-utilization={spec.gpu.memory_fraction:g}"
    if spec.attention_backend is not None:
        yield f"--attention-backend={spec.attention_backend}"


def _speculation(speculative: SpeculativeSpec | None) -> Iterable[str]:
    if speculative is None:
        return
    wanted = speculative.model_dump(mode="json", exclude_none=True)
    yield f"--speculative-config={json.dumps(wanted, separators=(',', ':'))}"


def _environment(spec: RuntimeSpec) -> dict[str, str]:
    sizes = spec.graph.capture_sizes
    env = {
        # The engine keeps what it resolved, not what it was asked: the probe shows both.
        "CANARYCTL_REQUESTED_MODE": spec.graph.mode.value,
        "CANARYCTL_REQUESTED_SIZES": "default" if sizes is None else ",".join(map(str, sizes)),
    }
    if spec.gpu.count and release(spec.engine.version) < _V2_REPORTS_GRAPHS:
        env[_V2_SWITCH] = "0"
    env |= spec.engine.env
    if _PLUGINS in env:  # a list of those allowed; without the probe on it the engine is mute
        env[_PLUGINS] = ",".join(filter(None, (env[_PLUGINS], PROBE_PLUGIN)))
    return env


def _speculative_tokens(spec: RuntimeSpec) -> int:
    return spec.speculative.num_speculative_tokens if spec.speculative is not None else 0


def _later_default_sizes(spec: RuntimeSpec) -> Iterable[int]:
    """What newer releases add to the default grid, where it fits under the grid's cap."""
    limits = spec.limits
    version = release(spec.engine.version)
    cap = min(2 * limits.max_num_seqs, LARGEST_DEFAULT)
    if version >= _CAPTURES_TOKEN_BUDGET and limits.max_num_batched_tokens <= cap:
        yield limits.max_num_batched_tokens
    if version >= _CAPTURES_MAX_NUM_SEQS and limits.max_num_seqs <= min(
        cap, limits.max_num_batched_tokens
    ):
        yield limits.max_num_seqs

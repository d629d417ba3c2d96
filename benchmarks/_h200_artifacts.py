"""The artifacts and load profiles of the benchmark, for a GPU and for its rehearsal on a CPU."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SERVICE = "chat"
NINE = [1, 2, 4, 8, 12, 16, 24, 32, 48]
MAX_NUM_SEQS = 128
DENSE = list(range(1, 513))

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Engine:
    """What all artifacts share. ``runtime``: the engine, its model and limits, graphs off."""

    runtime: Document
    gpu: bool
    suffix: str = ""  # of versions: another warm-up plan is another runtime

    def warmed_least(self) -> "Engine":
        """One sequence at a time: nothing has to run in the same step."""
        plan = {"decode_buckets": [1], "repeat_per_bucket": 3}
        return Engine(self.runtime | {"warmup_plan": plan}, self.gpu, ".least")

    def variant(self, **changes: Any) -> Document:
        """The runtime with other sections; ``args`` and ``env`` are added to the engine's."""
        runtime = copy.deepcopy(self.runtime)
        for name in ("args", "env"):
            runtime["engine"][name] |= changes.pop(name, {})
        return runtime | changes


def gpu_engine(
    command: list[str],
    pythonpath: str,
    model: Path,
    cache: Path,
    *,
    fraction: float,
    warm: list[int],
) -> Engine:
    """vLLM 0.25.1 that ``command`` starts, with ``pythonpath`` on its path; one of several on
    a GPU, each with ``fraction`` of its memory. ``warm``: decode buckets, all among ``NINE``."""
    env = {
        "HF_HUB_OFFLINE": "1",
        # The sampler of the V1 model runner asks for FlashInfer, which this environment lacks.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(cache),  # later starts find what the first one compiled
    }
    if pythonpath:
        env["PYTHONPATH"] = pythonpath
    runtime: Document = {
        "engine": {
            "name": "vllm",
            "version": "0.25.1",
            "torch": "2.11.0",
            "command": [*command, "-m", "vllm.entrypoints.openai.api_server"],
            "args": {
                "load-format": "dummy",
                "served-model-name": SERVICE,
            },
            "env": env,
        },
        "cuda": {"toolkit": "13.0", "driver": ">=580.65"},
        "gpu": {"count": 1, "memory_fraction": fraction, "share": True},
        "model": {"id": str(model)},
        "graph": {"mode": "NONE"},
        "limits": {
            "max_num_seqs": MAX_NUM_SEQS,
            "max_num_batched_tokens": 8192,
            "max_model_len": 2048,
        },
        "warmup_plan": {
            "decode_buckets": warm,
            "mixed_token_buckets": [64, 512],
            "repeat_per_bucket": 2,
        },
    }
    return Engine(runtime, gpu=True)


def cpu_engine(venv: Path, model: Path) -> Engine:
    """CPU vLLM 0.32.0 of one thread, ready in half a minute."""
    runtime: Document = {
        "engine": {
            "name": "vllm",
            "version": "0.32.0",
            "venv": str(venv),
            "args": {"load-format": "dummy", "served-model-name": SERVICE},
            "env": {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "OMP_NUM_THREADS": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_NO_USAGE_STATS": "1",
            },
        },
        "gpu": {"count": 0},
        "model": {"id": str(model)},
        "graph": {"mode": "NONE"},
        "limits": {"max_num_seqs": 16, "max_num_batched_tokens": 512, "max_model_len": 512},
        "warmup_plan": {
            "decode_buckets": [1, 4],
            "mixed_token_buckets": [64],
            "repeat_per_bucket": 2,
        },
    }
    return Engine(runtime, gpu=False)


_HARD: list[Document] = [
    {"name": "engine_exit", "max": 0},
    {"name": "oom", "max": 0},
    {"name": "progress", "max_seconds": "20s"},
]
_FIRST_GATES: list[Document] = [
    {"name": "ttft_p90", "max_seconds": "5s"},
    {"name": "error_rate", "max_ratio": "5%"},
    *_HARD,
]
_CPU_GATES: list[Document] = [
    # Engines on the same few CPUs disturb each other: to compare them here says nothing.
    {"name": "tpot_p90", "max_seconds": "2s"},
    {"name": "error_rate", "max_ratio": "5%"},
    *_HARD,
]
_GPU_GATES: list[Document] = [
    {"name": "ttft_p90", "max_regression": "46%"},
    {"name": "tpot_p90", "max_regression": "46%"},
    {"name": "error_rate", "max_ratio": "5%"},
    {"name": "graph_fallback", "max_ratio": "5%"},
    {"name": "max_concurrency", "max_regression": "10%"},
    *_HARD,
]
_USERS: Document = {"weight": 50, "bake": "10s"}
_HELD: Document = {"weight": 0, "pause": True}


def first(engine: Engine) -> Document:
    """Graphs off: it becomes stable under requests that the controller makes."""
    steps = [{"weight": 0, "load": "first.yaml", "requests": 200 if engine.gpu else 80}]
    return _document("eager", engine, engine.runtime, steps, _FIRST_GATES)


def graphs(engine: Engine) -> Document:
    """The default grid, held before any traffic, then judged at half of it. On a CPU an equal
    runtime without graphs."""
    if not engine.gpu:
        runtime = engine.variant(args={"enable-prefix-caching": False})
        return _document("graphs", engine, runtime, [_HELD, _USERS], _CPU_GATES)
    runtime = engine.variant(graph={"mode": "FULL_AND_PIECEWISE"})
    # Should a gate not decide on this machine, what follows still has graphs to compare with.
    return _document(
        "graphs",
        engine,
        runtime,
        [_HELD, _USERS],
        _GPU_GATES,
        deadline="7m",
        on_inconclusive="promote",
    )


def nine(engine: Engine, version: str) -> Document:
    """A grid that ends at 48 sequences, below the load; at half of the traffic at once."""
    return _document("nine", engine, _nine(engine), [_USERS], _GPU_GATES, version=version)


def nine_measured(engine: Engine) -> Document:
    """The same runtime, held before any traffic to be measured beyond its grid: only the hard
    gates judge it."""
    runtime = _nine(engine) if engine.gpu else engine.variant(args={"seed": 3})
    return _document("nine", engine, runtime, [_HELD], _HARD, version="measured", deadline="7m")


def oom_capture(engine: Engine, *, kv_cache_bytes: int, attempt: int) -> Document:
    """A KV cache sized for a GPU of its own, and a graph for every batch up to 512: nothing is
    left to capture them in. ``kv_cache_bytes`` overrides the memory fraction, as vLLM says."""
    runtime = engine.variant(
        args={"kv-cache-memory-bytes": kv_cache_bytes},
        graph={"mode": "FULL_AND_PIECEWISE", "capture_sizes": DENSE},
        limits={"max_num_seqs": 512, "max_num_batched_tokens": 8192, "max_model_len": 2048},
    )
    gates = [gate for gate in _GPU_GATES if gate["name"] != "max_concurrency"]
    return _document("oom-capture", engine, runtime, [_HELD, _USERS], gates, version=str(attempt))


def _nine(engine: Engine) -> Document:
    return engine.variant(graph={"mode": "FULL_AND_PIECEWISE", "capture_sizes": NINE})


def _document(
    name: str,
    engine: Engine,
    runtime: Document,
    steps: list[Document],
    gates: list[Document],
    *,
    version: str = "1",
    deadline: str = "5m",
    on_inconclusive: str = "rollback",
) -> Document:
    return {
        "apiVersion": "canaryctl/v1",
        "kind": "RuntimeArtifact",
        "name": name,
        "version": f"{version}{engine.suffix}",
        "service": SERVICE,
        "runtime": runtime,
        "rollout": {
            "steps": steps,
            "interval": "500ms",
            "drain": "10s",
            "progress_deadline": deadline,
            "rollback_window": "3s",
            "detectable": "200%",
            "on_inconclusive": on_inconclusive,
        },
        "gates": gates,
        "rollback": {"ladder": ["previous"]},
    }


_GPU_LOADS: dict[str, Document] = {
    "first.yaml": {
        "rate": 40,
        "prompt_tokens": {"min": 16, "max": 64},
        "output_tokens": {"min": 32, "max": 64},
    },
    "users.yaml": {
        "rate": 40,
        "prompt_tokens": {"min": 16, "max": 64},
        "output_tokens": {"min": 32, "max": 64},
    },
    # More than is ever answered, so that 128 requests are open: 64 for each of two engines.
    "many.yaml": {
        "rate": 300,
        "max_concurrency": 128,
        "stream": False,
        "prompt_tokens": {"min": 16, "max": 64},
        "output_tokens": {"min": 192, "max": 320},
    },
}
_CPU_LOAD: Document = {
    "rate": 12,
    "prompt_tokens": {"min": 8, "max": 48},
    "output_tokens": {"min": 8, "max": 24},
}


def write_loads(folder: Path, *, gpu: bool) -> None:
    for name, profile in _GPU_LOADS.items():
        document = {**(profile if gpu else _CPU_LOAD), "vocabulary": 200, "for": "15m"}
        (folder / name).write_text(yaml.safe_dump(document, sort_keys=False))


def write(folder: Path, document: Document) -> Path:
    path = folder / f"{document['name']}-{document['version']}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path

"""``engine.args``: options passed through to trtllm-serve and to its YAML, and those refused.

A name with a dot, ``kv_cache_config.enable_block_reuse``, is an entry of the YAML, where most of
TensorRT-LLM's options are; any other is an option of the command line.
"""

import re
from collections.abc import Iterable, Mapping

_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*")

# Option → where the artifact says it instead.
_TYPED: Mapping[str, str] = {
    "model": "model.id",
    "revision": "model.revision",
    "hf_revision": "model.revision",
    "tokenizer": "model.tokenizer",
    "kv_cache_dtype": "model.kv_cache_dtype",
    "kv_cache_config.dtype": "model.kv_cache_dtype",
    "max_batch_size": "limits.max_num_seqs",
    "max_num_tokens": "limits.max_num_batched_tokens",
    "max_seq_len": "limits.max_model_len",
    "cuda_graph_config": "graph.mode and graph.capture_sizes",
    "torch_compile_config.enable_piecewise_cuda_graph": "graph.mode",
    "torch_compile_config.capture_num_tokens": "graph.capture_sizes",
    "tensor_parallel_size": "parallel.tensor",
    "tp_size": "parallel.tensor",
    "pipeline_parallel_size": "parallel.pipeline",
    "pp_size": "parallel.pipeline",
    "moe_expert_parallel_size": "parallel.expert",
    "ep_size": "parallel.expert",
    "free_gpu_memory_fraction": "gpu.memory_fraction",
    "kv_cache_free_gpu_memory_fraction": "gpu.memory_fraction",
    "kv_cache_config.free_gpu_memory_fraction": "gpu.memory_fraction",
    "attn_backend": "attention_backend",
}
# Option → why it cannot be given.
_OURS: Mapping[str, str] = {
    "host": "where an engine listens is chosen when it is started",
    "port": "where an engine listens is chosen when it is started",
    "backend": "the adapter knows the backend pytorch alone",
    "config": "options in a file would change the runtime and not its digest",
    "extra_llm_api_options": "options in a file would change the runtime and not its digest",
    "log_level": "readiness is read from lines of the level info",
    "grpc": "engines are reached over HTTP",
    "server_role": "an engine serves whole requests, prefill and decode",
    "metadata_server_config_file": "an engine serves whole requests, prefill and decode",
    "disagg_cluster_uri": "an engine serves whole requests, prefill and decode",
}

Value = str | int | float | bool | tuple[str | int | float | bool, ...]


def passed_through(args: Mapping[str, Value]) -> Iterable[str]:
    """The words of the command line, in the order of the names."""
    for name, value in sorted(args.items()):
        if "." in name:
            continue
        if isinstance(value, bool):  # a flag, of which there is no negative
            yield f"--{name}"
        else:
            for each in value if isinstance(value, tuple) else (value,):
                yield f"--{name}={each}"


def configured(args: Mapping[str, Value]) -> dict[str, object]:
    """The entries of the YAML."""
    document: dict[str, object] = {}
    for name, value in sorted(args.items()):
        if "." not in name:
            continue
        *parents, last = name.split(".")
        within = document
        for parent in parents:
            inner = within.setdefault(parent, {})
            if not isinstance(inner, dict):  # refused: a name stands for a value and a group
                break
            within = inner
        else:
            within[last] = list(value) if isinstance(value, tuple) else value
    return document


def refused(args: Mapping[str, Value]) -> Iterable[str]:
    """Why some of ``args`` cannot be passed through."""
    for name, value in args.items():
        if _NAME.fullmatch(name) is None:
            yield (
                f"engine.args: found {name!r}, expected trtllm-serve's long option without the"
                " leading dashes, such as num_postprocess_workers, or an entry of its YAML, such"
                " as kv_cache_config.enable_block_reuse"
            )
            continue
        if value == ():
            yield f"engine.args.{name} is an empty list; give at least one value or leave it out"
        if value is False and "." not in name:
            yield f"engine.args.{name}: a flag is given as true or left out"
        for parent in _parents(name):
            if parent in args:
                yield f"engine.args.{parent} is a value and, with {name}, a group; leave one out"
        yield from _said_otherwise(name)


def _said_otherwise(name: str) -> Iterable[str]:
    for known in (name, *_parents(name)):
        if known in _TYPED:
            yield f"engine.args.{name} is set by {_TYPED[known]}; say it there"
            return
    if name in _OURS:
        yield f"engine.args.{name} cannot be given: {_OURS[name]}"


def _parents(name: str) -> Iterable[str]:
    """``a.b`` and ``a`` of ``a.b.c``."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name

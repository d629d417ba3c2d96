"""``engine.args``: options passed through to vLLM, and those refused."""

import re
from collections.abc import Iterable, Mapping

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[.-][a-z0-9_]+)*")

# vLLM option → where the artifact says it instead.
_TYPED: Mapping[str, str] = {
    "model": "model.id",
    "revision": "model.revision",
    "tokenizer": "model.tokenizer",
    "quantization": "model.quantization",
    "kv-cache-dtype": "model.kv_cache_dtype",
    "enable-lora": "model.lora",
    "lora-modules": "model.lora",
    "max-num-seqs": "limits.max_num_seqs",
    "max-num-batched-tokens": "limits.max_num_batched_tokens",
    "max-model-len": "limits.max_model_len",
    "enforce-eager": "graph.mode: NONE",
    "compilation-config": "graph.mode and graph.capture_sizes",
    "cudagraph-capture-sizes": "graph.capture_sizes",
    "max-cudagraph-capture-size": "graph.capture_sizes",
    "tensor-parallel-size": "parallel.tensor",
    "pipeline-parallel-size": "parallel.pipeline",
    "enable-expert-parallel": "parallel.expert",
    "gpu-memory-utilization": "gpu.memory_fraction",
    "attention-backend": "attention_backend",
    "attention-config": "attention_backend",
    "speculative-config": "speculative",
}
# vLLM option → why it cannot be given.
_OURS: Mapping[str, str] = {
    "host": "where an engine listens is chosen when it is started",
    "port": "where an engine listens is chosen when it is started",
    "cudagraph-metrics": "the probe needs it, so it is always given",
    "disable-log-stats": "it silences the metrics that gates read",
    "disable-uvicorn-access-log": "it is always given: a line a request would bury the log",
    "config": "options in a file would change the runtime and not its digest",
    "api-server-count": "the metrics of several API servers cannot be told apart by the probe",
    "uds": "engines are reached over TCP",
    "root-path": "engines are reached without a prefix",
    "api-key": "it would be part of the digest; secrets go into the environment by reference",
    "ssl-keyfile": "engines are reached over plain HTTP",
    "ssl-certfile": "engines are reached over plain HTTP",
}

Value = str | int | float | bool | tuple[str | int | float | bool, ...]


def passed_through(args: Mapping[str, Value]) -> Iterable[str]:
    """The words of the command line, in the order of the names."""
    for name, value in sorted(args.items()):
        if isinstance(value, tuple):
            yield f"--{name}"
            yield from map(str, value)
        elif isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        else:
            yield f"--{name}={value}"


def refused(args: Mapping[str, Value]) -> Iterable[str]:
    """Why some of ``args`` cannot be passed through."""
    for name, value in args.items():
        if _NAME.fullmatch(name) is None:
            yield (
                f"engine.args: found {name!r}, expected vLLM's long option without the leading"
                " dashes, such as load-format"
            )
            continue
        if value == ():
            yield f"engine.args.{name} is an empty list; give at least one value or leave it out"
        said_by = _said_by(name)
        if said_by is not None:
            yield said_by


def _said_by(name: str) -> str | None:
    # argparse takes any unambiguous beginning of an option, "no-" negates one, and a dot
    # reaches into one that is a document.
    plain = name.removeprefix("no-").split(".", 1)[0]
    for option, field in _TYPED.items():
        if option.startswith(plain):
            return f"engine.args.{name} is set by {field}; say it there"
    for option, reason in _OURS.items():
        if option.startswith(plain):
            return f"engine.args.{name} cannot be given: {reason}"
    return None

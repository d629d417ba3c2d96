"""Faults of a runtime spec that TensorRT-LLM would refuse, change silently, or cannot do."""

from collections.abc import Callable, Iterable

from canaryctl.common.errors import InputError
from canaryctl.runtimes.engines.checks import listed, program_faults, warmup_faults
from canaryctl.runtimes.engines.trtllm_args import refused
from canaryctl.runtimes.engines.trtllm_grid import DECODE_MODES, batch_sizes
from canaryctl.runtimes.engines.trtllm_version import (
    SERVED_NAME,
    SERVED_NAME_SINCE,
    require_supported,
)
from canaryctl.runtimes.spec import GraphMode, RuntimeSpec

_SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"


def faults(spec: RuntimeSpec) -> tuple[str, ...]:
    """Every fault, each saying what was found, what was expected and what to do."""
    return tuple(fault for check in _CHECKS for fault in check(spec))


def _version(spec: RuntimeSpec) -> Iterable[str]:
    try:
        version = require_supported(spec.engine.version)
    except InputError as error:
        yield f"engine.version: {error}"
        return
    if SERVED_NAME in spec.engine.args and version < SERVED_NAME_SINCE:
        since = ".".join(map(str, SERVED_NAME_SINCE))
        yield f"engine.args.{SERVED_NAME} is an option from {since} on; leave it out"


def _arguments(spec: RuntimeSpec) -> Iterable[str]:
    yield from refused(spec.engine.args)
    if _SHARED_METRICS in spec.engine.env:
        yield (
            f"engine.env.{_SHARED_METRICS}: engines that share a folder mix their metrics; leave"
            " it out, each makes its own"
        )


def _model(spec: RuntimeSpec) -> Iterable[str]:
    if spec.model.quantization is not None:
        yield (
            f"model.quantization: found {spec.model.quantization!r}, but TensorRT-LLM takes the"
            " quantization from the checkpoint; leave it out"
        )
    if spec.model.lora:
        yield "model.lora: the adapter of TensorRT-LLM has no LoRA modules; leave it out"
    if spec.speculative is not None:
        yield (
            "speculative: the adapter of TensorRT-LLM does not know which sizes are captured with"
            " speculative decoding; leave it out"
        )


def _limits(spec: RuntimeSpec) -> Iterable[str]:
    limits = spec.limits
    if limits.max_num_batched_tokens < limits.max_num_seqs:
        yield (
            f"limits: max_num_batched_tokens {limits.max_num_batched_tokens} is below"
            f" max_num_seqs {limits.max_num_seqs}, and a step has a token of every sequence that"
            " it decodes; raise the one or lower the other"
        )


def _grid(spec: RuntimeSpec) -> Iterable[str]:
    graph, limits = spec.graph, spec.limits
    sizes = graph.capture_sizes
    if not spec.uses_graphs:
        if sizes is not None:
            yield "graph.capture_sizes has no effect with mode NONE; leave it out"
        return
    if graph.mode is GraphMode.FULL:
        yield (
            "graph.mode: found FULL, but TensorRT-LLM captures steps with prefill piecewise alone;"
            " expected FULL_DECODE_ONLY or FULL_AND_PIECEWISE"
        )
        return
    if sizes == ():
        yield "graph.capture_sizes is empty; leave it out for the engine's own sizes"
        return
    if sizes is None:
        if graph.mode is GraphMode.PIECEWISE:
            yield (
                "graph.capture_sizes is not given, and TensorRT-LLM's own numbers of tokens follow"
                " its decode graphs, of which PIECEWISE has none; give them"
            )
        return
    beyond = [size for size in sizes if size > limits.max_num_batched_tokens]
    if beyond:
        yield (
            f"graph.capture_sizes: {listed(beyond)} exceed limits.max_num_batched_tokens"
            f" {limits.max_num_batched_tokens} and are never captured; leave them out or raise the"
            " limit"
        )
    if graph.mode is GraphMode.FULL_DECODE_ONLY:
        never = [size for size in sizes if limits.max_num_seqs < size and size not in beyond]
        if never:
            yield (
                f"graph.capture_sizes: {listed(never)} exceed limits.max_num_seqs"
                f" {limits.max_num_seqs}, and no more sequences are decoded in a step; leave them"
                " out or raise the limit"
            )
    if graph.mode in DECODE_MODES and not batch_sizes(spec):
        yield (
            f"graph.capture_sizes: none of {listed(sizes)} is within limits.max_num_seqs"
            f" {limits.max_num_seqs}, so that no decode step could replay a graph; add some, or"
            " set graph.mode: PIECEWISE"
        )


def _devices(spec: RuntimeSpec) -> Iterable[str]:
    parallel, count = spec.parallel, spec.gpu.count
    if count == 0:
        yield "gpu.count is 0, but TensorRT-LLM runs on GPUs alone; expected at least 1"
        return
    needed = parallel.tensor * parallel.pipeline
    if count != needed:
        yield (
            f"gpu.count is {count}, but tensor {parallel.tensor} × pipeline {parallel.pipeline}"
            f" needs {needed}"
        )
    if parallel.tensor % parallel.expert:
        yield (
            f"parallel.expert is {parallel.expert}; TensorRT-LLM spreads experts over the"
            f" {parallel.tensor} tensor-parallel ranks, so it must divide that number"
        )


_CHECKS: tuple[Callable[[RuntimeSpec], Iterable[str]], ...] = (
    _version,
    program_faults,
    _arguments,
    _model,
    _limits,
    warmup_faults,
    _grid,
    _devices,
)

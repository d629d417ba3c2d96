"""Faults of a runtime spec that vLLM would refuse, or worse, change with only a log line."""

from collections.abc import Callable, Iterable

from canaryctl.common.errors import InputError
from canaryctl.runtimes.engines.checks import listed, program_faults, warmup_faults
from canaryctl.runtimes.engines.grid import decode_sizes, resolve_sizes
from canaryctl.runtimes.engines.vllm_args import refused
from canaryctl.runtimes.engines.vllm_version import require_supported
from canaryctl.runtimes.spec import GraphMode, RuntimeSpec

_MULTIPROCESS_METRICS = "PROMETHEUS_MULTIPROC_DIR"


def faults(spec: RuntimeSpec) -> tuple[str, ...]:
    """Every fault, each saying what was found, what was expected and what to do."""
    return tuple(fault for check in _CHECKS for fault in check(spec))


def _version(spec: RuntimeSpec) -> Iterable[str]:
    try:
        require_supported(spec.engine.version)
    except InputError as error:
        yield f"engine.version: {error}"


def _arguments(spec: RuntimeSpec) -> Iterable[str]:
    yield from refused(spec.engine.args)
    if _MULTIPROCESS_METRICS in spec.engine.env:
        yield (
            f"engine.env.{_MULTIPROCESS_METRICS} hides what the probe exports; leave it out"
            " (vLLM sets it itself where it needs it)"
        )


def _limits(spec: RuntimeSpec) -> Iterable[str]:
    limits = spec.limits
    if limits.max_num_batched_tokens < limits.max_num_seqs:
        yield (
            f"limits: max_num_batched_tokens {limits.max_num_batched_tokens} is below"
            f" max_num_seqs {limits.max_num_seqs}, which vLLM refuses; raise the one or lower"
            " the other"
        )


def _grid(spec: RuntimeSpec) -> Iterable[str]:
    sizes = spec.graph.capture_sizes
    if sizes is None:
        return
    if not spec.uses_graphs:
        yield "graph.capture_sizes has no effect with mode NONE; leave it out"
        return
    if not sizes:
        yield "graph.capture_sizes is empty, which vLLM refuses; leave it out for the default grid"
        return
    limits = spec.limits
    beyond = [size for size in sizes if size > limits.max_num_batched_tokens]
    if beyond:
        yield (
            f"graph.capture_sizes: {listed(beyond)} exceed limits.max_num_batched_tokens"
            f" {limits.max_num_batched_tokens}; vLLM drops them with only a log line. Leave them"
            " out or raise the limit"
        )
    within = sorted({size for size in sizes if size <= limits.max_num_batched_tokens})
    speculative_tokens = spec.speculative.num_speculative_tokens if spec.speculative else 0
    if within and speculative_tokens:
        resolved = resolve_sizes(
            within,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            speculative_tokens=speculative_tokens,
        )
        if list(resolved) != within:
            yield (
                f"graph.capture_sizes: with {speculative_tokens} speculative tokens vLLM rounds"
                f" {listed(within)} to {listed(resolved)} with only a log line; write multiples of"
                f" {speculative_tokens + 1}"
            )
    if spec.graph.mode is GraphMode.FULL_DECODE_ONLY:
        most = limits.max_num_seqs * (1 + speculative_tokens)
        never = [size for size in within if size not in decode_sizes(within, most)]
        if never:
            yield (
                f"graph.capture_sizes: {listed(never)} are never captured with FULL_DECODE_ONLY, a"
                f" decode step has at most {most} tokens (limits.max_num_seqs); leave them out"
            )


def _devices(spec: RuntimeSpec) -> Iterable[str]:
    parallel, count = spec.parallel, spec.gpu.count
    if count == 0:
        if spec.uses_graphs:
            yield (
                f"graph.mode is {spec.graph.mode.value} and gpu.count 0: without a GPU there are"
                " no CUDA graphs; set graph.mode: NONE"
            )
        return
    replicas = spec.engine.args.get("data-parallel-size", 1)
    if not isinstance(replicas, int):
        yield f"engine.args.data-parallel-size: found {replicas!r}, expected a whole number"
        return
    needed = parallel.tensor * parallel.pipeline * replicas
    if count != needed:
        yield (
            f"gpu.count is {count}, but tensor {parallel.tensor} × pipeline {parallel.pipeline}"
            f" × data {replicas} needs {needed}"
        )
    experts = parallel.tensor * replicas
    if parallel.expert not in (1, experts):
        yield (
            f"parallel.expert is {parallel.expert}; vLLM spreads experts over tensor × data"
            f" parallel ranks, so 1 (off) or {experts}"
        )


def _adapters(spec: RuntimeSpec) -> Iterable[str]:
    for module in spec.model.lora:
        name, _, path = module.partition("=")
        if not (name and path):
            yield f"model.lora: found {module!r}, expected NAME=PATH"


_CHECKS: tuple[Callable[[RuntimeSpec], Iterable[str]], ...] = (
    _version,
    program_faults,
    _arguments,
    _limits,
    warmup_faults,
    _grid,
    _devices,
    _adapters,
)

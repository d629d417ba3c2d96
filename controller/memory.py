"""The memory of a runtime: predicted before a start, measured after it, side by side."""

from collections.abc import Mapping
from math import isclose
from typing import Any, Final

from canaryctl.controller.gridsetup import rules_of
from canaryctl.runtimes.engines.base import Engine, runs_as
from canaryctl.runtimes.engines.registry import FRACTION_OF
from canaryctl.runtimes.grid.calibration import Calibration, packaged
from canaryctl.runtimes.grid.cost import CostModel
from canaryctl.runtimes.machine import Machine
from canaryctl.runtimes.memory_budget import Budget, Sizes, budget
from canaryctl.runtimes.model_size import model_size
from canaryctl.runtimes.simulator.sizes import simulated_sizes
from canaryctl.runtimes.spec import RuntimeSpec

PARTS: Final = ("gpu_total", "weights", "kv_cache", "workspace", "graphs", "safety_margin")


def predicted(spec: RuntimeSpec, adapter: Engine, machine: Machine) -> Budget | None:
    """The budget on one of the machine's GPUs; None for a runtime without a GPU."""
    if spec.gpu.count == 0:
        return None
    sizes = simulated_sizes(spec) if adapter.simulated else _sizes(spec, adapter, machine)
    return budget(spec, sizes, FRACTION_OF[adapter.name])


def _sizes(spec: RuntimeSpec, adapter: Engine, machine: Machine) -> Sizes:
    model = model_size(spec)
    weights, kv = model.on_one_gpu(spec)
    named = (spec.gpu.model or "").lower()
    alike = [gpu for gpu in machine.gpus if named in gpu.name.lower()]
    gpu = max((g.memory_bytes for g in alike if g.memory_bytes is not None), default=None)
    graphs, graphs_told = _graphs(spec, adapter, kv, packaged())
    return Sizes(
        gpu_bytes=gpu,
        weights_bytes=weights,
        kv_bytes_per_token=kv,
        graph_bytes=graphs,
        told={
            "gpu_total": "the driver" if gpu is not None else "no such GPU says its memory here",
            "weights": model.weights_told,
            "kv_cache": model.kv_told,
            "graphs": graphs_told,
        },
    )


def _graphs(
    spec: RuntimeSpec, adapter: Engine, kv_bytes_per_token: int | None, found: Calibration
) -> tuple[int | None, str]:
    """By the packaged calibration, where it is of a model with as much KV cache for a token: that
    is, of as many layers, which is what graphs take memory by; and of the same model runner."""
    sizes = adapter.resolved_grid(spec)
    if not sizes:
        return 0, "graphs are off"
    # A calibration has it of a log that says hundredths of a GiB.
    alike = kv_bytes_per_token is not None and isclose(
        kv_bytes_per_token, found.kv_bytes_per_token, rel_tol=0.001
    )
    if not alike or adapter.name != "vllm":
        return None, f"no calibration is of this model; the packaged one is of {found.whose}"
    if adapter.variant(spec) not in found.engine:
        runs = runs_as(adapter, spec)
        return None, f"the engine is {runs}, and the packaged calibration is of {found.whose}"
    graphs = rules_of(spec).graphs(sizes)
    return round(CostModel(found).graph_bytes(graphs)), f"the calibration of {found.whose}"


_LOGGED_BYTES: Final = {
    "weights": "weights_bytes",
    "kv_cache": "kv_cache_bytes",
    "graphs": "graph_bytes",
}
"""What an engine's page may not say of its memory, by the fact that its log tells."""


def with_logged(said: Mapping[str, float], facts: Mapping[str, Any]) -> dict[str, float]:
    """Bytes by kind: what the page said, and else what the log told (``facts``)."""
    logged = {
        part: float(facts[name])
        for part, name in _LOGGED_BYTES.items()
        if facts.get(name) is not None
    }
    return {**logged, **said}


def measured(facts: Mapping[str, Any]) -> dict[str, float]:
    """Bytes by part, from what was learnt of an instance; what its engine did not say is absent.

    The workspace is what the GPU had in use after capture beside weights, KV cache and graphs;
    of a GPU that others use too it is theirs as well. It is told where the engine's own page tells
    of the KV cache: a log tells of one worker, and the GPUs' use is of all.
    """
    page = facts.get("memory_bytes") or {}
    said, told = with_logged(page, facts), "kv_cache" in page
    found: dict[str, float] = {part: said[part] for part in PARTS if part in said}
    used = said.get("gpu_used_after_capture")
    known = [found.get(part) for part in ("weights", "kv_cache", "graphs")]
    if told and used is not None and None not in known:
        rest = used - sum(filter(None, known))
        if rest >= 0:
            found["workspace"] = rest
    return found

"""What a simulated engine will take of its simulated GPU, before it starts. Pure."""

from typing import Final

from canaryctl.runtimes.engines.grid import resolve_sizes
from canaryctl.runtimes.memory_budget import GIB, Sizes
from canaryctl.runtimes.simulator.config import parse_args
from canaryctl.runtimes.simulator.cost import calibrated, calibration
from canaryctl.runtimes.simulator.graphs import GraphSet
from canaryctl.runtimes.spec import RuntimeSpec

_TOLD: Final = "the simulated engine's own model"


def simulated_sizes(spec: RuntimeSpec) -> Sizes:
    """By ``engine.args`` and the packaged calibration, as the engine itself plans. InputError for
    arguments that it refuses."""
    args, assumed = parse_args(spec.engine.args), calibration()["assumed"]

    def of(value: float | None, name: str) -> float:
        return float(assumed[name] if value is None else value)

    limits, graphs = spec.limits, GraphSet((), ())
    if spec.uses_graphs:
        sizes = resolve_sizes(
            spec.graph.capture_sizes,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
        )
        graphs = GraphSet.of(spec.graph.mode.value, sizes, limits.max_num_seqs)
    parts = ("gpu_total", "weights", "kv_cache", "workspace", "graphs")
    return Sizes(
        gpu_bytes=round(of(args.gpu_memory_gib, "gpu_memory_gib") * GIB),
        weights_bytes=round(of(args.weights_gib, "weights_gib") * GIB),
        kv_bytes_per_token=round(of(args.kv_bytes_per_token, "kv_bytes_per_token")),
        workspace_bytes=round(of(None, "activations_gib") * GIB),
        graph_bytes=calibrated().graph_bytes(graphs),
        told=dict.fromkeys(parts, _TOLD),
    )

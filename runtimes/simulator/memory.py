"""What fits into the simulated GPU: weights, graphs, and the KV cache in what is left."""

from dataclasses import dataclass

from canaryctl.common.errors import PermanentError
from canaryctl.runtimes.simulator.config import SimulatorConfig
from canaryctl.runtimes.simulator.cost import GIB, CostModel, calibration
from canaryctl.runtimes.simulator.graphs import GraphSet
from canaryctl.runtimes.simulator.prefix import BLOCK_SIZE


class OutOfMemoryError(PermanentError):
    """The simulated GPU has too little memory."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of each part; ``num_blocks`` of the KV cache."""

    gpu_bytes: int
    weights_bytes: int
    graph_bytes: int
    activation_bytes: int
    kv_bytes: int
    num_blocks: int

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * BLOCK_SIZE

    def by_kind(self) -> dict[str, int]:
        """As the probe names the kinds. The cache is there before graphs are captured."""
        before = self.weights_bytes + self.activation_bytes + self.kv_bytes
        return {
            "weights": self.weights_bytes,
            "graphs": self.graph_bytes,
            "kv_cache": self.kv_bytes,
            "gpu_used_before_capture": before,
            "gpu_used_after_capture": before + self.graph_bytes,
            "gpu_total": self.gpu_bytes,
        }


def plan_memory(
    config: SimulatorConfig, graphs: GraphSet, cost: CostModel, *, kv_divisor: float = 1.0
) -> MemoryPlan:
    """The KV cache gets the engine's share of the GPU less weights, activations and graphs.

    ``kv_divisor``: how many times smaller the cache is than that.
    Raises OutOfMemoryError when one request of ``max_model_len`` would not fit.
    """
    assumed = calibration()["assumed"]
    args = config.args
    gpu_bytes = round(_or(args.gpu_memory_gib, assumed["gpu_memory_gib"]) * GIB)
    weights_bytes = round(_or(args.weights_gib, assumed["weights_gib"]) * GIB)
    graph_bytes = cost.graph_bytes(graphs)
    activation_bytes = round(assumed["activations_gib"] * GIB)
    fixed = weights_bytes + graph_bytes + activation_bytes
    kv_bytes = round((gpu_bytes * config.memory_fraction - fixed) / kv_divisor)
    per_token = _or(args.kv_bytes_per_token, assumed["kv_bytes_per_token"])
    needed = config.max_model_len * per_token
    if kv_bytes < needed:
        raise OutOfMemoryError(
            f"To serve at least one request with the model's max seq len "
            f"({config.max_model_len}), {needed / GIB:.2f} GiB KV cache is needed, which is "
            f"larger than the available KV cache memory ({max(0, kv_bytes) / GIB:.2f} GiB). "
            f"Increase memory_fraction or decrease max_model_len."
        )
    return MemoryPlan(
        gpu_bytes=gpu_bytes,
        weights_bytes=weights_bytes,
        graph_bytes=graph_bytes,
        activation_bytes=activation_bytes,
        kv_bytes=kv_bytes,
        num_blocks=int(kv_bytes / per_token) // BLOCK_SIZE,
    )


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value

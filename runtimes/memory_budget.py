"""What of a GPU's memory a runtime takes, part by part, and whether it fits. Pure.

Engines read ``gpu.memory_fraction`` differently (:class:`FractionOf`), so that what must fit, and
what helps where it does not, differ too. A part that is not known is None: it is left out of every
sum, a sum without it is a lower bound, and nothing is refused for what nobody knows.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from canaryctl.runtimes.spec import RuntimeSpec

GIB: Final = 2**30
MOST_FRACTION: Final = 0.98
"""Of a GPU's memory, at most: its driver's own contexts need the rest."""


class FractionOf(StrEnum):
    """What ``gpu.memory_fraction`` is a fraction of, and whether graphs are within it."""

    GPU = "gpu"  # of the GPU; graphs come on top (vLLM)
    GPU_WITH_GRAPHS = "gpu_with_graphs"  # of the GPU, graphs within
    FREE = "free"  # for the KV cache alone, of what weights leave free (TensorRT-LLM)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes on one GPU. ``workspace``: activations and the engine's own buffers.

    ``told``: part → where its size is from, or why it is not known.
    """

    gpu_bytes: int | None = None
    weights_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    workspace_bytes: int | None = None
    graph_bytes: int | None = None
    told: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Budget:
    """The prediction for one GPU of an instance. ``kv_cache_bytes``: what is left for it; at most
    so much where the workspace is not known. ``fault``: why it cannot fit, and what to change."""

    sizes: Sizes
    fraction: float
    fraction_of: FractionOf
    margin_bytes: int
    kv_cache_bytes: int | None
    kv_cache_tokens: int | None
    max_concurrency: float | None
    fault: str | None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parts that nobody knows before the engine has started, with the reason."""
        return tuple(
            f"{name}: {self.sizes.told.get(name, 'it is not known before the start')}"
            for name, size in self.parts().items()
            if size is None
        )

    def parts(self) -> dict[str, int | None]:
        """The named parts in bytes, as the probe names those that it measures."""
        return {
            "gpu_total": self.sizes.gpu_bytes,
            "weights": self.sizes.weights_bytes,
            "kv_cache": self.kv_cache_bytes,
            "workspace": self.sizes.workspace_bytes,
            "graphs": self.sizes.graph_bytes,
            "safety_margin": self.margin_bytes,
        }

    def as_document(self) -> dict[str, Any]:
        return {
            "bytes": self.parts(),
            "kv_cache_tokens": self.kv_cache_tokens,
            "max_concurrency": self.max_concurrency,
            "told": dict(self.sizes.told),
            "fault": self.fault,
        }


def budget(spec: RuntimeSpec, sizes: Sizes, fraction_of: FractionOf) -> Budget:
    """What is left for the KV cache, and whether one request of ``max_model_len`` and the safety
    margin fit beside everything else that is known."""
    fraction, margin = spec.gpu.memory_fraction, round(spec.memory.safety_margin_gib * GIB)
    kv = _kv_cache(sizes, fraction, fraction_of)
    tokens = None if kv is None or not sizes.kv_bytes_per_token else kv // sizes.kv_bytes_per_token
    limits = spec.limits
    return Budget(
        sizes=sizes,
        fraction=fraction,
        fraction_of=fraction_of,
        margin_bytes=margin,
        kv_cache_bytes=None if kv is None else max(0, kv),
        kv_cache_tokens=None if tokens is None else max(0, tokens),
        max_concurrency=None
        if tokens is None
        else min(float(limits.max_num_seqs), max(0, tokens) / limits.max_model_len),
        fault=_within(spec, sizes, fraction_of, kv) or _beside(spec, sizes, fraction_of, margin),
    )


def _kv_cache(sizes: Sizes, fraction: float, fraction_of: FractionOf) -> int | None:
    """Negative where nothing is left."""
    if sizes.gpu_bytes is None or sizes.weights_bytes is None:
        return None
    workspace = sizes.workspace_bytes or 0
    if fraction_of is FractionOf.FREE:
        free = sizes.gpu_bytes - sizes.weights_bytes - workspace
        return math.floor(fraction * free)
    graphs = sizes.graph_bytes or 0 if fraction_of is FractionOf.GPU_WITH_GRAPHS else 0
    return math.floor(fraction * sizes.gpu_bytes) - sizes.weights_bytes - workspace - graphs


def _within(spec: RuntimeSpec, sizes: Sizes, fraction_of: FractionOf, kv: int | None) -> str | None:
    """Whether what must be within the engine's share is."""
    if kv is None or sizes.gpu_bytes is None:
        return None
    length = spec.limits.max_model_len
    one_request = length * (sizes.kv_bytes_per_token or 0)
    least = max(1, one_request)
    if kv >= least:
        return None
    free = fraction_of is FractionOf.FREE
    inside = fraction_of is FractionOf.GPU_WITH_GRAPHS
    graphs = sizes.graph_bytes or 0 if inside else 0
    taken = _sum(
        ("weights", sizes.weights_bytes),
        ("workspace", sizes.workspace_bytes),
        ("graphs", graphs or None),
    )
    fixed = (sizes.weights_bytes or 0) + (sizes.workspace_bytes or 0) + graphs
    changes = []
    room = sizes.gpu_bytes - fixed if free else sizes.gpu_bytes
    need = least if free else fixed + least
    if need <= MOST_FRACTION * room:
        changes.append(f"raise gpu.memory_fraction to {math.ceil(100 * need / room) / 100:.2f}")
    if graphs and kv + graphs >= least:
        changes.append("capture fewer sizes")
    if kv > 0 and sizes.kv_bytes_per_token:
        changes.append(f"lower limits.max_model_len to {kv // sizes.kv_bytes_per_token}")
    changes.append("take a smaller or quantized model, or more GPUs (parallel.tensor)")
    return (
        f"memory: {taken} leave {max(0, kv) / GIB:.2f} GiB for the KV cache within "
        f"gpu.memory_fraction {spec.gpu.memory_fraction:g} of {sizes.gpu_bytes / GIB:.1f} GiB, "
        f"one request of {length} tokens needs {one_request / GIB:.2f} GiB; {', or '.join(changes)}"
    )


def _beside(spec: RuntimeSpec, sizes: Sizes, fraction_of: FractionOf, margin: int) -> str | None:
    """Whether graphs and the safety margin have room beside the engine's share."""
    total, fraction = sizes.gpu_bytes, spec.gpu.memory_fraction
    if total is None or spec.gpu.share:  # of a shared GPU others decide what is left
        return None
    of = total
    if fraction_of is FractionOf.FREE:
        if sizes.weights_bytes is None:
            return None
        of = total - sizes.weights_bytes - (sizes.workspace_bytes or 0)
    graphs = 0 if fraction_of is FractionOf.GPU_WITH_GRAPHS else sizes.graph_bytes or 0
    left = of - math.floor(fraction * of)
    if left >= graphs + margin:
        return None
    changes = []
    hundredths = math.floor(100 * (of - graphs - margin) / of) if of > 0 else 0
    if hundredths > 0:
        changes.append(f"lower gpu.memory_fraction to {hundredths / 100:.2f}")
    if graphs and left >= margin:
        changes.append("capture fewer sizes")
    changes.append("lower memory.safety_margin_gib")
    beside = _sum(("graphs", graphs or None), ("the safety margin", margin))
    return (
        f"memory: {beside} come beside the engine's share, and gpu.memory_fraction {fraction:g} "
        f"leaves {left / GIB:.2f} GiB; {', or '.join(changes)}"
    )


def _sum(*parts: tuple[str, int | None]) -> str:
    return " and ".join(f"{name} {size / GIB:.2f} GiB" for name, size in _known(parts))


def _known(parts: Iterable[tuple[str, int | None]]) -> list[tuple[str, int]]:
    return [(name, size) for name, size in parts if size is not None]

"""The histograms that the simulated engines export: fine edges beside vLLM's own.

Both are counted in one pass, at the union of their edges; a histogram that has fewer edges is a
choice of columns, because counts are cumulative.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

VLLM_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)


def aligned(first_s: float, edges: int) -> tuple[float, ...]:
    """``first_s · 1.1^(k/2)``, as rounded as the probe prints them, in seconds."""
    return tuple(float(f"{first_s * 1.1 ** (k / 2):.9g}") for k in range(edges))


@dataclass(frozen=True, slots=True)
class Ruler:
    """``edges``: finite, ascending, seconds. ``fine`` and ``coarse``: columns of a count matrix
    [looks, edges + 1] that belong to each histogram, +Inf last."""

    edges: Floats
    fine: NDArray[np.intp]
    coarse: NDArray[np.intp]

    @classmethod
    def of(cls, fine: Sequence[float], coarse: Sequence[float]) -> "Ruler":
        edges = np.array(sorted({*fine, *coarse}))
        columns = [
            np.append(np.searchsorted(edges, np.array(chosen)), len(edges))
            for chosen in (fine, coarse)
        ]
        return cls(edges, columns[0], columns[1])

    def fine_edges(self) -> Floats:
        return self.edges[self.fine[:-1]]

    def coarse_edges(self) -> Floats:
        return self.edges[self.coarse[:-1]]


REQUESTS = Ruler.of(aligned(0.02, 190), VLLM_TTFT)
TOKENS = Ruler.of(aligned(0.002, 120), VLLM_TTFT)


@dataclass(frozen=True, slots=True)
class Path:
    """One release of 240 looks: what each look added, cumulative over the edges of ``ruler``.

    ``canary`` and ``baseline``: [looks, edges + 1]. The baseline is the sum of its engines.
    """

    ruler: Ruler
    canary: Counts
    baseline: Counts

    def requests(self, from_look: int = 0) -> Counts:
        """Canary observations after each look, counted from the beginning of ``from_look``."""
        total = self.canary[:, -1].cumsum()
        return np.asarray(total - (total[from_look - 1] if from_look else 0))

    def fine(self) -> tuple[Counts, Counts]:
        """(canary, baseline) as a gate reads them."""
        columns = self.ruler.fine
        return (
            np.ascontiguousarray(self.canary[:, columns]),
            np.ascontiguousarray(self.baseline[:, columns]),
        )


def random_source(*key: int) -> Any:
    """A generator of its own for each (experiment, repetition): results depend on no order."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))

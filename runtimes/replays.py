"""What proves that a warm-up replayed graphs: the engine's own count of its steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from canaryctl.runtimes.spec import GraphMode

NO_GRAPH = 0
"""In place of a size: no graph is captured for such steps."""


class BucketKind(StrEnum):
    DECODE = "decode"
    MIXED = "mixed"


StepCounts = Mapping[tuple[BucketKind | None, int], float]
"""Steps so far that replayed a graph, by what they held and the graph's size; None: the engine
does not say what they held."""


@dataclass(frozen=True, slots=True)
class Count:
    """Steps that replayed a graph. ``unclear``: those of which it is unknown what they held."""

    steps: float
    unclear: float

    def since(self, before: "Count") -> int | None:
        """How many more; None where it cannot be told."""
        if self.steps > before.steps or self.unclear == before.unclear:
            return round(self.steps - before.steps)
        return None


@dataclass(frozen=True, slots=True)
class Replays:
    """The engine's account of its graphs. ``decode``: the sizes captured for sequences that
    decode one token each; ``mixed``: for steps with prompts; ``read``: None where the engine does
    not count."""

    decode: tuple[int, ...]
    mixed: tuple[int, ...]
    read: Callable[[], StepCounts | None]

    @classmethod
    def of(
        cls, mode: GraphMode, sizes: tuple[int, ...], read: Callable[[], StepCounts | None]
    ) -> "Replays":
        """Of an engine that captured ``sizes`` and was to do so in ``mode``."""
        decodes_alone = mode in (GraphMode.NONE, GraphMode.FULL_DECODE_ONLY)
        return cls(sizes, () if decodes_alone else sizes, read)

    def graph(self, kind: BucketKind, bucket: int) -> int:
        """The size that a step of the bucket is padded to; NO_GRAPH where there is none."""
        sizes = self.decode if kind is BucketKind.DECODE else self.mixed
        return min((size for size in sizes if size >= bucket), default=NO_GRAPH)

    def count(self, kind: BucketKind, graph: int) -> Count | None:
        found = self.read()
        if found is None:
            return None
        return Count(found.get((kind, graph), 0.0), found.get((None, graph), 0.0))

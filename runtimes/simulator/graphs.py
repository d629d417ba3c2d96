"""Which graphs are captured, and which of them a step replays, as vLLM decides it."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from canaryctl.common.errors import UnknownNameError
from canaryctl.runtimes.engines.grid import decode_sizes

GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


class StepMode(StrEnum):
    """How one step ran."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"


class EagerReason(StrEnum):
    """Why a step replayed no graph; empty when it did."""

    REPLAYED = ""
    BEYOND_GRID = "beyond_grid"  # no captured graph is large enough for such a step
    DOWNGRADED = "downgraded"  # one is, and the engine does not use it


@dataclass(frozen=True, slots=True)
class Dispatch:
    """``bucket``: the padded size, 0 without a graph."""

    mode: StepMode
    bucket: int
    reason: EagerReason


@dataclass(frozen=True, slots=True)
class GraphSet:
    """The captured graphs, by kind; sizes ascending.

    ``full_mixed``: the full graphs serve steps with prefill too (mode FULL).
    """

    full: tuple[int, ...]
    piecewise: tuple[int, ...]
    full_mixed: bool = False

    @classmethod
    def of(cls, mode: str, sizes: Sequence[int], max_num_seqs: int) -> "GraphSet":
        """The graphs that ``mode`` captures on the resolved grid ``sizes``."""
        decode = decode_sizes(sizes, max_num_seqs)
        match mode:
            case "NONE":
                return cls((), ())
            case "PIECEWISE":
                return cls((), tuple(sizes))
            case "FULL":
                return cls(tuple(sizes), (), full_mixed=True)
            case "FULL_DECODE_ONLY":
                return cls(decode, ())
            case "FULL_AND_PIECEWISE":
                return cls(decode, tuple(sizes))
        raise UnknownNameError("graph mode", mode, GRAPH_MODES)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({*self.full, *self.piecewise}))

    def dispatch(self, tokens: int, *, pure_decode: bool, downgraded: bool = False) -> Dispatch:
        """The graph of a step of ``tokens``: full before piecewise before none."""
        choices: list[tuple[StepMode, tuple[int, ...]]] = [(StepMode.PIECEWISE, self.piecewise)]
        if pure_decode or self.full_mixed:
            choices.insert(0, (StepMode.FULL, self.full))
        for mode, sizes in choices:
            index = bisect_left(sizes, tokens)
            if index < len(sizes):
                if downgraded:
                    return Dispatch(StepMode.NONE, 0, EagerReason.DOWNGRADED)
                return Dispatch(mode, sizes[index], EagerReason.REPLAYED)
        return Dispatch(StepMode.NONE, 0, EagerReason.BEYOND_GRID)

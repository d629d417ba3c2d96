"""What an engine makes of the sizes it is asked for, so that it captures what was planned.

Read in vLLM's configuration code (0.14 to 0.25): sizes above ``max_num_batched_tokens`` are
dropped; speculative decoding rounds sizes up to whole decodes (query length 1 + speculative
tokens); sequence parallelism drops those that its ranks cannot share evenly; FULL graphs of
decodes stop at ``max_num_seqs`` decodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm

from canaryctl.common.errors import InputError, UnknownNameError
from canaryctl.runtimes.engines.grid import resolve_sizes, vllm_default_sizes
from canaryctl.runtimes.simulator.graphs import GRAPH_MODES, GraphSet


@dataclass(frozen=True, slots=True)
class EngineRules:
    """``sequence_parallel``: ranks that share the tokens of a step; 1 without."""

    max_num_seqs: int
    max_num_batched_tokens: int
    mode: str = "FULL_AND_PIECEWISE"
    speculative_tokens: int = 0
    sequence_parallel: int = 1

    def __post_init__(self) -> None:
        if self.mode not in GRAPH_MODES:
            raise UnknownNameError("graph mode", self.mode, GRAPH_MODES)
        for name in ("max_num_seqs", "max_num_batched_tokens", "sequence_parallel"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.speculative_tokens < 0:
            raise InputError(f"found {self.speculative_tokens} speculative tokens, expected 0 up")

    @property
    def decode_tokens(self) -> int:
        """Tokens of one decode of one sequence."""
        return 1 + self.speculative_tokens

    @property
    def multiple(self) -> int:
        """Every captured size is a multiple of this."""
        return lcm(self.decode_tokens, self.sequence_parallel)

    @property
    def largest_decode(self) -> int:
        """The most tokens that a step of decodes alone can have."""
        return min(self.max_num_seqs * self.decode_tokens, self.max_num_batched_tokens)

    @property
    def largest(self) -> int:
        """The largest size worth asking for: none above it is captured, or can be replayed."""
        decodes_alone = self.mode == "FULL_DECODE_ONLY"
        limit = self.largest_decode if decodes_alone else self.max_num_batched_tokens
        return limit // self.multiple * self.multiple

    def candidates(self, sizes: Iterable[int]) -> tuple[int, ...]:
        """The sizes to capture that serve ``sizes`` with the least padding, ascending. A step
        for which no captured size can be large enough has none."""
        step = self.multiple
        rounded = {-(-size // step) * step for size in sizes}
        return tuple(sorted(size for size in rounded if size <= self.largest))

    def resolve(self, requested: Sequence[int] | None) -> tuple[int, ...]:
        """What is captured of ``requested`` (None: of the engine's default). InputError for an
        empty request, which the engine refuses."""
        if requested is not None and not requested:
            raise InputError("the grid is empty; expected a size, or mode NONE for no graphs")
        if self.mode == "NONE":
            return ()
        sizes = resolve_sizes(
            requested,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            speculative_tokens=self.speculative_tokens,
        )
        return tuple(size for size in sizes if size % self.sequence_parallel == 0)

    def default(self) -> tuple[int, ...]:
        """The grid that the engine takes when none is asked for."""
        if self.mode == "NONE":
            return ()
        sizes = vllm_default_sizes(
            self.max_num_seqs,
            self.max_num_batched_tokens,
            speculative_tokens=self.speculative_tokens,
        )
        return self.resolve(sizes) if sizes else ()

    def graphs(self, sizes: Sequence[int]) -> GraphSet:
        """The graphs that are captured for the resolved ``sizes``, by kind."""
        return GraphSet.of(self.mode, sizes, self.largest_decode)

"""Which CUDA graph sizes vLLM captures: its own rule, for planning and comparison.

Source: vLLM's configuration code (``_set_cudagraph_sizes`` and the rounding for speculative
decoding), read for 0.14 to 0.25. Sizes count tokens of one step; in plain decoding that is
the number of sequences.
"""

from collections.abc import Sequence

LARGEST_DEFAULT = 512  # vLLM's cap, but for Blackwell from 0.28 on


def vllm_default_sizes(
    max_num_seqs: int, max_num_batched_tokens: int, *, speculative_tokens: int = 0
) -> tuple[int, ...]:
    """1, 2, 4, then by 8 below 256, then by 16, up to the least of ``2 · max_num_seqs`` (times
    the tokens of one decode), ``LARGEST_DEFAULT`` and ``max_num_batched_tokens``."""
    _require_positive(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    cap = min(2 * max_num_seqs * (1 + speculative_tokens), LARGEST_DEFAULT, max_num_batched_tokens)
    return tuple(
        size for size in (1, 2, 4, *range(8, 256, 8), *range(256, cap + 1, 16)) if size <= cap
    )


def resolve_sizes(
    requested: Sequence[int] | None,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    speculative_tokens: int = 0,
) -> tuple[int, ...]:
    """The sizes that an engine asked for ``requested`` (None: its default) captures, ascending.

    Sizes above ``max_num_batched_tokens`` are dropped, as vLLM does with no more than a log
    line. Speculative decoding rounds each size up to a multiple of the tokens of one decode
    (``speculative_tokens + 1``) and drops what then exceeds the largest.

    Raises ValueError for an empty request, which vLLM refuses.
    """
    if requested is None:
        sizes = vllm_default_sizes(
            max_num_seqs, max_num_batched_tokens, speculative_tokens=speculative_tokens
        )
    else:
        if not requested:
            raise ValueError("no capture sizes given; expected at least one, or none for default")
        _require_positive(
            max_num_batched_tokens=max_num_batched_tokens, smallest_size=min(requested)
        )
        sizes = tuple(sorted({size for size in requested if size <= max_num_batched_tokens}))
    if speculative_tokens and sizes:
        sizes = _round_for_speculation(sizes, speculative_tokens + 1)
    return sizes


def decode_sizes(sizes: Sequence[int], max_num_seqs: int) -> tuple[int, ...]:
    """Those of ``sizes`` that FULL decode graphs are captured for: up to ``max_num_seqs``."""
    return tuple(size for size in sizes if size <= max_num_seqs)


def _round_for_speculation(sizes: tuple[int, ...], query_length: int) -> tuple[int, ...]:
    largest = sizes[-1]
    rounded = {-(-size // query_length) * query_length for size in sizes}
    return tuple(sorted(size for size in rounded if size <= largest))


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} is {value}, expected at least 1")

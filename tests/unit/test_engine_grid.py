"""vLLM's rule for capture sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.runtimes.engines.grid import decode_sizes, resolve_sizes, vllm_default_sizes

positive = st.integers(1, 2000)


def test_default_grid_has_the_51_sizes_seen_on_the_engine() -> None:
    sizes = vllm_default_sizes(256, 8192)
    assert len(sizes) == 51
    assert sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert sizes[-3:] == (480, 496, 512)
    assert sizes[33:36] == (248, 256, 272)


@pytest.mark.parametrize(
    ("max_num_seqs", "max_num_batched_tokens", "expected"),
    [
        (1, 8192, (1, 2)),
        (2, 8192, (1, 2, 4)),
        (10, 8192, (1, 2, 4, 8, 16)),
        (16, 8192, (1, 2, 4, 8, 16, 24, 32)),
        (256, 17, (1, 2, 4, 8, 16)),
        (256, 1, (1,)),
    ],
)
def test_default_grid_stops_at_twice_the_sequences_or_the_token_budget(
    max_num_seqs: int, max_num_batched_tokens: int, expected: tuple[int, ...]
) -> None:
    assert vllm_default_sizes(max_num_seqs, max_num_batched_tokens) == expected


def test_requested_sizes_lose_those_above_the_token_budget_and_are_sorted() -> None:
    assert resolve_sizes([64, 8, 8, 1, 4096], max_num_seqs=4, max_num_batched_tokens=2048) == (
        1,
        8,
        64,
    )


def test_speculative_decoding_rounds_up_to_whole_decodes() -> None:
    assert resolve_sizes(
        [1, 2, 4, 8, 12], max_num_seqs=16, max_num_batched_tokens=2048, speculative_tokens=2
    ) == (3, 6, 9, 12)
    default = resolve_sizes(None, max_num_seqs=4, max_num_batched_tokens=2048, speculative_tokens=3)
    assert default == (4, 8, 16, 24, 32)


def test_no_graph_is_left_when_one_decode_exceeds_the_largest_size() -> None:
    assert resolve_sizes([2], max_num_seqs=8, max_num_batched_tokens=64, speculative_tokens=4) == ()


def test_full_decode_graphs_stop_at_max_num_seqs() -> None:
    assert decode_sizes((1, 2, 4, 8, 16), 8) == (1, 2, 4, 8)


def test_nonsense_is_refused_with_the_value_found() -> None:
    with pytest.raises(ValueError, match="at least one"):
        resolve_sizes([], max_num_seqs=8, max_num_batched_tokens=64)
    with pytest.raises(ValueError, match="smallest_size is 0"):
        resolve_sizes([0, 4], max_num_seqs=8, max_num_batched_tokens=64)
    with pytest.raises(ValueError, match="max_num_seqs is 0"):
        vllm_default_sizes(0, 64)


@given(
    requested=st.none() | st.lists(positive, min_size=1),
    max_num_seqs=positive,
    max_num_batched_tokens=positive,
    speculative_tokens=st.integers(0, 7),
)
def test_grid_is_ascending_within_the_budget_and_whole_decodes(
    requested: list[int] | None,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    speculative_tokens: int,
) -> None:
    sizes = resolve_sizes(
        requested,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        speculative_tokens=speculative_tokens,
    )
    assert list(sizes) == sorted(set(sizes))
    assert all(0 < size <= max_num_batched_tokens for size in sizes)
    assert all(size % (speculative_tokens + 1) == 0 for size in sizes)

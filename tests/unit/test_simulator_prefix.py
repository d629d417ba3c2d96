"""The simulated prefix cache: what is found there is not computed again."""

from hypothesis import given
from hypothesis import strategies as st

from canaryctl.runtimes.simulator.batching import Batcher, BatchLimits, Request
from canaryctl.runtimes.simulator.cost import calibrated
from canaryctl.runtimes.simulator.graphs import GraphSet
from canaryctl.runtimes.simulator.prefix import BLOCK_SIZE, PrefixCache, block_keys

prompts = st.lists(st.integers(0, 2), max_size=6 * BLOCK_SIZE)


def batcher() -> Batcher:
    graphs = GraphSet.of("FULL", (1, 2, 4), 64)
    return Batcher(BatchLimits(64, 16384, 2048), graphs, calibrated(), compiled=True)


def served(engine: Batcher, prompt: list[int], *, at: float) -> tuple[float, int]:
    """Seconds to the first token, and how many tokens its steps computed for it."""
    engine.add(Request(len(prompt), 2, at, prefix=block_keys(prompt)))
    now, first, computed = at, None, 0
    while not engine.idle:
        step = engine.begin(now)
        assert step is not None
        now, computed = step.end, computed + step.tokens
        if engine.complete(step) and first is None:
            first = now
    assert first is not None
    return first - at, computed


@given(prompts, prompts)
def test_keys_are_shared_as_far_as_the_prompts_are(a: list[int], b: list[int]) -> None:
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    same = min(len(a), len(b)) if same is None else same
    keys = block_keys(a), block_keys(b)
    assert [len(k) for k in keys] == [len(a) // BLOCK_SIZE, len(b) // BLOCK_SIZE]
    shared = sum(x == y for x, y in zip(*keys, strict=False))
    assert shared == same // BLOCK_SIZE


def test_text_has_a_key_for_each_block_of_its_tokens() -> None:
    assert len(block_keys("a" * (4 * BLOCK_SIZE * 3 + 1))) == 3
    assert block_keys("a" * 63) == ()


def test_the_least_recently_used_goes_first() -> None:
    cache = PrefixCache(2)
    cache.keep([b"a", b"b"])
    assert cache.find([b"a"]) == 1
    cache.keep([b"c"])
    assert [cache.find([key]) for key in (b"a", b"b", b"c")] == [1, 0, 1]


def test_a_prompt_seen_before_is_quicker_and_counted() -> None:
    engine, prompt = batcher(), list(range(800 * BLOCK_SIZE))
    cold, all_of_it = served(engine, prompt, at=0.0)
    assert (engine.prefix_queries, engine.prefix_hits) == (len(prompt), 0)
    warm, rest = served(engine, prompt, at=10.0)
    assert warm < 0.5 * cold
    # The last token of a prompt is always computed, and with it its block.
    assert all_of_it - rest == len(prompt) - BLOCK_SIZE == engine.prefix_hits
    other, _ = served(engine, list(reversed(prompt)), at=20.0)
    assert other > 0.99 * cold
    assert engine.prefix_queries == 3 * len(prompt)

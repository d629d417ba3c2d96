"""Which CUDA graphs TensorRT-LLM captures: its own rules, for planning and comparison.

Source: ``CudaGraphConfig`` in ``llmapi/llm_args.py`` and the filter of batch sizes in
``_torch/pyexecutor/model_engine.py``. A decode graph is of a batch size, in sequences; a piecewise
graph, for steps with prefill, of a number of tokens.
"""

from canaryctl.runtimes.spec import GraphMode, RuntimeSpec

DECODE_MODES = frozenset({GraphMode.FULL_DECODE_ONLY, GraphMode.FULL_AND_PIECEWISE})
PIECEWISE_MODES = frozenset({GraphMode.PIECEWISE, GraphMode.FULL_AND_PIECEWISE})

# With padding, where neither sizes nor a maximum is given. What the releases do above 128 differs.
_DEFAULT_SIZES = (1, 2, 4, *range(8, 129, 8))


def batch_sizes(spec: RuntimeSpec) -> tuple[int, ...]:
    """Batch sizes of the decode graphs, ascending; empty without decode graphs.

    A size above the most sequences is left out; of the engine's own sizes, that many sequences
    are captured in its place, since padding to it was allowed.
    """
    if spec.graph.mode not in DECODE_MODES:
        return ()
    most = min(spec.limits.max_num_seqs, spec.limits.max_num_batched_tokens)
    asked = spec.graph.capture_sizes
    sizes = {size for size in asked or _DEFAULT_SIZES if size <= most}
    if asked is None and most < _DEFAULT_SIZES[-1]:
        sizes.add(most)
    return tuple(sorted(sizes))


def token_sizes(spec: RuntimeSpec) -> tuple[int, ...] | None:
    """Token counts of the piecewise graphs, ascending; None: the engine's own, which differ by
    version."""
    if spec.graph.mode not in PIECEWISE_MODES:
        return ()
    asked = spec.graph.capture_sizes
    if asked is None:
        return None
    return tuple(sorted({size for size in asked if size <= spec.limits.max_num_batched_tokens}))

"""What one engine step was, by vLLM's report of it and of its outputs.

Reports are read by attribute, since their classes differ by version: a step's
``cudagraph_stats`` (with ``--cudagraph-metrics``) and the ``IterationStats`` of its outputs.
"""

from collections.abc import Mapping
from operator import index
from typing import Any, NamedTuple

MODES = ("NONE", "PIECEWISE", "FULL")
NO_GRAPH = "NONE"


class Grid(NamedTuple):
    """What the engine resolved of the graphs it was asked for, as its API server knows it.

    A worker may lower it still (a backend that cannot do FULL): that shows in the steps.
    """

    mode: str  # NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, FULL_AND_PIECEWISE
    sizes: tuple[int, ...]
    requested_mode: str  # "" when not told
    requested: str  # "1,2,4", "default", "" when not told
    engine_version: str
    max_num_seqs: int
    max_num_batched_tokens: int
    decode_tokens: int  # tokens of one decode of one request: 1 + speculative ones
    reports_steps: bool
    one_step_at_a_time: bool  # False with pipeline parallelism


REQUESTED_MODE = "CANARYCTL_REQUESTED_MODE"  # environment: the artifact's graph.mode
REQUESTED_SIZES = "CANARYCTL_REQUESTED_SIZES"  # environment: "1,2,4" or "default"


def read_grid(config: Any, engine_version: str, environment: Mapping[str, str]) -> Grid:
    """The resolved grid from vLLM's own configuration object."""
    compilation = config.compilation_config
    mode = getattr(compilation.cudagraph_mode, "name", None) or NO_GRAPH
    speculative = getattr(config, "speculative_config", None)
    return Grid(
        mode=mode,
        sizes=tuple(sorted(compilation.cudagraph_capture_sizes or ())) if mode != NO_GRAPH else (),
        requested_mode=environment.get(REQUESTED_MODE, ""),
        requested=environment.get(REQUESTED_SIZES, ""),
        engine_version=engine_version,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        decode_tokens=1 + (getattr(speculative, "num_speculative_tokens", None) or 0),
        reports_steps=bool(config.observability_config.cudagraph_metrics),
        one_step_at_a_time=config.parallel_config.pipeline_parallel_size == 1,
    )


class Step(NamedTuple):
    """One engine step, as the labels of ``canaryctl_engine_steps_total`` say it."""

    mode: str
    bucket: int  # padded tokens of the graph replayed; 0 when eager
    pure_decode: str  # true, false, unknown
    reason: str  # why eager; empty when a graph was replayed


class Size(NamedTuple):
    actual: int  # tokens scheduled
    padded: int  # tokens computed


def classify(stats: Any, iteration: Any, grid: Grid, ended_before: int = 0) -> tuple[Step, Size]:
    """A step's labels and tokens. ``ended_before``: requests that ended in the report before.

    Raises where the report is not of the form known: TypeError for a size that is no whole
    number, ValueError for one below zero and for an unknown mode.
    """
    mode = str(stats.runtime_mode).rsplit(".", 1)[-1]
    size = Size(index(stats.num_unpadded_tokens), index(stats.num_padded_tokens))
    if mode not in MODES:
        raise ValueError(f"found the graph mode {mode!r}, expected one of {', '.join(MODES)}")
    if size.actual < 0 or size.padded < 0:
        raise ValueError(f"found a step of {size.actual} tokens, {size.padded} when padded")
    pure_decode = is_pure_decode(size.actual, iteration, grid, ended_before)
    if mode != NO_GRAPH:
        return Step(mode, size.padded, pure_decode, ""), size
    return Step(mode, 0, pure_decode, why_eager(size.actual, pure_decode, grid)), size


def is_pure_decode(tokens: int, iteration: Any, grid: Grid, ended_before: int = 0) -> str:
    """Whether a step of so many tokens held decodes alone: "true", "false" or "unknown".

    A step's outputs name only requests that got a token in it. A prompt processed in part shows
    in the tokens alone, and so does a request that ended while its next step was already under
    way. A part of a prompt fills the token budget, or else it would have been the whole; so
    tokens without outputs are those of ended requests where the budget has room left and no
    more are left over than requests ended just before. Otherwise the answer is unknown.
    """
    if iteration is not None and iteration.time_to_first_tokens_iter:
        return "false"  # a prompt was completed
    if tokens > grid.max_num_seqs * grid.decode_tokens:
        return "false"  # more than all decodes together
    if iteration is None:
        return "unknown"
    left_over = tokens - decoded_tokens(iteration, grid)
    if left_over == 0:
        return "true"
    ghosts = ended_before * grid.decode_tokens
    return "true" if 0 < left_over <= ghosts and tokens < grid.max_num_batched_tokens else "unknown"


def decoded_tokens(iteration: Any, grid: Grid) -> int:
    """Tokens of the step that were decodes of requests that are still wanted."""
    if grid.decode_tokens == 1:  # a prompt that was completed made a token too
        return int(iteration.num_generation_tokens - len(iteration.time_to_first_tokens_iter))
    # How many of the proposed tokens were accepted says nothing of how many were run.
    return len(iteration.inter_token_latencies_iter) * grid.decode_tokens


def why_eager(tokens: int, pure_decode: str, grid: Grid) -> str:
    """``downgraded``: graphs were asked for and the engine resolved to none; ``beyond_grid``:
    no graph was to be captured for such a step; ``unknown``: there should be one."""
    if not grid.sizes:
        asked = grid.requested_mode not in ("", NO_GRAPH)
        return "downgraded" if asked else "beyond_grid"
    if tokens > grid.sizes[-1]:
        return "beyond_grid"
    if grid.mode == "FULL_DECODE_ONLY" and pure_decode == "false":
        return "beyond_grid"
    return "unknown"


def shape_limits(grid: Grid) -> dict[str, int]:
    """The largest size that there can be of each kind."""
    tokens = dict.fromkeys(
        ("scheduled_tokens", "prefill_tokens", "mixed_tokens"), grid.max_num_batched_tokens
    )
    return {**tokens, "decode_sequences": grid.max_num_seqs}


def shapes(step: Step, size: Size, iteration: Any, grid: Grid) -> dict[str, int]:
    """Sizes of the step by kind, for a planner of the grid.

    ``scheduled_tokens``: of every step. ``decode_sequences``: of a step of decodes alone, those
    of requests that have just ended included, since they were run. ``mixed_tokens``: all tokens
    of a step with prompts in it, and ``prefill_tokens`` the prompts' part of them, where the
    step's outputs came with it.
    """
    found = {"scheduled_tokens": size.actual}
    if step.pure_decode == "true":
        found["decode_sequences"] = size.actual // grid.decode_tokens
    elif step.pure_decode == "false":
        found["mixed_tokens"] = size.actual
        if iteration is not None:
            found["prefill_tokens"] = max(0, size.actual - decoded_tokens(iteration, grid))
    return found


def step_seconds(iteration: Any) -> float:
    """Time from the step before to this one, on the engine core's own clock.

    A sequence that took part in both waited exactly that long for its token; one that was
    preempted or let out waited longer. Only for a step with outputs.
    """
    return float(min(iteration.inter_token_latencies_iter))

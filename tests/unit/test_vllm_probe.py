"""What the probe counts, from reports of the form that vLLM makes."""

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from canaryctl.runtimes.probe.canaryctl_probe.histograms import (
    REQUEST_EDGES,
    STEP_EDGES,
    TOKEN_EDGES,
    Histogram,
    size_edges,
)
from canaryctl.runtimes.probe.canaryctl_probe.page import RecorderCollector
from canaryctl.runtimes.probe.canaryctl_probe.recorder import (
    INTERLEAVED,
    METRICS_OFF,
    NO_GRID,
    NO_STATS,
    OTHER_FORM,
    Recorder,
)
from canaryctl.runtimes.probe.canaryctl_probe.steps import (
    Grid,
    classify,
    is_pure_decode,
    read_grid,
)

GRID = Grid(
    mode="FULL_AND_PIECEWISE",
    sizes=(1, 2, 4, 8, 16, 24, 32, 48),
    requested_mode="FULL_AND_PIECEWISE",
    requested="default",
    engine_version="0.25.1",
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    decode_tokens=1,
    reports_steps=True,
    one_step_at_a_time=True,
)


@dataclass(frozen=True)
class Stat:
    """vLLM's CUDAGraphStat."""

    num_unpadded_tokens: int
    num_padded_tokens: int
    runtime_mode: str = "FULL"


@dataclass
class Iteration:
    """What is read of vLLM's IterationStats."""

    num_generation_tokens: int = 0
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    inter_token_latencies_iter: list[float] = field(default_factory=list)
    finished_requests: list[SimpleNamespace] = field(default_factory=list)


def decodes(count: int) -> Iteration:
    return Iteration(count, inter_token_latencies_iter=[0.002] * count)


def collected(recorder: Recorder) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(RecorderCollector(recorder))
    return registry


def page(recorder: Recorder) -> str:
    return generate_latest(collected(recorder)).decode()


def sample(recorder: Recorder, name: str, **labels: str) -> float | None:
    return collected(recorder).get_sample_value(name, labels)


def errors(recorder: Recorder) -> dict[str, float]:
    """By part, those that there were."""
    (family,) = (f for f in collected(recorder).collect() if f.name == "canaryctl_probe_errors")
    return {s.labels["part"]: s.value for s in family.samples if s.value}


def recorded(*reports: tuple[object, object], grid: Grid | None = GRID) -> Recorder:
    recorder = Recorder()
    if grid is not None:
        recorder.describe_grid(0, lambda: grid)
    for stat, iteration in reports:
        recorder.observe(0, SimpleNamespace(cudagraph_stats=stat), iteration)
    return recorder


@pytest.mark.parametrize(
    ("tokens", "iteration", "expected"),
    [
        (17, decodes(17), "true"),
        (18, decodes(17), "unknown"),  # a piece of a prompt, or a request that just ended
        (17, Iteration(17, [0.05], [0.002] * 16), "false"),  # a prompt was completed
        (257, decodes(17), "false"),  # more than 256 decodes
        (17, None, "unknown"),
        (300, None, "false"),
    ],
)
def test_a_step_is_pure_decode_only_where_the_report_proves_it(
    tokens: int, iteration: Iteration | None, expected: str
) -> None:
    assert is_pure_decode(tokens, iteration, GRID) == expected


def test_with_speculation_the_tokens_run_count_and_not_those_accepted() -> None:
    grid = GRID._replace(decode_tokens=4)
    accepted = Iteration(7, inter_token_latencies_iter=[0.002] * 3)
    assert is_pure_decode(12, accepted, grid) == "true"
    assert is_pure_decode(13, accepted, grid) == "unknown"
    assert is_pure_decode(1025, accepted, grid) == "false"


@pytest.mark.parametrize(
    ("tokens", "ended_before", "expected"),
    [
        (18, 1, "true"),  # the one that ended just before was already in this step
        (17, 3, "true"),  # those that reached their length are not run again
        (20, 3, "true"),
        (21, 3, "unknown"),
        (16, 3, "unknown"),  # more outputs than tokens: not of this step alone
    ],
)
def test_tokens_of_requests_that_just_ended_are_decodes(
    tokens: int, ended_before: int, expected: str
) -> None:
    assert is_pure_decode(tokens, decodes(17), GRID, ended_before) == expected


def test_a_step_that_fills_the_budget_may_hold_a_part_of_a_prompt() -> None:
    tight = GRID._replace(max_num_batched_tokens=18)
    assert is_pure_decode(18, decodes(17), tight, ended_before=1) == "unknown"
    assert is_pure_decode(17, decodes(17), tight._replace(max_num_batched_tokens=17)) == "true"


@given(decoding=st.integers(1, 256), chunk=st.integers(1, 8192))
def test_a_step_with_a_piece_of_a_prompt_is_never_called_pure(decoding: int, chunk: int) -> None:
    assert is_pure_decode(decoding + chunk, decodes(decoding), GRID) != "true"


@pytest.mark.parametrize(
    ("stat", "grid", "bucket", "reason"),
    [
        (Stat(17, 24), GRID, 24, ""),
        (Stat(17, 24, "PIECEWISE"), GRID, 24, ""),
        (Stat(64, 64, "NONE"), GRID, 0, "beyond_grid"),
        (Stat(17, 17, "NONE"), GRID, 0, "unknown"),
        (Stat(17, 17, "NONE"), GRID._replace(mode="NONE", sizes=()), 0, "downgraded"),
        (
            Stat(17, 17, "NONE"),
            GRID._replace(mode="NONE", sizes=(), requested_mode="NONE"),
            0,
            "beyond_grid",
        ),
        (Stat(17, 17, "CUDAGraphMode.NONE"), GRID, 0, "unknown"),
    ],
)
def test_bucket_and_reason(stat: Stat, grid: Grid, bucket: int, reason: str) -> None:
    step, _ = classify(stat, decodes(stat.num_unpadded_tokens), grid)
    assert (step.bucket, step.reason, step.pure_decode) == (bucket, reason, "true")


def test_a_mixed_step_has_no_graph_in_a_grid_of_decodes() -> None:
    grid = GRID._replace(mode="FULL_DECODE_ONLY")
    step, _ = classify(Stat(17, 17, "NONE"), Iteration(3, [0.05]), grid)
    assert (step.pure_decode, step.reason) == ("false", "beyond_grid")


def labels_of(
    mode: str, bucket: int, pure_decode: str = "true", reason: str = ""
) -> dict[str, str]:
    return {
        "engine": "0",
        "mode": mode,
        "bucket": str(bucket),
        "pure_decode": pure_decode,
        "reason": reason,
    }


def test_steps_and_tokens_are_counted_by_label() -> None:
    recorder = recorded(
        (Stat(17, 24), decodes(17)),
        (Stat(18, 24), decodes(18)),
        (Stat(64, 64, "NONE"), decodes(64)),
    )
    full, eager = labels_of("FULL", 24), labels_of("NONE", 0, reason="beyond_grid")
    for labels, steps, actual, padded in ((full, 2, 35, 48), (eager, 1, 64, 64)):
        assert sample(recorder, "canaryctl_engine_steps_total", **labels) == steps
        assert sample(recorder, "canaryctl_tokens_actual_total", **labels) == actual
        assert sample(recorder, "canaryctl_tokens_padded_total", **labels) == padded


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        (GRID, NO_STATS),
        (GRID._replace(reports_steps=False), METRICS_OFF),
        (None, NO_GRID),
    ],
)
def test_an_engine_without_graph_statistics_is_unknown_and_not_zero(
    grid: Grid | None, reason: str
) -> None:
    recorder = recorded((None, decodes(3)), grid=grid)
    shown = page(recorder)
    for family in ("engine_steps_total", "tokens_padded_total", "step_shape", "step_time_seconds"):
        assert re.search(rf"^canaryctl_{family}\S*{{", shown, re.MULTILINE) is None, family
    for what in ("steps", "shapes", "step_time"):
        labels = {"engine": "0", "what": what, "reason": reason}
        assert sample(recorder, "canaryctl_probe_unknown", **labels) == 1
    assert sample(recorder, "canaryctl_itl_seconds_count", engine="0") == 3


# --------------------------------------------------------------- shapes


def shape(recorder: Recorder, kind: str) -> dict[float, float]:
    """Steps by size: differences between neighbouring edges, those that are not 0."""
    (family,) = (f for f in collected(recorder).collect() if f.name == "canaryctl_step_shape")
    found, before = {}, 0.0
    for one in family.samples:
        if one.name.endswith("_bucket") and one.labels["kind"] == kind:
            if one.value != before:
                found[float(one.labels["le"])] = one.value - before
            before = one.value
    return found


def test_shapes_are_exact_and_kept_apart_by_kind() -> None:
    recorder = recorded(
        (Stat(17, 24), decodes(17)),
        (Stat(17, 24), decodes(17)),
        (Stat(416, 416, "PIECEWISE"), Iteration(17, [0.05], [0.002] * 16)),
        (Stat(4, 4), Iteration(3, [], [0.002] * 3, [ended(2), ended(2)])),  # cannot tell
        (Stat(3, 4), decodes(1)),  # two of its sequences had just ended
    )
    assert shape(recorder, "scheduled_tokens") == {3: 1, 4: 1, 17: 2, 416: 1}
    assert shape(recorder, "decode_sequences") == {3: 1, 17: 2}
    assert shape(recorder, "mixed_tokens") == {416: 1}
    assert shape(recorder, "prefill_tokens") == {400: 1}


def test_with_speculation_sequences_are_counted_and_not_their_tokens() -> None:
    accepted = Iteration(7, inter_token_latencies_iter=[0.002] * 3)
    recorder = recorded((Stat(12, 16), accepted), grid=GRID._replace(decode_tokens=4))
    assert shape(recorder, "decode_sequences") == {3: 1}


@pytest.mark.parametrize("limit", [1, 7, 512, 513, 2048, 8192, 65536])
def test_edges_of_sizes_are_exact_as_far_as_graphs_go(limit: int) -> None:
    edges = size_edges(limit)
    exact = min(limit, 512)
    assert edges[:exact] == tuple(range(1, exact + 1))
    assert all(a < b <= a * 1.126 for a, b in pairwise(edges[511:]))
    assert edges[-1] >= limit
    assert len(edges) == 1 or edges[-2] < limit


# ------------------------------------------------------------ step time


def test_step_time_is_that_between_two_steps_of_decodes() -> None:
    def step(count: int, seconds: float, *more: float) -> tuple[Stat, Iteration]:
        waited = [*[seconds] * (count - len(more)), *more]
        return Stat(count, 24 if count > 16 else 16), Iteration(count, [], waited)

    prompt = (Stat(116, 116, "PIECEWISE"), Iteration(17, [0.05], [0.003] * 16))
    recorder = recorded(
        step(16, 0.002),  # nothing is known of the step before
        step(16, 0.002),
        step(16, 0.002, 0.5),  # one was preempted and waited long
        prompt,
        step(17, 0.009),  # after a prompt
        step(17, 0.004),
        (None, None),
        step(17, 0.004),
    )
    small, large = ({"engine": "0", "mode": "FULL", "bucket": b} for b in ("16", "24"))
    assert sample(recorder, "canaryctl_step_time_seconds_count", **small) == 2
    assert sample(recorder, "canaryctl_step_time_seconds_sum", **small) == pytest.approx(0.004)
    assert sample(recorder, "canaryctl_step_time_seconds_count", **large) == 1
    assert sample(recorder, "canaryctl_step_time_seconds_sum", **large) == pytest.approx(0.004)


def test_with_steps_under_way_at_once_step_time_is_unknown() -> None:
    reports = [(Stat(4, 4), decodes(4))] * 3
    recorder = recorded(*reports, grid=GRID._replace(one_step_at_a_time=False))
    assert "canaryctl_step_time_seconds_count{" not in page(recorder)
    labels = {"engine": "0", "what": "step_time", "reason": INTERLEAVED}
    assert sample(recorder, "canaryctl_probe_unknown", **labels) == 1
    assert sample(recorder, "canaryctl_engine_steps_total", **labels_of("FULL", 4)) == 3


# ------------------------------------------------------------ latencies


def ended(tokens: int, **times: float) -> SimpleNamespace:
    return SimpleNamespace(
        e2e_latency=times.get("e2e", 1.5),
        prefill_time=times.get("prefill", 0.04),
        num_generation_tokens=tokens,
        mean_time_per_output_token=times.get("tpot", 0.01),
    )


def test_latencies_of_tokens_and_finished_requests() -> None:
    finished = [ended(11), ended(1, tpot=0), ended(0, prefill=-7e5)]  # the last one was aborted
    recorder = recorded((Stat(3, 4), Iteration(3, [0.05], [0.002, 0.003], finished)))
    counts = {
        name: sample(recorder, f"canaryctl_{name}_seconds_count", engine="0")
        for name in ("ttft", "prefill", "tpot", "itl", "e2e")
    }
    assert counts == {"ttft": 1, "prefill": 2, "tpot": 1, "itl": 2, "e2e": 3}
    assert sample(recorder, "canaryctl_itl_seconds_sum", engine="0") == pytest.approx(0.005)
    assert sample(recorder, "canaryctl_prefill_seconds_sum", engine="0") == pytest.approx(0.08)
    assert errors(recorder) == {}


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1000), max_size=30))
def test_buckets_are_cumulative_and_complete(seconds: list[float]) -> None:
    recorder = recorded((Stat(1, 1), Iteration(1, list(seconds))))
    (family,) = (f for f in collected(recorder).collect() if f.name == "canaryctl_ttft_seconds")
    for bucket in family.samples:
        if bucket.name.endswith("_bucket"):
            edge = math.inf if bucket.labels["le"] == "+Inf" else float(bucket.labels["le"])
            assert bucket.value == sum(value <= edge for value in seconds)


@pytest.mark.parametrize(
    ("found", "first", "last"),
    [(REQUEST_EDGES, 0.001, 165.0), (TOKEN_EDGES, 0.0002, 10.0), (STEP_EDGES, 0.0002, 0.3)],
)
def test_edges_rise_by_the_square_root_of_a_tenth_more(
    found: tuple[float, ...], first: float, last: float
) -> None:
    assert found[0] == first
    assert last / 1.05 < found[-1] <= last
    for lower, upper in pairwise(found):
        assert upper / lower == pytest.approx(1.1**0.5, rel=1e-6)


def test_engines_are_kept_apart_and_the_grid_is_attested() -> None:
    recorder = recorded((Stat(1, 1), decodes(1)))
    recorder.describe_grid(1, lambda: GRID._replace(sizes=(1, 2)))
    recorder.observe(1, SimpleNamespace(cudagraph_stats=Stat(2, 2)), decodes(2))
    first, second = labels_of("FULL", 1), labels_of("FULL", 2) | {"engine": "1"}
    assert sample(recorder, "canaryctl_tokens_actual_total", **first) == 1
    assert sample(recorder, "canaryctl_tokens_actual_total", **second) == 2
    assert 'mode="FULL_AND_PIECEWISE",requested="default",sizes="1,2"} 1.0' in page(recorder)


# ------------------------------------------------- it never breaks an engine


@pytest.mark.parametrize(
    ("stat", "iteration", "spoiled"),
    [
        (SimpleNamespace(), decodes(2), {"step"}),
        (Stat(None, 4), decodes(2), {"step"}),  # type: ignore[arg-type]
        (Stat(2.5, 4), decodes(2), {"step"}),  # type: ignore[arg-type]
        (Stat(-2, 4), decodes(2), {"step"}),
        (Stat(2, 4, "SOME_NEW_MODE"), decodes(2), {"step"}),
        (Stat(2, 4), SimpleNamespace(), {"step", "tokens", "requests"}),
        (Stat(2, 4), Iteration(2, [], [math.nan] * 2), {"tokens"}),
        (Stat(2, 4), Iteration(2, [], [-1.0] * 2), {"tokens"}),
        (Stat(2, 4), Iteration(2, [], ["soon"] * 2), {"tokens"}),  # type: ignore[list-item]
        (Stat(2, 4), Iteration(2, [], None), {"tokens"}),  # type: ignore[arg-type]
        (Stat(2, 4), Iteration(2, [], [0.1] * 2, [SimpleNamespace()]), {"requests"}),
        (Stat(2, 4), Iteration(2, [], [0.1] * 2, [ended(3, e2e=math.inf)]), {"requests"}),
    ],
)
def test_what_cannot_be_read_is_counted_and_spoils_nothing_else(
    stat: object, iteration: object, spoiled: set[str]
) -> None:
    recorder = recorded((stat, iteration), (Stat(17, 24), decodes(17)))
    assert errors(recorder) == dict.fromkeys(spoiled, 1)
    assert sample(recorder, "canaryctl_engine_steps_total", **labels_of("FULL", 24)) == 1
    total = sample(recorder, "canaryctl_itl_seconds_sum", engine="0")
    assert total is not None
    assert math.isfinite(total)


def test_reports_of_another_form_make_steps_unknown() -> None:
    recorder = recorded((SimpleNamespace(), decodes(2)))
    labels = {"engine": "0", "what": "steps", "reason": OTHER_FORM}
    assert sample(recorder, "canaryctl_probe_unknown", **labels) == 1


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
wild_reports = st.builds(
    SimpleNamespace,
    num_unpadded_tokens=anything,
    num_padded_tokens=anything,
    runtime_mode=st.sampled_from(["FULL", "NONE", "CUDAGraphMode.FULL"]) | anything,
)
wild_iterations = st.builds(
    SimpleNamespace,
    num_generation_tokens=anything,
    time_to_first_tokens_iter=anything,
    inter_token_latencies_iter=anything,
    finished_requests=anything | st.lists(st.builds(ended, st.integers(-2, 9)), max_size=3),
)


@settings(max_examples=50)
@given(st.lists(st.tuples(wild_reports | anything, wild_iterations | anything), max_size=5))
def test_nothing_that_an_engine_reports_raises_or_spoils_the_page(
    reports: list[tuple[object, object]],
) -> None:
    recorder = recorded(*reports)
    recorder.observe([], "nothing", 7)  # type: ignore[arg-type]
    samples = [s for family in RecorderCollector(recorder).collect() for s in family.samples]
    assert "canaryctl_probe_errors_total" in {s.name for s in samples}
    assert all(math.isfinite(s.value) for s in samples)


def test_an_engine_that_cannot_be_described_is_still_counted() -> None:
    recorder = Recorder()
    recorder.describe_grid(0, lambda: read_grid(SimpleNamespace(), "0.25.1", {}))
    recorder.observe(0, SimpleNamespace(cudagraph_stats=Stat(2, 2)), decodes(2))
    assert errors(recorder) == {"configuration": 1}
    assert sample(recorder, "canaryctl_itl_seconds_count", engine="0") == 2


def test_a_histogram_counts_at_its_upper_edge_and_takes_no_nonsense() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe_all([0.5, 1.0, 1.5, 2.5, 2.5])
    copied = histogram.copy()
    for nonsense in (math.nan, -0.1, math.inf):
        with pytest.raises(ValueError, match="expected a number from 0"):
            histogram.observe(nonsense)
    histogram.observe(7.0)
    assert copied.shown() == ([("1.0", 2.0), ("2.0", 3.0), ("+Inf", 5.0)], 8.0)


# -------------------------------------------------------- configuration


def vllm_config(mode: str | None, sizes: list[int], *, metrics: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        compilation_config=SimpleNamespace(
            cudagraph_mode=None if mode is None else SimpleNamespace(name=mode),
            cudagraph_capture_sizes=sizes,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=256, max_num_batched_tokens=2048),
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        observability_config=SimpleNamespace(cudagraph_metrics=metrics),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
    )


def test_the_grid_is_read_from_the_engines_configuration() -> None:
    environment = {"CANARYCTL_REQUESTED_MODE": "FULL", "CANARYCTL_REQUESTED_SIZES": "2,1"}
    assert read_grid(vllm_config("FULL", [2, 1]), "0.25.1", environment) == Grid(
        mode="FULL",
        sizes=(1, 2),
        requested_mode="FULL",
        requested="2,1",
        engine_version="0.25.1",
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        decode_tokens=4,
        reports_steps=True,
        one_step_at_a_time=True,
    )
    eager = read_grid(vllm_config("NONE", [1, 2], metrics=False), "0.25.1", {})
    assert (eager.mode, eager.sizes, eager.requested, eager.reports_steps) == (
        "NONE",
        (),
        "",
        False,
    )
    assert read_grid(vllm_config(None, []), "0.25.1", {}).mode == "NONE"

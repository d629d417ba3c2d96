"""What the probe counts, from reports of the form that vLLM makes."""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from canaryctl.runtimes.probe.canaryctl_probe_metrics import (
    METRICS_OFF,
    NO_STATS,
    REQUEST_EDGES,
    TOKEN_EDGES,
    Grid,
    Recorder,
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
    decode_tokens=1,
    reports_steps=True,
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


def page(recorder: Recorder) -> str:
    registry = CollectorRegistry()
    registry.register(recorder)
    return generate_latest(registry).decode()


def sample(recorder: Recorder, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(recorder)
    return registry.get_sample_value(name, labels)


def recorded(*reports: tuple[Stat | None, Iteration | None], grid: Grid = GRID) -> Recorder:
    recorder = Recorder()
    recorder.describe_engine(0, grid)
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
    grid = replace(GRID, decode_tokens=4)
    accepted = Iteration(7, inter_token_latencies_iter=[0.002] * 3)
    assert is_pure_decode(12, accepted, grid) == "true"
    assert is_pure_decode(13, accepted, grid) == "unknown"
    assert is_pure_decode(1025, accepted, grid) == "false"


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
        (Stat(17, 17, "NONE"), replace(GRID, mode="NONE", sizes=()), 0, "downgraded"),
        (
            Stat(17, 17, "NONE"),
            replace(GRID, mode="NONE", sizes=(), requested_mode="NONE"),
            0,
            "beyond_grid",
        ),
        (Stat(17, 17, "CUDAGraphMode.NONE"), GRID, 0, "unknown"),
    ],
)
def test_bucket_and_reason(stat: Stat, grid: Grid, bucket: int, reason: str) -> None:
    step = classify(stat, decodes(stat.num_unpadded_tokens), grid)
    assert (step.bucket, step.reason, step.pure_decode) == (bucket, reason, "true")


def test_a_mixed_step_has_no_graph_in_a_grid_of_decodes() -> None:
    grid = replace(GRID, mode="FULL_DECODE_ONLY")
    step = classify(Stat(17, 17, "NONE"), Iteration(3, [0.05]), grid)
    assert (step.pure_decode, step.reason) == ("false", "beyond_grid")


def test_steps_and_tokens_are_counted_by_label() -> None:
    recorder = recorded((Stat(17, 24), decodes(17)), (Stat(17, 24), decodes(17)))
    labels = {"mode": "FULL", "bucket": "24", "pure_decode": "true", "reason": "", "engine": "0"}
    assert sample(recorder, "canaryctl_engine_steps_total", **labels) == 2
    assert sample(recorder, "canaryctl_tokens_actual_total", engine="0") == 34
    assert sample(recorder, "canaryctl_tokens_padded_total", engine="0") == 48


@pytest.mark.parametrize(
    ("grid", "reason"), [(GRID, NO_STATS), (replace(GRID, reports_steps=False), METRICS_OFF)]
)
def test_an_engine_without_graph_statistics_is_unknown_and_not_zero(
    grid: Grid, reason: str
) -> None:
    recorder = recorded((None, decodes(3)), grid=grid)
    assert "canaryctl_engine_steps_total{" not in page(recorder)
    assert "canaryctl_tokens_padded_total{" not in page(recorder)
    labels = {"engine": "0", "what": "steps", "reason": reason}
    assert sample(recorder, "canaryctl_probe_unknown", **labels) == 1


def test_out_of_memory_is_never_claimed() -> None:
    assert "canaryctl_oom" not in page(recorded())
    assert 'what="oom"' in page(recorded())


def test_latencies_of_tokens_and_finished_requests() -> None:
    finished = [
        SimpleNamespace(e2e_latency=1.5, num_generation_tokens=11, mean_time_per_output_token=0.01),
        SimpleNamespace(e2e_latency=0.1, num_generation_tokens=1, mean_time_per_output_token=0),
    ]
    recorder = recorded((Stat(3, 4), Iteration(3, [0.05], [0.002, 0.003], finished)))
    counts = {
        name: sample(recorder, f"canaryctl_{name}_seconds_count", engine="0")
        for name in ("ttft", "tpot", "itl", "e2e")
    }
    assert counts == {"ttft": 1, "tpot": 1, "itl": 2, "e2e": 2}
    assert sample(recorder, "canaryctl_itl_seconds_sum", engine="0") == pytest.approx(0.005)


@given(st.lists(st.floats(0, 1000), max_size=30))
def test_buckets_are_cumulative_and_complete(seconds: list[float]) -> None:
    recorder = recorded((Stat(1, 1), Iteration(1, list(seconds))))
    registry = CollectorRegistry()
    registry.register(recorder)
    (family,) = (f for f in registry.collect() if f.name == "canaryctl_ttft_seconds")
    for bucket in family.samples:
        if bucket.name.endswith("_bucket"):
            edge = math.inf if bucket.labels["le"] == "+Inf" else float(bucket.labels["le"])
            assert bucket.value == sum(value <= edge for value in seconds)


@pytest.mark.parametrize(
    ("found", "first", "last"), [(REQUEST_EDGES, 0.001, 165.0), (TOKEN_EDGES, 0.0002, 10.0)]
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
    recorder.describe_engine(1, replace(GRID, sizes=(1, 2)))
    recorder.observe(1, SimpleNamespace(cudagraph_stats=Stat(2, 2)), decodes(2))
    assert sample(recorder, "canaryctl_tokens_actual_total", engine="0") == 1
    assert sample(recorder, "canaryctl_tokens_actual_total", engine="1") == 2
    assert 'mode="FULL_AND_PIECEWISE",requested="default",sizes="1,2"} 1.0' in page(recorder)


def test_a_report_of_another_form_raises_for_the_plugin_to_count() -> None:
    recorder = recorded()
    with pytest.raises(AttributeError):
        recorder.observe(0, SimpleNamespace(), None)
    recorder.count_error()
    assert sample(recorder, "canaryctl_probe_errors_total") == 1


def vllm_config(mode: str | None, sizes: list[int], *, metrics: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        compilation_config=SimpleNamespace(
            cudagraph_mode=None if mode is None else SimpleNamespace(name=mode),
            cudagraph_capture_sizes=sizes,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=256),
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        observability_config=SimpleNamespace(cudagraph_metrics=metrics),
    )


def test_the_grid_is_read_from_the_engines_configuration() -> None:
    environment = {"CANARYCTL_REQUESTED_MODE": "FULL", "CANARYCTL_REQUESTED_SIZES": "2,1"}
    assert read_grid(vllm_config("FULL", [2, 1]), "0.25.1", environment) == Grid(
        "FULL", (1, 2), "FULL", "2,1", "0.25.1", 256, 4, reports_steps=True
    )
    eager = read_grid(vllm_config("NONE", [1, 2], metrics=False), "0.25.1", {})
    assert (eager.mode, eager.sizes, eager.requested, eager.reports_steps) == (
        "NONE",
        (),
        "",
        False,
    )
    assert read_grid(vllm_config(None, []), "0.25.1", {}).mode == "NONE"

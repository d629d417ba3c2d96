"""What every engine adapter promises, tried on each one there is."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from canaryctl.common.errors import InputError, UnknownNameError
from canaryctl.common.metrics import MetricKind, MetricRef, Signal
from canaryctl.runtimes.engines.base import FILES, Engine, Launch, LogFacts, Stage
from canaryctl.runtimes.engines.registry import ENGINES, engine
from canaryctl.runtimes.spec import (
    EngineSpec,
    GpuSpec,
    GraphMode,
    GraphSpec,
    LimitsSpec,
    ModelSpec,
    RuntimeSpec,
    WarmupPlan,
)

VERSIONS = {"simulated": "0.25.1", "vllm": "0.25.1", "trtllm": "1.2.0"}
# What an engine cannot tell is unknown, never zero: docs/engines.md.
EVERY_ENGINE_TELLS = {Signal.TTFT, Signal.TPOT, Signal.E2E, Signal.REQUESTS}
TOLD_BY_THE_PROBE = {
    Signal.ITL,
    Signal.PREFILL,
    Signal.ERRORS,
    Signal.STEPS,
    Signal.TOKENS_ACTUAL,
    Signal.TOKENS_PADDED,
    Signal.SHAPES,
    Signal.STEP_TIME,
    Signal.RUNNING,
    Signal.CACHE_CONFIG,
    Signal.PREFIX_QUERIES,
    Signal.PREFIX_HITS,
    Signal.GRID,
    Signal.STARTUP,
    Signal.MEMORY,
    Signal.ATTESTATION,
}
VLLM_START = (
    "Model loading took 1.12 GiB memory and 3.5 seconds",
    "torch.compile takes 12.5 s in total",
    "GPU KV cache size: 1,000,000 tokens",
    "Graph capturing finished in 5 secs, took 0.50 GiB",
)
STARTS = {
    "simulated": VLLM_START,
    "vllm": VLLM_START,
    "trtllm": (
        "[TRT-LLM] [I] Use 1.12 GB for model weights.",
        "Model init total -- 3.50s",
        "[TRT-LLM] [I] Creating CUDA graph instances for 11 batch sizes.",
        "INFO:     Application startup complete.",
    ),
}
KINDS = {
    Signal.TTFT: MetricKind.HISTOGRAM,
    Signal.TPOT: MetricKind.HISTOGRAM,
    Signal.ITL: MetricKind.HISTOGRAM,
    Signal.E2E: MetricKind.HISTOGRAM,
    Signal.REQUESTS: MetricKind.COUNTER,
    Signal.ERRORS: MetricKind.COUNTER,
    Signal.OOM: MetricKind.COUNTER,
    Signal.STEPS: MetricKind.COUNTER_SET,
    Signal.PREFILL: MetricKind.HISTOGRAM,
    Signal.TOKENS_ACTUAL: MetricKind.COUNTER_SET,
    Signal.TOKENS_PADDED: MetricKind.COUNTER_SET,
    Signal.SHAPES: MetricKind.HISTOGRAM_SET,
    Signal.STEP_TIME: MetricKind.HISTOGRAM_SET,
    Signal.STARTUP: MetricKind.GAUGE_SET,
    Signal.MEMORY: MetricKind.GAUGE_SET,
    Signal.ATTESTATION: MetricKind.INFO,
    Signal.RUNNING: MetricKind.GAUGE,
    Signal.WAITING: MetricKind.GAUGE,
    Signal.PREEMPTIONS: MetricKind.COUNTER,
    Signal.CACHE_CONFIG: MetricKind.INFO,
    Signal.PREFIX_QUERIES: MetricKind.COUNTER,
    Signal.PREFIX_HITS: MetricKind.COUNTER,
    Signal.GRID: MetricKind.INFO,
}

pytestmark = pytest.mark.parametrize("adapter", [engine(name) for name in ENGINES], ids=ENGINES)


def spec(name: str, *, graph: GraphSpec | None = None, **engine_fields: object) -> RuntimeSpec:
    # The simulated engine has no environment of its own; the real one needs a way to start.
    way = {} if name == "simulated" else {"venv": "/opt/engine"}
    return RuntimeSpec(
        engine=EngineSpec.model_validate(
            {"name": name, "version": VERSIONS[name], **way, **engine_fields}
        ),
        model=ModelSpec(id="Qwen/Qwen3-0.6B", revision="abc123"),
        gpu=GpuSpec(count=1),
        graph=graph or GraphSpec(capture_sizes=(1, 2, 4, 8, 16, 32, 48)),
        limits=LimitsSpec(max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=1024),
        warmup_plan=WarmupPlan(decode_buckets=(1, 8, 48), mixed_token_buckets=(64,)),
    )


def launched(adapter: Engine, of: RuntimeSpec) -> Launch:
    return adapter.launch(of, host="127.0.0.1", port=12345)


def test_it_answers_to_its_own_name(adapter: Engine) -> None:
    assert engine(adapter.name).name == adapter.name
    assert isinstance(adapter.simulated, bool)
    with pytest.raises(UnknownNameError, match=adapter.name):
        engine("no-such-engine")


def test_a_good_spec_has_no_faults(adapter: Engine) -> None:
    of = spec(adapter.name)
    assert list(adapter.check(of)) == []
    assert list(adapter.check(of.model_copy(update={"graph": GraphSpec()}))) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"graph": GraphSpec(capture_sizes=(1, 4096))}, "4096"),
        ({"graph": GraphSpec(capture_sizes=())}, "capture_sizes"),
        ({"warmup_plan": WarmupPlan(decode_buckets=(65,))}, "65"),
        ({"warmup_plan": WarmupPlan(mixed_token_buckets=(4096,))}, "4096"),
    ],
)
def test_a_spec_beyond_its_limits_is_a_fault_that_names_the_sizes(
    adapter: Engine, change: dict[str, object], named: str
) -> None:
    faults = adapter.check(spec(adapter.name).model_copy(update=change))
    assert any(named in fault for fault in faults), faults


def test_an_argument_it_does_not_take_is_a_fault(adapter: Engine) -> None:
    # To vLLM most options are its own; one that the artifact has a typed field for is not.
    faults = adapter.check(spec(adapter.name, args={"max-num-seqs": 8}))
    assert any("max-num-seqs" in fault for fault in faults), faults


def test_a_launch_is_deterministic_and_says_where_to_listen(adapter: Engine) -> None:
    of = spec(adapter.name)
    launch = launched(adapter, of)
    assert launch == launched(adapter, of.model_copy(deep=True))
    assert all(isinstance(word, str) for word in launch.argv)
    words = " ".join(launch.argv)
    assert "127.0.0.1" in words
    assert "12345" in words
    assert "23456" in " ".join(adapter.launch(of, host="127.0.0.1", port=23456).argv)


def test_what_changes_the_runtime_changes_the_launch(adapter: Engine) -> None:
    of = spec(adapter.name)
    changed: list[RuntimeSpec] = [
        of,
        of.model_copy(update={"graph": GraphSpec(capture_sizes=(1, 2))}),
        of.model_copy(update={"graph": GraphSpec(mode=GraphMode.PIECEWISE)}),
        of.model_copy(update={"graph": GraphSpec(mode=GraphMode.NONE)}),
        of.model_copy(update={"limits": LimitsSpec(max_num_seqs=32)}),
        of.model_copy(update={"model": ModelSpec(id="Qwen/Qwen3-1.7B")}),
        of.model_copy(update={"model": ModelSpec(id="Qwen/Qwen3-0.6B", revision="def456")}),
        of.model_copy(update={"gpu": GpuSpec(memory_fraction=0.5)}),
    ]
    launches = [launched(adapter, each) for each in changed]
    assert len({(launch.argv, *launch.files.items()) for launch in launches}) == len(changed)


def test_argv_names_every_file_that_it_is_started_with(adapter: Engine) -> None:
    launch = launched(adapter, spec(adapter.name))
    words = launch.argv_with("/state/files")
    assert not any(FILES in word for word in words)
    for name in launch.files:
        assert any(word.endswith(f"/state/files/{name}") for word in words)


def test_the_environment_of_the_artifact_reaches_the_engine(adapter: Engine) -> None:
    launch = launched(adapter, spec(adapter.name, env={"SOME_SETTING": "on"}))
    assert launch.env["SOME_SETTING"] == "on"


def test_eager_is_the_same_runtime_without_graphs(adapter: Engine) -> None:
    of = spec(adapter.name)
    eager = adapter.eager(of)
    assert of.uses_graphs, "the original is left as it was"
    assert not eager.uses_graphs
    assert adapter.resolved_grid(eager) == ()
    assert list(adapter.check(eager)) == []
    unchanged, changed = of.as_document(), eager.as_document()
    assert unchanged.pop("graph") != changed.pop("graph")
    assert unchanged == changed
    assert launched(adapter, eager) != launched(adapter, of)


def test_eager_has_no_eager_form(adapter: Engine) -> None:
    with pytest.raises(InputError, match="no eager form"):
        adapter.eager(adapter.eager(spec(adapter.name)))


def test_the_resolved_grid_is_what_was_asked_or_a_default(adapter: Engine) -> None:
    assert adapter.resolved_grid(spec(adapter.name)) == (1, 2, 4, 8, 16, 32, 48)
    default = adapter.resolved_grid(spec(adapter.name, graph=GraphSpec()))
    assert default
    assert list(default) == sorted(set(default))
    assert default[-1] <= 2048


def test_metrics_name_signals_each_of_its_kind(adapter: Engine) -> None:
    metrics = adapter.metrics(VERSIONS[adapter.name])
    assert metrics
    assert set(metrics) <= set(Signal)
    for signal, reference in metrics.items():
        assert isinstance(reference, MetricRef)
        assert reference.name
        assert reference.kind is KINDS[signal], signal
        # Absence may read as zero only beside a metric that shows the engine would tell.
        assert reference.born_at_zero or reference.exists_with, signal


def test_the_signals_of_the_gates_can_be_had(adapter: Engine) -> None:
    told = set(adapter.metrics(VERSIONS[adapter.name]))
    assert told >= EVERY_ENGINE_TELLS
    if adapter.name == "trtllm":  # no metric of it tells of graphs, and none may be made up
        assert not told & TOLD_BY_THE_PROBE
    else:
        assert told >= TOLD_BY_THE_PROBE


def test_an_empty_log_says_nothing(adapter: Engine) -> None:
    assert adapter.read_log([], VERSIONS[adapter.name]) == LogFacts()


_GARBAGE = ["", "\x00\ufffd" * 50, "x" * 100_000, "Model loading took x GiB", '{"json": [1}', "%s"]


def test_garbage_in_a_log_says_nothing_of_stages_or_sizes(adapter: Engine) -> None:
    facts = adapter.read_log(_GARBAGE, VERSIONS[adapter.name])
    assert not set(facts.stages) - {Stage.STARTED}
    assert facts.weights_bytes is None
    assert facts.kv_cache_tokens is None
    assert facts.out_of_memory == ()
    assert facts.fatal == ()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(lines=st.lists(st.text()))
def test_no_log_is_too_strange_to_read(adapter: Engine, lines: list[str]) -> None:
    assert isinstance(adapter.read_log(lines, VERSIONS[adapter.name]), LogFacts)


def test_facts_only_grow_with_the_log(adapter: Engine) -> None:
    lines, version = STARTS[adapter.name], VERSIONS[adapter.name]
    seen: list[tuple[Stage, ...]] = []
    for count in range(len(lines) + 1):
        facts = adapter.read_log(lines[:count], version)
        assert not seen or facts.stages[: len(seen[-1])] == seen[-1]
        seen.append(facts.stages)
    assert set(seen[-1]) >= {Stage.LOADED, Stage.COMPILED, Stage.CAPTURED}


def test_health_and_model_name(adapter: Engine) -> None:
    assert adapter.health_path().startswith("/")
    assert adapter.metrics_path().startswith("/")
    name = adapter.model_name(spec(adapter.name))
    assert "Qwen/Qwen3-0.6B" in name
    assert adapter.simulated == ("simulated" in name), "a simulated engine says so"

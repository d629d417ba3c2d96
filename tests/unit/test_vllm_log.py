"""vLLM's log lines: recorded from a real engine, and as each release words them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.runtimes.engines.base import LogFacts, Stage
from canaryctl.runtimes.engines.vllm_log import read_vllm_log

DATA = Path(__file__).parents[1] / "data" / "vllm" / "0.32.0-cpu"
UP_TO_CAPTURED = (Stage.STARTED, Stage.LOADED, Stage.COMPILED, Stage.CAPTURED)
GIB = 2**30


def core(level: str, text: str) -> str:
    return f"(EngineCore pid=387) {level} 03-08 16:44:28 [gpu_model_runner.py:5651] {text}"


# As worded from 0.20 on, for one GPU.
GPU_START = [
    core("INFO", "Model loading took 1.12 GiB memory and 3.141593 seconds"),
    core("INFO", "torch.compile took 25.40 s in total"),
    core("INFO", "Initial profiling/warmup run took 0.68 s"),
    core("INFO", "Available KV cache memory: 17.36 GiB"),
    core("INFO", "GPU KV cache size: 188,640 tokens"),
    core("INFO", "Maximum concurrency for 131,072 tokens per request: 5.23x"),
    core("INFO", "Graph capturing finished in 5 secs, took 0.50 GiB"),
    core(
        "INFO",
        "init engine (profile, create kv cache, warmup model) took 36.50 s (compilation: 25.40 s)",
    ),
]


def recorded(name: str) -> LogFacts:
    return read_vllm_log((DATA / name).read_text(encoding="utf-8").splitlines())


def test_a_recorded_start_on_a_cpu() -> None:
    facts = recorded("started.log")
    assert facts.stages == UP_TO_CAPTURED
    assert facts.kv_cache_tokens == 2_097_152
    assert facts.max_concurrency == 4096
    assert set(facts.stage_seconds) == {"init"}
    assert (facts.weights_bytes, facts.graph_bytes) == (None, None)
    assert (facts.out_of_memory, facts.fatal) == ((), ())
    assert any("Enforce eager set" in line for line in facts.warnings)


def test_a_recorded_death_of_the_engine_core() -> None:
    facts = recorded("core-killed.log")
    assert facts.stages == UP_TO_CAPTURED
    assert "exited unexpectedly" in facts.fatal[0]
    assert any("EngineDeadError" in line for line in facts.fatal)
    assert facts.out_of_memory == ()


def test_a_recorded_refusal_names_its_cause() -> None:
    facts = recorded("refused-option.log")
    assert facts.stages == (Stage.STARTED,)
    assert any("unrecognized arguments: --no-such-option" in line for line in facts.fatal)


def test_a_recorded_start_that_failed_names_its_cause() -> None:
    facts = recorded("failed-start.log")
    assert Stage.CAPTURED not in facts.stages
    assert "Cannot find any model weights" in facts.fatal[0]
    assert any("EngineCore failed to start" in line for line in facts.fatal)
    assert any("Engine core initialization failed" in line for line in facts.fatal)


@pytest.mark.parametrize("prefix", ["", "(Worker_TP0 pid=9) INFO 01-01 00:00:00 [a.py:1] ", "sim "])
def test_a_start_with_graphs(prefix: str) -> None:
    lines = [prefix + line.split("] ", 1)[1] for line in GPU_START]
    facts = read_vllm_log(lines)
    assert facts.stages == UP_TO_CAPTURED
    assert facts.stage_seconds == {
        "load": 3.141593,
        "compile": 25.4,
        "capture": 5.0,
        "init": 36.5,
    }
    assert facts.weights_bytes == round(1.12 * GIB)
    assert facts.graph_bytes == GIB // 2
    assert facts.kv_cache_tokens == 188_640
    assert facts.max_concurrency == 5.23
    assert (facts.out_of_memory, facts.fatal, facts.warnings) == ((), (), ())


def test_stages_appear_one_by_one() -> None:
    seen = [read_vllm_log(GPU_START[:n]).stages for n in range(len(GPU_START) + 1)]
    assert seen[0] == ()
    assert seen[1] == (Stage.STARTED, Stage.LOADED)
    assert seen[2] == UP_TO_CAPTURED[:3]
    assert seen[6] == UP_TO_CAPTURED[:3]
    assert seen[7] == UP_TO_CAPTURED


@pytest.mark.parametrize(
    "text",
    [
        "Model loading took 1.12 GiB and 3.0 seconds",  # 0.20 to 0.29, Model Runner V2
        "Model loading took 1.12 GiB memory and 3.0 seconds",
    ],
)
def test_loading_as_both_runners_word_it(text: str) -> None:
    assert read_vllm_log([text]).stage_seconds == {"load": 3.0}


@pytest.mark.parametrize(
    "text",
    [
        "torch.compile took 25.40 s in total",
        "torch.compile takes 25.40 s in total",
        "torch.compile and initial profiling/warmup run together took 25.40 s in total",
    ],
)
def test_compilation_as_releases_word_it(text: str) -> None:
    assert read_vllm_log([text]).stage_seconds == {"compile": 25.4}


def test_capacity_in_one_line_as_since_0_30() -> None:
    line = (
        "CPU KV cache size: 2,097,152 tokens, Maximum concurrency for 512 tokens per request: 9.5x"
    )
    facts = read_vllm_log([line])
    assert (facts.kv_cache_tokens, facts.max_concurrency) == (2_097_152, 9.5)


def test_of_several_workers_the_one_that_limits_counts() -> None:
    facts = read_vllm_log(
        [
            "Model loading took 2.0 GiB memory and 3.0 seconds",
            "Model loading took 1.0 GiB memory and 4.0 seconds",
            "GPU KV cache size: 200 tokens",
            "GPU KV cache size: 100 tokens",
            "Graph capturing finished in 5 secs, took 0.25 GiB",
            "Graph capturing finished in 4 secs, took -0.50 GiB",
        ]
    )
    assert (facts.weights_bytes, facts.kv_cache_tokens) == (2 * GIB, 100)
    assert facts.stage_seconds == {"load": 4.0, "capture": 5.0}
    assert facts.graph_bytes == GIB // 4


@pytest.mark.parametrize(
    "line",
    [
        core("ERROR", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."),
        core("ERROR", "torch.cuda.OutOfMemoryError: HIP out of memory."),
        core("ERROR", "RuntimeError: CUDA error: out of memory"),
        core("ERROR", "ValueError: No available memory for the cache blocks."),
        "ValueError: Free memory on device cuda:0 (3/139 GiB) on startup is less than desired",
        "RuntimeError: err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate",
        "MemoryError",
        core("ERROR", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
    ],
)
def test_out_of_memory_in_its_many_words(line: str) -> None:
    assert read_vllm_log([line]).out_of_memory == (line,)


@pytest.mark.parametrize(
    "line",
    [
        core(
            "INFO", "Received request cmpl-1: prompt: 'torch.OutOfMemoryError: CUDA out of memory'"
        ),
        core("INFO", "If out-of-memory error occurs during cudagraph capture, use eager mode"),
        'INFO:     127.0.0.1:5 - "POST /v1/completions?MemoryError HTTP/1.1" 200 OK',
    ],
)
def test_what_a_request_says_is_not_believed(line: str) -> None:
    facts = read_vllm_log([line])
    assert (facts.out_of_memory, facts.fatal) == ((), ())


def test_an_exception_that_ends_the_start_is_fatal_and_one_of_a_request_is_not() -> None:
    traceback = [
        "Traceback (most recent call last):",
        '  File "/opt/x.py", line 7, in load',
        "ValueError: unsupported head size 7",
    ]
    assert read_vllm_log(traceback).fatal == (traceback[-1],)
    request = ["ERROR:    Exception in ASGI application", *traceback]
    assert read_vllm_log([*GPU_START, *request]).fatal == ()
    assert read_vllm_log(["Exception in thread Thread-3:", *traceback]).fatal == ()


def test_the_cause_behind_a_failed_start_is_kept() -> None:
    lines = [
        core("ERROR", "EngineCore failed to start."),
        core("ERROR", "Traceback (most recent call last):"),
        core("ERROR", '  File "/opt/x.py", line 7, in load'),
        core("ERROR", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB."),
    ]
    facts = read_vllm_log(lines)
    assert facts.fatal == (lines[0], lines[3])
    assert facts.out_of_memory == (lines[3],)


def test_an_exception_that_was_caught_while_starting_is_not_fatal_by_itself() -> None:
    caught = [
        core("ERROR", "Failed to load plugin mine"),
        core("ERROR", "Traceback (most recent call last):"),
        core("ERROR", "ImportError: no module named mine"),
    ]
    assert read_vllm_log([*caught, *GPU_START]).fatal == ()
    ended = read_vllm_log([*caught, core("ERROR", "EngineCore failed to start.")])
    assert ended.fatal == (caught[2], core("ERROR", "EngineCore failed to start."))


@pytest.mark.parametrize(
    "text",
    [
        "CUDAGraphMode.FULL is not supported with FlashInfer; setting cudagraph_mode=PIECEWISE",
        "Capping cudagraph capture sizes from max 512 to 352 to fit Mamba cache blocks",
        "Cannot use FlashAttention-2 backend, falling back to XFORMERS",
    ],
)
def test_downgrades_are_warnings(text: str) -> None:
    assert read_vllm_log([core("WARNING", text)]).warnings == (core("WARNING", text),)
    assert read_vllm_log([core("INFO", text)]).warnings == ()


def test_colours_and_repeats_do_not_matter_and_lines_are_bounded() -> None:
    long = core("ERROR", "EngineCore failed to start. " + "x" * 1000)
    facts = read_vllm_log([f"\x1b[0;36m{long}\x1b[0m", long, *map(str, range(100))])
    assert facts.fatal == (long[:500],)


@given(st.lists(st.text(max_size=80), max_size=20))
def test_any_text_can_be_read(lines: list[str]) -> None:
    assert Stage.WARMED not in read_vllm_log(lines).stages


def test_what_is_compiled_or_captured_once_it_has_initialised() -> None:
    graph = "Capturing a cudagraph on (FULL,BatchDescriptor(num_tokens=24, uniform=True))"
    compiled = "Compiling a graph for compile range (1, 8192) takes 11.11 s"
    kernel = "Triton kernel JIT compilation during inference: _topk (BLOCK=64). This causes a"
    late = [
        core("DEBUG", graph),
        core("INFO", compiled),
        core("WARNING", f"{kernel} latency spike; consider extending warmup to cover this"),
        core("INFO", "torch.compile took 3.20 s in total"),
        core("INFO", "Graph capturing finished in 5 secs, took 0.50 GiB"),
    ]
    told = (
        "capture of the FULL graph of bucket 24",
        "compilation for steps of 1 to 8192 tokens, 11.11 s",
        "Triton kernel JIT compilation of _topk",
        "torch.compile, 3.20 s",
        "capture of graphs, 5 s",
    )
    assert read_vllm_log([*GPU_START, *late]).late_work == told
    assert read_vllm_log([*late, *GPU_START]).late_work == ()
    asked = core("INFO", f"Received request cmpl-1: prompt: '[x] {graph}', '[y] {compiled}'")
    assert read_vllm_log([*GPU_START, asked]).late_work == ()
    for name in ("engine-graphs.log", "engine-nine.log", "engine-eager.log"):
        path = DATA.parent / "0.25.1-h200" / name
        assert read_vllm_log(path.read_text(encoding="utf-8").splitlines()).late_work == (), name

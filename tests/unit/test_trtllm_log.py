"""TensorRT-LLM's log lines: what they say, and what they do not."""

from canaryctl.runtimes.engines.base import LogFacts, Stage
from canaryctl.runtimes.engines.trtllm_log import read_trtllm_log

LOADED = (
    "[TensorRT-LLM] TensorRT-LLM version: 1.1.0rc3",
    "[12/20/2025-04:20:21] [TRT-LLM] [I] Use 63.32 GB for model weights.",
    "Loading weights: 100%|██████████| 801/801 [00:46<00:00, 17.29it/s]",
    "Model init total -- 49.14s",
)
KV = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated {} GiB for max tokens in paged KV cache ({})."
CAPTURE = (
    "[12/20/2025-04:21:37] [TRT-LLM] [I] Creating CUDA graph instances for 2 batch sizes.",
    "[12/20/2025-04:21:37] [TRT-LLM] [I] Run generation only CUDA graph warmup for batch size=64",
)
UP = "INFO:     Application startup complete."


def read(*lines: str) -> LogFacts:
    return read_trtllm_log(lines)


def test_a_start_with_graphs() -> None:
    first, last = KV.format("0.56", 8224), KV.format("5.95", 86720)
    starting = read(*LOADED, first, *CAPTURE, last, *CAPTURE)
    assert starting.stages[-1] is Stage.LOADED, "it may capture once more"
    facts = read(*LOADED, first, *CAPTURE, last, *CAPTURE, UP)
    assert facts.stages[-1] is Stage.CAPTURED
    assert facts.stage_seconds == {"load": 49.14}
    assert facts.weights_bytes == round(63.32 * 2**30)
    assert facts.kv_cache_tokens == 86720
    assert facts.graph_bytes is None, "the log does not say it"
    assert facts.warnings == facts.fatal == facts.out_of_memory == ()


def test_piecewise_graphs_alone_are_captured_too() -> None:
    line = "[12/20/2025-04:21:37] [TRT-LLM] [I] Running piecewise CUDA graph warmup..."
    assert Stage.CAPTURED in read(*LOADED, line, UP).stages


def test_a_server_that_is_up_and_spoke_of_no_graphs_captured_none() -> None:
    assert read(*LOADED, UP).stages[-1] is Stage.COMPILED


def test_memory_that_ran_out() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert read("Traceback (most recent call last):", line).out_of_memory == (line,)
    tuning = f"[12/20/2025-04:21:37] [TRT-LLM] [W] [Autotuner] Failed: {line}"
    facts = read(tuning, UP)
    assert (facts.out_of_memory, facts.warnings) == ((), (tuning,)), "tuning goes on without it"


def test_downgrades_are_kept() -> None:
    skipped = "[12/20/2025-04:21:37] [TRT-LLM] [W] Skipping piecewise CUDA graph capture for 8192"
    shorter = "[12/20/2025-04:21:10] [TRT-LLM] [W] Adjusted max_seq_len to 8224"
    other = "[12/20/2025-04:21:10] [TRT-LLM] [W] Something else"
    assert read(skipped, shorter, other).warnings == (skipped, shorter)


def test_what_ended_it() -> None:
    option = "Error: No such option: --confg"
    assert read(option).fatal == (option,)
    cause = "ValueError: max_batch_size must equal max(batch_sizes)"
    trace = ("Traceback (most recent call last):", '  File "a.py", line 1', cause)
    assert read(*trace).fatal == (cause,)
    assert read(*LOADED, UP, *trace).fatal == (), "one after the start ended a request"
    logged = "[12/20/2025-04:21:10] [TRT-LLM] [E] Traceback (most recent call last):"
    assert read(logged, cause).fatal == (), "it was caught and logged"


def test_a_request_may_say_anything() -> None:
    said = "[12/20/2025-04:21:10] [TRT-LLM] [I] prompt: CUDA out of memory, Fatal error"
    rank = "[12/20/2025-04:21:10] [TRT-LLM] [RANK 1] [I] prompt: out of memory"
    assert read(said, rank) == LogFacts(stages=(Stage.STARTED,))


def test_a_capture_by_a_server_that_is_up_is_told() -> None:
    asked = "INFO: prompt: '[TRT-LLM] [I] Run generation only CUDA graph warmup for batch size=1'"
    facts = read(*LOADED, *CAPTURE, UP, asked, *CAPTURE)
    assert facts.late_work == ("capture of the generation only graph of bucket 64",)
    assert read(*LOADED, *CAPTURE, UP).late_work == ()

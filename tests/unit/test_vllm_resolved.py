"""What vLLM's core decides of its graphs and its attention, by its log."""

from pathlib import Path

import pytest

from canaryctl.runtimes.engines.vllm_log import read_vllm_log

DATA = Path(__file__).parents[1] / "data" / "vllm"

PIECEWISE = (
    "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with FlexAttentionBackend backend (support: "
    "AttentionCGSupport.NEVER); setting cudagraph_mode=PIECEWISE because attention is compiled "
    "piecewise"
)
INITIALISED = "init engine (profile, create kv cache, warmup model) took 36.50 s"


def line(text: str, level: str = "WARNING", place: str = "compilation.py:1389") -> str:
    return f"(EngineCore pid=387) {level} 03-08 16:44:28 [{place}] {text}"


def captured(text: str) -> str:
    took = "Graph capturing finished in 2.121 secs, took 0.158203 GiB"
    return line(f"{took}, as {text}", "INFO", "gpu_model_runner.py:6707")


@pytest.mark.parametrize("recorded", ["graphs", "nine", "planned", "eager", "oom-capture"])
def test_the_attention_backend_of_a_recorded_start(recorded: str) -> None:
    log = (DATA / f"0.25.1-h200/engine-{recorded}.log").read_text("utf-8").splitlines()
    facts = read_vllm_log(log)
    assert facts.resolved["attention_backend"] == "FLASH_ATTN"
    assert facts.resolved_by["attention_backend"].startswith("Using FLASH_ATTN attention backend")


def test_a_cpu_says_nothing_of_it() -> None:
    log = (DATA / "0.32.0-cpu/started.log").read_text("utf-8").splitlines()
    facts = read_vllm_log(log)
    assert (facts.resolved, facts.resolved_by) == ({}, {})


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("cuda.py:416", "Using AttentionBackendEnum.FLASHINFER backend."),
        ("platforms/cuda.py:416", "Using FLASHINFER backend."),
        ("cuda.py:477", "Using FLASHINFER attention backend out of potential backends: ['X']."),
        ("rocm.py:557", "Using FLASHINFER backend (selected via --attention-backend)."),
        ("rocm.py:611", "Using FLASHINFER backend out of potential backends: ['X']."),
    ],
)
def test_every_wording_of_an_attention_backend(place: str, text: str) -> None:
    said = line(text, "INFO", place)
    assert read_vllm_log([said]).resolved == {"attention_backend": "FLASHINFER"}
    assert read_vllm_log([said]).resolved_by == {"attention_backend": text}


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("ssu_dispatch.py:635", "Using TRITON Mamba SSU backend."),
        ("quark_moe.py:1651", "Using TRITON backend for mxfp4"),
        ("cuda.py:547", "Using backend FLASH_ATTN for vit attention"),
        ("cpu.py:312", "Using BF16 SSM state storage for the CPU accelerated GDN backend."),
    ],
)
def test_backends_of_other_things_are_none(place: str, text: str) -> None:
    assert read_vllm_log([line(text, "INFO", place)]).resolved == {}


def test_layers_of_several_kinds_have_several() -> None:
    lines = [
        line(f"Using {name} attention backend out of potential backends: []", "INFO", "cuda.py:4")
        for name in ("TRITON_ATTN", "FLASH_ATTN", "TRITON_ATTN")
    ]
    assert read_vllm_log(lines).resolved == {"attention_backend": "FLASH_ATTN,TRITON_ATTN"}


# As 0.20 to 0.33 word it, each after the mode that it ends in.
LOWERED = """
PIECEWISE CUDAGraphMode.FULL_AND_PIECEWISE is not supported with X backend (support:
AttentionCGSupport.NEVER); setting cudagraph_mode=PIECEWISE because attention is compiled piecewise

NONE CUDAGraphMode.FULL is not supported with X backend (support: AttentionCGSupport.NEVER);
setting cudagraph_mode=NONE because attention is not compiled piecewise

FULL_AND_PIECEWISE CUDAGraphMode.FULL is not supported with X backend (support:
AttentionCGSupport.UNIFORM_BATCH); setting cudagraph_mode=FULL_AND_PIECEWISE

FULL_DECODE_ONLY CUDAGraphMode.FULL is not supported with X backend (support:
AttentionCGSupport.UNIFORM_BATCH); setting cudagraph_mode=FULL_DECODE_ONLY

NONE CUDAGraphMode.FULL_DECODE_ONLY is not supported with spec-decode for attention backend X
(support: AttentionCGSupport.NEVER); setting cudagraph_mode=NONE

FULL_DECODE_ONLY Cudagraph mode FULL_AND_PIECEWISE requires piecewise capture, but the loaded model
provides neither a compiled submodule nor breakable CUDA graphs. Overriding to FULL_DECODE_ONLY.

NONE Cudagraph mode PIECEWISE is not compatible with compilation mode 0. Overriding to NONE.

PIECEWISE KV connector X requires PIECEWISE CUDA graph mode due to layerwise async operations that
cannot be captured in CUDA graphs. Overriding cudagraph_mode from FULL to PIECEWISE.

NONE Piecewise compilation with empty splitting_ops does not contain piecewise cudagraph. Setting
cudagraph_mode to NONE. Hint: If you are using attention backends that support cudagraph, consider
manually setting cudagraph_mode to FULL or FULL_DECODE_ONLY to enable full cudagraphs.
"""


@pytest.mark.parametrize(
    ("mode", "text"),
    [" ".join(said.split()).split(" ", 1) for said in LOWERED.split("\n\n")],
)
def test_every_wording_of_a_mode_that_is_another_than_asked(mode: str, text: str) -> None:
    facts = read_vllm_log([line(text)])
    assert facts.resolved == {"graph_mode": mode}
    assert facts.resolved_by == {"graph_mode": text}


def test_the_last_decision_counts_and_is_told_by_the_line_that_made_it() -> None:
    first = PIECEWISE.replace("PIECEWISE because", "FULL_DECODE_ONLY because")
    facts = read_vllm_log([line(first), line(PIECEWISE), captured("PIECEWISE of 1,2,4")])
    assert facts.resolved == {"graph_mode": "PIECEWISE", "graph_sizes": "1,2,4"}
    assert facts.resolved_by["graph_mode"] == PIECEWISE
    other = read_vllm_log([line(PIECEWISE), captured("FULL of 1,2,4")])
    assert other.resolved["graph_mode"] == "FULL"
    assert other.resolved_by["graph_mode"].startswith("Graph capturing finished")


def test_of_decodes_alone_the_log_says_no_whole_grid() -> None:
    facts = read_vllm_log([captured("FULL_DECODE_ONLY of 1,2")])
    assert facts.resolved == {"graph_mode": "FULL_DECODE_ONLY"}


@pytest.mark.parametrize(
    "text",
    [
        "Skipping CUDA graph capture. To turn on CUDA graph capture, ensure `cudagraph_mode` was …",
        "Skipping encoder and decoder CUDA graph capture. To enable encoder capture, …",
    ],
)
def test_a_capture_that_was_skipped(text: str) -> None:
    facts = read_vllm_log([line(PIECEWISE), line(text)])
    assert facts.resolved == {"graph_mode": "NONE", "graph_sizes": "none"}


def test_sizes_that_were_dropped_are_the_words_for_those_that_are_left() -> None:
    dropped = (
        "cudagraph_capture_sizes specified in compilation_config [1, 2, 16384] is overridden by "
        "config [1, 2]"
    )
    asked = read_vllm_log([line(dropped)])
    assert asked.resolved == {}, "the page has them, and nothing is captured yet"
    assert asked.resolved_by == {"graph_sizes": dropped}
    done = read_vllm_log([line(dropped), captured("FULL of 1,2")])
    assert done.resolved["graph_sizes"] == "1,2"
    assert done.resolved_by["graph_sizes"] == dropped


def test_what_is_logged_once_it_has_initialised_decides_nothing() -> None:
    for text in (PIECEWISE, "Skipping CUDA graph capture."):
        assert read_vllm_log([line(INITIALISED, "INFO"), line(text)]).resolved == {}

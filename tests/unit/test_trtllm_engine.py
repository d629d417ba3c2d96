"""Command lines, YAML, grid and faults of the TensorRT-LLM adapter."""

from typing import Any

import pytest
import yaml

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import Signal
from canaryctl.runtimes.engines.base import FILES
from canaryctl.runtimes.engines.trtllm import CONFIG, TrtllmEngine
from canaryctl.runtimes.spec import RuntimeSpec
from tests.support.specs import changed

ENGINE = TrtllmEngine()
SIZES = [1, 2, 4, 8, 16]


def spec(**changes: Any) -> RuntimeSpec:
    document: dict[str, Any] = {
        "engine": {"name": "trtllm", "version": "1.2.0", "venv": "/opt/trtllm"},
        "model": {"id": "Qwen/Qwen3-0.6B"},
        "limits": {"max_num_seqs": 64, "max_num_batched_tokens": 2048},
    }
    return changed(document, **changes)


def argv(runtime: RuntimeSpec) -> tuple[str, ...]:
    return ENGINE.launch(runtime, host="127.0.0.1", port=8123).argv


def config(runtime: RuntimeSpec) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(
        ENGINE.launch(runtime, host="127.0.0.1", port=8123).files[CONFIG]
    )
    return document


def test_a_plain_runtime() -> None:
    assert ENGINE.check(spec()) == ()
    assert argv(spec()) == (
        "/opt/trtllm/bin/trtllm-serve",
        "Qwen/Qwen3-0.6B",
        "--host=127.0.0.1",
        "--port=8123",
        "--backend=pytorch",
        "--max_batch_size=64",
        "--max_num_tokens=2048",
        "--max_seq_len=4096",
        "--tp_size=1",
        "--pp_size=1",
        "--kv_cache_free_gpu_memory_fraction=0.9",
        f"--config={FILES}/trtllm.yaml",
    )
    assert config(spec()) == {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "cuda_graph_config": {"enable_padding": True},
        "torch_compile_config": {"enable_piecewise_cuda_graph": True},
    }


@pytest.mark.parametrize(
    ("version", "option"),
    [("1.1.0", "extra_llm_api_options"), ("1.2.0rc6", "config"), ("1.3.0", "config")],
)
def test_the_file_is_given_by_the_name_that_the_version_knows(version: str, option: str) -> None:
    assert f"--{option}={FILES}/trtllm.yaml" in argv(spec(engine__version=version))


@pytest.mark.parametrize(
    ("mode", "decode", "piecewise"),
    [
        ("NONE", None, None),
        ("PIECEWISE", None, [1, 2, 4, 8, 16, 512]),
        ("FULL_DECODE_ONLY", SIZES, None),
        ("FULL_AND_PIECEWISE", SIZES, [1, 2, 4, 8, 16, 512]),
    ],
)
def test_the_graphs_of_each_mode(
    mode: str, decode: list[int] | None, piecewise: list[int] | None
) -> None:
    sizes = {"capture_sizes": [*SIZES, 512]} if mode != "NONE" else {}
    written = config(spec(graph={"mode": mode, **sizes}))
    assert written["cuda_graph_config"] == (
        None
        if decode is None
        else {"batch_sizes": decode, "max_batch_size": 16, "enable_padding": True}
    )
    assert written.get("torch_compile_config") == (
        None
        if piecewise is None
        else {"enable_piecewise_cuda_graph": True, "capture_num_tokens": piecewise}
    )


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (256, (1, 2, 4, *range(8, 129, 8))),
        (128, (1, 2, 4, *range(8, 129, 8))),
        (64, (1, 2, 4, *range(8, 65, 8))),
        (20, (1, 2, 4, 8, 16, 20)),  # padding to the most sequences takes the place of 24
        (3, (1, 2, 3)),
    ],
)
def test_the_default_grid_ends_at_the_most_sequences(most: int, expected: tuple[int, ...]) -> None:
    runtime = spec(limits__max_num_seqs=most, graph={"mode": "FULL_DECODE_ONLY"})
    assert ENGINE.resolved_grid(runtime) == expected


def test_the_resolved_grid_is_of_both_kinds() -> None:
    sizes = {"capture_sizes": [*SIZES, 512]}
    assert ENGINE.resolved_grid(spec(graph=sizes)) == (*SIZES, 512)
    piecewise = spec(graph={"mode": "PIECEWISE", **sizes})
    assert ENGINE.resolved_grid(piecewise) == (*SIZES, 512)
    assert ENGINE.resolved_grid(ENGINE.eager(piecewise)) == ()


def test_what_the_command_line_has_no_option_for_is_in_the_file() -> None:
    runtime = spec(
        model__revision="abc",
        model__kv_cache_dtype="fp8",
        attention_backend="FLASHINFER",
        engine__args={
            "num_postprocess_workers": 2,
            "trust_remote_code": True,
            "custom_module_dirs": ["/a", "/b"],
            "kv_cache_config.enable_block_reuse": False,
            "moe_config.backend": "CUTLASS",
            "torch_compile_config.max_num_streams": 2,
        },
        gpu__memory_fraction=0.5,
    )
    assert ENGINE.check(runtime) == ()
    written = config(runtime)
    assert written["revision"] == "abc"
    assert written["attn_backend"] == "FLASHINFER"
    # A group in the file replaces the command line's: it must say all of it.
    assert written["kv_cache_config"] == {
        "dtype": "fp8",
        "enable_block_reuse": False,
        "free_gpu_memory_fraction": 0.5,
    }
    assert written["moe_config"] == {"backend": "CUTLASS"}
    assert written["torch_compile_config"] == {
        "enable_piecewise_cuda_graph": True,
        "max_num_streams": 2,
    }
    assert argv(runtime)[-4:] == (
        "--custom_module_dirs=/a",
        "--custom_module_dirs=/b",
        "--num_postprocess_workers=2",
        "--trust_remote_code",
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine__version": "1.0.0"}, "1.1 to 1.3"),
        ({"engine__version": "latest"}, "expected one such as"),
        ({"engine__venv": None}, "exactly one of command, venv and image"),
        ({"engine__args": {"max_batch_size": 8}}, "set by limits.max_num_seqs"),
        ({"engine__args": {"cuda_graph_config.enable_padding": False}}, "graph.mode"),
        ({"engine__args": {"kv_cache_config.dtype": "fp8"}}, "model.kv_cache_dtype"),
        ({"engine__args": {"backend": "tensorrt"}}, "cannot be given"),
        ({"engine__args": {"config": "/etc/x.yaml"}}, "its digest"),
        ({"engine__args": {"max-beam-width": 2}}, "without the leading dashes"),
        ({"engine__args": {"trust_remote_code": False}}, "true or left out"),
        ({"engine__args": {"custom_module_dirs": []}}, "empty list"),
        ({"engine__args": {"a": 1, "a.b": 2}}, "leave one out"),
        ({"engine__env": {"PROMETHEUS_MULTIPROC_DIR": "/x"}}, "mix their metrics"),
        ({"model__quantization": "fp8"}, "from the checkpoint"),
        ({"model__lora": ["a=/b"]}, "model.lora"),
        ({"speculative": {"method": "mtp", "num_speculative_tokens": 1}}, "speculative"),
        ({"limits__max_num_batched_tokens": 32}, "below max_num_seqs 64"),
        ({"warmup_plan__decode_buckets": [65]}, "65 can never run"),
        ({"graph": {"mode": "FULL"}}, "expected FULL_DECODE_ONLY or FULL_AND_PIECEWISE"),
        ({"graph": {"mode": "NONE", "capture_sizes": [1]}}, "no effect with mode NONE"),
        ({"graph": {"capture_sizes": []}}, "is empty"),
        ({"graph": {"mode": "PIECEWISE"}}, "give them"),
        ({"graph": {"capture_sizes": [1, 4096]}}, "4096 exceed limits.max_num_batched_tokens"),
        (
            {"graph": {"mode": "FULL_DECODE_ONLY", "capture_sizes": [1, 65]}},
            "65 exceed limits.max_num_seqs",
        ),
        ({"graph": {"capture_sizes": [512]}}, "no decode step could replay a graph"),
        ({"gpu__count": 0}, "runs on GPUs alone"),
        ({"gpu__count": 2}, "tensor 1 × pipeline 1 needs 1"),
        ({"gpu__count": 4, "parallel": {"tensor": 4, "expert": 3}}, "must divide"),
    ],
)
def test_a_fault_says_what_to_do(changes: dict[str, Any], said: str) -> None:
    faults = ENGINE.check(spec(**changes))
    assert any(said in fault for fault in faults), faults


def test_a_prefix_of_an_option_is_another_option() -> None:
    # Its command line takes no abbreviations, so "max_beam_width" is not "max_batch_size".
    assert ENGINE.check(spec(engine__args={"max_beam_width": 2})) == ()


def test_requests_name_the_model_as_the_server_does() -> None:
    assert ENGINE.model_name(spec()) == "Qwen/Qwen3-0.6B"
    assert ENGINE.model_name(spec(model__id="/opt/models/qwen")) == "qwen"
    assert ENGINE.model_name(spec(engine__args={"served_model_name": "chat"})) == "chat"
    named: dict[str, Any] = {"engine__args": {"served_model_name": "chat"}}
    assert ENGINE.check(spec(engine__version="1.3.0", **named)) == ()
    assert any("from 1.3 on" in fault for fault in ENGINE.check(spec(**named)))


@pytest.mark.parametrize(
    ("version", "ttft", "has_prefill"),
    [
        ("1.1.0", "time_to_first_token_seconds", False),
        ("1.2.1", "trtllm_time_to_first_token_seconds", False),
        ("1.3.0", "trtllm_time_to_first_token_seconds", True),
    ],
)
def test_metrics_by_version(version: str, ttft: str, has_prefill: bool) -> None:
    metrics = ENGINE.metrics(version)
    assert metrics[Signal.TTFT].name == ttft
    assert (Signal.PREFILL in metrics) is has_prefill
    assert "finished_reason" in metrics[Signal.REQUESTS].sum_over
    assert not {Signal.STEPS, Signal.GRID, Signal.ERRORS, Signal.RUNNING} & set(metrics)


def test_an_unknown_version_has_no_metrics() -> None:
    with pytest.raises(InputError, match=r"1\.1 to 1\.3"):
        ENGINE.metrics("0.21.0")

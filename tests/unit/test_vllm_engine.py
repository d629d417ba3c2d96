"""Command lines and faults of the vLLM adapter."""

import json
from typing import Any

import pytest

from canaryctl.common.errors import InputError
from canaryctl.runtimes.engines.base import runs_as
from canaryctl.runtimes.engines.vllm import PROBE, VllmEngine
from canaryctl.runtimes.spec import GraphMode, RuntimeSpec
from tests.support.specs import changed

ENGINE = VllmEngine()


def spec(**changes: Any) -> RuntimeSpec:
    document: dict[str, Any] = {
        "engine": {"name": "vllm", "version": "0.25.1", "venv": "/opt/vllm"},
        "model": {"id": "Qwen/Qwen3-0.6B"},
    }
    return changed(document, **changes)


def argv(runtime: RuntimeSpec) -> tuple[str, ...]:
    return ENGINE.launch(runtime, host="127.0.0.1", port=8123).argv


def option(runtime: RuntimeSpec, name: str) -> str | None:
    found = [word.partition("=")[2] for word in argv(runtime) if word.startswith(f"--{name}=")]
    assert len(found) <= 1
    return found[0] if found else None


def test_a_plain_runtime() -> None:
    assert ENGINE.check(spec()) == ()
    assert argv(spec()) == (
        "/opt/vllm/bin/python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model=Qwen/Qwen3-0.6B",
        "--served-model-name=Qwen/Qwen3-0.6B",
        "--max-num-seqs=256",
        "--max-num-batched-tokens=8192",
        "--max-model-len=4096",
        '--compilation-config={"cudagraph_mode":"FULL_AND_PIECEWISE"}',
        "--gpu-memory-utilization=0.9",
        "--host=127.0.0.1",
        "--port=8123",
        "--cudagraph-metrics",
        "--disable-uvicorn-access-log",
    )


def test_every_typed_field_becomes_its_option() -> None:
    runtime = spec(
        model__revision="abc",
        model__tokenizer="tok",
        model__quantization="fp8",
        model__kv_cache_dtype="fp8_e4m3",
        model__lora=["a=/lora/a", "b=/lora/b"],
        parallel={"tensor": 2, "pipeline": 2, "expert": 2},
        gpu={"count": 4, "memory_fraction": 0.45},
        attention_backend="FLASH_ATTN",
        graph={"mode": "FULL", "capture_sizes": [4, 8]},
        speculative={"method": "ngram", "num_speculative_tokens": 3},
        limits={"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 1024},
    )
    assert ENGINE.check(runtime) == ()
    words = argv(runtime)
    for word in (
        "--revision=abc",
        "--tokenizer=tok",
        "--quantization=fp8",
        "--kv-cache-dtype=fp8_e4m3",
        "--enable-lora",
        "--tensor-parallel-size=2",
        "--pipeline-parallel-size=2",
        "--enable-expert-parallel",
        "--gpu-memory-utilization=0.45",
        "--attention-backend=FLASH_ATTN",
        "--max-num-seqs=64",
        "--max-num-batched-tokens=2048",
        "--max-model-len=1024",
    ):
        assert word in words
    at = words.index("--lora-modules")
    assert words[at + 1 : at + 3] == ("a=/lora/a", "b=/lora/b")
    assert json.loads(option(runtime, "compilation-config") or "") == {
        "cudagraph_mode": "FULL",
        "cudagraph_capture_sizes": [4, 8],
    }
    assert json.loads(option(runtime, "speculative-config") or "") == {
        "method": "ngram",
        "num_speculative_tokens": 3,
    }


def test_without_a_gpu_no_option_speaks_of_one() -> None:
    runtime = spec(gpu__count=0, graph__mode="NONE")
    assert ENGINE.check(runtime) == ()
    assert "--enforce-eager" in argv(runtime)
    assert not any("gpu" in word or "compilation" in word for word in argv(runtime))


def test_other_arguments_are_passed_through() -> None:
    args = {
        "load-format": "dummy",
        "seed": 7,
        "enable-prefix-caching": False,
        "trust-remote-code": True,
        "served-model-name": ["chat", "other"],
    }
    runtime = spec(engine__args=args)
    assert ENGINE.check(runtime) == ()
    assert argv(runtime)[-7:] == (
        "--no-enable-prefix-caching",
        "--load-format=dummy",
        "--seed=7",
        "--served-model-name",
        "chat",
        "other",
        "--trust-remote-code",
    )
    assert ENGINE.model_name(runtime) == "chat"
    assert ENGINE.model_name(spec()) == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/opt/python", "-m", "vllm.x"], ("/opt/python", "-m", "vllm.x", "--model=m")),
        (["vllm", "serve"], ("vllm", "serve", "m")),
    ],
)
def test_a_command_stands_before_the_options(command: list[str], expected: tuple[str, ...]) -> None:
    runtime = spec(engine__venv=None, engine__command=command, model__id="m")
    assert ENGINE.check(runtime) == ()
    assert argv(runtime)[: len(expected)] == expected


def test_the_environment_makes_the_engine_tell() -> None:
    launch = ENGINE.launch(
        spec(graph__capture_sizes=[1, 2], engine__env={"VLLM_PLUGINS": "mine", "X": "1"}),
        host="127.0.0.1",
        port=1,
    )
    assert launch.env == {
        "CANARYCTL_REQUESTED_MODE": "FULL_AND_PIECEWISE",
        "CANARYCTL_REQUESTED_SIZES": "1,2",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_PLUGINS": "mine,canaryctl_probe",
        "X": "1",
    }
    assert launch.pythonpath == (str(PROBE),)
    entry_points = next(PROBE.glob("canaryctl_probe-*.dist-info")) / "entry_points.txt"
    assert "canaryctl_probe.plugin:CanaryctlProbe" in entry_points.read_text()
    assert "canaryctl_probe.start:say_in_full" in entry_points.read_text()


@pytest.mark.parametrize(
    ("version", "count", "own", "expected", "told"),
    [
        ("0.29.0", 1, None, "0", "vllm 0.29.0 (model runner V1)"),
        ("0.30.0", 1, None, None, "vllm 0.30.0 (model runner V2)"),
        ("0.30.0", 1, "0", "0", "vllm 0.30.0 (model runner V1)"),
        ("0.25.1", 0, None, None, "vllm 0.25.1"),
        ("0.25.1", 1, "1", "1", "vllm 0.25.1 (model runner V2)"),
    ],
)
def test_the_older_model_runner_is_asked_for_where_the_newer_is_mute(
    version: str, count: int, own: str | None, expected: str | None, told: str
) -> None:
    env = {} if own is None else {"VLLM_USE_V2_MODEL_RUNNER": own}
    runtime = spec(engine__version=version, gpu__count=count, engine__env=env)
    launch = ENGINE.launch(runtime, host="127.0.0.1", port=1)
    assert launch.env.get("VLLM_USE_V2_MODEL_RUNNER") == expected
    assert runs_as(ENGINE, runtime) == told


def test_the_eager_form_differs_in_its_graphs_alone() -> None:
    runtime = spec(graph__capture_sizes=[1, 2])
    eager = ENGINE.eager(runtime)
    assert eager.graph.mode is GraphMode.NONE
    assert ENGINE.check(eager) == ()
    assert eager.model_copy(update={"graph": runtime.graph}) == runtime
    assert "--enforce-eager" in argv(eager)
    with pytest.raises(InputError, match="no eager form"):
        ENGINE.eager(eager)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"graph__capture_sizes": [8, 1]}, (1, 8)),
        ({"graph__mode": "NONE"}, ()),
        ({"limits__max_num_seqs": 10}, (1, 2, 4, 8, 16)),
        (
            {"limits__max_num_seqs": 10, "engine__version": "0.29.0"},
            (1, 2, 4, 8, 10, 16),
        ),
        (
            {
                "limits__max_num_seqs": 10,
                "limits__max_num_batched_tokens": 19,
                "engine__version": "0.20.0",
            },
            (1, 2, 4, 8, 16),
        ),
        (
            {"limits__max_num_seqs": 10, "limits__max_num_batched_tokens": 19},
            (1, 2, 4, 8, 16, 19),
        ),
    ],
)
def test_the_resolved_grid(changes: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert ENGINE.resolved_grid(spec(**changes)) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine__version": "0.19.1"}, ["engine.version", "0.19.1", "0.20 to 0.33"]),
        ({"engine__version": "latest"}, ["engine.version", "'latest'"]),
        ({"engine__venv": None}, ["none", "exactly one of command, venv and image"]),
        ({"engine__image": "vllm:1"}, ["venv and image", "exactly one"]),
        ({"engine__venv": "venvs/vllm"}, ["engine.venv", "'venvs/vllm'", "absolute"]),
        ({"model__id": "./models/tiny"}, ["model.id", "'./models/tiny'", "absolute"]),
        ({"graph__capture_sizes": [8, 16384]}, ["16384", "max_num_batched_tokens 8192"]),
        ({"graph__capture_sizes": []}, ["capture_sizes is empty"]),
        (
            {"graph__capture_sizes": [8], "graph__mode": "NONE"},
            ["capture_sizes has no effect"],
        ),
        (
            {"graph__capture_sizes": [8, 512], "graph__mode": "FULL_DECODE_ONLY"},
            ["512 are never captured", "at most 256 tokens"],
        ),
        (
            {
                "graph__capture_sizes": [1, 8],
                "speculative": {"method": "ngram", "num_speculative_tokens": 3},
            },
            ["rounds 1, 8 to 4, 8", "multiples of 4"],
        ),
        ({"gpu__count": 0}, ["gpu.count 0", "graph.mode: NONE"]),
        ({"gpu__count": 2}, ["gpu.count is 2", "needs 1"]),
        ({"parallel__expert": 4}, ["parallel.expert is 4", "1 (off) or 1"]),
        ({"limits__max_num_batched_tokens": 128}, ["128", "max_num_seqs 256"]),
        ({"warmup_plan__decode_buckets": [300]}, ["decode_buckets", "300", "max_num_seqs"]),
        (
            {"warmup_plan__mixed_token_buckets": [9000]},
            ["mixed_token_buckets", "9000", "max_num_batched_tokens"],
        ),
        ({"model__lora": ["/lora/a"]}, ["model.lora", "NAME=PATH"]),
        ({"engine__env": {"PROMETHEUS_MULTIPROC_DIR": "/somewhere"}}, ["PROMETHEUS_MULTIPROC_DIR"]),
        ({"engine__args": {"max-num-seqs": 4}}, ["limits.max_num_seqs"]),
        ({"engine__args": {"max-num-se": 4}}, ["limits.max_num_seqs"]),
        ({"engine__args": {"no-enforce-eager": True}}, ["graph.mode: NONE"]),
        ({"engine__args": {"compilation-config.level": 3}}, ["graph.mode"]),
        ({"engine__args": {"config": "x.yaml"}}, ["options in a file"]),
        ({"engine__args": {"port": 1}}, ["engine.args.port", "chosen when it is started"]),
        ({"engine__args": {"disable-log-stats": True}}, ["silences the metrics"]),
        ({"engine__args": {"--seed": 1}}, ["'--seed'", "without the leading"]),
        ({"engine__args": {"max_num_seqs": 1}}, ["'max_num_seqs'", "long option"]),
        ({"engine__args": {"middleware": []}}, ["engine.args.middleware is an empty list"]),
    ],
)
def test_faults_say_what_was_found_and_what_to_do(
    changes: dict[str, Any], words: list[str]
) -> None:
    (fault,) = ENGINE.check(spec(**changes))
    for word in words:
        assert word in fault


def test_all_faults_are_told_at_once() -> None:
    runtime = spec(engine__version="0.1.0", gpu__count=2, engine__args={"model": "x"})
    assert len(ENGINE.check(runtime)) == 3


def test_options_that_resemble_a_typed_one_pass() -> None:
    args = {"tokenizer-mode": "auto", "model-impl": "auto", "max-loras": 2, "hf-overrides": "{}"}
    assert ENGINE.check(spec(engine__args=args)) == ()

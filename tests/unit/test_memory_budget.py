"""The memory budget: what is known of a model, what is left, what cannot fit, and what helps."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canaryctl.controller.memory import measured, predicted
from canaryctl.runtimes.engines.registry import ENGINES, FRACTION_OF, engine
from canaryctl.runtimes.machine import Gpu, Installation, Machine
from canaryctl.runtimes.memory_budget import GIB, FractionOf, Sizes, budget
from canaryctl.runtimes.model_size import model_size
from canaryctl.runtimes.preflight import preflight
from canaryctl.runtimes.simulator.config import SimulatorConfig, parse_args
from canaryctl.runtimes.simulator.cost import calibrated
from canaryctl.runtimes.simulator.graphs import GraphSet
from canaryctl.runtimes.simulator.memory import plan_memory
from canaryctl.runtimes.spec import RuntimeSpec

QWEN3_0_6B: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}


def spec(name: str = "vllm", **sections: Any) -> RuntimeSpec:
    return RuntimeSpec.model_validate(
        {
            "engine": {"name": name, "version": "0.25.1", "venv": "/venv"},
            "model": {"id": "m"},
            "limits": {"max_model_len": 1024, "max_num_seqs": 64},
            "memory": {"safety_margin_gib": 1},
            **sections,
        }
    )


KNOWN = Sizes(
    gpu_bytes=100 * GIB,
    weights_bytes=20 * GIB,
    kv_bytes_per_token=GIB // 1024,
    workspace_bytes=2 * GIB,
    graph_bytes=3 * GIB,
)


@pytest.mark.parametrize(
    ("fraction_of", "kv_gib"),
    [(FractionOf.GPU, 68), (FractionOf.GPU_WITH_GRAPHS, 65), (FractionOf.FREE, 70.2)],
)
def test_what_is_left_for_the_cache(fraction_of: FractionOf, kv_gib: float) -> None:
    found = budget(spec(), KNOWN, fraction_of)
    assert found.kv_cache_bytes == pytest.approx(kv_gib * GIB, abs=2)
    assert found.kv_cache_tokens == pytest.approx(kv_gib * 1024, abs=1)
    assert found.max_concurrency == 64
    assert found.fault is None
    assert found.unknown == ()


def test_what_cannot_fit_within_is_refused_with_what_to_change() -> None:
    small = spec(gpu={"memory_fraction": 0.225})
    found = budget(small, KNOWN, FractionOf.GPU)
    assert found.fault == (
        "memory: weights 20.00 GiB and workspace 2.00 GiB leave 0.50 GiB for the KV cache within "
        "gpu.memory_fraction 0.225 of 100.0 GiB, one request of 1024 tokens needs 1.00 GiB; raise "
        "gpu.memory_fraction to 0.23, or lower limits.max_model_len to 512, or take a smaller or "
        "quantized model, or more GPUs (parallel.tensor)"
    )
    inside = budget(spec(gpu={"memory_fraction": 0.25}), KNOWN, FractionOf.GPU_WITH_GRAPHS)
    assert inside.fault is not None
    assert "capture fewer sizes" in inside.fault


def test_graphs_and_the_margin_must_fit_beside() -> None:
    full = spec(gpu={"memory_fraction": 0.97})
    found = budget(full, KNOWN, FractionOf.GPU)
    assert found.fault == (
        "memory: graphs 3.00 GiB and the safety margin 1.00 GiB come beside the engine's share, "
        "and gpu.memory_fraction 0.97 leaves 3.00 GiB; lower gpu.memory_fraction to 0.96, or "
        "capture fewer sizes, or lower memory.safety_margin_gib"
    )
    assert budget(full, KNOWN, FractionOf.GPU_WITH_GRAPHS).fault is None
    shared = spec(gpu={"memory_fraction": 0.97, "share": True})
    assert budget(shared, KNOWN, FractionOf.GPU).fault is None


@settings(deadline=None)
@given(
    st.sampled_from(FractionOf),
    st.floats(0.05, 1),
    *(st.integers(0, 40) for _ in range(4)),
    st.integers(0, 8),
)
def test_what_is_changed_as_told_fits(
    of: FractionOf, fraction: float, weights: int, work: int, graphs: int, margin: int, kv: int
) -> None:
    sizes = Sizes(40 * GIB, weights * GIB, kv * GIB // 1024, work * GIB, graphs * GIB)
    asked = spec(gpu={"memory_fraction": fraction}, memory={"safety_margin_gib": margin})
    fault = budget(asked, sizes, of).fault
    for words, within in (("raise gpu.memory_fraction to ", True), ("lower gpu.", False)):
        if fault is None or words not in fault:
            continue
        told = float(fault.split(words)[1].removeprefix("memory_fraction to ").split(",")[0])
        again = budget(spec(gpu={"memory_fraction": told}, memory=asked.memory), sizes, of).fault
        begin = " leave " if within else "come beside"
        assert again is None or begin not in again


@settings(deadline=None)
@given(st.sets(st.sampled_from(("gpu_bytes", "weights_bytes"))), st.floats(0.01, 1))
def test_the_unknown_is_told_and_never_refuses(names: set[str], fraction: float) -> None:
    nothing = Sizes()
    found = budget(spec(gpu={"memory_fraction": fraction}), nothing, FractionOf.GPU)
    assert found.fault is None
    assert found.kv_cache_bytes is None
    assert len(found.unknown) == 5
    huge = replace(
        KNOWN,
        gpu_bytes=None if "gpu_bytes" in names else KNOWN.gpu_bytes,
        weights_bytes=None if "weights_bytes" in names else 999 * GIB,
    )
    fault = budget(spec(gpu={"memory_fraction": 0.5}), huge, FractionOf.GPU).fault
    assert (fault is None) is bool(names)


def test_every_engine_says_what_its_fraction_is_of() -> None:
    assert FRACTION_OF.keys() == ENGINES.keys()


def model(folder: Path, files: dict[str, int] | None = None, **changes: Any) -> RuntimeSpec:
    shape = {"architectures": ["Qwen3ForCausalLM"], "torch_dtype": "bfloat16", **QWEN3_0_6B}
    (folder / "config.json").write_text(json.dumps({**shape, **changes}))
    for name, size in (files or {}).items():
        (folder / name).write_bytes(b"x" * size)
    return spec(model={"id": str(folder)})


def test_a_models_size_is_that_of_its_files(tmp_path: Path) -> None:
    found = model_size(model(tmp_path, {"a.safetensors": 300, "b.safetensors": 41}))
    assert found.weights_bytes == 341
    assert found.kv_bytes_per_token == 114688  # 2 x 28 layers x 8 heads x 128 x 2 bytes


def test_without_files_the_shape_gives_it(tmp_path: Path) -> None:
    found = model_size(model(tmp_path))
    assert found.weights_bytes is not None
    assert found.weights_bytes / GIB == pytest.approx(1.11, abs=0.01)
    assert "config.json" in found.weights_told


def test_parallel_gpus_share_a_model(tmp_path: Path) -> None:
    of = model(tmp_path, {"a.safetensors": 1000})
    two = of.model_copy(update={"parallel": of.parallel.model_copy(update={"tensor": 2})})
    many = of.model_copy(update={"parallel": of.parallel.model_copy(update={"tensor": 16})})
    assert model_size(of).on_one_gpu(two) == (500, 114688 // 2)
    assert model_size(of).on_one_gpu(many) == (63, 114688 // 8)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"torch_dtype": "float32"}, "kept as float32"),
        ({"architectures": ["MixtralForCausalLM"]}, "no plain decoder"),
        ({"hidden_size": None}, "does not give the shape"),
    ],
)
def test_what_the_folder_does_not_tell_is_unknown(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    found = model_size(model(tmp_path, **changes))
    assert found.weights_bytes is None
    assert told in found.weights_told


def test_caches_that_are_not_of_full_attention_are_unknown(tmp_path: Path) -> None:
    found = model_size(model(tmp_path, layer_types=["full_attention", "sliding_attention"]))
    assert found.kv_bytes_per_token is None
    fp8 = model(tmp_path)
    fp8 = fp8.model_copy(
        update={"model": fp8.model.model_copy(update={"kv_cache_dtype": "fp8_e4m3"})}
    )
    assert model_size(fp8).kv_bytes_per_token == 114688 // 2


def test_a_model_that_is_not_here_is_unknown_until_its_snapshot_is(tmp_path: Path) -> None:
    of = spec(model={"id": "org/name", "revision": "abc"})
    environ = {"HF_HOME": str(tmp_path)}
    assert model_size(of, environ).weights_bytes is None
    folder = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    model(folder, {"a.safetensors": 7})
    assert model_size(of, environ).weights_bytes == 7


GPU = Gpu(0, "NVIDIA H200", 20 * GIB, 20 * GIB, 0, "580.65.06")


def test_preflight_refuses_what_cannot_fit_and_lists_what_is_unknown(tmp_path: Path) -> None:
    vllm = engine("vllm")
    of = model(tmp_path)
    of = of.model_copy(update={"gpu": of.gpu.model_copy(update={"memory_fraction": 0.05})})
    machine = Machine((GPU,))
    memory = predicted(of, vllm, machine)
    assert memory is not None
    assert memory.sizes.graph_bytes is not None  # the calibration is of this model's shape
    installed = Installation(versions={"vllm": "0.25.1", "torch": "2.11.0+cu130"})
    found = preflight(of, vllm, machine, installed, distributions=("vllm",), memory=memory)
    assert any(fault.startswith("memory: weights 1.11 GiB leave") for fault in found.faults)
    assert any(text.startswith("memory of workspace") for text in found.unknown)
    assert predicted(of.model_copy(update={"gpu": of.gpu.model_copy(update={"count": 0})}),
                     vllm, machine) is None  # fmt: skip


def test_graphs_of_another_model_are_unknown(tmp_path: Path) -> None:
    found = predicted(model(tmp_path, num_hidden_layers=30), engine("vllm"), Machine((GPU,)))
    assert found is not None
    assert found.sizes.graph_bytes is None
    assert any("no calibration is of this model" in text for text in found.unknown)


def test_graphs_of_another_model_runner_are_unknown(tmp_path: Path) -> None:
    of = model(tmp_path)
    later = of.model_copy(update={"engine": of.engine.model_copy(update={"version": "0.30.0"})})
    found = predicted(later, engine("vllm"), Machine((GPU,)))
    assert found is not None
    assert found.sizes.graph_bytes is None
    assert any("the engine is vllm 0.30.0 (model runner V2)" in text for text in found.unknown)


@pytest.mark.parametrize("sizes", [None, (1, 2, 4)])
def test_a_simulated_engine_takes_what_is_predicted(sizes: tuple[int, ...] | None) -> None:
    of = spec("simulated", graph={"capture_sizes": sizes}, engine={
        "name": "simulated", "version": "0.25.1", "args": {"weights_gib": 3.0}
    })  # fmt: skip
    found = predicted(of, engine("simulated"), Machine(()))
    assert found is not None
    resolved = engine("simulated").resolved_grid(of)
    config = SimulatorConfig(
        model="m",
        version="0.25.1",
        capture_sizes=sizes,
        max_num_seqs=64,
        max_model_len=1024,
        memory_fraction=0.9,
        args=parse_args(of.engine.args),
    )
    graphs = GraphSet.of("FULL_AND_PIECEWISE", resolved, 64)
    plan = plan_memory(config, graphs, calibrated())
    assert found.parts() == {
        "gpu_total": plan.gpu_bytes,
        "weights": plan.weights_bytes,
        "kv_cache": pytest.approx(plan.kv_bytes, abs=2),
        "workspace": plan.activation_bytes,
        "graphs": plan.graph_bytes,
        "safety_margin": GIB,
    }


def test_what_was_measured_has_the_same_parts() -> None:
    said = {"weights": 5.0, "kv_cache": 7.0, "graphs": 1.0, "gpu_used_after_capture": 15.0}
    assert measured({"memory_bytes": {**said, "gpu_total": 20.0}}) == {
        "gpu_total": 20.0, "weights": 5.0, "kv_cache": 7.0, "workspace": 2.0, "graphs": 1.0,
    }  # fmt: skip
    assert measured({"weights_bytes": 5, "graph_bytes": None}) == {"weights": 5.0}
    # A log tells of one worker, and what the GPUs had in use is of all of them and of others.
    logged = {"weights_bytes": 5, "kv_cache_bytes": 7, "graph_bytes": 1}
    found = measured({**logged, "memory_bytes": {"gpu_used_after_capture": 90.0}})
    assert found == {"weights": 5.0, "kv_cache": 7.0, "graphs": 1.0}
    assert measured({}) == {}

"""What the probe attests of an engine: each fact by itself, and why one is unknown."""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from prometheus_client import CollectorRegistry

from canaryctl.runtimes.probe.canaryctl_probe.facts import IN_THE_LOG, NO_OOM, Facts, read_facts
from canaryctl.runtimes.probe.canaryctl_probe.gpus import Gpus, read_gpus
from canaryctl.runtimes.probe.canaryctl_probe.page import RecorderCollector
from canaryctl.runtimes.probe.canaryctl_probe.recorder import Recorder
from canaryctl.runtimes.probe.canaryctl_probe.revision import loaded_revision
from canaryctl.runtimes.probe.canaryctl_probe.unknown import UnknownError

COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"
DIGEST = "sha256:" + "a" * 64
GIB = 2**30


class NvmlError(Exception):
    """As the bindings' own."""


class Nvml:
    """The bindings to NVML, of a host with two GPUs. ``asked``: what was called."""

    NVMLError = NvmlError

    def __init__(self, *, driver: str | bytes = "580.159.04", broken: str = "") -> None:
        self.asked: list[str] = []
        self._driver, self._broken = driver, broken

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            self.asked.append(f"{name}{given}")
            if name == self._broken:
                raise NvmlError("Unknown Error")
            return getattr(self, f"_{name}", lambda *_: None)(*given)

        if name.startswith("_"):
            raise AttributeError(name)
        return call

    def _nvmlSystemGetDriverVersion(self) -> str | bytes:  # noqa: N802  NVML's name
        return self._driver

    def _nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"gpu{index}"

    def _nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:  # noqa: N802
        return uuid.decode()

    def _nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return "NVIDIA L4" if handle == "gpu1" else "NVIDIA H200"

    def _nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=(1 if handle == "gpu1" else 30) * GIB, total=141 * GIB)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    found = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    return found


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    def touched(*_: object) -> None:
        raise AssertionError("CUDA was initialised in the API server")

    found = SimpleNamespace(
        __version__="2.11.0+cu130",
        version=SimpleNamespace(cuda="13.0"),
        cuda=SimpleNamespace(
            nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
            init=touched,
            current_device=touched,
            get_device_name=touched,
            mem_get_info=touched,
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


def config(**changes: Any) -> SimpleNamespace:
    """vLLM's configuration as its API server has it once the engine core is ready."""
    sections: dict[str, Any] = {
        "model_config": SimpleNamespace(
            model="Qwen/Qwen3-0.6B",
            revision=None,
            dtype="torch.bfloat16",
            quantization=None,
            max_model_len=2048,
            hf_config=SimpleNamespace(_commit_hash=COMMIT),
        ),
        "cache_config": SimpleNamespace(
            block_size=16,
            cache_dtype="auto",
            num_gpu_blocks=15226,
            kv_cache_memory_bytes=None,
            kv_cache_size_tokens=243616,
            kv_cache_max_concurrency=118.95,
        ),
        "parallel_config": SimpleNamespace(
            world_size=1,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_size=1,
            enable_expert_parallel=False,
        ),
        "scheduler_config": SimpleNamespace(max_num_seqs=128, max_num_batched_tokens=8192),
        "attention_config": SimpleNamespace(backend=SimpleNamespace(name="FLASH_ATTN")),
        "speculative_config": None,
        "compilation_config": SimpleNamespace(
            mode=SimpleNamespace(name="VLLM_COMPILE"),
            cudagraph_mode=SimpleNamespace(name="FULL_AND_PIECEWISE"),
            cudagraph_capture_sizes=[4, 2, 1],
            compilation_time=0.0,
        ),
        "observability_config": SimpleNamespace(cudagraph_metrics=True),
    }
    return SimpleNamespace(**(sections | changes))


ENVIRONMENT = {
    "CANARYCTL_ARTIFACT_DIGEST": DIGEST,
    "CANARYCTL_REQUESTED_MODE": "FULL_AND_PIECEWISE",
    "CANARYCTL_REQUESTED_SIZES": "default",
}


def facts(of: SimpleNamespace | None = None, environment: dict[str, str] | None = None) -> Facts:
    return read_facts(of or config(), "0.25.1", ENVIRONMENT if environment is None else environment)


@pytest.mark.usefixtures("nvml", "torch")
def test_what_runs_is_attested() -> None:
    found = facts()
    assert found.attested == {
        "engine_name": "vllm",
        "engine_version": "0.25.1",
        "torch_version": "2.11.0+cu130",
        "cuda_version": "13.0",
        "nccl_version": "2.28.9",
        "driver_version": "580.159.04",
        "gpu_model": "NVIDIA H200",
        "gpu_count": "1",
        "requested_attention_backend": "FLASH_ATTN",
        "compile_mode": "VLLM_COMPILE",
        "graph_mode": "FULL_AND_PIECEWISE",
        "graph_sizes": "1,2,4",
        "requested_mode": "FULL_AND_PIECEWISE",
        "requested_sizes": "default",
        "model": "Qwen/Qwen3-0.6B",
        "model_revision": COMMIT,
        "dtype": "bfloat16",
        "quantization": "none",
        "kv_cache_dtype": "auto",
        "block_size": "16",
        "max_model_len": "2048",
        "max_num_seqs": "128",
        "max_num_batched_tokens": "8192",
        "tensor_parallel": "1",
        "pipeline_parallel": "1",
        "data_parallel": "1",
        "expert_parallel": "1",
        "speculative_tokens": "0",
        "artifact": DIGEST,
    }
    assert (found.kv_cache_tokens, found.max_concurrency) == (243616, 118.95)
    assert found.memory_bytes == {"gpu_used_after_capture": 30 * GIB, "gpu_total": 141 * GIB}
    assert set(found.startup_s) == {"ready"}
    assert found.unknown == {
        "oom": NO_OOM,
        "attention_backend": IN_THE_LOG,
        "startup_load": IN_THE_LOG,
        "startup_compile": IN_THE_LOG,
        "startup_capture": IN_THE_LOG,
        "startup_warmup": IN_THE_LOG,
        "memory_weights": IN_THE_LOG,
        "memory_graphs": IN_THE_LOG,
        "memory_kv_cache": IN_THE_LOG,
        "memory_gpu_used_before_capture": IN_THE_LOG,
    }


@pytest.mark.usefixtures("nvml", "torch")
@pytest.mark.parametrize(
    ("change", "what", "says"),
    [
        (
            {"attention_config": SimpleNamespace(backend=None)},
            "requested_attention_backend",
            "left to the engine core",
        ),
        ({"attention_config": None}, "requested_attention_backend", "AttributeError"),
        ({"parallel_config": None}, "gpus", "AttributeError"),
        ({"cache_config": SimpleNamespace()}, "kv_cache_tokens", "AttributeError"),
        ({"model_config": None}, "model_revision", "AttributeError"),
        ({"compilation_config": None}, "compile_mode", "AttributeError"),
    ],
)
def test_a_fact_that_is_unknown_spoils_no_other(
    change: dict[str, Any], what: str, says: str
) -> None:
    found = facts(config(**change))
    assert says in found.unknown[what]
    assert what not in found.attested
    assert found.attested["engine_version"] == "0.25.1"
    assert found.startup_s["ready"] > 0


@pytest.mark.usefixtures("nvml", "torch")
def test_an_older_release_says_its_cache_in_blocks() -> None:
    cache = config().cache_config
    del cache.kv_cache_size_tokens, cache.kv_cache_max_concurrency
    found = facts(config(cache_config=cache))
    assert found.kv_cache_tokens == 15226 * 16
    assert found.max_concurrency == 15226 * 16 / 2048


@pytest.mark.usefixtures("nvml", "torch")
def test_memory_of_replicas_is_unknown_and_their_gpu_is_not() -> None:
    parallel = config().parallel_config
    parallel.data_parallel_size = 2
    found = facts(config(parallel_config=parallel))
    assert found.memory_bytes == {}
    assert "data parallelism" in found.unknown["memory_gpu_total"]
    assert found.attested["gpu_model"] == "NVIDIA H200"


@pytest.mark.usefixtures("nvml", "torch")
def test_experts_are_spread_over_tensor_and_data_parallel_ranks() -> None:
    parallel = config().parallel_config
    parallel.tensor_parallel_size, parallel.data_parallel_size = 4, 2
    assert facts(config(parallel_config=parallel)).attested["expert_parallel"] == "1"
    parallel.enable_expert_parallel = True
    assert facts(config(parallel_config=parallel)).attested["expert_parallel"] == "8"


@pytest.mark.usefixtures("nvml", "torch")
def test_what_only_some_engines_tell_is_taken_where_it_is_told() -> None:
    cache, compilation = config().cache_config, config().compilation_config
    cache.kv_cache_memory_bytes, compilation.compilation_time = 7 * GIB, 21.5
    found = facts(config(cache_config=cache, compilation_config=compilation))
    assert found.memory_bytes["kv_cache"] == 7 * GIB
    assert found.startup_s["compile"] == 21.5


@pytest.mark.usefixtures("nvml")
def test_without_the_environment_and_torch_they_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = facts(environment={})
    for name in ("artifact", "requested_sizes", "torch_version", "cuda_version", "nccl_version"):
        assert name not in found.attested
        assert found.unknown[name]


def test_a_build_for_cpus_has_no_cuda(torch: SimpleNamespace) -> None:
    torch.version.cuda = None
    found = facts()
    assert found.unknown["cuda_version"] == "torch was built without CUDA"
    assert found.unknown["nccl_version"] == "torch was built without CUDA"


def test_the_time_until_ready_is_that_of_this_process() -> None:
    age = time.time() - psutil.Process().create_time()
    assert facts().startup_s["ready"] == pytest.approx(age, abs=1.5)


# ----------------------------------------------------------------- GPUs


@pytest.mark.parametrize(
    ("visible", "wanted", "models"),
    [
        (None, 1, ("NVIDIA H200",)),
        (None, 2, ("NVIDIA H200", "NVIDIA L4")),
        ("1", 1, ("NVIDIA L4",)),
        ("1, 0", 2, ("NVIDIA L4", "NVIDIA H200")),
        ("GPU-0f5e", 1, ("NVIDIA H200",)),
    ],
)
def test_the_engines_own_gpus_are_read(
    nvml: Nvml, visible: str | None, wanted: int, models: tuple[str, ...]
) -> None:
    found = read_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, wanted)
    assert found.models == models
    assert found.total_bytes == wanted * 141 * GIB
    assert nvml.asked[0].startswith("nvmlInit")
    assert nvml.asked[-1].startswith("nvmlShutdown")


def test_older_bindings_answer_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(driver=b"550.54"))
    assert read_gpus({}, 1) == Gpus("550.54", ("NVIDIA H200",), 30 * GIB, 141 * GIB)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("nvmlInit", "no NVIDIA driver to ask: Unknown Error"),
        ("nvmlDeviceGetMemoryInfo", "NVML does not say: Unknown Error"),
    ],
)
def test_what_nvml_cannot_say_is_unknown(
    monkeypatch: pytest.MonkeyPatch, broken: str, says: str
) -> None:
    bindings = Nvml(broken=broken)
    monkeypatch.setitem(sys.modules, "pynvml", bindings)
    with pytest.raises(UnknownError, match=says):
        read_gpus({}, 1)
    assert facts().unknown["gpus"].endswith(says.rpartition(": ")[2])
    assert "driver_version" in facts().unknown


@pytest.mark.usefixtures("nvml")
def test_fewer_gpus_than_the_engine_has_are_unknown() -> None:
    with pytest.raises(UnknownError, match="the engine has 4 GPUs and 2 are visible"):
        read_gpus({}, 4)


def test_without_bindings_they_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "vllm.third_party", "vllm.third_party.pynvml", "pynvml"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnknownError, match="no bindings to NVML"):
        read_gpus({}, 1)


# ------------------------------------------------------------- revision


def model(name: str, revision: str | None = None, commit: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        model=name, revision=revision, hf_config=SimpleNamespace(_commit_hash=commit)
    )


def test_the_revision_is_that_of_the_loaded_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub(None))
    snapshot = tmp_path / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    assert loaded_revision(model(str(snapshot))) == COMMIT
    assert loaded_revision(model("Qwen/Qwen3-0.6B", "main", COMMIT)) == COMMIT
    assert loaded_revision(model("Qwen/Qwen3-0.6B", COMMIT)) == COMMIT
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub(f"{snapshot}/config.json"))
    assert loaded_revision(model("Qwen/Qwen3-0.6B", "main")) == COMMIT


def hub(path: str | None) -> SimpleNamespace:
    def try_to_load_from_cache(repository: str, file: str, revision: str | None) -> str | None:
        assert (repository, file) == ("Qwen/Qwen3-0.6B", "config.json")
        return path

    return SimpleNamespace(try_to_load_from_cache=try_to_load_from_cache)


def test_a_branch_names_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub(None))
    with pytest.raises(UnknownError, match=r"Qwen/Qwen3-0\.6B name no commit"):
        loaded_revision(model("Qwen/Qwen3-0.6B", "main"))


@pytest.mark.parametrize("asked", [None, "main", COMMIT])
@pytest.mark.parametrize("remote", [True, False])
def test_of_files_elsewhere_than_on_the_hub_nobody_compares_a_commit(
    tmp_path: Path, asked: str | None, remote: bool
) -> None:
    name = "s3://bucket/model" if remote else str(tmp_path)
    with pytest.raises(UnknownError) as found:
        loaded_revision(model(name, asked))
    said = f", and nobody compared them with the {asked} asked for" if asked else ""
    assert str(found.value) == f"the files of {name} name no commit{said}"


# ------------------------------------------------------------- the page


@pytest.mark.usefixtures("nvml", "torch")
def test_facts_are_on_the_page_and_unknown_ones_are_absent() -> None:
    recorder = Recorder()
    recorder.describe_facts(0, lambda: facts(config(), {}))
    registry = CollectorRegistry()
    registry.register(RecorderCollector(recorder))
    families = {family.name: family.samples for family in registry.collect()}
    (attested,) = families["canaryctl_attestation_info"]
    assert attested.value == 1
    assert attested.labels["gpu_model"] == "NVIDIA H200"
    assert "artifact" not in attested.labels
    (memory,) = (s for s in families["canaryctl_memory_bytes"] if s.labels["kind"] == "gpu_total")
    assert memory.value == 141 * GIB
    assert {s.labels["stage"] for s in families["canaryctl_startup_seconds"]} == {"ready"}
    unknown = {s.labels["what"]: s.labels["reason"] for s in families["canaryctl_probe_unknown"]}
    assert unknown["memory_graphs"] == IN_THE_LOG
    assert "CANARYCTL_ARTIFACT_DIGEST is not set" in unknown["artifact"]
    (tokens,) = families["canaryctl_kv_cache_tokens"]
    assert tokens.value == 243616


def test_reading_facts_leaves_the_environment_alone() -> None:
    before = dict(os.environ)
    facts()
    assert dict(os.environ) == before

"""What the probe reads of vLLM is there in every release recorded, and of the kind it takes.

``tools/record_vllm_interfaces.py`` makes the record from published wheels.
"""

import json
import runpy
from pathlib import Path

import pytest

from canaryctl import runtimes

ROOT = Path(__file__).parents[2]
RECORDS = json.loads((ROOT / "tests/data/vllm/interfaces.json").read_text(encoding="utf-8"))
PLUGIN = Path(runtimes.__file__).parent / "probe" / "canaryctl_probe" / "plugin.py"
TOOL = runpy.run_path(str(ROOT / "tools" / "record_vllm_interfaces.py"))

# What older releases do not have. The probe makes the first of the number of blocks there; without
# the second the adapter asks for the older model runner.
SINCE_0_24 = {"CacheConfig.kv_cache_size_tokens", "CacheConfig.kv_cache_max_concurrency"}
SINCE_0_30 = {"v2_model_runner.make_cudagraph_stats"}


def release(version: str) -> tuple[int, int]:
    major, minor, *_ = map(int, version.split("."))
    return major, minor


def test_every_line_of_releases_is_recorded() -> None:
    assert sorted(map(release, RECORDS)) == [(0, minor) for minor in range(20, 34)]
    assert {"0.25.1", "0.32.0"} <= set(RECORDS), "those that were run"


@pytest.mark.parametrize("version", sorted(RECORDS))
def test_everything_that_the_probe_reads_is_there(version: str) -> None:
    absent = {
        f"{name}.{member}"
        for name, members in RECORDS[version].items()
        for member, declared in members.items()
        if declared is None
    }
    before_0_24 = SINCE_0_24 if release(version) < (0, 24) else set()
    before_0_30 = SINCE_0_30 if release(version) < (0, 30) else set()
    assert absent == before_0_24 | before_0_30


@pytest.mark.parametrize("version", sorted(RECORDS))
def test_reports_are_of_the_kinds_that_the_probe_takes(version: str) -> None:
    found = RECORDS[version]
    assert found["CUDAGraphStat"] == {
        "num_unpadded_tokens": "int",
        "num_padded_tokens": "int",
        "runtime_mode": "str",
    }
    assert found["SchedulerStats"]["cudagraph_stats"] == "CUDAGraphStat | None"
    assert found["IterationStats"]["inter_token_latencies_iter"] == "list[float]"
    assert found["IterationStats"]["time_to_first_tokens_iter"] == "list[float]"
    assert found["CompilationConfig"]["cudagraph_capture_sizes"] == "list[int]"
    assert found["plugins"] == {"STAT_LOGGER_PLUGINS_GROUP": "= 'vllm.stat_logger_plugins'"}


@pytest.mark.parametrize("version", sorted(RECORDS))
def test_the_plugin_answers_the_calls_that_vllm_makes(version: str) -> None:
    """Its class cannot be imported here, as vLLM is not: its signatures are compared."""
    ours = dict(TOOL["_members"](TOOL["_parse"](PLUGIN), "CanaryctlProbe"))
    for name in ("__init__", "record", "log_engine_initialized"):
        theirs = RECORDS[version]["StatLoggerBase"][name]
        assert parameters(ours[name])[: len(parameters(theirs))] == parameters(theirs), name


def parameters(signature: str) -> list[str]:
    """Names in their order, those behind stars left out."""
    words = signature.strip("()").split(", ")
    return [w.partition(":")[0].partition("=")[0] for w in words if not w.startswith("*")]


def test_the_tool_records_a_member_that_is_gone_as_absent(tmp_path: Path) -> None:
    (tmp_path / "vllm" / "v1" / "metrics").mkdir(parents=True)
    (tmp_path / "vllm-0.99.0.dist-info").mkdir()
    (tmp_path / "vllm" / "v1" / "metrics" / "stats.py").write_text(
        "class SchedulerStats:\n    graphs: int\n"
        "class IterationStats:\n    def __init__(self):\n        self.finished_requests = []\n"
    )
    found = TOOL["record"](tmp_path)
    assert TOOL["version_of"](tmp_path) == "0.99.0"
    assert found["SchedulerStats"] == {"cudagraph_stats": None}
    assert found["IterationStats"]["finished_requests"] == "= []"
    assert found["IterationStats"]["num_generation_tokens"] is None

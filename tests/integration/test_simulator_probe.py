"""The simulated engine shows what the probe shows of a real one, and its faults show in it."""

from pathlib import Path

import pytest

from tests.support.simulated import ENGINE, SimulatedServer, simulated_spec


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


def test_shapes_and_step_times_agree_with_the_steps(log: Path) -> None:
    with SimulatedServer(simulated_spec(), log) as server:
        assert set(server.complete_many(20, tokens=12)) == {200}
        page = server.page()

    def shape(kind: str, what: str) -> float:
        return page.value(f"canaryctl_step_shape_{what}", kind=kind)

    steps = page.value("canaryctl_engine_steps_total")
    pure = page.value("canaryctl_engine_steps_total", pure_decode="true")
    assert shape("scheduled_tokens", "count") == steps
    assert shape("scheduled_tokens", "sum") == page.value("canaryctl_tokens_actual_total")
    assert shape("decode_sequences", "count") == pure
    assert shape("mixed_tokens", "count") == shape("prefill_tokens", "count") == steps - pure
    assert shape("prefill_tokens", "sum") == (
        page.value("vllm:prompt_tokens_total") - page.value("vllm:prefix_cache_hits_total")
    )
    for name in ("tokens_actual", "tokens_padded", "engine_steps"):
        by_bucket = page.series(f"canaryctl_{name}_total")
        assert len({labels["bucket"] for labels, _ in by_bucket}) > 1
    timed = page.value("canaryctl_step_time_seconds_count")
    assert pure - (steps - pure) - 1 <= timed < pure
    mean_s = page.value("canaryctl_step_time_seconds_sum") / timed
    assert 0.0005 < mean_s < 0.02
    buckets = {labels["bucket"] for labels, _ in page.series("canaryctl_step_time_seconds_count")}
    assert buckets <= {
        labels["bucket"] for labels, _ in page.series("canaryctl_engine_steps_total")
    }


def test_start_memory_and_what_runs_are_attested(log: Path) -> None:
    spec = simulated_spec({"time_scale": 0.02}, graph={"capture_sizes": [1, 2, 4, 8]})
    with SimulatedServer(spec, log) as server:
        page, facts = server.page(), server.facts()
    for stage in ("load", "compile", "capture"):
        assert page.value("canaryctl_startup_seconds", stage=stage) == pytest.approx(
            facts.stage_seconds[stage], abs=0.006
        )
    assert page.value("canaryctl_startup_seconds", stage="ready") > 0.5
    memory = {labels["kind"]: value for labels, value in page.series("canaryctl_memory_bytes")}
    assert facts.graph_bytes is not None
    assert memory["graphs"] == pytest.approx(facts.graph_bytes, abs=0.01 * 2**30)
    assert memory["gpu_used_after_capture"] - memory["gpu_used_before_capture"] == memory["graphs"]
    assert memory["gpu_used_after_capture"] <= 0.9 * memory["gpu_total"] + 1
    attested = page.labels("canaryctl_attestation_info")
    assert attested["engine_name"] == "simulated"
    assert (attested["engine_version"], attested["model"]) == ("0.25.1", "qwen")
    assert attested["requested_sizes"] == attested["graph_sizes"] == "1,2,4,8"
    unknown = {
        labels["what"]: labels["reason"] for labels, _ in page.series("canaryctl_probe_unknown")
    }
    assert unknown["gpu_model"] == "a simulated engine has none"
    assert "gpu_model" not in attested


@pytest.mark.parametrize(
    ("fault", "family", "match"),
    [
        ("slow_capture", "canaryctl_startup_seconds", {"stage": "capture"}),
        ("small_kv", "canaryctl_memory_bytes", {"kind": "kv_cache"}),
        ("small_kv", "canaryctl_kv_cache_tokens", {}),
        ("small_kv", "canaryctl_max_concurrency", {}),
        ("grid_reduced", "canaryctl_memory_bytes", {"kind": "graphs"}),
    ],
)
def test_a_fault_of_the_start_shows_in_what_is_attested(
    log: Path, fault: str, family: str, match: dict[str, str]
) -> None:
    seen = []
    for args in ({}, {"fault": fault}):
        with SimulatedServer(simulated_spec({"time_scale": 0.004, **args}), log) as server:
            page = server.page()
            seen.append(page.value(family, **match))
            sizes = page.labels("canaryctl_attestation_info")["graph_sizes"].split(",")
    good, bad = seen
    if fault == "slow_capture":
        assert bad == pytest.approx(20 * good)
    else:
        assert bad < 0.7 * good
    requested = ENGINE.resolved_grid(simulated_spec())
    assert len(sizes) == (-(-len(requested) // 2) if fault == "grid_reduced" else len(requested))


def test_a_mode_that_is_lowered_shows_in_steps_and_log_alone(log: Path) -> None:
    spec = simulated_spec({"fault": "mode_downgraded"}, graph={"capture_sizes": [1, 2, 4]})
    with SimulatedServer(spec, log) as server:
        assert server.page().labels("canaryctl_grid_info")["mode"] == "FULL_AND_PIECEWISE"
        server.complete_many(2)
        steps = server.page().series("canaryctl_engine_steps_total")
        modes = {labels["mode"] for labels, _ in steps}
        assert "PIECEWISE" in modes
        assert "FULL" not in modes
        facts = server.facts()
        assert facts.resolved == {"graph_mode": "PIECEWISE", "graph_sizes": "1,2,4"}
        (warning,) = facts.warnings
        assert facts.resolved_by["graph_mode"] in warning


def test_missing_and_renamed_metrics_are_those_of_the_probe_too(log: Path) -> None:
    with SimulatedServer(simulated_spec({"fault": "missing_metrics"}), log) as server:
        server.complete()
        assert not {name for name in server.page().names if name.startswith("canaryctl_")}
        server.switch("metrics_renamed")
        names = server.page().names
        assert "canaryctl_tpot_seconds_bucket" not in names
        assert "canaryctl_time_per_output_token_seconds_bucket" in names
        assert "canaryctl_step_time_seconds_bucket" in names

"""Calibrating on engines that really run: the simulated one's own costs are found again."""

from pathlib import Path

import pytest

from canaryctl.common.errors import InputError, PermanentError
from canaryctl.controller.calibrate import calibrate_torch, grids, torch_calibration
from canaryctl.runtimes.grid.calibration import load_calibration
from canaryctl.runtimes.simulator.cost import calibrated
from canaryctl.runtimes.spec import RuntimeSpec
from tests.support.cli import Cli

ARTIFACT = """apiVersion: canaryctl/v1
kind: RuntimeArtifact
name: sim
version: "1"
service: sim
runtime:
  engine: {name: simulated, version: 0.25.1, args: {time_scale: 0.02, jitter: 0.0}}
  model: {id: qwen3-0.6b}
  limits: {max_num_seqs: 8, max_num_batched_tokens: 512, max_model_len: 512}
gates: [{name: oom, max: 0}]
"""
SHAPE = {"layers": 2, "kv_heads": 2, "head_dim": 16}


def test_the_simulated_engines_costs_are_found_again(tmp_path: Path) -> None:
    artifact, out = tmp_path / "sim.yaml", tmp_path / "cost.json"
    artifact.write_text(ARTIFACT)
    cli = Cli(tmp_path / "state")
    done = cli.run(
        "grid", "calibrate", "--artifact", artifact, "--kv-bytes-per-token", "114688", "--out", out,
        "--starts", "2",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "a simulated GPU" in done.out
    captured = [line for line in done.err.splitlines() if "captured in" in line]
    assert [line.count(" s") for line in captured] == [2, 2, 2, 2, 2], done.err
    found, cost = load_calibration(out), calibrated()
    assert 0 <= found.noise_ms < 0.2
    assert "another engine's steps" in done.out
    for size in (1, 4, 8):
        assert found.step_ms["FULL"][size] == pytest.approx(cost.full.at(size) * 1000, rel=0.06)
        assert found.step_ms["PIECEWISE"][size] == pytest.approx(
            cost.piecewise.at(size) * 1000, rel=0.06
        )
        assert found.step_ms["EAGER"][size] == pytest.approx(cost.eager.at(size) * 1000, rel=0.06)
    assert found.step_ms["NONE"] == pytest.approx({8: cost.no_graph.at(8) * 1000}, rel=0.06)
    graph = found.graphs["FULL"]
    per_graph_mib = graph.per_graph_mib + 4 * graph.per_token_mib  # of the small grids' sizes
    assert per_graph_mib == pytest.approx(cost.full_graph_bytes / 2**20, rel=0.25)


def test_the_grids_tell_costs_apart() -> None:
    document = {
        "engine": {"name": "vllm", "version": "0.25.1", "venv": "/opt/vllm"},
        "model": {"id": "m"},
        "limits": {"max_num_seqs": 64},
    }
    plans = {plan.name: plan for plan in grids(RuntimeSpec.model_validate(document))}
    assert plans["few"].graph.capture_sizes == (1, 2, 4, 8, 12, 16, 24, 32)
    assert plans["few"].batches[-1] == 48  # beyond the grid
    assert plans["dense"].graph.capture_sizes == tuple(range(1, 65))
    assert plans["eager"].graph.mode == "NONE"
    assert plans["sparse"].graph.capture_sizes == (8, 64, 512)


def _run(
    name: str, mode: str, sizes: list[int], mib: float, seconds: float, step_ms: float = 2.0
) -> dict[str, object]:
    steps = [[size, step_ms] for size in sizes]
    return {
        "name": name, "mode": mode, "sizes": sizes, "step_ms": steps,
        "graph_mib": mib, "capture_s": seconds,
    }  # fmt: skip


def test_plain_torchs_document_makes_a_calibration() -> None:
    eager = {"name": "eager", "mode": "NONE", "sizes": [], "step_ms": [[1, 9.0], [64, 10.0]]}
    runs = [
        eager,
        _run("default", "FULL_AND_PIECEWISE", [1, 2, 4, 64], 120.0, 2.0),
        _run("piecewise", "PIECEWISE", [1, 2, 4, 64], 60.0, 1.0),
        _run("few", "FULL_AND_PIECEWISE", [1, 2, 4], 90.0, 1.4),
    ]
    found = torch_calibration(
        {"machine": "a GPU", "engine": "torch", "free_bytes": 10**9, "shape": SHAPE, "runs": runs}
    )
    assert found.step_ms["NONE"] == {64: 10.0}
    assert found.noise_ms == 0.0
    assert found.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert "not compiled" in found.assumed


def test_the_noise_is_how_far_engines_that_ran_the_same_are_apart() -> None:
    eager: dict[str, object] = {
        "name": "eager", "mode": "NONE", "sizes": [], "step_ms": [[1, 9.0], [64, 10.0]],
    }  # fmt: skip
    sizes = [1, 2, 4]
    runs = [
        eager,
        _run("default", "FULL_AND_PIECEWISE", sizes, 120.0, 2.0, 2.0),
        _run("piecewise", "PIECEWISE", [*sizes, 64], 60.0, 1.0),
        _run("few", "FULL_AND_PIECEWISE", sizes, 90.0, 1.4, 2.6),
    ]
    document = {"machine": "a GPU", "engine": "torch", "free_bytes": 10**9, "shape": SHAPE}
    found = torch_calibration({**document, "runs": runs})
    assert found.noise_ms == pytest.approx(0.6 / 2**0.5, abs=1e-3)
    # Slower at everything, one is brought to the other's level, and so is what it alone ran.
    slower = {**runs[-1], "sizes": [*sizes, 8], "step_ms": [[1, 2.6], [4, 2.6], [8, 3.9]]}
    again = torch_calibration({**document, "runs": [*runs[:-1], slower]})
    assert again.step_ms["FULL"] == pytest.approx({1: 2.0, 2: 2.0, 4: 2.0, 8: 3.0})
    apart = [*runs[:-1], _run("few", "FULL_AND_PIECEWISE", [8, 16], 90.0, 1.4)]
    with pytest.raises(InputError, match="nothing tells the noise"):
        torch_calibration({**document, "runs": apart})


def test_without_a_gpu_plain_torch_captures_nothing() -> None:
    runs = [{"name": "eager", "mode": "NONE", "sizes": [], "step_ms": [[1, 9.0]]}]
    with pytest.raises(InputError, match="found no CUDA device"):
        torch_calibration(
            {"machine": "CPU", "engine": "torch", "free_bytes": 0, "shape": SHAPE, "runs": runs}
        )


@pytest.mark.vllm
def test_the_script_runs_where_torch_is(cpu_vllm_python: Path) -> None:
    shape = {"layers": 2, "hidden": 64, "intermediate": 128, "heads": 4, "kv-heads": 2}
    rest = {"head-dim": 16, "context": 32, "timed": "1,4", "repeats": 2}
    small = [f"--{name}={value}" for name, value in {**shape, **rest}.items()]
    with pytest.raises(InputError, match="found no CUDA device"):
        calibrate_torch(str(cpu_vllm_python), [*small, "--device=cpu"])
    with pytest.raises(PermanentError, match="could not measure"):
        calibrate_torch(str(cpu_vllm_python), ["--unknown=1"])

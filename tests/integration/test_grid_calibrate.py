"""Calibrating on engines that really run: the simulated one's own costs are found again."""

import json
from pathlib import Path

import pytest

from canaryctl.common.errors import InputError, PermanentError
from canaryctl.controller.calibration.plain_torch import calibrate_torch, torch_calibration
from canaryctl.runtimes.grid.calibration import load_calibration
from canaryctl.runtimes.grid.fit import CaptureRun, fit_graph_cost
from canaryctl.runtimes.simulator.cost import calibrated
from canaryctl.runtimes.simulator.graphs import GraphSet
from tests.support.cli import Cli, eventually

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
SMALL = ARTIFACT.replace("max_num_seqs: 8", "max_num_seqs: 2")
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
    captured = [line.split(":")[0] for line in done.err.splitlines() if "captured in" in line]
    once = ["default", "piecewise", "few", "dense", "spread"]
    assert captured == [*once, *(f"{name}-2" for name in once)], done.err
    assert cli.left_over() == []
    assert list(out.parent.glob("cost.json.*")) == [], "what was kept is of no use any more"
    found, cost = load_calibration(out), calibrated()
    assert found.noise_ms.keys() == {"FULL"}, "of what one engine alone ran nothing is known"
    assert 0 <= found.noise_ms["FULL"] < 0.2
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
    assert found.engine == "simulated 0.25.1"
    assert found.model == "qwen3-0.6b, max_model_len 512"


def starts(err: str) -> list[str]:
    """Of a calibration's lines: the engines that were started."""
    return [line.split(":")[0] for line in err.splitlines() if line.endswith(": starting")]


def test_a_calibration_that_is_cut_off_goes_on_and_leaves_no_engine(tmp_path: Path) -> None:
    artifact, out = tmp_path / "sim.yaml", tmp_path / "cost.json"
    artifact.write_text(SMALL)
    cli = Cli(tmp_path / "state")
    kept = tmp_path / "cost.json.partial.json"
    command = ("grid", "calibrate", "--artifact", artifact, "--out", out)

    def finished() -> list[str]:
        found = json.loads(kept.read_text())["starts"] if kept.exists() else []
        return [start["name"] for start in found]

    running = cli.start(*command)
    eventually("two starts", lambda: len(finished()) >= 2, timeout_s=60)
    ended = running.end()
    assert ended.code == 130
    assert cli.left_over() == [], "it was ended in good order"
    before = finished()
    assert f"{len(before)} starts are kept in {kept}" in ended.err

    running = cli.start(*command)
    eventually("one more", lambda: len(finished()) > len(before), timeout_s=60)
    running.kill()
    eventually("the guard ends what runs", lambda: cli.left_over() == [], timeout_s=60)
    before = finished()

    done = cli.run(*command)
    assert done.code == 0, done.err
    assert "going on from there" in done.err
    every = ["eager", "default", "piecewise", "few", "dense", "spread"]
    assert [*before, *starts(done.err)] == every
    assert load_calibration(out).noise_ms["FULL"] < 0.2
    assert not kept.exists()


def test_what_was_kept_of_another_artifact_counts_for_nothing(tmp_path: Path) -> None:
    artifact, out = tmp_path / "sim.yaml", tmp_path / "cost.json"
    cli = Cli(tmp_path / "state")
    kept = tmp_path / "cost.json.partial.json"
    command = ("grid", "calibrate", "--artifact", artifact, "--out", out)
    # The grid of the engine's default is cut, and the calibration ends there.
    artifact.write_text(SMALL.replace("jitter: 0.0", "fault: grid_reduced"))
    reduced = cli.run(*command)
    assert reduced.code == 1
    assert "default runs other graphs than it was asked for" in reduced.err
    assert "sizes 1, 2; expected FULL_AND_PIECEWISE, 1, 2, 4" in reduced.err
    assert [start["name"] for start in json.loads(kept.read_text())["starts"]] == ["eager"]

    artifact.write_text(SMALL)
    reduced_only = kept.read_text()
    running = cli.start(*command)
    eventually("another", lambda: kept.read_text() != reduced_only, timeout_s=60)
    ended = running.end()
    assert f"{kept} is of another artifact: beginning anew" in ended.err
    assert starts(ended.err)[0] == "eager"

    kept.write_text("{}")
    assert cli.run(*command).code == 2
    assert cli.left_over() == []


def test_what_cannot_be_written_is_said_before_anything_is_started(tmp_path: Path) -> None:
    artifact = tmp_path / "sim.yaml"
    artifact.write_text(SMALL)
    cli = Cli(tmp_path / "state")
    for out, said in (
        (tmp_path / "missing" / "cost.json", f"there is no folder {tmp_path / 'missing'}"),
        (tmp_path, "is no regular file"),
    ):
        done = cli.run("grid", "calibrate", "--artifact", artifact, "--out", out)
        assert done.code == 2
        assert said in done.err
    assert not cli.state.exists()


def test_the_engine_gets_the_secrets_of_the_artifact(tmp_path: Path) -> None:
    artifact, out, seen = tmp_path / "sim.yaml", tmp_path / "cost.json", tmp_path / "seen"
    script = f'echo "$HF_TOKEN" >> {seen}; exec python -m canaryctl.runtimes.simulator "$@"'
    command = json.dumps(["/bin/sh", "-c", script, "sh"])
    secret = "secrets: {HF_TOKEN: {from_env: MY_TOKEN}}\n"
    artifact.write_text(
        SMALL.replace("version: 0.25.1,", f"version: 0.25.1, command: {command},") + secret
    )
    arguments = ("grid", "calibrate", "--artifact", artifact, "--out", out)
    refused = Cli(tmp_path / "state").run(*arguments)
    assert refused.code == 2
    assert "MY_TOKEN is not set" in refused.err
    running = Cli(tmp_path / "state", MY_TOKEN="hf_x").start(*arguments)
    eventually("an engine", lambda: seen.exists() and seen.read_text(), timeout_s=60)
    ended = running.end()
    assert seen.read_text().splitlines() == ["hf_x"]
    assert "hf_x" not in ended.err


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
    assert found.noise_ms == {"FULL": 0.0}
    assert found.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert "not compiled" in found.assumed


def test_each_grid_of_plain_torch_counts_once_for_what_graphs_cost() -> None:
    measured = [
        ("default", "FULL_AND_PIECEWISE", [1, 2, 4, 64], 120.0, 2.0),
        ("piecewise", "PIECEWISE", [1, 2, 4, 64], 60.0, 1.1),
        ("few", "FULL_AND_PIECEWISE", [1, 2, 4], 90.0, 1.4),
        ("dense", "FULL_AND_PIECEWISE", [*range(1, 9)], 140.0, 3.9),
        ("sparse", "FULL_AND_PIECEWISE", [8, 16], 70.0, 1.2),
    ]
    eager = {"name": "eager", "mode": "NONE", "sizes": [], "step_ms": [[1, 9.0], [64, 10.0]]}
    runs = [eager, *(_run(*one) for one in measured)]
    found = torch_calibration(
        {"machine": "a GPU", "engine": "torch", "free_bytes": 10**9, "shape": SHAPE, "runs": runs}
    )
    captured = [
        CaptureRun(name, graphs.full, graphs.piecewise, mib, seconds)
        for name, mode, sizes, mib, seconds in measured
        for graphs in [GraphSet.of(mode, sizes, max(sizes))]
    ]
    fit = fit_graph_cost(captured)
    assert found.graphs["FULL"] == fit.cost
    assert fit.cost != fit_graph_cost([*captured, captured[-1]]).cost
    assert found.step_ms["NONE"] == {64: 10.0}


def test_the_noise_is_how_far_engines_that_ran_the_same_are_apart() -> None:
    eager: dict[str, object] = {
        "name": "eager", "mode": "NONE", "sizes": [], "step_ms": [[1, 9.0], [64, 10.0]],
    }  # fmt: skip
    sizes = [1, 2, 4]
    runs = [
        eager,
        _run("default", "FULL_AND_PIECEWISE", sizes, 120.0, 2.0, 2.0),
        _run("piecewise", "PIECEWISE", [*sizes, 64], 60.0, 1.0),
        _run("few", "FULL_AND_PIECEWISE", [*sizes, 8], 90.0, 1.4, 2.6),
    ]
    document = {"machine": "a GPU", "engine": "torch", "free_bytes": 10**9, "shape": SHAPE}
    found = torch_calibration({**document, "runs": runs})
    assert found.noise_ms == pytest.approx({"FULL": 0.6 / 2**0.5}, abs=1e-3)
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
        calibrate_torch(str(cpu_vllm_python), [*small, "--device=cpu"], ())
    with pytest.raises(PermanentError, match="could not measure"):
        calibrate_torch(str(cpu_vllm_python), ["--unknown=1"], ())

"""The page of the baseline benchmark, from what its commands write."""

import json
from pathlib import Path

import pytest

from benchmarks.h200_baseline import HEAD, REHEARSAL, Steps, page
from canaryctl.runtimes.grid.calibration import GraphCost
from tests.support.grids import calibration

PLANNED = [1, 4, 5, 9, 48, 64, 76, 84, 100, 137, 177, 249, 308]


def stage(
    name: str, mode: str, sizes: list[int] | None, graph_mib: float | None
) -> dict[str, object]:
    memory = {} if graph_mib is None else {"graphs": graph_mib * 2**20}
    start = {"captured_sizes": sizes, "memory_bytes": memory, "stage_s": {"capture": 2.0}}
    return {"name": name, "mode": mode, "start": start}


def test_what_was_foretold_stands_beside_what_the_engine_said(tmp_path: Path) -> None:
    stages = [
        stage("eager", "NONE", [], None),
        stage("planned", "FULL_AND_PIECEWISE", PLANNED, 138.0),
        stage("own", "FULL_AND_PIECEWISE", [1, 2], None),
    ]
    (tmp_path / "baseline.json").write_text(json.dumps({"stages": stages}))
    (tmp_path / "baseline.txt").write_text("the table\n")
    each = GraphCost(10.0, 5.0, 0.0, 0.5, 0.05, 0.0)
    engine = calibration(full=each, piecewise=each)
    made = page(tmp_path, engine, REHEARSAL)
    assert made.startswith(f"{REHEARSAL}\n\n```\nthe table\n```\n")
    assert "| planned | 22 | 130.0 / 138.0 (-6%) | 2.10 / 2.00 (+5%) |" in made
    assert "| own | 4 | not said | " in made
    assert "| eager |" not in made, "it captured nothing"
    assert "plain torch" not in made, "that was not measured"
    (tmp_path / "torch.json").write_text(engine.to_json())
    with_torch = page(tmp_path, engine, HEAD)
    assert "| 1 | 1.50 | 1.50 |" in with_torch


def test_what_is_done_is_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work, out, counts = tmp_path / "work", tmp_path / "out", tmp_path / "counts.csv"
    counts.write_text("size,count\n1,900\n4,100\n")
    for folder in (work, out):
        folder.mkdir()

    def plan(*options: str) -> bool:
        """Whether it was run."""
        command = ["grid", "plan", "--counts", counts, "--plot", work / "plan.svg", *options]
        Steps(work, out).once("plan", command, inputs=[counts], makes=["plan.svg"])
        assert "planned: 1, 4" in (out / "plan.txt").read_text()
        assert (out / "plan.svg").exists()
        return "done before" not in capsys.readouterr().err

    assert plan()
    (out / "plan.txt").unlink()
    assert not plan()
    assert plan("--max-num-seqs", "64")
    (work / "plan.svg").unlink()
    assert plan("--max-num-seqs", "64")
    counts.write_text("size,count\n1,800\n4,200\n")
    assert plan("--max-num-seqs", "64")
    for _ in range(2):  # what failed is not done
        with pytest.raises(SystemExit, match="grid plan ended with 2"):
            plan("--mode", "SIDEWAYS")

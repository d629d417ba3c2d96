"""The page of the baseline benchmark, from what its commands write."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.h200_baseline import HEAD, REHEARSAL, Steps, page
from canaryctl.runtimes.grid.calibration import GraphCost, PoolCost
from tests.support.grids import calibration

PLANNED = [1, 4, 5, 9, 48, 64, 76, 84, 100, 137, 177, 249, 308]


def stage(
    name: str,
    mode: str,
    sizes: list[int] | None = None,
    graph_mib: float | None = None,
    capture_s: float = 2.0,
    steps: Sequence[dict[str, object]] = (),
) -> dict[str, object]:
    memory = {} if graph_mib is None else {"graphs": graph_mib * 2**20}
    start = {"captured_sizes": sizes, "memory_bytes": memory, "stage_s": {"capture": capture_s}}
    runs = [{"decode_steps": [one]} for one in steps]
    return {"name": name, "mode": mode, "start": start, "runs": runs}


def steps(mode: str, bucket: int, mean_ms: float) -> dict[str, object]:
    mean_s = mean_ms / 1000
    return {"mode": mode, "bucket": bucket, "steps": 50, "tokens": 100, "mean_s": mean_s}


def test_what_was_foretold_stands_beside_what_the_engine_said(tmp_path: Path) -> None:
    both = "FULL_AND_PIECEWISE"
    loaded = [
        stage("eager", "NONE", steps=[steps("NONE", 0, 25.0)]),
        stage("planned", both, steps=[steps("FULL", 1, ms) for ms in (1.6, 1.4, 2.0)]),
    ]
    (tmp_path / "baseline.json").write_text(json.dumps({"stages": loaded}))
    (tmp_path / "baseline.txt").write_text("the table\n")
    starts = [tmp_path / f"{number}.txt" for number in range(3)]
    for path, seconds in zip(starts, (2.0, 3.0, 1.0), strict=True):
        alone = [
            stage("own", both, PLANNED, 138.0, seconds),
            stage("default", both, [1, 2], 20.0 if path is starts[0] else None),
        ]
        path.write_text(json.dumps({"stages": alone}))
    each = GraphCost(10.0, 5.0, 0.0, 0.0, 0.05, 0.0)
    engine = calibration(full=each, piecewise=each, pool=PoolCost(0.0, 0.0, 1.0))
    made = page(tmp_path, starts, engine, REHEARSAL)
    assert made.startswith(f"{REHEARSAL}\n\n```\nthe table\n```\n")
    took = "130.0 / 138.0 (138.0–138.0) (-6%) | 2.10 / 2.00 (1.00–3.00) (+5%)"
    assert f"| planned | 3 | 22 | {took} |" in made
    assert "| default | 3 | 4 | not said | " in made, "one start did not say"
    assert "| planned | 1.50 / 1.60 (1.40–2.00) (-6%) | 0.10 |" in made
    assert "| eager | 20.00 / 25.00 (-20%) | not stated |" in made
    assert "plain torch" not in made, "that was not measured"
    (tmp_path / "torch.json").write_text(engine.to_json())
    with_torch = page(tmp_path, [], engine, HEAD)
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

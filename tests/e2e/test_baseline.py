"""``canaryctl baseline`` on simulated engines: measured, stored, compared, and nothing left."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.artifacts import artifact, write
from tests.support.cli import Cli, eventually

pytestmark = pytest.mark.timeout(180)

SIZES = [1, 2, 4, 8]
EASY = [{"name": "e2e_p99", "max_seconds": "60s"}, {"name": "tpot_p90", "max_seconds": "30s"}]
IMPOSSIBLE = [{"name": "ttft_p90", "max_seconds": "0.001ms"}]


def small(number: int = 1, gates: Sequence[Any] = (), **args: Any) -> dict[str, Any]:
    document = artifact("good", number, args={"time_scale": 0.001, **args})
    document["runtime"]["graph"] = {"mode": "FULL_AND_PIECEWISE", "capture_sizes": SIZES}
    document["runtime"]["warmup_plan"] = {"decode_buckets": [1, 2], "repeat_per_bucket": 2}
    document["gates"] += gates
    return document


def a_trace(folder: Path, requests: int = 20, gap_s: float = 0.02) -> Path:
    rows = [f"{number * gap_s},16,8" for number in range(requests)]
    path = folder / "trace.csv"
    path.write_text("\n".join(["arrival,input_tokens,output_tokens", *rows]) + "\n")
    return path


def run(cli: Cli, file: Path, trace: Path, *options: str) -> Any:
    return cli.run("baseline", "run", file, "--trace", trace, "--json", *options)


def test_stages_are_measured_stored_and_compared(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state")
    file, trace = write(tmp_path, small(gates=EASY)), a_trace(tmp_path)
    done = run(cli, file, trace, "--repeats", "2")
    assert done.code == 0, done.err
    document = done.document
    assert document["slo"] == {"e2e": 60.0, "tpot": 30.0}
    assert document["interleaved"] is True
    assert [stage["name"] for stage in document["stages"]] == ["eager", "default", "own"]
    eager, default, own = document["stages"]
    assert own["digest"] == document["digest"]
    assert set(document["comparable"].values()) == {None}
    for stage in document["stages"]:
        assert len(stage["runs"]) == 2
        assert stage["summary"]["failed"] == 0
        for one in stage["runs"]:
            within = one["goodput"]
            assert (within["asked"], within["met"]) == (20, 20)
            assert within["output_tokens"] == one["output_tokens"] == 20 * 8
            assert 1 <= within["in_flight"] <= 20
        assert stage["summary"]["tokens_per_s_within_slo_per_gib"] > 0
        assert stage["summary"]["latency"]["itl p99"]["median"] > 0
        assert stage["start"]["kv_cache_tokens"] > 0
        assert stage["start"]["warmed"] == {"decode 1": 2, "decode 2": 2}
    assert own["start"]["captured_sizes"] == SIZES
    assert own["start"]["memory_bytes"]["graphs"] < default["start"]["memory_bytes"]["graphs"]
    assert eager["summary"]["graphs"]["coverage"]["most"] == 0
    assert default["summary"]["graphs"]["hit"]["least"] > 0.9
    assert own["summary"]["latency"]["tpot p50"]["most"] < eager["summary"]["latency"]["tpot p50"][
        "least"
    ]  # fmt: skip
    shown = cli.run("baseline", "show", file, "--json").document
    assert shown == document
    table = cli.run("baseline", "show", file).out
    assert "TTFT p99" in table
    assert re.search(r"^requests within SLO +100.00% +100.00% +100.00%$", table, re.MULTILINE)
    assert cli.run("status", "--json").document == {"services": []}

    other = tmp_path / "other"
    other.mkdir()
    longer = a_trace(other, requests=21)
    assert run(cli, file, longer, "--repeats", "1", "--stage", "own").code == 0
    second = write(other, small(2, gates=IMPOSSIBLE))
    assert run(cli, second, trace, "--repeats", "1", "--stage", "own").code == 0
    differing = cli.run("baseline", "compare", file, second, "--json")
    assert differing.code == 1
    assert list(differing.document["differing"]) == ["traffic"]
    assert run(cli, second, longer, "--repeats", "1", "--stage", "own").code == 0
    compared = cli.run("baseline", "compare", file, second)
    assert compared.code == 0
    assert re.search(r"^tokens/s within SLO +\d+ +0$", compared.out, re.MULTILINE)
    assert "their SLOs differ: " in compared.out
    assert cli.left_over() == []


def test_a_stage_that_does_not_start_is_told_and_the_others_are_measured(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state", CANARYCTL_SIMULATED_GPUS="1")
    document = small(fault="oom_capture")
    done = run(cli, write(tmp_path, document), a_trace(tmp_path), "--repeats", "1")
    assert done.code == 1
    found = done.document
    assert found["interleaved"] is False
    assert found["complete"] is False
    eager, default, own = found["stages"]
    assert eager["fault"] is None
    assert len(eager["runs"]) == 1
    for stage in (default, own):
        assert "out of memory" in stage["fault"]
        assert stage["runs"] == []
    assert cli.left_over() == []


def test_nothing_is_left_of_a_run_that_is_killed(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state")
    file, trace = write(tmp_path, small()), a_trace(tmp_path, requests=3000)
    running = cli.start("baseline", "run", file, "--trace", trace)
    started = cli.state / "baselines" / "running"
    eventually("engines", lambda: started.exists() and list(started.glob("*.json")), timeout_s=60)
    running.kill()
    eventually("the guard ends them", lambda: cli.left_over() == [], timeout_s=60)
    assert list(started.glob("*.json")) == []
    assert run(cli, file, a_trace(tmp_path), "--repeats", "1", "--stage", "own").code == 0


def test_the_checklist_holds_once_all_was_measured(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state")
    file = write(tmp_path, small())
    before = cli.run("checklist", file, "--json")
    assert before.code == 1
    assert before.document["ready"] is False
    assert [line["name"] for line in before.document["lines"] if line["holds"]] == []
    counts = tmp_path / "counts.csv"
    counts.write_text("kind,size,count\ndecode_sequences,1,900\ndecode_sequences,4,100\n")
    planned = cli.run("grid", "plan", "--counts", counts, "--artifact", file, "--write", file)
    assert planned.code == 0, planned.err
    half = cli.run("checklist", file, "--json").document
    held = {line["name"] for line in half["lines"] if line["holds"]}
    assert held == {"histogram of traffic at hand", "grid planned from it"}
    measured = run(cli, file, a_trace(tmp_path), "--repeats", "1")
    assert measured.code == 0, measured.err
    assert measured.document["stages"][2]["name"] == "planned"
    # On a machine too busy for the client to keep to its plan, latencies are not compared.
    busy = any(stage["summary"]["saturated"] for stage in measured.document["stages"])
    open_lines = {"TTFT, TPOT and ITL p95 and p99 compared"} if busy else set()
    done = cli.run("checklist", file, "--json")
    assert {line["name"] for line in done.document["lines"] if not line["holds"]} == open_lines
    assert done.code == (1 if busy else 0)
    assert cli.run("checklist", file, "--max-age", "1ms").code == 1

"""``canaryctl grid`` from files to plans, artifacts and drift."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from canaryctl.common.errors import InputError
from canaryctl.controller.artifact.loader import load_artifact
from canaryctl.controller.gridplans import load_plan
from canaryctl.controller.model import Artifact
from canaryctl.controller.settings import Settings
from canaryctl.controller.store import open_store
from canaryctl.runtimes.grid.calibration import packaged
from tests.support.cli import QUICKSTART, Cli
from tests.support.stored import NOW

COUNTS = """kind,size,count
decode_sequences,1,400
decode_sequences,5,900
decode_sequences,40,80
decode_sequences,90,10
mixed_tokens,60,50
mixed_tokens,300,60
"""
LATER = COUNTS.replace("decode_sequences,5,900", "decode_sequences,150,9000")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "state")


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    path = tmp_path / "counts.csv"
    path.write_text(COUNTS)
    return path


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "chat.yaml"
    path.write_text((QUICKSTART / "stable.yaml").read_text())
    (tmp_path / "load.yaml").write_text((QUICKSTART / "load.yaml").read_text())
    return path


def test_a_plan_beside_the_default_and_the_artifacts_own(
    cli: Cli, counts: Path, artifact: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "plan.svg"
    done = cli.run(
        "grid", "plan", "--counts", counts, "--artifact", artifact, "--against", "16,32,512",
        "--plot", plot, "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = done.document
    assert list(found["compared"]) == ["default", "own", "16,32,512", "no graphs"]
    assert found["compared"]["own"]["sizes"] == [1, 2, 4, 8, 16, 24, 32, 48, 64]
    assert found["compared"]["own"]["coverage"] == pytest.approx(1 - 70 / 1500)
    assert found["compared"]["default"]["graphs"] == 86
    planned = found["planned"]
    assert planned["mean_s"] <= found["compared"]["default"]["mean_s"] * (1 + 1e-9)
    assert planned["graph_mib"] < found["compared"]["default"]["graph_mib"] / 2
    assert found["gap"] == 0
    assert "H200" in found["calibration"]
    assert found["traffic"]["decode_sequences"]["90"] == 10
    assert [m["size"] for m in found["marginals"]] == planned["sizes"]
    assert ET.parse(plot).getroot().tag.endswith("svg")  # noqa: S314  our own


def test_the_table_says_what_each_size_is_worth(cli: Cli, counts: Path) -> None:
    done = cli.run("grid", "plan", "--counts", counts)
    assert done.code == 0, done.err
    assert "worth it: the expected step falls by" in done.out
    assert "no grid within the limits is better" in done.out
    assert "first  dropping 5 saves" in done.out
    by = packaged()
    assert f"figures by the calibration of {by.whose}; another engine's steps" in done.out
    assert f"are off by FULL {by.noise_ms['FULL']:.2g} ms" in done.out
    assert "note: the artifact runs" not in done.out


def test_a_written_plan_is_an_artifact_that_drift_knows(
    cli: Cli, counts: Path, artifact: Path, tmp_path: Path
) -> None:
    before = artifact.read_text()
    os.utime(counts, (0, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()))
    done = cli.run("grid", "plan", "--counts", counts, "--write", artifact, "--json")
    assert done.code == 0, done.err
    sizes = tuple(done.document["planned"]["sizes"])
    loaded = load_artifact(artifact)
    assert loaded.document.runtime.graph.capture_sizes == sizes
    assert set(loaded.document.runtime.warmup_plan.decode_buckets) == {s for s in sizes if s <= 256}
    assert artifact.read_text().splitlines()[0] == before.splitlines()[0]
    assert cli.run("artifact", "validate", artifact).code == 0
    beside = tmp_path / "chat.grid.json"
    plan = load_plan(beside)
    assert plan.sizes == sizes
    assert plan.shapes.decode.total == 1390
    assert plan.observed_at == "2026-01-02T03:04:05Z", "no later than the file"
    listed = cli.run("checklist", artifact, "--json").document["lines"][0]
    assert not listed["holds"], "planned now, from an old file"
    assert "old, at most 168h expected" in listed["found"]
    kept = json.loads(beside.read_text())
    beside.write_text(json.dumps({**kept, "observed_at": "2026-01-02T03:04:05"}))
    with pytest.raises(InputError, match="expected a time with its zone"):
        load_plan(beside)
    del kept["observed_at"]  # as earlier plans
    beside.write_text(json.dumps(kept))
    assert load_plan(beside).observed_at is None

    settings = Settings.from_environment(
        {"CANARYCTL_STATE_DIR": str(cli.state), "HOME": str(tmp_path)}
    )
    store = open_store(settings)
    lease = store.acquire("chat", "a test", 60, NOW)
    assert lease is not None
    document = loaded.document
    store.register_artifact(
        Artifact(loaded.digest, document.name, document.version, "chat", document.runtime, NOW)
    )
    store.ensure_service("chat", lambda: 9000, NOW)
    store.set_stable("chat", loaded.digest, "p", 1, None, fence=lease, now=NOW)
    store.close()

    same = cli.run("grid", "drift", "chat", "--counts", counts)
    assert same.code == 0, same.err
    assert "no need to replan" in same.out
    assert "decodes: 0.0% apart at most" in same.out
    later = tmp_path / "later.csv"
    later.write_text(LATER)
    moved = cli.run("grid", "drift", "chat", "--counts", later, "--plan", beside, "--json")
    assert moved.code == 1, moved.err
    assert moved.document["replan"]
    assert moved.document["regret"] > 0.02
    assert moved.document["decode_distance"] > 0.5


def test_two_artifacts_on_the_same_traffic(cli: Cli, counts: Path, artifact: Path) -> None:
    other = artifact.with_name("other.yaml")
    text = artifact.read_text().replace(", 48, 64]", ", 48, 64, 96, 128]")
    other.write_text(text)
    done = cli.run("grid", "compare", artifact, other, "--counts", counts, "--json")
    assert done.code == 0, done.err
    a, b = done.document["grids"]
    assert b["coverage"] > a["coverage"]
    assert b["graph_mib"] > a["graph_mib"]
    for one in (a, b):
        assert [m["size"] for m in one["marginals"]] == one["sizes"]
        larger = [
            front["mean_s"] for front in one["front"] if front["graph_mib"] >= one["graph_mib"]
        ]
        assert larger, "the front goes on beyond it"
        assert max(larger) <= one["mean_s"] * (1 + 1e-9), "it beats none of the front"
    assert a["front"] == b["front"], "they have the same limits"
    assert any(note.startswith("the artifact runs simulated") for note in done.document["notes"])

    plot = artifact.with_name("both.svg")
    table = cli.run("grid", "compare", artifact, other, "--counts", counts, "--plot", plot)
    assert table.code == 0, table.err
    assert f"{other}: 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128" in table.out
    assert table.out.count("first  dropping 1 saves") == 2
    assert table.out.count("dropping 128 saves") == 1
    assert table.out.count("the best for their memory:") == 1
    drawn = plot.read_text()
    assert f"{artifact}: steps of at most a size" in drawn
    assert drawn.count("best for its memory") == 1
    assert ET.fromstring(drawn).tag.endswith("svg")  # noqa: S314  our own


def test_artifacts_with_other_limits_have_a_front_each(
    cli: Cli, counts: Path, artifact: Path
) -> None:
    other = artifact.with_name("other.yaml")
    text = artifact.read_text().replace("max_num_seqs: 256", "max_num_seqs: 64")
    other.write_text(text)
    plot = artifact.with_name("both.svg")
    done = cli.run("grid", "compare", artifact, other, "--counts", counts, "--plot", plot)
    assert done.code == 0, done.err
    for path in (artifact, other):
        assert f"the best for their memory, under the limits of {path}:" in done.out
    assert plot.read_text().count(">best: ") == 2
    off = artifact.with_name("off.yaml")
    off.write_text(text.replace("mode: FULL_AND_PIECEWISE", "mode: NONE").replace(
        "    capture_sizes: [1, 2, 4, 8, 16, 24, 32, 48, 64]\n", ""
    ))  # fmt: skip
    without = cli.run("grid", "compare", artifact, off, "--counts", counts, "--plot", plot)
    assert without.code == 0, without.err
    assert f"{off}: none" in without.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "found no source of traffic"),
        (["--counts", "c.csv", "--trace", "t.csv"], "found several sources of traffic"),
        (["--counts", "none.csv"], "none.csv: cannot be read"),
        (["--service", "chat"], "no Prometheus is known; set CANARYCTL_PROMETHEUS_URL"),
        (["--counts", "COUNTS", "--max-p99", "5"], "--max-p99: found '5', expected a duration"),
        (["--counts", "COUNTS", "--mode", "HALF"], "unknown graph mode 'HALF'"),
        (["--counts", "COUNTS", "--against", "a,b"], "--against: found 'a,b'"),
        (["--counts", "COUNTS", "--hours", "8-30"], "--hours: found '8-30'"),
        (["--counts", "COUNTS", "--max-p99", "1us"], "--max-p99: found '1us'"),
        (["--counts", "COUNTS", "--max-p99", "1ms"], "no grid is within the limit of p99"),
    ],
)
def test_what_is_wrong_is_said(cli: Cli, counts: Path, options: list[str], said: str) -> None:
    done = cli.run("grid", "plan", *(str(counts) if o == "COUNTS" else o for o in options))
    assert done.code == 2
    assert said in done.err
    assert not done.out


def test_a_calibration_of_ones_own_is_named(cli: Cli, counts: Path, tmp_path: Path) -> None:
    document = json.loads(packaged().to_json())
    document["machine"] = "one L4"
    own = tmp_path / "own.json"
    own.write_text(json.dumps(document))
    done = cli.run("grid", "plan", "--counts", counts, "--calibration", own)
    assert "on one L4" in done.out


def test_a_warm_up_plan_is_made_of_the_grid_and_written(cli: Cli, artifact: Path) -> None:
    text = artifact.read_text().replace("    capture_sizes: [1, 2, 4, 8, 16, 24, 32, 48, 64]\n", "")
    text = text.replace("max_num_seqs: 256", "max_num_seqs: 24").replace("8, 16, 32]", "8]")
    artifact.write_text(text)
    before = load_artifact(artifact)
    shown = cli.run("grid", "warmup", artifact, "--json")
    assert shown.code == 0, shown.err
    plan = shown.document
    assert plan == {
        "decode_buckets": [1, 2, 4, 8, 16, 24],
        "mixed_token_buckets": [32, 40, 48],  # the default grid ends at twice the sequences
    }
    assert artifact.read_text() == text, "only shown"

    artifact.write_text(text.replace("mode: FULL_AND_PIECEWISE", "mode: NONE"))
    refused = cli.run("grid", "warmup", artifact)
    assert refused.code == 2
    assert "graph mode NONE" in refused.err
    artifact.write_text(text)

    written = cli.run("grid", "warmup", artifact, "--write")
    assert written.code == 0, written.err
    after = load_artifact(artifact)
    assert f"runtime {after.digest}" in written.err
    assert list(after.document.runtime.warmup_plan.decode_buckets) == plan["decode_buckets"]
    assert after.document.runtime.graph == before.document.runtime.graph
    assert [line for line in text.splitlines() if "#" in line] == [
        line for line in artifact.read_text().splitlines() if "#" in line
    ]

"""``release --dry-run`` on a live service: it records nothing, and what it says comes true."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.artifacts import artifact, first, write
from tests.support.cli import Cli, Running, eventually

pytestmark = pytest.mark.timeout(300)

RATE = 30
LATENCY = {"name": "ttft_p90", "max_regression": "46%"}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("plan"))
    yield cli
    removed = cli.run("remove", "chat")
    assert removed.code == 0, removed.err
    assert cli.left_over() == []


@pytest.fixture(scope="module")
def load(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Traffic on a service that has a stable runtime."""
    done = cli.release(write(tmp_path_factory.mktemp("first"), first(1)))
    assert done.code == 0, done.err
    running = cli.start("load", "chat", "--rate", str(RATE), "--for", "10m")
    file = candidate(tmp_path_factory.mktemp("asked"))
    asked = ("requests are answered", lambda: dry_run(cli, file).document["rate"])
    eventually(*asked, timeout_s=120)
    yield running
    running.end()


def candidate(folder: Path, *, number: int = 2, **rollout: Any) -> Path:
    shape = {
        "steps": [{"weight": 25, "bake": "2s"}, {"weight": 50, "bake": "2s"}],
        "interval": "500ms",
        "progress_deadline": "4m",
        **rollout,
    }
    document = artifact("good", number, rollout=shape)
    document["gates"] = [LATENCY, {"name": "error_rate", "max_ratio": "5%"}]
    return write(folder, document)


def dry_run(cli: Cli, file: Path, *options: str) -> Any:
    return cli.run("release", file, "--dry-run", "--json", *options)


def test_nothing_is_known_of_a_service_that_is_not_there(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state")
    done = dry_run(cli, candidate(tmp_path))
    assert done.code == 0, done.err
    document = done.document
    assert document["kind"] == "first"
    assert document["rate"] is None
    assert "no stable instance" in document["silence"]
    assert cli.run("status", "--json").document == {"services": []}
    assert cli.run("artifact", "list", "--json").document["artifacts"] == []


def test_what_is_planned_comes_true(cli: Cli, load: Running, tmp_path: Path) -> None:
    file = candidate(tmp_path)
    planned = dry_run(cli, file)
    assert planned.code == 0, planned.err
    plan = planned.document
    assert plan["decidable"] is True
    assert 0 < plan["rate"]["requests_per_s"] < 2 * RATE  # a busy machine sends fewer
    assert [step["unequal_load"] is None for step in plan["steps"]] == [False, True]
    gate = next(g for g in plan["gates"] if g["name"] == "ttft_p90")
    assert gate["likely"]["step"] == 2
    assert gate["needs"]["no_harm"]["blocks"] >= 11
    assert cli.service()["stable"] == "chat-good@1"
    assert len(cli.run("history", "--json").document["releases"]) == 1

    done = cli.release(file)
    assert done.code == 0, done.err
    at = {
        entry["phase"]: datetime.fromisoformat(entry["at"]) for entry in done.document["timeline"]
    }
    took_s = (at["promoting"] - at["progressing"]).total_seconds()
    assert plan["likely_s"] / 2 <= took_s <= plan["likely_s"] * 2

    said = cli.run("gates", "explain", done.document["release"])
    assert "As planned before it began:" in said.out
    assert "ttft_p90 (block share, 4 looks a block) allows promotion after" in said.out


def test_a_plan_that_cannot_decide_is_refused_and_nothing_is_recorded(
    cli: Cli, load: Running, tmp_path: Path
) -> None:
    file = candidate(tmp_path, number=3, progress_deadline="20s")
    before = cli.run("history", "--json").document
    planned = dry_run(cli, file)
    assert planned.code == 2
    gate = next(g for g in planned.document["gates"] if g["name"] == "ttft_p90")
    assert "the progress deadline is 20 s" in gate["refused"]
    assert any(offer.startswith("progress_deadline: ") for offer in gate["offers"])

    table = cli.run("release", file, "--dry-run", "--rate", "30")
    assert table.code == 2
    assert "Planned for 30 requests a second, as given." in table.out
    assert "ttft_p90 cannot be decided: it takes" in table.out

    released = cli.run("release", file, "--json")
    assert released.code == 2
    assert "this plan cannot decide its gates" in released.err
    assert "progress_deadline: " in released.err
    assert cli.run("history", "--json").document == before
    assert "chat-good@3" not in cli.run("artifact", "list").out

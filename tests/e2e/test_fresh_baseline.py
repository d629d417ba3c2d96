"""A canary beside a fresh baseline, under a service of several engines, by the command line."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.artifacts import LOAD, artifact, first, write
from tests.support.cli import Cli, eventually
from tests.support.watching import store_of

pytestmark = pytest.mark.timeout(300)

REPLICAS = 2
GATES = [
    {"name": "tpot_p90", "max_regression": "46%"},
    {"name": "error_rate", "max_ratio": "20%"},
    {"name": "progress", "max_seconds": "5s"},
]
ROLLOUT = {
    "baseline": "fresh",
    "steps": [{"weight": 25, "bake": "2s"}],
    "rollback_window": "2s",
    "stage_deadlines": {"load": "1m", "compile": "1m", "capture": "1m", "warm": "1m"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("fresh"), CANARYCTL_SIMULATED_GPUS="5")
    done = cli.release(write(folder, first(1, replicas=REPLICAS)))
    assert done.code == 0, done.err
    profile = folder / "load.yaml"
    profile.write_text(yaml.safe_dump({**LOAD, "rate": 20}))
    load = cli.start("load", "chat", "--profile", profile, "--json")
    yield cli
    report = load.end().document
    assert report["failed"] == 0, report
    removed = cli.run("remove", "chat")
    assert removed.code == 0, removed.err
    assert cli.left_over() == []


def fresh(kind: str, number: int, **more: Any) -> dict[str, Any]:
    return artifact(kind, number, rollout=ROLLOUT, replicas=REPLICAS, gates=GATES, **more)


def pools(cli: Cli) -> dict[str, int]:
    with store_of(cli) as store:
        return Counter(i.pool for i in store.instances(service="chat", live_only=True))


def test_a_slow_one_is_rolled_back_and_nothing_is_left(cli: Cli, folder: Path) -> None:
    before = cli.service()["stable"]
    slow = {"fault": "slow", "fault_factor": 4, "fault_at": "running", "fault_after_s": 4}
    done = cli.release(write(folder, fresh("good", 2, args=slow)))
    assert done.code == 3, done.err + done.out
    document = done.document
    assert document["reason"].startswith("tpot_p90"), document["reason"]
    assert cli.service()["stable"] == before
    assert list(pools(cli).values()) == [REPLICAS]


def test_a_good_one_is_promoted_against_it(cli: Cli, folder: Path) -> None:
    running = cli.start("release", write(folder, fresh("good", 3)), "--json")
    both = eventually(
        "a fresh baseline beside the canary",
        lambda: {p: n for p, n in pools(cli).items() if p.endswith(".baseline")},
        timeout_s=60,
    )
    assert list(both.values()) == [1]
    done = running.wait()
    assert done.code == 0, done.err + done.out
    [gate] = [gate for gate in done.document["gates"] if gate["name"] == "tpot_p90"]
    assert gate["no_harm"] or gate["outcome"] == "passed"
    assert cli.service()["stable"] == "chat-good@3"
    assert pools(cli) == {done.document["release"]: REPLICAS}


def test_without_room_for_both_it_is_refused_before_anything_starts(cli: Cli, folder: Path) -> None:
    large = {**fresh("good", 4), "replicas": 8}  # a quarter of it is two engines
    done = cli.release(write(folder, large))
    assert done.code == 3, done.err
    assert "2 canary engines of 1 GPU and 2 baseline engines" in done.document["reason"]
    assert list(pools(cli).values()) == [REPLICAS]

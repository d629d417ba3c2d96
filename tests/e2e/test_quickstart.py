"""Every example of the quickstart, by the command line, under traffic through Envoy."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import QUICKSTART, Cli, Running

pytestmark = pytest.mark.timeout(300)

BAD = {
    "slow-tail": ("ttft_p90", "tpot_p90"),
    "oom": ("oom",),
    "fallback": ("graph_fallback",),
    "small-kv": ("max_concurrency",),
    "exits": ("engine_exit",),
    "hangs": ("progress",),
}


def before_response(report: dict[str, Any]) -> dict[str, int]:
    """Failures of requests that no engine had begun to answer."""
    lost: dict[str, int] = {}
    for target in report["targets"].values():
        lost |= target["failures"].get("before_response", {})
    return lost


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("quickstart"))
    yield cli
    removed = cli.run("remove", "chat")
    assert removed.code == 0, removed.err
    assert cli.left_over() == []


@pytest.fixture(scope="module")
def stable(cli: Cli) -> None:
    done = cli.release(QUICKSTART / "stable.yaml")
    assert done.code == 0, done.err
    document = done.document
    assert (document["outcome"], document["phase"]) == ("promoted", "succeeded")
    assert document["kind"] == "first"
    phases = [entry["phase"] for entry in document["timeline"]]
    assert phases == [
        "pending",
        "preflight",
        "deploying",
        "warming",
        "progressing",
        "promoting",
        "watching",
        "succeeded",
    ]


@pytest.fixture
def load(cli: Cli, stable: None) -> Iterator[Running]:
    running = cli.start("load", "chat", "--profile", QUICKSTART / "load.yaml", "--json")
    yield running
    if running.process.poll() is None:
        running.end()


def test_a_good_artifact_is_promoted(cli: Cli, load: Running) -> None:
    done = cli.release(QUICKSTART / "good.yaml")
    assert done.code == 0, done.err
    assert {gate["outcome"] for gate in done.document["gates"]} <= {"passed", "inconclusive"}
    assert all(g["outcome"] == "passed" or g["no_harm"] for g in done.document["gates"])
    report = load.end().document
    assert report["failed"] == 0, report
    assert set(report["artifacts"]) == {"chat-stable@1", "chat-good@2"}
    assert cli.service()["stable"] == "chat-good@2"
    again = cli.release(QUICKSTART / "good.yaml")
    assert again.code == 0
    assert "nothing to release" in again.err


@pytest.mark.parametrize("name", BAD)
def test_a_bad_artifact_is_rolled_back_by_its_gate(cli: Cli, load: Running, name: str) -> None:
    before = cli.service()["stable"]
    done = cli.release(QUICKSTART / f"{name}.yaml")
    assert done.code == 3, done.err
    document = done.document
    assert document["reason"].split(":")[0] in BAD[name], document["reason"]
    assert document["rollback_target"] == "previous"
    assert document["outcome"] == "rolled_back"
    failed = {gate["name"] for gate in document["gates"] if gate["outcome"] == "failed"}
    assert failed & set(BAD[name])
    explained = cli.run("gates", "explain", document["release"])
    assert explained.code == 0
    assert f"Gate {document['reason'].split(':')[0]} failed" in explained.out
    after = cli.service()
    assert after["stable"] == before
    assert [i["state"] for i in after["instances"]] == ["ready"]
    report = load.end().document
    # Only what an engine that died was already answering may be lost: one that runs out of
    # memory still says 500 to those whose first token it had not made.
    assert before_response(report).keys() <= ({"http_500"} if name == "oom" else set()), report
    if name in ("slow-tail", "fallback", "small-kv"):
        assert report["failed"] == 0, report
    if name == "small-kv":
        assert set(report["artifacts"]) == {before}


def test_input_that_cannot_be_used_exits_2(cli: Cli, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("apiVersion: canaryctl/v1\nkind: Nonsense\nname: [\n")
    done = cli.release(broken)
    assert done.code == 2
    assert json.loads(done.out)["error"]["exit_code"] == 2

"""Releases judged only through a real Prometheus, which finds the engines by the written file."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from canaryctl.controller.settings import Settings
from canaryctl.controller.store import Store, open_store
from tests.support.artifacts import artifact, first, write, write_load
from tests.support.cli import Cli, Running, eventually
from tests.support.prometheus import Prometheus

pytestmark = pytest.mark.timeout(300)

SCRAPE_S = 0.5
BLIND = "the metrics cannot be read"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    server = Prometheus(folder, folder / "state" / "prometheus" / "targets.json", scrape_s=SCRAPE_S)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cli(prometheus: Prometheus) -> Iterator[Cli]:
    cli = Cli(prometheus.targets.parents[1], CANARYCTL_PROMETHEUS_URL=prometheus.url)
    yield cli
    removed = cli.run("remove", "chat")
    assert removed.code == 0, removed.err
    assert cli.left_over() == []
    assert json.loads(prometheus.targets.read_text()) == []


@pytest.fixture(scope="module")
def store(cli: Cli, stable: None) -> Iterator[Store]:
    with open_store(Settings.from_environment(cli.env)) as found:
        yield found


@pytest.fixture(scope="module")
def stable(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    done = cli.release(write(tmp_path_factory.mktemp("first"), first(1)))
    assert done.code == 0, done.err


@pytest.fixture(scope="module")
def load(cli: Cli, stable: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    profile = write_load(tmp_path_factory.mktemp("load"))
    running = cli.start("load", "chat", "--profile", profile, "--json")
    yield running
    report = running.end().document
    lost: dict[str, int] = {}
    for target in report["targets"].values():
        lost |= target["failures"].get("before_response", {})
    assert lost == {}, report


def sources(store: Store, release: str) -> set[str]:
    return {row.source for row in store.evidence(release)}


def active(store: Store) -> Any:
    (release,) = store.active_releases()
    return release


def held(store: Store) -> str:
    return active(store).hold or ""


def at_first_step(store: Store) -> bool:
    releases = store.active_releases()
    return bool(releases) and releases[0].step_at is not None


def test_the_file_says_what_runs(cli: Cli, stable: None, prometheus: Prometheus) -> None:
    (group,) = json.loads(prometheus.targets.read_text())
    (instance,) = cli.service()["instances"]
    labels = group["labels"]
    assert labels["instance"] == instance["id"]
    assert (labels["service"], labels["role"]) == ("chat", "stable")
    assert labels["artifact"].startswith("sha256:")
    assert instance["id"].startswith(labels["release"])


def test_a_bad_release_is_rolled_back(
    cli: Cli, load: Running, store: Store, tmp_path: Path
) -> None:
    done = cli.release(write(tmp_path, artifact("fallback", 2)))
    assert done.code == 3, done.err
    assert done.document["reason"].startswith("graph_fallback")
    assert sources(store, done.document["release"]) == {"prometheus"}


def test_a_good_release_waits_while_prometheus_is_frozen_and_is_promoted_after(
    cli: Cli, load: Running, store: Store, prometheus: Prometheus, tmp_path: Path
) -> None:
    slow = {"steps": [{"weight": 25, "bake": "2s"}, {"weight": 50, "bake": "1s"}]}
    running = cli.start(
        "release", write(tmp_path, artifact("good", 3, rollout=slow)), "--wait", "--json"
    )
    eventually("the first step is in force", lambda: at_first_step(store))
    prometheus.freeze()
    eventually("it holds", lambda: BLIND in held(store))
    assert "no answer within" in held(store)
    release = active(store)
    # Longer than its bake time, and nothing moves.
    with pytest.raises(AssertionError):
        eventually("a step", lambda: active(store).step != release.step, timeout_s=4)
    prometheus.thaw()
    done = running.wait()
    assert done.code == 0, done.err
    assert cli.service()["stable"] == "chat-good@3"
    assert sources(store, release.id) == {"prometheus"}
    holds = [e for e in store.events(release.id) if e.kind == "hold" and BLIND in e.message]
    # Also before traffic: until Prometheus had found the canary, nothing was known of it.
    assert 1 <= len(holds) <= 2


def test_an_engine_that_dies_while_prometheus_is_down_is_rolled_back(
    cli: Cli, load: Running, store: Store, prometheus: Prometheus, tmp_path: Path
) -> None:
    running = cli.start("release", write(tmp_path, artifact("good", 4)), "--wait", "--json")
    eventually("the first step is in force", lambda: at_first_step(store))
    release = active(store)
    prometheus.kill()
    eventually("it holds", lambda: BLIND in held(store))
    (canary,) = store.instances(pool=release.pool, live_only=True)
    assert canary.handle is not None
    os.kill(canary.handle.pid, signal.SIGKILL)
    done = running.wait()
    assert done.code == 3, done.err
    assert done.document["reason"].startswith("engine_exit")
    assert "Retrying" not in done.err
    assert cli.service()["stable"] == "chat-good@3"
    prometheus.start()

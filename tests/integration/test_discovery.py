"""The file that tells Prometheus what runs, made from a real store."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from canaryctl.common.errors import TemporaryError
from canaryctl.controller.artifact.digest import digest_of
from canaryctl.controller.artifact.loader import LoadedArtifact
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.discovery import (
    REFRESH_S,
    TargetsFile,
    instance_labels,
    judged_labels,
    targets_path,
)
from canaryctl.controller.model import Instance, InstanceState, Lease, Release
from canaryctl.controller.store import Store, open_store
from canaryctl.controller.submit import Submitter
from canaryctl.runtimes.engines.registry import engine
from canaryctl.runtimes.placements.base import Handle
from tests.support.artifacts import artifact
from tests.support.prometheus import prometheus_binary
from tests.support.releases import CANARY, PREVIOUS, T0, instance, release

EXAMPLE = Path(__file__).parents[2] / "examples" / "prometheus" / "prometheus.yml"


def address(handle: Handle) -> str:
    return f"http://127.0.0.1:{handle.port}"


def default_page(digest: str) -> str:
    return "/metrics"


@dataclass
class World:
    store: Store
    fence: Lease
    release: Release
    file: TargetsFile
    path: Path

    def add(self, name: str, port: int, state: InstanceState, **changes: Any) -> Instance:
        made = Instance(
            id=name,
            service="chat",
            pool=self.release.pool,
            digest=self.release.digest,
            state=InstanceState.REQUESTED,
            created_at=T0,
            port=port,
        )
        self.store.add_instance(made, fence=self.fence, now=T0, gpus=None)
        handle = Handle(name, made.digest, 1, 0.0, port, "log")
        after = replace(made, state=state, handle=handle, **changes)
        if state is not InstanceState.REQUESTED:
            self.store.update_instance(after, fence=self.fence, now=T0)
        return after

    def targets(self, seen: object = None, at: float = 0.0) -> dict[str, dict[str, str]]:
        """Labels by address, after an update."""
        self.file.update(seen, T0 + timedelta(seconds=at))
        groups = json.loads(self.path.read_text())
        return {group["targets"][0]: group["labels"] for group in groups}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    document = ArtifactDocument.model_validate(artifact("good", 1))
    settings = SimpleNamespace(database_url=f"sqlite:///{tmp_path}/db", state_dir=tmp_path)
    with open_store(settings) as store:
        loaded = LoadedArtifact(document, digest_of(document.runtime), "", tmp_path)
        made = Submitter(store, engine, lambda: 8000).release(loaded, actor="ann", now=T0)
        fence = store.acquire("service:chat", "test", 3600, T0)
        assert fence is not None
        path = targets_path(tmp_path)
        yield World(store, fence, made, TargetsFile(path, store, address, default_page), path)


def test_it_lists_what_listens_or_will(world: World) -> None:
    assert world.targets() == {}
    world.add("asked-for", 1, InstanceState.REQUESTED)
    starting = world.add("starting", 2, InstanceState.STARTING)
    ready = world.add("ready", 3, InstanceState.READY)
    world.add("ending", 4, InstanceState.STOPPING, stop_at=T0)
    assert world.targets("more") == {
        "127.0.0.1:2": instance_labels(starting, world.release, None),
        "127.0.0.1:3": instance_labels(ready, world.release, None),
    }
    assert world.targets("more")["127.0.0.1:3"]["role"] == "canary"


def test_a_page_that_is_elsewhere_is_said(world: World) -> None:
    def elsewhere(digest: str) -> str:
        assert digest == world.release.digest
        return "/prometheus/metrics"

    ready = world.add("ready", 3, InstanceState.READY)
    world.file = TargetsFile(world.path, world.store, address, elsewhere)
    labels = world.targets()["127.0.0.1:3"]
    assert labels.pop("__metrics_path__") == "/prometheus/metrics"
    assert labels == instance_labels(ready, world.release, None)


def test_it_is_made_anew_when_something_is_seen_and_now_and_then(world: World) -> None:
    assert world.targets("a") == {}
    world.add("ready", 3, InstanceState.READY)
    assert world.targets("a", at=REFRESH_S - 0.1) == {}
    assert len(world.targets("a", at=REFRESH_S)) == 1
    world.add("second", 4, InstanceState.READY)
    assert len(world.targets("b", at=REFRESH_S + 0.1)) == 2
    # Time that is set back must not stop it.
    world.add("third", 5, InstanceState.READY)
    assert len(world.targets("b", at=-60)) == 3


def test_the_same_content_is_not_written_again(world: World) -> None:
    world.add("ready", 3, InstanceState.READY)
    world.targets("a")
    before = world.path.stat()
    world.targets("b")
    assert world.path.stat().st_ino == before.st_ino
    world.path.write_text("somebody else's")
    assert len(world.targets("c")) == 1


def test_whoever_reads_it_sees_a_whole_file(world: World) -> None:
    done, wrong = Event(), []

    def read() -> None:
        while not done.is_set():
            try:
                json.loads(world.path.read_text())
            except ValueError as error:
                wrong.append(error)

    world.targets("start")
    reader = Thread(target=read)
    reader.start()
    for number in range(20):
        world.add(f"i{number}", 100 + number, InstanceState.READY)
        world.targets(number)
    done.set()
    reader.join()
    assert wrong == []
    assert [path.name for path in world.path.parent.iterdir()] == ["targets.json"]


def test_a_folder_that_cannot_be_written_is_a_passing_trouble(world: World) -> None:
    world.path.parent.write_text("in the way")
    with pytest.raises(TemporaryError, match=r"targets\.json"):
        world.file.update("a", T0)
    world.path.parent.unlink()
    assert world.targets("a") == {}


def test_roles() -> None:
    active = release()
    canary, stable = instance(CANARY), instance(PREVIOUS)
    eager = instance(active.eager_pool)

    def role(which: Instance, rel: Release | None, stable_pool: str | None) -> str:
        return instance_labels(which, rel, stable_pool)["role"]

    assert [role(i, active, PREVIOUS) for i in (canary, stable, eager)] == [
        "canary",
        "stable",
        "baseline",
    ]
    assert role(eager, replace(active, previous_pool=None), None) == "baseline"
    assert [role(i, None, CANARY) for i in (canary, stable, eager)] == [
        "stable",
        "retired",
        "retired",
    ]
    assert role(eager, None, active.eager_pool) == "stable"
    # The eager variant is of the same release.
    assert instance_labels(eager, active, None)["release"] == CANARY


def test_the_judge_asks_by_what_the_file_says() -> None:
    active = release()
    for pool in (CANARY, PREVIOUS, active.eager_pool):
        which = instance(pool)
        assert judged_labels(which, active) == instance_labels(which, active, PREVIOUS)


def test_the_example_configuration_is_valid() -> None:
    promtool = Path(prometheus_binary()).with_name("promtool")
    done = subprocess.run(
        [promtool, "check", "config", EXAMPLE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

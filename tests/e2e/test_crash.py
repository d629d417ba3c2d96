"""The controller killed with SIGKILL wherever it is: the next one goes on, and nothing is left.

Kills fall at seeded random times in every phase. From outside it is watched all the time that
no instance ever has two processes.
"""

import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from canaryctl.controller.model import Instance, InstanceState, Release
from canaryctl.controller.states import FINAL, Phase
from canaryctl.controller.store import Store
from canaryctl.runtimes.engines.base import Stage
from tests.support.artifacts import GPUS, artifact, first, write, write_load
from tests.support.cli import Cli, Running, eventually
from tests.support.watching import OneProcessEach, RouterAdmin, engine_processes, store_of

pytestmark = pytest.mark.timeout(300)

SEED = 20261129
LATE_S = 0.4  # kills fall between a phase's begin and so much later


class World:
    """A service with a stable runtime, under load, watched from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cli = Cli(folder / "state", CANARYCTL_SIMULATED_GPUS=GPUS)
        done = self.cli.release(write(folder, first(1)))
        assert done.code == 0, done.err
        self.store: Store = store_of(self.cli)
        self.number = 1
        self.random = random.Random(SEED)

    def file(self, kind: str, **more: object) -> Path:
        self.number += 1
        return write(self.folder, artifact(kind, self.number, **more))  # type: ignore[arg-type]

    def active(self) -> Release:
        found: Release = eventually("a release", lambda: self.store.active_release("chat"))
        return found

    def kill_in(self, phase: Phase, running: Running, release: Release) -> Phase:
        """SIGKILL a little after the phase began; says in which phase that really was."""

        def reached() -> Release | None:
            assert running.process.poll() is None, running.wait()
            now = self.store.release(release.id)
            return now if now.phase is phase or now.phase in FINAL else None

        eventually(phase.value, reached, timeout_s=60)
        time.sleep(self.random.uniform(0, LATE_S))
        running.kill()
        return self.store.release(release.id).phase

    def engines(self) -> list[str]:
        return sorted(engine_processes(self.cli.state))

    def instances(self) -> list[Instance]:
        return list(self.store.instances(service="chat", live_only=True))

    def assert_only_stable_is_left(self) -> None:
        """One engine, one GPU, no release under way."""
        [instance] = self.instances()
        assert instance.pool == self.store.service("chat").stable_pool
        assert instance.state is InstanceState.READY
        assert self.engines() == [instance.id]
        assert [lease.instance for lease in self.store.leased_gpus()] == [instance.id]
        assert self.store.active_releases() == ()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("crash"))
    yield world
    ports = [instance.port for instance in world.store.instances()]
    ports.append(world.store.service("chat").port)
    removed = world.cli.run("remove", "chat")
    assert removed.code == 0, removed.err
    assert world.cli.left_over() == []
    assert world.store.leased_gpus() == ()
    assert [port for port in ports if listens(port)] == []
    world.store.close()


@pytest.fixture
def load(world: World) -> Iterator[Running]:
    running = world.cli.start("load", "chat", "--profile", write_load(world.folder), "--json")
    yield running
    if running.process.poll() is None:
        running.end()


def test_a_good_release_goes_on_after_a_kill_in_every_phase(world: World, load: Running) -> None:
    with OneProcessEach(world.cli.state) as watch:
        running = world.cli.start("release", world.file("good"), "--wait", "--json")
        release = world.active()
        killed = []
        for phase in (
            Phase.DEPLOYING,
            Phase.WARMING,
            Phase.PROGRESSING,
            Phase.PROMOTING,
            Phase.WATCHING,
        ):
            killed.append(world.kill_in(phase, running, release))
            running = world.cli.start("status", release.id, "--wait", "--json")
        done = running.wait(120)
    assert done.code == 0, done.err
    assert done.document["phase"] == "succeeded"
    assert len(set(killed)) >= 4, killed
    replayed = world.cli.run("gates", "replay", release.id, "--json")
    assert replayed.code == 0, replayed.out
    assert replayed.document["looks"] > 0
    assert [e["phase"] for e in done.document["timeline"]][-2:] == ["watching", "succeeded"]
    assert watch.wrong == []
    world.assert_only_stable_is_left()
    report = load.end().document
    assert report["failed"] == 0, report["targets"]


def test_a_bad_release_is_rolled_back_whoever_is_killed(world: World, load: Running) -> None:
    before = world.store.service("chat").stable_digest
    with OneProcessEach(world.cli.state) as watch:
        running = world.cli.start("release", world.file("exits"), "--wait", "--json")
        release = world.active()
        for phase in (Phase.PROGRESSING, Phase.ROLLING_BACK):
            world.kill_in(phase, running, release)
            running = world.cli.start("status", release.id, "--wait", "--json")
        done = running.wait(120)
    assert done.code == 3, done.err
    assert done.document["reason"].startswith("engine_exit")
    replayed = world.cli.run("gates", "replay", release.id)
    assert replayed.code == 0, replayed.out
    assert "engine_exit: failed" in replayed.out
    assert watch.wrong == []
    assert world.store.service("chat").stable_digest == before
    world.assert_only_stable_is_left()
    targets = load.end().document["targets"]
    lost = [target["failures"].get("before_response") for target in targets.values()]
    assert lost == [None]


def test_a_kill_after_the_end_leaves_no_canary_behind(world: World, load: Running) -> None:
    """The release is final, the canary still drains: the next command ends it."""
    running = world.cli.start("release", world.file("fallback"), "--wait", "--json")
    release = world.active()

    def over() -> bool:
        return world.store.release(release.id).phase is Phase.ROLLED_BACK

    eventually("rolled back", over, timeout_s=90)
    running.kill()
    done = world.cli.run("status", release.id, "--wait", "--json")
    assert done.code == 3, done.err
    world.assert_only_stable_is_left()


def test_a_killed_daemon_is_followed_by_the_next(world: World, load: Running) -> None:
    with OneProcessEach(world.cli.state) as watch:
        daemon = world.cli.start("serve")
        submitted = world.cli.run("release", world.file("good"), "--detach", "--json")
        assert submitted.code == 0, submitted.err
        release = world.store.release(submitted.document["release"])
        for phase in (Phase.WARMING, Phase.PROGRESSING):
            world.kill_in(phase, daemon, release)
            daemon = world.cli.start("serve")
        eventually(
            "the release's end",
            lambda: world.store.release(release.id).phase in FINAL,
            timeout_s=90,
        )
        assert world.store.release(release.id).phase is Phase.SUCCEEDED
        eventually("the previous engine's end", lambda: len(world.instances()) == 1)
        daemon.end()
    assert watch.wrong == []
    world.assert_only_stable_is_left()


def test_a_dead_stable_engine_is_restarted_with_back_off_and_warmed(world: World) -> None:
    admin = RouterAdmin.of(world.cli.state, "chat")
    url = f"http://127.0.0.1:{world.store.service('chat').port}/v1/completions"
    body = {"prompt": [1, 2, 3], "max_tokens": 4}
    daemon = world.cli.start("serve")
    eventually("the daemon", lambda: world.store.holder("service:chat", datetime.now(UTC)))
    try:
        for restarts, wait_s in ((1, 1.0), (2, 2.0)):
            [stable] = eventually(
                "a ready engine",
                lambda: [i for i in world.instances() if i.state is InstanceState.READY],
            )
            assert stable.handle is not None
            os.kill(stable.handle.pid, signal.SIGKILL)
            killed_at = time.time()
            assert admin.when(stable.pool, 0) - killed_at < 2
            back_at = admin.when(stable.pool, 100, timeout_s=60)
            [after] = world.instances()
            assert after.id != stable.id
            assert after.restarts == restarts
            ended = world.store.instance(stable.id).ended_at
            assert ended is not None
            assert after.not_before is not None
            assert (after.not_before - ended).total_seconds() == pytest.approx(wait_s, abs=0.01)
            assert after.stages[Stage.STARTED] >= after.not_before
            assert after.stages[Stage.WARMED].timestamp() < back_at
            assert httpx.post(url, json=body, timeout=10).status_code == 200
    finally:
        daemon.end()
    world.assert_only_stable_is_left()

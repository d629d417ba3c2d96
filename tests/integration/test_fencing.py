"""A controller that goes on after another has taken over changes nothing any more, wherever it
was stopped: the other acts in the middle of each of its effects."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from canaryctl.common.errors import PermanentError
from canaryctl.runtimes.engines.base import Launch
from canaryctl.runtimes.fencing import Fence, Stage, StaleTokenError
from canaryctl.runtimes.placements.base import InstanceRequest, Liveness
from canaryctl.runtimes.placements.process import ProcessPlacement
from canaryctl.runtimes.processes import Processes
from canaryctl.runtimes.routers.base import Pool, PoolMember, RouteTable
from canaryctl.runtimes.routers.envoy import EnvoyRouter
from tests.support.cli import eventually

DIGEST = "sha256:" + "f" * 64


class Meanwhile:
    """Stands in for a function: something else happens before its ``nth`` call goes on."""

    def __init__(self, real: Callable[..., Any], nth: int, then: Callable[[], object]) -> None:
        self.real, self.left, self.then = real, nth, then
        self.happened = False

    def method(self) -> Callable[..., Any]:
        """As a function, which a class binds to its instances."""

        def bound(*arguments: Any, **named: Any) -> Any:
            return self(*arguments, **named)

        return bound

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.happened = True
            self.then()
        return self.real(*arguments, **named)


def test_a_lower_token_is_refused_for_ever(tmp_path: Path) -> None:
    fence, path = Fence(tmp_path / "fence"), tmp_path / "file"
    with fence.hold(7) as stage:
        stage.write(path, "seven")
    for token in (6, 1):
        with pytest.raises(StaleTokenError, match=f"than {token}"), fence.hold(token):
            pass
    with Fence(tmp_path / "fence").hold(None) as stage:
        stage.write(path, "as the newest")
    assert path.read_text() == "as the newest"
    with fence.hold(8), pytest.raises(StaleTokenError), fence.hold(7):
        pass


def test_the_next_holder_waits_for_no_earlier_one_and_shuts_it_out(tmp_path: Path) -> None:
    fence, path = Fence(tmp_path / "fence"), tmp_path / "file"
    path.write_text("old")
    with fence.hold(1) as earlier:
        with fence.hold(2) as later:
            later.write(path, "later")
        with pytest.raises(StaleTokenError):
            earlier.write(path, "earlier")
        with pytest.raises(StaleTokenError):
            earlier.remove(path)
        with pytest.raises(StaleTokenError), earlier.entering(tmp_path):
            pass
    assert path.read_text() == "later"


def test_a_process_does_not_start_once_its_holder_is_shut_out(tmp_path: Path) -> None:
    fence = Fence(tmp_path / "fence")

    def start(stage: Stage, before: Callable[[], None]) -> None:
        with stage.entering(tmp_path) as way:
            before()
            subprocess.run(["touch", "started"], cwd=way, check=True)

    def shut_out(fence: Fence) -> None:
        with fence.hold(2):
            pass

    with fence.hold(1) as earlier, pytest.raises(StaleTokenError):
        start(earlier, lambda: shut_out(fence))
    assert not (tmp_path / "started").exists()
    with fence.hold(2) as stage:
        start(stage, lambda: None)
    assert (tmp_path / "started").exists()


def test_holders_of_one_token_come_one_by_one(tmp_path: Path) -> None:
    inside, most = 0, 0

    def hold() -> None:
        nonlocal inside, most
        for _ in range(20):
            with Fence(tmp_path / "fence").hold(3):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def table(weight: int) -> RouteTable:
    def pool(name: str, share: int) -> Pool:
        return Pool(name, f"{name}@1", DIGEST, (PoolMember(name, "127.0.0.1", 9),), share)

    return RouteTable("chat", (pool("stable", 100 - weight), pool("canary", weight)))


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def routers(tmp_path: Path, port: int) -> Iterator[tuple[EnvoyRouter, EnvoyRouter]]:
    """That of the earlier and that of the later controller; the earlier has sent 25 %."""
    earlier, later = EnvoyRouter(tmp_path), EnvoyRouter(tmp_path)
    earlier.ensure("chat", port, 1)
    earlier.apply(table(25), 1)
    yield earlier, later
    later.remove("chat")


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_stale_table_does_not_land(
    routers: tuple[EnvoyRouter, EnvoyRouter],
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    nth: int,
) -> None:
    """The earlier one is stopped when it has written a file and not moved it into place."""
    earlier, later = routers
    only_canary = RouteTable("chat", (table(100).pools[1],))

    def take_over() -> None:
        later.ensure("chat", port, 2)
        later.apply(table(0), 2)

    meanwhile = Meanwhile(os.fsync, nth, take_over)
    monkeypatch.setattr("canaryctl.runtimes.fencing.os.fsync", meanwhile)
    with pytest.raises(StaleTokenError):
        earlier.apply(only_canary, 1)
    assert meanwhile.happened
    assert later.effective_weights("chat") == {"stable": 100, "canary": 0}
    for effect in (lambda: earlier.apply(table(50), 1), lambda: earlier.ensure("chat", port, 1)):
        with pytest.raises(StaleTokenError):
            effect()
    assert later.effective_weights("chat") == {"stable": 100, "canary": 0}


@pytest.fixture
def placements(tmp_path: Path) -> Iterator[tuple[ProcessPlacement, ProcessPlacement]]:
    earlier, later = ProcessPlacement(tmp_path), ProcessPlacement(tmp_path)
    yield earlier, later
    eventually("the end", lambda: later.stop("one", DIGEST, None, grace_s=0))


def request(token: int) -> InstanceRequest:
    launch = Launch(argv=(sys.executable, "-c", "import time; time.sleep(60)"))
    return InstanceRequest("one", DIGEST, launch, port=4321, token=token)


def running() -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CANARYCTL_ARTIFACT_DIGEST") == DIGEST:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def test_a_stale_start_does_not_land(
    placements: tuple[ProcessPlacement, ProcessPlacement], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped right before it starts the process; meanwhile the instance is given up."""
    earlier, later = placements
    stopped = []
    meanwhile = Meanwhile(
        Processes.start,
        1,
        lambda: stopped.append(later.stop("one", DIGEST, None, grace_s=1, token=2)),
    )
    monkeypatch.setattr(Processes, "start", meanwhile.method())
    with pytest.raises(StaleTokenError):
        earlier.ensure(request(1))
    assert stopped == [True]
    assert running() == []
    with pytest.raises(StaleTokenError):
        earlier.ensure(request(1))
    with pytest.raises(PermanentError, match="asked to stop"):
        later.ensure(request(2))
    assert running() == []


def test_the_later_one_starts_what_the_earlier_one_could_not(
    placements: tuple[ProcessPlacement, ProcessPlacement], monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, later = placements
    meanwhile = Meanwhile(Processes.start, 1, lambda: later.ensure(request(2)))
    monkeypatch.setattr(Processes, "start", meanwhile.method())
    with pytest.raises(StaleTokenError):
        earlier.ensure(request(1))
    assert len(running()) == 1
    assert later.status("one", DIGEST, None).liveness is Liveness.RUNNING


def test_a_stale_stop_does_not_land(
    placements: tuple[ProcessPlacement, ProcessPlacement],
) -> None:
    earlier, later = placements
    handle = earlier.ensure(request(1))
    assert later.ensure(request(2)) == handle
    with pytest.raises(StaleTokenError):
        earlier.stop("one", DIGEST, handle, grace_s=0, token=1)
    assert running() == [handle.pid]

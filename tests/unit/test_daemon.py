"""The daemon's schedule: ticks that never overlap, and an end that finishes what is under way."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from canaryctl.controller.compose import App
from canaryctl.controller.daemon import Daemon
from canaryctl.controller.store import Store, open_store
from tests.support.cli import eventually
from tests.support.releases import T0


@dataclass
class Slow:
    """A service whose ticks take longer than the time between them."""

    takes_s: float
    fails: bool = False
    inside: int = 0
    most_inside: int = 0
    begun: int = 0
    finished: int = 0
    closed_at: int | None = None  # ticks finished by then
    guard: threading.Lock = field(default_factory=threading.Lock)

    def tick(self) -> None:
        with self.guard:
            self.begun += 1
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        time.sleep(self.takes_s)
        with self.guard:
            self.inside -= 1
            self.finished += 1
        if self.fails:
            raise RuntimeError("a tick that fails")

    def close(self) -> None:
        self.closed_at = self.finished
        if self.fails:
            raise RuntimeError("an end that fails")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path}/canaryctl.db"
    with open_store(cast("Any", SimpleNamespace(database_url=url, state_dir=tmp_path))) as opened:
        yield opened


@pytest.fixture
def services(store: Store) -> dict[str, Slow]:
    made = {"quick": Slow(0.01), "slow": Slow(1.3), "unlucky": Slow(0.01, fails=True)}
    for number, name in enumerate(made):
        store.ensure_service(name, lambda number=number: 8100 + number, T0)  # type: ignore[misc]
    return made


def test_ticks_never_overlap_and_the_one_under_way_is_finished(
    store: Store, services: dict[str, Slow]
) -> None:
    app = cast("App", SimpleNamespace(store=store, controller=services.__getitem__))
    stop = threading.Event()
    running = threading.Thread(target=Daemon(app).run, args=(stop.wait,))
    running.start()
    slow = services["slow"]
    eventually("three slow ticks", lambda: slow.begun >= 3, timeout_s=30)
    stop.set()
    running.join(timeout=20)
    assert not running.is_alive()
    assert {s.most_inside for s in services.values()} == {1}
    assert slow.finished == slow.begun >= 3
    # One that fails at every tick, and again at the end, is no other's trouble.
    assert {name: s.closed_at for name, s in services.items()} == {
        name: s.begun for name, s in services.items()
    }
    assert services["unlucky"].begun >= 3
    assert services["quick"].begun >= 3


class Lingering:
    """A store whose looks at the services go on while the daemon is told to stop."""

    def __init__(self, store: Store, stop: threading.Event) -> None:
        self._store, self._stop = store, stop
        self.looked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def services(self) -> Any:
        self.looked += 1
        if self.looked > 1:
            self._stop.wait(5)
            time.sleep(0.5)  # for the end to have begun
        return self._store.services()


def test_it_ends_while_it_looks_for_services(store: Store, services: dict[str, Slow]) -> None:
    stop = threading.Event()
    lingering = Lingering(store, stop)
    app = cast("App", SimpleNamespace(store=lingering, controller=services.__getitem__))
    daemon = threading.Thread(target=Daemon(app).run, args=(stop.wait,), daemon=True)
    daemon.start()
    eventually("a look under way", lambda: lingering.looked > 1, timeout_s=10)
    stop.set()
    daemon.join(10)
    assert not daemon.is_alive()

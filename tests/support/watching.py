"""What can be seen of a running system from outside, without asking its controller."""

import json
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

from canaryctl.controller.settings import Settings
from canaryctl.controller.store import Store, open_store
from canaryctl.runtimes.routers import envoy_readback
from tests.support.cli import Cli


def store_of(cli: Cli) -> Store:
    """The records themselves; the caller closes it."""
    return open_store(Settings.from_environment(cli.env))


def engine_processes(state: Path) -> dict[str, list[int]]:
    """Instance → pids of its engine (the leader of its session), over the whole machine."""
    found: dict[str, list[int]] = defaultdict(list)
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            instance = environment.get("CANARYCTL_INSTANCE")
            if instance is None or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if Path(process.cwd()) == state / "instances" / instance:
                found[instance].append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return dict(found)


@dataclass
class OneProcessEach:
    """Looks again and again that no instance ever has two engine processes, and no pool more
    instances than ``most``."""

    state: Path
    most: int = 3  # stable, canary, eager
    every_s: float = 0.2
    looks: int = 0
    wrong: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.every_s):
            engines = engine_processes(self.state)
            self.looks += 1
            self.seen.update(list(engines))
            self.wrong += [f"{name}: {pids}" for name, pids in engines.items() if len(pids) != 1]
            if len(engines) > self.most:
                self.wrong.append(f"{len(engines)} engines at once: {sorted(engines)}")


@dataclass(frozen=True, slots=True)
class RouterAdmin:
    """A service's Envoy, asked by its own admin interface."""

    url: str

    @classmethod
    def of(cls, state: Path, service: str) -> "RouterAdmin":
        bootstrap = json.loads((state / "routers" / service / "bootstrap.json").read_text())
        _, port = envoy_readback.ports(bootstrap)
        return cls(f"http://127.0.0.1:{port}")

    def weights(self, http: httpx.Client) -> dict[str, int]:
        """Pool → weight of the routes in force; pools of weight 0 are left out."""
        state = envoy_readback.in_force(http.get(f"{self.url}/config_dump?include_eds").json())
        return {pool: weight for pool, weight in (state.weights or {}).items() if weight}

    def when(self, pool: str, weight: int, *, timeout_s: float = 30) -> float:
        """The time (seconds since the epoch) at which the pool is first seen at this weight."""
        until = time.monotonic() + timeout_s
        with httpx.Client(timeout=2) as http:
            while time.monotonic() < until:
                if self.weights(http).get(pool, 0) == weight:
                    return time.time()
                time.sleep(0.01)
        raise AssertionError(f"{pool} not at weight {weight} in {timeout_s:g} s")

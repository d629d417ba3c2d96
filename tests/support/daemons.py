"""Two daemons over one database: one killed, one frozen, and what an outsider sees of it."""

import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import httpx

from canaryctl.controller.errors import NotFoundError
from canaryctl.controller.loop import LEASE_TTL_S
from canaryctl.controller.model import LIVE_STATES, InstanceState, Lease, Release
from canaryctl.controller.states import FINAL, Phase
from canaryctl.controller.store import Store
from tests.support.artifacts import BAD, GPUS, KINDS, artifact, first, write, write_load
from tests.support.cli import CANARYCTL, Cli, Running, eventually
from tests.support.watching import RouterAdmin, engine_processes, store_of

SERVICE = "chat"
TAKE_OVER_S = 10.0
RELEASE_LIMIT_S = 120.0
REFUSED = "the lease is lost"
READY = "canaryctl serves"
_BACK = frozenset({Phase.ROLLING_BACK, Phase.ROLLED_BACK})
_FORWARD = frozenset({Phase.PROGRESSING, Phase.PAUSED, Phase.PROMOTING, Phase.WATCHING})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Site:
    """A state directory and a database, with daemons that may come and go."""

    def __init__(self, folder: Path, database_url: str | None = None) -> None:
        self.folder = folder
        settings = {"CANARYCTL_SIMULATED_GPUS": GPUS}
        if database_url is not None:
            settings["CANARYCTL_DATABASE_URL"] = database_url
        self.cli = Cli(folder / "state", **settings)
        upgraded = self.cli.run("db", "upgrade")
        assert upgraded.code == 0, upgraded.err
        self.store: Store = store_of(self.cli)
        self.number = 0
        self._daemons: list[Daemon] = []

    def daemon(self) -> "Daemon":
        self._daemons.append(Daemon(self.cli, self.folder))
        return self._daemons[-1]

    def load(self) -> Running:
        """Users of the service, until ended."""
        return self.cli.start("load", SERVICE, "--profile", write_load(self.folder), "--json")

    def submit(self, kind: str, **rollout: Any) -> Release:
        """Recorded, for whichever daemon acts."""
        self.number += 1
        document = (
            first(self.number) if self.number == 1 else artifact(kind, self.number, rollout=rollout)
        )
        done = self.cli.run(
            "release", write(self.folder, document), "--detach", "--json", timeout_s=60
        )
        assert done.code == 0, done.err
        return self.store.release(done.document["release"])

    def ended(self, release: Release, timeout_s: float = RELEASE_LIMIT_S) -> Release:
        eventually(
            f"the end of {release.id}",
            lambda: self.store.release(release.id).phase in FINAL,
            timeout_s=timeout_s,
        )
        return self.store.release(release.id)

    def settled(self) -> None:
        """Only the stable instance is left."""

        def alone() -> bool:
            pool = self.store.service(SERVICE).stable_pool
            live = self.store.instances(service=SERVICE, live_only=True)
            return [(i.pool, i.state) for i in live] == [(pool, InstanceState.READY)]

        eventually("only the stable instance", alone, timeout_s=60)

    def lease(self) -> Lease | None:
        return self.store.holder(f"service:{SERVICE}", datetime.now(UTC))

    def close(self) -> None:
        """What the service ran is ended, also after a failure, and nothing may be left."""
        for daemon in self._daemons:
            if daemon.process.poll() is None:
                daemon.thaw()
                daemon.end()
        for release in self.store.active_releases():
            self.cli.run("abort", release.id)
            self.cli.run("status", release.id, "--wait")
        removed = self.cli.run("remove", SERVICE)
        left_over = self.cli.left_over()
        self.store.close()
        assert removed.code == 0, removed.err
        assert left_over == []


class Daemon:
    """``canaryctl serve`` that can be killed, frozen and started again; its log is kept."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self._env = {**cli.env, "CANARYCTL_SERVE_PORT": str(free_port())}
        self._log = folder / f"daemon-{uuid4().hex[:6]}.log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        said = self.log.count(READY)
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [CANARYCTL, "serve"], env=self._env, stdout=subprocess.DEVNULL, stderr=log
            )
        eventually("the daemon", lambda: self.log.count(READY) > said, timeout_s=60)
        return process

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def holds(self, lease: Lease | None) -> bool:
        return lease is not None and f":{self.process.pid}:" in lease.holder

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        self.process = self._start()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self, timeout_s: float = 60) -> int:
        """Asked to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@dataclass
class Watcher:
    """Compares, again and again, what runs and where traffic goes with the records.

    An engine must be on record before it runs and until it has ended, and run once. The router
    never gives a canary more than the records gave it before, never gives a good one less than
    it had, and never gives anything back to one that it has taken all from.
    """

    site: Site
    every_s: float = 0.05
    looks: int = 0
    wrong: list[str] = field(default_factory=list)
    _most: dict[str, int] = field(default_factory=dict)  # release → weight that was in force
    _over: set[str] = field(default_factory=set)  # rolled back, and seen without traffic since
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        for look, every_s in ((self._router, self.every_s), (self._engines, 4 * self.every_s)):
            thread = threading.Thread(target=self._run, args=(look, every_s), daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, look: Callable[[httpx.Client], None], every_s: float) -> None:
        with httpx.Client(timeout=5) as http:
            while not self._stop.wait(every_s):
                try:
                    look(http)
                except Exception as error:  # a watcher that ends unseen would see nothing wrong
                    self.wrong.append(f"the watcher itself: {type(error).__name__}: {error}")

    def _router(self, http: httpx.Client) -> None:
        before = {release.id: release for release in self.site.store.releases(SERVICE, limit=2)}
        weights = RouterAdmin.of(self.site.cli.state, SERVICE).weights(http)
        self.looks += 1
        for name, seen in before.items():
            # Read anew: what is in force now was on record before.
            release, weight = self.site.store.release(name), weights.get(name, 0)
            title = f"{release.document.name} ({name}) at {weight} %"
            if release.phase in _FORWARD:
                if weight > release.weight:
                    self.wrong.append(f"{title}, on record is {release.weight} %")
                good = release.document.name.endswith("-good")
                if good and weight < self._most.get(name, 0):
                    self.wrong.append(f"{title}, had {self._most[name]} % before")
                self._most[name] = max(weight, self._most.get(name, 0))
            if seen.phase in _BACK:
                if weight and name in self._over:
                    self.wrong.append(f"{title}, rolled back and without traffic before")
                if not weight:
                    self._over.add(name)

    def _engines(self, _: httpx.Client) -> None:
        for name, pids in engine_processes(self.site.cli.state).items():
            if len(pids) > 1:
                self.wrong.append(f"{name} runs {len(pids)} times: {pids}")
            try:
                state = self.site.store.instance(name).state
            except NotFoundError:
                self.wrong.append(f"{name} runs and is not on record")
                continue
            if state not in LIVE_STATES and name in engine_processes(self.site.cli.state):
                self.wrong.append(f"{name} runs and is {state.value}")


@dataclass(frozen=True, slots=True)
class Ended:
    """How one release ended. ``frozen``, ``killed``: the release's phase at that moment.
    ``take_over_s``: from the freeze of the acting daemon until the other held the lease; None
    where the other was not there all the time. ``refused``: whether what the frozen one had
    begun was refused when it went on."""

    kind: str
    seconds: float
    outcome: str
    frozen: str
    killed: str
    take_over_s: float | None
    refused: bool
    wrong: str | None


class Drill:
    """Releases under two daemons, of which one is frozen and one is killed in each release."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.random = random.Random(seed)
        self.daemons = [site.daemon(), site.daemon()]
        self.ended: list[Ended] = []
        self.kills, self.restarting = 0, False

    def kinds(self, releases: int) -> list[str]:
        """Two good ones for three bad ones, in random order."""
        good = max(1, round(0.4 * releases))
        bad = [BAD[i % len(BAD)] for i in range(releases - good)]
        kinds = ["good"] * good + bad
        self.random.shuffle(kinds)
        return kinds

    def run(self, kind: str) -> Ended:
        """One release. The frozen daemon is the acting one three times out of four; the other
        is killed meanwhile or before, and started again."""
        release = self.site.submit(kind)
        began = time.monotonic()
        acting = eventually("a holder", self.site.lease, timeout_s=30)
        freeze_acting = self.random.random() < 0.75
        frozen = next(d for d in self.daemons if d.holds(acting) == freeze_acting)
        killed = next(d for d in self.daemons if d is not frozen)
        plan = [
            (self.random.uniform(0, 6), lambda: self._freeze(frozen)),
            (self.random.uniform(0, 6), lambda: self._kill(killed)),
        ]
        done: list[tuple[str, float | None]] = [("", None)] * 2
        refusals = frozen.log.count(REFUSED)
        threads = []
        for index, (delay_s, hit) in enumerate(plan):

            def act(index: int = index, delay_s: float = delay_s, hit: Any = hit) -> None:
                time.sleep(delay_s)
                done[index] = hit()

            threads.append(threading.Thread(target=act))
            threads[-1].start()
        for thread in threads:
            thread.join()
        after = self.site.ended(release)
        self.site.settled()
        (was_frozen, take_over_s), (was_killed, _) = done
        ended = Ended(
            kind,
            time.monotonic() - began,
            after.phase.value,
            was_frozen,
            was_killed,
            take_over_s,
            frozen.log.count(REFUSED) > refusals,
            self._wrong(kind, after),
        )
        self.ended.append(ended)
        return ended

    def _freeze(self, daemon: Daemon) -> tuple[str, float | None]:
        """For longer than a lease lasts, wherever it is."""
        acted, phase = self._before(daemon)
        kills = self.kills
        daemon.freeze()
        try:
            took_s = self._taken_over(acted)
            time.sleep(max(0.0, LEASE_TTL_S + self.random.uniform(1, 3) - (took_s or 0.0)))
        finally:
            daemon.thaw()
        undisturbed = self.kills == kills and not self.restarting
        return f"{phase}{'' if acted else ' (waiting)'}", took_s if undisturbed else None

    def _kill(self, daemon: Daemon) -> tuple[str, float | None]:
        acted, phase = self._before(daemon)
        self.kills, self.restarting = self.kills + 1, True
        daemon.kill()
        time.sleep(self.random.uniform(0.2, 2))
        daemon.start()
        self.restarting = False
        return f"{phase}{'' if acted else ' (waiting)'}", None

    def _before(self, daemon: Daemon) -> tuple[Lease | None, str]:
        lease = self.site.lease()
        [release] = self.site.store.releases(SERVICE, limit=1)
        return (lease if daemon.holds(lease) else None), release.phase.value

    def _taken_over(self, acted: Lease | None) -> float | None:
        """Seconds until another holds the lease of the daemon that acted."""
        if acted is None:
            return None
        began = time.monotonic()

        def another() -> bool:
            lease = self.site.lease()
            return lease is not None and lease.token > acted.token

        eventually("another holder", another, timeout_s=60)
        return time.monotonic() - began

    def _wrong(self, kind: str, after: Release) -> str | None:
        gates = KINDS[kind].gates
        if not gates and after.phase is not Phase.SUCCEEDED:
            return f"{after.phase.value}: {after.reason}"
        if gates and after.phase is not Phase.ROLLED_BACK:
            return f"{after.phase.value}: {after.reason}"
        if gates and (after.reason or "").split(":")[0] not in gates:
            return f"rolled back for {after.reason}"
        admin = RouterAdmin.of(self.site.cli.state, SERVICE)
        with httpx.Client(timeout=5) as http:
            weights = admin.weights(http)
        stable = self.site.store.service(SERVICE).stable_pool
        return None if weights == {stable: 100} else f"traffic goes to {weights}, not to {stable}"

    def close(self) -> None:
        for daemon in self.daemons:
            assert daemon.end() == 0, daemon.log[-2000:]
            assert "Traceback" not in daemon.log, daemon.log

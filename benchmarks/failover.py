"""How fast traffic leaves a bad canary: from the engine's death, or from a failing sample, to
weight 0 as Envoy's own admin interface reports it.

    python -m benchmarks.failover --runs 12

The engine is watched by its health page and its pid, the router by its admin interface, every
few milliseconds and without the controller. Deaths: SIGKILL; exit with code 0; out of memory
under load (503 for two seconds, then exit). A failing sample: the engine falls back to eager
while it serves; the time counts from the look at which the gate failed, and in a second row
from the look before it, which is as old as anything in the failing sample can be.
"""

import argparse
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from canaryctl.controller.model import Instance, InstanceState, Release
from canaryctl.controller.store import Store
from tests.support.artifacts import GPUS, artifact, first, write, write_load
from tests.support.cli import Cli, Running, eventually
from tests.support.watching import RouterAdmin, store_of

SERVICE = "chat"
INTERVAL_S = 0.5
LONG_STEP = {"steps": [{"weight": 50, "bake": "10m"}], "interval": "500ms"}
POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Run:
    """``seconds``: from the death or the failing sample to weight 0."""

    how: str
    seconds: float
    gate: str


@dataclass
class Bench:
    """A service with a stable runtime, under load."""

    folder: Path
    cli: Cli
    store: Store
    number: int = 1
    runs: list[Run] = field(default_factory=list)

    def measure(self, how: str) -> Run:
        self.number += 1
        file = write(self.folder, artifact("good", self.number, rollout=LONG_STEP))
        running = self.cli.start("release", file, "--wait", "--json")
        try:
            release, instance = self.canary(running)
            began_at, zero_at = self.times(how, release, instance)
            done = running.wait(120)
        finally:
            running.kill()
        assert done.code == 3, done.err
        gate = done.document["reason"].split(":")[0]
        run = Run(how, zero_at - began_at, gate)
        self.runs.append(run)
        if how == FALLBACK:
            before = self.looks(release)[0]
            self.runs.append(Run(LOOK_BEFORE, zero_at - before, gate))
        return run

    def canary(self, running: Running) -> tuple[str, Instance]:
        """The release whose canary is at weight 50, as the router reports it."""

        def begun() -> Release | None:
            assert running.process.poll() is None, running.wait()
            return self.store.active_release(SERVICE)

        release: Release = eventually("a release", begun, timeout_s=120)
        RouterAdmin.of(self.cli.state, SERVICE).when(release.id, 50, timeout_s=120)
        [instance] = [i for i in self.store.instances(pool=release.id) if i.handle is not None]
        assert instance.state is InstanceState.READY
        time.sleep(1.0)  # requests are under way
        return release.id, instance

    def times(self, how: str, release: str, instance: Instance) -> tuple[float, float]:
        """Of the death or the failing sample, and of weight 0."""
        admin = RouterAdmin.of(self.cli.state, SERVICE)
        if how == FALLBACK:
            switch(instance, "eager_fallback")
            zero_at = admin.when(release, 0)
            return self.looks(release)[1], zero_at
        with death_of(instance) as died_at:
            DEATHS[how](instance)
            zero_at = admin.when(release, 0)
        return died_at[0], zero_at

    def looks(self, release: str) -> tuple[float, float]:
        """When the samples were taken on which the gate failed, and those before them."""
        [record] = [r for r in self.store.gate_records(release) if r.result.outcome == "failed"]
        before = max(e.at for e in self.store.evidence(release) if e.at < record.at)
        return before.timestamp(), record.at.timestamp()


def switch(instance: Instance, fault: str) -> None:
    url = f"http://127.0.0.1:{instance.port}/simulator/faults"
    assert httpx.post(url, json={"faults": [fault]}, timeout=2).status_code == httpx.codes.OK


def kill(instance: Instance) -> None:
    assert instance.handle is not None
    os.kill(instance.handle.pid, signal.SIGKILL)


DEATHS: dict[str, Callable[[Instance], None]] = {
    "SIGKILL": kill,
    "exit with code 0": lambda instance: switch(instance, "exit"),
    "out of memory": lambda instance: switch(instance, "oom_load"),
}
FALLBACK, LOOK_BEFORE = "failing sample", "look before the failing sample"
WAYS = (*DEATHS, FALLBACK)


@contextmanager
def death_of(instance: Instance) -> Iterator[list[float]]:
    """The time of the first 503 or of the exit, whichever is first, in the list's one entry."""
    assert instance.handle is not None
    process = psutil.Process(instance.handle.pid)
    died_at: list[float] = []

    def watch() -> None:
        url = f"http://127.0.0.1:{instance.port}/health"
        with httpx.Client(timeout=1) as http:
            while not died_at:
                now = time.time()
                try:
                    dead = http.get(url).status_code == httpx.codes.SERVICE_UNAVAILABLE
                except httpx.HTTPError:
                    dead = not still_runs(process)
                if dead:
                    died_at.append(now)
                time.sleep(POLL_S)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    yield died_at
    watcher.join(timeout=10)
    assert died_at, "the engine was not seen to die"


def still_runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    cli = Cli(folder / "state", CANARYCTL_SIMULATED_GPUS=GPUS)
    done = cli.release(write(folder, first(1)))
    assert done.code == 0, done.err
    store = store_of(cli)
    load = cli.start("load", SERVICE, "--profile", write_load(folder), "--json")
    try:
        yield Bench(folder, cli, store)
    finally:
        load.end()
        store.close()
        removed = cli.run("remove", SERVICE)
    assert removed.code == 0, removed.err
    assert cli.left_over() == []


def table(runs: list[Run]) -> str:
    lines = [
        "| from | gate | runs | least | median | most | bar |",
        "|---|---|---|---|---|---|---|",
    ]
    for how in (*WAYS, LOOK_BEFORE):
        found = [run for run in runs if run.how == how]
        if not found:
            continue
        seconds = sorted(run.seconds for run in found)
        gates = ", ".join(sorted({run.gate for run in found}))
        bar = 2.0 if how in DEATHS else INTERVAL_S + 1
        lines.append(
            f"| {how} | {gates} | {len(found)} | {seconds[0]:.2f} s | "
            f"{statistics.median(seconds):.2f} s | {seconds[-1]:.2f} s | {bar:g} s |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=12, help="of each way; default 12")
    runs = parser.parse_args().runs
    with (
        tempfile.TemporaryDirectory(prefix="canaryctl-failover-") as folder,
        bench(Path(folder)) as measured,
    ):
        for number in range(runs):
            for how in WAYS:
                run = measured.measure(how)
                print(f"{number + 1}/{runs} {how}: {run.seconds:.2f} s", flush=True)
    print(table(measured.runs))


if __name__ == "__main__":
    main()

